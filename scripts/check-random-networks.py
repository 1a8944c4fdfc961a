"""Compares the outputs of onnxruntime for random networks with those of the reference backend.

    python scripts/check-random-networks.py EXAMPLE FOLDER SEEDS

EXAMPLE is the example `random_networks` of stratus-onnx, which exports each network, imports it again, and
shrinks those that differ. SEEDS are a number of networks or a range, as 200..300. Needs numpy and
onnxruntime.
"""
import collections
import json
import pathlib
import struct
import subprocess
import sys

import numpy as np
import onnxruntime

MIN_OUTPUT = 0.05  # as in stratus_conformance::networks
MAX_PROBLEMS = 5


def safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    values = data[8 + length:]
    return {name: np.frombuffer(values[slice(*entry["data_offsets"])], "<f4").reshape(entry["shape"])
            for name, entry in header.items() if name != "__metadata__"}


def problem(folder):
    """The difference of the network in the folder, or None."""
    expected = safetensors(folder / "network.expected")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(folder / "network.onnx", options, ["CPUExecutionProvider"])
        batch = session.run(None, {"input": expected["input"]})[0]
        first = session.run(None, {"input": expected["input"][:1]})[0]
    except Exception as error:  # onnxruntime's exceptions have no common class
        return f"onnxruntime fails: {error}"
    wanted, tolerance = expected["output"], float(expected["tolerance"][0])
    if batch.shape != wanted.shape:
        return f"outputs of shape {batch.shape}, expected {wanted.shape}"
    scale = max(MIN_OUTPUT, float(np.abs(wanted).max()))
    off = max(float(np.abs(batch - wanted).max()), float(np.abs(first - wanted[:1]).max())) / scale
    if off <= tolerance:
        return None
    return f"differs by {off:.2e} of the largest output, allowed {tolerance:.2e}"


def main(example, folder, seeds):
    first, _, end = seeds.rpartition("..")
    pipe = subprocess.PIPE
    with subprocess.Popen([example, folder], stdin=pipe, stdout=pipe, text=True) as process:
        def ask(line):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        def found(reply):
            """The problem of the network that was written, or None."""
            word, _, rest = reply.partition(" ")
            if word == "written":
                return problem(folder)
            return {"sensitive": None, "refused": None, "failed": rest}[word]

        agreed, sensitive, refused, problems, operations = 0, 0, 0, [], collections.Counter()
        for seed in range(int(first or 0), int(end)):
            reply = ask(f"write {seed}")
            sensitive += reply == "sensitive"
            if reply.startswith("refused"):
                refused += 1
                continue
            if (difference := found(reply)) is None:
                if reply != "sensitive":
                    agreed += 1
                    operations.update(reply.split()[1:])
                continue
            reply = ask(f"shrink {seed}")
            while reply != "smallest":
                smaller = found(reply)
                is_same = smaller is not None and smaller.split()[0] == difference.split()[0]
                reply = ask("yes" if is_same else "no")
            text = (folder / "network.toml").read_text()
            problems.append(f"seed {seed}: {difference}\nthe smallest network found with it:\n{text}")
            print(problems[-1], flush=True)
            if len(problems) == MAX_PROBLEMS:
                break
        process.stdin.close()
    counts = ", ".join(f"{name} {count}" for name, count in sorted(operations.items()))
    print(f"onnxruntime {onnxruntime.__version__}: {agreed} networks agree, {refused} have a layer that ONNX "
          f"lacks, {sensitive} are too sensitive to rounding, {len(problems)} have problems\n"
          f"layers: {counts}")
    sys.exit(1 if problems or not agreed else 0)


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3])
