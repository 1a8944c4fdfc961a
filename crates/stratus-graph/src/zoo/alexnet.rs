//! AlexNet (Krizhevsky, Sutskever, Hinton: "ImageNet classification with deep convolutional neural
//! networks", 2012).
//!
//! `alexnet` has the layers and names of torchvision, a single tower after Krizhevsky: "One weird trick for
//! parallelizing convolutional neural networks", 2014. The other two name their layers `conv1` to `conv5`,
//! `fc1`, `fc2` and `output`: `alexnet_bn` adds batch norm to the linear layers; `alexnet_lrn` has the
//! filters of 2012, ungrouped, and local response normalisation.

use super::{ChannelScaling, ModelConfig, Network, image, imagenet};
use crate::ops::{
    AdaptiveAvgPool2d, BatchNorm2d, Conv2d, Dropout, Flatten, Linear, LocalResponseNorm, MaxPool2d, Relu,
};
use crate::{Graph, GraphBuilder, GraphError, Initialisation, TensorId};

pub(super) const ALEXNET: Network = Network {
    name: "alexnet",
    description: "AlexNet, single tower (torchvision): 5 convolutions, 3 linear layers with dropout",
    defaults: || imagenet(224),
    build: torchvision,
};

pub(super) const ALEXNET_BN: Network = Network {
    name: "alexnet_bn",
    description: "AlexNet, single tower, with dropout and batch norm in the linear layers",
    defaults: || imagenet(224),
    build: batch_norm,
};

pub(super) const ALEXNET_LRN: Network = Network {
    name: "alexnet_lrn",
    description: "AlexNet of 2012, single tower, with local response normalisation (Krizhevsky et al., 2012)",
    defaults: || imagenet(224),
    build: response_norm,
};

/// A convolution with bias and ReLU.
struct Conv {
    filters: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    /// True if 3x3 max pooling with stride 2 follows.
    pool: bool,
}

const fn conv(filters: usize, kernel: usize, stride: usize, padding: usize, pool: bool) -> Conv {
    Conv { filters, kernel, stride, padding, pool }
}

/// The tower of 2014.
const TOWER: [Conv; 5] = [
    conv(64, 11, 4, 2, true),
    conv(192, 5, 1, 2, true),
    conv(384, 3, 1, 1, false),
    conv(256, 3, 1, 1, false),
    conv(256, 3, 1, 1, true),
];

/// Both towers of 2012 combined.
const TOWER_2012: [Conv; 5] = [
    conv(96, 11, 4, 2, true),
    conv(256, 5, 1, 2, true),
    conv(384, 3, 1, 1, false),
    conv(384, 3, 1, 1, false),
    conv(256, 3, 1, 1, true),
];

/// The pooling of the last feature map.
const FINAL_POOL: AdaptiveAvgPool2d = AdaptiveAvgPool2d { output: [6, 6] };

/// Features of the two hidden linear layers.
const HIDDEN: usize = 4096;

const DROPOUT: Dropout = Dropout { p: 0.5 };

fn convolution(
    graph: &GraphBuilder,
    scaling: &ChannelScaling,
    Conv { filters, kernel, stride, padding, .. }: &Conv,
    x: TensorId,
) -> Conv2d {
    let channels = graph.shape(x).0.first().copied().unwrap_or(0);
    Conv2d { bias: true, ..Conv2d::new(channels, scaling.scale(*filters), *kernel, *stride, *padding) }
}

fn torchvision(config: &ModelConfig) -> Result<Graph, GraphError> {
    let scaling = ChannelScaling::new("alexnet", config, TOWER[0].filters)?;
    let (mut graph, mut x) = GraphBuilder::new("alexnet", image(config.input));
    let mut position = 0;
    let mut next = |part: &str| {
        position += 1;
        format!("{part}.{}", position - 1)
    };
    for layer in &TOWER {
        x = graph.add(&next("features"), convolution(&graph, &scaling, layer, x), &[x])?;
        x = graph.add(&next("features"), Relu, &[x])?;
        if layer.pool {
            x = graph.add(&next("features"), MaxPool2d::new(3, 2, 0), &[x])?;
        }
    }
    x = graph.add("avgpool", FINAL_POOL, &[x])?;
    x = graph.add("flatten", Flatten, &[x])?;
    let (features, hidden) = (graph.shape(x).elements(), scaling.scale(HIDDEN));
    x = graph.add("classifier.0", DROPOUT, &[x])?;
    x = graph.add("classifier.1", Linear::new(features, hidden), &[x])?;
    x = graph.add("classifier.2", Relu, &[x])?;
    x = graph.add("classifier.3", DROPOUT, &[x])?;
    x = graph.add("classifier.4", Linear::new(hidden, hidden), &[x])?;
    x = graph.add("classifier.5", Relu, &[x])?;
    x = graph.add("classifier.6", Linear::new(hidden, scaling.classes), &[x])?;
    graph.finish(x)
}

fn batch_norm(config: &ModelConfig) -> Result<Graph, GraphError> {
    let scaling = ChannelScaling::new("alexnet_bn", config, TOWER[0].filters)?;
    let (mut graph, mut x) = GraphBuilder::new("alexnet_bn", image(config.input));
    for (layer, number) in TOWER.iter().zip(1..) {
        x = graph.add(&format!("conv{number}"), convolution(&graph, &scaling, layer, x), &[x])?;
        x = graph.add(&format!("relu{number}"), Relu, &[x])?;
        if layer.pool {
            x = graph.add(&format!("pool{number}"), MaxPool2d::new(3, 2, 0), &[x])?;
        }
    }
    x = graph.add("avgpool", FINAL_POOL, &[x])?;
    x = graph.add("flatten", Flatten, &[x])?;
    let hidden = scaling.scale(HIDDEN);
    for number in [1, 2] {
        // The batch norm would cancel a bias.
        let linear = Linear { bias: false, ..Linear::new(graph.shape(x).elements(), hidden) };
        x = graph.add(&format!("dropout{number}"), DROPOUT, &[x])?;
        x = graph.add(&format!("fc{number}"), linear, &[x])?;
        x = graph.add(&format!("fc{number}_bn"), BatchNorm2d::new(hidden), &[x])?;
        x = graph.add(&format!("fc{number}_relu"), Relu, &[x])?;
    }
    x = graph.add("output", Linear::new(hidden, scaling.classes), &[x])?;
    graph.finish(x)
}

fn response_norm(config: &ModelConfig) -> Result<Graph, GraphError> {
    /// The paper's alpha of 1e-4 is not divided by the five channels.
    const NORM: LocalResponseNorm = LocalResponseNorm { size: 5, alpha: 5e-4, beta: 0.75, k: 2.0 };
    /// Weights as in the paper; biases of one keep the ReLUs active at the start.
    const WEIGHT: (&str, Initialisation) = ("weight", Initialisation::Normal { std: 0.01 });
    const ZEROS: (&str, Initialisation) = ("bias", Initialisation::Zeros);
    const ONES: (&str, Initialisation) = ("bias", Initialisation::Ones);

    let scaling = ChannelScaling::new("alexnet_lrn", config, TOWER_2012[0].filters)?;
    let (mut graph, mut x) = GraphBuilder::new("alexnet_lrn", image(config.input));
    for (layer, number) in TOWER_2012.iter().zip(1..) {
        let bias = if [2, 4, 5].contains(&number) { ONES } else { ZEROS };
        let conv = convolution(&graph, &scaling, layer, x);
        x = graph.add_with_init(&format!("conv{number}"), conv, &[x], &[WEIGHT, bias])?;
        x = graph.add(&format!("relu{number}"), Relu, &[x])?;
        if number <= 2 {
            x = graph.add(&format!("norm{number}"), NORM, &[x])?;
        }
        if layer.pool {
            x = graph.add(&format!("pool{number}"), MaxPool2d::new(3, 2, 0), &[x])?;
        }
    }
    x = graph.add("avgpool", FINAL_POOL, &[x])?;
    x = graph.add("flatten", Flatten, &[x])?;
    let hidden = scaling.scale(HIDDEN);
    for number in [1, 2] {
        let linear = Linear::new(graph.shape(x).elements(), hidden);
        x = graph.add(&format!("dropout{number}"), DROPOUT, &[x])?;
        x = graph.add_with_init(&format!("fc{number}"), linear, &[x], &[WEIGHT, ONES])?;
        x = graph.add(&format!("fc{number}_relu"), Relu, &[x])?;
    }
    x = graph.add_with_init("output", Linear::new(hidden, scaling.classes), &[x], &[WEIGHT, ZEROS])?;
    graph.finish(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_have_their_own_layers() {
        let graph = batch_norm(&imagenet(224)).unwrap();
        let keys: Vec<&str> = graph.parameters.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(keys[..2], ["conv1.weight", "conv1.bias"]);
        assert_eq!(keys[10..13], ["fc1.weight", "fc1_bn.weight", "fc1_bn.bias"]);
        assert_eq!(keys[keys.len() - 1], "output.bias");
        // Torchvision's 61,100,840 minus two biases plus four vectors of the batch norms.
        assert_eq!(graph.trained_parameters(), 61_100_840 + 2 * 4096);

        let graph = response_norm(&imagenet(224)).unwrap();
        let convolutions = [(3, 96, 11), (96, 256, 5), (256, 384, 3), (384, 384, 3), (384, 256, 3)];
        let linear = [(9216, 4096), (4096, 4096), (4096, 1000)];
        let count = convolutions.iter().map(|&(i, o, k)| i * o * k * k + o).sum::<usize>()
            + linear.iter().map(|&(i, o)| i * o + o).sum::<usize>();
        assert_eq!(graph.trained_parameters(), count);
        let norms: Vec<&str> =
            graph.nodes.iter().filter(|n| n.name.starts_with("norm")).map(|n| n.name.as_str()).collect();
        assert_eq!(norms, ["norm1", "norm2"]);
        let bias = |name| graph.parameters.iter().find(|p| p.name == name).unwrap().initialisation;
        assert_eq!((bias("conv1.bias"), bias("conv2.bias")), (Initialisation::Zeros, Initialisation::Ones));
    }
}
