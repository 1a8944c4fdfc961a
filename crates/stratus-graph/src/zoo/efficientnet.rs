//! EfficientNet (Tan, Le: "EfficientNet: rethinking model scaling for convolutional neural networks", 2019),
//! torchvision's layers and names.

use super::inverted::Style;
use super::mobilenet::scaled;
use super::{ChannelScaling, ModelConfig, Network, NetworkBuilder, image, imagenet, kaiming_fan_out};
use crate::ops::{AdaptiveAvgPool2d, Add, Conv2d, Dropout, Flatten, Linear, Sigmoid, Silu, StochasticDepth};
use crate::{Graph, GraphBuilder, GraphError, Initialisation};

pub(super) const B0: Network = Network {
    name: "efficientnet_b0",
    description: "EfficientNet-B0: 16 inverted residual blocks with squeeze-and-excitation (Tan and Le, \
                  2019)",
    defaults: || imagenet(224),
    build,
};

/// Filters of the first convolution.
const STEM_FILTERS: usize = 32;
/// The expansion factor of the last convolution.
const HEAD_EXPANSION: usize = 4;
/// The upper bound of the probability that a block is skipped; it increases linearly from the first block.
const STOCHASTIC_DEPTH_P: f32 = 0.2;

/// Stages: expansion factor of the first 1x1 convolution, kernel, stride of the first block, channels,
/// blocks.
const STAGES: [(usize, usize, usize, usize, usize); 7] = [
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
];

fn build(config: &ModelConfig) -> Result<Graph, GraphError> {
    let scaling = ChannelScaling::new(B0.name, config, STEM_FILTERS)?;
    let rescaled = |channels| scaled(channels, scaling.width, STEM_FILTERS);
    let (graph, mut x) = GraphBuilder::new(B0.name, image(config.input));
    let mut net = NetworkBuilder { graph, conv: kaiming_fan_out, epsilon: 1e-5 };
    let style = Style { momentum: 0.1, squeeze: Silu.into(), gate: Sigmoid.into() };
    let first = Conv2d::new(config.input[0], rescaled(STEM_FILTERS), 3, 2, 1);
    x = style.unit(&mut net, "features.0", first, Some(Silu.into()), x)?;
    let blocks: usize = STAGES.iter().map(|(.., blocks)| blocks).sum();
    let (mut before, mut done) = (STEM_FILTERS, 0);
    for ((expansion, kernel, stride, channels, repeats), stage) in STAGES.into_iter().zip(1..) {
        for block in 0..repeats {
            let stride = if block == 0 { stride } else { 1 };
            let module = format!("features.{stage}.{block}");
            let (input, narrow) = (x, net.channels(x));
            // A block without expansion has no first convolution.
            let wide = if expansion > 1 { scaled(narrow * expansion, 8, 8) } else { narrow };
            let mut part = 0..;
            let mut next = || format!("{module}.block.{}", part.next().unwrap_or_default());
            if expansion > 1 {
                let conv = Conv2d::new(narrow, wide, 1, 1, 0);
                x = style.unit(&mut net, &next(), conv, Some(Silu.into()), x)?;
            }
            let depthwise = Conv2d { groups: wide, ..Conv2d::new(wide, wide, kernel, stride, kernel / 2) };
            x = style.unit(&mut net, &next(), depthwise, Some(Silu.into()), x)?;
            x = style.squeeze_excitation(&mut net, &next(), (narrow / 4).max(1), x)?;
            x = style.unit(&mut net, &next(), Conv2d::new(wide, rescaled(channels), 1, 1, 0), None, x)?;
            if stride == 1 && channels == before {
                let p = STOCHASTIC_DEPTH_P * done as f32 / blocks as f32;
                x = net.add(&format!("{module}.stochastic_depth"), StochasticDepth { p }, x)?;
                x = net.graph.add(&format!("{module}.add"), Add, &[x, input])?;
            }
            (before, done) = (channels, done + 1);
        }
    }
    let narrow = net.channels(x);
    let last = Conv2d::new(narrow, HEAD_EXPANSION * narrow, 1, 1, 0);
    x = style.unit(&mut net, &format!("features.{}", STAGES.len() + 1), last, Some(Silu.into()), x)?;
    x = net.add("avgpool", AdaptiveAvgPool2d::GLOBAL, x)?;
    x = net.add("flatten", Flatten, x)?;
    x = net.add("classifier.0", Dropout { p: 0.2 }, x)?;
    let bound = 1.0 / (scaling.classes as f32).sqrt();
    let initial = [("weight", Initialisation::Uniform { bound }), ("bias", Initialisation::Zeros)];
    let linear = Linear::new(net.channels(x), scaling.classes);
    x = net.graph.add_with_init("classifier.1", linear, &[x], &initial)?;
    net.graph.finish(x)
}
