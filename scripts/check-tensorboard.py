"""Compares a run's event file, as TensorBoard reads it, with the tables of the run.

    python3 scripts/check-tensorboard.py STRATUS FOLDER

Trains digits for two epochs, and again with a stop after the first. TensorBoard's own reader must find every
iteration once, with the numbers of iterations.csv and epochs.csv, and the network with its edges and shapes.
Prints the comparisons. The first failed assertion ends the check.
"""
import csv
import pathlib
import struct
import subprocess
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = pathlib.Path(__file__).resolve().parent.parent


def stratus(program, folder, *arguments):
    subprocess.run([program, *arguments], cwd=folder, check=True, capture_output=True)


def single(text):
    """A number rounded to 32 bits."""
    return struct.unpack("<f", struct.pack("<f", float(text)))[0]


def table(path):
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


def main(program, folder):
    folder.mkdir(parents=True)
    settings = (f"data.path={ROOT / 'data/mnist'}", "train.epochs=2", "train.tensorboard=true")
    overrides = [word for setting in settings for word in ("--set", setting)]
    stratus(program, folder, "train", "digits", "--out", "whole", *overrides)
    stratus(program, folder, "train", "digits", "--out", "stopped", "--until-epoch", "1", *overrides)
    stratus(program, folder, "train", "stopped")
    for run in ("whole", "stopped"):
        # Without a limit the reader keeps every event.
        events = EventAccumulator(str(folder / run / "tensorboard"), size_guidance={"scalars": 0})
        events.Reload()
        rows = table(folder / run / "iterations.csv")
        for tag, column in (("loss", "loss"), ("top1", "top1"), ("learning_rate", "learning_rate")):
            found = [(event.step, event.value) for event in events.Scalars(f"iteration/{tag}")]
            assert found == [(int(row["iteration"]), single(row[column])) for row in rows], (run, tag)
        epochs = table(folder / run / "epochs.csv")
        for column in ("train_loss", "val_loss", "val_top1"):
            found = [event.value for event in events.Scalars(f"epoch/{column}")]
            assert found == [single(row[column]) for row in epochs], (run, column)
        graph = events.Graph()
        layers = {node.name: node for node in graph.node}
        assert len(graph.node) == 14 and list(layers["layer2/0"].input) == ["pool1"], graph
        shape = layers["layer2/0"].attr["_output_shapes"].list.shape[0]
        assert [extent.size for extent in shape.dim] == [16, 14, 14], shape
        assert layers["fc"].attr["parameters"].i == 15690, layers["fc"]
        tags = events.Tags()["scalars"]
        shares = [tag for tag in tags if tag.startswith("share/")]
        assert "share/fc" in shares, tags
        print(f"{run}: {len(rows)} iterations, {len(tags)} tags, {len(shares)} of them shares of the time")


if __name__ == "__main__":
    main(*(pathlib.Path(path).resolve() for path in sys.argv[1:3]))
