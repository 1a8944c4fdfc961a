"""Compares ONNX operators with their import: no result may differ silently.

    python scripts/check-onnx-operators.py [--all] REIMPORT FOLDER

Generates small models of every operator: with a non-default value of each attribute, in each operator set
that changes the operator, after layers of each kind, and with constants of each shape that broadcasts. If
shapes broadcast, images are [3, 3, 3, 3], so that a value at the wrong place still fits. The program
REIMPORT, the example `reimport` of stratus-onnx, imports each model and exports it again into FOLDER;
onnxruntime runs both. A model is `equal`, `refused` (rejected with the name of a node), or `noted`: it
differs and the import reports it. The check fails if a model differs, panics or is rejected without a name.
`--all` tries more pairs of attributes and shapes. Needs numpy, onnx and onnxruntime.
"""
import collections
import itertools
import pathlib
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import onnx_table
import onnx_written_out
from onnx import TensorProto, helper, numpy_helper

TOLERANCE = 2e-5  # of the largest number
NEWEST = 24
WINDOWS = [2, 4, 8, 7]
EQUAL = [3, 3, 3, 3]
TYPES = ["FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "INT8", "UINT8", "INT16", "INT32", "INT64", "BOOL"]

random = np.random.default_rng(7)


def array(*shape):
    return np.asarray(random.uniform(0.5, 1.5, shape) * random.choice([-1, 1], shape), np.float32)


def whole(*numbers):
    return np.array(numbers, np.int64)


def node(operator, inputs, output="op", name="the_node", **attributes):
    return helper.make_node(operator, inputs, [output], name, **attributes)


# The nodes before the node, from `x` to `in`, their weights, the name of their output; and the nodes after
# it, from `op` to `y`, without which its output is the model's.
def before(kind, shape):
    batch, channels, height, width = shape
    features = channels * height * width
    if kind == "images":
        return [], {}, "x", []
    if kind == "conv":
        return [node("Conv", ["x", "cw", "cb"], "in", "conv")], {
            "cw": array(channels, channels, 1, 1), "cb": array(channels)}, "in", []
    if kind == "norm":
        return [node("BatchNormalization", ["x", "ns", "nb", "nm", "nv"], "in", "norm")], {
            "ns": array(channels), "nb": array(channels), "nm": array(channels),
            "nv": np.abs(array(channels))}, "in", []
    if kind == "relu":
        return [node("Relu", ["x"], "in", "relu")], {}, "in", []
    if kind == "last":
        return [node("Relu", ["x"], "r", "relu"),
                node("Transpose", ["r"], "in", "last", perm=[0, 2, 3, 1])], \
            {}, "in", [node("Transpose", ["op"], "y", "back", perm=[0, 3, 1, 2])]
    if kind == "padded":
        return [node("Relu", ["x"], "r", "relu"), node("Pad", ["r", "pp"], "in", "pad")], {
            "pp": whole(0, 0, 1, 0, 0, 0, 1, 2)}, "in", []
    if kind == "vector":
        return [node("Flatten", ["x"], "in", "flatten")], {}, "in", []
    if kind == "linear":
        return [node("Flatten", ["x"], "f", "flatten"), node("Gemm", ["f", "lw", "lb"], "in", "linear")], {
            "lw": array(features, 3), "lb": array(3)}, "in", []
    if kind == "flattened":
        return [node("Relu", ["x"], "r", "relu"), node("Transpose", ["r"], "t", "last", perm=[0, 2, 3, 1]),
                node("Flatten", ["t"], "in", "flatten")], {"hw": array(features, 2)}, "in", \
            [node("Gemm", ["op", "hw"], "y", "head")]
    raise ValueError(kind)


Case = collections.namedtuple("Case", "name operator model")


def case(name, operator, inputs, opset, kind="relu", shape=EQUAL, weights={}, tail=True, extra=(),
         **attributes):
    """A model of one node; `IN` among its inputs is the output of the nodes before it."""
    nodes, known, value, after = before(kind, shape)
    inputs = [value if given == "IN" else given for given in inputs]
    after = after if tail else []
    nodes = nodes + [helper.make_node(*a, **k) for a, k in extra]
    nodes += [node(operator, inputs, "op", **attributes)] + after
    used = {given for node_ in nodes for given in node_.input}
    tensors = [numpy_helper.from_array(np.asarray(values), key)
               for key, values in {**known, **weights}.items() if key in used]
    graph = helper.make_graph(
        nodes, "one", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y" if after else "op", TensorProto.FLOAT, None)], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return Case(f"{operator} set {opset} {kind} {name}", operator, model)


def sets(operator):
    """The operator sets from 7 to NEWEST that change an operator, and the newest."""
    since = {schema.since_version for schema in onnx.defs.get_all_schemas_with_history()
             if schema.name == operator and schema.domain == ""}
    return sorted({max(7, version) for version in since if version <= NEWEST} | {NEWEST}) if since else []


def attributes(operator, opset):
    return onnx.defs.get_schema(operator, opset).attributes


VALUES = {
    "auto_pad": ["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"],
    "pads": [[1, 1, 1, 1], [1, 0, 0, 1], [0, 1, 1, 0], [0, 0, 1, 1], [1, 1, 0, 0]],
    "strides": [[2, 2], [1, 2], [3, 2]],
    "dilations": [[2, 2], [1, 2]],
    "kernel_shape": [[2, 3], [1, 1], [3, 3]],
    "output_padding": [[1, 0], [1, 1]],
    "output_shape": [[10, 9], [18, 16], [9, 8], [17, 15]],
    "ceil_mode": [1], "count_include_pad": [1], "storage_order": [1], "group": [2, 4],
    "alpha": [0.5], "beta": [2.0], "transA": [1], "transB": [1], "bias": [2.0], "size": [1, 2, 4, 5, 3],
    "num_groups": [1, 3], "p": [1, 3, 2],
    "epsilon": [0.1], "momentum": [0.5], "spatial": [0, 1], "training_mode": [1],
    "axis": [-4, -3, -2, -1, 0, 1, 2, 3], "keepdims": [0], "noop_with_empty_axes": [1],
    "ratio": [0.25], "seed": [3], "saturate": [0], "approximate": ["none", "tanh"], "allowzero": [1],
    "to": [getattr(TensorProto, name) for name in TYPES],
}


def windows(everything):
    """Convolutions and pooling: each attribute, and pairs of them."""
    for operator in ["Conv", "ConvTranspose", "MaxPool", "AveragePool"]:
        pools = operator.endswith("Pool")
        weights = {"w": array(4, 4, 2, 3), "b": array(4)}
        inputs = ["IN"] if pools else ["IN", "w", "b"]
        for opset in sets(operator):
            base = {"kernel_shape": [2, 3]} if pools else {}
            known = [name for name in attributes(operator, opset) if name in VALUES]
            choices = [(name, value) for name in known for value in VALUES[name]]
            pairs = [pair for pair in itertools.combinations(choices, 2) if pair[0][0] != pair[1][0]]
            if not everything:
                wanted = {"auto_pad", "pads", "ceil_mode", "count_include_pad"}
                pairs = [pair for pair in pairs if {pair[0][0], pair[1][0]} <= wanted | {"strides"}
                         and opset == NEWEST]
            triples = []
            if pools:
                triples = [a + (b,) for a in pairs for b in [("ceil_mode", 1), ("strides", [3, 2])]
                           if b[0] in known and b[0] not in (a[0][0], a[1][0])]
            for chosen in [()] + [(choice,) for choice in choices] + pairs + triples:
                given = {**base, **dict(chosen)}
                own = dict(weights)
                if "group" in given:
                    per = 4 // given["group"]
                    own["w"] = array(4, per, 2, 3)
                if not pools and "kernel_shape" in given:
                    own["w"] = array(*own["w"].shape[:2], *given["kernel_shape"])
                for kind in ["relu", "padded"] if everything or len(chosen) < 2 else ["relu"]:
                    yield case(str(given), operator, inputs, opset, kind, WINDOWS, own, **given)
        for kind in ["conv", "last", "padded", "vector"]:
            yield case("", operator, inputs, NEWEST, kind, WINDOWS, weights,
                       **({"kernel_shape": [2, 2]} if pools else {}))
    for shape in [[4], [4, 1], [1], [1, 4], [], [1, 4, 1, 1]]:
        for operator in ["Conv", "ConvTranspose"]:
            yield case(f"bias {shape}", operator, ["IN", "w", "b"], NEWEST, "relu", WINDOWS,
                       {"w": array(4, 4, 2, 2), "b": array(*shape)})
    for sides in [[0, 0, 1, 1, 0, 0, 0, 2], [0, 0, -1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0],
                  [1, 0, 0, 0, 0, 0, 0, 0]]:
        for mode in ["constant", "reflect", "edge", "wrap"]:
            for value in [None, 0.0, 1.0, -np.inf]:
                inputs = ["IN", "p"] + (["v"] if value is not None else [])
                weights = {"p": whole(*sides), "v": np.array(value or 0, np.float32)}
                extra = ((("Pad", inputs, ["q"], "the_pad"), {"mode": mode}),)
                for operator in ["Conv", "MaxPool"]:
                    kind = "relu" if value != -np.inf or operator == "MaxPool" else "images"
                    given = ["q"] if operator == "MaxPool" else ["q", "w"]
                    kernel = {"kernel_shape": [2, 2]} if operator == "MaxPool" else {}
                    name = f"after Pad {sides} {mode} {value}"
                    nodes = tuple((tuple([a[0], ["in" if i == "IN" else i for i in a[1]], *a[2:]]), k)
                                  for a, k in extra)
                    yield case(name, operator, given, 19, "relu", WINDOWS,
                               {**weights, "w": array(2, 4, 2, 2)}, extra=nodes, **kernel)


def shapes(everything):
    ranks = range(6) if everything else (0, 1, 2, 4, 5)
    for rank in ranks:
        for extents in itertools.product([1, 3], repeat=rank):
            if everything or sum(extent > 1 for extent in extents) < 2:
                yield list(extents)


def broadcasts(everything):
    """Operators of two inputs: constants of each shape on either side, and maps of other shapes."""
    kinds = ["images", "conv", "norm", "last", "vector", "linear", "flattened"]
    for operator in ["Add", "Sum", "Mul", "Div", "Sub", "Min", "Max", "Pow", "PRelu", "MatMul"]:
        for shape in shapes(everything):
            for kind in kinds if everything or operator in ("Add", "Mul") else ["conv", "linear"]:
                for inputs in [["IN", "c"], ["c", "IN"]]:
                    yield case(f"{inputs} {shape}", operator, inputs, NEWEST, kind,
                               weights={"c": array(*shape)})
        for shape in [[], [1], [1, 1, 1, 1], [1, 1, 1, 1, 1]]:
            for value in [0.0, 6.0, np.inf, np.nan]:
                yield case(f"{value} {shape}", operator, ["IN", "c"], NEWEST, "relu",
                           weights={"c": np.full(shape, value, np.float32)})
        for kind in ["images", "last", "vector"]:
            reducers = [("GlobalAveragePool", {}), ("GlobalMaxPool", {}), ("Sigmoid", {}), ("Flatten", {}),
                        ("HardSigmoid", {"alpha": 1 / 6}), ("HardSigmoid", {}),
                        ("Transpose", {"perm": [0, 2, 3, 1]}), ("Transpose", {"perm": [0, 3, 1, 2]}),
                        ("Conv", {}), ("ReduceMean", {"axes": [1]}), ("ReduceMean", {"axes": [2, 3]}),
                        ("ReduceMean", {"axes": [1, 2, 3]}), ("ReduceMean", {"axes": [0]})]
            value = "x" if kind == "images" else "in"
            for reducer, given in reducers:
                for inputs in [["IN", "other"], ["other", "IN"]]:
                    extra = (((reducer, [value] + (["w"] if reducer == "Conv" else []), ["other"], "other"),
                              given),)
                    yield case(f"{inputs} {reducer} {given}", operator, inputs, 17, kind, extra=extra,
                               weights={"w": array(1, 3, 1, 1)})
    for shape in shapes(everything):
        for opset in [7, NEWEST]:
            for value in [0, 1] if everything else [1]:
                yield case(f"C {shape}", "Gemm", ["IN", "w", "c"], opset, "vector",
                           weights={"w": array(3, 27), "c": array(*shape)}, transB=value)


def others(everything):
    """Attributes of every other operator, one after the other and in pairs."""
    own_files = onnx_table.declared(sets)
    weights = {"w": array(27, 3), "c": array(3), "s": array(3), "b": array(3), "m": array(3),
               "v": np.abs(array(3)), "low": np.array(0, np.float32), "high": np.array(6, np.float32)}
    operands = {
        "Gemm": (["IN", "w", "c"], ["vector", "flattened", "images"]),
        "BatchNormalization": (["IN", "s", "b", "m", "v"], ["relu", "last", "linear", "vector"]),
        # Inputs after the first are numbers per channel.
        **{name: (["IN", "s", "b"][:onnx.defs.get_schema(name).min_input], ["relu", "last", "vector"])
           for name in own_files},
        "Concat": (["IN", "IN"], ["relu", "last", "vector", "flattened"]),
        "Flatten": (["IN"], ["relu", "last", "vector"]),
        "Dropout": (["IN"], ["relu", "vector", "last"]),
        **{name: (["IN"], ["images", "vector", "last", "flattened"]) for name in onnx_table.activations()},
        "Swish": (["IN"], ["images", "last"]),
        "Cast": (["IN"], ["relu", "vector", "last"]),
        "Softmax": (["IN"], ["relu", "vector", "last"]),
        "LogSoftmax": (["IN"], ["relu", "vector", "last"]),
    }
    for operator, (inputs, kinds) in operands.items():
        for opset, kind in itertools.product(sets(operator), kinds):
            known = [name for name in attributes(operator, opset) if name in VALUES]
            choices = [(name, value) for name in known for value in VALUES[name]]
            pairs = [pair for pair in itertools.combinations(choices, 2) if pair[0][0] != pair[1][0]]
            for chosen in [()] + [(choice,) for choice in choices] + (pairs if everything else []):
                given = dict(chosen)
                if operator == "Cast" and "to" not in given or operator == "Concat" and "axis" not in given:
                    continue
                if operator == "HardSigmoid" and "alpha" not in given:
                    yield case(f"a sixth {given}", operator, inputs, opset, kind, alpha=1 / 6, **given)
                if operator in own_files:
                    required = [name for name, kind in attributes(operator, opset).items() if kind.required]
                    given = {**{name: VALUES[name][-1] for name in required}, **given}
                own = dict(weights)
                if given.get("transB"):
                    own["w"] = array(3, 27)
                keeps_float = given.get("to") in (None, TensorProto.FLOAT, TensorProto.DOUBLE)
                yield case(str(given), operator, inputs, opset, kind, weights=own, tail=keeps_float, **given)
                if operator == "Cast":
                    back = ((("Cast", ["in"], ["cast"], "the_node"), given),)
                    yield case(f"and back {given}", "Cast", ["cast"], opset, kind, extra=back,
                               to=TensorProto.FLOAT)
    for parameter, shape in itertools.product("sbmv", [[1], [1, 3], [3, 1], []]):
        yield case(f"{parameter} {shape}", "BatchNormalization", ["IN", "s", "b", "m", "v"], NEWEST,
                   weights={**weights, parameter: np.abs(array(*shape))})
    lows, highs = [None, -1.0, 0.0, 1.0], [None, 0.0, 1.0, 6.0, 3e38]
    for opset, low, high in itertools.product([7, NEWEST], lows, highs):
        for kind in ["images", "last", "vector"]:
            bounds = {"low": np.array(low or 0, np.float32), "high": np.array(high or 0, np.float32)}
            if opset == 7:
                given = {key: value for key, value in [("min", low), ("max", high)] if value is not None}
                yield case(f"{given}", "Clip", ["IN"], 7, kind, **given)
            else:
                inputs = ["IN", "" if low is None else "low", "" if high is None else "high"]
                yield case(f"{low} {high}", "Clip", inputs, opset, kind, weights=bounds)
    for opset in [11, 12, 13, NEWEST]:
        for ratio, training in itertools.product([None, 0.0, 0.3], [None, False, True]):
            own = {"ratio": np.array(ratio or 0, np.float32), "train": np.array(bool(training))}
            inputs = ["IN", "" if ratio is None else "ratio", "" if training is None else "train"]
            yield case(f"{ratio} {training}", "Dropout", inputs, opset, weights=own)
    yield from moved(everything)
    yield from channels()
    yield from over_channels(everything)
    yield from resized(everything)
    yield from constants()
    yield from unary()


def moved(everything):
    kinds = ["relu", "last", "vector"]
    for kind in kinds:
        orders = [itertools.permutations(range(rank)) for rank in (4, 2)]
        for perm in itertools.chain(*orders, [None]):
            given = {} if perm is None else {"perm": list(perm)}
            yield case(str(given), "Transpose", ["IN"], NEWEST, kind, tail=False, **given)
            yield case(f"{given} and back", "Transpose", ["IN"], NEWEST, kind, **given)
        targets = [[3, 27], [-1, 27], [0, -1], [0, 27], [27, 3], [9, -1], [3, 3, 9], [0, 0, -1], [81],
                   [1, 81], [3, 3, 3, 3], [0, 0, 0, 0], [3, 3, 3, -1], [3, 27, 1, 1], [3, 27, 1],
                   [3, 0, 3, 3], [-1, 3]]
        for target, allow in itertools.product(targets, [0, 1]):
            yield case(f"{target} {allow}", "Reshape", ["IN", "t"], NEWEST, kind,
                       weights={"t": whole(*target)}, **({"allowzero": 1} if allow else {}))
        for axes in [[], [2, 3], [2], [3], [-1], [-1, -2], [0], [1], [1, 2, 3], [-3]]:
            yield case(f"set 12 {axes}", "ReduceMean", ["IN"], 12, kind, keepdims=0,
                       **({"axes": axes} if axes else {}))
            for keep, noop in itertools.product([0, 1], [0, 1]):
                yield case(f"{axes} {keep} {noop}", "ReduceMean", ["IN", "a"], NEWEST, kind,
                           weights={"a": whole(*axes)}, keepdims=keep, noop_with_empty_axes=noop)
        for keep, noop in itertools.product([0, 1], [0, 1]):
            yield case(f"{keep} {noop}", "ReduceMean", ["IN"], NEWEST, kind, keepdims=keep,
                       noop_with_empty_axes=noop)
    pooled = ((("GlobalAveragePool", ["in"], ["g"], "pool"), {}),)
    for axes in [None, [2, 3], [-1, -2], [2], [3], [0], [1], [-1]]:
        for batch in [1, 3]:
            shape = [batch, 3, 3, 3]
            inputs = ["g"] if axes is None else ["g", "a"]
            yield case(f"{axes} batch {batch}", "Squeeze", inputs, NEWEST, "relu", shape, extra=pooled,
                       weights={"a": whole(*(axes or []))})
            yield case(f"{axes} batch {batch}", "Squeeze", ["g"], 12, "relu", shape, extra=pooled,
                       **({} if axes is None else {"axes": axes}))


def channels():
    """Channels in groups, parts of them."""
    shape = [2, 12, 3, 4]
    for kind in ["relu", "last", "vector"]:
        for groups, perm in itertools.product(
                [1, 2, 3, 5, 12], [[0, 2, 1, 3, 4], [0, 1, 2, 3, 4], [0, 2, 1, 4, 3], [1, 0, 2, 3, 4]]):
            for back in [[0, 12, 3, 4], [2, -1, 3, 4], [0, 12, 4, 3], [0, 144], [0, 6, 6, 4]]:
                extra = ((("Reshape", ["in", "s"], ["g"], "group"), {}),
                         (("Transpose", ["g"], ["p"], "turn"), {"perm": perm}))
                yield case(f"{groups} {perm} {back}", "Reshape", ["p", "t"], NEWEST, kind, shape, extra=extra,
                           weights={"s": whole(0, groups, 12 // groups, 3, 4), "t": whole(*back)})
        for axis in [1, -3, 3, -1, 2, 0]:
            for first, end, step in [(0, 4, 1), (3, 9, 1), (-2, 99, 1), (0, 9, 2), (9, 0, -1), (4, 4, 1)]:
                yield case(f"{first} {end} {axis} {step}", "Slice", ["IN", "i", "j", "a", "k"], NEWEST, kind,
                           shape, {"i": whole(first), "j": whole(end), "a": whole(axis), "k": whole(step)})
            for sizes in [[4, 8], [6, 6], [1, 11], [4, 7], None]:
                for opset in [11, 13, NEWEST]:
                    if opset == 11:
                        inputs, given = ["IN"], {} if sizes is None else {"split": sizes}
                    else:
                        inputs = ["IN"] if sizes is None else ["IN", "s"]
                        given = {"num_outputs": 2} if sizes is None and opset == NEWEST else {}
                    split = helper.make_node("Split", ["in"] + inputs[1:], ["a", "b"], "the_split",
                                             axis=axis, **given)
                    made = case(f"{sizes} {axis} set {opset}", "Concat", ["b", "a"], opset, kind, shape,
                                {"s": whole(*(sizes or []))}, axis=axis)
                    graph = made.model.graph
                    position = next(i for i, n in enumerate(graph.node) if n.name == "the_node")
                    graph.node.insert(position, split)
                    if sizes is not None and opset != 11:
                        graph.initializer.append(numpy_helper.from_array(whole(*sizes), "s"))
                    yield made


def over_channels(everything):
    """Layer norms, linear layers and factors of channels, channels last or not; GELU in older operators."""
    shape = [3, 3, 3, 3]
    for opset, kind in itertools.product(sets("LayerNormalization"), ["relu", "last", "vector", "images"]):
        for axis in [None] + VALUES["axis"]:
            for given in [{}, {"epsilon": 0.1}, {"stash_type": 1}, {"stash_type": TensorProto.FLOAT16}]:
                normalised = [3] * (4 - (axis or 0) if axis is not None and axis >= 0 else -(axis or -1))
                own = {"s": array(*normalised), "b": array(*normalised)}
                chosen = given if axis is None else {"axis": axis, **given}
                both = [["IN", "s", "b"], ["IN", "s"]]
                for inputs in both if not given or everything else both[:1]:
                    yield case(f"{inputs} {chosen}", "LayerNormalization", inputs, opset, kind, shape, own,
                               **chosen)
    for scale in [[1], [3], [1, 3], [3, 3], [3, 1], []]:
        yield case(f"scale {scale}", "LayerNormalization", ["IN", "s", "b"], NEWEST, "last", shape,
                   {"s": array(*scale), "b": array(3)})
    for weight in [[3, 3], [3, 2], [3], [2, 3], [1, 3, 3], [3, 3, 3], [1, 1, 3, 3], [3, 3, 3, 3]]:
        for kind, inputs in itertools.product(["last", "relu"], [["IN", "w"], ["w", "IN"]]):
            yield case(f"{inputs} {weight}", "MatMul", inputs, NEWEST, kind, shape, {"w": array(*weight)})
        for bias in [[3], [1], [2], [3, 1], [3, 3, 3], [1, 1, 1, 3]]:
            extra = ((("MatMul", ["in", "w"], ["m"], "product"), {}),)
            yield case(f"{weight} {bias}", "Add", ["m", "b"], NEWEST, "last", shape,
                       {"w": array(*weight), "b": array(*bias)}, extra=extra)
    # A factor per channel, with or without an addition to outputs of other layers.
    for factors, kind in itertools.product([[3, 1, 1], [1, 3, 1, 1], [3], [1, 1, 3], [3, 3, 3], [1, 1, 1]],
                                           ["images", "conv", "relu", "norm", "last", "vector", "linear"]):
        value = "x" if kind == "images" else "in"
        for inputs in [[value, "fa"], ["fa", value]]:
            extra = ((("Mul", inputs, ["m"], "factors"), {}),)
            yield case(f"{inputs} {factors}", "Add", ["m", value], NEWEST, kind, shape,
                       {"fa": array(*factors)}, extra=extra)
            extra += ((("Relu", ["m"], ["rm"], "behind"), {}),)
            yield case(f"{inputs} {factors} twice", "Add", ["m", "rm"], NEWEST, kind, shape,
                       {"fa": array(*factors)}, extra=extra)
    root = np.float32(2 ** 0.5)
    numbers = [(root, 1.0, 0.5), (np.float32(2), 1.0, 0.5), (root, 2.0, 0.5), (root, 1.0, 0.25)]
    for kind, number in itertools.product(["images", "relu", "last", "vector", "conv"], numbers):
        value = "x" if kind == "images" else "in"
        own = {name: np.array(number_, np.float32) for name, number_ in zip(["root", "one", "half"], number)}
        own["inverse"] = np.array(1 / number[0], np.float32)
        for beginning in [("Div", [value, "root"]), ("Mul", [value, "inverse"]), ("Mul", ["inverse", value])]:
            start = ((beginning + (["d"], "scaled"), {}), (("Erf", ["d"], ["e"], "erf"), {}))
            for sum_ in [["e", "one"], ["one", "e"]]:
                plus = start + ((("Add", sum_, ["p"], "plus"), {}),)
                chains = {
                    "x first": (("Mul", [value, "p"], "t"), ["t", "half"]),
                    "half first": (("Mul", ["half", "p"], "t"), ["t", value]),
                    "half of x": (("Mul", [value, "half"], "t"), ["t", "p"]),
                    "x of p": (("Mul", ["p", value], "t"), ["half", "t"]),
                    "twice": (("Mul", ["p", "p"], "t"), ["t", "half"]),
                    "another": (("Mul", ["d", "p"], "t"), ["t", "half"]),
                }
                for name, ((operator, reads, makes), inputs) in chains.items():
                    extra = plus + (((operator, reads, [makes], "part"), {}),)
                    yield case(f"gelu {name} {beginning} {sum_} {number}", "Mul", inputs, NEWEST, kind, shape,
                               own, extra=extra)
        erf = ((("Div", [value, "root"], ["d"], "scaled"), {}), (("Erf", ["d"], ["e"], "erf"), {}))
        for operator, inputs in [("Relu", ["d"]), ("Relu", ["e"]), ("Add", ["d", "e"]), ("Mul", ["e", "e"])]:
            yield case(f"gelu {operator} {inputs} {number}", operator, inputs, NEWEST, kind, shape, own,
                       extra=erf)
    # Computed extents.
    for add, divide, multiply in itertools.product([0, 1, -2, -9], [1, 2, -2, 0], [1, 2]):
        extra = ((("Shape", ["in"], ["sh"], "shape"), {}), (("Gather", ["sh", "i"], ["c"], "gather"), {}),
                 (("Add", ["c", "a"], ["ca"], "sum"), {}), (("Div", ["ca", "d"], ["cd"], "quotient"), {}),
                 (("Mul", ["cd", "m"], ["end"], "product"), {}))
        yield case(f"end {add} {divide} {multiply}", "Slice", ["IN", "z", "end", "i"], NEWEST, "relu",
                   [2, 12, 3, 4], {"i": whole(1), "z": whole(0), "a": whole(add), "d": whole(divide),
                                   "m": whole(multiply)}, extra=extra)


def resized(everything):
    modes = ["nearest", "linear", "cubic"]
    places = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
              "tf_crop_and_resize"]
    region = np.array([0, 0, 0, 0, 1, 1, 1, 1], np.float32)
    for opset, mode, place in itertools.product([11, 13, NEWEST], modes, places):
        targets = [([1, 1, 2, 2], None), ([1, 1, .7, 1.5], None), ([2, 1, 1, 1], None), (None, [3, 3, 5, 2]),
                   (None, [3, 3, 1, 1]), (None, [3, 3, 1, 6]), (None, [3, 4, 6, 6])]
        for scales, sizes in targets:
            if place == "half_pixel_symmetric" and opset < 18:
                continue
            inputs = ["IN", "r", "sc" if scales else "", "" if scales else "si"]
            own = {"r": region, "sc": np.array(scales or [], np.float32), "si": whole(*(sizes or []))}
            yield case(f"{mode} {place} {scales} {sizes}", "Resize", inputs, opset, "relu", weights=own,
                       mode=mode, coordinate_transformation_mode=place)
    own = {"sc": np.array([1, 1, 2, 2], np.float32), "si": whole(3, 3, 5, 4), "two": whole(5, 4),
           "sc2": np.array([2, 1.5], np.float32), "none": np.array([], np.float32)}
    for given in [{"antialias": 1}, {"exclude_outside": 1}, {"extrapolation_value": 3.0},
                  {"cubic_coeff_a": -0.5}, {"nearest_mode": "ceil"},
                  {"keep_aspect_ratio_policy": "not_larger"}, {"keep_aspect_ratio_policy": "not_smaller"}]:
        yield case(str(given), "Resize", ["IN", "", "sc"], NEWEST, weights=own, mode="linear", **given)
        yield case(f"{given} sizes", "Resize", ["IN", "", "", "si"], NEWEST, weights=own, mode="linear",
                   **given)
    for axes in [[2, 3], [3, 2], [-2, -1], [1, 2], [2], [2, 2]]:
        for inputs in [["IN", "", "sc2"], ["IN", "", "", "two"]]:
            yield case(f"{inputs} {axes}", "Resize", inputs, NEWEST, weights=own, mode="linear", axes=axes)
    yield case("scales and sizes", "Resize", ["IN", "", "sc", "si"], NEWEST, weights=own, mode="linear")
    yield case("no scales", "Resize", ["IN", "none", "none", "si"], NEWEST, weights=own, mode="linear")
    yield case("set 10", "Resize", ["IN", "sc"], 10, weights=own, mode="linear")
    yield case("last", "Resize", ["IN", "", "sc"], NEWEST, "last", weights=own, mode="linear")


def constants():
    """Nodes between a weight and its consumer."""
    for to in TYPES:
        kind = getattr(TensorProto, to)
        extra = ((("Cast", ["w"], ["wi"], "the_node"), {"to": kind}),
                 (("Cast", ["wi"], ["wf"], "the_node2"), {"to": TensorProto.FLOAT}))
        for values in [array(27, 2) * 2, np.abs(array(27, 2)) * 1000]:
            yield case(f"a weight cast to {to} {values[0, 0]}", "Gemm", ["IN", "wf"], NEWEST, "vector",
                       weights={"w": values}, extra=extra)
    for shape, axes in [([1, 3, 1], [0]), ([1, 3, 1], [2]), ([1, 3, 1], [0, 2]), ([1, 3, 1], None),
                        ([3, 1, 1], [1]), ([1, 1, 3, 1], [0, 1])]:
        extra = ((("Squeeze", ["c", "a"] if axes else ["c"], ["q"], "squeeze"), {}),)
        for operator in ["Add", "Mul"]:
            yield case(f"a constant {shape} squeezed {axes}", operator, ["IN", "q"], NEWEST, "conv",
                       weights={"c": array(*shape), "a": whole(*(axes or []))}, extra=extra)
    for shape, axes in [([3], [1, 2]), ([3], [0]), ([3], [1]), ([3], [-1]), ([3, 1], [0, 3])]:
        extra = ((("Unsqueeze", ["c", "a"], ["q"], "unsqueeze"), {}),)
        yield case(f"a constant {shape} unsqueezed {axes}", "Add", ["IN", "q"], NEWEST, "conv",
                   weights={"c": array(*shape), "a": whole(*axes)}, extra=extra)
    for shape, target in [([3], [3, 1, 1]), ([3], [1, 3]), ([3], [-1, 1]), ([3, 1], [0, -1, 1]),
                          ([3], [0, 1, 1])]:
        extra = ((("Reshape", ["c", "t"], ["q"], "reshape"), {}),)
        yield case(f"a constant {shape} reshaped {target}", "Add", ["IN", "q"], NEWEST, "conv",
                   weights={"c": array(*shape), "t": whole(*target)}, extra=extra)
    for perm in [None, [0, 1], [1, 0]]:
        extra = ((("Transpose", ["w"], ["wt"], "transpose"), {} if perm is None else {"perm": perm}),)
        yield case(f"a weight transposed {perm}", "Gemm", ["IN", "wt"], NEWEST, "linear",
                   weights={"w": array(3, 3)}, extra=extra)
    for value in [None, np.float32([0.5]), np.float64([0.5]), np.float16([0.5]), np.int64([2])]:
        given = {} if value is None else {"value": numpy_helper.from_array(value)}
        extra = ((("ConstantOfShape", ["t"], ["w"], "filled"), given),)
        yield case(f"a filled weight {value}", "Gemm", ["IN", "w"], NEWEST, "vector",
                   weights={"t": whole(27, 2)}, extra=extra)
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.float32([0.5, -2]), "w"), numpy_helper.from_array(whole(3, 50)), [27, 2])
    extra = ((("Constant", [], ["w"], "sparse"), {"sparse_value": sparse}),)
    yield case("a sparse weight", "Gemm", ["IN", "w"], NEWEST, "vector", extra=extra)
    for start, end in [(None, None), (0, 1), (1, 4), (-1, 4), (0, -1), (1, 2)]:
        given = {key: value for key, value in [("start", start), ("end", end)] if value is not None}
        for kind in ["relu", "last"]:
            extra = ((("Shape", ["in"], ["t"], "shape"), given),
                     (("Concat", ["t", "rest"], ["target"], "target"), {"axis": 0}))
            yield case(f"by a shape {given}", "Reshape", ["IN", "target"], NEWEST, kind, extra=extra,
                       weights={"rest": whole(-1)})
    for index, axis in itertools.product([0, 1, -1, -4], [0, -1]):
        extra = ((("Shape", ["in"], ["s"], "shape"), {}),
                 (("Gather", ["s", "i"], ["t"], "gather"), {"axis": axis}),
                 (("Concat", ["t", "rest"], ["target"], "target"), {"axis": 0}))
        yield case(f"by an extent {index} {axis}", "Reshape", ["IN", "target"], NEWEST, extra=extra,
                   weights={"rest": whole(-1), "i": whole(index)})
    for start, end, step in [(0, 1, 1), (-4, -3, 1), (0, 2, 2), (0, 1, -1), (1, 0, -1), (0, 2, 1),
                             (-9, 1, 1)]:
        extra = ((("Shape", ["in"], ["s"], "shape"), {}),
                 (("Slice", ["s", "i", "j", "a", "k"], ["t"], "slice"), {}),
                 (("Concat", ["t", "rest"], ["target"], "target"), {"axis": 0}))
        yield case(f"by a slice {start} {end} {step}", "Reshape", ["IN", "target"], NEWEST, extra=extra,
                   weights={"rest": whole(-1), "i": whole(start), "j": whole(end), "a": whole(0),
                            "k": whole(step)})


def unary():
    """Every operator with one tensor, or two of the same shape."""
    for schema in onnx.defs.get_all_schemas():
        if schema.domain or any(attribute.required for attribute in schema.attributes.values()):
            continue
        for count, kind in itertools.product([1, 2], ["images", "vector", "last"]):
            if schema.min_input <= count <= schema.max_input:
                yield case(f"{count}", schema.name, ["IN"] * count, NEWEST, kind)


def ran(model):
    """The output of a model in onnxruntime for the same images; nothing if it rejects the model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        (images,), (output,) = session.get_inputs(), session.get_outputs()
        count = int(np.prod(images.shape[1:]))
        batch = images.shape[0] if isinstance(images.shape[0], int) else ran.batch
        ran.batch = batch
        given = (np.arange(batch * count) * 7919 % 2003 / 1001.5 - 1).astype(np.float32)
        return session.run([output.name], {images.name: given.reshape(batch, *images.shape[1:])})[0]
    except Exception as problem:  # noqa: BLE001: onnxruntime has no common class of its errors
        return str(problem)


ran.batch = 3  # the model's; exported models leave it open


def softmax(values, log):
    exponents = np.exp(values - values.max(1, keepdims=True))
    shares = exponents / exponents.sum(1, keepdims=True)
    return np.log(shares) if log else shares


def compared(case, path):
    """The outcome of a model, and a message about it."""
    if path.with_suffix(".panicked").exists():
        return "panicked", path.with_suffix(".panicked").read_text()
    wanted = ran(case.model.SerializeToString())
    if path.with_suffix(".refused").exists():
        said = path.with_suffix(".refused").read_text()
        named = any(f"`{given.name}`" in said for given in case.model.graph.node)
        whole_model = "its output `" in said
        return ("refused" if named or whole_model else "unnamed"), said
    if isinstance(wanted, str):
        return "invalid", wanted
    notes = path.with_suffix(".notes").read_text()
    found = ran(path.with_suffix(".again").read_bytes())
    if isinstance(found, str):
        return "different", found
    if "the loss includes the softmax" in notes:
        found = softmax(found, "LogSoftmax" in notes)
    wanted = wanted.astype(np.float32)
    if found.shape != wanted.shape:
        return "different", f"{found.shape} instead of {wanted.shape}"
    scale = max(float(np.abs(np.nan_to_num(wanted)).max(initial=0)), 1e-3)
    same = np.array_equal(np.isfinite(found), np.isfinite(wanted))
    off = float(np.abs(np.nan_to_num(found) - np.nan_to_num(wanted)).max(initial=0)) / scale
    if same and off <= TOLERANCE:
        return "equal", ""
    return ("noted" if notes else "different"), f"off by {off:.1e} of the largest number; {notes}"


def main(everything, reimport, folder):
    folder.mkdir(parents=True, exist_ok=True)
    cases = {}
    written_out = onnx_written_out.cases(case, array, whole, NEWEST)
    for made in itertools.chain(windows(everything), broadcasts(everything), others(everything), written_out):
        cases.setdefault(made.name, made)
    paths = {name: folder / f"{number:05}.onnx" for number, name in enumerate(cases)}
    for name, made in cases.items():
        paths[name].write_bytes(made.model.SerializeToString())
    subprocess.run([reimport, folder], check=True, stderr=subprocess.DEVNULL)
    counts, wrong, equal = collections.Counter(), [], collections.Counter()
    for name, made in cases.items():
        outcome, said = compared(made, paths[name])
        counts[outcome] += 1
        if outcome == "equal":
            equal.update({given.op_type for given in made.model.graph.node})
        if outcome in ("different", "panicked", "unnamed"):
            wrong.append(f"{paths[name].name} {name}: {outcome}: {said}")
    wrong += onnx_table.drift(equal)
    for line in wrong[:40]:
        print(f"check-onnx-operators: {line}")
    operators = len({made.operator for made in cases.values()})
    print(f"check-onnx-operators: {len(cases)} models of {operators} operators: {counts['equal']} equal to "
          f"onnxruntime {onnxruntime.__version__}, {counts['refused']} rejected by name, {counts['noted']} "
          f"different with a note, {counts['different']} silently different, {counts['panicked']} panicked, "
          f"{counts['unnamed']} rejected without a name; onnxruntime rejects {counts['invalid']} more")
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    options = [argument for argument in sys.argv[1:] if argument.startswith("--")]
    program, target = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    main("--all" in options, program, pathlib.Path(target))
