//! MobileNetV3 (Howard et al.: "Searching for MobileNetV3", 2019), torchvision's layers and names.

use super::inverted::Style;
use super::mobilenet::scaled;
use super::{ChannelScaling, ModelConfig, Network, NetworkBuilder, image, imagenet, kaiming_fan_out};
use crate::ops::{AdaptiveAvgPool2d, Add, Conv2d, Dropout, Flatten, HardSigmoid, HardSwish, Linear, Relu};
use crate::{Graph, GraphBuilder, GraphError, Initialisation, Op, TensorId};

pub(super) const SMALL: Network = Network {
    name: "mobilenet_v3_small",
    description: "MobileNetV3 small: 11 inverted residual blocks, most squeeze and excite (Howard et al., \
                  2019)",
    defaults: || imagenet(224),
    build: |config| build("mobilenet_v3_small", &SMALL_BLOCKS, 1024, config),
};

pub(super) const LARGE: Network = Network {
    name: "mobilenet_v3_large",
    description: "MobileNetV3 large: 15 inverted residual blocks, half squeeze and excite (Howard et al., \
                  2019)",
    defaults: || imagenet(224),
    build: |config| build("mobilenet_v3_large", &LARGE_BLOCKS, 1280, config),
};

/// Filters of the first convolution.
const STEM_FILTERS: usize = 16;
/// The expansion factor of the last convolution.
const HEAD_EXPANSION: usize = 6;

/// A block: kernel, inner channels, output channels, whether it squeezes, activation, stride.
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

fn build(name: &str, blocks: &[Block], features: usize, config: &ModelConfig) -> Result<Graph, GraphError> {
    let scaling = ChannelScaling::new(name, config, STEM_FILTERS)?;
    let rescaled = |channels| scaled(channels, scaling.width, STEM_FILTERS);
    let (graph, mut x) = GraphBuilder::new(name, image(config.input));
    let mut net = NetworkBuilder { graph, conv: kaiming_fan_out, epsilon: 1e-3 };
    let style = Style { momentum: 0.01, squeeze: Relu.into(), gate: HardSigmoid::default().into() };
    let first = Conv2d::new(config.input[0], rescaled(STEM_FILTERS), 3, 2, 1);
    x = style.unit(&mut net, "features.0", first, Some(HS.into()), x)?;
    let mut before = STEM_FILTERS;
    for (&(kernel, inside, channels, squeezes, activation, stride), position) in blocks.iter().zip(1..) {
        let name = format!("features.{position}.block");
        let (input, wide) = (x, rescaled(inside));
        let mut part = 0..;
        let mut next = || format!("{name}.{}", part.next().unwrap_or_default());
        if inside != before {
            let conv = Conv2d::new(net.channels(x), wide, 1, 1, 0);
            x = style.unit(&mut net, &next(), conv, Some(activation.into()), x)?;
        }
        let depthwise = Conv2d { groups: wide, ..Conv2d::new(wide, wide, kernel, stride, kernel / 2) };
        x = style.unit(&mut net, &next(), depthwise, Some(activation.into()), x)?;
        if squeezes {
            x = style.squeeze_excitation(&mut net, &next(), round_to_multiple_of_8(wide / 4), x)?;
        }
        x = style.unit(&mut net, &next(), Conv2d::new(wide, rescaled(channels), 1, 1, 0), None, x)?;
        if stride == 1 && channels == before {
            x = net.graph.add(&format!("features.{position}.add"), Add, &[x, input])?;
        }
        before = channels;
    }
    let narrow = net.channels(x);
    let last = format!("features.{}", blocks.len() + 1);
    x = style.unit(
        &mut net,
        &last,
        Conv2d::new(narrow, HEAD_EXPANSION * narrow, 1, 1, 0),
        Some(HS.into()),
        x,
    )?;
    x = net.add("avgpool", AdaptiveAvgPool2d::GLOBAL, x)?;
    x = net.add("flatten", Flatten, x)?;
    x = linear(&mut net, "classifier.0", rescaled(features), x)?;
    x = net.add("classifier.1", HardSwish, x)?;
    x = net.add("classifier.2", Dropout { p: 0.2 }, x)?;
    x = linear(&mut net, "classifier.3", scaling.classes, x)?;
    net.graph.finish(x)
}

fn linear(
    net: &mut NetworkBuilder,
    name: &str,
    features: usize,
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let initial = [("weight", Initialisation::Normal { std: 0.01 }), ("bias", Initialisation::Zeros)];
    let linear = Linear::new(net.channels(x), features);
    net.graph.add_with_init(name, linear, &[x], &initial)
}

/// Rounds a count to a multiple of eight, but never down by more than a tenth.
fn round_to_multiple_of_8(channels: usize) -> usize {
    scaled(channels, 8, 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squeezed_channels_are_rounded_as_published() {
        // A quarter of 16, 72, 96, 120, 240, 480, 576, 672 and 960.
        let counts = [4, 18, 24, 30, 60, 120, 144, 168, 240].map(round_to_multiple_of_8);
        assert_eq!(counts, [8, 24, 24, 32, 64, 120, 144, 168, 240]);
    }
}
