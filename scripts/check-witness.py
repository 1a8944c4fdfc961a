#!/usr/bin/env python3
"""Compares the kernel times of Stratus with those that oneDNN itself reports for each execution.

    scripts/check-witness.py STRATUS [NETWORK [BATCH [ITERATIONS]]]

With ONEDNN_VERBOSE, oneDNN prints every executed primitive with its time. The output of a training run is
compared with its timeline: the number of executions and milliseconds, for each kind of primitive and in
total. Steps with native kernels have no time from oneDNN and are skipped. The fraction of the rest is
printed. Both clocks measure the same executions, so a busy machine makes no difference. The exit code is 1 if
a kind of at least a millisecond per iteration differs by more than 3 %.
"""
import collections
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from timeline import read_varint

LIMIT = 0.03
# Milliseconds per iteration below which the cost of printing a line dominates.
LEAST = 1.0
# First iterations that are skipped, as in reports.
FIRST = 3


def settings(batch, precision, iterations):
    return [
        "data.name=synthetic",
        f"data.synthetic.images={batch * iterations}",
        # Different from the batch size, so that executions of validation can be told from training.
        f"data.synthetic.validation_images={max(batch // 2, 1)}",
        f"train.batch_size={batch}",
        "train.epochs=1",
        "schedule.warmup_epochs=0",
        f"train.precision={precision}",
    ]


def run(program, folder, *arguments, **environment):
    # Into files: a reader at the other end of a pipe would need a core for every line.
    files = (folder / "out", folder / "err")
    with open(files[0], "w+", encoding="utf-8") as out, open(files[1], "w+", encoding="utf-8") as err:
        done = subprocess.run(
            [program, *arguments], cwd=folder, stdout=out, stderr=err, env={**os.environ, **environment}
        )
        out.seek(0)
        err.seek(0)
        if done.returncode:
            sys.exit(f"{' '.join(arguments)} exited with {done.returncode}:\n{err.read()}")
        return out.read()


def fields(data):
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        value, at = read_varint(data, at)
        if tag & 7 == 2:
            yield tag >> 3, data[at : at + value]
            at += value
        else:
            yield tag >> 3, value


def iterations_of(trace):
    """For each iteration of a trace, the nanoseconds of its steps in order."""
    names, stack, steps, found = {}, [], [], []
    for _, packet in fields(gzip.open(trace).read()):
        packet = dict(fields(packet))
        if 12 in packet:
            entry = dict(fields(dict(fields(packet[12]))[2]))
            names[entry[1]] = entry[2].decode()
        if 11 not in packet:
            continue
        event = dict(fields(packet[11]))
        if event[9] == 1:
            stack.append((names[event[10]], packet.get(8, 0)))
            continue
        name, begun = stack.pop()
        # Steps are within a phase, within an iteration.
        if len(stack) == 2:
            steps.append(packet.get(8, 0) - begun)
        elif not stack:
            found.append(steps)
            steps = []
    return found


# Steps of the backward pass reorder their inputs or outputs; oneDNN's lines do not name the step that a
# reorder belongs to.
BACKWARD = "convolution backward, reorders"
KINDS = {
    "conv2d_forward": "convolution forward",
    "conv2d_backward_data": BACKWARD,
    "conv2d_backward_weights": BACKWARD,
    "reorder": BACKWARD,
    "convert": BACKWARD,
}


def kind_of_step(step, implementation):
    """The kind of oneDNN primitives that compute a step; None if another kernel does."""
    if implementation.startswith("stratus:") or implementation in ("", "none"):
        return None
    kernel = step["kernel"] if isinstance(step["kernel"], str) else next(iter(step["kernel"]))
    return KINDS.get(kernel, "matrix products and others")


def kind_of_line(line):
    """The kind of primitive, its direction and its milliseconds from a line of ONEDNN_VERBOSE."""
    parts = line.split(",")
    primitive, direction = parts[3], parts[5]
    if primitive == "convolution" and direction.startswith("forward"):
        kind = "convolution forward"
    else:
        kind = BACKWARD if primitive in ("convolution", "reorder") else "matrix products and others"
    return kind, direction, float(parts[-1])


def witnessed(told):
    """The output of oneDNN, one entry per iteration: lines as (kind, milliseconds). An iteration starts when
    a forward pass follows a backward pass; validation, after the last one, has no backward pass."""
    found, backward = [[]], False
    for line in told.splitlines():
        if not line.startswith("onednn_verbose,exec,"):
            continue
        kind, direction, milliseconds = kind_of_line(line)
        if direction == "forward_inference":
            break
        if direction == "forward_training" and backward:
            found.append([])
        backward = direction.startswith("backward") or (backward and direction != "forward_training")
        found[-1].append((kind, milliseconds))
    return found


def compare(program, network, batch, iterations, precision, folder):
    overrides = [word for key in settings(batch, precision, iterations) for word in ("--set", key)]
    # Kernel selection prints nothing.
    plan = json.loads(run(program, folder, "plan", network, *overrides, "--dump", "plan", "--json"))
    told = run(program, folder, "train", network, "--out", f"run-{precision}", *overrides, ONEDNN_VERBOSE="1")
    trace = ("--trace", "--first", str(FIRST), "--count", str(iterations), "--out", f"{precision}.gz")
    run(program, folder, "collect", f"run-{precision}", *trace)
    measured = iterations_of(folder / f"{precision}.gz")
    steps, choices = plan["train"]["program"]["steps"], plan["train"]["steps"]
    assert measured and all(len(steps) == len(one) for one in measured), "the trace is not of this plan"
    return steps, choices, measured, told


def table(steps, choices, measured, told, iterations):
    """Rows of (kind, executions by oneDNN, Stratus' milliseconds, oneDNN's) per iteration, and the
    fraction of the time of all steps that oneDNN also measured."""
    said = witnessed(told)
    assert len(said) == iterations, f"oneDNN printed {len(said)} iterations instead of {iterations}"
    # The last one may include lines of later work.
    said, measured = said[FIRST - 1 : -1], measured[:-1]
    assert len(said) == len(measured)
    kinds = [kind_of_step(step, choice["implementation"]) for step, choice in zip(steps, choices)]
    ours, theirs, executions = (collections.Counter() for _ in range(3))
    whole = 0
    for iteration in measured:
        for kind, nanoseconds in zip(kinds, iteration):
            whole += nanoseconds
            if kind:
                ours[kind] += nanoseconds * 1e-6 / len(measured)
    for iteration in said:
        for kind, milliseconds in iteration:
            theirs[kind] += milliseconds / len(said)
            executions[kind] += 1 / len(said)
    for kind in sorted(set(ours) | set(theirs), key=lambda kind: -ours[kind]):
        yield kind, executions[kind], ours[kind], theirs[kind]
    both = sum(ours.values()), sum(theirs.values())
    yield "in all", sum(executions.values()), *both
    share = 100 * both[0] * 1e6 * len(measured) / whole
    print(f"  {share:.0f} % of the steps' time was also measured by oneDNN")


def main():
    program = str(pathlib.Path(sys.argv[1]).resolve())
    network, batch, iterations = (*sys.argv[2:5], *("resnet50", "8", "12")[len(sys.argv[2:5]) :])
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        for precision in ("f32", "bf16"):
            print(f"{network}, batch {batch}, {precision}: ms per iteration, {iterations} iterations")
            found = compare(program, network, int(batch), int(iterations), precision, pathlib.Path(folder))
            for kind, executions, ours, theirs in table(*found, int(iterations)):
                off = ours / theirs - 1 if theirs else float("inf")
                bad = abs(off) > LIMIT and max(ours, theirs) >= LEAST
                wrong |= bad
                mark = "  <- more than 3 %" if bad else ""
                print(f"  {kind:<30} {executions:7.1f} {ours:9.2f} {theirs:9.2f} {100 * off:+6.2f} %{mark}")
    sys.exit(wrong)


if __name__ == "__main__":
    main()
