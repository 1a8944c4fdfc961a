//! DenseNet (Huang et al.: "Densely connected convolutional networks", 2017), torchvision's layers and names.

use super::{ChannelScaling, ModelConfig, Network, NetworkBuilder, image, imagenet};
use crate::ops::{AdaptiveAvgPool2d, AvgPool2d, Concat, Conv2d, Flatten, Linear, MaxPool2d, Relu};
use crate::{Graph, GraphBuilder, GraphError, Initialisation, TensorId};

pub(super) const DENSENET121: Network = Network {
    name: "densenet121",
    description: "DenseNet: four blocks of 58 layers; each layer reads all before it (Huang et al., 2017)",
    defaults: || imagenet(224),
    build,
};

/// Filters of the first convolution.
const STEM_FILTERS: usize = 64;
/// Channels added by every layer, and the expansion factor of its 1x1 convolution.
const GROWTH: usize = 32;
const BOTTLENECK: usize = 4;
/// Layers of each block.
const BLOCKS: [usize; 4] = [6, 12, 24, 16];

fn build(config: &ModelConfig) -> Result<Graph, GraphError> {
    let scaling = ChannelScaling::new(DENSENET121.name, config, STEM_FILTERS)?;
    let growth = scaling.scale(GROWTH);
    let (graph, mut x) = GraphBuilder::new(DENSENET121.name, image(config.input));
    let mut net = NetworkBuilder { graph, conv: kaiming_fan_in, epsilon: 1e-5 };
    x = net.conv("features.conv0", Conv2d::new(config.input[0], scaling.width, 7, 2, 3), x)?;
    x = net.norm("features.norm0", x)?;
    x = net.add("features.relu0", Relu, x)?;
    x = net.add("features.pool0", MaxPool2d::new(3, 2, 1), x)?;
    for (layers, block) in BLOCKS.into_iter().zip(1..) {
        for layer in 1..=layers {
            let name = format!("features.denseblock{block}.denselayer{layer}");
            x = dense(&mut net, &name, growth, x)?;
        }
        if block < BLOCKS.len() {
            let name = format!("features.transition{block}");
            x = activated(&mut net, &format!("{name}.norm"), &format!("{name}.relu"), x)?;
            let channels = net.channels(x);
            let half = Conv2d::new(channels, (channels / 2).max(1), 1, 1, 0);
            x = net.conv(&format!("{name}.conv"), half, x)?;
            x = net.add(&format!("{name}.pool"), AvgPool2d::new(2, 2, 0), x)?;
        }
    }
    x = activated(&mut net, "features.norm5", "relu", x)?;
    x = net.add("avgpool", AdaptiveAvgPool2d::GLOBAL, x)?;
    x = net.add("flatten", Flatten, x)?;
    let linear = Linear::new(net.channels(x), scaling.classes);
    x = net.graph.add_with_init("classifier", linear, &[x], &[("bias", Initialisation::Zeros)])?;
    net.graph.finish(x)
}

/// Batch norm and ReLU.
fn activated(net: &mut NetworkBuilder, norm: &str, relu: &str, x: TensorId) -> Result<TensorId, GraphError> {
    let y = net.norm(norm, x)?;
    net.add(relu, Relu, y)
}

/// Concatenates the channels of a layer with those it reads.
fn dense(net: &mut NetworkBuilder, name: &str, growth: usize, x: TensorId) -> Result<TensorId, GraphError> {
    let wide = BOTTLENECK * growth;
    let mut y = activated(net, &format!("{name}.norm1"), &format!("{name}.relu1"), x)?;
    y = net.conv(&format!("{name}.conv1"), Conv2d::new(net.channels(y), wide, 1, 1, 0), y)?;
    y = activated(net, &format!("{name}.norm2"), &format!("{name}.relu2"), y)?;
    y = net.conv(&format!("{name}.conv2"), Conv2d::new(wide, growth, 3, 1, 1), y)?;
    net.graph.add(&format!("{name}.cat"), Concat, &[x, y])
}

/// He et al.'s initialisation by fan-in.
fn kaiming_fan_in(conv: &Conv2d) -> Initialisation {
    Initialisation::kaiming_normal(conv.fan_in())
}
