#!/usr/bin/env python3
"""Measures training iterations of PyTorch on a GPU, as a baseline for Stratus.

An iteration is forward under autocast, loss, backward, update by SGD with momentum (fused, gradients set to
none), and reading the loss; in f16 the loss is scaled by `GradScaler`. The batch is on the device, memory is
channels last, and cuDNN measures its algorithms first. The mode `compiled` compiles the whole model.

    python3 scripts/gpu-peers.py --networks 'resnet50:256 alexnet:512' --modes 'eager compiled'

Prints a JSON line for each network, mode and precision, with the median milliseconds of an iteration.
"""
import argparse
import json
import statistics
import time

import torch
import torchvision

# The precisions of autocast; f32 needs none.
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
ARGUMENTS = {"googlenet": {"aux_logits": False, "init_weights": False}}


def measure(network, batch, mode, precision, steps):
    torch.manual_seed(0)
    model = getattr(torchvision.models, network)(**ARGUMENTS.get(network, {})).cuda().train()
    model = model.to(memory_format=torch.channels_last)
    x = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(0, 1000, (batch,), device="cuda")
    optimiser = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=True)
    criterion = torch.nn.CrossEntropyLoss()
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "f16")
    run = torch.compile(model) if mode == "compiled" else model

    def step():
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=DTYPES.get(precision), enabled=precision in DTYPES):
            loss = criterion(run(x), y)
        # Does nothing if it is not enabled.
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        return loss.item()

    begun = time.perf_counter()
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    warm = time.perf_counter() - begun
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(steps):
        begun = time.perf_counter()
        step()
        times.append(time.perf_counter() - begun)
    seconds = statistics.median(times)
    return {
        "peer": f"pytorch {torch.__version__} {mode}", "network": network, "precision": precision,
        "batch": batch, "step_ms": round(1e3 * seconds, 3), "images_per_s": round(batch / seconds, 1),
        "warm_up_s": round(warm, 1), "peak_mib": torch.cuda.max_memory_allocated() >> 20,
    }


if __name__ == "__main__":
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--networks", default="resnet50:256 resnet18:256 vgg11:128 alexnet:512 googlenet:256")
    parser.add_argument("--modes", default="eager compiled")
    parser.add_argument("--precisions", default="bf16")
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    for mode in arguments.modes.split():
        for entry in arguments.networks.split():
            network, batch = entry.split(":")
            for precision in arguments.precisions.split():
                print(json.dumps(measure(network, int(batch), mode, precision, arguments.steps)), flush=True)
                torch.cuda.empty_cache()
