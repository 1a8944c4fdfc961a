#!/usr/bin/env python3
"""Measures training iterations of the segmentation networks in PyTorch, as a baseline for Stratus.

An iteration is forward, weighted cross-entropy of every pixel, backward, update by SGD with momentum, and
reading the loss; in bf16 the forward pass and the loss are under autocast. The networks are those of
scripts/fixtures/segmentation.py; images are random, a twentieth of the pixels has no class.

    python3 scripts/benchmark-segmentation-peer.py --batch 8
    python3 scripts/benchmark-segmentation-peer.py --networks erfnet --modes eager --threads 2 --steps 9

Every combination runs in a separate process. Prints a JSON line for each, with the median milliseconds of an
iteration, images/s, and the peak memory in MiB: of the process, together with its memory before it created
the network, or on a GPU of PyTorch's allocations. The mode `compiled` compiles the whole network, on a CPU
only if there is a C++ compiler; a combination that fails gets a line with the reason.
"""
import argparse
import itertools
import json
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import time

FIXTURES = pathlib.Path(__file__).resolve().parent / "fixtures"
NETWORKS = ("erfnet", "deeplabv3plus_resnet18", "fcn_resnet18")
LAYOUTS = {"contiguous": "contiguous_format", "channels_last": "channels_last"}
COMPILERS = ("g++", "c++", "clang++")


def resident_mib():
    """The current memory of the process; the system tracks the peak."""
    with open("/proc/self/status", encoding="utf-8") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def measure(network, precision, layout, mode, arguments):
    """Measures one combination, in a separate process."""
    sys.path.insert(0, str(FIXTURES))
    import torch
    from torch import nn
    import segmentation

    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    torch.backends.cudnn.benchmark = True
    before = resident_mib()
    layout_of = getattr(torch, LAYOUTS[layout])
    model = segmentation.NETWORKS[network][0](arguments.classes)
    model = model.to(device, memory_format=layout_of).train()
    shape = (arguments.batch, 3, arguments.height, arguments.width)
    images = torch.randn(shape, device=device).contiguous(memory_format=layout_of)
    labels = torch.randint(0, arguments.classes, (arguments.batch, *shape[2:]), device=device)
    labels[torch.rand(labels.shape, device=device) < 0.05] = -1
    weights = torch.linspace(0.5, 2.0, arguments.classes, device=device)
    criterion = nn.CrossEntropyLoss(weights, ignore_index=-1)
    optimiser = torch.optim.SGD(model.parameters(), 0.003, momentum=0.9)
    run = torch.compile(model) if mode == "compiled" else model

    def step():
        begun = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = criterion(run(images), labels)
        loss.backward()
        optimiser.step()
        # Reading it waits for a GPU.
        loss.item()
        return time.perf_counter() - begun

    warm = sum(step() for _ in range(arguments.warm_up))
    times = [step() for _ in range(arguments.steps)]
    seconds = statistics.median(times)
    if device.type == "cuda":
        memory = {"peak_mib": torch.cuda.max_memory_allocated() / 2**20}
    else:
        # Linux counts in KiB.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        memory = {"peak_mib": peak, "before_mib": before}
    return {
        "peer": f"pytorch {torch.__version__}", "network": network, "precision": precision, "layout": layout,
        "mode": mode, "device": arguments.device, "batch": arguments.batch, "height": arguments.height,
        "width": arguments.width, "classes": arguments.classes, "threads": torch.get_num_threads(),
        "steps": arguments.steps, "step_ms": round(1e3 * seconds, 1),
        "slowest_ms": round(1e3 * max(times), 1), "images_per_s": round(arguments.batch / seconds, 2),
        "warm_up_s": round(warm, 1), **{name: round(mib, 1) for name, mib in memory.items()},
    }


def combinations(arguments):
    names = [getattr(arguments, key).split(",") for key in ("networks", "precisions", "layouts", "modes")]
    for network, precision, layout, mode in itertools.product(*names):
        if mode == "compiled" and arguments.device == "cpu" and not any(map(shutil.which, COMPILERS)):
            print(f"{network}, compiled: skipped, C++ compiler not found", file=sys.stderr)
            continue
        yield network, precision, layout, mode


def listed(known):
    """The type of an option: comma-separated names."""
    def names(text):
        for name in text.split(","):
            if name not in known:
                raise argparse.ArgumentTypeError(f"unknown `{name}`; known are {', '.join(known)}")
        return text
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for key, known in (("networks", NETWORKS), ("precisions", ("f32", "bf16")), ("layouts", tuple(LAYOUTS)),
                       ("modes", ("eager", "compiled"))):
        parser.add_argument(f"--{key}", type=listed(known), default=",".join(known), metavar="NAME,…")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--height", type=int, default=360)
    parser.add_argument("--width", type=int, default=480)
    parser.add_argument("--classes", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for combination in combinations(arguments):
        if arguments.one:
            print(json.dumps(measure(*combination, arguments)), flush=True)
            continue
        network, precision, layout, mode = combination
        command = [sys.executable, __file__, *sys.argv[1:], "--one", "--networks", network, "--precisions",
                   precision, "--layouts", layout, "--modes", mode]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        line = done.stdout.strip().splitlines()[-1:]
        if done.returncode or not line:
            problem = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            names = ("network", "precision", "layout", "mode")
            line = [json.dumps(dict(zip(names, combination), error=problem))]
        print(*line, flush=True)


if __name__ == "__main__":
    main()
