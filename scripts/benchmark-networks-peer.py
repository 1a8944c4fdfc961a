#!/usr/bin/env python3
"""Times training iterations of PyTorch as `stratus bench kernels` times those of Stratus.

    python3 scripts/benchmark-networks-peer.py --batch 32 mobilenet_v2

Prints a JSON line per precision: the median over rounds of the shortest of five iterations in seconds, and
the median of all iterations. Networks are those of torchvision, with its initial weights, in channels last
unless --default-layout is given; images are random. Needs torch and torchvision.
"""
import argparse
import json
import statistics
import time

import torch
import torchvision

ITERATIONS_PER_ROUND = 5
CLASSES = 1000
# GoogLeNet has auxiliary classifiers otherwise.
OPTIONS = {"googlenet": {"aux_logits": False, "init_weights": False}}


def durations(name, batch, precision, layout, rounds):
    """The seconds of the iterations of each round, after one round to warm up."""
    model = torchvision.models.get_model(name, weights=None, num_classes=CLASSES, **OPTIONS.get(name, {}))
    model = model.train().to(memory_format=layout)
    images = torch.randn(batch, 3, 224, 224).to(memory_format=layout)
    labels = torch.randint(0, CLASSES, (batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss()

    def seconds_of_iteration():
        start = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        loss.item()
        return time.perf_counter() - start

    return [[seconds_of_iteration() for _ in range(ITERATIONS_PER_ROUND)] for _ in range(rounds + 1)][1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("network", help="a network of torchvision.models")
    parser.add_argument("--batch", type=int, required=True, help="images per iteration")
    parser.add_argument("--precisions", default="f32", help="f32, bf16, or both with a comma (default: f32)")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of five iterations (default: 1)")
    parser.add_argument("--threads", type=int, default=2, help="threads (default: 2)")
    parser.add_argument("--default-layout", action="store_true", help="not channels last")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    layout = torch.contiguous_format if args.default_layout else torch.channels_last
    for precision in args.precisions.split(","):
        rounds = durations(args.network, args.batch, precision, layout, args.rounds)
        print(json.dumps({
            "peer": f"PyTorch {torch.__version__}", "network": args.network, "batch": args.batch,
            "precision": precision, "layout": str(layout).removeprefix("torch."), "threads": args.threads,
            "shortest_s": round(statistics.median(map(min, rounds)), 4),
            "median_s": round(statistics.median(seconds for times in rounds for seconds in times), 4),
        }), flush=True)


if __name__ == "__main__":
    main()
