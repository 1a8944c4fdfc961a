//! Residual networks (He, Zhang, Ren, Sun: "Deep residual learning for image recognition", 2015), also in
//! groups (Xie et al.: "Aggregated residual transformations for deep neural networks", 2017), torchvision's
//! layers and names.
//!
//! As in torchvision, a bottleneck strides in its 3x3 convolution; in the paper the first 1x1 convolution
//! strides. A ReLU that a block uses several times is one module in torchvision and separate layers here:
//! `relu1`, `relu2`, `relu3`; they have no parameters.

use super::{ChannelScaling, ModelConfig, Network, NetworkBuilder, image, imagenet, kaiming_fan_out};
use crate::ops::{AdaptiveAvgPool2d, Add, Conv2d, Flatten, Linear, MaxPool2d, Relu};
use crate::{Graph, GraphBuilder, GraphError, TensorId};

/// Blocks of each of the four stages.
type Depths = [usize; 4];

/// The channels inside the blocks of each stage. All stages but the first halve height and width.
const CHANNELS: [usize; 4] = [64, 128, 256, 512];
/// The number of groups of grouped convolutions.
const GROUPS: usize = 32;

#[derive(Clone, Copy, PartialEq)]
enum Block {
    /// Two 3x3 convolutions.
    Basic,
    /// 1x1, 3x3, and 1x1 to four times the channels.
    Bottleneck,
    /// A bottleneck of twice the channels, whose 3x3 convolution has 32 groups if the first convolution of
    /// the network has 64 filters.
    Grouped,
}

#[derive(Clone, Copy, PartialEq)]
enum Stem {
    /// 7x7 with stride 2, then 3x3 max pooling with stride 2.
    Photograph,
    /// 3x3 with stride 1, for images of 32x32.
    Small,
}

macro_rules! network {
    ($constant:ident, $name:literal, $block:ident, $depths:expr, $description:literal) => {
        pub(super) const $constant: Network = Network {
            name: $name,
            description: $description,
            defaults: || imagenet(224),
            build: |config| build($name, Stem::Photograph, Block::$block, $depths, config),
        };
    };
}

network!(RESNET18, "resnet18", Basic, [2, 2, 2, 2], "residual network of 8 basic blocks (He et al., 2015)");
network!(RESNET34, "resnet34", Basic, [3, 4, 6, 3], "residual network of 16 basic blocks (He et al., 2015)");
network!(
    RESNET50,
    "resnet50",
    Bottleneck,
    [3, 4, 6, 3],
    "residual network of 16 bottlenecks (He et al., 2015)"
);
network!(
    RESNET101,
    "resnet101",
    Bottleneck,
    [3, 4, 23, 3],
    "residual network of 33 bottlenecks (He et al., 2015)"
);
network!(
    RESNET152,
    "resnet152",
    Bottleneck,
    [3, 8, 36, 3],
    "residual network of 50 bottlenecks (He et al., 2015)"
);

network!(
    RESNEXT50,
    "resnext50_32x4d",
    Grouped,
    [3, 4, 6, 3],
    "residual network of 16 bottlenecks in 32 groups (Xie et al., 2017)"
);

pub(super) const RESNET18_CIFAR: Network = Network {
    name: "resnet18_cifar",
    description: "resnet18 for 32x32 images: starts with a 3x3 convolution of stride 1, without max pooling",
    defaults: || ModelConfig { input: [3, 32, 32], classes: 10, width: None },
    build: |config| build("resnet18_cifar", Stem::Small, Block::Basic, [2, 2, 2, 2], config),
};

fn build(
    name: &str,
    stem: Stem,
    block: Block,
    depths: Depths,
    config: &ModelConfig,
) -> Result<Graph, GraphError> {
    let scaling = ChannelScaling::new(name, config, CHANNELS[0])?;
    let (graph, mut x) = GraphBuilder::new(name, image(config.input));
    let mut net = NetworkBuilder { graph, conv: kaiming_fan_out, epsilon: 1e-5 };
    let [kernel, stride, padding] = match stem {
        Stem::Photograph => [7, 2, 3],
        Stem::Small => [3, 1, 1],
    };
    x = net.conv("conv1", Conv2d::new(config.input[0], scaling.width, kernel, stride, padding), x)?;
    x = net.norm("bn1", x)?;
    x = net.add("relu", Relu, x)?;
    if stem == Stem::Photograph {
        x = net.add("maxpool", MaxPool2d::new(3, 2, 1), x)?;
    }
    let groups = if block == Block::Grouped { (GROUPS * scaling.width / CHANNELS[0]).max(1) } else { 1 };
    for (stage, (depth, channels)) in depths.into_iter().zip(CHANNELS).enumerate() {
        for position in 0..depth {
            let stride = if stage > 0 && position == 0 { 2 } else { 1 };
            let name = format!("layer{}.{position}", stage + 1);
            let geometry = Geometry { stride, dilations: [1, 1], groups };
            x = residual(&mut net, &name, block, scaling.scale(channels), geometry, x)?;
        }
    }
    x = net.add("avgpool", AdaptiveAvgPool2d::GLOBAL, x)?;
    x = net.add("flatten", Flatten, x)?;
    x = net.add("fc", Linear::new(net.channels(x), scaling.classes), x)?;
    net.graph.finish(x)
}

/// resnet18 whose last stages are dilated instead of strided once `output_stride` is reached. Returns the
/// maps of `layer1`, at a quarter of the size, and of `layer4`. Layer names start with `prefix`.
///
/// The convolution that had the stride keeps the previous dilation, the following ones have that of the
/// stage: their receptive fields stay the same in denser maps, as in torchvision's dilated residual networks,
/// which only have bottlenecks.
pub(super) fn dilated_resnet18(
    net: &mut NetworkBuilder,
    prefix: &str,
    scaling: &ChannelScaling,
    output_stride: usize,
    images: TensorId,
) -> Result<[TensorId; 2], GraphError> {
    let stem = Conv2d::new(net.channels(images), scaling.width, 7, 2, 3);
    let mut x = net.conv(&format!("{prefix}conv1"), stem, images)?;
    x = net.norm(&format!("{prefix}bn1"), x)?;
    x = net.add(&format!("{prefix}relu"), Relu, x)?;
    x = net.add(&format!("{prefix}maxpool"), MaxPool2d::new(3, 2, 1), x)?;
    let (mut low, mut stride, mut dilation) = (x, 4, 1);
    for (channels, stage) in CHANNELS.into_iter().zip(1..) {
        let (mut step, before) = (1, dilation);
        if stage > 1 && stride < output_stride {
            (step, stride) = (2, 2 * stride);
        } else if stage > 1 {
            dilation *= 2;
        }
        let (name, channels) = (|block| format!("{prefix}layer{stage}.{block}"), scaling.scale(channels));
        let first = Geometry { stride: step, dilations: [before, dilation], groups: 1 };
        x = residual(net, &name(0), Block::Basic, channels, first, x)?;
        let second = Geometry { stride: 1, dilations: [dilation; 2], groups: 1 };
        x = residual(net, &name(1), Block::Basic, channels, second, x)?;
        if stage == 1 {
            low = x;
        }
    }
    Ok([low, x])
}

/// Stride of a block, and dilation and groups of its 3x3 convolutions.
#[derive(Clone, Copy)]
struct Geometry {
    stride: usize,
    dilations: [usize; 2],
    groups: usize,
}

/// The greatest common divisor: the number of groups at widths that the published groups do not divide.
fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// A block: its convolutions, its shortcut (a 1x1 convolution where shapes differ), their sum.
fn residual(
    net: &mut NetworkBuilder,
    name: &str,
    block: Block,
    channels: usize,
    Geometry { stride, dilations: [first, second], groups }: Geometry,
    x: TensorId,
) -> Result<TensorId, GraphError> {
    /// Kernel, stride, dilation, filters.
    type Layer = (usize, usize, usize, usize);
    let (inside, outside) = (2 * channels, 4 * channels);
    let layers: &[Layer] = match block {
        Block::Basic => &[(3, stride, first, channels), (3, 1, second, channels)],
        Block::Bottleneck => &[(1, 1, 1, channels), (3, stride, first, channels), (1, 1, 1, outside)],
        Block::Grouped => &[(1, 1, 1, inside), (3, stride, first, inside), (1, 1, 1, outside)],
    };
    let mut y = x;
    for (&(kernel, stride, dilation, filters), number) in layers.iter().zip(1..) {
        let conv = Conv2d::new(net.channels(y), filters, kernel, stride, dilation * (kernel / 2));
        let groups = if kernel == 3 { common_divisor(groups, filters) } else { 1 };
        let conv = Conv2d { dilation: [dilation; 2], groups, ..conv };
        y = net.conv(&format!("{name}.conv{number}"), conv, y)?;
        y = net.norm(&format!("{name}.bn{number}"), y)?;
        if number < layers.len() {
            y = net.add(&format!("{name}.relu{number}"), Relu, y)?;
        }
    }
    let mut shortcut = x;
    let (from, to) = (net.channels(x), net.channels(y));
    if stride != 1 || from != to {
        let conv = Conv2d::new(from, to, 1, stride, 0);
        shortcut = net.conv(&format!("{name}.downsample.0"), conv, x)?;
        shortcut = net.norm(&format!("{name}.downsample.1"), shortcut)?;
    }
    y = net.graph.add(&format!("{name}.add"), Add, &[y, shortcut])?;
    net.add(&format!("{name}.relu{}", layers.len()), Relu, y)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_variant_strides_later() {
        let graph = (RESNET18_CIFAR.build)(&(RESNET18_CIFAR.defaults)()).unwrap();
        assert_eq!(graph.trained_parameters(), 11_173_962);
        let last = graph.nodes.iter().find(|node| node.name == "layer4.1.relu2").unwrap();
        assert_eq!(graph.shape(last.output).to_string(), "512x4x4");
        assert!(graph.nodes.iter().all(|node| node.name != "maxpool"));
    }

    #[test]
    fn blocks_add_their_input() {
        let graph = (RESNET50.build)(&(RESNET50.defaults)()).unwrap();
        let node = |name: &str| graph.nodes.iter().find(|node| node.name == name).unwrap();
        assert_eq!(
            node("layer2.0.add").inputs,
            [node("layer2.0.bn3").output, node("layer2.0.downsample.1").output]
        );
        assert_eq!(node("layer2.1.add").inputs, [node("layer2.1.bn3").output, node("layer2.0.relu3").output]);
    }
}
