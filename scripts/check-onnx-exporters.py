"""Imports whole networks as exporters write them, and compares logits with onnxruntime's.

    python scripts/check-onnx-exporters.py REIMPORT FOLDER [--torch [NETWORK ...]]

The networks of scripts/onnx_networks.py are those of converters of Keras, TensorFlow, PaddlePaddle, Darknet,
MXNet and Caffe. With `--torch` one network of every family of torchvision is exported too, by both exporters
of PyTorch: TorchScript (`dynamo=False`) and `torch.export` (`dynamo=True`, which needs onnxscript), with
random weights and running statistics. The program REIMPORT, the example `reimport` of stratus-onnx, imports
each model and exports it again; onnxruntime runs both. Logits must agree to 1e-4 of the largest, and a model
that is rejected must be rejected by the name of a node. At least 90 % must be imported. Needs numpy, onnx and
onnxruntime; with `--torch` torch, torchvision and onnxscript.
"""
import collections
import pathlib
import shutil
import subprocess
import sys
import warnings

import numpy as np
import onnx
import onnxruntime
import onnx_networks

TOLERANCE = 1e-4
MIN_SHARE = 0.9
BATCH = 2
# A network of each family, and its image size.
TORCHVISION = {
    "alexnet": 224, "vgg11": 224, "vgg11_bn": 224, "resnet18": 64, "resnet50": 64, "resnext50_32x4d": 64,
    "wide_resnet50_2": 64, "squeezenet1_0": 67, "squeezenet1_1": 67, "densenet121": 64, "inception_v3": 299,
    "googlenet": 64, "shufflenet_v2_x0_5": 64, "mobilenet_v2": 64, "mobilenet_v3_small": 64,
    "mobilenet_v3_large": 64, "mnasnet0_5": 64, "efficientnet_b0": 64, "efficientnet_v2_s": 64,
    "regnet_x_400mf": 64, "regnet_y_400mf": 64, "convnext_tiny": 64, "maxvit_t": 224, "swin_t": 224,
    "vit_b_16": 224, "segmentation.fcn_resnet50": 64, "segmentation.deeplabv3_mobilenet_v3_large": 64,
    "segmentation.lraspp_mobilenet_v3_large": 64,
}


def torchvision_models(folder, names):
    """Writes the networks of torchvision by both exporters, each into a folder. Yields their paths."""
    import torch
    import torchvision

    class Logits(torch.nn.Module):
        """A network with the logits as the only output."""

        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, images):
            output = self.model(images)
            return output["out"] if isinstance(output, dict) else output

    for name in names or TORCHVISION:
        size = TORCHVISION[name]
        torch.manual_seed(7)
        module, given = torchvision.models, {"num_classes": 10}
        if name.startswith("segmentation."):
            module, given = torchvision.models.segmentation, {"num_classes": 10, "weights_backbone": None}
        if name in ("inception_v3", "googlenet"):
            given |= {"aux_logits": False, "init_weights": False}
        model = getattr(module, name.split(".")[-1])(weights=None, **given).eval()
        for norm in model.modules():
            if isinstance(norm, torch.nn.BatchNorm2d):
                torch.nn.init.uniform_(norm.running_mean, -0.3, 0.3)
                torch.nn.init.uniform_(norm.running_var, 0.7, 1.5)
                torch.nn.init.uniform_(norm.bias, -0.2, 0.2)
        images = torch.randn(BATCH, 3, size, size)
        for exporter in ["torchscript", "dynamo"]:
            path = folder / f"torchvision_{name}_{exporter}" / "model.onnx"
            path.parent.mkdir()
            given = {"dynamic_axes": {"input": {0: "batch"}}, "opset_version": 17}
            if exporter == "dynamo":
                given = {"dynamic_shapes": ({0: torch.export.Dim("batch")},), "external_data": False,
                         "verbose": False}
            try:
                with warnings.catch_warnings(), torch.no_grad():
                    warnings.simplefilter("ignore")
                    torch.onnx.export(Logits(model).eval(), (images,), path, dynamo=exporter == "dynamo",
                                      input_names=["input"], **given)
            except Exception as problem:  # noqa: BLE001: PyTorch has no common class of these errors
                print(f"{path.parent.name}: PyTorch cannot export it: {str(problem).splitlines()[0][:200]}")
                shutil.rmtree(path.parent)
                continue
            yield path


def ran(path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (images,) = session.get_inputs()
    batch = images.shape[0] if isinstance(images.shape[0], int) else BATCH
    count = int(np.prod(images.shape[1:]))
    given = (np.arange(batch * count) * 7919 % 2003 / 1001.5 - 1).astype(np.float32)
    return given, images, session, batch


def logits(original, again):
    """The outputs of both models for the same images, of which those channels last are transposed."""
    given, images, session, batch = ran(original)
    values = given.reshape(batch, *images.shape[1:])
    wanted = session.run(None, {images.name: values})[0]
    _, images, session, _ = ran(again)
    if list(images.shape[1:]) != list(values.shape[1:]):
        values = values.transpose(0, 3, 1, 2)
    return wanted, session.run(None, {images.name: np.ascontiguousarray(values)})[0]


def outcome(path):
    """Whether a model was imported, and the error of its logits or the message."""
    if path.with_suffix(".panicked").exists():
        return "panicked", path.with_suffix(".panicked").read_text()
    if path.with_suffix(".refused").exists():
        message = path.with_suffix(".refused").read_text()
        named = any(f"`{node.name or node.output[0]}`" in message
                    for node in onnx.load(path, load_external_data=False).graph.node)
        return ("refused" if named else "unnamed"), message
    wanted, found = logits(path, path.with_suffix(".again"))
    if "the loss includes the softmax" in path.with_suffix(".notes").read_text():
        found = np.exp(found - found.max(1, keepdims=True))
        found /= found.sum(1, keepdims=True)
    if wanted.shape != found.shape:
        return "different", f"{found.shape} instead of {wanted.shape}"
    scale = float(np.abs(wanted).max())
    error = float(np.abs(wanted - found).max()) / scale
    return ("equal" if scale > 1e-6 and error <= TOLERANCE else "different"), f"{error:.1e}"


def models(folder, with_torch, names):
    """Writes each model into a folder of its own, and yields its path."""
    for name, model in onnx_networks.networks():
        path = folder / name / "model.onnx"
        path.parent.mkdir()
        path.write_bytes(model.SerializeToString())
        yield path
    if with_torch:
        yield from torchvision_models(folder, names)


def main(reimport, folder, with_torch, names):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    counts, wrong, largest = collections.Counter(), [], 0.0
    for path in models(folder, with_torch, names):
        name = path.parent.name
        subprocess.run([reimport, path.parent], check=True, stderr=subprocess.DEVNULL)
        found, said = outcome(path)
        counts[found] += 1
        if found == "equal":
            largest = max(largest, float(said))
        else:
            wrong += [name] if found != "refused" else []
            said = " | ".join(said.split(".onnx: ", 1)[-1].splitlines())[:300]
        print(f"{name}: {found}: {said}", flush=True)
        shutil.rmtree(path.parent)
    total = sum(counts.values())
    print(f"check-onnx-exporters: {total} networks: {counts['equal']} imported with errors of logits up to "
          f"{largest:.1e}, {counts['refused']} rejected by name, {len(wrong)} wrong ({', '.join(wrong)})")
    if wrong or counts["equal"] < MIN_SHARE * total:
        sys.exit(1)


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    main(arguments[0], pathlib.Path(arguments[1]), "--torch" in sys.argv, arguments[2:])
