//! DenseNet (Huang et al.: "Densely connected convolutional networks", 2017), torchvision's layers and names.

use super::{Chain, Hyperparameters, Network, Sizes, image, imagenet};
use crate::ops::{AdaptiveAvgPool2d, AvgPool2d, Concat, Conv2d, Flatten, Linear, MaxPool2d, Relu};
use crate::{Graph, GraphBuilder, GraphError, Initialisation, TensorId};

pub(super) const DENSENET121: Network = Network {
    name: "densenet121",
    about: "DenseNet: four blocks of 58 layers, each of which reads all before it (Huang et al., 2017)",
    defaults: || imagenet(224),
    build,
};

/// Filters of the first convolution.
const FIRST: usize = 64;
/// Channels that every layer adds, and by how much its 1x1 convolution widens them.
const GROWTH: usize = 32;
const BOTTLENECK: usize = 4;
/// Layers of each block.
const BLOCKS: [usize; 4] = [6, 12, 24, 16];

fn build(hyper: &Hyperparameters) -> Result<Graph, GraphError> {
    let sizes = Sizes::new(DENSENET121.name, hyper, FIRST)?;
    let growth = sizes.of(GROWTH);
    let (graph, mut x) = GraphBuilder::new(DENSENET121.name, image(hyper.input));
    let mut chain = Chain { graph, conv: kaiming_fan_in, epsilon: 1e-5 };
    x = chain.conv("features.conv0", Conv2d::new(hyper.input[0], sizes.width, 7, 2, 3), x)?;
    x = chain.norm("features.norm0", x)?;
    x = chain.add("features.relu0", Relu, x)?;
    x = chain.add("features.pool0", MaxPool2d::new(3, 2, 1), x)?;
    for (layers, block) in BLOCKS.into_iter().zip(1..) {
        for layer in 1..=layers {
            let name = format!("features.denseblock{block}.denselayer{layer}");
            x = dense(&mut chain, &name, growth, x)?;
        }
        if block < BLOCKS.len() {
            let name = format!("features.transition{block}");
            x = activated(&mut chain, &format!("{name}.norm"), &format!("{name}.relu"), x)?;
            let channels = chain.channels(x);
            let half = Conv2d::new(channels, (channels / 2).max(1), 1, 1, 0);
            x = chain.conv(&format!("{name}.conv"), half, x)?;
            x = chain.add(&format!("{name}.pool"), AvgPool2d::new(2, 2, 0), x)?;
        }
    }
    x = activated(&mut chain, "features.norm5", "relu", x)?;
    x = chain.add("avgpool", AdaptiveAvgPool2d::GLOBAL, x)?;
    x = chain.add("flatten", Flatten, x)?;
    let linear = Linear::new(chain.channels(x), sizes.classes);
    x = chain.graph.add_with("classifier", linear, &[x], &[("bias", Initialisation::Zeros)])?;
    chain.graph.finish(x)
}

/// Batch norm and rectifier.
fn activated(chain: &mut Chain, norm: &str, relu: &str, x: TensorId) -> Result<TensorId, GraphError> {
    let y = chain.norm(norm, x)?;
    chain.add(relu, Relu, y)
}

/// Adds the channels of a layer to those it reads.
fn dense(chain: &mut Chain, name: &str, growth: usize, x: TensorId) -> Result<TensorId, GraphError> {
    let wide = BOTTLENECK * growth;
    let mut y = activated(chain, &format!("{name}.norm1"), &format!("{name}.relu1"), x)?;
    y = chain.conv(&format!("{name}.conv1"), Conv2d::new(chain.channels(y), wide, 1, 1, 0), y)?;
    y = activated(chain, &format!("{name}.norm2"), &format!("{name}.relu2"), y)?;
    y = chain.conv(&format!("{name}.conv2"), Conv2d::new(wide, growth, 3, 1, 1), y)?;
    chain.graph.add(&format!("{name}.cat"), Concat, &[x, y])
}

/// He et al.'s variance over the inputs of an output.
fn kaiming_fan_in(conv: &Conv2d) -> Initialisation {
    Initialisation::kaiming_normal(conv.fan_in())
}
