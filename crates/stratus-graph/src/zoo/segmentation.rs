//! Networks that give a class for every pixel, on a residual backbone: FCN (Long, Shelhamer, Darrell: "Fully
//! convolutional networks for semantic segmentation", 2015) and DeepLabv3+ (Chen, Zhu, Papandreou, Schroff,
//! Adam: "Encoder-decoder with atrous separable convolution for semantic image segmentation", 2018).
//!
//! ```text
//! image ─▶ backbone ─▶ 1/4 ───────────────────▶ 1x1 ─▶┐
//!              └─▶ 1/16 ─▶ atrous pyramid ─▶ resize ─▶ join ─▶ 3x3, 3x3 ─▶ 1x1 ─▶ resize ─▶ classes
//! ```
//!
//! Layers are named as in torchvision's segmentation models: `backbone.*` takes the weights of its ResNet.
//! Logits are resized to the image's size, whatever that is.

use super::resnet::dilated_resnet18;
use super::{Chain, Hyperparameters, Network, Sizes, image, kaiming_fan_out};
use crate::ops::{AdaptiveAvgPool2d, Concat, Conv2d, Dropout, Relu, Resize};
use crate::{Graph, GraphBuilder, GraphError, TensorId};

/// CamVid's images and classes.
const CAMVID: Hyperparameters = Hyperparameters { input: [3, 360, 480], classes: 11, width: None };

pub(super) const FCN_RESNET18: Network = Network {
    name: "fcn_resnet18",
    about: "FCN on a dilated resnet18, output stride 8: a class for every pixel (Long et al., 2015)",
    defaults: || CAMVID,
    build: fcn,
};

pub(super) const DEEPLAB: Network = Network {
    name: "deeplabv3plus_resnet18",
    about: "DeepLabv3+ on resnet18, output stride 16: a class for every pixel (Chen et al., 2018)",
    defaults: || CAMVID,
    build: |hyper| deeplab(DEEPLAB.name, 16, hyper),
};

pub(super) const DEEPLAB_FINE: Network = Network {
    name: "deeplabv3plus_resnet18_os8",
    about: "DeepLabv3+ on resnet18, output stride 8: finer maps, four times the work in its last stages",
    defaults: || CAMVID,
    build: |hyper| deeplab(DEEPLAB_FINE.name, 8, hyper),
};

/// Channels of the backbone's maps at a quarter of the size, of the pyramid's, and of the low-level maps that
/// the decoder joins.
const LOW: usize = 64;
const PYRAMID: usize = 256;
const PROJECTED: usize = 48;

/// Convolution of `kernel`x`kernel` taps `dilation` apart that keeps the size, batch norm, rectifier: the
/// modules `first`, `first + 1` and `first + 2` of `name`.
fn unit(
    chain: &mut Chain,
    name: &str,
    first: usize,
    filters: usize,
    [kernel, dilation]: [usize; 2],
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let padding = dilation * (kernel / 2);
    let conv = Conv2d::new(chain.channels(x), filters, kernel, 1, padding);
    let mut y = chain.conv(&format!("{name}.{first}"), Conv2d { dilation: [dilation; 2], ..conv }, x)?;
    y = chain.norm(&format!("{name}.{}", first + 1), y)?;
    chain.add(&format!("{name}.{}", first + 2), Relu, y)
}

/// The logits: a convolution of one tap with a bias, whose weights begin as PyTorch's do.
fn classify(chain: &mut Chain, name: &str, classes: usize, x: TensorId) -> Result<TensorId, GraphError> {
    let conv = Conv2d { bias: true, ..Conv2d::new(chain.channels(x), classes, 1, 1, 0) };
    chain.add(name, conv, x)
}

fn begin(network: &str, hyper: &Hyperparameters) -> Result<(Chain, Sizes, TensorId), GraphError> {
    let sizes = Sizes::new(network, hyper, LOW)?;
    let (graph, images) = GraphBuilder::new(network, image(hyper.input));
    Ok((Chain { graph, conv: kaiming_fan_out, epsilon: 1e-5 }, sizes, images))
}

fn fcn(hyper: &Hyperparameters) -> Result<Graph, GraphError> {
    let (mut chain, sizes, images) = begin(FCN_RESNET18.name, hyper)?;
    let [_, mut x] = dilated_resnet18(&mut chain, "backbone.", &sizes, 8, images)?;
    x = unit(&mut chain, "classifier", 0, sizes.of(128), [3, 1], x)?;
    x = chain.add("classifier.3", Dropout { p: 0.1 }, x)?;
    x = classify(&mut chain, "classifier.4", sizes.classes, x)?;
    x = chain.graph.add("resize", Resize::LIKE, &[x, images])?;
    chain.graph.finish(x)
}

fn deeplab(name: &str, output_stride: usize, hyper: &Hyperparameters) -> Result<Graph, GraphError> {
    let (mut chain, sizes, images) = begin(name, hyper)?;
    let [low, high] = dilated_resnet18(&mut chain, "backbone.", &sizes, output_stride, images)?;
    let rates = [6, 12, 18].map(|rate| rate * 16 / output_stride);
    let deep = pyramid(&mut chain, "classifier.aspp", &sizes, rates, high)?;
    let projected = unit(&mut chain, "classifier.project", 0, sizes.of(PROJECTED), [1, 1], low)?;
    let deep = chain.graph.add("classifier.resize", Resize::LIKE, &[deep, low])?;
    let mut x = chain.graph.add("classifier.join", Concat, &[projected, deep])?;
    x = unit(&mut chain, "classifier.classifier", 0, sizes.of(PYRAMID), [3, 1], x)?;
    x = unit(&mut chain, "classifier.classifier", 3, sizes.of(PYRAMID), [3, 1], x)?;
    x = classify(&mut chain, "classifier.classifier.6", sizes.classes, x)?;
    x = chain.graph.add("resize", Resize::LIKE, &[x, images])?;
    chain.graph.finish(x)
}

/// Atrous spatial pyramid pooling: a convolution of one tap, three of 3x3 taps that are `rates` apart, and
/// the mean of the whole map, side by side; a convolution of one tap joins them.
fn pyramid(
    chain: &mut Chain,
    name: &str,
    sizes: &Sizes,
    rates: [usize; 3],
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let channels = sizes.of(PYRAMID);
    let mut branches = vec![unit(chain, &format!("{name}.convs.0"), 0, channels, [1, 1], x)?];
    for (rate, number) in rates.into_iter().zip(1..) {
        branches.push(unit(chain, &format!("{name}.convs.{number}"), 0, channels, [3, rate], x)?);
    }
    let mut mean = chain.add(&format!("{name}.convs.4.0"), AdaptiveAvgPool2d::GLOBAL, x)?;
    mean = unit(chain, &format!("{name}.convs.4"), 1, channels, [1, 1], mean)?;
    branches.push(chain.graph.add(&format!("{name}.convs.4.resize"), Resize::LIKE, &[mean, x])?);
    let mut y = chain.graph.add(&format!("{name}.join"), Concat, &branches)?;
    y = unit(chain, &format!("{name}.project"), 0, channels, [1, 1], y)?;
    chain.add(&format!("{name}.project.3"), Dropout { p: 0.1 }, y)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(network: &Network, input: [usize; 3]) -> Graph {
        (network.build)(&Hyperparameters { input, ..(network.defaults)() }).unwrap()
    }

    fn shape(graph: &Graph, layer: &str) -> String {
        let node = graph.nodes.iter().find(|node| node.name == layer).unwrap();
        graph.shape(node.output).to_string()
    }

    #[test]
    fn logits_have_the_size_of_the_image_whatever_it_is() {
        for network in [FCN_RESNET18, DEEPLAB, DEEPLAB_FINE] {
            for [height, width] in [[360, 480], [97, 131], [32, 32], [1, 1]] {
                let graph = built(&network, [3, height, width]);
                assert_eq!(graph.shape(graph.output).0, [11, height, width], "{}", network.name);
            }
        }
    }

    #[test]
    fn the_output_stride_is_kept_by_dilation() {
        let coarse = built(&DEEPLAB, [3, 360, 480]);
        let fine = built(&DEEPLAB_FINE, [3, 360, 480]);
        assert_eq!(shape(&coarse, "classifier.aspp.join"), "1280x23x30");
        assert_eq!(shape(&fine, "classifier.aspp.join"), "1280x45x60");
        assert_eq!(shape(&coarse, "classifier.join"), "304x90x120");
        // The parameters are the same: weights of one fit the other.
        let keys = |graph: &Graph| graph.parameters.iter().map(|p| p.name.clone()).collect::<Vec<_>>();
        assert_eq!(keys(&coarse), keys(&fine));
    }
}
