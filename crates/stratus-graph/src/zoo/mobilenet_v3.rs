//! MobileNetV3 (Howard et al.: "Searching for MobileNetV3", 2019), torchvision's layers and names.

use super::inverted::Style;
use super::mobilenet::scaled;
use super::{Chain, Hyperparameters, Network, Sizes, image, imagenet, kaiming_fan_out};
use crate::ops::{AdaptiveAvgPool2d, Add, Conv2d, Dropout, Flatten, HardSigmoid, HardSwish, Linear, Relu};
use crate::{Graph, GraphBuilder, GraphError, Initialisation, Op, TensorId};

pub(super) const SMALL: Network = Network {
    name: "mobilenet_v3_small",
    about: "MobileNetV3 small: 11 inverted residual blocks, most squeeze and excite (Howard et al., 2019)",
    defaults: || imagenet(224),
    build: |hyper| build("mobilenet_v3_small", &SMALL_BLOCKS, 1024, hyper),
};

pub(super) const LARGE: Network = Network {
    name: "mobilenet_v3_large",
    about: "MobileNetV3 large: 15 inverted residual blocks, half squeeze and excite (Howard et al., 2019)",
    defaults: || imagenet(224),
    build: |hyper| build("mobilenet_v3_large", &LARGE_BLOCKS, 1280, hyper),
};

/// Filters of the first convolution.
const FIRST: usize = 16;
/// By how much the last convolution widens.
const WIDER: usize = 6;

/// A block: kernel, channels inside it and behind it, whether it squeezes, its activations, stride.
type Block = (usize, usize, usize, bool, Activation, usize);

#[derive(Clone, Copy)]
enum Activation {
    Relu,
    HardSwish,
}

use Activation::{HardSwish as HS, Relu as RE};

const SMALL_BLOCKS: [Block; 11] = [
    (3, 16, 16, true, RE, 2),
    (3, 72, 24, false, RE, 2),
    (3, 88, 24, false, RE, 1),
    (5, 96, 40, true, HS, 2),
    (5, 240, 40, true, HS, 1),
    (5, 240, 40, true, HS, 1),
    (5, 120, 48, true, HS, 1),
    (5, 144, 48, true, HS, 1),
    (5, 288, 96, true, HS, 2),
    (5, 576, 96, true, HS, 1),
    (5, 576, 96, true, HS, 1),
];

const LARGE_BLOCKS: [Block; 15] = [
    (3, 16, 16, false, RE, 1),
    (3, 64, 24, false, RE, 2),
    (3, 72, 24, false, RE, 1),
    (5, 72, 40, true, RE, 2),
    (5, 120, 40, true, RE, 1),
    (5, 120, 40, true, RE, 1),
    (3, 240, 80, false, HS, 2),
    (3, 200, 80, false, HS, 1),
    (3, 184, 80, false, HS, 1),
    (3, 184, 80, false, HS, 1),
    (3, 480, 112, true, HS, 1),
    (3, 672, 112, true, HS, 1),
    (5, 672, 160, true, HS, 2),
    (5, 960, 160, true, HS, 1),
    (5, 960, 160, true, HS, 1),
];

impl From<Activation> for Op {
    fn from(activation: Activation) -> Self {
        match activation {
            RE => Relu.into(),
            HS => HardSwish.into(),
        }
    }
}

fn build(
    name: &str,
    blocks: &[Block],
    features: usize,
    hyper: &Hyperparameters,
) -> Result<Graph, GraphError> {
    let sizes = Sizes::new(name, hyper, FIRST)?;
    let of = |channels| scaled(channels, sizes.width, FIRST);
    let (graph, mut x) = GraphBuilder::new(name, image(hyper.input));
    let mut chain = Chain { graph, conv: kaiming_fan_out, epsilon: 1e-3 };
    let style = Style { momentum: 0.01, squeeze: Relu.into(), gate: HardSigmoid.into() };
    let first = Conv2d::new(hyper.input[0], of(FIRST), 3, 2, 1);
    x = style.unit(&mut chain, "features.0", first, Some(HS.into()), x)?;
    let mut before = FIRST;
    for (&(kernel, inside, channels, squeezes, activation, stride), position) in blocks.iter().zip(1..) {
        let name = format!("features.{position}.block");
        let (input, wide) = (x, of(inside));
        let mut part = 0..;
        let mut next = || format!("{name}.{}", part.next().unwrap_or_default());
        if inside != before {
            let conv = Conv2d::new(chain.channels(x), wide, 1, 1, 0);
            x = style.unit(&mut chain, &next(), conv, Some(activation.into()), x)?;
        }
        let depthwise = Conv2d { groups: wide, ..Conv2d::new(wide, wide, kernel, stride, kernel / 2) };
        x = style.unit(&mut chain, &next(), depthwise, Some(activation.into()), x)?;
        if squeezes {
            x = style.squeeze_excitation(&mut chain, &next(), eighths(wide / 4), x)?;
        }
        x = style.unit(&mut chain, &next(), Conv2d::new(wide, of(channels), 1, 1, 0), None, x)?;
        if stride == 1 && channels == before {
            x = chain.graph.add(&format!("features.{position}.add"), Add, &[x, input])?;
        }
        before = channels;
    }
    let narrow = chain.channels(x);
    let last = format!("features.{}", blocks.len() + 1);
    x = style.unit(&mut chain, &last, Conv2d::new(narrow, WIDER * narrow, 1, 1, 0), Some(HS.into()), x)?;
    x = chain.add("avgpool", AdaptiveAvgPool2d::GLOBAL, x)?;
    x = chain.add("flatten", Flatten, x)?;
    x = linear(&mut chain, "classifier.0", of(features), x)?;
    x = chain.add("classifier.1", HardSwish, x)?;
    x = chain.add("classifier.2", Dropout { p: 0.2 }, x)?;
    x = linear(&mut chain, "classifier.3", sizes.classes, x)?;
    chain.graph.finish(x)
}

fn linear(chain: &mut Chain, name: &str, features: usize, x: TensorId) -> Result<TensorId, GraphError> {
    let initial = [("weight", Initialisation::Normal { std: 0.01 }), ("bias", Initialisation::Zeros)];
    let linear = Linear::new(chain.channels(x), features);
    chain.graph.add_with(name, linear, &[x], &initial)
}

/// A count rounded to a multiple of eight, but not by more than a tenth below.
fn eighths(channels: usize) -> usize {
    scaled(channels, 8, 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squeezed_channels_are_rounded_as_published() {
        // A quarter of 16, 72, 96, 120, 240, 480, 576, 672 and 960.
        let counts = [4, 18, 24, 30, 60, 120, 144, 168, 240].map(eighths);
        assert_eq!(counts, [8, 24, 24, 32, 64, 120, 144, 168, 240]);
    }
}
