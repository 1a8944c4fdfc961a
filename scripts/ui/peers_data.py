"""Writes the scalars of the generated runs for other programs: as TensorBoard event files, and into the
database of trackio.

    PYTHONPATH=PACKAGES python3 scripts/ui/peers_data.py FOLDER

FOLDER is that of runs.py, PACKAGES has trackio. Every run has the loss, both accuracies and the learning rate
of each iteration, as its `iterations.csv` has.
"""
import os
import pathlib
import shutil
import struct
import subprocess
import sys

# Last, so that the modules beside this file come first.
sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
from timeline import varint

NAMES = ("loss", "top1", "top5", "learning_rate")
# The time of the first event; those of later ones follow from the iteration.
BEGIN = 1_790_000_000.0
# Rows of one call to trackio.
TRACKIO_BATCH = 10_000


def crc32c_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


CRC32C = crc32c_table()


def masked_crc(data):
    """The checksum of a TFRecord."""
    value = 0xFFFFFFFF
    for byte in data:
        value = CRC32C[(value ^ byte) & 255] ^ value >> 8
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def field(number, payload):
    """A field of bytes in protobuf's wire format."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def record(event):
    length = struct.pack("<Q", len(event))
    return b"".join((length, struct.pack("<I", masked_crc(length)), event,
                     struct.pack("<I", masked_crc(event))))


def scalars_event(step, values):
    """One event with all scalars of an iteration, as `train.tensorboard` writes it."""
    summary = b"".join(
        field(1, field(1, name.encode()) + b"\x15" + struct.pack("<f", value))
        for name, value in values.items())
    return b"\x09" + struct.pack("<d", BEGIN + step * 0.1) + b"\x10" + varint(step) + field(5, summary)


def scalars(variant):
    """The scalars of each iteration of a generated run, by name."""
    header, *rows = (variant / "iterations.csv").read_text(encoding="utf-8").splitlines()
    columns = header.split(",")
    positions = [columns.index(name) for name in NAMES]
    for row in rows:
        cells = row.split(",")
        yield int(cells[1]), {name: float(cells[at]) for name, at in zip(NAMES, positions)}


def write_events(variant, path):
    with path.open("wb") as out:
        out.write(record(b"\x09" + struct.pack("<d", BEGIN) + field(3, b"brain.Event:2")))
        for step, values in scalars(variant):
            out.write(record(scalars_event(step, values)))


def variants_of(folder):
    return sorted((folder / "variants").iterdir(), key=lambda path: int(path.name))


def runs_of(folder):
    return sorted((folder / "runs/resnet34").iterdir(), key=lambda path: int(path.name))


def stamped(folder, name):
    """Returns whether the data of a program belong to the generated runs, and the file that says so."""
    stamp = folder / f"{name}.json"
    runs = (folder / "generated.json").read_text(encoding="utf-8")
    return stamp.exists() and stamp.read_text(encoding="utf-8") == runs, stamp, runs


def write_tensorboard(folder):
    """Event files `FOLDER/tensorboard/N/…`; those of the same variant are hard links."""
    is_complete, stamp, runs = stamped(folder, "tensorboard")
    if is_complete:
        return
    shutil.rmtree(folder / "tensorboard", ignore_errors=True)
    variants = variants_of(folder)
    for variant in variants:
        write_events(variant, variant / "events")
    for run in runs_of(folder):
        target = folder / "tensorboard" / run.name
        target.mkdir(parents=True)
        variant = variants[int(run.name) % len(variants)]
        os.link(variant / "events", target / "events.out.tfevents.1790000000.stratus")
    stamp.write_text(runs, encoding="utf-8")


def write_trackio(folder):
    """The database `FOLDER/trackio`, in one project, by the function that logs many rows at a time."""
    is_complete, stamp, runs = stamped(folder, "trackio")
    if is_complete:
        return
    shutil.rmtree(folder / "trackio", ignore_errors=True)
    (folder / "trackio").mkdir()
    os.environ["TRACKIO_DIR"] = str(folder / "trackio")
    from trackio.sqlite_storage import SQLiteStorage

    variants = [list(scalars(variant)) for variant in variants_of(folder)]
    for run in runs_of(folder):
        rows = variants[int(run.name) % len(variants)]
        for at in range(0, len(rows), TRACKIO_BATCH):
            part = rows[at : at + TRACKIO_BATCH]
            SQLiteStorage.bulk_log(
                project="stratus", run=run.name, metrics_list=[values for _, values in part],
                steps=[step for step, _ in part], config={} if at == 0 else None, run_id=run.name)
    stamp.write_text(runs, encoding="utf-8")


def write_all(folder, packages):
    """Writes both, unless they are there; in a process of its own, since `packages` has other versions."""
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    subprocess.run([sys.executable, __file__, folder], env=environment, check=True)


if __name__ == "__main__":
    write_tensorboard(pathlib.Path(sys.argv[1]).resolve())
    write_trackio(pathlib.Path(sys.argv[1]).resolve())
