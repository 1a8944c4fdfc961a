//! ConvNeXt (Liu et al.: "A ConvNet for the 2020s", 2022), torchvision's layers and names.
//!
//! Torchvision moves channels to the end for the norm and the linear layers of a block, and back. Here they
//! stay where they are: a norm over channels and a linear layer at every pixel are the same in either order.

use super::{Chain, Hyperparameters, Network, Sizes, image, imagenet};
use crate::ops::{
    AdaptiveAvgPool2d, Add, Conv2d, Flatten, Gelu, LayerNorm2d, LayerScale, Linear, PointwiseLinear,
    StochasticDepth,
};
use crate::{Graph, GraphBuilder, GraphError, Initialisation, TensorId};

pub(super) const TINY: Network = Network {
    name: "convnext_tiny",
    about: "ConvNeXt-Tiny: 18 blocks of depthwise 7x7 convolutions and layer norms (Liu et al., 2022)",
    defaults: || imagenet(224),
    build,
};

/// Filters of the first convolution.
const FIRST: usize = 96;
/// Channels and blocks of each stage.
const STAGES: [(usize, usize); 4] = [(96, 3), (192, 3), (384, 9), (768, 3)];
/// By how much a block widens between its linear layers.
const WIDER: usize = 4;
/// The share of samples that the last block leaves out; earlier ones leave out less.
const DEPTH: f32 = 0.1;
/// How weights of convolutions and linear layers begin; biases begin at zero.
const WEIGHTS: Initialisation = Initialisation::Normal { std: 0.02 };
const INITIAL: [(&str, Initialisation); 2] = [("weight", WEIGHTS), ("bias", Initialisation::Zeros)];

fn build(hyper: &Hyperparameters) -> Result<Graph, GraphError> {
    let sizes = Sizes::new(TINY.name, hyper, FIRST)?;
    let (graph, mut x) = GraphBuilder::new(TINY.name, image(hyper.input));
    let mut chain = Chain { graph, conv: |_| WEIGHTS, epsilon: 1e-6 };
    let patches = |input, output, size| Conv2d { bias: true, ..Conv2d::new(input, output, size, size, 0) };
    x = chain.conv("features.0.0", patches(hyper.input[0], sizes.of(FIRST), 4), x)?;
    x = norm(&mut chain, "features.0.1", x)?;
    let blocks: usize = STAGES.iter().map(|(_, blocks)| blocks).sum();
    let mut done = 0;
    for (stage, (channels, repeats)) in STAGES.into_iter().enumerate() {
        if stage > 0 {
            let module = format!("features.{}", 2 * stage);
            x = norm(&mut chain, &format!("{module}.0"), x)?;
            let narrow = chain.channels(x);
            x = chain.conv(&format!("{module}.1"), patches(narrow, sizes.of(channels), 2), x)?;
        }
        for block in 0..repeats {
            let p = DEPTH * done as f32 / (blocks - 1) as f32;
            x = residual(&mut chain, &format!("features.{}.{block}", 2 * stage + 1), p, x)?;
            done += 1;
        }
    }
    x = chain.add("avgpool", AdaptiveAvgPool2d::GLOBAL, x)?;
    x = norm(&mut chain, "classifier.0", x)?;
    x = chain.add("classifier.1", Flatten, x)?;
    let linear = Linear::new(chain.channels(x), sizes.classes);
    x = chain.graph.add_with("classifier.2", linear, &[x], &INITIAL)?;
    chain.graph.finish(x)
}

/// Layer normalisation over channels.
fn norm(chain: &mut Chain, name: &str, x: TensorId) -> Result<TensorId, GraphError> {
    let norm = LayerNorm2d { epsilon: chain.epsilon, ..LayerNorm2d::new(chain.channels(x)) };
    chain.add(name, norm, x)
}

/// Adds to a map what a depthwise convolution, a norm and two linear layers make of it, times a factor for
/// each channel; in training of some samples only. The factors are a parameter of the block itself.
fn residual(chain: &mut Chain, module: &str, p: f32, input: TensorId) -> Result<TensorId, GraphError> {
    let channels = chain.channels(input);
    let part = |number: usize| format!("{module}.block.{number}");
    let depthwise = Conv2d { groups: channels, bias: true, ..Conv2d::new(channels, channels, 7, 1, 3) };
    let mut x = chain.conv(&part(0), depthwise, input)?;
    x = norm(chain, &part(2), x)?;
    let wide = WIDER * channels;
    x = chain.graph.add_with(&part(3), PointwiseLinear::new(channels, wide), &[x], &INITIAL)?;
    x = chain.add(&part(4), Gelu, x)?;
    x = chain.graph.add_with(&part(5), PointwiseLinear::new(wide, channels), &[x], &INITIAL)?;
    x = chain.add(module, LayerScale::new(channels), x)?;
    x = chain.add(&format!("{module}.stochastic_depth"), StochasticDepth { p }, x)?;
    chain.graph.add(&format!("{module}.add"), Add, &[x, input])
}
