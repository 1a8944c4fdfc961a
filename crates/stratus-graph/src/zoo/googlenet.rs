//! GoogLeNet (Szegedy et al.: "Going deeper with convolutions", 2014), torchvision's layers and names.
//!
//! As torchvision has it: batch norm behind every convolution, no local response norm, and 3x3 convolutions
//! in the branch that the paper gives 5x5, which the published weights were trained with.

use super::{Chain, Hyperparameters, Network, Sizes, image, imagenet};
use crate::ops::{AdaptiveAvgPool2d, Concat, Conv2d, Dropout, Flatten, Linear, MaxPool2d, Relu};
use crate::{Graph, GraphBuilder, GraphError, Initialisation, TensorId};

pub(super) const NETWORK: Network = Network {
    name: "googlenet",
    about: "GoogLeNet: 9 inception modules, two auxiliary outputs while it trains (Szegedy et al., 2014)",
    defaults: || imagenet(224),
    build,
};

/// What the loss of each auxiliary output counts.
const AUXILIARY_WEIGHT: f32 = 0.3;

/// Filters of an inception module: 1x1; 1x1 before 3x3; 1x1 before the second 3x3; 1x1 behind the pool.
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

/// Max-pooling that keeps what the stride leaves over.
fn pool(kernel: usize, stride: usize, padding: usize) -> MaxPool2d {
    MaxPool2d { ceil_mode: true, ..MaxPool2d::new(kernel, stride, padding) }
}

fn weights(_: &Conv2d) -> Initialisation {
    Initialisation::Normal { std: 0.01 }
}

fn build(hyper: &Hyperparameters) -> Result<Graph, GraphError> {
    let sizes = Sizes::new(NETWORK.name, hyper, 64)?;
    let (graph, mut x) = GraphBuilder::new(NETWORK.name, image(hyper.input));
    let mut chain = Chain { graph, conv: weights, epsilon: 1e-3 };
    x = unit(&mut chain, "conv1", sizes.of(64), [7, 2, 3], x)?;
    x = chain.add("maxpool1", pool(3, 2, 0), x)?;
    x = unit(&mut chain, "conv2", sizes.of(64), [1, 1, 0], x)?;
    x = unit(&mut chain, "conv3", sizes.of(192), [3, 1, 1], x)?;
    x = chain.add("maxpool2", pool(3, 2, 0), x)?;
    for module in &STAGE3 {
        x = inception(&mut chain, &sizes, module, x)?;
    }
    x = chain.add("maxpool3", pool(3, 2, 0), x)?;
    let mut classified = Vec::new();
    for module in &STAGE4 {
        x = inception(&mut chain, &sizes, module, x)?;
        if let "inception4a" | "inception4d" = module.name {
            classified.push(x);
        }
    }
    x = chain.add("maxpool4", pool(2, 2, 0), x)?;
    for module in &STAGE5 {
        x = inception(&mut chain, &sizes, module, x)?;
    }
    // Here, not where they branch off: the order of the parameters is that of the state dictionary.
    for (name, x) in ["aux1", "aux2"].into_iter().zip(classified) {
        auxiliary(&mut chain, &sizes, name, x)?;
    }
    x = chain.add("avgpool", AdaptiveAvgPool2d::GLOBAL, x)?;
    x = chain.add("flatten", Flatten, x)?;
    x = chain.add("dropout", Dropout { p: 0.2 }, x)?;
    x = linear(&mut chain, "fc", sizes.classes, x)?;
    chain.graph.finish(x)
}

/// Convolution (kernel, stride, padding), batch norm, rectifier.
fn unit(
    chain: &mut Chain,
    name: &str,
    filters: usize,
    [kernel, stride, padding]: [usize; 3],
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let conv = Conv2d::new(chain.channels(x), filters, kernel, stride, padding);
    let mut y = chain.conv(&format!("{name}.conv"), conv, x)?;
    y = chain.norm(&format!("{name}.bn"), y)?;
    chain.add(&format!("{name}.relu"), Relu, y)
}

fn linear(chain: &mut Chain, name: &str, features: usize, x: TensorId) -> Result<TensorId, GraphError> {
    let linear = Linear::new(chain.channels(x), features);
    chain.graph.add_with(name, linear, &[x], &[("weight", Initialisation::Normal { std: 0.01 })])
}

fn inception(
    chain: &mut Chain,
    sizes: &Sizes,
    Module { name, branch1, branch2, branch3, branch4 }: &Module,
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let a = unit(chain, &format!("{name}.branch1"), sizes.of(*branch1), [1, 1, 0], x)?;
    let mut b = unit(chain, &format!("{name}.branch2.0"), sizes.of(branch2[0]), [1, 1, 0], x)?;
    b = unit(chain, &format!("{name}.branch2.1"), sizes.of(branch2[1]), [3, 1, 1], b)?;
    let mut c = unit(chain, &format!("{name}.branch3.0"), sizes.of(branch3[0]), [1, 1, 0], x)?;
    c = unit(chain, &format!("{name}.branch3.1"), sizes.of(branch3[1]), [3, 1, 1], c)?;
    let mut d = chain.add(&format!("{name}.branch4.0"), pool(3, 1, 1), x)?;
    d = unit(chain, &format!("{name}.branch4.1"), sizes.of(*branch4), [1, 1, 0], d)?;
    chain.graph.add(&format!("{name}.concat"), Concat, &[a, b, c, d])
}

fn auxiliary(chain: &mut Chain, sizes: &Sizes, name: &str, x: TensorId) -> Result<(), GraphError> {
    let mut y = chain.add(&format!("{name}.avgpool"), AdaptiveAvgPool2d { output: [4, 4] }, x)?;
    y = unit(chain, &format!("{name}.conv"), sizes.of(128), [1, 1, 0], y)?;
    y = chain.add(&format!("{name}.flatten"), Flatten, y)?;
    y = linear(chain, &format!("{name}.fc1"), sizes.of(1024), y)?;
    y = chain.add(&format!("{name}.relu"), Relu, y)?;
    y = chain.add(&format!("{name}.dropout"), Dropout { p: 0.7 }, y)?;
    y = linear(chain, &format!("{name}.fc2"), sizes.classes, y)?;
    chain.graph.auxiliary(y, AUXILIARY_WEIGHT);
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
