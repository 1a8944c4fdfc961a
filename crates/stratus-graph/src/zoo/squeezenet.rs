//! SqueezeNet (Iandola et al.: "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters", 2016),
//! torchvision's layers and names.

use super::{Chain, Hyperparameters, Network, Sizes, image, imagenet};
use crate::ops::{AdaptiveAvgPool2d, Concat, Conv2d, Dropout, Flatten, MaxPool2d, Relu};
use crate::{Graph, GraphBuilder, GraphError, Initialisation, TensorId};

pub(super) const V1_1: Network = Network {
    name: "squeezenet1_1",
    about: "SqueezeNet 1.1: eight modules that squeeze channels before a 3x3 (Iandola et al., 2016)",
    defaults: || imagenet(224),
    build,
};

/// Filters of the first convolution.
const FIRST: usize = 64;

/// A layer behind the first rectifier.
#[derive(Clone, Copy)]
enum Layer {
    Pool,
    /// Channels that are squeezed to, and those of each of the two convolutions behind.
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

fn build(hyper: &Hyperparameters) -> Result<Graph, GraphError> {
    let sizes = Sizes::new(V1_1.name, hyper, FIRST)?;
    let (graph, mut x) = GraphBuilder::new(V1_1.name, image(hyper.input));
    let mut chain = Chain { graph, conv: kaiming_uniform, epsilon: 1e-5 };
    x = chain.conv("features.0", with_bias(Conv2d::new(hyper.input[0], sizes.width, 3, 2, 0)), x)?;
    x = chain.add("features.1", Relu, x)?;
    for (layer, position) in LAYERS.into_iter().zip(2..) {
        let name = format!("features.{position}");
        x = match layer {
            Pool => chain.add(&name, MaxPool2d { ceil_mode: true, ..MaxPool2d::new(3, 2, 0) }, x)?,
            Fire(squeezed, expanded) => fire(&mut chain, &name, sizes.of(squeezed), sizes.of(expanded), x)?,
        };
    }
    x = chain.add("classifier.0", Dropout { p: 0.5 }, x)?;
    let initial = [("weight", Initialisation::Normal { std: 0.01 }), ("bias", Initialisation::Zeros)];
    let last = with_bias(Conv2d::new(chain.channels(x), sizes.classes, 1, 1, 0));
    x = chain.graph.add_with("classifier.1", last, &[x], &initial)?;
    x = chain.add("classifier.2", Relu, x)?;
    x = chain.add("classifier.3", AdaptiveAvgPool2d::GLOBAL, x)?;
    x = chain.add("flatten", Flatten, x)?;
    chain.graph.finish(x)
}

/// Squeezes the channels, and convolves what is left by 1x1 and by 3x3.
fn fire(
    chain: &mut Chain,
    name: &str,
    squeezed: usize,
    expanded: usize,
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let narrow = Conv2d::new(chain.channels(x), squeezed, 1, 1, 0);
    let y = unit(chain, &format!("{name}.squeeze"), narrow, x)?;
    let single = Conv2d::new(squeezed, expanded, 1, 1, 0);
    let single = unit(chain, &format!("{name}.expand1x1"), single, y)?;
    let window = Conv2d::new(squeezed, expanded, 3, 1, 1);
    let window = unit(chain, &format!("{name}.expand3x3"), window, y)?;
    chain.graph.add(&format!("{name}.cat"), Concat, &[single, window])
}

/// A convolution and its rectifier.
fn unit(chain: &mut Chain, name: &str, conv: Conv2d, x: TensorId) -> Result<TensorId, GraphError> {
    let y = chain.conv(name, with_bias(conv), x)?;
    chain.add(&format!("{name}_activation"), Relu, y)
}

fn with_bias(conv: Conv2d) -> Conv2d {
    Conv2d { bias: true, ..conv }
}

/// He et al.'s variance over the inputs of an output, uniform.
fn kaiming_uniform(conv: &Conv2d) -> Initialisation {
    Initialisation::Uniform { bound: (6.0 / conv.fan_in().max(1) as f32).sqrt() }
}
