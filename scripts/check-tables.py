"""Compares the tables and traces of `stratus collect --out`, as polars, pandas and Perfetto read them.

    python3 scripts/check-tables.py STRATUS FOLDER

Trains digits twice, writes every table as CSV and as Parquet, reads each with both libraries, and compares:
formats with each other, layers with the run's own layers.csv, iterations with its iterations.csv, and the
milliseconds of a trace, read with Perfetto's own schema, with those of the table; if STRATUS_TRACE_PROCESSOR
names Perfetto's trace processor, also with its sums. Prints the comparisons. The first failed assertion ends
the check.
"""
import csv
import gzip
import os
import pathlib
import subprocess
import sys

import pandas
import polars
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2
from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

ROOT = pathlib.Path(__file__).resolve().parent.parent


def stratus(program, folder, *arguments):
    subprocess.run([program, *arguments], cwd=folder, check=True, capture_output=True)


def same(left, right, what):
    assert left.columns == right.columns, (what, left.columns, right.columns)
    assert left.height == right.height, (what, left.height, right.height)
    for name in left.columns:
        a, b = left[name].to_list(), right[name].to_list()
        assert all(x == y or (x != x and y != y) for x, y in zip(a, b)), (what, name)


def expect_known(message, what):
    """Checks that every field of the message and of nested messages is in Perfetto's schema."""
    unknown = [field.field_number for field in UnknownFieldSet(message)]
    assert not unknown, (what, unknown)
    for field, value in message.ListFields():
        if field.message_type:
            for inner in value if field.is_repeated else [value]:
                expect_known(inner, f"{what}.{field.name}")


def slices(path):
    """Names, starts and ends of a trace's slices, read with Perfetto's schema; slices of a track nest."""
    trace = perfetto_trace_pb2.Trace()
    trace.ParseFromString(gzip.open(path).read())
    expect_known(trace, "trace")
    names, tracks, opened, closed = {}, set(), {}, []
    for packet in trace.packet:
        names.update((entry.iid, entry.name) for entry in packet.interned_data.event_names)
        if packet.HasField("track_descriptor"):
            tracks.add(packet.track_descriptor.uuid)
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        assert event.track_uuid in tracks, event
        stack = opened.setdefault(event.track_uuid, [])
        if event.type == event.TYPE_SLICE_BEGIN:
            name = names[event.name_iid] if event.HasField("name_iid") else event.name
            stack.append((name, packet.timestamp))
        elif event.type == event.TYPE_SLICE_END:
            name, begun = stack.pop()
            assert begun <= packet.timestamp, (name, begun, packet.timestamp)
            closed.append((name, begun, packet.timestamp))
    assert not any(opened.values()), opened
    return closed


def by_trace_processor(path, binary):
    """The sums of Perfetto's trace processor: nanoseconds by the name of a slice."""
    config = TraceProcessorConfig(bin_path=binary)
    with TraceProcessor(trace=str(path), config=config) as processor:
        rows = processor.query("select name, sum(dur) as dur from slice group by name")
        return {row.name: row.dur for row in rows}


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
        # CSV does not mark which of its fields are strings.
        texts = {name: kind for name, kind in table.schema.items() if kind == polars.String}
        text = polars.read_csv(folder / f"{rows}.csv", infer_schema_length=None, schema_overrides=texts)
        # CSV has no type for an empty column.
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
    print(f"trace: {traced / 1e6:.3f} ms in ten iterations, as in the table, by Perfetto's schema")
    binary = os.environ.get("STRATUS_TRACE_PROCESSOR")
    if not binary:
        print("trace: Perfetto's trace processor was NOT used: STRATUS_TRACE_PROCESSOR names its binary")
        return
    sums = {}
    for name, begun, end in closed:
        sums[name] = sums.get(name, 0) + end - begun
    counted = by_trace_processor(folder / "trace.gz", binary)
    assert counted == sums, {name: (counted.get(name), sums[name]) for name in sums}
    print(f"trace: {len(sums)} names, the same nanoseconds by Perfetto's trace processor")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]))
