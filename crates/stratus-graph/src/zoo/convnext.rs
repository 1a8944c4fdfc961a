//! ConvNeXt (Liu et al.: "A ConvNet for the 2020s", 2022), torchvision's layers and names.
//!
//! Torchvision permutes channels to the end for the norm and the linear layers of a block, and back. Here
//! they are not moved: a norm over channels and a linear layer at every pixel give the same result in either
//! order.

use super::{ChannelScaling, ModelConfig, Network, NetworkBuilder, image, imagenet};
use crate::ops::{
    AdaptiveAvgPool2d, Add, Conv2d, Flatten, Gelu, LayerNorm2d, LayerScale, Linear, PointwiseLinear,
    StochasticDepth,
};
use crate::{Graph, GraphBuilder, GraphError, Initialisation, TensorId};

pub(super) const TINY: Network = Network {
    name: "convnext_tiny",
    description: "ConvNeXt-Tiny: 18 blocks of depthwise 7x7 convolutions and layer norms (Liu et al., 2022)",
    defaults: || imagenet(224),
    build,
};

/// Filters of the first convolution.
const STEM_FILTERS: usize = 96;
/// Channels and blocks of each stage.
const STAGES: [(usize, usize); 4] = [(96, 3), (192, 3), (384, 9), (768, 3)];
/// The expansion factor between a block's linear layers.
const EXPANSION: usize = 4;
/// The probability that the last block is skipped; it increases linearly from the first block.
const STOCHASTIC_DEPTH_P: f32 = 0.1;
/// The initialisation of convolution and linear weights; biases are initialised to zero.
const WEIGHTS: Initialisation = Initialisation::Normal { std: 0.02 };
const INITIAL: [(&str, Initialisation); 2] = [("weight", WEIGHTS), ("bias", Initialisation::Zeros)];

fn build(config: &ModelConfig) -> Result<Graph, GraphError> {
    let scaling = ChannelScaling::new(TINY.name, config, STEM_FILTERS)?;
    let (graph, mut x) = GraphBuilder::new(TINY.name, image(config.input));
    let mut net = NetworkBuilder { graph, conv: |_| WEIGHTS, epsilon: 1e-6 };
    let patches = |input, output, size| Conv2d { bias: true, ..Conv2d::new(input, output, size, size, 0) };
    x = net.conv("features.0.0", patches(config.input[0], scaling.scale(STEM_FILTERS), 4), x)?;
    x = norm(&mut net, "features.0.1", x)?;
    let blocks: usize = STAGES.iter().map(|(_, blocks)| blocks).sum();
    let mut done = 0;
    for (stage, (channels, repeats)) in STAGES.into_iter().enumerate() {
        if stage > 0 {
            let module = format!("features.{}", 2 * stage);
            x = norm(&mut net, &format!("{module}.0"), x)?;
            let narrow = net.channels(x);
            x = net.conv(&format!("{module}.1"), patches(narrow, scaling.scale(channels), 2), x)?;
        }
        for block in 0..repeats {
            let p = STOCHASTIC_DEPTH_P * done as f32 / (blocks - 1) as f32;
            x = residual(&mut net, &format!("features.{}.{block}", 2 * stage + 1), p, x)?;
            done += 1;
        }
    }
    x = net.add("avgpool", AdaptiveAvgPool2d::GLOBAL, x)?;
    x = norm(&mut net, "classifier.0", x)?;
    x = net.add("classifier.1", Flatten, x)?;
    let linear = Linear::new(net.channels(x), scaling.classes);
    x = net.graph.add_with_init("classifier.2", linear, &[x], &INITIAL)?;
    net.graph.finish(x)
}

/// Layer normalisation over channels.
fn norm(net: &mut NetworkBuilder, name: &str, x: TensorId) -> Result<TensorId, GraphError> {
    let norm = LayerNorm2d { epsilon: net.epsilon, ..LayerNorm2d::new(net.channels(x)) };
    net.add(name, norm, x)
}

/// Adds a residual block: a depthwise convolution, a norm and two linear layers, times a trained factor for
/// each channel, with stochastic depth. The factors are a parameter of the block itself.
fn residual(net: &mut NetworkBuilder, module: &str, p: f32, input: TensorId) -> Result<TensorId, GraphError> {
    let channels = net.channels(input);
    let part = |number: usize| format!("{module}.block.{number}");
    let depthwise = Conv2d { groups: channels, bias: true, ..Conv2d::new(channels, channels, 7, 1, 3) };
    let mut x = net.conv(&part(0), depthwise, input)?;
    x = norm(net, &part(2), x)?;
    let wide = EXPANSION * channels;
    x = net.graph.add_with_init(&part(3), PointwiseLinear::new(channels, wide), &[x], &INITIAL)?;
    x = net.add(&part(4), Gelu, x)?;
    x = net.graph.add_with_init(&part(5), PointwiseLinear::new(wide, channels), &[x], &INITIAL)?;
    x = net.add(module, LayerScale::new(channels), x)?;
    x = net.add(&format!("{module}.stochastic_depth"), StochasticDepth { p }, x)?;
    net.graph.add(&format!("{module}.add"), Add, &[x, input])
}
