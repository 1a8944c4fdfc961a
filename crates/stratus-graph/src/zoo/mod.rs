//! The networks by name: a file per family, a line in `NETWORKS`.

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

/// What a network can be asked to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hyperparameters {
    /// One sample: `[channels, height, width]`.
    pub input: [usize; 3],
    /// Classes to tell apart.
    pub classes: usize,
    /// The width of the network: the filters of its first convolution. `None` is the published width.
    pub width: Option<usize>,
}

/// A network of the zoo.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is and where it is published.
    pub about: &'static str,
    /// The published input and class count.
    pub defaults: fn() -> Hyperparameters,
    /// Builds it as it is trained, auxiliary outputs included; [`Graph::for_inference`] leaves them out.
    pub build: fn(&Hyperparameters) -> Result<Graph, GraphError>,
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
/// Where there is none; the message suggests the nearest name.
pub fn find(name: &str) -> Result<&'static Network, GraphError> {
    let names = || NETWORKS.iter().map(|network| network.name);
    NETWORKS.iter().find(|network| network.name == name).ok_or_else(|| GraphError::Unknown {
        name: name.to_owned(),
        suggestion: nearest(name, names()).map(str::to_owned),
        known: names().collect::<Vec<_>>().join(", "),
    })
}

/// The hyper-parameters of a network for photographs of 1,000 classes.
const fn imagenet(size: usize) -> Hyperparameters {
    Hyperparameters { input: [3, size, size], classes: 1000, width: None }
}

/// Checks what all networks need of their hyper-parameters.
fn positive(network: &str, key: &'static str, value: usize) -> Result<usize, GraphError> {
    if value == 0 || value > 1 << 20 {
        return Err(GraphError::Hyperparameter {
            network: network.to_owned(),
            key,
            value: value.to_string(),
            need: "it is a count from 1 to 1048576".to_owned(),
        });
    }
    Ok(value)
}

fn image(input: [usize; 3]) -> Shape {
    Shape::image(input[0], input[1], input[2])
}

/// The checked sizes of a network: how many classes, and how its channels follow from its width.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    classes: usize,
    width: usize,
    published: usize,
}

impl Sizes {
    /// `published`: the filters of the first convolution, where no width is asked for.
    fn new(network: &str, hyper: &Hyperparameters, published: usize) -> Result<Self, GraphError> {
        let width = positive(network, "model.width", hyper.width.unwrap_or(published))?;
        let classes = positive(network, "model.classes", hyper.classes)?;
        Ok(Self { classes, width, published })
    }

    /// A published count of channels or features at this width: to the nearest whole number, at least one.
    fn of(&self, channels: usize) -> usize {
        ((channels * self.width + self.published / 2) / self.published).max(1)
    }
}

/// Layers one behind the other, and how their weights begin.
#[derive(Debug)]
struct Chain {
    graph: GraphBuilder,
    /// How the weights of convolutions begin; biases begin at zero.
    conv: fn(&Conv2d) -> Initialisation,
    /// The epsilon of batch norms.
    epsilon: f32,
}

impl Chain {
    /// Adds a layer without parameters.
    fn add(&mut self, name: &str, op: impl Into<Op>, x: TensorId) -> Result<TensorId, GraphError> {
        self.graph.add(name, op, &[x])
    }

    /// The channels of a feature map, the elements of a vector.
    fn channels(&self, x: TensorId) -> usize {
        self.graph.shape(x).0.first().copied().unwrap_or(0)
    }

    /// Adds a convolution.
    fn conv(&mut self, name: &str, conv: Conv2d, x: TensorId) -> Result<TensorId, GraphError> {
        let initial = [("weight", (self.conv)(&conv)), ("bias", Initialisation::Zeros)];
        self.graph.add_with(name, conv, &[x], if conv.bias { &initial } else { &initial[..1] })
    }

    /// Adds a batch norm.
    fn norm(&mut self, name: &str, x: TensorId) -> Result<TensorId, GraphError> {
        let norm = BatchNorm2d { epsilon: self.epsilon, ..BatchNorm2d::new(self.channels(x)) };
        self.graph.add(name, norm, &[x])
    }
}

/// He et al.'s variance over the outputs that a weight takes part in, as torchvision's residual networks
/// have it.
fn kaiming_fan_out(conv: &Conv2d) -> Initialisation {
    Initialisation::kaiming_normal(conv.fan_out())
}

#[cfg(test)]
mod tests;
