//! Tests of all networks: comparison with torchvision, and common properties.

use super::*;
use crate::{Operation, ParameterKind};

#[test]
fn find_suggests_the_nearest_name() {
    let message = find("digts").unwrap_err().to_string();
    assert!(
        message.starts_with("unknown network `digts`, did you mean `digits`?; available: digits, alexnet,")
    );
    let message = find("resnet81").unwrap_err().to_string();
    assert!(message.contains("did you mean `resnet18`?"), "{message}");
    let message = find("transformer").unwrap_err().to_string();
    assert!(message.starts_with("unknown network `transformer`; available: digits, "), "{message}");
}

#[test]
fn every_network_builds_with_its_defaults() {
    for network in NETWORKS {
        let graph = (network.build)(&(network.defaults)()).unwrap();
        graph.verify().unwrap();
        assert_eq!(graph.name, network.name);
        graph.for_inference().verify().unwrap();
        assert_eq!(NETWORKS.iter().filter(|other| other.name == network.name).count(), 1);
    }
}

/// A number in the header of a file of `scripts/fixtures/torchvision_keys.py`.
fn heading(text: &str, key: &str) -> u64 {
    header_field(text, key).unwrap().parse().unwrap()
}

fn header_field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(&format!("# {key} ")))
}

fn same_as_torchvision(name: &str, text: &str) {
    let network = find(name).unwrap();
    let mut config = (network.defaults)();
    if let Some(input) = header_field(text, "input") {
        let extents: Vec<usize> = input.split('x').map(|extent| extent.parse().unwrap()).collect();
        config.input = extents.try_into().unwrap();
        config.classes = heading(text, "classes") as usize;
    }
    let graph = (network.build)(&config).unwrap();
    let ours = graph.parameters.iter().map(|p| format!("{} {}", p.name, Shape(p.shape.clone())));
    let mut ours: Vec<String> = ours.collect();
    let mut theirs: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    if text.contains(".layer_scale ") {
        // A module's own parameters precede those of its children, in any order of use.
        ours.sort_unstable();
        theirs.sort_unstable();
    }
    for (position, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(ours, *theirs, "parameter {position} of {name}");
    }
    assert_eq!(graph.parameters.len(), theirs.len(), "{name}");
    assert_eq!(graph.trained_parameters() as u64, heading(text, "trained"), "{name}");
    let buffers = graph.parameters.iter().filter(|p| p.kind == ParameterKind::Buffer);
    assert!(buffers.clone().all(|p| p.name.ends_with(".running_mean") || p.name.ends_with(".running_var")));
    assert_eq!(buffers.count(), theirs.iter().filter(|line| line.contains(".running_")).count(), "{name}");
    // Strides, paddings and pools determine the number of uses of each weight.
    let multiply_adds: u64 = graph
        .nodes
        .iter()
        .filter(|node| {
            let op = &node.op;
            matches!(op, Op::Conv2d(_) | Op::ConvTranspose2d(_) | Op::Linear(_) | Op::PointwiseLinear(_))
        })
        .map(|node| {
            let weight = &graph.parameters[node.parameters[0].0].shape;
            // A transposed convolution uses its weights once per input.
            let is_transposed = matches!(node.op, Op::ConvTranspose2d(_));
            let used = if is_transposed { node.inputs[0] } else { node.output };
            graph.shape(used).elements() as u64 * weight[1..].iter().product::<usize>() as u64
        })
        .sum();
    assert_eq!(multiply_adds, heading(text, "multiply_adds"), "{name}");
}

macro_rules! torchvision {
    ($($name:ident),* $(,)?) => {$(
        #[test]
        fn $name() {
            same_as_torchvision(
                stringify!($name),
                include_str!(concat!("../../tests/fixtures/", stringify!($name), ".keys")),
            );
        }
    )*};
}

/// Keys, their order, shapes, counts and operations equal torchvision's.
mod torchvision {
    use super::same_as_torchvision;

    torchvision!(
        alexnet,
        vgg11,
        vgg11_bn,
        vgg13,
        vgg13_bn,
        vgg16,
        vgg16_bn,
        vgg19,
        vgg19_bn,
        googlenet,
        inception_v3,
        resnet18,
        resnet34,
        resnet50,
        resnet101,
        resnet152,
        resnext50_32x4d,
        densenet121,
        squeezenet1_1,
        mobilenet_v2,
        mobilenet_v3_small,
        mobilenet_v3_large,
        efficientnet_b0,
        convnext_tiny,
    );
}

/// The same for networks defined in scripts/fixtures/segmentation.py.
mod pytorch {
    use super::same_as_torchvision;

    torchvision!(erfnet, erfnet_encoder, fcn_resnet18, deeplabv3plus_resnet18);
}

#[test]
fn every_network_supports_small_widths_and_images() {
    for network in NETWORKS {
        let published = (network.build)(&(network.defaults)()).unwrap();
        let size = if network.name == "inception_v3" { 299 } else { 64 };
        let config = ModelConfig { input: [1, size, size], classes: 3, width: Some(8) };
        let graph = (network.build)(&config).unwrap();
        assert_eq!(graph.shape(graph.output).0[0], 3, "{}", network.name);
        // ERFNet concatenates its first convolution with the pooled images.
        let first = if network.name.starts_with("erfnet") { 7 } else { 8 };
        assert_eq!(graph.parameters[0].shape[..2], [first, 1], "{}", network.name);
        assert_eq!(graph.parameters.len(), published.parameters.len(), "{}", network.name);
        if network.name != "digits" {
            // Half of the channels of ERFNet and MobileNetV3, an eighth of the others'.
            let halved = ["erfnet", "mobilenet_v3"].iter().any(|family| network.name.starts_with(family));
            let fewer = if halved { 3 } else { 8 };
            assert!(graph.trained_parameters() * fewer < published.trained_parameters(), "{}", network.name);
        }
    }
}

#[test]
fn errors_name_the_layer_or_the_key() {
    let build = |name: &str, size: usize, classes: usize, width: Option<usize>| {
        let config = ModelConfig { input: [3, size, size], classes, width };
        (find(name).unwrap().build)(&config).unwrap_err().to_string()
    };
    assert!(build("vgg16", 16, 10, None).starts_with("layer `features.30` (max_pool2d): window of"));
    assert!(
        build("inception_v3", 200, 10, None).starts_with("layer `AuxLogits.conv1.conv` (conv2d): window of")
    );
    for network in NETWORKS {
        let name = network.name;
        assert!(build(name, 0, 10, None).contains("size 0"), "{name}");
        assert!(build(name, 32, 0, None).contains("invalid `model.classes` 0: must be"), "{name}");
        assert!(build(name, 32, 10, Some(0)).contains("invalid `model.width` 0: must be"), "{name}");
        let huge = build(name, 32, 10, Some(1 << 20));
        assert!(
            huge.contains("has more than 68719476736 elements") || huge.contains("window"),
            "{name}: {huge}"
        );
        build(name, usize::MAX, 10, None);
    }
}

#[test]
fn initialisations_match_torchvision() {
    let initialisation = |network: &str, key: &str| {
        let network = find(network).unwrap();
        let graph = (network.build)(&(network.defaults)()).unwrap();
        graph.parameters.iter().find(|p| p.name == key).unwrap().initialisation
    };
    let normal = |std| Initialisation::Normal { std };
    let uniform = |bound| Initialisation::Uniform { bound };
    let sqrt = |x: f32| x.sqrt();
    for (network, key, expected) in [
        ("alexnet", "features.0.weight", uniform(1.0 / sqrt(363.0))),
        ("alexnet", "features.0.bias", uniform(1.0 / sqrt(363.0))),
        ("vgg11", "features.3.weight", normal(sqrt(2.0 / (128.0 * 9.0)))),
        ("vgg11", "features.3.bias", Initialisation::Zeros),
        ("vgg11", "classifier.6.weight", normal(0.01)),
        ("vgg11", "classifier.6.bias", Initialisation::Zeros),
        ("resnet18", "conv1.weight", normal(sqrt(2.0 / (64.0 * 49.0)))),
        ("resnet18", "fc.bias", uniform(1.0 / sqrt(512.0))),
        ("googlenet", "conv1.conv.weight", normal(0.01)),
        ("googlenet", "aux1.fc1.weight", normal(0.01)),
        ("googlenet", "aux1.fc1.bias", uniform(1.0 / sqrt(2048.0))),
        ("inception_v3", "AuxLogits.conv1.conv.weight", normal(0.1)),
        ("inception_v3", "AuxLogits.fc.weight", normal(0.001)),
        ("mobilenet_v2", "features.1.conv.0.0.weight", normal(sqrt(2.0 / (32.0 * 9.0)))),
        ("mobilenet_v2", "classifier.1.bias", Initialisation::Zeros),
        ("mobilenet_v3_small", "features.1.block.1.fc1.weight", normal(sqrt(2.0 / 8.0))),
        ("mobilenet_v3_small", "classifier.3.weight", normal(0.01)),
        ("efficientnet_b0", "classifier.1.weight", uniform(1.0 / sqrt(1000.0))),
        ("convnext_tiny", "features.0.0.weight", normal(0.02)),
        ("convnext_tiny", "features.1.0.block.3.weight", normal(0.02)),
        ("convnext_tiny", "features.1.0.block.3.bias", Initialisation::Zeros),
        ("convnext_tiny", "features.1.0.layer_scale", Initialisation::Constant { value: 1e-6 }),
        ("squeezenet1_1", "features.3.squeeze.weight", uniform(sqrt(6.0 / 64.0))),
        ("squeezenet1_1", "classifier.1.weight", normal(0.01)),
        ("densenet121", "features.conv0.weight", normal(sqrt(2.0 / 147.0))),
        ("densenet121", "classifier.weight", uniform(1.0 / sqrt(1024.0))),
    ] {
        assert_eq!(initialisation(network, key), expected, "{network} {key}");
    }
    let epsilons: Vec<String> = ["googlenet", "inception_v3", "mobilenet_v3_large", "resnet18"]
        .map(|name| {
            let network = find(name).unwrap();
            let graph = (network.build)(&(network.defaults)()).unwrap();
            graph.nodes.iter().find(|node| node.op.kind() == "batch_norm2d").unwrap().op.attributes()
        })
        .to_vec();
    assert_eq!(epsilons, ["epsilon 0.001", "epsilon 0.001", "epsilon 0.001 momentum 0.01", ""]);
}
