#!/usr/bin/env python3
"""Holds Stratus' times of kernels against an outside witness: what oneDNN itself says of each execution.

    scripts/check-witness.py STRATUS [NETWORK [BATCH [ITERATIONS]]]

oneDNN prints every primitive that it executes with its own time where ONEDNN_VERBOSE asks for it. A training
with that is compared with its own timeline: how many executions, and how many milliseconds, for each kind of
primitive and in all. Steps that Stratus' own kernels compute have no such witness and are left out; their
share is printed. Both clocks see the same executions, so that a busy machine makes no difference. The exit
code is 1 where a kind of a millisecond per iteration or more differs by more than 3 %.
"""
import collections
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile

LIMIT = 0.03
# Milliseconds per iteration below which the cost of printing a line would be compared.
LEAST = 1.0
# Iterations in front that are left out, as in reports.
FIRST = 3


def settings(batch, precision, iterations):
    return [
        "data.name=synthetic",
        f"data.synthetic.images={batch * iterations}",
        # Another number than the batch: so that what validation executes can be told from training.
        f"data.synthetic.validation_images={max(batch // 2, 1)}",
        f"train.batch_size={batch}",
        "train.epochs=1",
        "schedule.warmup_epochs=0",
        f"train.precision={precision}",
    ]


def run(program, folder, *arguments, **environment):
    # Into files: a reader at the other end of a pipe would want a core at every line.
    files = (folder / "out", folder / "err")
    with open(files[0], "w+", encoding="utf-8") as out, open(files[1], "w+", encoding="utf-8") as err:
        done = subprocess.run(
            [program, *arguments], cwd=folder, stdout=out, stderr=err, env={**os.environ, **environment}
        )
        out.seek(0)
        err.seek(0)
        if done.returncode:
            sys.exit(f"{' '.join(arguments)} ended with {done.returncode}:\n{err.read()}")
        return out.read()


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        value, at = varint(data, at)
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
        # Steps lie within a phase, within an iteration.
        if len(stack) == 2:
            steps.append(packet.get(8, 0) - begun)
        elif not stack:
            found.append(steps)
            steps = []
    return found


# Steps of the backward pass reorder what they read or make; oneDNN's lines do not say for which step a
# reorder was.
BACKWARD = "convolution backward, reorders"
KINDS = {
    "conv2d_forward": "convolution forward",
    "conv2d_backward_data": BACKWARD,
    "conv2d_backward_weights": BACKWARD,
    "reorder": BACKWARD,
    "convert": BACKWARD,
}


def kind_of_step(step, implementation):
    """The kind of oneDNN primitives that compute a step; None where another kernel does."""
    if implementation.startswith("stratus:") or implementation in ("", "none"):
        return None
    kernel = step["kernel"] if isinstance(step["kernel"], str) else next(iter(step["kernel"]))
    return KINDS.get(kernel, "matrix products and others")


def kind_of_line(line):
    """The kind of primitive, its direction, and its milliseconds, of a line of ONEDNN_VERBOSE."""
    parts = line.split(",")
    primitive, direction = parts[3], parts[5]
    if primitive == "convolution" and direction.startswith("forward"):
        kind = "convolution forward"
    else:
        kind = BACKWARD if primitive in ("convolution", "reorder") else "matrix products and others"
    return kind, direction, float(parts[-1])


def witnessed(told):
    """What oneDNN said, an entry an iteration: lines as (kind, milliseconds). An iteration begins where a
    forward pass follows a backward pass; validation, behind the last, has no backward pass."""
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
    # Kernels are chosen without anything being printed.
    plan = json.loads(run(program, folder, "plan", network, *overrides, "--dump", "plan", "--json"))
    told = run(program, folder, "train", network, "--out", f"run-{precision}", *overrides, ONEDNN_VERBOSE="1")
    trace = ("--trace", "--first", str(FIRST), "--count", str(iterations), "--out", f"{precision}.gz")
    run(program, folder, "collect", f"run-{precision}", *trace)
    measured = iterations_of(folder / f"{precision}.gz")
    steps, choices = plan["train"]["program"]["steps"], plan["train"]["steps"]
    assert measured and all(len(steps) == len(one) for one in measured), "the trace is not of this plan"
    return steps, choices, measured, told


def table(steps, choices, measured, told, iterations):
    """Rows of (kind, executions by oneDNN, our milliseconds, oneDNN's) an iteration, and the share of all
    steps' time that has a witness."""
    said = witnessed(told)
    assert len(said) == iterations, f"oneDNN tells of {len(said)} iterations, there were {iterations}"
    # The last of them may have lines of what follows it.
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
    print(f"  {100 * both[0] * 1e6 * len(measured) / whole:.0f} % of the steps' time has a witness")


def main():
    program = str(pathlib.Path(sys.argv[1]).resolve())
    network, batch, iterations = (*sys.argv[2:5], *("resnet50", "8", "12")[len(sys.argv[2:5]) :])
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        for precision in ("f32", "bf16"):
            print(f"{network}, batch {batch}, {precision}: milliseconds an iteration, of {iterations}")
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
