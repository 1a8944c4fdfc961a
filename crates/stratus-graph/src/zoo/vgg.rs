//! VGG (Simonyan, Zisserman: "Very deep convolutional networks for large-scale image recognition", 2014),
//! torchvision's layers and names.

use super::{Chain, Hyperparameters, Network, Sizes, image, imagenet, kaiming_fan_out};
use crate::ops::{AdaptiveAvgPool2d, Conv2d, Dropout, Flatten, Linear, MaxPool2d, Relu};
use crate::{Graph, GraphBuilder, GraphError, Initialisation};

/// How many 3x3 convolutions each of the five stages has; max-pooling ends a stage.
type Depths = [usize; 5];

const A: Depths = [1, 1, 2, 2, 2];
const B: Depths = [2, 2, 2, 2, 2];
const D: Depths = [2, 2, 3, 3, 3];
const E: Depths = [2, 2, 4, 4, 4];

/// Filters of the convolutions of each stage.
const FILTERS: [usize; 5] = [64, 128, 256, 512, 512];

macro_rules! network {
    ($constant:ident, $name:literal, $depths:ident, $norm:literal, $about:literal) => {
        pub(super) const $constant: Network = Network {
            name: $name,
            about: $about,
            defaults: || imagenet(224),
            build: |hyper| build($name, $depths, $norm, hyper),
        };
    };
}

network!(VGG11, "vgg11", A, false, "VGG, 8 convolutions and 3 linear layers (Simonyan, Zisserman, 2014)");
network!(VGG11_BN, "vgg11_bn", A, true, "vgg11 with batch norm behind every convolution");
network!(VGG13, "vgg13", B, false, "VGG, 10 convolutions and 3 linear layers (Simonyan, Zisserman, 2014)");
network!(VGG13_BN, "vgg13_bn", B, true, "vgg13 with batch norm behind every convolution");
network!(VGG16, "vgg16", D, false, "VGG, 13 convolutions and 3 linear layers (Simonyan, Zisserman, 2014)");
network!(VGG16_BN, "vgg16_bn", D, true, "vgg16 with batch norm behind every convolution");
network!(VGG19, "vgg19", E, false, "VGG, 16 convolutions and 3 linear layers (Simonyan, Zisserman, 2014)");
network!(VGG19_BN, "vgg19_bn", E, true, "vgg19 with batch norm behind every convolution");

fn build(name: &str, depths: Depths, norm: bool, hyper: &Hyperparameters) -> Result<Graph, GraphError> {
    let sizes = Sizes::new(name, hyper, FILTERS[0])?;
    let (graph, mut x) = GraphBuilder::new(name, image(hyper.input));
    let mut chain = Chain { graph, conv: kaiming_fan_out, epsilon: 1e-5 };
    let mut position = 0;
    let mut next = || {
        position += 1;
        format!("features.{}", position - 1)
    };
    for (depth, filters) in depths.into_iter().zip(FILTERS) {
        for _ in 0..depth {
            let conv = Conv2d::new(chain.channels(x), sizes.of(filters), 3, 1, 1);
            x = chain.conv(&next(), Conv2d { bias: true, ..conv }, x)?;
            if norm {
                x = chain.norm(&next(), x)?;
            }
            x = chain.add(&next(), Relu, x)?;
        }
        x = chain.add(&next(), MaxPool2d::new(2, 2, 0), x)?;
    }
    x = chain.add("avgpool", AdaptiveAvgPool2d { output: [7, 7] }, x)?;
    x = chain.add("flatten", Flatten, x)?;
    let initial = [("weight", Initialisation::Normal { std: 0.01 }), ("bias", Initialisation::Zeros)];
    for (position, features) in [(0, sizes.of(4096)), (3, sizes.of(4096)), (6, sizes.classes)] {
        let linear = Linear::new(chain.channels(x), features);
        x = chain.graph.add_with(&format!("classifier.{position}"), linear, &[x], &initial)?;
        if position < 6 {
            x = chain.add(&format!("classifier.{}", position + 1), Relu, x)?;
            x = chain.add(&format!("classifier.{}", position + 2), Dropout { p: 0.5 }, x)?;
        }
    }
    chain.graph.finish(x)
}
