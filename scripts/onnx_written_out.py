"""Models of layers as exporters write them in other operators, for scripts/check-onnx-operators.py."""
import itertools

import numpy as np
from onnx import TensorProto, helper, numpy_helper

ONE = np.float32(1)


def number(value):
    return np.array(value, np.float32)


def chain(*nodes):
    """Nodes from `operator inputs -> output`, the last of which is the model's."""
    made = []
    for text, *attributes in nodes:
        reads, output = text.split(" -> ")
        operator, *inputs = reads.split()
        inputs = ["" if given == "_" else given for given in inputs]
        made.append(((operator, inputs, [output], f"the_{output}"), attributes[0] if attributes else {}))
    return made


def cases(case, array, whole, newest):
    def of(name, nodes, weights, kinds=("relu", "images", "conv", "last", "vector"), opset=newest, shape=None,
           tail=True):
        """A model of a chain, whose `IN` is the output of the nodes before it, for each kind of them."""
        for kind in kinds:
            value = {"images": "x"}.get(kind, "in")
            made = chain(*[(text.replace("IN", value), *rest) for text, *rest in nodes])
            (operator, inputs, _, _), attributes = made[-1]
            extra = tuple(((o, i, out, n), a) for (o, i, out, n), a in made[:-1])
            yield case(name, operator, inputs, opset, kind, **({"shape": shape} if shape else {}),
                       weights=weights, extra=extra, tail=tail, **attributes)

    yield from gates(of)
    yield from affine(of, array)
    yield from bounds(of)
    yield from pooled(of, whole)
    yield from chosen(of, whole)
    yield from upsampled(case, of, whole)
    yield from transposed(case, array)


def gates(of):
    """Hard sigmoid, hard swish, Mish and SiLU in older operators."""
    own = {"three": number(3), "six": number(6), "sixth": number(1 / 6), "zero": number(0), "one": number(1),
           "slope": number(0.2), "half": number(0.5), "minus": number(-3), "a": number(1.702),
           "inverse": number(1 / 1.702)}
    shifts = [("Add IN three -> s",), ("Add three IN -> s",), ("Sub IN minus -> s",)]
    clips = [[("Clip s zero six -> c",)], [("Relu s -> rr",), ("Min rr six -> c",)]]
    ends = {
        "product first": [("Mul IN c -> m",), ("Div m six -> op",)],
        "product turned": [("Mul c IN -> m",), ("Mul sixth m -> op",)],
        "quotient first": [("Div c six -> h",), ("Mul IN h -> op",)],
        "factor first": [("Mul c sixth -> h",), ("Mul h IN -> op",)],
        "share of x": [("Mul IN sixth -> h",), ("Mul h c -> op",)],
        "no quotient": [("Mul IN c -> op",)],
        "no product": [("Div c six -> op",)],
        "only clipped": [("Relu c -> op",)],
        "another": [("Relu IN -> z",), ("Mul z c -> op",)],
        "twice": [("Add c IN -> z",), ("Mul z c -> op",)],
    }
    for shift, clip, (name, end) in itertools.product(shifts, clips, ends.items()):
        yield from of(f"hard swish {shift} {len(clip)} {name}", [shift, *clip, *end], own)
    for alpha, beta in [(0.2, 0.5), (1 / 6, 0.5), (0.2, 0.4), (1.0, 0.5)]:
        given = {"alpha": alpha, "beta": beta}
        for product in ["Mul IN h -> op", "Mul h IN -> op"]:
            yield from of(f"{given} {product}", [("HardSigmoid IN -> h", given), (product,)], own)
    keras = [("Mul IN slope -> l",), ("Add l half -> s",), ("Clip s zero one -> c",)]
    yield from of("keras hard sigmoid", [*keras, ("Relu c -> op",)], own)
    yield from of("keras hard sigmoid gate", [*keras, ("Mul c IN -> op",)], own)
    for product in ["Mul IN t -> op", "Mul t IN -> op", "Mul t t -> op"]:
        mish = [("Softplus IN -> p",), ("Tanh p -> t",), (product,)]
        yield from of(f"mish {product}", mish, own)
    yield from of("tanh of another", [("Softplus IN -> p",), ("Tanh p -> t",), ("Relu IN -> z",),
                                      ("Mul z t -> op",)], own)
    for end in [[("Mul IN g -> op",)], [("Mul g IN -> m",), ("Mul m inverse -> op",)]]:
        yield from of(f"silu of a product {len(end)}", [("Mul IN a -> l",), ("Sigmoid l -> g",), *end], own)


def affine(of, array):
    """Products, sums, differences and quotients with a number for each channel."""
    kinds = ["images", "conv", "norm", "relu", "last", "vector", "linear"]
    for shape in [[3, 1, 1], [1, 3, 1, 1], [3], [1, 1, 3], [1, 3], []]:
        own = {"fa": array(*shape), "b": array(*shape)}
        for first, second in itertools.product(
                ["Mul IN fa -> m", "Mul fa IN -> m", "Div IN fa -> m"],
                ["Add m b -> a", "Add b m -> a", "Sub m b -> a", "Sub b m -> a"]):
            yield from of(f"{shape} {first} {second}", [(first,), (second,), ("Relu a -> op",)], own, kinds)
        for only in ["Add IN b -> a", "Sub b IN -> a", "Sub IN b -> a"]:
            yield from of(f"{shape} {only}", [(only,), ("Relu a -> op",)], own, kinds)
            yield from of(f"{shape} {only} and Mul", [(only,), ("Mul a fa -> op",)], own, kinds)
        yield from of(f"{shape} quotient of it", [("Div fa IN -> op",)], own, kinds)
        # Behind a map with another reader, which nothing may be folded into.
        twice = [("Mul IN fa -> m",), ("Add m b -> a",), ("Add a IN -> op",)]
        yield from of(f"{shape} another reader", twice, own, kinds)
        pooled = [("GlobalAveragePool IN -> g",), ("Flatten g -> v",)]
        yield from of(f"{shape} of a vector", [*pooled, ("Mul v fa -> m",), ("Add m b -> a",),
                                               ("Relu a -> op",)], own, ["relu", "images"])
    for operator, inputs in itertools.product(["Sub", "Mean", "Max", "Min"], ["IN rr", "rr IN", "IN IN"]):
        yield from of(f"{operator} {inputs}", [("Relu IN -> rr",), (f"{operator} {inputs} -> op",)], {})


def bounds(of):
    for low, high in itertools.product([-2.0, -1.0, 0.0, 0.25], [-0.5, 0.0, 0.5, 1.0, 6.0]):
        own = {"low": number(low), "high": number(high), "shift": number(0.4), "slope": number(0.7)}
        yield from of(f"{low} {high}", [("Clip IN low high -> op",)], own)
        yield from of(f"{low} {high} shifted", [("Add IN shift -> s",), ("Clip s low high -> op",)], own)
        yield from of(f"{low} {high} line", [("Mul IN slope -> l",), ("Add l shift -> s",),
                                             ("Clip s low high -> op",)], own)
        yield from of(f"{low} {high} max min", [("Max IN low -> s",), ("Min s high -> op",)], own)
        yield from of(f"{low} {high} min max", [("Min IN high -> s",), ("Max low s -> op",)], own)
        yield from of(f"{low} {high} line without bounds", [("Mul IN slope -> l",), ("Add l shift -> s",),
                                                            ("Relu s -> op",)], own)
    for name in ["Selu", "Celu", "ThresholdedRelu", "Softplus", "Softsign", "Tanh", "Abs", "Neg", "Elu"]:
        for alpha in [0.5, 2.0, -1.0]:
            given = {"alpha": alpha} if name in ("Selu", "Celu", "ThresholdedRelu", "Elu") else {}
            yield from of(f"{given}", [(f"{name} IN -> op", given)], {})
    for alpha in [0.5, 1.702, 0.0]:
        yield from of(f"{alpha}", [("Swish IN -> op", {"alpha": alpha})], {})


def pooled(of, whole):
    for operator, axes, keep in itertools.product(
            ["ReduceMean", "ReduceMax", "ReduceSum", "ReduceMin", "ReduceL2"],
            [[2, 3], [-1, -2], [2], [3], [1], [1, 2], [2, 2]], [0, 1]):
        opset = 17 if operator != "ReduceSum" else 11
        yield from of(f"{axes} {keep}", [(f"{operator} IN -> op", {"axes": axes, "keepdims": keep})], {},
                      ["relu", "conv", "last"], opset)
        yield from of(f"{axes} {keep}", [(f"{operator} IN axes -> op", {"keepdims": keep})],
                      {"axes": whole(*axes)}, ["relu", "conv", "last"])
    for size in [[2, 3, 20, 15], [2, 3, 16, 17], [1, 2, 300, 2]]:
        for operator, given in [("GlobalMaxPool", {}), ("ReduceMax", {"axes": [2, 3], "keepdims": 0})]:
            yield from of(f"{size}", [(f"{operator} IN -> op", given)], {}, ["relu"], 17, size)
    for opset in [7, 12, 13]:
        for axis in [None, 1, -1, 2, -3]:
            given = {} if axis is None else {"axis": axis}
            nodes = [("GlobalAveragePool IN -> g",), ("Softmax g -> op", given)]
            yield from of(f"{given} of one pixel", nodes, {}, ["relu", "conv"], opset)


def chosen(of, whole):
    size = [2, 12, 3, 4]
    for indices in [[0, 1, 2], [3, 4, 7, 8], [11, 0], [-1, -2], [2, 2], [12], list(range(12))]:
        for axis in [1, -3, 3, 2]:
            nodes, own = [("Gather IN i -> op", {"axis": axis})], {"i": whole(*indices)}
            yield from of(f"{indices} {axis}", nodes, own, ["relu", "images", "last", "vector"], shape=size)
    yield from of("a number", [("Gather IN i -> op", {"axis": 1})], {"i": np.array(1, np.int64)}, ["relu"],
                  shape=size)
    far = 2 ** 62
    for axes, starts, ends in [([0, 1], [0, 2], [far, 5]), ([0, 1], [0, 2], [2, 5]), ([1, 2], [2, 0], [5, 3]),
                               ([1, 2], [2, 0], [5, 2]), ([2, 3], [0, 0], [far, 4]), ([2, 3], [0, 1], [3, 4]),
                               ([1, 1], [0, 2], [6, 5])]:
        own = {"s": whole(*starts), "e": whole(*ends), "a": whole(*axes)}
        nodes = [("Slice IN s e a -> op",)]
        yield from of(f"{axes} {starts} {ends}", nodes, own, ["relu", "last"], shape=size)
    for start, end, step in [(0, 12, 2), (1, 12, 3), (11, 0, -1), (0, 99, 5)]:
        own = {"s": whole(start), "e": whole(end), "a": whole(1), "k": whole(step)}
        yield from of(f"{start} {end} {step}", [("Slice IN s e a k -> op",)], own, ["relu", "vector"],
                      shape=size)


def upsampled(case, of, whole):
    size = [2, 3, 4, 5]
    for scales in [[1, 1, 2, 2], [1, 1, 3, 2], [1, 1, 1.5, 1], [1, 1, 0.5, 1], [1, 2, 1, 1], [1, 1, 1, 1]]:
        for mode in ["nearest", "linear"]:
            given = {"scales": [float(scale) for scale in scales], "mode": mode}
            yield from of(f"{given}", [("Upsample IN -> op", given)], {}, ["relu", "last", "conv"], 7, size)
            own = {"scales": np.array(scales, np.float32)}
            for operator, opset in [("Upsample", 9), ("Resize", 10)]:
                yield from of(f"{scales} {mode}", [(f"{operator} IN scales -> op", {"mode": mode})], own,
                              ["relu"], opset, size)
    places = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
    roundings = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
    for place, rounding in itertools.product(places, roundings):
        given = {"mode": "nearest", "coordinate_transformation_mode": place, "nearest_mode": rounding}
        for sizes in [[8, 10], [12, 5], [2, 5], [7, 9], [3, 3], [1, 1], [4, 5], [41, 44]]:
            yield from of(f"{given} to {sizes}", [("Resize IN _ _ sizes -> op", given)],
                          {"sizes": whole(2, 3, *sizes)}, ["relu"], shape=size)
        for scales in [[2, 2], [3, 1], [0.5, 1], [1.5, 1.3], [0.3, 0.7]]:
            yield from of(f"{given} by {scales}", [("Resize IN _ scales -> op", given)],
                          {"scales": np.array([1, 1, *scales], np.float32)}, ["relu"], shape=size)
    own = {"two": whole(2), "three": whole(3)}
    floor = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    extents = [("Shape IN -> sh",), ("Slice sh two four -> hw",), ("Mul hw factor -> to",),
               ("Slice sh zero two -> nc",), ("Concat nc to -> sizes", {"axis": 0}),
               ("Resize IN _ _ sizes -> op", floor)]
    yield from of("twice its own size", extents, {**own, "zero": whole(0), "four": whole(4),
                                                  "factor": whole(2, 2)}, ["relu", "conv"], shape=size)


def transposed(case, array):
    """Every way to pad a transposed convolution."""
    size = [2, 4, 8, 7]
    for kernel, stride, auto, target, extra in itertools.product(
            [[2, 3], [3, 3], [4, 4]], [[1, 1], [2, 2], [3, 2]],
            ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"], [None, [16, 14], [17, 15], [9, 8]],
            [None, [1, 0]]):
        given = {"strides": stride, **({"auto_pad": auto} if auto != "NOTSET" else {}),
                 **({"output_shape": target} if target else {}),
                 **({"output_padding": extra} if extra else {})}
        for opset in [7, 11, 22] if target or auto.startswith("SAME") else [22]:
            yield case(f"{kernel} {given}", "ConvTranspose", ["IN", "w"], opset, "relu", size,
                       {"w": array(4, 2, *kernel)}, **given)
