"""What polars and pandas read of the tables that `stratus collect --out` writes, and what of its traces.

    python3 scripts/check-tables.py STRATUS FOLDER

Trains digits twice, writes every table as CSV and as Parquet, reads each with both libraries, and compares:
formats with each other, layers with the run's own layers.csv, iterations with its iterations.csv, and the
milliseconds of a trace with those of the table. Prints what it compared; an assertion ends it.
"""
import csv
import gzip
import pathlib
import subprocess
import sys

import pandas
import polars

ROOT = pathlib.Path(__file__).resolve().parent.parent


def stratus(program, folder, *arguments):
    subprocess.run([program, *arguments], cwd=folder, check=True, capture_output=True)


def same(left, right, what):
    assert left.columns == right.columns, (what, left.columns, right.columns)
    assert left.height == right.height, (what, left.height, right.height)
    for name in left.columns:
        a, b = left[name].to_list(), right[name].to_list()
        assert all(x == y or (x != x and y != y) for x, y in zip(a, b)), (what, name)


def slices(path):
    """Names, begins and ends of a trace's slices: the protobuf read by its own rules."""

    def varint(data, at):
        value = shift = 0
        while True:
            byte = data[at]
            value |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                return value, at

    def fields(data):
        at = 0
        while at < len(data):
            tag, at = varint(data, at)
            value, at = varint(data, at)
            if tag & 7 == 2:
                yield tag >> 3, data[at : at + value]
                at += value
            else:
                yield tag >> 3, value

    names, opened, closed = {}, [], []
    for _, packet in fields(gzip.open(path).read()):
        packet = dict(fields(packet))
        if 12 in packet:
            entry = dict(fields(dict(fields(packet[12]))[2]))
            names[entry[1]] = entry[2].decode()
        if 11 not in packet:
            continue
        event = dict(fields(packet[11]))
        if event[9] == 1:
            opened.append((names[event[10]], packet.get(8, 0)))
        else:
            name, begun = opened.pop()
            closed.append((name, begun, packet.get(8, 0)))
    assert not opened
    return closed


def main(program, folder):
    folder.mkdir(parents=True)
    for run in ("1", "2"):
        settings = (f"data.path={ROOT / 'data/mnist'}", "train.epochs=1", f"train.seed={run}")
        overrides = [word for setting in settings for word in ("--set", setting)]
        stratus(program, folder, "train", "digits", "--out", f"runs/{run}", *overrides)
    for rows in ("layers", "iterations", "experiments"):
        for ending in ("csv", "parquet"):
            stratus(program, folder, "collect", "runs", f"--{rows}", "--out", f"{rows}.{ending}")
        table = polars.read_parquet(folder / f"{rows}.parquet")
        # What CSV does not say: which of its fields are text.
        texts = {name: kind for name, kind in table.schema.items() if kind == polars.String}
        text = polars.read_csv(folder / f"{rows}.csv", infer_schema_length=None, schema_overrides=texts)
        # Of a column without a value CSV does not say what it would hold.
        held = [name for name in table.columns if table[name].null_count() < table.height]
        same(text.select(held), table.select(held), rows)
        by_pandas = pandas.read_parquet(folder / f"{rows}.parquet")
        assert list(by_pandas.columns) == table.columns and len(by_pandas) == table.height
        assert len(pandas.read_csv(folder / f"{rows}.csv")) == table.height
        print(f"{rows}: {table.height} rows, {len(table.columns)} columns")
    stratus(program, folder, "collect", "runs/1", "--layers")
    own = polars.read_csv(folder / "runs/1/layers.csv")
    layers = polars.read_parquet(folder / "layers.parquet").filter(polars.col("run") == "runs/1").drop("run")
    same(own.cast({"forward_us": float, "backward_us": float, "update_us": float}), layers, "layers.csv")
    with open(folder / "runs/1/iterations.csv", encoding="utf-8") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    iterations = polars.read_parquet(folder / "iterations.parquet").filter(polars.col("run") == "runs/1")
    assert iterations["loss"].to_list() == losses
    trace = ("--trace", "--first", "3", "--count", "10", "--out", "trace.gz")
    stratus(program, folder, "collect", "runs/1", *trace)
    closed = slices(folder / "trace.gz")
    traced = sum(end - begun for name, begun, end in closed if name.startswith("iteration "))
    chosen = iterations.filter(polars.col("iteration").is_between(3, 12))
    walls = sum(chosen[name].sum() for name in ("data_s", "train_s", "unattributed_s"))
    assert abs(traced / 1e9 - walls) < 1e-5, (traced, walls)
    print(f"trace: {traced / 1e6:.3f} ms in ten iterations, as in the table")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]))
