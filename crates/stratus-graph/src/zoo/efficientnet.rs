//! EfficientNet (Tan, Le: "EfficientNet: rethinking model scaling for convolutional neural networks", 2019),
//! torchvision's layers and names.

use super::inverted::Style;
use super::mobilenet::scaled;
use super::{Chain, Hyperparameters, Network, Sizes, image, imagenet, kaiming_fan_out};
use crate::ops::{AdaptiveAvgPool2d, Add, Conv2d, Dropout, Flatten, Linear, Sigmoid, Silu, StochasticDepth};
use crate::{Graph, GraphBuilder, GraphError, Initialisation};

pub(super) const B0: Network = Network {
    name: "efficientnet_b0",
    about: "EfficientNet-B0: 16 inverted residual blocks with squeeze-and-excitation (Tan and Le, 2019)",
    defaults: || imagenet(224),
    build,
};

/// Filters of the first convolution.
const FIRST: usize = 32;
/// By how much the last convolution widens.
const WIDER: usize = 4;
/// The share of samples that the last block would leave out; earlier ones leave out less.
const DEPTH: f32 = 0.2;

/// Blocks one behind the other: by how much the first 1x1 convolution widens, kernel, stride of the first
/// block, channels, blocks.
const STAGES: [(usize, usize, usize, usize, usize); 7] = [
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
];

fn build(hyper: &Hyperparameters) -> Result<Graph, GraphError> {
    let sizes = Sizes::new(B0.name, hyper, FIRST)?;
    let of = |channels| scaled(channels, sizes.width, FIRST);
    let (graph, mut x) = GraphBuilder::new(B0.name, image(hyper.input));
    let mut chain = Chain { graph, conv: kaiming_fan_out, epsilon: 1e-5 };
    let style = Style { momentum: 0.1, squeeze: Silu.into(), gate: Sigmoid.into() };
    let first = Conv2d::new(hyper.input[0], of(FIRST), 3, 2, 1);
    x = style.unit(&mut chain, "features.0", first, Some(Silu.into()), x)?;
    let blocks: usize = STAGES.iter().map(|(.., blocks)| blocks).sum();
    let (mut before, mut done) = (FIRST, 0);
    for ((expansion, kernel, stride, channels, repeats), stage) in STAGES.into_iter().zip(1..) {
        for block in 0..repeats {
            let stride = if block == 0 { stride } else { 1 };
            let module = format!("features.{stage}.{block}");
            let (input, narrow) = (x, chain.channels(x));
            // A block that does not widen has no first convolution, whatever its input's channels.
            let wide = if expansion > 1 { scaled(narrow * expansion, 8, 8) } else { narrow };
            let mut part = 0..;
            let mut next = || format!("{module}.block.{}", part.next().unwrap_or_default());
            if expansion > 1 {
                let conv = Conv2d::new(narrow, wide, 1, 1, 0);
                x = style.unit(&mut chain, &next(), conv, Some(Silu.into()), x)?;
            }
            let depthwise = Conv2d { groups: wide, ..Conv2d::new(wide, wide, kernel, stride, kernel / 2) };
            x = style.unit(&mut chain, &next(), depthwise, Some(Silu.into()), x)?;
            x = style.squeeze_excitation(&mut chain, &next(), (narrow / 4).max(1), x)?;
            x = style.unit(&mut chain, &next(), Conv2d::new(wide, of(channels), 1, 1, 0), None, x)?;
            if stride == 1 && channels == before {
                let p = DEPTH * done as f32 / blocks as f32;
                x = chain.add(&format!("{module}.stochastic_depth"), StochasticDepth { p }, x)?;
                x = chain.graph.add(&format!("{module}.add"), Add, &[x, input])?;
            }
            (before, done) = (channels, done + 1);
        }
    }
    let narrow = chain.channels(x);
    let last = Conv2d::new(narrow, WIDER * narrow, 1, 1, 0);
    x = style.unit(&mut chain, &format!("features.{}", STAGES.len() + 1), last, Some(Silu.into()), x)?;
    x = chain.add("avgpool", AdaptiveAvgPool2d::GLOBAL, x)?;
    x = chain.add("flatten", Flatten, x)?;
    x = chain.add("classifier.0", Dropout { p: 0.2 }, x)?;
    let bound = 1.0 / (sizes.classes as f32).sqrt();
    let initial = [("weight", Initialisation::Uniform { bound }), ("bias", Initialisation::Zeros)];
    let linear = Linear::new(chain.channels(x), sizes.classes);
    x = chain.graph.add_with("classifier.1", linear, &[x], &initial)?;
    chain.graph.finish(x)
}
