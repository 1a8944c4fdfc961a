//! Inception v3 (Szegedy et al.: "Rethinking the inception architecture for computer vision", 2015),
//! torchvision's layers and names.

use super::{Chain, Hyperparameters, Network, Sizes, image, imagenet};
use crate::ops::{AdaptiveAvgPool2d, AvgPool2d, Concat, Conv2d, Dropout, Flatten, Linear, MaxPool2d, Relu};
use crate::{Graph, GraphBuilder, GraphError, Initialisation, Op, TensorId};

pub(super) const NETWORK: Network = Network {
    name: "inception_v3",
    about: "Inception v3: 11 inception modules, an auxiliary output while it trains (Szegedy et al., 2015)",
    defaults: || imagenet(299),
    build,
};

/// What the loss of the auxiliary output counts.
const AUXILIARY_WEIGHT: f32 = 0.4;

/// A convolution with batch norm and rectifier: name, filters, kernel, stride; with `SAME`, padding that
/// keeps height and width.
type Unit = (&'static str, usize, [usize; 2], usize, bool);

const SAME: bool = true;
const VALID: bool = false;

/// How a branch begins, before its convolutions.
enum Start {
    /// With the module's input.
    Input,
    /// With a mean over 3x3, padded.
    Average,
    /// With the largest of 3x3, stride 2.
    Largest,
}
use Start::{Average, Input, Largest};

/// A branch: convolutions in sequence, then several side by side (none, or two whose outputs are joined).
struct Branch {
    start: Start,
    units: Vec<Unit>,
    fork: Option<(&'static str, [Unit; 2])>,
}

fn branch(start: Start, units: impl Into<Vec<Unit>>) -> Branch {
    Branch { start, units: units.into(), fork: None }
}

/// On 35x35: 1x1, 5x5, two 3x3, and a pool.
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
        branch(Average, [("branch_pool", pooled, [1, 1], 1, SAME)]),
    ]
}

/// From 35x35 to 17x17.
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
        branch(Largest, []),
    ]
}

/// On 17x17: 7x7 as 1x7 and 7x1, inside with `inner` filters.
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
        branch(Average, [("branch_pool", 192, [1, 1], 1, SAME)]),
    ]
}

/// From 17x17 to 8x8.
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
        branch(Largest, []),
    ]
}

/// On 8x8: 3x3 as 1x3 beside 3x1.
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
        branch(Average, [("branch_pool", 192, [1, 1], 1, SAME)]),
    ]
}

/// Torchvision's truncated normal, whose limits of 2 lie twenty deviations away.
fn weights(_: &Conv2d) -> Initialisation {
    Initialisation::Normal { std: 0.1 }
}

fn build(hyper: &Hyperparameters) -> Result<Graph, GraphError> {
    let sizes = Sizes::new(NETWORK.name, hyper, 32)?;
    let (graph, mut x) = GraphBuilder::new(NETWORK.name, image(hyper.input));
    let mut chain = Chain { graph, conv: weights, epsilon: 1e-3 };
    let net = &mut chain;
    x = unit(net, &sizes, "", ("Conv2d_1a_3x3", 32, [3, 3], 2, VALID), x)?;
    x = unit(net, &sizes, "", ("Conv2d_2a_3x3", 32, [3, 3], 1, VALID), x)?;
    x = unit(net, &sizes, "", ("Conv2d_2b_3x3", 64, [3, 3], 1, SAME), x)?;
    x = net.add("maxpool1", MaxPool2d::new(3, 2, 0), x)?;
    x = unit(net, &sizes, "", ("Conv2d_3b_1x1", 80, [1, 1], 1, VALID), x)?;
    x = unit(net, &sizes, "", ("Conv2d_4a_3x3", 192, [3, 3], 1, VALID), x)?;
    x = net.add("maxpool2", MaxPool2d::new(3, 2, 0), x)?;
    x = module(net, &sizes, "Mixed_5b", &module_a(32), x)?;
    x = module(net, &sizes, "Mixed_5c", &module_a(64), x)?;
    x = module(net, &sizes, "Mixed_5d", &module_a(64), x)?;
    x = module(net, &sizes, "Mixed_6a", &module_b(), x)?;
    x = module(net, &sizes, "Mixed_6b", &module_c(128), x)?;
    x = module(net, &sizes, "Mixed_6c", &module_c(160), x)?;
    x = module(net, &sizes, "Mixed_6d", &module_c(160), x)?;
    x = module(net, &sizes, "Mixed_6e", &module_c(192), x)?;
    auxiliary(net, &sizes, x)?;
    x = module(net, &sizes, "Mixed_7a", &module_d(), x)?;
    x = module(net, &sizes, "Mixed_7b", &module_e(), x)?;
    x = module(net, &sizes, "Mixed_7c", &module_e(), x)?;
    x = net.add("avgpool", AdaptiveAvgPool2d::GLOBAL, x)?;
    x = net.add("dropout", Dropout { p: 0.5 }, x)?;
    x = net.add("flatten", Flatten, x)?;
    x = linear(net, "fc", sizes.classes, 0.1, x)?;
    chain.graph.finish(x)
}

/// Adds a [`Unit`] whose name follows `prefix`.
fn unit(
    chain: &mut Chain,
    sizes: &Sizes,
    prefix: &str,
    (name, filters, kernel, stride, same): Unit,
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let padding = if same { kernel.map(|extent| extent / 2) } else { [0, 0] };
    let conv = Conv2d {
        kernel,
        padding_before: padding,
        padding_after: padding,
        ..Conv2d::new(chain.channels(x), sizes.of(filters), 1, stride, 0)
    };
    let mut y = chain.conv(&format!("{prefix}{name}.conv"), conv, x)?;
    y = chain.norm(&format!("{prefix}{name}.bn"), y)?;
    chain.add(&format!("{prefix}{name}.relu"), Relu, y)
}

fn module(
    chain: &mut Chain,
    sizes: &Sizes,
    name: &str,
    branches: &[Branch],
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let prefix = format!("{name}.");
    let mut outputs = Vec::new();
    for branch in branches {
        let pool: Option<Op> = match branch.start {
            Input => None,
            Average => Some(AvgPool2d::new(3, 1, 1).into()),
            Largest => Some(MaxPool2d::new(3, 2, 0).into()),
        };
        let mut y = match pool {
            Some(pool) => chain.add(&format!("{prefix}pool"), pool, x)?,
            None => x,
        };
        for &part in &branch.units {
            y = unit(chain, sizes, &prefix, part, y)?;
        }
        if let Some((joined, sides)) = branch.fork {
            let a = unit(chain, sizes, &prefix, sides[0], y)?;
            let b = unit(chain, sizes, &prefix, sides[1], y)?;
            y = chain.graph.add(&format!("{prefix}{joined}.concat"), Concat, &[a, b])?;
        }
        outputs.push(y);
    }
    chain.graph.add(&format!("{prefix}concat"), Concat, &outputs)
}

fn auxiliary(chain: &mut Chain, sizes: &Sizes, x: TensorId) -> Result<(), GraphError> {
    let prefix = "AuxLogits.";
    let mut y = chain.add("AuxLogits.pool", AvgPool2d::new(5, 3, 0), x)?;
    y = unit(chain, sizes, prefix, ("conv0", 128, [1, 1], 1, VALID), y)?;
    y = unit(chain, sizes, prefix, ("conv1", 768, [5, 5], 1, VALID), y)?;
    y = chain.add("AuxLogits.avgpool", AdaptiveAvgPool2d::GLOBAL, y)?;
    y = chain.add("AuxLogits.flatten", Flatten, y)?;
    y = linear(chain, "AuxLogits.fc", sizes.classes, 0.001, y)?;
    chain.graph.auxiliary(y, AUXILIARY_WEIGHT);
    Ok(())
}

fn linear(
    chain: &mut Chain,
    name: &str,
    features: usize,
    std: f32,
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let linear = Linear::new(chain.channels(x), features);
    chain.graph.add_with(name, linear, &[x], &[("weight", Initialisation::Normal { std })])
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
