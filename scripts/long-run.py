"""A long run that is observed from outside: `scripts/long-run.sh` explains it.

    python3 scripts/long-run.py STRATUS ITERATIONS FOLDER
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

BATCH = 8
EPOCHS = 200
MIB = 1 << 20
# The limits. Memory and descriptors are compared between a tenth of the run and its end, times of epochs
# between the second tenth and the last tenth.
MAX_GROWTH_MIB = 8
MAX_NEW_DESCRIPTORS = 2
MAX_SLOWDOWN = 1.5
MAX_CHECKPOINTS = 2
MAX_COMMAND_SECONDS = 30
# A report without a cached roofline measures the bandwidth of memory in buffers of about 400 MiB.
MAX_COMMAND_MIB = 600
NETWORK = """
name = "tiny"
input = [1, 8, 8]

[[layer]]
name = "conv"
op = "conv2d"
out_channels = 4
kernel = 3
stride = 2

[[layer]]
name = "norm"
op = "batch_norm2d"

[[layer]]
name = "relu"
op = "relu"

[[layer]]
name = "flatten"
op = "flatten"

[[layer]]
name = "fc"
op = "linear"
out_features = 10
"""


def size(path):
    """The bytes of a file, or of the files of a folder."""
    if os.path.isfile(path):
        return os.path.getsize(path)
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.path.getsize(os.path.join(folder, name))
            except FileNotFoundError:  # A temporary file that was renamed meanwhile.
                pass
    return total


def rows(path):
    """The rows of a CSV file, one by one: the memory of this process counts as that of its children."""
    with open(path, encoding="utf-8") as file:
        next(file, None)
        for line in file:
            yield line.rstrip("\n").split(",")


def sample(pid, run, epoch):
    """The resources of the process, and the sizes of its files."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        fields = dict(line.split(":", 1) for line in status)
    return {
        "epoch": epoch,
        "rss": int(fields["VmRSS"].split()[0]) / 1024,
        "threads": int(fields["Threads"]),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "sizes": {name: size(os.path.join(run, name)) for name in sorted(os.listdir(run))},
        "checkpoints": len([n for n in os.listdir(f"{run}/checkpoints") if n.isdigit()]),
    }


def train(arguments, run, until=None):
    """Trains, sampling the process at the end of each epoch; stops it after epoch `until`."""
    samples, start = [], time.monotonic()
    with open(f"{run}.log", "a", encoding="utf-8") as log:
        process = subprocess.Popen(arguments, stdout=log, stderr=log)
        position, epochs, stopping = 0, 0, False
        while process.poll() is None:
            time.sleep(0.05)
            try:
                with open(f"{run}/epochs.csv", encoding="utf-8") as file:
                    file.seek(position)
                    text = file.read()
                    complete = text[: text.rfind("\n") + 1]
                    position += len(complete)
                    epochs += complete.count("\n")
                if complete:
                    samples.append(sample(process.pid, run, epochs - 1))
            except (FileNotFoundError, ProcessLookupError, KeyError):
                pass
            if until and epochs > until and not stopping:
                process.send_signal(signal.SIGTERM)
                stopping = True
    return process.returncode, samples, time.monotonic() - start


def command(stratus, *arguments, cwd):
    """Runs a command; returns its seconds and its peak memory in MiB."""
    start = time.monotonic()
    process = subprocess.Popen([stratus, *arguments], cwd=cwd, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - start
    if status != 0:
        raise SystemExit(f"`stratus {' '.join(arguments)}` failed: {status}")
    return seconds, usage.ru_maxrss / 1024


def main():
    stratus, iterations, folder = os.path.abspath(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    folder = os.path.abspath(folder)
    per_epoch = max(iterations // EPOCHS, 1)
    with open(f"{folder}/tiny.toml", "w", encoding="utf-8") as file:
        file.write(NETWORK)
    os.environ["STRATUS_CACHE"] = f"{folder}/cache"
    settings = {
        "data.name": "synthetic", "data.synthetic.images": per_epoch * BATCH,
        "data.synthetic.validation_images": 64, "data.workers": 1, "train.batch_size": BATCH,
        "train.epochs": EPOCHS, "train.device": "reference", "train.tensorboard": "true",
    }
    run = f"{folder}/run"
    first = [stratus, "train", f"{folder}/tiny.toml", "--out", run]
    first += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    failures = []

    def check(holds, text):
        print(f"{'ok    ' if holds else 'FAILED'} {text}", flush=True)
        if not holds:
            failures.append(text)

    # The run is stopped once, late, and resumed.
    late = EPOCHS * 9 // 10
    code, samples, seconds = train(first, run, late)
    check(code == 75, f"stopped after {seconds:.0f} s in epoch {samples[-1]['epoch']}: exit code {code}")
    stopped_rows = sum(1 for _ in rows(f"{run}/iterations.csv"))
    code, resumed, rest = train([stratus, "train", run], run)
    check(code == 0, f"resumed at iteration {stopped_rows}, completed after {rest:.0f} s: exit code {code}")

    print(f"\n{'epoch':>6} {'RSS MiB':>8} {'threads':>7} {'files':>5}  bytes")
    for one in samples[:: max(len(samples) // 12, 1)] + resumed[-1:]:
        large = {name: bytes_ for name, bytes_ in one["sizes"].items() if bytes_ > 20_000}
        print(f"{one['epoch']:>6} {one['rss']:>8.1f} {one['threads']:>7} {one['descriptors']:>5}  "
              + ", ".join(f"{name} {bytes_:,}" for name, bytes_ in large.items()))
    print()

    begin = next(one for one in samples if one["epoch"] >= EPOCHS // 10)
    end = samples[-1]
    growth = end["rss"] - begin["rss"]
    check(growth <= MAX_GROWTH_MIB, f"memory grew by {growth:.1f} MiB, from {begin['rss']:.1f} MiB")
    new = end["descriptors"] - begin["descriptors"]
    check(new <= MAX_NEW_DESCRIPTORS, f"{new} more descriptors, of {begin['descriptors']}")
    check(max(one["checkpoints"] for one in samples) <= MAX_CHECKPOINTS + 1,
          f"at most {max(one['checkpoints'] for one in samples)} checkpoints at a time")
    for name in end["sizes"]:
        spans = [one for one in samples if name in one["sizes"] and one["epoch"] >= EPOCHS // 10]
        if end["sizes"][name] < 20_000 or len(spans) < 20:
            continue
        half = spans[len(spans) // 2]
        early = (half["sizes"][name] - spans[0]["sizes"][name]) / (half["epoch"] - spans[0]["epoch"])
        later = (end["sizes"][name] - half["sizes"][name]) / (end["epoch"] - half["epoch"])
        check(later <= max(1.2 * early, 4096), f"{name}: {early:,.0f}, later {later:,.0f} bytes per epoch")

    epochs = list(rows(f"{run}/epochs.csv"))
    check([int(row[0]) for row in epochs] == list(range(1, EPOCHS + 1)), f"{len(epochs)} rows of epochs.csv")
    count, in_order = 0, True
    for count, row in enumerate(rows(f"{run}/iterations.csv"), 1):
        in_order &= int(row[1]) == count
    check(in_order and count == EPOCHS * per_epoch, f"{count} rows of iterations.csv")
    tenth = EPOCHS // 10
    times = [float(row[6]) for row in epochs]
    # The fastest of the epochs, since other programs slow some down.
    early, later = min(times[tenth:3 * tenth]), min(times[-2 * tenth:])
    check(later <= MAX_SLOWDOWN * early + 0.01,
          f"an epoch took {early:.2f} s, at the end {later:.2f} s ({per_epoch / later:,.0f} iterations/s)")

    ends = [0.0] + [float(row[8]) for row in epochs]
    outside = [end - start - float(row[6]) - float(row[7]) for start, end, row in zip(ends, ends[1:], epochs)]
    early, later = min(outside[tenth:3 * tenth]), min(outside[-2 * tenth:])
    check(later <= MAX_SLOWDOWN * early + 0.1,
          f"outside iterations and validation, an epoch took {early:.3f} s, at the end {later:.3f} s")

    with open(f"{run}/summary.json", encoding="utf-8") as file:
        summary = json.load(file)
    status = summary["status"]
    check(status == "completed", f"summary: {status}, {summary['iterations']} iterations")
    shutil.copytree(run, f"{folder}/copy")
    for arguments in [("train", "run"), ("collect", "run"), ("collect", "run", "--json"),
                      ("collect", "run", "--layers"), ("report", "run"), ("report", "run", "copy"),
                      ("runs", ".")]:
        if arguments == ("report", "run", "copy"):
            arguments += ("--out", "both.html")
        seconds, mib = command(stratus, *arguments, cwd=folder)
        check(seconds <= MAX_COMMAND_SECONDS and mib <= MAX_COMMAND_MIB,
              f"`stratus {' '.join(arguments)}`: {seconds:.1f} s, {mib:.0f} MiB")
    print(f"report.html {size(f'{run}/report.html'):,} bytes; layers.csv {size(f'{run}/layers.csv'):,} bytes")
    print(f"{EPOCHS * per_epoch:,} iterations, {len(failures)} findings")
    return 1 if failures else 0


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.exit(main())
