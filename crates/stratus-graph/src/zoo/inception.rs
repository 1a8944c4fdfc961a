//! Inception v3 (Szegedy et al.: "Rethinking the inception architecture for computer vision", 2015),
//! torchvision's layers and names.

use super::{ChannelScaling, ModelConfig, Network, NetworkBuilder, image, imagenet};
use crate::ops::{AdaptiveAvgPool2d, AvgPool2d, Concat, Conv2d, Dropout, Flatten, Linear, MaxPool2d, Relu};
use crate::{Graph, GraphBuilder, GraphError, Initialisation, Op, TensorId};

pub(super) const NETWORK: Network = Network {
    name: "inception_v3",
    description: "Inception v3: 11 inception modules, an auxiliary output during training (Szegedy et al., \
                  2015)",
    defaults: || imagenet(299),
    build,
};

/// The weight of the loss of the auxiliary output.
const AUXILIARY_WEIGHT: f32 = 0.4;

/// A convolution with batch norm and ReLU: name, filters, kernel, stride; with `SAME`, padding that keeps
/// height and width.
type Unit = (&'static str, usize, [usize; 2], usize, bool);

const SAME: bool = true;
const VALID: bool = false;

/// The first operation of a branch, before its convolutions.
enum Start {
    /// None: the branch reads the module's input.
    Input,
    /// 3x3 average pooling, padded.
    AvgPool,
    /// 3x3 max pooling with stride 2.
    MaxPool,
}
use Start::{AvgPool, Input, MaxPool};

/// A branch: convolutions in sequence, then parallel ones (none, or two whose outputs are concatenated).
struct Branch {
    start: Start,
    units: Vec<Unit>,
    fork: Option<(&'static str, [Unit; 2])>,
}

fn branch(start: Start, units: impl Into<Vec<Unit>>) -> Branch {
    Branch { start, units: units.into(), fork: None }
}

/// Module at 35x35: 1x1, 5x5, two 3x3, and a pool.
fn module_a(pooled: usize) -> Vec<Branch> {
    vec![
        branch(Input, [("branch1x1", 64, [1, 1], 1, SAME)]),
        branch(Input, [("branch5x5_1", 48, [1, 1], 1, SAME), ("branch5x5_2", 64, [5, 5], 1, SAME)]),
        branch(
            Input,
            [
                ("branch3x3dbl_1", 64, [1, 1], 1, SAME),
                ("branch3x3dbl_2", 96, [3, 3], 1, SAME),
                ("branch3x3dbl_3", 96, [3, 3], 1, SAME),
            ],
        ),
        branch(AvgPool, [("branch_pool", pooled, [1, 1], 1, SAME)]),
    ]
}

/// Module from 35x35 to 17x17.
fn module_b() -> Vec<Branch> {
    vec![
        branch(Input, [("branch3x3", 384, [3, 3], 2, VALID)]),
        branch(
            Input,
            [
                ("branch3x3dbl_1", 64, [1, 1], 1, SAME),
                ("branch3x3dbl_2", 96, [3, 3], 1, SAME),
                ("branch3x3dbl_3", 96, [3, 3], 2, VALID),
            ],
        ),
        branch(MaxPool, []),
    ]
}

/// Module at 17x17: 7x7 as 1x7 and 7x1, with `inner` filters inside.
fn module_c(inner: usize) -> Vec<Branch> {
    vec![
        branch(Input, [("branch1x1", 192, [1, 1], 1, SAME)]),
        branch(
            Input,
            [
                ("branch7x7_1", inner, [1, 1], 1, SAME),
                ("branch7x7_2", inner, [1, 7], 1, SAME),
                ("branch7x7_3", 192, [7, 1], 1, SAME),
            ],
        ),
        branch(
            Input,
            [
                ("branch7x7dbl_1", inner, [1, 1], 1, SAME),
                ("branch7x7dbl_2", inner, [7, 1], 1, SAME),
                ("branch7x7dbl_3", inner, [1, 7], 1, SAME),
                ("branch7x7dbl_4", inner, [7, 1], 1, SAME),
                ("branch7x7dbl_5", 192, [1, 7], 1, SAME),
            ],
        ),
        branch(AvgPool, [("branch_pool", 192, [1, 1], 1, SAME)]),
    ]
}

/// Module from 17x17 to 8x8.
fn module_d() -> Vec<Branch> {
    vec![
        branch(Input, [("branch3x3_1", 192, [1, 1], 1, SAME), ("branch3x3_2", 320, [3, 3], 2, VALID)]),
        branch(
            Input,
            [
                ("branch7x7x3_1", 192, [1, 1], 1, SAME),
                ("branch7x7x3_2", 192, [1, 7], 1, SAME),
                ("branch7x7x3_3", 192, [7, 1], 1, SAME),
                ("branch7x7x3_4", 192, [3, 3], 2, VALID),
            ],
        ),
        branch(MaxPool, []),
    ]
}

/// Module at 8x8: 3x3 as parallel 1x3 and 3x1.
fn module_e() -> Vec<Branch> {
    let sides = |a, b| [(a, 384, [1, 3], 1, SAME), (b, 384, [3, 1], 1, SAME)];
    vec![
        branch(Input, [("branch1x1", 320, [1, 1], 1, SAME)]),
        Branch {
            fork: Some(("branch3x3_2", sides("branch3x3_2a", "branch3x3_2b"))),
            ..branch(Input, [("branch3x3_1", 384, [1, 1], 1, SAME)])
        },
        Branch {
            fork: Some(("branch3x3dbl_3", sides("branch3x3dbl_3a", "branch3x3dbl_3b"))),
            ..branch(
                Input,
                [("branch3x3dbl_1", 448, [1, 1], 1, SAME), ("branch3x3dbl_2", 384, [3, 3], 1, SAME)],
            )
        },
        branch(AvgPool, [("branch_pool", 192, [1, 1], 1, SAME)]),
    ]
}

/// Torchvision's truncated normal, without the truncation at twenty standard deviations.
fn weights(_: &Conv2d) -> Initialisation {
    Initialisation::Normal { std: 0.1 }
}

fn build(config: &ModelConfig) -> Result<Graph, GraphError> {
    let scaling = ChannelScaling::new(NETWORK.name, config, 32)?;
    let (graph, mut x) = GraphBuilder::new(NETWORK.name, image(config.input));
    let mut net = NetworkBuilder { graph, conv: weights, epsilon: 1e-3 };
    x = unit(&mut net, &scaling, "", ("Conv2d_1a_3x3", 32, [3, 3], 2, VALID), x)?;
    x = unit(&mut net, &scaling, "", ("Conv2d_2a_3x3", 32, [3, 3], 1, VALID), x)?;
    x = unit(&mut net, &scaling, "", ("Conv2d_2b_3x3", 64, [3, 3], 1, SAME), x)?;
    x = net.add("maxpool1", MaxPool2d::new(3, 2, 0), x)?;
    x = unit(&mut net, &scaling, "", ("Conv2d_3b_1x1", 80, [1, 1], 1, VALID), x)?;
    x = unit(&mut net, &scaling, "", ("Conv2d_4a_3x3", 192, [3, 3], 1, VALID), x)?;
    x = net.add("maxpool2", MaxPool2d::new(3, 2, 0), x)?;
    x = module(&mut net, &scaling, "Mixed_5b", &module_a(32), x)?;
    x = module(&mut net, &scaling, "Mixed_5c", &module_a(64), x)?;
    x = module(&mut net, &scaling, "Mixed_5d", &module_a(64), x)?;
    x = module(&mut net, &scaling, "Mixed_6a", &module_b(), x)?;
    x = module(&mut net, &scaling, "Mixed_6b", &module_c(128), x)?;
    x = module(&mut net, &scaling, "Mixed_6c", &module_c(160), x)?;
    x = module(&mut net, &scaling, "Mixed_6d", &module_c(160), x)?;
    x = module(&mut net, &scaling, "Mixed_6e", &module_c(192), x)?;
    auxiliary(&mut net, &scaling, x)?;
    x = module(&mut net, &scaling, "Mixed_7a", &module_d(), x)?;
    x = module(&mut net, &scaling, "Mixed_7b", &module_e(), x)?;
    x = module(&mut net, &scaling, "Mixed_7c", &module_e(), x)?;
    x = net.add("avgpool", AdaptiveAvgPool2d::GLOBAL, x)?;
    x = net.add("dropout", Dropout { p: 0.5 }, x)?;
    x = net.add("flatten", Flatten, x)?;
    x = linear(&mut net, "fc", scaling.classes, 0.1, x)?;
    net.graph.finish(x)
}

/// Adds a [`Unit`] whose name follows `prefix`.
fn unit(
    net: &mut NetworkBuilder,
    scaling: &ChannelScaling,
    prefix: &str,
    (name, filters, kernel, stride, same): Unit,
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let padding = if same { kernel.map(|extent| extent / 2) } else { [0, 0] };
    let conv = Conv2d {
        kernel,
        padding_before: padding,
        padding_after: padding,
        ..Conv2d::new(net.channels(x), scaling.scale(filters), 1, stride, 0)
    };
    let mut y = net.conv(&format!("{prefix}{name}.conv"), conv, x)?;
    y = net.norm(&format!("{prefix}{name}.bn"), y)?;
    net.add(&format!("{prefix}{name}.relu"), Relu, y)
}

fn module(
    net: &mut NetworkBuilder,
    scaling: &ChannelScaling,
    name: &str,
    branches: &[Branch],
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let prefix = format!("{name}.");
    let mut outputs = Vec::new();
    for branch in branches {
        let pool: Option<Op> = match branch.start {
            Input => None,
            AvgPool => Some(AvgPool2d::new(3, 1, 1).into()),
            MaxPool => Some(MaxPool2d::new(3, 2, 0).into()),
        };
        let mut y = match pool {
            Some(pool) => net.add(&format!("{prefix}pool"), pool, x)?,
            None => x,
        };
        for &part in &branch.units {
            y = unit(net, scaling, &prefix, part, y)?;
        }
        if let Some((joined, sides)) = branch.fork {
            let a = unit(net, scaling, &prefix, sides[0], y)?;
            let b = unit(net, scaling, &prefix, sides[1], y)?;
            y = net.graph.add(&format!("{prefix}{joined}.concat"), Concat, &[a, b])?;
        }
        outputs.push(y);
    }
    net.graph.add(&format!("{prefix}concat"), Concat, &outputs)
}

fn auxiliary(net: &mut NetworkBuilder, scaling: &ChannelScaling, x: TensorId) -> Result<(), GraphError> {
    let prefix = "AuxLogits.";
    let mut y = net.add("AuxLogits.pool", AvgPool2d::new(5, 3, 0), x)?;
    y = unit(net, scaling, prefix, ("conv0", 128, [1, 1], 1, VALID), y)?;
    y = unit(net, scaling, prefix, ("conv1", 768, [5, 5], 1, VALID), y)?;
    y = net.add("AuxLogits.avgpool", AdaptiveAvgPool2d::GLOBAL, y)?;
    y = net.add("AuxLogits.flatten", Flatten, y)?;
    y = linear(net, "AuxLogits.fc", scaling.classes, 0.001, y)?;
    net.graph.auxiliary(y, AUXILIARY_WEIGHT);
    Ok(())
}

fn linear(
    net: &mut NetworkBuilder,
    name: &str,
    features: usize,
    std: f32,
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let linear = Linear::new(net.channels(x), features);
    net.graph.add_with_init(name, linear, &[x], &[("weight", Initialisation::Normal { std })])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_have_the_published_sizes() {
        let graph = build(&imagenet(299)).unwrap();
        let shape = |name: &str| {
            graph.shape(graph.nodes.iter().find(|node| node.name == name).unwrap().output).to_string()
        };
        assert_eq!(shape("maxpool2"), "192x35x35");
        assert_eq!(shape("Mixed_5d.concat"), "288x35x35");
        assert_eq!(shape("Mixed_6e.concat"), "768x17x17");
        assert_eq!(shape("AuxLogits.conv1.relu"), "768x1x1");
        assert_eq!(shape("Mixed_7c.concat"), "2048x8x8");
        assert_eq!(graph.auxiliary.len(), 1);
        assert_eq!(graph.for_inference().trained_parameters(), 27_161_264 - 3_326_696);
    }
}
