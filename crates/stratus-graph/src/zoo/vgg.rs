//! VGG (Simonyan, Zisserman: "Very deep convolutional networks for large-scale image recognition", 2014),
//! torchvision's layers and names.

use super::{ChannelScaling, ModelConfig, Network, NetworkBuilder, image, imagenet, kaiming_fan_out};
use crate::ops::{AdaptiveAvgPool2d, Conv2d, Dropout, Flatten, Linear, MaxPool2d, Relu};
use crate::{Graph, GraphBuilder, GraphError, Initialisation};

/// The number of 3x3 convolutions of each of the five stages; max pooling ends a stage.
type Depths = [usize; 5];

const A: Depths = [1, 1, 2, 2, 2];
const B: Depths = [2, 2, 2, 2, 2];
const D: Depths = [2, 2, 3, 3, 3];
const E: Depths = [2, 2, 4, 4, 4];

/// Filters of the convolutions of each stage.
const FILTERS: [usize; 5] = [64, 128, 256, 512, 512];

macro_rules! network {
    ($constant:ident, $name:literal, $depths:ident, $norm:literal, $description:literal) => {
        pub(super) const $constant: Network = Network {
            name: $name,
            description: $description,
            defaults: || imagenet(224),
            build: |config| build($name, $depths, $norm, config),
        };
    };
}

network!(VGG11, "vgg11", A, false, "VGG, 8 convolutions and 3 linear layers (Simonyan, Zisserman, 2014)");
network!(VGG11_BN, "vgg11_bn", A, true, "vgg11 with batch norm after every convolution");
network!(VGG13, "vgg13", B, false, "VGG, 10 convolutions and 3 linear layers (Simonyan, Zisserman, 2014)");
network!(VGG13_BN, "vgg13_bn", B, true, "vgg13 with batch norm after every convolution");
network!(VGG16, "vgg16", D, false, "VGG, 13 convolutions and 3 linear layers (Simonyan, Zisserman, 2014)");
network!(VGG16_BN, "vgg16_bn", D, true, "vgg16 with batch norm after every convolution");
network!(VGG19, "vgg19", E, false, "VGG, 16 convolutions and 3 linear layers (Simonyan, Zisserman, 2014)");
network!(VGG19_BN, "vgg19_bn", E, true, "vgg19 with batch norm after every convolution");

fn build(name: &str, depths: Depths, norm: bool, config: &ModelConfig) -> Result<Graph, GraphError> {
    let scaling = ChannelScaling::new(name, config, FILTERS[0])?;
    let (graph, mut x) = GraphBuilder::new(name, image(config.input));
    let mut net = NetworkBuilder { graph, conv: kaiming_fan_out, epsilon: 1e-5 };
    let mut position = 0;
    let mut next = || {
        position += 1;
        format!("features.{}", position - 1)
    };
    for (depth, filters) in depths.into_iter().zip(FILTERS) {
        for _ in 0..depth {
            let conv = Conv2d::new(net.channels(x), scaling.scale(filters), 3, 1, 1);
            x = net.conv(&next(), Conv2d { bias: true, ..conv }, x)?;
            if norm {
                x = net.norm(&next(), x)?;
            }
            x = net.add(&next(), Relu, x)?;
        }
        x = net.add(&next(), MaxPool2d::new(2, 2, 0), x)?;
    }
    x = net.add("avgpool", AdaptiveAvgPool2d { output: [7, 7] }, x)?;
    x = net.add("flatten", Flatten, x)?;
    let initial = [("weight", Initialisation::Normal { std: 0.01 }), ("bias", Initialisation::Zeros)];
    for (position, features) in [(0, scaling.scale(4096)), (3, scaling.scale(4096)), (6, scaling.classes)] {
        let linear = Linear::new(net.channels(x), features);
        x = net.graph.add_with_init(&format!("classifier.{position}"), linear, &[x], &initial)?;
        if position < 6 {
            x = net.add(&format!("classifier.{}", position + 1), Relu, x)?;
            x = net.add(&format!("classifier.{}", position + 2), Dropout { p: 0.5 }, x)?;
        }
    }
    net.graph.finish(x)
}
