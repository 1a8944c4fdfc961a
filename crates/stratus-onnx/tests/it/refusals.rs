//! What ONNX can say and layers do not compute is refused by name; what looks alike and is not, too.

use stratus_base::protobuf::Message;
use stratus_onnx::{Imported, Model, Options};

const FLOAT: i64 = 1;
const INT64: i64 = 7;

/// An attribute, its name and type still missing.
fn attribute(name: &str, kind: i64) -> Message {
    Message::default().bytes(1, name.as_bytes()).int(20, kind)
}

pub fn int(name: &str, value: i64) -> Message {
    attribute(name, 2).int(3, value)
}

fn ints(name: &str, values: &[i64]) -> Message {
    values.iter().fold(attribute(name, 7), |message, &value| message.int(8, value))
}

fn text(name: &str, value: &str) -> Message {
    attribute(name, 3).bytes(4, value.as_bytes())
}

fn tensor(name: &str, kind: i64, shape: &[i64], bytes: &[u8]) -> Message {
    let head = shape.iter().fold(Message::default(), |head, &extent| head.int(1, extent));
    head.int(2, kind).bytes(8, name.as_bytes()).bytes(9, bytes)
}

fn floats(name: &str, shape: &[i64], values: &[f32]) -> Message {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    tensor(name, FLOAT, shape, &bytes)
}

fn whole(name: &str, values: &[i64]) -> Message {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    tensor(name, INT64, &[values.len() as i64], &bytes)
}

/// The numbers 1, 2, 3, ….
fn counted(name: &str, shape: &[i64]) -> Message {
    let count = shape.iter().product::<i64>();
    floats(name, shape, &(0..count).map(|i| i as f32 + 1.0).collect::<Vec<_>>())
}

/// A node: `Operator inputs -> output`; an input `_` is left out.
fn node(text: &str, attributes: &[Message]) -> Message {
    let (reads, output) = text.split_once(" -> ").unwrap();
    let mut words = reads.split(' ');
    let operator = words.next().unwrap();
    let inputs =
        words.fold(Message::default(), |node, input| node.bytes(1, input.trim_matches('_').as_bytes()));
    let node = inputs.bytes(2, output.as_bytes()).bytes(3, format!("the_{output}").as_bytes());
    attributes.iter().fold(node.bytes(4, operator.as_bytes()), |node, attribute| node.bytes(5, &attribute.0))
}

struct File {
    opset: i64,
    images: [i64; 4],
    graph: Message,
}

impl File {
    /// Images `x` of three channels of 3x3 pixels.
    fn new(opset: i64) -> Self {
        Self { opset, images: [3, 3, 3, 3], graph: Message::default() }
    }

    fn node(self, text: &str, attributes: &[Message]) -> Self {
        Self { graph: self.graph.bytes(1, &node(text, attributes).0), ..self }
    }

    fn with(self, initialiser: &Message) -> Self {
        Self { graph: self.graph.bytes(5, &initialiser.0), ..self }
    }

    fn sparse(self, values: &Message, indices: &Message, shape: &[i64]) -> Self {
        let sparse = Message::default().bytes(1, &values.0).bytes(2, &indices.0);
        let sparse = shape.iter().fold(sparse, |sparse, &extent| sparse.int(3, extent));
        Self { graph: self.graph.bytes(15, &sparse.0), ..self }
    }

    /// The model's bytes; its output is `y`.
    fn bytes(self) -> Vec<u8> {
        let extent = |shape: Message, &extent: &i64| shape.bytes(1, &Message::default().int(1, extent).0);
        let shape = self.images.iter().fold(Message::default(), extent);
        let kind = Message::default().bytes(1, &Message::default().int(1, FLOAT).bytes(2, &shape.0).0);
        let images = Message::default().bytes(1, b"x").bytes(2, &kind.0);
        let graph = self.graph.bytes(11, &images.0).bytes(12, &Message::default().bytes(1, b"y").0);
        Message::default().bytes(8, &Message::default().int(2, self.opset).0).bytes(7, &graph.0).0
    }

    fn import(self) -> Imported {
        let model = Model::from_bytes("f", self.bytes());
        model.import(&Options::default()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Why it is refused.
    fn problem(self) -> String {
        Model::from_bytes("f", self.bytes()).import(&Options::default()).unwrap_err().problem.to_string()
    }

    #[track_caller]
    fn refused(self, expected: &str) {
        let problem = self.problem();
        assert!(problem.contains(expected), "{problem}");
    }
}

/// The values of a weight.
fn weight<'a>(imported: &'a Imported, name: &str) -> &'a [f32] {
    let tensor = imported.weights.iter().find(|tensor| tensor.name == name);
    match &tensor.unwrap_or_else(|| panic!("{name} of {:?}", imported.weights)).values {
        stratus_weights::Values::F32(values) => values,
        other => panic!("{other:?}"),
    }
}

fn flat(file: File) -> File {
    file.node("Flatten x -> f", &[])
}

#[test]
fn what_layers_make_stays_floating_point() {
    for (to, name) in
        [(6, "INT32"), (7, "INT64"), (9, "BOOL"), (3, "INT8"), (8, "STRING"), (17, "FLOAT8E4M3FN")]
    {
        let file = File::new(17).node("Relu x -> r", &[]).node("Cast r -> c", &[int("to", to)]);
        file.node("Cast c -> d", &[int("to", 1)]).node("Relu d -> y", &[]).refused(&format!(
            "a node cannot be imported:\nCast `the_c`: its `to` is {name}: what layers make stays floating"
        ));
    }
    for (to, notes) in [
        (1, &[][..]),
        (11, &[]),
        (10, &["Cast `the_c` rounds to a shorter type: left out, as layers compute in f32"]),
        (16, &["Cast `the_c` rounds to a shorter type: left out, as layers compute in f32"]),
    ] {
        let file = File::new(17).node("Cast x -> c", &[int("to", to)]).node("Relu c -> y", &[]);
        assert_eq!(file.import().notes, notes, "{to}");
    }
}

#[test]
fn constants_are_cast_as_onnx_has_it() {
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
    cast(5).refused("Cast `the_c`: its `to` is INT16, in which constants are not computed");
}

#[test]
fn numbers_for_each_image_are_no_bias() {
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
    gemm(&[3, 1]).refused("Gemm `the_y`: its `C` has the shape [3, 1], other numbers for each image");
    gemm(&[3, 3]).refused("its `C` has the shape [3, 3], other numbers for each image");
    gemm(&[2]).refused("its bias has 2 values, 3 are wanted");
    let conv = File::new(17).with(&counted("w", &[3, 3, 1, 1])).with(&counted("b", &[3, 1]));
    conv.node("Conv x w b -> y", &[]).refused("its input number 3 has the shape [3, 1]; [3] is wanted");
    let norm = File::new(17).with(&counted("p", &[3])).with(&counted("q", &[1, 3]));
    norm.node("BatchNormalization x p p q p -> y", &[]).refused("input number 4 has the shape [1, 3]; [3]");
}

#[test]
fn constants_of_more_dimensions_are_refused() {
    for operator in ["Mul", "Div", "Add"] {
        for (shape, taken) in
            [(&[][..], true), (&[1], true), (&[1, 1, 1, 1], true), (&[1, 1, 1, 1, 1], false)]
        {
            let file = File::new(17).with(&counted("w", &[3, 3, 1, 1])).with(&counted("c", shape));
            let file = file.node("Conv x w -> a", &[]).node(&format!("{operator} a c -> y"), &[]);
            if taken {
                file.import();
            } else {
                file.refused(&format!("{operator} `the_y`: "));
            }
        }
    }
    // As many numbers as channels, in the place of something else.
    for shape in [&[3][..], &[3, 1], &[3, 1, 1, 1], &[1, 3, 1, 1, 1]] {
        let file = File::new(17).with(&counted("w", &[3, 3, 1, 1])).with(&counted("c", shape));
        let file = file.node("Conv x w -> a", &[]).node("Add a c -> y", &[]);
        file.refused("one for each channel is taken");
    }
    let file = File::new(17).with(&whole("c", &[2])).node("Mul x c -> y", &[]);
    file.refused("it has whole numbers where weights should be");
}

#[test]
fn a_softmax_of_something_else_is_refused() {
    let last = |opset, of: &str, attributes: &[Message]| {
        let file = File::new(opset).node("Relu x -> r", &[]).node("Flatten r -> f", &[]);
        file.node(&format!("Softmax {of} -> y"), attributes)
    };
    for (opset, of, axis) in
        [(9, "f", None), (9, "f", Some(1)), (17, "f", Some(-1)), (17, "r", Some(1)), (17, "r", Some(-3))]
    {
        let attributes: Vec<Message> = axis.map(|axis| int("axis", axis)).into_iter().collect();
        let notes = last(opset, of, &attributes).import().notes;
        assert_eq!(notes, ["the last node, Softmax `the_y`, is left out: the loss has a softmax of its own"]);
    }
    last(17, "f", &[int("axis", 0)]).refused("Softmax `the_y`: its `axis` is 0, of 2 dimensions");
    last(17, "r", &[]).refused("its `axis` is -1, of 4 dimensions in operator set 17");
    // All of channels, height and width.
    last(12, "r", &[]).refused("its `axis` is 1, of 4 dimensions in operator set 12");
    let twice = flat(File::new(17)).node("Softmax f -> s", &[]).node("LogSoftmax s -> y", &[]);
    twice.refused("Softmax `the_s`: only a softmax that is the last node is left out");
}

#[test]
fn what_operators_do_not_have_is_refused_by_name() {
    let relu = || File::new(17).node("Relu x -> r", &[]);
    relu().node("Flatten r -> y", &[int("axis", 1), int("sealed", 7)]).refused(
        "a node cannot be imported:\nFlatten `the_y`: its attribute `sealed` (7) is not known: export it",
    );
    relu().node("Relu r -> y", &[text("mode", "leaky")]).refused("its attribute `mode` (leaky) is not known");
    relu()
        .node("ReduceMean r -> y", &[ints("axes", &[2, 3]), int("noop_with_empty_axes", 1)])
        .refused("its attribute `noop_with_empty_axes` (1) is not one of operator set 17, but of another");
    relu()
        .node("Gelu r -> y", &[])
        .refused("ONNX has it from operator set 20 on, and the model is of set 17");
    relu().node("Relu r x -> y", &[]).refused("it has 2 inputs; in operator set 17 it has at most 1");
    // Also of a softmax that would be left out.
    relu().node("Softmax r -> y", &[int("temperature", 2)]).refused("its attribute `temperature` (2)");
    let shape = relu().with(&whole("s", &[0, -1]));
    shape.node("Reshape r s -> y", &[int("allowzero", 1)]).refused("its `allowzero` is 1");
    let pool = [ints("kernel_shape", &[2, 2]), ints("dilations", &[2, 1])];
    relu().node("MaxPool r -> y", &pool).refused("its `dilations` are [2, 1]; [1, 1] is taken");
    relu().node("MaxPool r -> y", &[ints("kernel_shape", &[])]).refused("it has no `kernel_shape`");
    // Padding that counts, and padding that does not.
    let pads = relu().with(&whole("p", &[0, 0, 1, 0, 0, 0, 0, 0])).node("Pad r p -> q", &[]);
    let pool = [ints("kernel_shape", &[2, 2]), text("auto_pad", "SAME_UPPER")];
    pads.node("AveragePool q -> y", &pool).refused("it counts the zeros padded before it, and not its own");
}

/// What was padded before a pooling belongs to the image: windows that begin in it count, and layers have
/// none.
#[test]
fn windows_that_begin_in_padding_are_counted() {
    let pool = |stride: i64| {
        let pads = File::new(17).node("Relu x -> r", &[]).with(&whole("p", &[0, 0, 0, 0, 0, 0, 0, 2]));
        let window = [ints("kernel_shape", &[1, 2]), ints("strides", &[1, stride]), int("ceil_mode", 1)];
        pads.node("Pad r p -> q", &[]).node("MaxPool q -> y", &window)
    };
    // Five pixels: windows at 0, 2 and 4, of which the last begins behind the image without the padding.
    pool(2).refused("its windows [1, 2] are not those of a pooling that pads both sides alike");
    // At 0 and 3.
    pool(3).refused("its windows [1, 2] are not those of a pooling");
}

#[test]
fn a_batch_is_not_cut_into_another() {
    let reshaped = |batch: i64, shape: &[i64]| {
        let file = File { images: [batch, 3, 3, 3], ..File::new(17) }.node("Relu x -> r", &[]);
        file.with(&whole("s", shape)).node("Reshape r s -> y", &[])
    };
    for (batch, shape) in [(3, [3, -1]), (3, [0, -1]), (3, [-1, 27]), (-1, [1, -1]), (3, [1, 27])] {
        let graph = reshaped(batch, &shape).import().graph;
        assert_eq!(graph.shape(graph.output).0, [27], "{batch} {shape:?}");
    }
    for (batch, shape) in [(3, [9, -1]), (3, [-1, 9]), (-1, [3, -1])] {
        reshaped(batch, &shape).refused("it does not make a vector of 27 features of each image");
    }
}

fn grouped(shape: &[i64], perm: &[i64], back: &[i64]) -> File {
    let file = File { images: [3, 6, 3, 3], ..File::new(17) }.node("Relu x -> r", &[]);
    let file = file.with(&whole("s", shape)).with(&whole("t", back)).node("Reshape r s -> g", &[]);
    file.node("Transpose g -> p", &[ints("perm", perm)]).node("Reshape p t -> y", &[])
}

#[test]
fn channels_are_shuffled_split_and_sliced_alone() {
    let whole_image = [0, 6, 3, 3];
    assert_eq!(
        kinds(grouped(&[0, 2, 3, 3, 3], &[0, 2, 1, 3, 4], &whole_image)),
        ["relu ", "channel_shuffle groups 2"]
    );
    let turn = "it reorders groups of channels to [0, 1, 2, 4, 3]; a shuffle is taken";
    grouped(&[0, 2, 3, 3, 3], &[0, 1, 2, 4, 3], &whole_image).refused(turn);
    grouped(&[0, 2, 3, 3, 3], &[0, 2, 1, 3, 4], &[0, 3, 2, 9]).refused("only a shuffle of channels is taken");
    grouped(&[0, 3, 3, 2, 3], &[0, 2, 1, 3, 4], &whole_image).refused("it does not make a vector");
    let relu = || File { images: [3, 6, 3, 3], ..File::new(17) }.node("Relu x -> r", &[]);
    let reads = relu().with(&whole("s", &[0, 2, 3, 3, 3])).node("Reshape r s -> g", &[]);
    reads
        .node("Relu g -> y", &[])
        .refused("it reads channels in groups: only a shuffle of channels is taken");

    let split = |sizes: &[i64]| {
        let file = relu().with(&whole("s", sizes));
        let both = node("Split r s -> a", &[int("axis", 1)]).bytes(2, b"b");
        let file = File { graph: file.graph.bytes(1, &both.0), ..file };
        file.node("Concat b a -> y", &[int("axis", 1)])
    };
    assert_eq!(
        kinds(split(&[4, 2])),
        ["relu ", "channel_slice 4 from 0", "channel_slice 2 from 4", "concat "]
    );
    split(&[4, 1]).refused("it does not divide its 6 channels into 2 parts");
    let both = File { opset: 18, ..relu().with(&whole("s", &[6])) };
    both.node("Split r s -> y", &[int("axis", 1), int("num_outputs", 1)])
        .refused("it has both `split` and `num_outputs`");
    relu().node("Split r -> y", &[int("axis", 2)]).refused("its axis is 2; channels alone are divided");

    let slice = |start: i64, end: i64, axis: i64, step: i64| {
        let file = relu().with(&whole("i", &[start])).with(&whole("j", &[end])).with(&whole("k", &[axis]));
        file.with(&whole("l", &[step])).node("Slice r i j k l -> y", &[])
    };
    assert_eq!(kinds(slice(1, 4, 1, 1)), ["relu ", "channel_slice 3 from 1"]);
    assert_eq!(kinds(slice(-2, i64::MAX, -3, 1)), ["relu ", "channel_slice 2 from 4"]);
    slice(0, 4, 1, 2).refused("its step is 2; channels one after the other are taken");
    slice(0, 2, 2, 1).refused("its axis is 2; channels alone are divided");
    slice(4, 4, 1, 1).refused("its 0 channels from channel 4 on are not among the 6 of its input");
}

/// The operations of a file's layers, and what each says of itself.
fn kinds(file: File) -> Vec<String> {
    let shown = |node: &stratus_graph::Node| {
        let op = &node.op;
        format!("{} {}", stratus_graph::Operation::kind(op), stratus_graph::Operation::attributes(op))
    };
    file.import().graph.nodes.iter().map(shown).collect()
}

/// Images with their channels moved to the end, as `l`, and what is made of them, `m`, moved back.
fn channels_last(nodes: impl Fn(File) -> File) -> File {
    let perm = |order: &[i64]| [ints("perm", order)];
    let file = File::new(17).node("Relu x -> r", &[]).node("Transpose r -> l", &perm(&[0, 2, 3, 1]));
    nodes(file).node("Transpose m -> y", &perm(&[0, 3, 1, 2]))
}

#[test]
fn layer_norms_are_over_channels_alone() {
    let norm = |attributes: &[Message]| {
        channels_last(|file| {
            let file = file.with(&counted("s", &[3])).with(&counted("b", &[3]));
            file.node("LayerNormalization l s b -> m", attributes)
        })
    };
    let epsilon = attribute("epsilon", 1).float(2, 1e-6);
    assert_eq!(kinds(norm(&[epsilon])), ["relu ", "layer_norm2d epsilon 0.000001"]);
    assert_eq!(kinds(norm(&[int("axis", 3), int("stash_type", 1)])), ["relu ", "layer_norm2d "]);
    norm(&[int("axis", 2)]).refused("its axis is 2: only channels that were moved to the end are normalised");
    norm(&[int("stash_type", 10)]).refused("its `stash_type` is FLOAT16; FLOAT is taken");
    let alone = |inputs: &str| {
        let inputs = inputs.to_owned();
        channels_last(move |file| {
            let file = file.with(&counted("s", &[3])).with(&counted("b", &[1, 3]));
            file.node(&format!("LayerNormalization {inputs} -> m"), &[])
        })
    };
    alone("l s").refused("it has no bias: give it one of zeros");
    alone("l s b").refused("its input number 3 has the shape [1, 3]; [3] is wanted");
    let first = File::new(17).with(&counted("s", &[3])).node("LayerNormalization x s s -> y", &[]);
    first.refused("only channels that were moved to the end are normalised");
}

#[test]
fn products_of_channels_that_come_last_are_linear_layers() {
    let product = |shape: &[i64], bias: &[i64]| {
        channels_last(|file| {
            let file = file.with(&counted("w", shape)).with(&counted("b", bias));
            file.node("MatMul l w -> p", &[]).node("Add p b -> m", &[])
        })
    };
    let imported = product(&[3, 2], &[2]).import();
    let weights: Vec<_> = imported.weights.iter().map(|tensor| (&tensor.shape[..], &tensor.values)).collect();
    let values = |values: &[f32]| stratus_weights::Values::F32(values.to_vec());
    let wanted = [values(&[1.0, 3.0, 5.0, 2.0, 4.0, 6.0]), values(&[1.0, 2.0])];
    assert_eq!(weights, [(&[2, 3][..], &wanted[0]), (&[2], &wanted[1])]);
    product(&[2, 3], &[3]).refused("its weight [3, 2, 1, 1] expects 2 channels, its input 3x3x3 has 3");
    product(&[1, 3, 2], &[2]).refused("its weight 1x3x2 is no matrix");
    product(&[3, 2], &[2, 1]).refused("one for each channel is taken");
}

/// GELU as it is written below operator set 20: its parts in several orders.
#[test]
fn gelu_is_taken_as_a_whole() {
    let gelu = |nodes: &[&str]| {
        let one = |name: &str, value: f32| floats(name, &[], &[value]);
        let root = 2f32.sqrt();
        let numbers = [("root", root), ("inverse", 1.0 / root), ("one", 1.0), ("half", 0.5), ("two", 2.0)];
        let file = numbers.iter().fold(File::new(17), |file, (name, value)| file.with(&one(name, *value)));
        let file = file.node("Relu x -> r", &[]);
        nodes.iter().fold(file, |file, node_| file.node(node_, &[]))
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
    let part = "it reads a part of a GELU";
    for wrong in [
        ["Mul r p -> t", "Mul t two -> y"],
        ["Mul x p -> t", "Mul t half -> y"],
        ["Mul p p -> t", "Mul t half -> y"],
        ["Mul r p -> t", "Relu t -> y"],
        ["Mul r p -> t", "Add t half -> y"],
        ["Div p two -> t", "Mul t r -> y"],
    ] {
        gelu(&[&erf[..], &wrong].concat()).refused(part);
    }
    gelu(&["Div r root -> d", "Erf d -> y"]).refused("its output `y` does not come from any layer");
    gelu(&["Div r two -> d", "Erf d -> y"]).refused("it is not that of a GELU");
    gelu(&["Div r root -> d", "Erf d -> e", "Add e two -> y"]).refused(part);
    gelu(&["Div r root -> d", "Erf d -> e", "Add e r -> y"]).refused(part);
    // Half of `x` whose channels are elsewhere is not the half of what the error function is of.
    let turned = gelu(&["Mul r half -> t"]).node("Transpose r -> l", &[ints("perm", &[0, 2, 3, 1])]);
    let turned = turned.node("Div l root -> d", &[]).node("Erf d -> e", &[]);
    turned.node("Add e one -> p", &[]).node("Mul t p -> y", &[]).refused(part);
}

/// Factors for channels are a layer where a residual sum follows, or nothing could take them over.
#[test]
fn factors_of_channels_are_a_layer_or_folded() {
    let file = |before: &str, behind: &[&str]| {
        let file = File::new(17).with(&counted("w", &[3, 3, 1, 1])).with(&counted("f", &[3, 1, 1]));
        let file = file.with(&counted("b", &[1, 3, 1, 1])).node(before, &[]).node("Mul c f -> m", &[]);
        behind.iter().fold(file, |file, node_| file.node(node_, &[]))
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
    let wanted = stratus_weights::Values::F32(vec![1.0, 2.0, 3.0]);
    assert_eq!(
        (&factors.name[..], &factors.shape[..], &factors.values),
        ("the_m.layer_scale", &[3, 1, 1][..], &wanted)
    );
    // What follows reads itself: looking for the sum comes to an end.
    let itself = node("Dropout m a -> a", &[]).bytes(2, b"y");
    let circle = file("Relu x -> c", &[]);
    File { graph: circle.graph.bytes(1, &itself.0), ..circle }.refused("`a` is read before it is made");
}

#[test]
fn constants_keep_the_dimensions_that_are_not_squeezed() {
    // [1, 3, 1] becomes [3, 1]: numbers for each row, not for each channel.
    let file = |axes: &[i64]| {
        let file = File::new(17).with(&counted("w", &[3, 3, 1, 1])).with(&counted("b", &[1, 3, 1]));
        let file = file.with(&whole("a", axes)).node("Conv x w -> c", &[]).node("Squeeze b a -> s", &[]);
        file.node("Unsqueeze s n -> u", &[]).with(&whole("n", &[0])).node("Add c u -> y", &[])
    };
    file(&[0]).refused("its numbers have the shape [1, 3, 1]; one for each channel is taken");
    file(&[1]).refused("its shape does not hold as many elements as there are");
    let shape = || File::new(17).node("Relu x -> r", &[]).node("Shape r -> s", &[]);
    shape().node("Gather s i -> g", &[int("axis", 1)]).with(&whole("i", &[0])).refused("");
    let file = shape().node("Slice s i j a -> g", &[]).with(&whole("i", &[0])).with(&whole("j", &[1]));
    let file =
        file.with(&whole("a", &[1])).with(&whole("k", &[-1])).node("Concat g k -> t", &[int("axis", 0)]);
    file.node("Reshape r t -> y", &[])
        .refused("Slice `the_g`: its `axes` are not the one dimension of a shape");
}

#[test]
fn sparse_and_filled_weights_are_read() {
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
    for indices in [whole("", &[3, 30]), by_two(&[0, 3, 1, 3])] {
        assert_eq!(weight(&sparse(&indices, &[2, 27]).import(), "the_y.weight"), expected);
    }
    sparse(&whole("", &[3, 54]), &[2, 27]).refused("the sparse tensor `w` has an index outside of its shape");
    sparse(&by_two(&[0, 3, 0, -1]), &[2, 27]).refused("has an index outside of its shape [2, 27]");
    sparse(&whole("", &[3]), &[2, 27]).refused("has 2 values and indices of the shape [1]");
    sparse(&whole("", &[3, 4]), &[1 << 20, 27]).refused("numbers that it does not list one by one");

    let filled = |shape: &[i64], attributes: &[Message]| {
        let file = flat(File::new(17)).with(&whole("s", shape)).node("ConstantOfShape s -> w", attributes);
        file.node("Gemm f w -> y", &[int("transB", 1)])
    };
    let value = |tensor: &Message| attribute("value", 4).bytes(5, &tensor.0);
    assert_eq!(filled(&[2, 27], &[]).import().weights[0].values, stratus_weights::Values::F32(vec![0.0; 54]));
    let quarters = filled(&[1, 27], &[value(&floats("", &[1], &[0.25]))]).import();
    assert_eq!(quarters.weights[0].values, stratus_weights::Values::F32(vec![0.25; 27]));
    filled(&[1, 27], &[value(&floats("", &[2], &[0.25; 2]))]).refused("its `value` has the shape [2]");
    filled(&[1, 27], &[value(&whole("", &[2]))]).refused("whole numbers where weights should be");
    filled(&[1 << 20, 27], &[]).refused("numbers that it does not list one by one");
    filled(&[-1, 27], &[]).refused("its shape has an extent that no tensor has");
}

/// A folder as downloads are kept: the model and its weights are links into a folder of contents.
#[cfg(unix)]
#[test]
fn links_are_followed_into_the_folder_of_the_real_model() {
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
        model.import(&Options::default()).map_err(|error| error.problem.to_string())
    };
    assert_eq!(weight(&linked("../../blobs/1e").unwrap(), "the_y.weight"), [0.5; 27]);
    let dead = linked("../../blobs/2d").unwrap_err();
    assert!(dead.contains("is a link to ../../blobs/2d, which is not there; download"), "{dead}");
    let outside = linked("../../elsewhere").unwrap_err();
    assert!(
        outside.contains("is a link to /") && outside.contains("elsewhere, outside of the model"),
        "{outside}"
    );
    let no_file = linked("../../blobs").unwrap_err();
    assert!(no_file.contains("outside of the model's own folder"), "{no_file}");
}
