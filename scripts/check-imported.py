"""Compares imported networks with onnxruntime and PyTorch: outputs, and one iteration.

    python scripts/check-imported.py IMPORTED_STEP FOLDER [NETWORK ...]

Networks of torchvision get weights for which all layers matter, and are exported by torch.onnx.export
in two forms:

    inference    `eval()`, the form of most published models: batch norms are folded into convolutions
    training     `TrainingMode.TRAINING` without constant folding: batch norms are kept, to be trained further

Dropout and stochastic depth are 0 in both, because every program would drop other values. Batch norms
normalise by their running statistics in inference, and by those of the batch in the iteration; both
programs compute both. IMPORTED_STEP, the example `imported_step` of stratus-train, imports a model and
computes on it.

    logits       of both forms against onnxruntime's of the inference form, which must agree with PyTorch's:
                 the largest difference, relative to the largest logit
    gradients    of the training form, for the mean cross-entropy of one batch, against PyTorch's in float64:
                 for each parameter the largest difference, relative to the largest number of its gradient

Both must be at most 1e-4; a gradient may also differ by four times the error of PyTorch's own float32, which
is larger if sums cancel; the number of such gradients is printed. Gradients that are zero except for rounding
(a bias before a batch norm), below 1e-5 of the largest of the network, are not compared. The error of
PyTorch's own float32 is printed for each. Needs torch, torchvision, onnx, onnxruntime and numpy.
"""
import json
import pathlib
import struct
import subprocess
import sys
import warnings

import numpy as np
import onnxruntime
import torch
import torchvision
from torch import nn

TOLERANCE = 1e-4
AS_PYTORCH = 4
NOTHING = 1e-5
CLASSES, BATCH = 10, 4
# Network, image size, largest weight of the norms (twice the smallest), and centre of their biases. With
# these, few inputs of an activation are near its kinks, at which the derivative, and so the gradients of a
# deep network, depend on the last bit: hard swish has kinks at -3 and 3, the others at 0.
NETWORKS = {
    "efficientnet_b0": (96, 1.0, 1.0),
    "mobilenet_v3_small": (96, 0.4, 1.5),
    "mobilenet_v3_large": (96, 0.4, 1.5),
    "regnet_y_400mf": (96, 0.5, 2.0),
    "shufflenet_v2_x1_0": (96, 0.5, 2.0),
    "convnext_tiny": (96, 1.0, 0.0),
    "densenet121": (96, 0.4, 2.5),
}


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, values in tensors.items():
        span = [offset, offset + values.nbytes]
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": span}
        offset += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(v.tobytes() for v in tensors.values()))


def read_safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    values = data[8 + length:]
    return {name: np.frombuffer(values[slice(*entry["data_offsets"])], "<f4").reshape(entry["shape"])
            for name, entry in header.items()}


def network(name, weight, bias):
    """A network with weights in float32 for which all layers matter."""
    model = getattr(torchvision.models, name)(weights=None, num_classes=CLASSES)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, torchvision.ops.StochasticDepth):
            module.p = 0.0
        if isinstance(module, (nn.BatchNorm2d, nn.LayerNorm)):
            nn.init.uniform_(module.weight, weight / 2, weight)
            nn.init.uniform_(module.bias, bias - 0.25, bias + 0.25)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            # Running in training mode, also during export, keeps the statistics unchanged.
            module.momentum = 0.0
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_uniform_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.uniform_(module.bias, -0.1, 0.1)
        if hasattr(module, "layer_scale"):
            nn.init.uniform_(module.layer_scale, 0.1, 0.5)
    return model


def export(model, images, path, training):
    mode = torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.train(training), (images,), path, dynamo=False, opset_version=17, training=mode,
            do_constant_folding=not training, input_names=["input"], output_names=["output"],
            dynamic_axes={"input": {0: "batch"}, "output": {0: "batch"}})


def gradients(model, images, labels):
    """The loss of one iteration, and the gradients by parameter name."""
    model.train().zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    found = {name: parameter.grad.double().numpy() for name, parameter in model.named_parameters()}
    return loss.item(), found


def off(found, wanted):
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def check(name, step, folder):
    size, weight, bias = NETWORKS[name]
    torch.manual_seed(7)
    model = network(name, weight, bias)
    images, labels = torch.randn(BATCH, 3, size, size), torch.randint(CLASSES, (BATCH,))
    write_safetensors(folder / "batch", {"images": images.numpy(), "labels": labels.float().numpy()})
    results = {}
    for form in ["inference", "training"]:
        file, out = folder / f"{name}.{form}.onnx", folder / f"{name}.{form}"
        export(model, images, file, form == "training")
        ran = subprocess.run([step, file, folder / "batch", out], stderr=subprocess.PIPE, text=True)
        if ran.returncode == 3:
            print(f"check-imported: SKIPPED: {ran.stderr.strip()}")
            sys.exit(0)
        if ran.returncode:
            sys.exit(f"check-imported: {name}, {form} form: {ran.stderr.strip()}")
        results[form] = read_safetensors(out)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(folder / f"{name}.inference.onnx", options,
                                           providers=["CPUExecutionProvider"])
    wanted = session.run(None, {"input": images.numpy()})[0]
    with torch.no_grad():
        theirs = off(wanted, model.eval()(images).numpy())
    assert np.abs(wanted).max() > 1e-2 and theirs < TOLERANCE, f"{name}: the export differs from PyTorch"
    logits = {form: off(results[form]["logits"], wanted) for form in results}
    _, single = gradients(model, images, labels)
    loss, exact = gradients(model.double(), images.double(), labels)
    largest = max(np.abs(values).max() for values in exact.values())
    worst, own, compared, loose = ("", 0.0), 0.0, 0, 0
    for key, wanted in exact.items():
        if key not in results["training"]:
            sys.exit(f"check-imported: {name}: no imported parameter is named {key}")
        found = results["training"][key]
        assert found.shape == wanted.shape, f"{name} {key}: {found.shape}, {wanted.shape}"
        if np.abs(wanted).max() < NOTHING * largest:
            assert np.abs(found).max() < 10 * NOTHING * largest, f"{name} {key} should be zero"
            continue
        compared += 1
        ours, theirs = off(found, wanted), off(single[key], wanted)
        worst, own = max(worst, (key, ours), key=lambda entry: entry[1]), max(own, theirs)
        loose += ours > TOLERANCE
        if not ours <= max(TOLERANCE, AS_PYTORCH * theirs):
            sys.exit(f"check-imported: {name}: the gradient of {key} is off by {ours:.1e}, PyTorch's float32 "
                     f"by {theirs:.1e}")
    of_loss = abs(results["training"]["loss"][0] / loss - 1)
    print(f"{name}: logits off by {logits['inference']:.1e} and {logits['training']:.1e}; {compared} of "
          f"{len(exact)} gradients by at most {worst[1]:.1e} ({worst[0]}), PyTorch's float32 by {own:.1e}; "
          f"{loose} by more than {TOLERANCE:.0e}; loss {of_loss:.1e}", flush=True)
    return max([*logits.values(), of_loss])


def main(step, folder, names):
    folder.mkdir(parents=True, exist_ok=True)
    far = [name for name in names or NETWORKS if not check(name, step, folder) <= TOLERANCE]
    if far:
        sys.exit(f"check-imported: errors above {TOLERANCE:.0e}: {', '.join(far)}")


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:])
