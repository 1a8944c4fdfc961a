//! Networks that predict a class for every pixel, on a residual backbone: FCN (Long, Shelhamer, Darrell:
//! "Fully convolutional networks for semantic segmentation", 2015) and DeepLabv3+ (Chen, Zhu, Papandreou,
//! Schroff, Adam: "Encoder-decoder with atrous separable convolution for semantic image segmentation", 2018).
//!
//! ```text
//! image ─▶ backbone ─▶ 1/4 ───────────────────▶ 1x1 ─▶┐
//!              └─▶ 1/16 ─▶ atrous pyramid ─▶ resize ─▶ join ─▶ 3x3, 3x3 ─▶ 1x1 ─▶ resize ─▶ classes
//! ```
//!
//! Layers are named as in torchvision's segmentation models: `backbone.*` matches the weights of its ResNet.
//! Logits are resized to the image's size.

use super::resnet::dilated_resnet18;
use super::{ChannelScaling, ModelConfig, Network, NetworkBuilder, image, kaiming_fan_out};
use crate::ops::{AdaptiveAvgPool2d, Concat, Conv2d, Dropout, Relu, Resize};
use crate::{Graph, GraphBuilder, GraphError, TensorId};

/// CamVid's images and classes.
const CAMVID: ModelConfig = ModelConfig { input: [3, 360, 480], classes: 11, width: None };

pub(super) const FCN_RESNET18: Network = Network {
    name: "fcn_resnet18",
    description: "FCN on a dilated resnet18, output stride 8: per-pixel classes (Long et al., 2015)",
    defaults: || CAMVID,
    build: fcn,
};

pub(super) const DEEPLAB: Network = Network {
    name: "deeplabv3plus_resnet18",
    description: "DeepLabv3+ on resnet18, output stride 16: per-pixel classes (Chen et al., 2018)",
    defaults: || CAMVID,
    build: |config| deeplab(DEEPLAB.name, 16, config),
};

pub(super) const DEEPLAB_FINE: Network = Network {
    name: "deeplabv3plus_resnet18_os8",
    description: "DeepLabv3+ on resnet18, output stride 8: finer maps, four times the work in its last \
                  stages",
    defaults: || CAMVID,
    build: |config| deeplab(DEEPLAB_FINE.name, 8, config),
};

/// Channels of the backbone's low-level maps at a quarter of the size, of the pyramid, and of the projected
/// low-level maps in the decoder.
const LOW: usize = 64;
const PYRAMID: usize = 256;
const PROJECTED: usize = 48;

/// Dilated convolution that keeps the size, batch norm and ReLU: the modules `first`, `first + 1` and `first
/// + 2` of `name`.
fn unit(
    net: &mut NetworkBuilder,
    name: &str,
    first: usize,
    filters: usize,
    [kernel, dilation]: [usize; 2],
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let padding = dilation * (kernel / 2);
    let conv = Conv2d::new(net.channels(x), filters, kernel, 1, padding);
    let mut y = net.conv(&format!("{name}.{first}"), Conv2d { dilation: [dilation; 2], ..conv }, x)?;
    y = net.norm(&format!("{name}.{}", first + 1), y)?;
    net.add(&format!("{name}.{}", first + 2), Relu, y)
}

/// The logits: a 1x1 convolution with a bias and PyTorch's initialisation.
fn classify(
    net: &mut NetworkBuilder,
    name: &str,
    classes: usize,
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let conv = Conv2d { bias: true, ..Conv2d::new(net.channels(x), classes, 1, 1, 0) };
    net.add(name, conv, x)
}

fn begin(
    network: &str,
    config: &ModelConfig,
) -> Result<(NetworkBuilder, ChannelScaling, TensorId), GraphError> {
    let scaling = ChannelScaling::new(network, config, LOW)?;
    let (graph, images) = GraphBuilder::new(network, image(config.input));
    Ok((NetworkBuilder { graph, conv: kaiming_fan_out, epsilon: 1e-5 }, scaling, images))
}

fn fcn(config: &ModelConfig) -> Result<Graph, GraphError> {
    let (mut net, scaling, images) = begin(FCN_RESNET18.name, config)?;
    let [_, mut x] = dilated_resnet18(&mut net, "backbone.", &scaling, 8, images)?;
    x = unit(&mut net, "classifier", 0, scaling.scale(128), [3, 1], x)?;
    x = net.add("classifier.3", Dropout { p: 0.1 }, x)?;
    x = classify(&mut net, "classifier.4", scaling.classes, x)?;
    x = net.graph.add("resize", Resize::LIKE, &[x, images])?;
    net.graph.finish(x)
}

fn deeplab(name: &str, output_stride: usize, config: &ModelConfig) -> Result<Graph, GraphError> {
    let (mut net, scaling, images) = begin(name, config)?;
    let [low, high] = dilated_resnet18(&mut net, "backbone.", &scaling, output_stride, images)?;
    let rates = [6, 12, 18].map(|rate| rate * 16 / output_stride);
    let deep = pyramid(&mut net, "classifier.aspp", &scaling, rates, high)?;
    let projected = unit(&mut net, "classifier.project", 0, scaling.scale(PROJECTED), [1, 1], low)?;
    let deep = net.graph.add("classifier.resize", Resize::LIKE, &[deep, low])?;
    let mut x = net.graph.add("classifier.join", Concat, &[projected, deep])?;
    x = unit(&mut net, "classifier.classifier", 0, scaling.scale(PYRAMID), [3, 1], x)?;
    x = unit(&mut net, "classifier.classifier", 3, scaling.scale(PYRAMID), [3, 1], x)?;
    x = classify(&mut net, "classifier.classifier.6", scaling.classes, x)?;
    x = net.graph.add("resize", Resize::LIKE, &[x, images])?;
    net.graph.finish(x)
}

/// Atrous spatial pyramid pooling: in parallel a 1x1 convolution, three 3x3 convolutions with dilation
/// `rates`, and the mean of the whole map, combined by a 1x1 convolution.
fn pyramid(
    net: &mut NetworkBuilder,
    name: &str,
    scaling: &ChannelScaling,
    rates: [usize; 3],
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let channels = scaling.scale(PYRAMID);
    let mut branches = vec![unit(net, &format!("{name}.convs.0"), 0, channels, [1, 1], x)?];
    for (rate, number) in rates.into_iter().zip(1..) {
        branches.push(unit(net, &format!("{name}.convs.{number}"), 0, channels, [3, rate], x)?);
    }
    let mut mean = net.add(&format!("{name}.convs.4.0"), AdaptiveAvgPool2d::GLOBAL, x)?;
    mean = unit(net, &format!("{name}.convs.4"), 1, channels, [1, 1], mean)?;
    branches.push(net.graph.add(&format!("{name}.convs.4.resize"), Resize::LIKE, &[mean, x])?);
    let mut y = net.graph.add(&format!("{name}.join"), Concat, &branches)?;
    y = unit(net, &format!("{name}.project"), 0, channels, [1, 1], y)?;
    net.add(&format!("{name}.project.3"), Dropout { p: 0.1 }, y)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(network: &Network, input: [usize; 3]) -> Graph {
        (network.build)(&ModelConfig { input, ..(network.defaults)() }).unwrap()
    }

    fn shape(graph: &Graph, layer: &str) -> String {
        let node = graph.nodes.iter().find(|node| node.name == layer).unwrap();
        graph.shape(node.output).to_string()
    }

    #[test]
    fn logits_have_the_size_of_the_image() {
        for network in [FCN_RESNET18, DEEPLAB, DEEPLAB_FINE] {
            for [height, width] in [[360, 480], [97, 131], [32, 32], [1, 1]] {
                let graph = built(&network, [3, height, width]);
                assert_eq!(graph.shape(graph.output).0, [11, height, width], "{}", network.name);
            }
        }
    }

    #[test]
    fn dilation_keeps_the_output_stride() {
        let coarse = built(&DEEPLAB, [3, 360, 480]);
        let fine = built(&DEEPLAB_FINE, [3, 360, 480]);
        assert_eq!(shape(&coarse, "classifier.aspp.join"), "1280x23x30");
        assert_eq!(shape(&fine, "classifier.aspp.join"), "1280x45x60");
        assert_eq!(shape(&coarse, "classifier.join"), "304x90x120");
        // The parameters are equal, so weights of one fit the other.
        let keys = |graph: &Graph| graph.parameters.iter().map(|p| p.name.clone()).collect::<Vec<_>>();
        assert_eq!(keys(&coarse), keys(&fine));
    }
}
