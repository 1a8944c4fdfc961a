"""The commands that are disturbed: training, a sweep, a launch on this machine, inference, and training from
an HTTP server. Each has its inputs, its steps, the steps that resume it, and its result."""

import csv
import glob
import json
import os
import random
import shutil
import struct
import subprocess
import zlib

NETWORK = """name = "tiny"
input = [1, 8, 8]
"""
LAYERS = [
    ("conv", "conv2d", {"out_channels": 4, "kernel": 3, "stride": 2}),
    ("norm", "batch_norm2d", {}),
    ("relu", "relu", {}),
    ("flatten", "flatten", {}),
    ("dropout", "dropout", {"p": 0.1}),
    ("fc", "linear", {"out_features": 10}),
]
SETTINGS = {
    "data.name": "mnist", "data.path": "data", "data.verify": "false", "train.device": "reference",
    "train.batch_size": 32, "train.epochs": 3, "checkpoint.every_seconds": 0.002,
}
IMAGES = 320


def settings(**changes):
    merged = SETTINGS | {key.replace("__", "."): value for key, value in changes.items()}
    return [part for key, value in merged.items() for part in ("--set", f"{key}={value}")]


def write(path, content):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def write_network(folder):
    text = NETWORK
    for name, op, attributes in LAYERS:
        values = "".join(f"{key} = {value}\n" for key, value in attributes.items())
        text += f'\n[[layer]]\nname = "{name}"\nop = "{op}"\n{values}'
    write(f"{folder}/tiny.toml", text)


def write_digits(folder):
    """Images with one bright row, whose number is the label, in the format of MNIST."""
    noise = random.Random(1)
    for split, count in (("train", IMAGES), ("t10k", 64)):
        images, labels = struct.pack(">4I", 0x803, count, 8, 8), struct.pack(">2I", 0x801, count)
        for image in range(count):
            label = image * 7 % 8
            labels += bytes([label])
            images += bytes(noise.randrange(60) + (190 if at // 8 == label else 0) for at in range(64))
        write(f"{folder}/data/{split}-images-idx3-ubyte", images)
        write(f"{folder}/data/{split}-labels-idx1-ubyte", labels)


def png(seed):
    noise = random.Random(seed)
    lines = b"".join(b"\0" + bytes(noise.randrange(256) for _ in range(8)) for _ in range(8))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">2I5B", 8, 8, 8, 0, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def rows(path):
    """The rows of a CSV file, without the columns in seconds."""
    with open(path, encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file))
    kept = [at for at, name in enumerate(lines[0]) if not name.endswith("_s")]
    if any(len(line) != len(lines[0]) for line in lines):
        raise ValueError(f"{path}: a row with another number of columns")
    return [tuple(line[at] for at in kept) for line in lines]


def run_result(run):
    """The parts of a completed run that faults must not change."""
    with open(f"{run}/summary.json", encoding="utf-8") as file:
        summary = json.load(file)
    left = [name for name in os.listdir(f"{run}/checkpoints") if not name.isdigit()]
    left += [name for name in os.listdir(run) if name.endswith(".tmp")]
    if left:
        raise ValueError(f"{run}: left behind: {', '.join(left)}")
    return {
        "status": summary["status"], "weights": summary["weights_sha256"],
        "iterations": rows(f"{run}/iterations.csv"), "epochs": rows(f"{run}/epochs.csv"),
        "classes": rows(f"{run}/classes.csv"), "checkpoint": max(os.listdir(f"{run}/checkpoints")),
    }


def timeline(program, folder, run):
    """Checks that the timeline has every iteration once."""
    ran = subprocess.run([program, "collect", run, "--json"], cwd=folder, capture_output=True, check=True)
    accounting = json.loads(ran.stdout)[0]["accounting"]
    return accounting["iterations"] + accounting["skipped"], accounting["torn_bytes"]


class Workload:
    """A command; `folder` is the folder of one case."""

    def __init__(self, program, shared):
        self.program, self.shared = program, shared

    def prepare(self, folder):
        write_network(folder)
        write_digits(folder)

    def evidence(self, folder):
        """The paths of files with messages other than the output."""
        return []

    def progress(self, folder):
        """The iterations of the newest checkpoint of each run, added up."""
        newest = {}
        for path in glob.glob(f"{folder}/**/checkpoints/[0-9]*", recursive=True):
            run, iteration = os.path.dirname(path), int(os.path.basename(path))
            newest[run] = max(newest.get(run, 0), iteration)
        return sum(newest.values())

    def is_done(self, folder):
        """Returns whether a command that succeeded has nothing left to do."""
        return True

    def address(self):
        """The server's address, if the workload has one."""
        return None


class Train(Workload):
    name = "train"

    def start(self, folder):
        return [[self.program, "train", "tiny.toml", "--out", "run", *settings(train__tensorboard="true")]]

    def resume(self, folder):
        # A run that was stopped before it was described is started again with the same command.
        if os.path.isfile(f"{folder}/run/experiment.toml"):
            return [[self.program, "train", "run"]]
        return self.start(folder)

    def result(self, folder):
        return run_result(f"{folder}/run") | {"timeline": timeline(self.program, folder, "run")}


class Sweep(Workload):
    name = "sweep"

    def prepare(self, folder):
        super().prepare(folder)
        sweep = '[model]\nname = "tiny.toml"\n\n[sweep.keys]\n"optimiser.learning_rate" = [0.05, 0.1]\n'
        write(f"{folder}/rates.toml", sweep)

    def start(self, folder):
        changes = settings(train__epochs=2)
        return [[self.program, "sweep", "rates.toml", "--out", "sweep", *changes]]

    def resume(self, folder):
        if os.path.isfile(f"{folder}/sweep/sweep.toml"):
            return [[self.program, "sweep", "sweep", "--retry"]]
        return self.start(folder)

    def evidence(self, folder):
        return [f"{folder}/sweep/cells.csv", *glob.glob(f"{folder}/sweep/runs/*/*.json")]

    def result(self, folder):
        runs = {cell: run_result(f"{folder}/sweep/runs/{cell}/1") for cell in ("1", "2")}
        return runs | {"cells": rows(f"{folder}/sweep/cells.csv")}


class Launch(Workload):
    name = "launch"

    def prepare(self, folder):
        super().prepare(folder)
        write(f"{folder}/targets.toml", f'[near]\nkind = "local"\nfolder = "{folder}/near"\n')

    def start(self, folder):
        launch = [self.program, "launch", "near", "tiny.toml", *settings(train__epochs=2)]
        return [launch, [self.program, "launch", "fetch", "-f"]]

    def resume(self, folder):
        if not glob.glob(f"{folder}/runs/.launches/*.toml"):
            return self.start(folder)
        fetch = [self.program, "launch", "fetch", "-f"]
        return [fetch] if self.is_done(folder) else [[self.program, "launch", "resume"], fetch]

    def is_done(self, folder):
        command = [self.program, "launch", "status", "--json"]
        home = {"HOME": f"{folder}/home"}
        status = subprocess.run(command, cwd=folder, env=os.environ | home, capture_output=True, check=False)
        return b'"status": "completed"' in status.stdout

    def evidence(self, folder):
        return glob.glob(f"{folder}/near/jobs/*/*/log.txt") + glob.glob(f"{folder}/near/jobs/*/launch.log")

    def result(self, folder):
        # A launch that failed before it was recorded leaves nothing; the one that completed has a run.
        runs = [path for path in glob.glob(f"{folder}/runs/tiny/*") if os.path.isfile(f"{path}/summary.json")]
        if len(runs) != 1:
            raise ValueError(f"{len(runs)} fetched runs")
        return run_result(runs[0])


class Infer(Workload):
    name = "infer"

    def prepare(self, folder):
        super().prepare(folder)
        shutil.copytree(f"{self.shared}/train/run", f"{folder}/run")
        for image in range(12):
            write(f"{folder}/images/{image}.png", png(image))

    def start(self, folder):
        outputs = ["--csv", "out.csv", "--sheet", "sheet.png"]
        return [[self.program, "infer", "run", "images", *outputs, "--batch", "4"]]

    def resume(self, folder):
        return self.start(folder)

    def result(self, folder):
        with open(f"{folder}/sheet.png", "rb") as sheet:
            return {"classes": rows(f"{folder}/out.csv"), "sheet": zlib.crc32(sheet.read()),
                    "run": run_result(f"{folder}/run")}


class Remote(Workload):
    """Training from shards on an HTTP server, which the kinds of faulty stores disturb."""

    name = "remote"
    server = None

    def prepare(self, folder):
        write_network(folder)

    def address(self):
        return f"http://127.0.0.1:{self.server.port}/shards"

    def pack(self, folder):
        """Makes the shards that the server has."""
        sizes = {"data.shape": "[1, 8, 8]", "data.synthetic.images": IMAGES,
                 "data.synthetic.validation_images": 64}
        changes = [part for key, value in sizes.items() for part in ("--set", f"{key}={value}")]
        command = ["data", "shard", "nowhere", "shards", "--name", "synthetic", "--shard-mib", "1", *changes]
        subprocess.run([self.program, *command], cwd=folder, check=True, capture_output=True)

    def start(self, folder):
        changes = settings(data__name="shards", data__path=self.address(), data__patience_seconds=4,
                           data__cache=f"{folder}/cache/data")
        return [[self.program, "train", "tiny.toml", "--out", "run", *changes]]

    def resume(self, folder):
        if os.path.isfile(f"{folder}/run/experiment.toml"):
            return [[self.program, "train", "run"]]
        return self.start(folder)

    def result(self, folder):
        return run_result(f"{folder}/run")


ALL = [Train, Sweep, Launch, Infer, Remote]
