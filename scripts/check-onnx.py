"""Compares the results of onnxruntime for exported networks with those of the reference backend.

    python scripts/check-onnx.py STRATUS FOLDER

FOLDER is written by the example `zoo_outputs` of stratus-onnx: for each network a layer file, its weights
with class names and normalisation, and images with their logits. The program STRATUS exports each network,
and onnxruntime runs it in a batch and image by image, as the batch size is dynamic, and the model contains
the classes and the preprocessing of the weights. Needs numpy and onnxruntime.
"""
import json
import pathlib
import struct
import subprocess
import sys

import numpy as np
import onnxruntime

TOLERANCE = 1e-4  # of the largest logit


def safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    values = data[8 + length:]
    return {name: np.frombuffer(values[slice(*entry["data_offsets"])], "<f4").reshape(entry["shape"])
            for name, entry in header.items()}


def metadata(path):
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length))["__metadata__"]


def main(stratus, folder):
    cases, worst = sorted(folder.glob("*.toml")), ("", 0.0)
    if not cases:
        sys.exit(f"check-onnx: {folder} holds no networks")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    for case in cases:
        model, expected = case.with_suffix(".onnx"), safetensors(case.with_suffix(".expected"))
        weights = case.with_suffix(".safetensors")
        export = [stratus, "--quiet", "model", "export", case, "--weights", weights, "--onnx", model]
        subprocess.run(export, check=True, stdout=subprocess.DEVNULL)
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        travels = metadata(weights)
        assert travels.pop("format") == "pt"
        assert len(json.loads(travels["class_names"])) > 1 and "mean" in travels and "input_shape" in travels
        assert session.get_modelmeta().custom_metadata_map == travels, case.stem
        (images,), (logits,) = session.get_inputs(), session.get_outputs()
        assert (images.name, images.shape[0]) == ("input", "batch")
        assert (logits.name, logits.shape[0]) == ("output", "batch")
        batch = session.run(["output"], {"input": expected["input"]})[0]
        single = np.concatenate([session.run(None, {"input": image[None]})[0] for image in expected["input"]])
        wanted = expected["output"]
        scale = np.abs(wanted).max()
        assert scale > 1e-3, f"{case.stem}: logits of {scale} are too small to compare"
        off = max(np.abs(found - wanted).max() for found in (batch, single)) / scale
        worst = max(worst, (case.stem, off), key=lambda entry: entry[1])
        if not off <= TOLERANCE:
            sys.exit(f"check-onnx: {case.stem} is off by {off:.1e} of its largest logit")
    print(f"check-onnx: {len(cases)} networks agree with onnxruntime {onnxruntime.__version__}; "
          f"the furthest off is {worst[0]} with {worst[1]:.1e} of its largest logit")


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
