"""Measures baselines of the data pipeline on a folder of JPEG files, on one core: libjpeg-turbo, which
decodes whole images, and torchvision's pipeline for ImageNet.

    python scripts/benchmark-data-peers.py FOLDER [--rounds 5]

FOLDER holds `<class>/<image>`. Prints a JSON line per round, with images per second of each. The pipeline is
that of torchvision's references/classification: ImageFolder, RandomResizedCrop(224), RandomHorizontalFlip,
ToTensor, Normalize. libjpeg-turbo is called by its C library (Debian: libturbojpeg0) on files in memory, into
RGB. Needs torch and torchvision.
"""
import argparse
import ctypes
import ctypes.util
import json
import pathlib
import time

import torch
from torchvision import datasets, transforms

arguments = argparse.ArgumentParser()
arguments.add_argument("folder")
arguments.add_argument("--rounds", type=int, default=5)
arguments.add_argument("--images", type=int, default=1000)
arguments = arguments.parse_args()
torch.set_num_threads(1)

turbo = ctypes.CDLL(ctypes.util.find_library("turbojpeg") or "libturbojpeg.so.0")
turbo.tjInitDecompress.restype = ctypes.c_void_p
handle = ctypes.c_void_p(turbo.tjInitDecompress())
RGB = 0

files = [path.read_bytes() for path in sorted(pathlib.Path(arguments.folder).rglob("*")) if path.is_file()]
pixels = ctypes.create_string_buffer(1 << 27)


def decode(file):
    width, height, sampling, colours = (ctypes.c_int() for _ in range(4))
    length = ctypes.c_ulong(len(file))
    header = [ctypes.byref(value) for value in (width, height, sampling, colours)]
    assert turbo.tjDecompressHeader3(handle, file, length, *header) == 0
    assert width.value * height.value * 3 <= len(pixels)
    assert turbo.tjDecompress2(handle, file, length, pixels, width, 0, height, RGB, 0) == 0


pipeline = datasets.ImageFolder(
    arguments.folder,
    transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    ),
)


def rate(work, count):
    begun = time.perf_counter()
    for index in range(arguments.images):
        work(index % count)
    return round(arguments.images / (time.perf_counter() - begun), 1)


for round_ in range(arguments.rounds):
    row = {"round": round_ + 1, "libjpeg_turbo_decode": rate(lambda index: decode(files[index]), len(files))}
    row["torchvision_pipeline"] = rate(lambda index: pipeline[index][0], len(pipeline))
    print(json.dumps(row), flush=True)
