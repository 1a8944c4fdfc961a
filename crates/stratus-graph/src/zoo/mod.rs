//! The networks by name: one file per family and one line in `NETWORKS`.

mod alexnet;
mod convnext;
mod densenet;
mod digits;
mod efficientnet;
mod erfnet;
mod googlenet;
mod inception;
mod inverted;
mod mobilenet;
mod mobilenet_v3;
mod resnet;
mod segmentation;
mod squeezenet;
mod vgg;

use crate::ops::{BatchNorm2d, Conv2d};
use crate::{Graph, GraphBuilder, GraphError, Initialisation, Op, Shape, TensorId};
use stratus_base::nearest;

/// The configuration of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelConfig {
    /// One sample: `[channels, height, width]`.
    pub input: [usize; 3],
    /// Number of classes.
    pub classes: usize,
    /// The width of the network: the filters of its first convolution. `None` is the published width.
    pub width: Option<usize>,
}

/// A network of the zoo.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// Its name on the command line.
    pub name: &'static str,
    /// A short description and the publication.
    pub description: &'static str,
    /// The published configuration.
    pub defaults: fn() -> ModelConfig,
    /// Builds it for training, auxiliary outputs included; [`Graph::for_inference`] removes them.
    pub build: fn(&ModelConfig) -> Result<Graph, GraphError>,
}

/// Every network.
pub const NETWORKS: &[Network] = &[
    digits::NETWORK,
    alexnet::ALEXNET,
    alexnet::ALEXNET_BN,
    alexnet::ALEXNET_LRN,
    vgg::VGG11,
    vgg::VGG11_BN,
    vgg::VGG13,
    vgg::VGG13_BN,
    vgg::VGG16,
    vgg::VGG16_BN,
    vgg::VGG19,
    vgg::VGG19_BN,
    googlenet::NETWORK,
    inception::NETWORK,
    resnet::RESNET18,
    resnet::RESNET34,
    resnet::RESNET50,
    resnet::RESNET101,
    resnet::RESNET152,
    resnet::RESNET18_CIFAR,
    resnet::RESNEXT50,
    densenet::DENSENET121,
    squeezenet::V1_1,
    mobilenet::NETWORK,
    mobilenet_v3::SMALL,
    mobilenet_v3::LARGE,
    efficientnet::B0,
    convnext::TINY,
    segmentation::FCN_RESNET18,
    segmentation::DEEPLAB,
    segmentation::DEEPLAB_FINE,
    erfnet::NETWORK,
    erfnet::ENCODER,
];

/// Finds a network by name.
///
/// # Errors
/// If there is no such network; the message suggests the nearest name.
pub fn find(name: &str) -> Result<&'static Network, GraphError> {
    let names = || NETWORKS.iter().map(|network| network.name);
    NETWORKS.iter().find(|network| network.name == name).ok_or_else(|| GraphError::Unknown {
        name: name.to_owned(),
        suggestion: nearest(name, names()).map(str::to_owned),
        known: names().collect::<Vec<_>>().join(", "),
    })
}

/// The configuration for ImageNet with square images of `size` pixels.
const fn imagenet(size: usize) -> ModelConfig {
    ModelConfig { input: [3, size, size], classes: 1000, width: None }
}

/// Checks a count of the configuration.
fn check_count(network: &str, key: &'static str, value: usize) -> Result<usize, GraphError> {
    if value == 0 || value > 1 << 20 {
        return Err(GraphError::InvalidConfig {
            network: network.to_owned(),
            key,
            value: value.to_string(),
            need: "must be an integer from 1 to 1048576".to_owned(),
        });
    }
    Ok(value)
}

fn image(input: [usize; 3]) -> Shape {
    Shape::image(input[0], input[1], input[2])
}

/// The checked class count of a network, and the scaling of its channels to the requested width.
#[derive(Clone, Copy, Debug)]
struct ChannelScaling {
    classes: usize,
    width: usize,
    published: usize,
}

impl ChannelScaling {
    /// A scaling in which `published` is the number of filters of the first convolution, used if no width is
    /// configured.
    fn new(network: &str, config: &ModelConfig, published: usize) -> Result<Self, GraphError> {
        let width = check_count(network, "model.width", config.width.unwrap_or(published))?;
        let classes = check_count(network, "model.classes", config.classes)?;
        Ok(Self { classes, width, published })
    }

    /// Scales a published count of channels or features to this width, rounded to the nearest integer, at
    /// least 1.
    fn scale(&self, channels: usize) -> usize {
        ((channels * self.width + self.published / 2) / self.published).max(1)
    }
}

/// A graph builder with a common initialisation and epsilon for all layers.
#[derive(Debug)]
struct NetworkBuilder {
    graph: GraphBuilder,
    /// The initialisation of convolution weights; biases are initialised to zero.
    conv: fn(&Conv2d) -> Initialisation,
    /// The epsilon of batch norms.
    epsilon: f32,
}

impl NetworkBuilder {
    /// Adds a layer without parameters.
    fn add(&mut self, name: &str, op: impl Into<Op>, x: TensorId) -> Result<TensorId, GraphError> {
        self.graph.add(name, op, &[x])
    }

    /// The channels of a feature map or the elements of a vector.
    fn channels(&self, x: TensorId) -> usize {
        self.graph.shape(x).0.first().copied().unwrap_or(0)
    }

    /// Adds a convolution.
    fn conv(&mut self, name: &str, conv: Conv2d, x: TensorId) -> Result<TensorId, GraphError> {
        let initial = [("weight", (self.conv)(&conv)), ("bias", Initialisation::Zeros)];
        self.graph.add_with_init(name, conv, &[x], if conv.bias { &initial } else { &initial[..1] })
    }

    /// Adds a batch norm.
    fn norm(&mut self, name: &str, x: TensorId) -> Result<TensorId, GraphError> {
        let norm = BatchNorm2d { epsilon: self.epsilon, ..BatchNorm2d::new(self.channels(x)) };
        self.graph.add(name, norm, &[x])
    }
}

/// He et al.'s initialisation by fan-out, as in torchvision's residual networks.
fn kaiming_fan_out(conv: &Conv2d) -> Initialisation {
    Initialisation::kaiming_normal(conv.fan_out())
}

#[cfg(test)]
mod tests;
