"""Compares the classes that other programs find with a quantised network with those of `stratus infer`.

    python scripts/check-onnx-int8.py [--openvino] STRATUS FOLDER

Trains `digits` for an epoch, quantises all layers that can run in int8, and classifies 2,000 test images with
`stratus infer`, with onnxruntime and, if asked for, with OpenVINO. Needs numpy and these programs.
"""
import csv
import gzip
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import zlib

import numpy as np
import onnxruntime

IMAGES = 2000
SAME_CLASSES = 0.995  # of the images


def png(pixels):
    """A greyscale image as the bytes of a PNG file."""
    height, width = pixels.shape

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def onnxruntime_classes(model, images):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(["output"], {"input": images})[0].argmax(1)


def openvino_classes(model, images):
    import openvino

    core = openvino.Core()
    network = core.compile_model(core.read_model(model), "CPU")
    # As quantised models are meant to run: in integers, not in floating point.
    steps = {node.get_rt_info()["runtimePrecision"] for node in network.get_runtime_model().get_ops()
             if node.get_rt_info()["layerType"] == "Convolution"}
    assert steps & {"u8", "i8"}, steps
    return network({"input": images})["output"].argmax(1)


def main(stratus, folder, with_openvino):
    mnist = pathlib.Path(__file__).resolve().parent.parent / "data/mnist"
    shutil.rmtree(folder, ignore_errors=True)
    images = folder / "images"
    images.mkdir(parents=True)
    with gzip.open(mnist / "t10k-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read()[16:], np.uint8).reshape(-1, 28, 28)[:IMAGES]
    for number, image in enumerate(pixels):
        (images / f"{number:05}.png").write_bytes(png(image))

    def run(*arguments):
        subprocess.run([stratus, "--quiet", *arguments], check=True, stdout=subprocess.DEVNULL)

    trained, quantised, table = folder / "run", folder / "int8", folder / "classes.csv"
    run("train", "digits", "--set", f"data.path={mnist}", "--epochs", "1", "--out", trained)
    run("optimise", trained, "--int8=all", "--out", quantised)
    layers = json.loads((quantised / "optimise/quantisation.json").read_text())["layers"]
    assert len(layers) >= 2, layers
    run("infer", quantised, images, "--csv", table)
    with table.open() as file:
        first = (row for row in csv.DictReader(file) if row["rank"] == "1")
        rows = sorted(first, key=lambda row: row["path"])
    found = np.array([int(row["class"]) for row in rows])
    model = quantised / "network.onnx"
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    facts = session.get_modelmeta().custom_metadata_map
    mean, deviation = (np.float32(json.loads(facts[key])) for key in ("mean", "std"))
    batch = ((pixels[:, None] / np.float32(255) - mean) / deviation).astype(np.float32)
    programs = {"onnxruntime": onnxruntime_classes}
    if with_openvino:
        programs["OpenVINO"] = openvino_classes
    is_same = []
    for program, classes in programs.items():
        same = (found == classes(model, batch)).mean()
        is_same.append(same >= SAME_CLASSES)
        print(f"check-onnx: int8 `digits` has the classes of {program} for {100 * same:.2f} % of {IMAGES} "
              "images")
    if not all(is_same):
        sys.exit(1)


if __name__ == "__main__":
    *flags, program, outputs = sys.argv[1:]
    main(program, pathlib.Path(outputs), flags == ["--openvino"])
