//! Tests of layer files: the example of the documentation, inferred sizes, invalid files.

use super::*;
use crate::ParameterKind;
use crate::ops::{Conv2d, Linear};
use proptest::prelude::*;
use std::path::Path;

const EXAMPLE: &str = include_str!("../../../../docs/examples/small.toml");
const PAGE: &str = include_str!("../../../../docs/layer-file.md");

const HEAD: &str = "name = \"test\"\ninput = [3, 8, 8]\n";

fn layers(layers: &str) -> Result<Graph, LayerFileError> {
    parse(&format!("{HEAD}{}", layers.replace('|', "\n[[layer]]\n").replace("; ", "\n")))
}

fn message(text: &str) -> String {
    layers(text).unwrap_err().to_string()
}

#[test]
fn the_documented_example_is_a_network() {
    let graph = parse(EXAMPLE).unwrap();
    graph.verify().unwrap();
    assert_eq!(graph.name, "small");
    assert_eq!(graph.shape(graph.output), &Shape::vector(10));
    assert_eq!(graph.auxiliary.len(), 1);
    assert_eq!(graph.auxiliary[0].weight, 0.3);
    // Stem 432 + 32, block 2 * 2304 + 64, down 4608 + 64, auxiliary 170, fc 330.
    assert_eq!(graph.trained_parameters(), 464 + 4672 + 4672 + 170 + 330);
    let names: Vec<&str> = graph.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names[..4], ["stem.conv", "stem.norm", "stem.relu", "block.conv1"]);
    assert!(graph.for_inference().nodes.iter().all(|node| !node.name.starts_with("auxiliary")));
}

#[test]
fn resnet9_is_a_network() {
    let graph = parse(include_str!("../../../../docs/examples/resnet9.toml")).unwrap();
    graph.verify().unwrap();
    assert_eq!(graph.shape(graph.output), &Shape::vector(10));
    // Inputs of 3, 64, 128 twice, 128, 256, 512 twice and 512 channels; two parameters per output channel;
    // ten classes.
    let taps = 3 * 64 + 64 * 128 + 2 * 128 * 128 + 128 * 256 + 256 * 512 + 2 * 512 * 512;
    assert_eq!(graph.trained_parameters(), 9 * taps + 2 * (64 + 3 * 128 + 256 + 3 * 512) + 5120);
}

#[test]
fn resnet11_is_a_network() {
    let graph = parse(include_str!("../../../../docs/examples/resnet11.toml")).unwrap();
    graph.verify().unwrap();
    assert_eq!(graph.shape(graph.output), &Shape::vector(10));
    assert_eq!(graph.parameters[0].initialisation, Initialisation::Whitening);
    // Whitened patches have 24 channels of 12 values; stages 128, 256 and 512 with three convolutions and
    // their norms each; ten classes.
    let taps = 24 * 128 + 2 * 128 * 128 + 128 * 256 + 2 * 256 * 256 + 256 * 512 + 2 * 512 * 512;
    let norms = 2 * 3 * (128 + 256 + 512);
    assert_eq!(graph.trained_parameters(), 24 * 12 + 9 * taps + norms + 5120);
    let extents: Vec<usize> =
        ["layer1.pool", "layer2.pool", "layer3.pool", "pool"].map(|name| extent(&graph, name)).to_vec();
    assert_eq!(extents, [16, 8, 4, 1]);
}

#[test]
fn vgg7_is_a_network() {
    let graph = parse(include_str!("../../../../docs/examples/vgg7.toml")).unwrap();
    graph.verify().unwrap();
    assert_eq!(graph.shape(graph.output), &Shape::vector(10));
    // Whitened patches have 24 channels of 12 values; stages 64, 256 and 256 with two convolutions and
    // their norms each; ten classes.
    let taps = 24 * 64 + 64 * 64 + 64 * 256 + 3 * 256 * 256;
    let norms = 2 * 2 * (64 + 256 + 256);
    assert_eq!(graph.trained_parameters(), 24 * 12 + 9 * taps + norms + 2560);
    let extents: Vec<usize> =
        ["layer1.pool", "layer2.pool", "layer3.pool", "pool"].map(|name| extent(&graph, name)).to_vec();
    assert_eq!(extents, [16, 8, 4, 1]);
}

/// The height of a layer's output.
fn extent(graph: &Graph, layer: &str) -> usize {
    let node = graph.nodes.iter().find(|node| node.name == layer).unwrap();
    graph.shape(node.output).as_image().unwrap()[1]
}

#[test]
fn documentation_names_every_operation_and_attribute() {
    for declaration in DECLARATIONS.iter() {
        let row = PAGE.lines().find(|line| line.starts_with(&format!("| `{}` |", declaration.name)));
        let row = row.unwrap_or_else(|| panic!("no row for {}", declaration.name));
        for key in declaration.keys {
            assert!(row.contains(&format!("`{key}`")), "{key} of {}", declaration.name);
        }
    }
    for key in KEYS.iter().chain(LAYER_KEYS) {
        assert!(PAGE.contains(&format!("| `{key}` |")), "{key}");
    }
    assert!(PAGE.contains(&format!("{MAX_FILE_BYTES} bytes")) && PAGE.contains("10,000 layers"));
}

#[test]
fn documentation_lists_the_operations() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/layer-file.md");
    stratus_testing::page::expect_table(&page, &operations_table());
}

#[test]
fn documentation_starts_with_a_network() {
    let (_, block) = PAGE.split_once("```toml\n").unwrap();
    let graph = parse(block.split_once("```").unwrap().0).unwrap();
    assert_eq!(graph.trained_parameters(), 80 + 8 * 26 * 26 * 10 + 10);
}

#[test]
fn sizes_follow_from_the_input() {
    let graph = layers(
        "|name = 'c'; op = 'conv2d'; out_channels = 6; kernel = [3, 5]; padding = [1, 2]; groups = 3; \
         weight_init = 'kaiming_normal'\
         |name = 'n'; op = 'batch_norm2d'; epsilon = 1e-3\
         |name = 'p'; op = 'max_pool2d'; kernel = 2\
         |name = 'f'; op = 'flatten'\
         |name = 'l'; op = 'linear'; out_features = 4; bias_init = { uniform = 0.5 }",
    )
    .unwrap();
    let parameters: Vec<(String, Vec<usize>)> =
        graph.parameters.iter().map(|p| (p.name.clone(), p.shape.clone())).collect();
    assert_eq!(parameters[0], ("c.weight".to_owned(), vec![6, 1, 3, 5]));
    assert_eq!(parameters[2], ("n.weight".to_owned(), vec![6]));
    assert_eq!(parameters[6], ("l.weight".to_owned(), vec![4, 96]));
    assert_eq!(graph.parameters[0].initialisation, Initialisation::kaiming_normal(6 * 15));
    assert_eq!(graph.parameters[7].initialisation, Initialisation::Uniform { bound: 0.5 });
    assert_eq!(graph.parameters.iter().filter(|p| p.kind == ParameterKind::Buffer).count(), 2);
}

#[test]
fn transposed_convolution_has_the_weight_of_its_convolution() {
    let graph = layers(
        "|name = 't'; op = 'conv_transpose2d'; out_channels = 4; kernel = 3; stride = 2; padding = 1; \
         output_padding = [1, 0]; weight_init = 'kaiming_normal'\
         |name = 'd'; op = 'dropout2d'; p = 0.3",
    )
    .unwrap();
    assert_eq!(graph.shape(graph.output), &Shape::image(4, 16, 15));
    assert_eq!(graph.parameters[0].shape, [3, 4, 3, 3]);
    // PyTorch takes the fan-out of the weight as if it were a convolution's.
    assert_eq!(graph.parameters[0].initialisation, Initialisation::kaiming_normal(3 * 9));
    assert_eq!(graph.parameters[1].initialisation, Initialisation::Uniform { bound: 1.0 / 6.0 });
    assert_eq!(parse(&write(&graph).unwrap()).unwrap(), graph);
}

#[test]
fn layers_read_any_earlier_layer() {
    let graph = layers(
        "|name = 'a'; op = 'conv2d'; out_channels = 3; kernel = 1\
         |name = 'b'; op = 'relu'; inputs = 'input'\
         |name = 'sum'; op = 'add'; inputs = ['a', 'b']\
         |name = 'all'; op = 'concat'; inputs = ['sum', 'a', 'input']",
    )
    .unwrap();
    assert_eq!(graph.nodes[1].inputs, [graph.input]);
    assert_eq!(graph.nodes[2].inputs, [graph.nodes[0].output, graph.nodes[1].output]);
    assert_eq!(graph.shape(graph.output), &Shape::image(9, 8, 8));
    let text =
        format!("output = 'a'\n{HEAD}[[layer]]\nname = 'a'\nop = 'relu'\n[[layer]]\nname = 'b'\nop = 'relu'");
    let graph = parse(&text).unwrap();
    assert_eq!(graph.output, graph.nodes[0].output);
}

#[test]
fn resize_accepts_a_size_a_scale_or_another_map() {
    let graph = layers(
        "|name = 'a'; op = 'resize'; size = [5, 3]; align_corners = true\
         |name = 'b'; op = 'resize'; scale = [0.7, 2]\
         |name = 'c'; op = 'resize'; scale = 1.5; inputs = 'input'\
         |name = 'd'; op = 'resize'; inputs = ['c', 'b']",
    )
    .unwrap();
    let shapes: Vec<&Shape> = graph.nodes.iter().map(|node| graph.shape(node.output)).collect();
    let expected = [[5, 3], [3, 6], [12, 12], [3, 6]].map(|[h, w]| Shape::image(3, h, w));
    assert_eq!(shapes, expected.iter().collect::<Vec<_>>());
    let text = write(&graph).unwrap();
    assert!(text.contains("scale = [0.7, 2.0]\n") && text.contains("scale = 1.5\n"), "{text}");
    assert_eq!(parse(&text).unwrap(), graph);
    assert_eq!(
        message("|name = 'a'; op = 'resize'; size = 3; scale = 2"),
        "layer `a`: `scale` must be omitted when `size` is given"
    );
    assert_eq!(
        message("|name = 'a'; op = 'resize'; scale = [2, 0]"),
        "layer `a`: `scale` must be a number > 0, or [vertical, horizontal]"
    );
    assert!(message("|name = 'a'; op = 'resize'").contains("layer `a` (resize): resize without `size`"));
}

#[test]
fn errors_suggest_the_nearest_name() {
    let names: Vec<&str> = operation_names().collect();
    assert!(names.is_sorted() && names.contains(&"conv2d") && names.contains(&"gelu"), "{names:?}");
    let names = names.join(", ");
    assert_eq!(
        message("|name = 'a'; op = 'conv2'"),
        format!("layer `a`: unknown operation `conv2`, did you mean `conv2d`?; available: {names}")
    );
    assert_eq!(
        message("|name = 'a'; op = 'max_pool2d'; kernal = 3"),
        "layer `a`: unknown key `kernal`, did you mean `kernel`?; available: name, op, inputs, \
         auxiliary, weight_init, \
         bias_init, kernel, stride, padding, ceil_mode"
    );
    assert_eq!(
        message("|name = 'first'; op = 'relu'|name = 'b'; op = 'relu'; inputs = ['frist']"),
        "layer `b`: no earlier layer is named `frist`, did you mean `first`?"
    );
    assert_eq!(
        parse("nam = 'a'").unwrap_err().to_string(),
        "layer file: unknown key `nam`, did you mean `name`?; available: name, input, output, layer"
    );
    assert_eq!(message("|op = 'relu'"), "layer 1: `name` is missing");
    assert_eq!(message("|name = 'a'"), "layer `a`: `op` is missing");
    assert_eq!(message("|name = 'a'; op = 'linear'"), "layer `a`: `out_features` is missing");
    assert_eq!(
        message("|name = 'a'; op = 'linear'; out_features = 3"),
        "layer `a` (linear): expected a vector, got 3x8x8; hint: add a flatten layer before it"
    );
    assert_eq!(
        message("|name = 'a'; op = 'relu'|name = 'a'; op = 'relu'"),
        "layer 2: `name` must be unique; `a` is already used"
    );
    assert_eq!(
        message("|name = 'input'; op = 'relu'"),
        "layer 1: `name` must be unique; `input` is already used"
    );
    assert_eq!(
        message("|name = 'a'; op = 'relu'; weight_init = 'zeros'"),
        "network `test`: layer `a` has no parameter `weight` to initialise"
    );
}

/// Initialisations of a convolution's weight that depend on its shape and position.
#[test]
fn rejects_initialisations_that_do_not_suit_the_convolution() {
    let graph = layers(
        "|name = 'a'; op = 'conv2d'; out_channels = 24; kernel = 2; bias = false; weight_init = 'whitening'\
         |name = 'b'; op = 'conv2d'; out_channels = 32; kernel = 3; weight_init = 'dirac'; bias_init = \
         { constant = -1 }",
    )
    .unwrap();
    let initial: Vec<Initialisation> = graph.parameters.iter().map(|p| p.initialisation).collect();
    let bound = 1.0 / ((24 * 9) as f32).sqrt();
    let expected = [
        Initialisation::Whitening,
        Initialisation::Dirac { bound },
        Initialisation::Constant { value: -1.0 },
    ];
    assert_eq!(initial, expected);
    assert_eq!(parse(&write(&graph).unwrap()).unwrap(), graph);

    let whitening = |before: &str, rest: &str| {
        message(&format!("{before}|name = 'c'; op = 'conv2d'; weight_init = 'whitening'; {rest}"))
    };
    let needs = "network `test`: layer `c`: \"whitening\" needs the first, dense convolution with at most \
                 512 inputs per output";
    let right = "kernel = 2; out_channels = 24";
    assert_eq!(
        whitening("", "kernel = 2; out_channels = 12"),
        format!("{needs} (here 12) and 24 output channels")
    );
    assert_eq!(
        whitening("|name = 'r'; op = 'relu'", right),
        format!("{needs} (here 12) and 24 output channels")
    );
    assert_eq!(
        whitening("", "kernel = 2; out_channels = 24; groups = 3"),
        format!("{needs} (here 4) and 8 output channels")
    );
    assert_eq!(
        whitening("", &format!("{right}; dilation = 2")),
        format!("{needs} (here 12) and 24 output channels")
    );
    let wide = "name = 'c'; op = 'conv2d'; weight_init = 'whitening'; kernel = [1, 8]; padding = [0, 90]; \
                out_channels = 48";
    assert!(layers(&format!("|{wide}")).is_ok());
    assert_eq!(
        message(
            "|name = 'a'; op = 'conv2d'; out_channels = 6; kernel = 3; groups = 3; weight_init = 'dirac'"
        ),
        "network `test`: layer `a`: \"dirac\" needs one group, got 3"
    );
    // A builder accepts combinations that a layer file cannot express.
    let conv = Conv2d { bias: true, ..Conv2d::new(3, 24, 2, 1, 0) };
    let linear = Linear { in_features: 3, out_features: 3, bias: true };
    for (op, input, parameter) in
        [(Op::from(conv), Shape::image(3, 8, 8), "bias"), (linear.into(), Shape::vector(3), "weight")]
    {
        let (mut builder, input) = GraphBuilder::new("test", input);
        let error =
            builder.add_with_init("a", op, &[input], &[(parameter, Initialisation::Whitening)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "network `test`: layer `a`: \"dirac\" and \"whitening\" are only for the weight of a convolution"
        );
    }
    for (layer, init) in [
        ("op = 'linear'; out_features = 3; inputs = 'f'; weight_init", "whitening"),
        ("op = 'conv2d'; kernel = 1; out_channels = 3; inputs = 'input'; bias_init", "dirac"),
    ] {
        let text = message(&format!("|name = 'f'; op = 'flatten'|name = 'a'; {layer} = '{init}'"));
        assert!(text.starts_with("layer `a`: `") && text.contains("must be \"zeros\", \"ones\""), "{text}");
    }
}

#[test]
fn rejects_values_of_the_wrong_kind() {
    let conv = "|name = 'a'; op = 'conv2d'; out_channels = 4; kernel = ";
    for kernel in ["0", "-1", "1048577", "'3'", "[3]", "[3, 3, 3]", "[3, 0]", "3.0", "9223372036854775807"] {
        assert_eq!(
            message(&format!("{conv}{kernel}")),
            "layer `a`: `kernel` must be an integer from 1 to 1048576, or [height, width]",
            "{kernel}"
        );
    }
    assert_eq!(message(&format!("{conv}3; bias = 1")), "layer `a`: `bias` must be true or false");
    assert!(
        message(&format!("{conv}3; weight_init = 'xavier'"))
            .starts_with("layer `a`: `weight_init` must be \"zeros\"")
    );
    assert!(
        message(&format!("{conv}3; weight_init = {{ normal = -1 }}")).starts_with("layer `a`: `weight_init`")
    );
    assert_eq!(
        message("|name = 'a b'; op = 'relu'"),
        "layer 1: `name` must be a string of at most 128 letters, digits, `_`, `-` and `.`"
    );
    assert!(message("|name = 'd'; op = 'dropout'; p = 1.0").ends_with("`p` must be in [0, 1), got 1"));
    assert!(message("|name = 'd'; op = 'dropout'; p = nan").ends_with("`p` must be in [0, 1), got NaN"));
    assert!(message("|name = 'd'; op = 'dropout2d'; p = 1").ends_with("`p` must be in [0, 1), got 1"));
    assert_eq!(
        message("|name = 'a'; op = 'relu'; inputs = [1]"),
        "layer `a`: `inputs` must be a list of layer names"
    );
    assert!(message("|name = 'a'; op = 'add'; inputs = []").contains("add: expected 2 inputs, got 0"));
    assert_eq!(
        message("layer = 3"),
        "layer file: `layer` must be an array of tables, one [[layer]] for each layer"
    );
    assert_eq!(message(""), "layer file: `layer` is missing");
    assert!(
        parse("name = ").unwrap_err().to_string().starts_with("invalid TOML: TOML parse error at line 1")
    );
    assert!(message("|name = 'a'; op = 'relu'; auxiliary = 0.5").contains("layer `a` is an output twice"));
}

#[test]
fn rejects_files_that_are_too_large() {
    assert_eq!(
        parse(&" ".repeat(MAX_FILE_BYTES + 1)).unwrap_err().to_string(),
        "layer file too large: 1048577 bytes, at most 1048576"
    );
    let many: String = (0..=MAX_LAYERS).map(|i| format!("|name = 'l{i}'; op = 'relu'")).collect();
    assert_eq!(message(&many), "layer file too large: 10001 layers, at most 10000");
    assert!(
        message("|name = 'a'; op = 'adaptive_avg_pool2d'; output = 1048576")
            .ends_with("the output 3x1048576x1048576 has more than 68719476736 elements")
    );
    assert!(
        message("|name = 'a'; op = 'conv2d'; out_channels = 1048576; kernel = 1048576; padding = 1048576")
            .ends_with("has more than 68719476736 elements")
    );
    assert!(parse(&"[".repeat(100_000)).is_err());
    assert!(parse(&format!("name = {}", "[".repeat(100_000))).is_err());
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![0i64..6, Just(-1), Just(255), Just(1 << 20), Just(1 << 31), Just(i64::MAX), Just(i64::MIN)]
}

prop_compose! {
    fn layer()(
        op in 0..DECLARATIONS.len(),
        numbers in prop::collection::vec(number(), 8),
        from in 0usize..6,
        two in any::<bool>(),
    ) -> String {
        let declaration = &DECLARATIONS[op];
        let mut text = format!("op = '{}'\n", declaration.name);
        for (key, number) in declaration.keys.iter().zip(numbers) {
            let value = match *key {
                // At most one of the two, and none with two inputs.
                "size" | "scale"
                    if declaration.name == "resize" && (two || (number > 5) == (*key == "size")) =>
                {
                    continue;
                }
                "align_corners" | "bias" | "ceil_mode" | "count_include_pad" | "nearest" => {
                    (number % 2 == 0).to_string()
                }
                "p" | "epsilon" | "momentum" | "alpha" | "beta" | "k" | "factor" => {
                    format!("{}e-1", number.clamp(-1, 1 << 31))
                }
                _ => number.to_string(),
            };
            text += &format!("{key} = {value}\n");
        }
        if from > 0 {
            let inputs = format!("'l{}'", from - 1);
            let inputs = if two { format!("[{inputs}, 'input']") } else { inputs };
            text += &format!("inputs = {inputs}\n");
        }
        text
    }
}

proptest! {
    #[test]
    fn parse_never_panics_on_layers(
        layers in prop::collection::vec(layer(), 1..8),
        image in [1usize..9, 1usize..40, 1usize..40],
    ) {
        let mut text = format!("name = 'p'\ninput = {image:?}\n");
        for (position, layer) in layers.iter().enumerate() {
            text += &format!("[[layer]]\nname = 'l{position}'\n{layer}");
        }
        if let Ok(graph) = parse(&text) {
            graph.verify().unwrap();
            graph.for_inference().verify().unwrap();
            prop_assert_eq!(&parse(&write(&graph).unwrap()).unwrap(), &graph);
            prop_assert!(graph.nodes.iter().all(|node| graph.node_flops(node) < u64::MAX));
        }
    }

    #[test]
    fn parse_never_panics_on_text(text in "(name|input|layer|op|[\\[\\]={}'\",\n 0-9a-z.-]){0,80}") {
        let _ = parse(&text);
    }
}
