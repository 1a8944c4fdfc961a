//! Unsupported operators, attributes and inputs, which are rejected by name, and similar supported ones.

use stratus_base::protobuf::Message;
use stratus_onnx::{ImportOptions, ImportedNetwork, Model};

const FLOAT: i64 = 1;
const INT64: i64 = 7;

/// An attribute without a value.
pub fn attribute(name: &str, kind: i64) -> Message {
    Message::default().bytes(1, name.as_bytes()).int(20, kind)
}

pub fn int(name: &str, value: i64) -> Message {
    attribute(name, 2).int(3, value)
}

pub fn ints(name: &str, values: &[i64]) -> Message {
    values.iter().fold(attribute(name, 7), |message, &value| message.int(8, value))
}

pub fn text(name: &str, value: &str) -> Message {
    attribute(name, 3).bytes(4, value.as_bytes())
}

pub fn tensor(name: &str, kind: i64, shape: &[i64], bytes: &[u8]) -> Message {
    let head = shape.iter().fold(Message::default(), |head, &dim| head.int(1, dim));
    head.int(2, kind).bytes(8, name.as_bytes()).bytes(9, bytes)
}

pub fn floats(name: &str, shape: &[i64], values: &[f32]) -> Message {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    tensor(name, FLOAT, shape, &bytes)
}

pub fn int64s(name: &str, values: &[i64]) -> Message {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    tensor(name, INT64, &[values.len() as i64], &bytes)
}

/// A tensor of 1, 2, 3, ….
pub fn counted(name: &str, shape: &[i64]) -> Message {
    let count = shape.iter().product::<i64>();
    floats(name, shape, &(0..count).map(|i| i as f32 + 1.0).collect::<Vec<_>>())
}

/// A node from `Operator inputs -> output`. An input `_` is omitted.
pub fn node(text: &str, attributes: &[Message]) -> Message {
    let (reads, output) = text.split_once(" -> ").unwrap();
    let mut words = reads.split(' ');
    let operator = words.next().unwrap();
    let inputs =
        words.fold(Message::default(), |node, input| node.bytes(1, input.trim_matches('_').as_bytes()));
    let node = inputs.bytes(2, output.as_bytes()).bytes(3, format!("the_{output}").as_bytes());
    attributes.iter().fold(node.bytes(4, operator.as_bytes()), |node, attribute| node.bytes(5, &attribute.0))
}

pub struct File {
    pub opset: i64,
    pub images: [i64; 4],
    pub graph: Message,
}

impl File {
    /// A model of images `x` with three channels of 3x3 pixels.
    pub fn new(opset: i64) -> Self {
        Self { opset, images: [3, 3, 3, 3], graph: Message::default() }
    }

    pub fn node(self, text: &str, attributes: &[Message]) -> Self {
        Self { graph: self.graph.bytes(1, &node(text, attributes).0), ..self }
    }

    pub fn with(self, initialiser: &Message) -> Self {
        Self { graph: self.graph.bytes(5, &initialiser.0), ..self }
    }

    fn sparse(self, values: &Message, indices: &Message, shape: &[i64]) -> Self {
        let sparse = Message::default().bytes(1, &values.0).bytes(2, &indices.0);
        let sparse = shape.iter().fold(sparse, |sparse, &dim| sparse.int(3, dim));
        Self { graph: self.graph.bytes(15, &sparse.0), ..self }
    }

    /// The bytes of the model, whose output is `y`.
    pub fn bytes(self) -> Vec<u8> {
        let dim = |shape: Message, &dim: &i64| shape.bytes(1, &Message::default().int(1, dim).0);
        let shape = self.images.iter().fold(Message::default(), dim);
        let kind = Message::default().bytes(1, &Message::default().int(1, FLOAT).bytes(2, &shape.0).0);
        let images = Message::default().bytes(1, b"x").bytes(2, &kind.0);
        let graph = self.graph.bytes(11, &images.0).bytes(12, &Message::default().bytes(1, b"y").0);
        Message::default().bytes(8, &Message::default().int(2, self.opset).0).bytes(7, &graph.0).0
    }

    pub fn import(self) -> ImportedNetwork {
        let model = Model::from_bytes("f", self.bytes());
        model.import(&ImportOptions::default()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The message of the error.
    pub fn problem(self) -> String {
        Model::from_bytes("f", self.bytes())
            .import(&ImportOptions::default())
            .unwrap_err()
            .problem
            .to_string()
    }

    #[track_caller]
    pub fn refused(self, expected: &str) {
        let problem = self.problem();
        assert!(problem.contains(expected), "{problem}");
    }
}

/// The values of a weight.
pub fn weight<'a>(imported: &'a ImportedNetwork, name: &str) -> &'a [f32] {
    let tensor = imported.weights.iter().find(|tensor| tensor.name == name);
    match &tensor.unwrap_or_else(|| panic!("{name} of {:?}", imported.weights)).values {
        stratus_weights::Values::F32(values) => values,
        other => panic!("{other:?}"),
    }
}

pub fn flat(file: File) -> File {
    file.node("Flatten x -> f", &[])
}

#[test]
fn rejects_casts_of_layer_outputs_to_other_types() {
    for (to, name) in
        [(6, "INT32"), (7, "INT64"), (9, "BOOL"), (3, "INT8"), (8, "STRING"), (17, "FLOAT8E4M3FN")]
    {
        let file = File::new(17).node("Relu x -> r", &[]).node("Cast r -> c", &[int("to", to)]);
        file.node("Cast c -> d", &[int("to", 1)]).node("Relu d -> y", &[]).refused(&format!(
            "a node cannot be imported:\nCast `the_c`: unsupported cast of a layer output to {name}: remove"
        ));
    }
    for (to, notes) in [
        (1, &[][..]),
        (11, &[]),
        (10, &["ignored Cast `the_c`, which rounds to a narrower type: layers compute in f32"]),
        (16, &["ignored Cast `the_c`, which rounds to a narrower type: layers compute in f32"]),
    ] {
        let file = File::new(17).node("Cast x -> c", &[int("to", to)]).node("Relu c -> y", &[]);
        assert_eq!(file.import().notes, notes, "{to}");
    }
}

#[test]
fn casts_constants_like_onnx() {
    let cast = |to| {
        flat(File::new(17))
            .with(&floats("w", &[1, 27], &[[1.75, -2.5, 0.0].as_slice(), &[300.2; 24]].concat()))
            .node("Cast w -> c", &[int("to", to)])
            .node("Cast c -> v", &[int("to", 1)])
            .node("Gemm f v -> y", &[int("transB", 1)])
    };
    for (to, expected) in [
        (1, [1.75, -2.5, 0.0, 300.2]),
        (6, [1.0, -2.0, 0.0, 300.0]),
        (7, [1.0, -2.0, 0.0, 300.0]),
        (9, [1.0, 1.0, 0.0, 1.0]),
        (10, [1.75, -2.5, 0.0, 300.25]),
        (16, [1.75, -2.5, 0.0, 300.0]),
    ] {
        let imported = cast(to).import();
        let found = &imported.weights.first().unwrap().values;
        let stratus_weights::Values::F32(found) = found else { panic!("{found:?}") };
        assert_eq!(found[..4], expected, "{to}");
    }
    cast(3).refused("Cast `the_c`: its `to` is INT8, which cannot hold 300.2");
    cast(5).refused("Cast `the_c`: unsupported type INT16 of a constant");
}

#[test]
fn rejects_biases_with_one_value_per_image() {
    let gemm = |shape: &[i64]| {
        flat(File::new(17))
            .with(&counted("w", &[3, 27]))
            .with(&counted("c", shape))
            .node("Gemm f w c -> y", &[int("transB", 1)])
    };
    for shape in [&[][..], &[1], &[3], &[1, 1], &[1, 3]] {
        let imported = gemm(shape).import();
        let expected = if shape.contains(&3) { [1.0, 2.0, 3.0] } else { [1.0; 3] };
        assert_eq!(weight(&imported, "the_y.bias"), expected, "{shape:?}");
    }
    gemm(&[3, 1]).refused("Gemm `the_y`: its `C` has the shape [3, 1], expected one value per feature");
    gemm(&[3, 3]).refused("its `C` has the shape [3, 3], expected one value per feature");
    gemm(&[2]).refused("its bias has 2 values, expected 3");
    let conv = File::new(17).with(&counted("w", &[3, 3, 1, 1])).with(&counted("b", &[3, 1]));
    conv.node("Conv x w b -> y", &[]).refused("its input 3 has the shape [3, 1], expected [3]");
    let norm = File::new(17).with(&counted("p", &[3])).with(&counted("q", &[1, 3]));
    norm.node("BatchNormalization x p p q p -> y", &[]).refused("input 4 has the shape [1, 3], expected [3]");
}

#[test]
fn rejects_constants_that_are_not_one_value_per_channel() {
    for operator in ["Mul", "Div", "Add"] {
        for (shape, supported) in
            [(&[][..], true), (&[1], true), (&[1, 1, 1, 1], true), (&[1, 1, 1, 1, 1], false)]
        {
            let file = File::new(17).with(&counted("w", &[3, 3, 1, 1])).with(&counted("c", shape));
            let file = file.node("Conv x w -> a", &[]).node(&format!("{operator} a c -> y"), &[]);
            if supported {
                file.import();
            } else {
                file.refused(&format!("{operator} `the_y`: "));
            }
        }
    }
    // The number of values is that of the channels, but in another dimension.
    for shape in [&[3][..], &[3, 1], &[3, 1, 1, 1], &[1, 3, 1, 1, 1]] {
        let file = File::new(17).with(&counted("w", &[3, 3, 1, 1])).with(&counted("c", shape));
        let file = file.node("Conv x w -> a", &[]).node("Add a c -> y", &[]);
        file.refused("expected one value per channel");
    }
    let file = File::new(17).with(&int64s("c", &[2])).node("Mul x c -> y", &[]);
    file.refused("expected floating-point weights, found integers");
}

#[test]
fn rejects_slopes_that_are_not_one_value_per_channel() {
    let prelu = |shape: &[i64]| File::new(17).with(&counted("s", shape)).node("PRelu x s -> y", &[]);
    for (shape, slopes) in [(&[][..], 1), (&[1], 1), (&[3, 1, 1], 3), (&[1, 3, 1, 1], 3)] {
        assert_eq!(weight(&prelu(shape).import(), "the_y.weight").len(), slopes, "{shape:?}");
    }
    for shape in [&[3][..], &[3, 1], &[3, 3, 3], &[3, 1, 1, 1]] {
        prelu(shape).refused(&format!(
            "PRelu `the_y`: its constant has the shape {shape:?}, expected one value per channel"
        ));
    }
    let last = File::new(17).node("Transpose x -> l", &[ints("perm", &[0, 2, 3, 1])]);
    let flattened = last.node("Flatten l -> f", &[]).with(&counted("s", &[27]));
    flattened
        .node("PRelu f s -> y", &[])
        .refused("PRelu `the_y`: a slope for each channel is not supported after a `Reshape` that flattens");
}

/// Only a default that six digits cannot express may be rounded.
#[test]
fn attributes_of_activations_may_be_rounded_to_six_digits() {
    let read = |operator: &str, alpha: f32| {
        let alpha = attribute("alpha", 1).float(2, alpha);
        let imported = File::new(17).node(&format!("{operator} x -> y"), &[alpha]).import();
        stratus_graph::Operation::attributes(&imported.graph.nodes[0].op)
    };
    for alpha in [1.0 / 6.0, 0.166_667, 0.166_666_6] {
        assert_eq!(read("HardSigmoid", alpha), "", "{alpha}");
    }
    assert_eq!(read("HardSigmoid", 0.1667), "alpha 0.1667");
    assert_eq!([0.01, 0.010_000_5].map(|alpha| read("LeakyRelu", alpha)), ["", "alpha 0.0100005"]);
}

#[test]
fn rejects_a_softmax_over_other_dimensions() {
    let with_softmax = |opset, input: &str, attributes: &[Message]| {
        let file = File::new(opset).node("Relu x -> r", &[]).node("Flatten r -> f", &[]);
        file.node(&format!("Softmax {input} -> y"), attributes)
    };
    for (opset, input, axis) in
        [(9, "f", None), (9, "f", Some(1)), (17, "f", Some(-1)), (17, "r", Some(1)), (17, "r", Some(-3))]
    {
        let attributes: Vec<Message> = axis.map(|axis| int("axis", axis)).into_iter().collect();
        let notes = with_softmax(opset, input, &attributes).import().notes;
        assert_eq!(notes, ["dropped the last node, Softmax `the_y`: the loss includes the softmax"]);
    }
    with_softmax(17, "f", &[int("axis", 0)]).refused("Softmax `the_y`: unsupported `axis` 0 of 2 dimensions");
    with_softmax(17, "r", &[]).refused("unsupported `axis` -1 of 4 dimensions in operator set 17");
    // The softmax is over channels, height and width.
    with_softmax(12, "r", &[]).refused("unsupported `axis` 1 of 4 dimensions in operator set 12");
    let twice = flat(File::new(17)).node("Softmax f -> s", &[]).node("LogSoftmax s -> y", &[]);
    twice.refused("Softmax `the_s`: supported only as the last node");
}

#[test]
fn rejects_unsupported_attributes_and_inputs_by_name() {
    let relu = || File::new(17).node("Relu x -> r", &[]);
    relu()
        .node("Flatten r -> y", &[int("axis", 1), int("sealed", 7)])
        .refused("a node cannot be imported:\nFlatten `the_y`: unknown attribute `sealed` (7): export it");
    relu().node("Relu r -> y", &[text("mode", "leaky")]).refused("unknown attribute `mode` (leaky)");
    relu()
        .node("ReduceMean r -> y", &[ints("axes", &[2, 3]), int("noop_with_empty_axes", 1)])
        .refused("attribute `noop_with_empty_axes` (1) belongs to another operator set than 17");
    relu().node("Gelu r -> y", &[]).refused("needs opset 20, the model uses 17");
    relu().node("Relu r x -> y", &[]).refused("it has 2 inputs, at most 1 in operator set 17");
    // A softmax that would be dropped is checked too.
    relu().node("Softmax r -> y", &[int("temperature", 2)]).refused("unknown attribute `temperature` (2)");
    let shape = relu().with(&int64s("s", &[0, -1]));
    shape.node("Reshape r s -> y", &[int("allowzero", 1)]).refused("an empty tensor (`allowzero` 1)");
    let pool = [ints("kernel_shape", &[2, 2]), ints("dilations", &[2, 1])];
    relu().node("MaxPool r -> y", &pool).refused("unsupported `dilations` [2, 1], expected [1, 1]");
    relu().node("MaxPool r -> y", &[ints("kernel_shape", &[])]).refused("missing `kernel_shape`");
    // The zeros of the Pad count in the mean, but those of the pooling do not.
    let pads = relu().with(&int64s("p", &[0, 0, 1, 0, 0, 0, 0, 0])).node("Pad r p -> q", &[]);
    let pool = [ints("kernel_shape", &[2, 2]), text("auto_pad", "SAME_UPPER")];
    pads.node("AveragePool q -> y", &pool).refused("unsupported `count_include_pad` 0 after Pad");
}

/// A preceding Pad belongs to the image, so windows that begin in it count, but layers drop them.
#[test]
fn rejects_windows_that_begin_in_a_preceding_pad() {
    let pool = |stride: i64| {
        let pads = File::new(17).node("Relu x -> r", &[]).with(&int64s("p", &[0, 0, 0, 0, 0, 0, 0, 2]));
        let window = [ints("kernel_shape", &[1, 2]), ints("strides", &[1, stride]), int("ceil_mode", 1)];
        pads.node("Pad r p -> q", &[]).node("MaxPool q -> y", &window)
    };
    // Five pixels have windows at 0, 2 and 4, the last of which begins after the image without the padding.
    pool(2).refused("is not supported for windows [1, 2], expected symmetric padding");
    // The windows are at 0 and 3.
    pool(3).refused("is not supported for windows [1, 2]");
}

#[test]
fn rejects_reshapes_that_change_the_batch() {
    let reshaped = |batch: i64, shape: &[i64]| {
        let file = File { images: [batch, 3, 3, 3], ..File::new(17) }.node("Relu x -> r", &[]);
        file.with(&int64s("s", shape)).node("Reshape r s -> y", &[])
    };
    for (batch, shape) in [(3, [3, -1]), (3, [0, -1]), (3, [-1, 27]), (-1, [1, -1]), (3, [1, 27])] {
        let graph = reshaped(batch, &shape).import().graph;
        assert_eq!(graph.shape(graph.output).0, [27], "{batch} {shape:?}");
    }
    for (batch, shape) in [(3, [9, -1]), (3, [-1, 9]), (-1, [3, -1])] {
        reshaped(batch, &shape)
            .refused("unsupported shape for images of 3x3x3, expected a vector of 27 features");
    }
}

fn grouped(shape: &[i64], perm: &[i64], back: &[i64]) -> File {
    let file = File { images: [3, 6, 3, 3], ..File::new(17) }.node("Relu x -> r", &[]);
    let file = file.with(&int64s("s", shape)).with(&int64s("t", back)).node("Reshape r s -> g", &[]);
    file.node("Transpose g -> p", &[ints("perm", perm)]).node("Reshape p t -> y", &[])
}

#[test]
fn shuffles_splits_and_slices_only_channels() {
    let whole_image = [0, 6, 3, 3];
    assert_eq!(
        kinds(grouped(&[0, 2, 3, 3, 3], &[0, 2, 1, 3, 4], &whole_image)),
        ["relu ", "channel_shuffle groups 2"]
    );
    let turn = "unsupported `perm` [0, 1, 2, 4, 3] of grouped channels, expected a shuffle";
    grouped(&[0, 2, 3, 3, 3], &[0, 1, 2, 4, 3], &whole_image).refused(turn);
    grouped(&[0, 2, 3, 3, 3], &[0, 2, 1, 3, 4], &[0, 3, 2, 9]).refused("only in a channel shuffle");
    grouped(&[0, 3, 3, 2, 3], &[0, 2, 1, 3, 4], &whole_image).refused("expected a vector");
    let relu = || File { images: [3, 6, 3, 3], ..File::new(17) }.node("Relu x -> r", &[]);
    let reads = relu().with(&int64s("s", &[0, 2, 3, 3, 3])).node("Reshape r s -> g", &[]);
    reads.node("Relu g -> y", &[]).refused("grouped channels are supported only in a channel shuffle");

    let split = |sizes: &[i64]| {
        let file = relu().with(&int64s("s", sizes));
        let both = node("Split r s -> a", &[int("axis", 1)]).bytes(2, b"b");
        let file = File { graph: file.graph.bytes(1, &both.0), ..file };
        file.node("Concat b a -> y", &[int("axis", 1)])
    };
    assert_eq!(
        kinds(split(&[4, 2])),
        ["relu ", "channel_slice 4 from 0", "channel_slice 2 from 4", "concat "]
    );
    split(&[4, 1]).refused("cannot split 6 channels into these 2 parts");
    let both = File { opset: 18, ..relu().with(&int64s("s", &[6])) };
    both.node("Split r s -> y", &[int("axis", 1), int("num_outputs", 1)])
        .refused("`split` and `num_outputs` are mutually exclusive");
    relu().node("Split r -> y", &[int("axis", 2)]).refused("unsupported `axis` 2, expected the channels");

    let slice = |start: i64, end: i64, axis: i64, step: i64| {
        let file = relu().with(&int64s("i", &[start])).with(&int64s("j", &[end])).with(&int64s("k", &[axis]));
        file.with(&int64s("l", &[step])).node("Slice r i j k l -> y", &[])
    };
    assert_eq!(kinds(slice(1, 4, 1, 1)), ["relu ", "channel_slice 3 from 1"]);
    assert_eq!(kinds(slice(-2, i64::MAX, -3, 1)), ["relu ", "channel_slice 2 from 4"]);
    slice(4, 0, 1, -1).refused("unsupported step -1, expected 1 or more");
    assert_eq!(
        kinds(slice(0, 6, 1, 4)),
        ["relu ", "channel_slice 1 from 0", "channel_slice 1 from 4", "concat "]
    );
    slice(0, 2, 2, 1).refused("unsupported `axis` 2, expected the channels");
    slice(4, 4, 1, 1).refused("it selects no channels");
}

/// The kinds and attributes of a file's layers.
pub fn kinds(file: File) -> Vec<String> {
    let described = |node: &stratus_graph::Node| {
        let op = &node.op;
        format!("{} {}", stratus_graph::Operation::kind(op), stratus_graph::Operation::attributes(op))
    };
    file.import().graph.nodes.iter().map(described).collect()
}

/// A model of nodes that read channels-last images `l`, and whose output `m` is transposed back.
fn channels_last(nodes: impl Fn(File) -> File) -> File {
    let perm = |order: &[i64]| [ints("perm", order)];
    let file = File::new(17).node("Relu x -> r", &[]).node("Transpose r -> l", &perm(&[0, 2, 3, 1]));
    nodes(file).node("Transpose m -> y", &perm(&[0, 3, 1, 2]))
}

#[test]
fn imports_layer_norms_only_over_channels() {
    let norm = |attributes: &[Message]| {
        channels_last(|file| {
            let file = file.with(&counted("s", &[3])).with(&counted("b", &[3]));
            file.node("LayerNormalization l s b -> m", attributes)
        })
    };
    let epsilon = attribute("epsilon", 1).float(2, 1e-6);
    assert_eq!(kinds(norm(&[epsilon])), ["relu ", "layer_norm2d epsilon 0.000001"]);
    assert_eq!(kinds(norm(&[int("axis", 3), int("stash_type", 1)])), ["relu ", "layer_norm2d "]);
    norm(&[int("axis", 2)]).refused("unsupported `axis` 2, expected the channels");
    norm(&[int("stash_type", 10)]).refused("unsupported `stash_type` FLOAT16, expected FLOAT");
    let alone = |inputs: &str| {
        let inputs = inputs.to_owned();
        channels_last(move |file| {
            let file = file.with(&counted("s", &[3])).with(&counted("b", &[1, 3]));
            file.node(&format!("LayerNormalization {inputs} -> m"), &[])
        })
    };
    alone("l s").refused("missing bias: add one of zeros");
    alone("l s b").refused("its input 3 has the shape [1, 3], expected [3]");
    let first = File::new(17).with(&counted("s", &[3])).node("LayerNormalization x s s -> y", &[]);
    first.refused("expected the channels of a channels-last image");
}

#[test]
fn imports_products_of_channels_as_pointwise_linear() {
    let product = |shape: &[i64], bias: &[i64]| {
        channels_last(|file| {
            let file = file.with(&counted("w", shape)).with(&counted("b", bias));
            file.node("MatMul l w -> p", &[]).node("Add p b -> m", &[])
        })
    };
    let imported = product(&[3, 2], &[2]).import();
    let weights: Vec<_> = imported.weights.iter().map(|tensor| (&tensor.shape[..], &tensor.values)).collect();
    let values = |values: &[f32]| stratus_weights::Values::F32(values.to_vec());
    let expected = [values(&[1.0, 3.0, 5.0, 2.0, 4.0, 6.0]), values(&[1.0, 2.0])];
    assert_eq!(weights, [(&[2, 3][..], &expected[0]), (&[2], &expected[1])]);
    product(&[2, 3], &[3]).refused("the weight [3, 2, 1, 1] expects 2 channels, but the input 3x3x3 has 3");
    product(&[1, 3, 2], &[2]).refused("its weight 1x3x2 is not a matrix");
    product(&[3, 2], &[2, 1]).refused("expected one value per channel");
}

/// GELU in operator sets below 20, with its parts in several orders.
#[test]
fn imports_complete_gelus_only() {
    let gelu = |nodes: &[&str]| {
        let one = |name: &str, value: f32| floats(name, &[], &[value]);
        let root = 2f32.sqrt();
        let numbers = [("root", root), ("inverse", 1.0 / root), ("one", 1.0), ("half", 0.5), ("two", 2.0)];
        let file = numbers.iter().fold(File::new(17), |file, (name, value)| file.with(&one(name, *value)));
        let file = file.node("Relu x -> r", &[]);
        nodes.iter().fold(file, |file, text| file.node(text, &[]))
    };
    let erf = ["Div r root -> d", "Erf d -> e", "Add e one -> p"];
    for end in [
        ["Mul r p -> t", "Mul t half -> y"],
        ["Mul half p -> t", "Mul t r -> y"],
        ["Mul r half -> t", "Mul t p -> y"],
        ["Mul p r -> t", "Mul half t -> y"],
    ] {
        assert_eq!(kinds(gelu(&[&erf[..], &end].concat())), ["relu ", "gelu "], "{end:?}");
        let beginning = ["Mul inverse r -> d", "Erf d -> e", "Add one e -> p"];
        assert_eq!(kinds(gelu(&[&beginning[..], &end].concat())), ["relu ", "gelu "], "{end:?}");
    }
    let incomplete = "incomplete GELU";
    for wrong in [
        ["Mul r p -> t", "Mul t two -> y"],
        ["Mul x p -> t", "Mul t half -> y"],
        ["Mul p p -> t", "Mul t half -> y"],
        ["Mul r p -> t", "Relu t -> y"],
        ["Mul r p -> t", "Add t half -> y"],
        ["Div p two -> t", "Mul t r -> y"],
    ] {
        gelu(&[&erf[..], &wrong].concat()).refused(incomplete);
    }
    gelu(&["Div r root -> d", "Erf d -> y"]).refused("its output `y` is not the output of a layer");
    gelu(&["Div r two -> d", "Erf d -> y"]).refused("supported only in a GELU");
    gelu(&["Div r root -> d", "Erf d -> e", "Add e two -> y"]).refused(incomplete);
    gelu(&["Div r root -> d", "Erf d -> e", "Add e r -> y"]).refused(incomplete);
    // The factor `x / 2` has another dimension order than the argument of the error function.
    let transposed = gelu(&["Mul r half -> t"]).node("Transpose r -> l", &[ints("perm", &[0, 2, 3, 1])]);
    let transposed = transposed.node("Div l root -> d", &[]).node("Erf d -> e", &[]);
    transposed.node("Add e one -> p", &[]).node("Mul t p -> y", &[]).refused(incomplete);
}

/// Per-channel factors are a layer before a residual sum or if they cannot be folded.
#[test]
fn folds_channel_factors_or_imports_a_layer_scale() {
    let file = |before: &str, after: &[&str]| {
        let file = File::new(17).with(&counted("w", &[3, 3, 1, 1])).with(&counted("f", &[3, 1, 1]));
        let file = file.with(&counted("b", &[1, 3, 1, 1])).node(before, &[]).node("Mul c f -> m", &[]);
        after.iter().fold(file, |file, text| file.node(text, &[]))
    };
    let conv = "Conv x w -> c";
    assert_eq!(kinds(file(conv, &["Relu m -> y"])), ["conv2d 1x1", "relu "]);
    assert_eq!(kinds(file(conv, &["Add m b -> y"])), ["conv2d 1x1"]);
    assert_eq!(kinds(file(conv, &["Add x m -> y"])), ["conv2d 1x1", "layer_scale ", "add "]);
    assert_eq!(
        kinds(file(conv, &["Dropout m -> d", "Add d x -> y"])),
        ["conv2d 1x1", "layer_scale ", "dropout p 0.5", "add "]
    );
    let imported = file("Relu x -> c", &["Relu m -> y"]).import();
    let [factors] = &imported.weights[..] else { panic!("{:?}", imported.weights) };
    let expected = stratus_weights::Values::F32(vec![1.0, 2.0, 3.0]);
    assert_eq!(
        (&factors.name[..], &factors.shape[..], &factors.values),
        ("the_m.layer_scale", &[3, 1, 1][..], &expected)
    );
    // A node that reads itself must not make the search for the sum endless.
    let itself = node("Dropout m a -> a", &[]).bytes(2, b"y");
    let circle = file("Relu x -> c", &[]);
    File { graph: circle.graph.bytes(1, &itself.0), ..circle }.refused("`a` is used before it is defined");
}

#[test]
fn squeezing_constants_keeps_other_dimensions() {
    // [1, 3, 1] becomes [3, 1]: one value per row, not per channel.
    let file = |axes: &[i64]| {
        let file = File::new(17).with(&counted("w", &[3, 3, 1, 1])).with(&counted("b", &[1, 3, 1]));
        let file = file.with(&int64s("a", axes)).node("Conv x w -> c", &[]).node("Squeeze b a -> s", &[]);
        file.node("Unsqueeze s n -> u", &[]).with(&int64s("n", &[0])).node("Add c u -> y", &[])
    };
    file(&[0]).refused("its constant has the shape [1, 3, 1], expected one value per channel");
    file(&[1]).refused("its shape has another number of elements");
    let shape = || File::new(17).node("Relu x -> r", &[]).node("Shape r -> s", &[]);
    shape().node("Gather s i -> g", &[int("axis", 1)]).with(&int64s("i", &[0])).refused("");
    let file = shape().node("Slice s i j a -> g", &[]).with(&int64s("i", &[0])).with(&int64s("j", &[1]));
    let file =
        file.with(&int64s("a", &[1])).with(&int64s("k", &[-1])).node("Concat g k -> t", &[int("axis", 0)]);
    file.node("Reshape r t -> y", &[]).refused("Slice `the_g`: `axes` is out of range for a shape");
}

#[test]
fn imports_sparse_and_filled_weights() {
    let sparse = |indices: &Message, shape: &[i64]| {
        let file = flat(File::new(17)).sparse(&floats("w", &[2], &[0.5, -1.0]), indices, shape);
        file.node("Gemm f w -> y", &[int("transB", 1)])
    };
    let by_two = |values: &[i64]| {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        tensor("", INT64, &[2, 2], &bytes)
    };
    let mut expected = vec![0.0; 54];
    (expected[3], expected[30]) = (0.5, -1.0);
    for indices in [int64s("", &[3, 30]), by_two(&[0, 3, 1, 3])] {
        assert_eq!(weight(&sparse(&indices, &[2, 27]).import(), "the_y.weight"), expected);
    }
    sparse(&int64s("", &[3, 54]), &[2, 27]).refused("sparse tensor `w` has an index outside its shape");
    sparse(&by_two(&[0, 3, 0, -1]), &[2, 27]).refused("has an index outside its shape [2, 27]");
    sparse(&int64s("", &[3]), &[2, 27]).refused("has 2 values, but indices of the shape [1]");
    sparse(&int64s("", &[3, 4]), &[1 << 20, 1 << 20]).refused("`w` needs 4 TiB of memory");

    let filled = |shape: &[i64], attributes: &[Message]| {
        let file = flat(File::new(17)).with(&int64s("s", shape)).node("ConstantOfShape s -> w", attributes);
        file.node("Gemm f w -> y", &[int("transB", 1)])
    };
    let value = |tensor: &Message| attribute("value", 4).bytes(5, &tensor.0);
    assert_eq!(filled(&[2, 27], &[]).import().weights[0].values, stratus_weights::Values::F32(vec![0.0; 54]));
    let quarters = filled(&[1, 27], &[value(&floats("", &[1], &[0.25]))]).import();
    assert_eq!(quarters.weights[0].values, stratus_weights::Values::F32(vec![0.25; 27]));
    filled(&[1, 27], &[value(&floats("", &[2], &[0.25; 2]))]).refused("`value` has the shape [2]");
    filled(&[1, 27], &[value(&int64s("", &[2]))]).refused("expected floating-point weights, found integers");
    filled(&[1 << 20, 1 << 20], &[]).refused("`the_w` needs 4 TiB of memory");
    filled(&[-1, 27], &[]).refused("invalid dimension in its shape");
}

/// In a download cache, the model and its weights are symbolic links into a folder of blobs.
#[cfg(unix)]
#[test]
fn follows_links_only_into_the_folder_of_the_real_model() {
    use std::fs;
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (blobs, named) = (folder.join("blobs"), folder.join("snapshots/revision"));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&named).unwrap();
    let entry = Message::default().bytes(1, b"location").bytes(2, b"model.onnx_data");
    let external = Message::default().int(1, 1).int(1, 27).int(2, FLOAT).bytes(8, b"w").bytes(13, &entry.0);
    let file = flat(File::new(17)).with(&external.int(14, 1)).node("Gemm f w -> y", &[int("transB", 1)]);
    fs::write(blobs.join("0f"), file.bytes()).unwrap();
    let bytes: Vec<u8> = [0.5f32; 27].iter().flat_map(|value| value.to_le_bytes()).collect();
    fs::write(blobs.join("1e"), &bytes).unwrap();
    fs::write(folder.join("elsewhere"), &bytes).unwrap();
    symlink("../../blobs/0f", named.join("model.onnx")).unwrap();
    let linked = |target: &str| {
        let _ = fs::remove_file(named.join("model.onnx_data"));
        symlink(target, named.join("model.onnx_data")).unwrap();
        let model = Model::open(named.join("model.onnx")).unwrap();
        model.import(&ImportOptions::default()).map_err(|error| error.problem.to_string())
    };
    assert_eq!(weight(&linked("../../blobs/1e").unwrap(), "the_y.weight"), [0.5; 27]);
    let dead = linked("../../blobs/2d").unwrap_err();
    assert!(dead.contains("is a broken symbolic link to ../../blobs/2d; download"), "{dead}");
    let outside = linked("../../elsewhere").unwrap_err();
    assert!(
        outside.contains("is a symbolic link to /") && outside.contains("elsewhere, outside the model"),
        "{outside}"
    );
    let no_file = linked("../../blobs").unwrap_err();
    assert!(no_file.contains("outside the model's folder"), "{no_file}");
}
