//! GoogLeNet (Szegedy et al.: "Going deeper with convolutions", 2014), torchvision's layers and names.
//!
//! As in torchvision: batch norm after every convolution, no local response norm, and 3x3 convolutions in the
//! branch that has 5x5 in the paper, because the published weights were trained with them.

use super::{ChannelScaling, ModelConfig, Network, NetworkBuilder, image, imagenet};
use crate::ops::{AdaptiveAvgPool2d, Concat, Conv2d, Dropout, Flatten, Linear, MaxPool2d, Relu};
use crate::{Graph, GraphBuilder, GraphError, Initialisation, TensorId};

pub(super) const NETWORK: Network = Network {
    name: "googlenet",
    description: "GoogLeNet: 9 inception modules, two auxiliary outputs during training (Szegedy et al., \
                  2014)",
    defaults: || imagenet(224),
    build,
};

/// The weight of the loss of each auxiliary output.
const AUXILIARY_WEIGHT: f32 = 0.3;

/// Filters of an inception module: 1x1; 1x1 before 3x3; 1x1 before the second 3x3; 1x1 after the pool.
struct Module {
    name: &'static str,
    branch1: usize,
    branch2: [usize; 2],
    branch3: [usize; 2],
    branch4: usize,
}

const fn module(
    name: &'static str,
    branch1: usize,
    branch2: [usize; 2],
    branch3: [usize; 2],
    branch4: usize,
) -> Module {
    Module { name, branch1, branch2, branch3, branch4 }
}

const STAGE3: [Module; 2] = [
    module("inception3a", 64, [96, 128], [16, 32], 32),
    module("inception3b", 128, [128, 192], [32, 96], 64),
];
const STAGE4: [Module; 5] = [
    module("inception4a", 192, [96, 208], [16, 48], 64),
    module("inception4b", 160, [112, 224], [24, 64], 64),
    module("inception4c", 128, [128, 256], [24, 64], 64),
    module("inception4d", 112, [144, 288], [32, 64], 64),
    module("inception4e", 256, [160, 320], [32, 128], 128),
];
const STAGE5: [Module; 2] = [
    module("inception5a", 256, [160, 320], [32, 128], 128),
    module("inception5b", 384, [192, 384], [48, 128], 128),
];

/// Max pooling that includes pixels left over by the stride.
fn pool(kernel: usize, stride: usize, padding: usize) -> MaxPool2d {
    MaxPool2d { ceil_mode: true, ..MaxPool2d::new(kernel, stride, padding) }
}

fn weights(_: &Conv2d) -> Initialisation {
    Initialisation::Normal { std: 0.01 }
}

fn build(config: &ModelConfig) -> Result<Graph, GraphError> {
    let scaling = ChannelScaling::new(NETWORK.name, config, 64)?;
    let (graph, mut x) = GraphBuilder::new(NETWORK.name, image(config.input));
    let mut net = NetworkBuilder { graph, conv: weights, epsilon: 1e-3 };
    x = unit(&mut net, "conv1", scaling.scale(64), [7, 2, 3], x)?;
    x = net.add("maxpool1", pool(3, 2, 0), x)?;
    x = unit(&mut net, "conv2", scaling.scale(64), [1, 1, 0], x)?;
    x = unit(&mut net, "conv3", scaling.scale(192), [3, 1, 1], x)?;
    x = net.add("maxpool2", pool(3, 2, 0), x)?;
    for module in &STAGE3 {
        x = inception(&mut net, &scaling, module, x)?;
    }
    x = net.add("maxpool3", pool(3, 2, 0), x)?;
    let mut classified = Vec::new();
    for module in &STAGE4 {
        x = inception(&mut net, &scaling, module, x)?;
        if let "inception4a" | "inception4d" = module.name {
            classified.push(x);
        }
    }
    x = net.add("maxpool4", pool(2, 2, 0), x)?;
    for module in &STAGE5 {
        x = inception(&mut net, &scaling, module, x)?;
    }
    // Added here, not where they branch off, so that parameters are ordered as in the state dictionary.
    for (name, x) in ["aux1", "aux2"].into_iter().zip(classified) {
        auxiliary(&mut net, &scaling, name, x)?;
    }
    x = net.add("avgpool", AdaptiveAvgPool2d::GLOBAL, x)?;
    x = net.add("flatten", Flatten, x)?;
    x = net.add("dropout", Dropout { p: 0.2 }, x)?;
    x = linear(&mut net, "fc", scaling.classes, x)?;
    net.graph.finish(x)
}

/// Convolution (kernel, stride, padding), batch norm, ReLU.
fn unit(
    net: &mut NetworkBuilder,
    name: &str,
    filters: usize,
    [kernel, stride, padding]: [usize; 3],
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let conv = Conv2d::new(net.channels(x), filters, kernel, stride, padding);
    let mut y = net.conv(&format!("{name}.conv"), conv, x)?;
    y = net.norm(&format!("{name}.bn"), y)?;
    net.add(&format!("{name}.relu"), Relu, y)
}

fn linear(
    net: &mut NetworkBuilder,
    name: &str,
    features: usize,
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let linear = Linear::new(net.channels(x), features);
    net.graph.add_with_init(name, linear, &[x], &[("weight", Initialisation::Normal { std: 0.01 })])
}

fn inception(
    net: &mut NetworkBuilder,
    scaling: &ChannelScaling,
    Module { name, branch1, branch2, branch3, branch4 }: &Module,
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let a = unit(net, &format!("{name}.branch1"), scaling.scale(*branch1), [1, 1, 0], x)?;
    let mut b = unit(net, &format!("{name}.branch2.0"), scaling.scale(branch2[0]), [1, 1, 0], x)?;
    b = unit(net, &format!("{name}.branch2.1"), scaling.scale(branch2[1]), [3, 1, 1], b)?;
    let mut c = unit(net, &format!("{name}.branch3.0"), scaling.scale(branch3[0]), [1, 1, 0], x)?;
    c = unit(net, &format!("{name}.branch3.1"), scaling.scale(branch3[1]), [3, 1, 1], c)?;
    let mut d = net.add(&format!("{name}.branch4.0"), pool(3, 1, 1), x)?;
    d = unit(net, &format!("{name}.branch4.1"), scaling.scale(*branch4), [1, 1, 0], d)?;
    net.graph.add(&format!("{name}.concat"), Concat, &[a, b, c, d])
}

fn auxiliary(
    net: &mut NetworkBuilder,
    scaling: &ChannelScaling,
    name: &str,
    x: TensorId,
) -> Result<(), GraphError> {
    let mut y = net.add(&format!("{name}.avgpool"), AdaptiveAvgPool2d { output: [4, 4] }, x)?;
    y = unit(net, &format!("{name}.conv"), scaling.scale(128), [1, 1, 0], y)?;
    y = net.add(&format!("{name}.flatten"), Flatten, y)?;
    y = linear(net, &format!("{name}.fc1"), scaling.scale(1024), y)?;
    y = net.add(&format!("{name}.relu"), Relu, y)?;
    y = net.add(&format!("{name}.dropout"), Dropout { p: 0.7 }, y)?;
    y = linear(net, &format!("{name}.fc2"), scaling.classes, y)?;
    net.graph.auxiliary(y, AUXILIARY_WEIGHT);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inference_has_the_published_size() {
        let graph = build(&imagenet(224)).unwrap();
        let outputs: Vec<f32> = graph.auxiliary.iter().map(|auxiliary| auxiliary.weight).collect();
        assert_eq!(outputs, [0.3, 0.3]);
        let inference = graph.for_inference();
        inference.verify().unwrap();
        assert_eq!(inference.trained_parameters(), 6_624_904);
        assert!(inference.nodes.iter().all(|node| !node.name.starts_with("aux")));
    }
}
