//! Layers that exporters write in other operators, open sizes of images, and parts of networks.

use crate::refusals::{File, counted, flat, floats, int, int64s, ints, kinds, text, weight};
use std::collections::BTreeMap;
use stratus_base::protobuf::Message;
use stratus_graph::layer_file;
use stratus_onnx::{ImportOptions, ImportedNetwork, Model, write};

fn scalar(name: &str, value: f32) -> Message {
    floats(name, &[], &[value])
}

/// A model whose nodes read `r`, the output of a ReLU.
fn relu(opset: i64) -> File {
    File::new(opset).node("Relu x -> r", &[])
}

#[test]
fn imports_hard_swish_in_every_order() {
    let file = || {
        let file = relu(17).with(&scalar("three", 3.0)).with(&scalar("six", 6.0)).with(&scalar("zero", 0.0));
        file.with(&scalar("sixth", 1.0 / 6.0))
    };
    for shifted in ["Add r three -> s", "Add three r -> s"] {
        for (product, quotient) in [
            ("Mul r c -> m", "Div m six -> y"),
            ("Mul c r -> m", "Mul sixth m -> y"),
            ("Div c six -> m", "Mul m r -> y"),
            ("Mul sixth c -> m", "Mul r m -> y"),
            ("Mul r sixth -> m", "Mul m c -> y"),
        ] {
            let clipped = file().node(shifted, &[]).node("Clip s zero six -> c", &[]);
            assert_eq!(
                kinds(clipped.node(product, &[]).node(quotient, &[])),
                ["relu ", "hard_swish "],
                "{product}"
            );
        }
    }
    // As TensorFlow's converters write ReLU6.
    let floored = file().node("Add r three -> s", &[]).node("Relu s -> f", &[]).node("Min f six -> c", &[]);
    let gated = floored.node("Div c six -> m", &[]).node("Mul r m -> y", &[]);
    assert_eq!(kinds(gated), ["relu ", "hard_swish "]);
    let sigmoid = file().node("Add r three -> s", &[]).node("Clip s zero six -> c", &[]);
    assert_eq!(kinds(sigmoid.node("Div c six -> y", &[])), ["relu ", "hard_sigmoid "]);
    // Of another layer's output it is no gate.
    let other = file().node("Add r three -> s", &[]).node("Clip s zero six -> c", &[]);
    other.node("Sigmoid r -> o", &[]).node("Mul o c -> y", &[]).refused("unsupported product of 3x3x3");
}

#[test]
fn imports_mish_silu_and_other_activations_in_parts() {
    let mish = relu(17).node("Softplus r -> p", &[]).node("Tanh p -> t", &[]).node("Mul r t -> y", &[]);
    assert_eq!(kinds(mish), ["relu ", "mish "]);
    let silu = relu(17).with(&scalar("a", 2.0)).node("Mul r a -> l", &[]).node("Sigmoid l -> g", &[]);
    assert_eq!(
        kinds(silu.node("Mul r g -> y", &[])),
        ["relu ", "scale factor 2", "silu ", "scale factor 0.5"]
    );
    assert_eq!(kinds(relu(17).node("Neg r -> y", &[])), ["relu ", "scale factor -1"]);
    assert_eq!(
        kinds(relu(17).node("Abs r -> y", &[])),
        ["relu ", "relu ", "scale factor -1", "relu ", "add "]
    );
    assert_eq!(
        kinds(relu(17).node("Selu r -> y", &[])),
        ["relu ", "elu alpha 1.6732632", "scale factor 1.050701"]
    );
    relu(17).node("ThresholdedRelu r -> y", &[]).refused("no layer computes this function");
}

#[test]
fn clips_to_any_bounds_around_zero() {
    let clip = |low: f32, high: f32| {
        let file = File::new(17).with(&scalar("low", low)).with(&scalar("high", high));
        file.node("Clip x low high -> y", &[])
    };
    assert_eq!(kinds(clip(0.0, 1.0)), ["hard_sigmoid alpha 1 beta 0"]);
    assert_eq!(kinds(clip(0.0, 4.0)), ["hard_sigmoid alpha 0.25 beta 0", "scale factor 4"]);
    assert_eq!(
        kinds(clip(-1.0, 1.0)),
        [
            "hard_sigmoid alpha 1 beta 0",
            "scale factor -1",
            "hard_sigmoid alpha 1 beta 0",
            "scale factor -1",
            "add "
        ]
    );
    clip(1.0, -1.0).refused("unsupported bounds 1 and -1, expected numbers in order");
    clip(0.0, f32::NAN).refused("expected numbers in order");
    let maximum = File::new(17).with(&scalar("low", 0.5)).node("Max x low -> y", &[]);
    maximum.refused("unsupported bounds 0.5 and inf, expected 0 between them");
    let both = relu(17).node("Sigmoid r -> s", &[]).node("Max r s -> y", &[]);
    assert_eq!(kinds(both), ["relu ", "sigmoid ", "scale factor -1", "add ", "relu ", "add "]);
}

#[test]
fn channel_constants_behind_other_layers_become_a_depthwise_convolution() {
    for shape in [&[3, 1, 1][..], &[1, 3, 1, 1]] {
        let file = || relu(17).with(&counted("f", shape)).with(&counted("b", shape));
        let imported = file().node("Mul r f -> m", &[]).node("Add m b -> y", &[]).import();
        assert_eq!(imported.graph.nodes.len(), 2);
        assert_eq!(weight(&imported, "the_y.weight"), [1.0, 2.0, 3.0]);
        assert_eq!(weight(&imported, "the_y.bias"), [1.0, 2.0, 3.0]);
        let difference = file().node("Sub b r -> y", &[]).import();
        assert_eq!(weight(&difference, "the_y.weight"), [-1.0; 3]);
        let quotient = file().node("Sub r b -> s", &[]).node("Div s f -> y", &[]).import();
        assert_eq!(weight(&quotient, "the_s.weight"), [1.0, 0.5, 1.0 / 3.0]);
        assert_eq!(weight(&quotient, "the_s.bias"), [-1.0; 3]);
    }
    // A vector that was a map of one pixel, but no other vector.
    let pooled = relu(17).with(&counted("b", &[3])).node("GlobalAveragePool r -> g", &[]);
    let imported = pooled.node("Flatten g -> v", &[]).node("Add v b -> y", &[]);
    assert_eq!(kinds(imported), ["relu ", "adaptive_avg_pool2d to 1x1", "conv2d 1x1 groups 3", "flatten "]);
    let vector = flat(File::new(17)).with(&counted("b", &[27])).node("Add f b -> y", &[]);
    vector.refused("its input is a vector, but no output of a linear layer or a batch norm");
    let zero = relu(17).with(&floats("b", &[3, 1, 1], &[1.0, 0.0, 2.0])).node("Div r b -> y", &[]);
    zero.refused("division by zero");
}

#[test]
fn evaluates_arithmetic_of_constants() {
    // gamma / sqrt(variance + epsilon), of the shape [1, 3, 1, 1] by broadcasting.
    let file = File::new(17).with(&floats("v", &[1, 3, 1, 1], &[3.0, 8.0, 15.0])).with(&scalar("e", 1.0));
    let file = file.with(&floats("g", &[3, 1, 1], &[4.0, 6.0, 8.0])).node("Add v e -> s", &[]);
    let file = file.node("Sqrt s -> q", &[]).node("Div g q -> f", &[]).node("Relu x -> r", &[]);
    let imported = file.node("Mul r f -> y", &[]).import();
    assert_eq!(weight(&imported, "the_y.layer_scale"), [2.0; 3]);
    let file = File::new(17).with(&counted("a", &[2])).with(&counted("b", &[3])).node("Mul a b -> c", &[]);
    file.node("Add x c -> y", &[]).refused("of the shapes [2] and [3] cannot be broadcast");
}

#[test]
fn reduces_over_height_and_width() {
    let reduced = |operator: &str, axes: &[i64], keep: i64| {
        relu(13).node(&format!("{operator} r -> y"), &[ints("axes", axes), int("keepdims", keep)])
    };
    assert_eq!(kinds(reduced("ReduceMax", &[2, 3], 1)), ["relu ", "max_pool2d 3x3 stride 3x3"]);
    assert_eq!(kinds(reduced("ReduceMax", &[2], 1)), ["relu ", "max_pool2d 3x1 stride 3x1"]);
    assert_eq!(kinds(reduced("ReduceMean", &[3], 1)), ["relu ", "adaptive_avg_pool2d to 3x1"]);
    reduced("ReduceMean", &[3], 0).refused("unsupported `axes` [3], expected height and width [2, 3]");
    reduced("ReduceMax", &[1], 1).refused("unsupported `axes` [1]");
    reduced("ReduceMin", &[2, 3], 1).refused("means, sums and maxima over height and width are imported");
    let sum = File::new(11).node("Relu x -> r", &[]);
    let sum = sum.node("ReduceSum r -> y", &[ints("axes", &[2, 3]), int("keepdims", 0)]);
    assert_eq!(kinds(sum), ["relu ", "adaptive_avg_pool2d to 1x1", "scale factor 9", "flatten "]);
    // More pixels than a window may have.
    let large = File { images: [1, 3, 20, 30], ..File::new(17) }.node("GlobalMaxPool x -> y", &[]);
    assert_eq!(kinds(large), ["max_pool2d 20x1 stride 20x1", "max_pool2d 1x30 stride 1x30"]);
}

#[test]
fn pools_with_padding_on_one_side() {
    let same = |mode: &str| {
        let attributes = [text("auto_pad", mode), ints("kernel_shape", &[2, 2])];
        relu(17).node("AveragePool r -> y", &attributes)
    };
    let after = "avg_pool2d 2x2 stride 1x1 after 1x1 not counted";
    assert_eq!(kinds(same("SAME_UPPER")), ["relu ", after]);
    let before = "avg_pool2d 2x2 stride 1x1 padding 1x1 after 0x0 not counted";
    assert_eq!(kinds(same("SAME_LOWER")), ["relu ", before]);
    let ceil = [ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2]), int("ceil_mode", 1)];
    relu(17).node("AveragePool r -> y", &ceil).refused("unsupported `ceil_mode` 1");
}

#[test]
fn selects_channels() {
    let gather = |indices: &[i64], axis: i64| {
        let file = File { images: [3, 6, 3, 3], ..File::new(17) }.node("Relu x -> r", &[]);
        file.with(&int64s("i", indices)).node("Gather r i -> y", &[int("axis", axis)])
    };
    assert_eq!(kinds(gather(&[1, 2, 3], 1)), ["relu ", "channel_slice 3 from 1"]);
    assert_eq!(
        kinds(gather(&[-1, 0, 1], -3)),
        ["relu ", "channel_slice 1 from 5", "channel_slice 2 from 0", "concat "]
    );
    gather(&[6], 1).refused("an index is beyond the channels");
    gather(&[0, 1], 2).refused("unsupported `axis` 2, expected the channels");
    // The other axes of a slice may be listed, if they are whole.
    let slice = |ends: &[i64]| {
        let file = File { images: [3, 6, 3, 3], ..File::new(17) }.node("Relu x -> r", &[]);
        let file = file.with(&int64s("i", &[0, 2])).with(&int64s("j", ends)).with(&int64s("k", &[0, 1]));
        file.node("Slice r i j k -> y", &[])
    };
    assert_eq!(kinds(slice(&[i64::MAX, 5])), ["relu ", "channel_slice 3 from 2"]);
    // The batch of the model is 3, but it is open after the import.
    slice(&[3, 5]).refused("expected the channels");
}

#[test]
fn resizes_to_the_nearest_pixels() {
    let scales = |values: &[f32]| floats("s", &[4], values);
    let old = relu(9).with(&scales(&[1.0, 1.0, 2.0, 3.0])).node("Upsample r s -> y", &[]);
    assert_eq!(kinds(old), ["relu ", "resize by 2x3 nearest"]);
    let linear = relu(9).with(&scales(&[1.0, 1.0, 2.0, 2.0]));
    linear.node("Upsample r s -> y", &[text("mode", "linear")]).refused("in an operator set before 11");
    let newer = relu(17).with(&scales(&[1.0, 1.0, 2.0, 2.0])).node("Resize r _ s -> y", &[]);
    assert_eq!(kinds(newer), ["relu ", "resize by 2x2 nearest"]);
    // The nearest pixels of a fractional scale depend on the coordinates.
    let fraction = relu(17).with(&scales(&[1.0, 1.0, 1.4, 1.0])).node("Resize r _ s -> y", &[]);
    fraction.refused("unsupported nearest pixels (half_pixel, round_prefer_floor) from 3x3 to 4x3");
}

#[test]
fn crops_an_odd_pixel_of_transposed_convolutions() {
    let crop = |mode: &str| {
        let attributes = [ints("strides", &[2, 2]), text("auto_pad", mode)];
        let file = relu(17).with(&counted("w", &[3, 1, 3, 3])).node("ConvTranspose r w -> y", &attributes);
        kinds(file)[1].clone()
    };
    assert!(crop("SAME_UPPER").contains("padding"), "{}", crop("SAME_UPPER"));
    assert_ne!(crop("SAME_UPPER"), crop("SAME_LOWER"));
}

#[test]
fn drops_a_softmax_over_a_map_of_one_pixel() {
    let softmax = |opset: i64, attributes: &[Message]| {
        let file = File::new(opset).node("GlobalAveragePool x -> g", &[]);
        file.node("Softmax g -> y", attributes)
    };
    assert_eq!(kinds(softmax(11, &[])), ["adaptive_avg_pool2d to 1x1"]);
    assert_eq!(kinds(softmax(17, &[int("axis", 1)])), ["adaptive_avg_pool2d to 1x1"]);
    // From set 13 on, the default is the last dimension.
    softmax(17, &[]).refused("unsupported `axis` -1 of 4 dimensions");
    File::new(11).node("Softmax x -> y", &[]).refused("is not the output of a layer");
}

/// Imports a model with options, or returns the message of the error.
fn import(file: File, options: &ImportOptions) -> Result<ImportedNetwork, String> {
    Model::from_bytes("f", file.bytes()).import(options).map_err(|error| error.problem.to_string())
}

/// A model of open height and width with a linear layer of `features` behind a pooling to half the size.
fn open(features: i64) -> File {
    let pool = [ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2])];
    let file = File { images: [1, 3, -1, -1], ..File::new(17) }.node("MaxPool x -> p", &pool);
    file.with(&counted("w", &[features, 2])).node("Flatten p -> f", &[]).node("Gemm f w -> y", &[])
}

#[test]
fn finds_the_size_that_a_linear_layer_needs() {
    let found = import(open(3 * 16 * 16), &ImportOptions::default()).unwrap();
    assert_eq!(found.graph.input_shape().0, [3, 32, 32]);
    let note = "its height or width is open: imported for 32x32, which its layers fit (another with --input \
                CHANNELS,HEIGHT,WIDTH)";
    assert_eq!(found.notes, [note]);
    let problem = import(open(3 * 5 * 5), &ImportOptions::default()).unwrap_err();
    assert_eq!(
        problem,
        "its input `x` has dynamic height or width, and its layers fit none of the usual sizes; pass the \
         image size: --input CHANNELS,HEIGHT,WIDTH"
    );
    let given = ImportOptions { input: Some([3, 10, 11]), ..ImportOptions::default() };
    assert_eq!(import(open(3 * 5 * 5), &given).unwrap().graph.input_shape().0, [3, 10, 11]);
    // A problem of another kind is reported as it is.
    let other = File { images: [1, 3, -1, -1], ..File::new(17) }.node("Tan x -> y", &[]);
    assert!(import(other, &ImportOptions::default()).unwrap_err().starts_with("a node cannot be imported:"));
}

#[test]
fn asks_for_the_size_if_any_fits() {
    let file = || {
        let file = File { images: [1, 3, -1, -1], ..File::new(17) }.node("Relu x -> r", &[]);
        file.node("GlobalAveragePool r -> y", &[])
    };
    let problem = import(file(), &ImportOptions::default()).unwrap_err();
    assert!(problem.contains("and it takes images of any size; pass the image size: --input"), "{problem}");
    // The shape of a value in between.
    let dims = [1, 3, 96, 96]
        .iter()
        .fold(Message::default(), |shape, &dim| shape.bytes(1, &Message::default().int(1, dim).0));
    let kind = Message::default().bytes(1, &Message::default().int(1, 1).bytes(2, &dims.0).0);
    let info = Message::default().bytes(1, b"r").bytes(2, &kind.0);
    let recorded = File { graph: file().graph.bytes(13, &info.0), ..file() };
    assert_eq!(import(recorded, &ImportOptions::default()).unwrap().graph.input_shape().0, [3, 96, 96]);
    // The size in the model's metadata.
    let entry = Message::default().bytes(1, b"input_shape").bytes(2, b"[3,48,64]");
    let bytes = [file().bytes(), Message::default().bytes(14, &entry.0).0].concat();
    let found = Model::from_bytes("f", bytes).import(&ImportOptions::default()).unwrap();
    assert_eq!(found.graph.input_shape().0, [3, 48, 64]);
    assert!(found.notes[0].ends_with("imported for 48x64, the size in its metadata"), "{:?}", found.notes);
}

#[test]
fn another_size_than_the_models_is_used_if_its_layers_fit() {
    let options = ImportOptions { input: Some([3, 5, 7]), ..ImportOptions::default() };
    let free = import(relu(17).node("GlobalAveragePool r -> y", &[]), &options).unwrap();
    assert_eq!(free.graph.input_shape().0, [3, 5, 7]);
    assert_eq!(free.notes, ["imported for images of 5x7 instead of 3x3"]);
    let fixed = flat(File::new(17)).with(&counted("w", &[27, 2])).node("Gemm f w -> y", &[]);
    let problem = import(fixed, &options).unwrap_err();
    assert!(problem.contains("Gemm `the_y`"), "{problem}");
    let channels = ImportOptions { input: Some([4, 3, 3]), ..ImportOptions::default() };
    let problem = import(relu(17).node("Neg r -> y", &[]), &channels).unwrap_err();
    assert!(problem.starts_with("its input `x` has channels 3, not 4"), "{problem}");
}

/// A model of open size that takes images of some sizes: those that three poolings divide.
#[test]
fn asks_for_the_size_if_several_fit() {
    let halves = [ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2])];
    let double = floats("s", &[4], &[1.0, 1.0, 64.0, 64.0]);
    let file = (0..6).fold(File { images: [1, 3, -1, -1], ..relu(17) }.with(&double), |file, step| {
        let from = if step == 0 { "r".to_owned() } else { format!("p{step}") };
        file.node(&format!("MaxPool {from} -> p{}", step + 1), &halves)
    });
    let file = file.node("Resize p6 _ s -> u", &[]).node("Add u r -> y", &[]);
    let problem = import(file, &ImportOptions::default()).unwrap_err();
    assert!(problem.contains("and it takes images of several sizes, such as 64 and 128"), "{problem}");
}

#[test]
fn another_size_notes_the_layers_that_keep_theirs() {
    let window = [ints("kernel_shape", &[3, 3]), ints("strides", &[3, 3])];
    let linear = [text("mode", "linear")];
    let file = relu(17).with(&int64s("s", &[3, 3, 3, 3])).node("Resize r _ _ s -> u", &linear);
    let file = || File { images: [3, 3, 3, 3], graph: file.graph.clone(), opset: 17 };
    let file = || file().node("AveragePool r -> a", &window).node("Add u a -> y", &[]);
    let part = |until: &str, size: usize| {
        let until = Some(until.to_owned());
        import(file(), &ImportOptions { input: Some([3, size, size]), until, ..Default::default() }).unwrap()
    };
    assert_eq!(
        part("a", 5).notes[1..],
        ["imported for images of 5x5 instead of 3x3", "`the_a` still reads 3x3 pixels, now of 5x5"]
    );
    assert_eq!(part("u", 5).notes[2..], ["`the_u` still resizes to 3x3"]);
    assert_eq!((part("a", 3).notes.len(), part("u", 3).notes.len()), (1, 1));
}

/// PyTorch's exporters give the weights of an affine instance norm their names, and constants of 1 and 0 to
/// others.
#[test]
fn untrained_weights_of_an_instance_norm_are_known_by_their_names() {
    let norm = |weight: &str, bias: &str| {
        let file = relu(17).with(&floats(weight, &[3], &[1.0; 3])).with(&floats(bias, &[3], &[0.0; 3]));
        file.node(&format!("InstanceNormalization r {weight} {bias} -> y"), &[]).import()
    };
    let affine = norm("norm.weight", "norm.bias");
    assert_eq!(weight(&affine, "norm.weight"), [1.0; 3]);
    assert_eq!(weight(&affine, "norm.bias"), [0.0; 3]);
    assert!(affine.notes.is_empty(), "{:?}", affine.notes);
    let plain = norm("val_1", "val_2");
    assert!(plain.weights.is_empty());
    let note = "imported InstanceNormalization `the_y` without weight and bias, which are 1 and 0";
    assert_eq!(plain.notes, [note]);
}

#[test]
fn the_part_up_to_a_module_ends_with_its_last_node() {
    let file = || {
        let file = relu(17).node("Sigmoid r -> layer4/act/Sigmoid", &[]);
        let file = file.node("Mul r layer4/act/Sigmoid -> layer4/act/Mul", &[]);
        file.node("Tan layer4/act/Mul -> y", &[])
    };
    for module in ["the_layer4.act", "the_layer4"] {
        let options = ImportOptions { until: Some(module.to_owned()), ..ImportOptions::default() };
        let part = import(file(), &options).unwrap();
        let last = part.graph.nodes.last().unwrap();
        assert_eq!(stratus_graph::Operation::kind(&last.op), "silu", "{module}");
    }
}

#[test]
fn imports_the_part_up_to_a_node() {
    let file = || {
        let file = relu(17).node("GlobalAveragePool r -> g", &[]).node("Sigmoid r -> s", &[]);
        let file = file.node("Tan s -> y", &[]);
        File { graph: file.graph.bytes(12, &Message::default().bytes(1, b"g").0), ..file }
    };
    let problem = import(file(), &ImportOptions::default()).unwrap_err();
    assert_eq!(
        problem,
        "expected one output, found 2 (g, y), all computed from `the_r`; import one of them, or the layers \
         before them, with --until NODE"
    );
    for until in ["the_r", "r"] {
        let options = ImportOptions { until: Some(until.to_owned()), ..ImportOptions::default() };
        let part = import(file(), &options).unwrap();
        assert_eq!(part.graph.nodes.len(), 1);
        assert_eq!(part.notes, ["imported up to Relu `the_r`, dropped 3 nodes, with the outputs g, y"]);
    }
    let until = |name: &str| ImportOptions { until: Some(name.to_owned()), ..ImportOptions::default() };
    let problem = import(file(), &until("y")).unwrap_err();
    assert!(
        problem.ends_with("import the layers before them with --until NODE: `the_s`, `the_r`"),
        "{problem}"
    );
    let problem = import(file(), &until("layer4")).unwrap_err();
    assert!(problem.starts_with("no node is named `layer4`; name a node or its output"), "{problem}");
}

/// The layers that `stratus model import --until` suggests.
#[test]
fn layer_file_of_a_part_takes_a_head() {
    let file = relu(17).node("GlobalAveragePool r -> g", &[]).node("Tan g -> y", &[]);
    let options = ImportOptions { until: Some("the_r".to_owned()), ..ImportOptions::default() };
    let written = layer_file::write(&import(file, &options).unwrap().graph).unwrap();
    let head = "\n[[layer]]\nname = \"pool\"\nop = \"adaptive_avg_pool2d\"\noutput = 1\n\n\
                [[layer]]\nname = \"flatten\"\nop = \"flatten\"\n\n\
                [[layer]]\nname = \"fc\"\nop = \"linear\"\nout_features = 10\n";
    let graph = layer_file::parse(&(written + head)).unwrap();
    assert_eq!(graph.nodes.len(), 4);
    assert_eq!(graph.shape(graph.output).0, [10]);
}

#[test]
fn nearest_resizing_and_padding_on_one_side_survive_a_round_trip() {
    let text = "name = 'network'\ninput = [2, 4, 5]\n\
                [[layer]]\nname = 'up'\nop = 'resize'\nscale = 2\nnearest = true\n\
                [[layer]]\nname = 'to'\nop = 'resize'\nsize = [4, 20]\nnearest = true\n\
                [[layer]]\nname = 'pool'\nop = 'avg_pool2d'\nkernel = 2\nstride = 1\npadding_after = 1\n\
                count_include_pad = false\n\
                [[layer]]\nname = 'flatten'\nop = 'flatten'\n";
    let graph = layer_file::parse(text).unwrap();
    let mut bytes = Vec::new();
    write(&mut bytes, &graph, &[], &BTreeMap::new()).unwrap();
    let again = Model::from_bytes("f", bytes).import(&ImportOptions::default()).unwrap();
    assert_eq!(again.graph.nodes, graph.nodes);
}
