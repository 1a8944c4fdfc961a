"""Measures the time and memory of reports of a long run and of many runs.

    python3 scripts/benchmark-reports.py STRATUS FOLDER

Trains `digits` for an epoch and ResNet-50 for a few iterations on small images, and makes long runs by
repeating their records with increasing iteration numbers. Prints a line per report: wall and CPU seconds,
peak resident memory, the size of the page. Needs the MNIST files of the repository.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import time

from timeline import Records

ROOT = pathlib.Path(__file__).resolve().parent.parent
LONG = 100_000
RUNS = 200
RUN_ITERATIONS = 500


def lengthen(run, to, iterations):
    """Copies a run and repeats the records of its timeline and iterations.csv to this length."""
    shutil.copytree(run, to, ignore=shutil.ignore_patterns("checkpoints", "*.html"))
    path = to / "timeline" / "records.bin"
    records = Records(path.read_bytes())
    count = len(records.iterations)
    records.write(path, ((1, iteration, iteration % count) for iteration in range(1, iterations + 1)))
    header, *rows = (to / "iterations.csv").read_text(encoding="utf-8").splitlines()
    rest = [row.split(",", 2)[2] for row in rows]
    with (to / "iterations.csv").open("w", encoding="utf-8") as out:
        out.write(header + "\n")
        out.writelines(f"1,{i},{rest[i % len(rest)]}\n" for i in range(1, iterations + 1))


def train(program, folder, *arguments):
    subprocess.run([program, "train", *arguments, "--quiet"], cwd=folder, check=True, capture_output=True)


def measure(program, folder, label, *arguments):
    begun = time.monotonic()
    child = subprocess.Popen(
        [program, "report", "--no-peaks", *arguments, "--out", "report.html"],
        cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.monotonic() - begun
    assert status == 0, (label, status)
    size = (folder / "report.html").stat().st_size
    print(
        f"{label}: {wall:.2f} s, {usage.ru_utime + usage.ru_stime:.2f} s of CPU time, "
        f"{usage.ru_maxrss / 1000:.0f} MB, a page of {size / 1e6:.2f} MB",
        flush=True,
    )


def main(program, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    mnist = f"data.path={ROOT / 'data/mnist'}"
    train(program, folder, "digits", "--epochs", "1", "--out", "digits", "--set", mnist)
    small = ("data.name=synthetic", "data.shape=[3,64,64]", "data.synthetic.images=16",
             "data.synthetic.validation_images=4", "train.batch_size=2", "train.epochs=1")
    sets = [word for setting in small for word in ("--set", setting)]
    train(program, folder, "resnet50", "--out", "resnet50", *sets)
    for name in ("digits", "resnet50"):
        lengthen(folder / name, folder / f"long-{name}", LONG)
        length = (folder / f"long-{name}/timeline/records.bin").stat().st_size
        print(f"long-{name}: {LONG} iterations, a timeline of {length / 1e6:.0f} MB", flush=True)
    for run in range(1, RUNS + 1):
        lengthen(folder / "digits", folder / "many" / str(run), RUN_ITERATIONS)
    for _ in range(3):
        measure(program, folder, f"digits, {LONG} iterations", "long-digits")
        measure(program, folder, f"ResNet-50, {LONG} iterations", "long-resnet50")
        measure(program, folder, f"{RUNS} runs of digits, {RUN_ITERATIONS} iterations each", "many")
        measure(program, folder, f"two runs of {LONG} iterations, --diff", "--diff", "long-digits",
                "long-digits")


if __name__ == "__main__":
    main(*(pathlib.Path(path).resolve() for path in sys.argv[1:3]))
