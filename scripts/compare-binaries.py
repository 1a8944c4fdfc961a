#!/usr/bin/env python3
"""Compares two builds of Stratus: whether their results are bit-identical, and which is faster.

    scripts/compare-binaries.py OLD NEW [ROUNDS]

Each case is started by OLD, which selects the kernels and is interrupted; copies of the run directory are
then resumed by both builds in turn, so that both run the same plan. Prints whether the SHA-256 of the weights
agree, and the median milliseconds of an iteration. Nothing else should run on the machine. The exit code is 1
if bits differ.
"""

import csv
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SYNTHETIC = ["data.name=synthetic", "data.synthetic.images=320", "data.synthetic.validation_images=32"]
CASES = {
    "digits": ["train.batch_size=1024"],
    "resnet18": ["train.batch_size=32", "schedule.warmup_epochs=0", *SYNTHETIC],
}
# Iterations after a start that the median skips.
WARM_UP = 2


def settings(keys):
    return [part for key in keys for part in ("--set", key)]


def iterations(run):
    path = run / "iterations.csv"
    return list(csv.DictReader(path.open())) if path.exists() else []


def begin(binary, network, keys, run):
    """Starts a run and interrupts it after its first iteration."""
    command = [binary, "train", network, "--out", run, "-q", *settings(keys)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not iterations(run) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    if process.wait() != 75:
        sys.exit(f"{network}: the run could not be started and interrupted (exit code {process.returncode})")


def finish(binary, begun, run):
    """Resumes a copy of a run to its end: checksum of the weights, median milliseconds of an iteration."""
    shutil.copytree(begun, run)
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([binary, "train", run, "-q"], check=True, **silent)
    rows = iterations(run)[len(iterations(begun)) + WARM_UP :]
    weights = json.loads((run / "summary.json").read_text())["weights_sha256"]
    shutil.rmtree(run)
    return weights, statistics.median(float(row["train_s"]) * 1e3 for row in rows)


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    builds = {"old": Path(sys.argv[1]).resolve(), "new": Path(sys.argv[2]).resolve()}
    rounds = int(sys.argv[3]) if len(sys.argv) == 4 else 4
    os.chdir(Path(__file__).resolve().parent.parent)
    same = True
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STRATUS_CACHE"] = f"{folder}/cache"
        for network, keys in CASES.items():
            for precision in ("f32", "bf16"):
                begun = Path(folder) / f"{network}-{precision}"
                keys_here = [f"train.precision={precision}", "train.epochs=1", *keys]
                begin(builds["old"], network, keys_here, begun)
                weights, times = {"old": set(), "new": set()}, {"old": [], "new": []}
                for number in range(rounds):
                    for name in ("old", "new") if number % 2 == 0 else ("new", "old"):
                        result, ms = finish(builds[name], begun, Path(folder) / "run")
                        weights[name].add(result)
                        times[name].append(ms)
                equal = len(weights["old"] | weights["new"]) == 1
                same &= equal
                old, new = (statistics.median(times[name]) for name in ("old", "new"))
                bits = "same bits" if equal else "DIFFERENT BITS"
                figures = f"old {old:.2f} ms, new {new:.2f} ms, ratio {new / old:.3f}"
                print(f"{network} {precision}: {bits}, {figures}", flush=True)
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
