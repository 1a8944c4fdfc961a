#!/usr/bin/env python3
"""Measures inference of Stratus, onnxruntime and OpenVINO in turn, on the same networks and threads.

    python3 scripts/benchmark-inference.py STRATUS > docs/benchmarks/raw/inference.txt
    python3 scripts/benchmark-inference.py STRATUS --networks '' RUN...    # runs of `stratus optimise`

Networks have initial weights and are exported as ONNX; a RUN is measured with its `network.onnx`. Each cell
is a network, number format and batch size. Its programs are measured one after the other, in several rounds;
the median of the rounds counts. onnxruntime has no bf16 on CPUs, so its f32 stands in bf16 cells too. Needs
numpy, onnxruntime and openvino, and an otherwise idle machine.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import numpy as np
import onnxruntime
import openvino

CAMVID = ("--set", "data.shape=[3,360,480]")
NETWORKS = {
    "resnet18": (),
    "resnet50": (),
    "erfnet": CAMVID,
    "deeplabv3plus_resnet18": CAMVID,
    "mobilenet_v3_large": (),
    "efficientnet_b0": (),
}
DEFAULT_NETWORKS = "resnet18,resnet50,erfnet,deeplabv3plus_resnet18"
WARM_UP_RUNS = 3


def milliseconds(run, runs):
    """The median time of a call."""
    times = []
    for number in range(WARM_UP_RUNS + runs):
        started = time.perf_counter()
        run()
        if number >= WARM_UP_RUNS:
            times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times)


def stratus(program, target, batch, precision, options, arguments):
    """The latency that `stratus bench infer` measures."""
    command = [program, "bench", "infer", target, "--json", "--runs", str(arguments.runs)]
    command += ["--batch", str(batch), "--threads", str(arguments.threads), *options]
    command += ["--set", f"train.precision={precision}"] if precision else []
    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return report["batches"][0]["ms_median"]


def onnxruntime_session(model, shape, arguments):
    """A function that runs the model once."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = arguments.threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    images = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    return lambda: session.run(None, {name: images})


def openvino_request(model, shape, precision, arguments):
    """A function that runs the model once, with a static shape."""
    core = openvino.Core()
    network = core.read_model(model)
    network.reshape(list(shape))
    properties = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": arguments.threads}
    properties["INFERENCE_PRECISION_HINT"] = precision
    request = core.compile_model(network, "CPU", properties).create_infer_request()
    images = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    return lambda: request.infer({0: images})


def image_shape(model):
    """The shape of an image that an ONNX model reads."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return tuple(session.get_inputs()[0].shape[1:])


def measure(name, model, cell, ours, arguments):
    """Prints the row of a cell. Every program is loaded once and measured in every round."""
    batch, precision = cell
    shape = (batch, *image_shape(model))
    peers = {"onnxruntime": onnxruntime_session(model, shape, arguments)}
    # Quantised models run what they do not quantise in the format that is faster here.
    hints = ("f32", "bf16") if precision is None else (precision,)
    for hint in hints:
        suffix = f" ({hint})" if precision is None else ""
        peers[f"OpenVINO{suffix}"] = openvino_request(model, shape, hint, arguments)
    times = {"Stratus": []} | {peer: [] for peer in peers}
    for _ in range(arguments.rounds):
        times["Stratus"].append(ours())
        for peer, run in peers.items():
            times[peer].append(milliseconds(run, arguments.runs))
    medians = {program: statistics.median(values) for program, values in times.items()}
    best = min(value for program, value in medians.items() if program != "Stratus")
    columns = "  ".join(f"{program} {value:8.2f}" for program, value in medians.items())
    row = f"{name:24} {precision or 'int8':5} batch {batch}  {columns}  {best / medians['Stratus']:5.2f}x"
    print(row, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("stratus", metavar="STRATUS", help="the program")
    parser.add_argument("runs_to_measure", metavar="RUN", nargs="*", help="run of `stratus optimise`")
    parser.add_argument("--networks", default=DEFAULT_NETWORKS, help="names, separated by commas")
    parser.add_argument("--batch", default="1,8", help="batch sizes")
    parser.add_argument("--precisions", default="f32,bf16")
    parser.add_argument("--runs", type=int, default=20, help="runs of a cell and program, each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_intermixed_args()
    batches = [int(size) for size in arguments.batch.split(",")]
    print(f"Milliseconds of a batch, {arguments.threads} threads, medians of {arguments.rounds} rounds of "
          f"{arguments.runs} runs, {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC; "
          f"onnxruntime {onnxruntime.__version__}, OpenVINO {openvino.__version__.split('-')[0]}. "
          "Last column: the better of both / Stratus.")
    with tempfile.TemporaryDirectory() as folder:
        for network in filter(None, arguments.networks.split(",")):
            model = pathlib.Path(folder) / f"{network}.onnx"
            export = [arguments.stratus, "model", "export", network, "--onnx", model, *NETWORKS[network]]
            subprocess.run(export, check=True, capture_output=True)
            for precision in arguments.precisions.split(","):
                for batch in batches:
                    def ours(batch=batch, precision=precision, network=network):
                        options = NETWORKS[network]
                        return stratus(arguments.stratus, network, batch, precision, options, arguments)
                    measure(network, model, (batch, precision), ours, arguments)
        for run in arguments.runs_to_measure:
            for batch in batches:
                def ours(batch=batch, run=run):
                    return stratus(arguments.stratus, run, batch, None, (), arguments)
                model = pathlib.Path(run) / "network.onnx"
                measure(pathlib.Path(run).name, model, (batch, None), ours, arguments)


if __name__ == "__main__":
    main()
