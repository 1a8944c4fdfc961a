"""Compares forecasts of photographs, decoding included, with training on this machine.

    python3 scripts/benchmark-decoding.py STRATUS FOLDER [--rounds N]

FOLDER has a folder of photographs for each class. For each network and number of loader threads, a forecast
of this machine (`--on here`) and a training run take turns. The measured rate is that of the median
iteration, without the first of each epoch. Prints a Markdown table.
"""
import argparse
import csv
import json
import pathlib
import statistics
import subprocess
import tempfile

NETWORKS = [("alexnet", 32), ("resnet18", 16), ("mobilenet_v2", 16)]
LOADERS = [1, 2]
# Iterations of a training run.
ITERATIONS = 24


def run(command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def settings(folder, batch, loaders):
    keys = {
        "data.name": "folder", "data.path": str(folder), "data.workers": loaders, "train.batch_size": batch,
    }
    return [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]


def forecast(stratus, network, batch, keys):
    report = json.loads(run([stratus, "forecast", network, "--on", "here", "--json", *keys]))
    return report["machines"][0]


def measure(stratus, network, keys, images, batch):
    epochs = max(2, -(-ITERATIONS * batch // images))
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "run")
        more = {"train.epochs": epochs, "validation.every_epochs": 1000, "optimiser.learning_rate": 0.001}
        flags = [word for key, value in more.items() for word in ("--set", f"{key}={value}")]
        run([stratus, "train", network, "--out", str(out), "--quiet", *keys, *flags])
        rows = list(csv.DictReader((out / "iterations.csv").open()))
    seconds = [
        sum(float(row[part]) for part in ("data_s", "train_s", "unattributed_s"))
        for before, row in zip(rows, rows[1:]) if before["epoch"] == row["epoch"]
    ]
    return batch / statistics.median(seconds)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("stratus")
    arguments.add_argument("folder", type=pathlib.Path)
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as data:
        for split in ("train", "val"):
            pathlib.Path(data, split).symlink_to(given.folder.resolve())
        compare(given, pathlib.Path(data))


def compare(given, data):
    images = sum(1 for path in given.folder.rglob("*") if path.is_file())
    errors = []
    print("| network, batch | loader threads | forecast, images/s | measured | error | bound by |")
    print("|---|---|---|---|---|---|")
    for network, batch in NETWORKS:
        for loaders in LOADERS:
            keys = settings(data, batch, loaders)
            forecasts, measured = [], []
            for _ in range(given.rounds):
                row = forecast(given.stratus, network, batch, keys)
                forecasts.append(row["images_per_second"])
                measured.append(measure(given.stratus, network, keys, images, batch))
            expected, found = statistics.median(forecasts), statistics.median(measured)
            error = 100 * (expected / found - 1)
            errors.append(abs(error))
            print(f"| {network}, {batch} | {loaders} | {expected:.1f} | {found:.1f} | {error:+.1f} % | "
                  f"{row['limit']} |", flush=True)
    print(f"\nmean error {statistics.mean(errors):.1f} %, largest {max(errors):.1f} %")


if __name__ == "__main__":
    main()
