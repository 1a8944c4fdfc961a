//! SqueezeNet (Iandola et al.: "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters", 2016),
//! torchvision's layers and names.

use super::{ChannelScaling, ModelConfig, Network, NetworkBuilder, image, imagenet};
use crate::ops::{AdaptiveAvgPool2d, Concat, Conv2d, Dropout, Flatten, MaxPool2d, Relu};
use crate::{Graph, GraphBuilder, GraphError, Initialisation, TensorId};

pub(super) const V1_1: Network = Network {
    name: "squeezenet1_1",
    description: "SqueezeNet 1.1: eight modules that squeeze channels before a 3x3 (Iandola et al., 2016)",
    defaults: || imagenet(224),
    build,
};

/// Filters of the first convolution.
const STEM_FILTERS: usize = 64;

/// A layer after the first ReLU.
#[derive(Clone, Copy)]
enum Layer {
    Pool,
    /// Squeezed channels, and the channels of each of the two following convolutions.
    Fire(usize, usize),
}

use Layer::{Fire, Pool};

const LAYERS: [Layer; 11] = [
    Pool,
    Fire(16, 64),
    Fire(16, 64),
    Pool,
    Fire(32, 128),
    Fire(32, 128),
    Pool,
    Fire(48, 192),
    Fire(48, 192),
    Fire(64, 256),
    Fire(64, 256),
];

fn build(config: &ModelConfig) -> Result<Graph, GraphError> {
    let scaling = ChannelScaling::new(V1_1.name, config, STEM_FILTERS)?;
    let (graph, mut x) = GraphBuilder::new(V1_1.name, image(config.input));
    let mut net = NetworkBuilder { graph, conv: kaiming_uniform, epsilon: 1e-5 };
    x = net.conv("features.0", with_bias(Conv2d::new(config.input[0], scaling.width, 3, 2, 0)), x)?;
    x = net.add("features.1", Relu, x)?;
    for (layer, position) in LAYERS.into_iter().zip(2..) {
        let name = format!("features.{position}");
        x = match layer {
            Pool => net.add(&name, MaxPool2d { ceil_mode: true, ..MaxPool2d::new(3, 2, 0) }, x)?,
            Fire(squeezed, expanded) => {
                fire(&mut net, &name, scaling.scale(squeezed), scaling.scale(expanded), x)?
            }
        };
    }
    x = net.add("classifier.0", Dropout { p: 0.5 }, x)?;
    let initial = [("weight", Initialisation::Normal { std: 0.01 }), ("bias", Initialisation::Zeros)];
    let last = with_bias(Conv2d::new(net.channels(x), scaling.classes, 1, 1, 0));
    x = net.graph.add_with_init("classifier.1", last, &[x], &initial)?;
    x = net.add("classifier.2", Relu, x)?;
    x = net.add("classifier.3", AdaptiveAvgPool2d::GLOBAL, x)?;
    x = net.add("flatten", Flatten, x)?;
    net.graph.finish(x)
}

/// Squeezes the channels, then applies 1x1 and 3x3 convolutions.
fn fire(
    net: &mut NetworkBuilder,
    name: &str,
    squeezed: usize,
    expanded: usize,
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let narrow = Conv2d::new(net.channels(x), squeezed, 1, 1, 0);
    let y = unit(net, &format!("{name}.squeeze"), narrow, x)?;
    let single = Conv2d::new(squeezed, expanded, 1, 1, 0);
    let single = unit(net, &format!("{name}.expand1x1"), single, y)?;
    let window = Conv2d::new(squeezed, expanded, 3, 1, 1);
    let window = unit(net, &format!("{name}.expand3x3"), window, y)?;
    net.graph.add(&format!("{name}.cat"), Concat, &[single, window])
}

/// A convolution and its ReLU.
fn unit(net: &mut NetworkBuilder, name: &str, conv: Conv2d, x: TensorId) -> Result<TensorId, GraphError> {
    let y = net.conv(name, with_bias(conv), x)?;
    net.add(&format!("{name}_activation"), Relu, y)
}

fn with_bias(conv: Conv2d) -> Conv2d {
    Conv2d { bias: true, ..conv }
}

/// He et al.'s uniform initialisation by fan-in.
fn kaiming_uniform(conv: &Conv2d) -> Initialisation {
    Initialisation::Uniform { bound: (6.0 / conv.fan_in().max(1) as f32).sqrt() }
}
