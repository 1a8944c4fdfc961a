"""Generates many long run directories, file by file as a training writes them.

    python3 scripts/ui/runs.py STRATUS FOLDER [--runs N] [--iterations N]

Trains ResNet-34 (125 layers) for a few iterations on small images, and derives the runs from this one: times
of iterations and layers are the recorded ones, repeated; losses and accuracies are generated, and differ
between runs. Every run has its own tables, configuration and summary. VARIANTS different timelines and event
files are written; runs share them, the plan and the weights as hard links, so that a thousand runs of 10,000
iterations take 2 GB.
"""
import json
import math
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys

import arguments

# Last, so that the modules beside this file come first.
sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
import timeline

NETWORK = "resnet34"
# Different timelines, and different curves over iterations.
VARIANTS = 25
EPOCH_ITERATIONS = 100
# The same files in every run.
SHARED = ("plan.json", "machine.json", "classes.csv", "sources.json")
# Batch size and learning rate of the configurations, in turn.
SETTINGS = [(batch, rate) for batch in (32, 64, 128, 256) for rate in (0.4, 0.2, 0.1, 0.05, 0.025)]


def train_template(program, folder):
    """Trains the run that the others are derived from; a complete one is kept."""
    run = folder / "template"
    summary = run / "summary.json"
    if summary.exists() and json.loads(summary.read_text(encoding="utf-8"))["status"] == "completed":
        return run
    shutil.rmtree(run, ignore_errors=True)
    settings = ("data.name=synthetic", "data.shape=[3,32,32]", "data.synthetic.images=64",
                "data.synthetic.validation_images=8", "train.batch_size=4", "train.epochs=2")
    overrides = [word for setting in settings for word in ("--set", setting)]
    command = [program, "train", NETWORK, "--out", run, "--quiet", *overrides]
    subprocess.run(command, check=True, capture_output=True)
    return run


class Template:
    """The recorded run: rows of its iterations, records of its timeline, and its small files."""

    def __init__(self, run):
        self.run = run
        self.records = timeline.Records((run / "timeline/records.bin").read_bytes())
        self.header, *rows = (run / "iterations.csv").read_text(encoding="utf-8").splitlines()
        names = self.header.split(",")
        assert names[:6] == ["epoch", "iteration", "loss", "top1", "top5", "learning_rate"], names
        # The times of an iteration, and their sum.
        self.times = [row.split(",", 6)[6] for row in rows]
        self.seconds = [sum(float(part) for part in times.split(",")) for times in self.times]
        # Rows and records of the first iterations, which are slower, are not repeated.
        records = len(self.records.iterations)
        assert records == len(rows), (records, len(rows))
        self.steady = range(2, len(rows))
        self.usage = (run / "usage.csv").read_text(encoding="utf-8").splitlines()

    def text(self, name):
        return (self.run / name).read_text(encoding="utf-8")


class Curves:
    """Generated losses, accuracies and learning rates of a run."""

    def __init__(self, number, iterations):
        chance = random.Random(number)
        self.chance = random.Random(number + 1_000_000)
        self.floor = chance.uniform(0.2, 0.6)
        self.scale = iterations * chance.uniform(0.1, 0.3)
        self.iterations = iterations
        self.batch, self.rate = SETTINGS[number % len(SETTINGS)]

    def loss(self, iteration):
        smooth = self.floor + (2.3 - self.floor) * math.exp(-iteration / self.scale)
        return smooth * self.chance.uniform(0.85, 1.15)

    def accuracy(self, loss):
        return max(0.0, min(1.0, math.exp(-loss)))

    def rate_at(self, iteration):
        return self.rate * 0.1 ** (3 * iteration // (self.iterations + 1))

    def scalars(self, template, number):
        """The values of every iteration: loss, top-1, top-5, learning rate, position in the template."""
        steady = template.steady
        for iteration in range(1, self.iterations + 1):
            loss = self.loss(iteration)
            top1 = self.accuracy(loss)
            at = steady[(iteration + number) % len(steady)]
            yield iteration, loss, top1, min(1.0, top1 + 0.3), self.rate_at(iteration), at


def write_timeline(template, path, number, iterations):
    steady = template.steady
    template.records.write(path, (
        ((iteration - 1) // EPOCH_ITERATIONS + 1, iteration, steady[(iteration + number) % len(steady)])
        for iteration in range(1, iterations + 1)))


def iterations_text(template, number, iterations):
    lines = [template.header]
    for iteration, loss, top1, top5, rate, at in Curves(number, iterations).scalars(template, number):
        epoch = (iteration - 1) // EPOCH_ITERATIONS + 1
        lines.append(f"{epoch},{iteration},{loss!r},{top1:.4f},{top5:.4f},{rate!r},{template.times[at]}")
    return "\n".join(lines) + "\n"


def epoch_rows(template, number, iterations):
    """The rows of `epochs.csv`, with the columns of the template."""
    curves = Curves(number, iterations)
    mean = sum(template.seconds[at] for at in template.steady) / len(template.steady)
    for epoch in range(1, iterations // EPOCH_ITERATIONS + 1):
        loss = curves.loss(epoch * EPOCH_ITERATIONS)
        val_loss = curves.loss(epoch * EPOCH_ITERATIONS) * 1.1
        top1 = curves.accuracy(val_loss)
        train_s = mean * EPOCH_ITERATIONS
        yield {
            "epoch": epoch, "train_loss": loss, "train_top1": curves.accuracy(loss), "val_loss": val_loss,
            "val_top1": top1, "val_top5": min(1.0, top1 + 0.3), "train_s": train_s, "val_s": train_s / 50,
            "elapsed_s": 10 + epoch * train_s * 1.02,
        }


def epochs_text(template, number, iterations):
    names = template.text("epochs.csv").splitlines()[0].split(",")
    lines = [",".join(names)]
    for row in epoch_rows(template, number, iterations):
        assert set(row) == set(names), names
        lines.append(",".join(repr(row[name]) if name == "epoch" else f"{row[name]:.6f}" for name in names))
    return "\n".join(lines) + "\n"


def usage_text(template, iterations):
    """A row per second, as long as the run took, but at most an hour of them."""
    seconds = sum(template.seconds[at] for at in template.steady) / len(template.steady) * iterations
    header, *rows = template.usage
    rests = [row.split(",", 1)[1] for row in rows]
    lines = [header]
    lines += [f"{10 + i}.000,{rests[i % len(rests)]}" for i in range(min(int(seconds), 3600))]
    return "\n".join(lines) + "\n"


def experiment_text(template, number, iterations):
    batch, rate = SETTINGS[number % len(SETTINGS)]
    text = template.text("experiment.toml")
    changes = {
        r"(?m)^epochs = 2$": f"epochs = {iterations // EPOCH_ITERATIONS}",
        r"(?m)^batch_size = 4$": f"batch_size = {batch}",
        r"(?m)^learning_rate = [0-9.]+$": f"learning_rate = {rate}",
        r"(?m)^seed = 1$": f"seed = {number}",
        r"(?m)^# price_per_hour is not set$": "price_per_hour = 2.5",
    }
    for pattern, new in changes.items():
        text, count = re.subn(pattern, new, text, count=1)
        assert count == 1, pattern
    return text


def status_of(number):
    """Most runs are completed; the others are those that a folder has after a while."""
    return {13: "interrupted", 27: "failed", 41: "running"}.get(number % 50, "completed")


def summary_text(template, number, iterations):
    summary = json.loads(template.text("summary.json"))
    rows = list(epoch_rows(template, number, iterations))
    scale = iterations / summary["iterations"]
    summary.update(status=status_of(number), epochs=iterations // EPOCH_ITERATIONS, iterations=iterations,
                   batch_size=SETTINGS[number % len(SETTINGS)][0])
    summary["time"] = {key: value * scale for key, value in summary["time"].items()}
    for key in ("train_loss", "val_loss", "val_top1", "val_top5"):
        summary["final"][key] = rows[-1][key]
    return json.dumps(summary, indent=2)


def link_checkpoint(template, run, iterations):
    """The newest checkpoint: its weights are those of the template."""
    source = max((template.run / "checkpoints").iterdir())
    checkpoint = run / f"checkpoints/{iterations:010}"
    checkpoint.mkdir(parents=True)
    for file in source.iterdir():
        os.link(file, checkpoint / file.name)


def make_run(template, variants, run, number, iterations):
    """Writes the run of a number; `variants` has the timelines and the tables of iterations."""
    variant = variants[number % len(variants)]
    (run / "timeline").mkdir(parents=True)
    os.link(variant / "records.bin", run / "timeline/records.bin")
    for name in SHARED:
        os.link(template.run / name, run / name)
    link_checkpoint(template, run, iterations)
    shutil.copyfile(variant / "iterations.csv", run / "iterations.csv")
    data = json.loads(template.text("data.json"))
    data["epoch_iterations"] = EPOCH_ITERATIONS
    texts = {
        "data.json": json.dumps(data, indent=2),
        "epochs.csv": epochs_text(template, number, iterations),
        "usage.csv": usage_text(template, iterations),
        "log.txt": template.text("log.txt"),
        "run.lock": template.text("run.lock"),
        "summary.json": summary_text(template, number, iterations),
        # The last one: with it, the folder is a run.
        "experiment.toml": experiment_text(template, number, iterations),
    }
    for name, text in texts.items():
        (run / name).write_text(text, encoding="utf-8")


def make_runs(program, folder, runs, iterations):
    """Writes the runs `FOLDER/runs/resnet34/1`, …; returns the template. Existing ones are kept if their
    number and length are the same."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp, wanted = folder / "generated.json", {"runs": runs, "iterations": iterations, "version": 1}
    is_complete = stamp.exists() and json.loads(stamp.read_text(encoding="utf-8")) == wanted
    template = Template(train_template(program, folder))
    if is_complete:
        return template
    stamp.unlink(missing_ok=True)
    for name in ("runs", "variants"):
        shutil.rmtree(folder / name, ignore_errors=True)
    variants = []
    for number in range(min(VARIANTS, runs)):
        variant = folder / f"variants/{number}"
        variant.mkdir(parents=True)
        write_timeline(template, variant / "records.bin", number, iterations)
        text = iterations_text(template, number, iterations)
        (variant / "iterations.csv").write_text(text, encoding="utf-8")
        variants.append(variant)
    for number in range(1, runs + 1):
        make_run(template, variants, folder / f"runs/{NETWORK}/{number}", number, iterations)
    stamp.write_text(json.dumps(wanted), encoding="utf-8")
    return template


def main():
    parser = arguments.parser("Generates many long run directories.")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--iterations", type=int, default=10_000)
    given = parser.parse_args()
    assert given.iterations % EPOCH_ITERATIONS == 0 and given.iterations > 0, "whole epochs of 100 iterations"
    make_runs(given.program, given.folder, given.runs, given.iterations)


if __name__ == "__main__":
    main()
