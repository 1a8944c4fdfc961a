"""Small networks as the converters of Keras, TensorFlow, PaddlePaddle, Darknet and Caffe write them, made by
onnx.helper for scripts/check-onnx-exporters.py: the operators and attributes of their files, with few layers.
"""
import numpy as np
from onnx import TensorProto, helper, numpy_helper

CLASSES = 10


class Writer:
    """A graph that grows node by node; each method returns the name of its output."""

    def __init__(self, opset, channels=3, last=False, seed=7):
        self.nodes, self.tensors, self.random = [], [], np.random.default_rng(seed)
        self.opset, self.channels, self.last = opset, channels, last

    def tensor(self, values):
        name = f"w{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def ints(self, *values):
        return self.tensor(np.array(values, np.int64))

    def number(self, value, *shape):
        return self.tensor(np.full(shape, value, np.float32))

    def normal(self, *shape, mean=0.0, deviation=1.0):
        return self.tensor((mean + deviation * self.random.standard_normal(shape)).astype(np.float32))

    def node(self, operator, *inputs, outputs=1, **attributes):
        made = [f"{operator.lower()}_{len(self.nodes)}_{index}" for index in range(outputs)]
        name = f"model/{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), made, name, **attributes))
        return made[0] if outputs == 1 else made

    def conv(self, x, channels, out, kernel=3, stride=1, groups=1, bias=False, **attributes):
        per = channels // groups
        deviation = (2 / (per * kernel * kernel)) ** 0.5
        weight = self.normal(out, per, kernel, kernel, deviation=deviation)
        if not attributes:
            side = kernel // 2
            attributes = {"pads": [side] * 4}
        inputs = [x, weight] + ([self.normal(out, deviation=0.1)] if bias else [])
        return self.node("Conv", *inputs, kernel_shape=[kernel, kernel], strides=[stride, stride],
                         group=groups, **attributes)

    def batch_norm(self, x, channels):
        return self.node("BatchNormalization", x, self.normal(channels, mean=1, deviation=0.2),
                         self.normal(channels, deviation=0.2), self.normal(channels, deviation=0.2),
                         self.tensor(self.random.uniform(0.5, 2, channels).astype(np.float32)))

    def norm(self, x, channels, shape):
        """A batch norm that was written as a product and a sum."""
        scale = self.random.uniform(0.7, 1.3, channels).astype(np.float32).reshape(shape)
        shift = self.random.uniform(-0.3, 0.3, channels).astype(np.float32).reshape(shape)
        return self.node("Add", self.node("Mul", x, self.tensor(scale)), self.tensor(shift))

    def hard_swish(self, x, style):
        six, three = self.number(6), self.number(3)
        if style == "operator":
            return self.node("HardSwish", x)
        if style == "sigmoid":
            return self.node("Mul", x, self.node("HardSigmoid", x, alpha=1 / 6, beta=0.5))
        clipped = self.node("Clip", self.node("Add", x, three), self.number(0), six)
        if style == "paddle":
            return self.node("Div", self.node("Mul", x, clipped), six)
        if style == "keras":
            return self.node("Mul", x, self.node("Mul", clipped, self.number(1 / 6)))
        if style == "relu":
            relu = self.node("Min", self.node("Relu", self.node("Add", x, three)), six)
            return self.node("Mul", self.node("Div", relu, six), x)
        raise ValueError(style)

    def gemm(self, x, features, out=CLASSES):
        return self.node("Gemm", x, self.normal(features, out, deviation=features ** -0.5),
                         self.normal(out, deviation=0.1))

    def dense(self, x, features, out=CLASSES):
        product = self.node("MatMul", x, self.normal(features, out, deviation=features ** -0.5))
        return self.node("Add", product, self.normal(out, deviation=0.1))

    def squeeze_excite(self, x, channels, style):
        squeezed = max(channels // 4, 2)
        if style == "keras":
            pooled = self.node("ReduceMean", x, axes=[2, 3], keepdims=1)
        else:
            pooled = self.node("GlobalAveragePool", x)
        hidden = self.node("Relu", self.conv(pooled, channels, squeezed, 1, bias=True))
        gate = self.conv(hidden, squeezed, channels, 1, bias=True)
        if style == "paddle":
            gate = self.node("HardSigmoid", gate, alpha=0.2, beta=0.5)
        elif style == "keras":
            gate = self.node("Clip", self.node("Add", gate, self.number(3)), self.number(0), self.number(6))
            gate = self.node("Mul", gate, self.number(1 / 6))
        else:
            gate = self.node("Sigmoid", gate)
        return self.node("Mul", x, gate)

    def model(self, output, height=32, width=32):
        shape = [None, height, width, self.channels] if self.last else [None, self.channels, height, width]
        shape[0] = "batch"
        graph = helper.make_graph(
            self.nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)], self.tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)


def pp_lcnet(style="paddle"):
    w = Writer(11)
    x = w.hard_swish(w.batch_norm(w.conv("x", 3, 8, 3, 2), 8), style)
    for index, (channels, out, stride) in enumerate([(8, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2)]):
        x = w.hard_swish(w.batch_norm(w.conv(x, channels, channels, 3, stride, channels), channels), style)
        if index > 1:
            x = w.squeeze_excite(x, channels, "paddle")
        x = w.hard_swish(w.batch_norm(w.conv(x, channels, out, 1), out), style)
    x = w.node("GlobalAveragePool", x)
    x = w.hard_swish(w.conv(x, 64, 96, 1), style)
    x = w.node("Flatten", x, axis=1)
    return w.model(w.node("Softmax", w.dense(x, 96), axis=-1 if w.opset >= 13 else 1))


def mobilenet_v3(style, opset=13):
    """Keras's, with batch norms as products and sums, heads of means, channels last outside."""
    w = Writer(opset, last=True)
    x = w.node("Transpose", "x", perm=[0, 3, 1, 2])
    x = w.node("Sub", w.node("Mul", x, w.number(1 / 127.5)), w.number(1))
    x = w.hard_swish(w.norm(w.conv(x, 3, 16, 3, 2, auto_pad="SAME_UPPER"), 16, [1, 16, 1, 1]), style)
    for channels, out, stride, is_hard in [(16, 16, 1, False), (16, 24, 2, False), (24, 40, 2, True)]:
        def active(value):
            return w.hard_swish(value, style) if is_hard else w.node("Relu", value)
        y = active(w.norm(w.conv(x, channels, 2 * channels, 1), 2 * channels, [1, 2 * channels, 1, 1]))
        y = active(w.norm(w.conv(y, 2 * channels, 2 * channels, 3, stride, 2 * channels,
                                 auto_pad="SAME_UPPER"), 2 * channels, [1, 2 * channels, 1, 1]))
        y = w.squeeze_excite(y, 2 * channels, "keras")
        y = w.norm(w.conv(y, 2 * channels, out, 1), out, [1, out, 1, 1])
        x = w.node("Add", x, y) if stride == 1 and channels == out else y
    x = w.node("ReduceMean", x, axes=[2, 3], keepdims=0)
    return w.model(w.node("Softmax", w.dense(x, 40), axis=-1))


def densenet(shape):
    """Batch norms before the convolutions, as products and sums, which nothing takes over."""
    w = Writer(13)
    x, channels = w.conv("x", 3, 16), 16
    for block in range(2):
        for _ in range(2):
            shaped = [1, channels, 1, 1] if shape == 4 else [channels, 1, 1]
            y = w.node("Relu", w.norm(x, channels, shaped))
            x, channels = w.node("Concat", x, w.conv(y, channels, 8), axis=1), channels + 8
        y = w.node("Relu", w.norm(x, channels, [channels, 1, 1]))
        x = w.node("AveragePool", w.conv(y, channels, 16, 1), kernel_shape=[2, 2], strides=[2, 2])
        channels = 16
    x = w.node("ReduceMean", w.node("Relu", w.norm(x, 16, [16, 1, 1])), axes=[2, 3], keepdims=0)
    return w.model(w.gemm(x, 16))


def unfused_norms(opset=13):
    """TensorFlow's batch norm as it is computed: gamma / sqrt(variance + epsilon)."""
    w = Writer(opset)
    x, channels = "x", 3
    for out in [16, 32]:
        x = w.conv(x, channels, out, 3, 2)
        variance = w.tensor(w.random.uniform(0.5, 2, [1, out, 1, 1]).astype(np.float32))
        root = w.node("Sqrt", w.node("Add", variance, w.number(1e-3)))
        scale = w.node("Mul", w.node("Reciprocal", root), w.normal(1, out, 1, 1, mean=1, deviation=0.2))
        shift = w.node("Sub", w.normal(1, out, 1, 1, deviation=0.1),
                       w.node("Mul", w.normal(1, out, 1, 1, deviation=0.1), scale))
        x = w.node("Relu", w.node("Add", w.node("Mul", x, scale), shift))
        channels = out
    x = w.node("Squeeze", w.node("ReduceMean", x, axes=[2, 3], keepdims=1), w.ints(2, 3))
    return w.model(w.dense(x, 32))


def inception_same():
    """Keras's pooling with an odd pixel of padding at the end."""
    w = Writer(12)
    x = w.node("Relu", w.conv("x", 3, 16, 3, 2, auto_pad="SAME_UPPER", bias=True))
    x = w.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER")
    a = w.node("AveragePool", x, kernel_shape=[3, 3], strides=[1, 1], auto_pad="SAME_UPPER")
    b = w.node("AveragePool", x, kernel_shape=[2, 2], strides=[1, 1], auto_pad="SAME_UPPER")
    c = w.node("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    x = w.node("Concat", a, b, c, w.conv(x, 16, 16, 1), axis=1)
    x = w.node("GlobalMaxPool", w.node("Elu", w.conv(x, 64, 32, 3, 2), alpha=1.0))
    return w.model(w.gemm(w.node("Flatten", x), 32))


def darknet(opset, mish):
    w = Writer(opset)

    def layer(x, channels, out, kernel=3, stride=1):
        x = w.batch_norm(w.conv(x, channels, out, kernel, stride), out)
        if mish:
            return w.node("Mul", x, w.node("Tanh", w.node("Softplus", x)))
        return w.node("LeakyRelu", x, alpha=0.1)
    x = layer(layer("x", 3, 8), 8, 16, 3, 2)
    y = layer(layer(x, 16, 8, 1), 8, 16)
    x = w.node("Add", x, y)
    low = layer(x, 16, 32, 3, 2)
    if opset < 9:
        up = w.node("Upsample", low, mode="nearest", scales=[1.0, 1.0, 2.0, 2.0])
    elif opset == 9:
        up = w.node("Upsample", low, w.tensor(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
    else:
        up = w.node("Resize", low, w.tensor(np.array([], np.float32)),
                    w.tensor(np.array([1, 1, 2, 2], np.float32)), mode="nearest", nearest_mode="floor",
                    coordinate_transformation_mode="asymmetric")
    x = layer(w.node("Concat", up, x, axis=1), 48, 16)
    x = w.conv(x, 16, CLASSES, 1, bias=True)
    return w.model(w.node("Flatten", w.node("GlobalAveragePool", x)))


def shuffled(gathered):
    """Channels that are split by Slice or selected by Gather, and shuffled."""
    w = Writer(11)
    x = w.node("Relu", w.conv("x", 3, 16, 3, 2, bias=True))
    if gathered:
        a = w.node("Gather", x, w.ints(*range(8)), axis=1)
        b = w.node("Gather", x, w.ints(*range(8, 16)), axis=1)
    else:
        a = w.node("Slice", x, w.ints(0), w.ints(8), w.ints(1))
        b = w.node("Slice", x, w.ints(8), w.ints(2 ** 31 - 1), w.ints(1))
    b = w.node("Relu", w.conv(b, 8, 8, 3, groups=8, bias=True))
    x = w.node("Concat", a, b, axis=1)
    x = w.node("Reshape", x, w.ints(-1, 2, 8, 16, 16))
    x = w.node("Reshape", w.node("Transpose", x, perm=[0, 2, 1, 3, 4]), w.ints(-1, 16, 16, 16))
    x = w.node("GlobalAveragePool", x)
    return w.model(w.gemm(w.node("Reshape", x, w.ints(-1, 16)), 16))


def unet(nearest):
    """A segmentation network with transposed convolutions or nearest resizing."""
    w = Writer(13)
    a = w.node("Relu", w.conv("x", 3, 8, bias=True))
    b = w.node("Relu", w.conv(w.node("MaxPool", a, kernel_shape=[2, 2], strides=[2, 2]), 8, 16, bias=True))
    if nearest:
        shape = w.node("Slice", w.node("Shape", b), w.ints(2), w.ints(4))
        sizes = w.node("Concat", w.node("Slice", w.node("Shape", b), w.ints(0), w.ints(2)),
                       w.node("Mul", shape, w.ints(2, 2)), axis=0)
        up = w.node("Resize", b, "", "", sizes, mode="nearest", coordinate_transformation_mode="asymmetric",
                    nearest_mode="floor")
        up = w.conv(up, 16, 8, 1, bias=True)
    else:
        up = w.node("ConvTranspose", b, w.normal(16, 8, 3, 3, deviation=0.1), w.normal(8), strides=[2, 2],
                    kernel_shape=[3, 3], auto_pad="SAME_UPPER")
    x = w.node("PRelu", w.node("Concat", a, up, axis=1), w.normal(16, 1, 1, mean=0.2, deviation=0.05))
    return w.model(w.conv(x, 16, CLASSES, 1, bias=True))


def face(opset=9):
    """A batch norm of a vector as a product and a sum, and PReLU: face recognition in MXNet and Caffe."""
    w = Writer(opset)
    x = w.node("Div", w.node("Sub", "x", w.number(127.5)), w.number(128))
    x = w.conv(x, 3, 16, 3, 2)
    x = w.node("PRelu", w.batch_norm(x, 16), w.normal(16, 1, 1, mean=0.25, deviation=0.05))
    x = w.batch_norm(w.conv(x, 16, 32, 3, 2), 32)
    x = w.node("Relu", x)
    x = w.node("Flatten", w.node("GlobalAveragePool", x))
    x = w.norm(x, 32, [1, 32])
    return w.model(w.gemm(x, 32))


def caffe():
    """Softmax over a map of one pixel, and local response normalisation, in operator set 7."""
    w = Writer(7)
    x = w.node("Relu", w.conv("x", 3, 16, 5, 2, bias=True))
    x = w.node("LRN", w.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2]), size=5, alpha=1e-4)
    a, b = w.node("Split", x, axis=1, split=[8, 8], outputs=2)
    x = w.node("Sum", w.node("Relu", a), w.node("Abs", b))
    x = w.node("GlobalAveragePool", w.conv(x, 8, CLASSES, 1, bias=True))
    return w.model(w.node("Softmax", x))


def activations():
    w = Writer(14)
    x = w.conv("x", 3, 8, 3, 2, bias=True)
    for operator, given in [("Selu", {}), ("Celu", {"alpha": 2.0}), ("Tanh", {}), ("Softplus", {}),
                            ("HardSigmoid", {}), ("Elu", {"alpha": 0.5}), ("HardSwish", {}),
                            ("HardSigmoid", {"alpha": 0.3, "beta": 0.4})]:
        x = w.node(operator, w.conv(x, 8, 8, 3, bias=True), **given)
    x = w.node("Clip", w.node("Neg", x), w.number(-1), w.number(1))
    x = w.node("Max", x, w.conv("x", 3, 8, 3, 2, bias=True))
    return w.model(w.gemm(w.node("Flatten", w.node("GlobalMaxPool", x)), 8))


def networks():
    yield from ((f"pp_lcnet_{style}", pp_lcnet(style)) for style in ["paddle", "relu"])
    yield from ((f"keras_mobilenet_v3_{style}", mobilenet_v3(style))
                for style in ["sigmoid", "paddle", "keras", "relu"])
    yield "keras_mobilenet_v3_operator", mobilenet_v3("operator", 14)
    yield from ((f"densenet_affine_{shape}", densenet(shape)) for shape in [3, 4])
    yield "tensorflow_unfused_norms", unfused_norms()
    yield "keras_inception_same", inception_same()
    yield from ((f"darknet_set_{opset}", darknet(opset, False)) for opset in [8, 9, 11])
    yield "darknet_mish", darknet(11, True)
    yield from ((f"shufflenet_{name}", shuffled(name == "gather")) for name in ["slice", "gather"])
    yield from ((f"unet_{name}", unet(name == "nearest")) for name in ["nearest", "transposed"])
    yield "mxnet_face", face()
    yield "caffe_set_7", caffe()
    yield "activations", activations()
