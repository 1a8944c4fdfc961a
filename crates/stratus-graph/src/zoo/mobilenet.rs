//! MobileNetV2 (Sandler et al.: "MobileNetV2: inverted residuals and linear bottlenecks", 2018),
//! torchvision's layers and names.

use super::{ChannelScaling, ModelConfig, Network, NetworkBuilder, image, imagenet, kaiming_fan_out};
use crate::ops::{AdaptiveAvgPool2d, Add, Conv2d, Dropout, Flatten, Linear, Relu6};
use crate::{Graph, GraphBuilder, GraphError, Initialisation, TensorId};

pub(super) const NETWORK: Network = Network {
    name: "mobilenet_v2",
    description: "MobileNetV2: 17 inverted residual blocks of depthwise convolutions (Sandler et al., 2018)",
    defaults: || imagenet(224),
    build,
};

/// Filters of the first and of the last convolution.
const STEM_FILTERS: usize = 32;
const HEAD_FILTERS: usize = 1280;

/// Stages: expansion factor of the first 1x1 convolution, channels, blocks, stride of the first block.
const STAGES: [(usize, usize, usize, usize); 7] = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
];

/// Scales a published channel count to another width, rounded to a multiple of eight but never down by more
/// than a tenth, following the authors. If the width is not a multiple of eight, counts are rounded to
/// multiples of the largest power of two that divides it, so that the width itself is a possible count.
pub(super) fn scaled(channels: usize, width: usize, published: usize) -> usize {
    let step = 1 << width.trailing_zeros().min(3);
    // Counted in units of `1 / published` channels.
    let exact = channels * width;
    let rounded = ((exact + step * published / 2) / (step * published) * step).max(step);
    if rounded * published * 10 < exact * 9 { rounded + step } else { rounded }
}

fn build(config: &ModelConfig) -> Result<Graph, GraphError> {
    let scaling = ChannelScaling::new(NETWORK.name, config, STEM_FILTERS)?;
    let (graph, mut x) = GraphBuilder::new(NETWORK.name, image(config.input));
    let mut net = NetworkBuilder { graph, conv: kaiming_fan_out, epsilon: 1e-5 };
    x = unit(
        &mut net,
        "features.0",
        Conv2d::new(config.input[0], scaled(STEM_FILTERS, scaling.width, STEM_FILTERS), 3, 2, 1),
        x,
    )?;
    let mut position = 1;
    for (expansion, channels, blocks, stride) in STAGES {
        for block in 0..blocks {
            let stride = if block == 0 { stride } else { 1 };
            let name = format!("features.{position}");
            x = inverted_residual(
                &mut net,
                &name,
                expansion,
                scaled(channels, scaling.width, STEM_FILTERS),
                stride,
                x,
            )?;
            position += 1;
        }
    }
    // Narrow networks keep the published number of last features.
    let conv = Conv2d::new(
        net.channels(x),
        scaled(HEAD_FILTERS, scaling.width.max(STEM_FILTERS), STEM_FILTERS),
        1,
        1,
        0,
    );
    x = unit(&mut net, &format!("features.{position}"), conv, x)?;
    x = net.add("avgpool", AdaptiveAvgPool2d::GLOBAL, x)?;
    x = net.add("flatten", Flatten, x)?;
    x = net.add("classifier.0", Dropout { p: 0.2 }, x)?;
    let initial = [("weight", Initialisation::Normal { std: 0.01 }), ("bias", Initialisation::Zeros)];
    let linear = Linear::new(net.channels(x), scaling.classes);
    x = net.graph.add_with_init("classifier.1", linear, &[x], &initial)?;
    net.graph.finish(x)
}

/// Convolution, batch norm, ReLU6: children 0 to 2 of a module.
fn unit(net: &mut NetworkBuilder, name: &str, conv: Conv2d, x: TensorId) -> Result<TensorId, GraphError> {
    let mut y = net.conv(&format!("{name}.0"), conv, x)?;
    y = net.norm(&format!("{name}.1"), y)?;
    net.add(&format!("{name}.2"), Relu6, y)
}

/// Inverted residual block: expansion, depthwise convolution, linear projection, and a shortcut if shapes
/// agree.
fn inverted_residual(
    net: &mut NetworkBuilder,
    name: &str,
    expansion: usize,
    channels: usize,
    stride: usize,
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let narrow = net.channels(x);
    let wide = narrow * expansion;
    let (mut y, mut part) = (x, 0);
    if expansion > 1 {
        y = unit(net, &format!("{name}.conv.{part}"), Conv2d::new(narrow, wide, 1, 1, 0), y)?;
        part += 1;
    }
    let depthwise = Conv2d { groups: wide, ..Conv2d::new(wide, wide, 3, stride, 1) };
    y = unit(net, &format!("{name}.conv.{part}"), depthwise, y)?;
    y = net.conv(&format!("{name}.conv.{}", part + 1), Conv2d::new(wide, channels, 1, 1, 0), y)?;
    y = net.norm(&format!("{name}.conv.{}", part + 2), y)?;
    if stride == 1 && narrow == channels {
        y = net.graph.add(&format!("{name}.add"), Add, &[x, y])?;
    }
    Ok(y)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_rounded_as_published() {
        // Torchvision's width_mult of 1, 0.5, 0.75 and 1.5.
        let counts =
            |width| [32, 16, 24, 64, 96, 160, 320].map(|channels| scaled(channels, width, STEM_FILTERS));
        assert_eq!(counts(32), [32, 16, 24, 64, 96, 160, 320]);
        assert_eq!(counts(16), [16, 8, 16, 32, 48, 80, 160]);
        assert_eq!(counts(24), [24, 16, 24, 48, 72, 120, 240]);
        assert_eq!(counts(48), [48, 24, 40, 96, 144, 240, 480]);
        // Narrower than eight.
        assert_eq!(counts(4), [4, 4, 4, 8, 12, 20, 40]);
        assert_eq!(counts(1), [1, 1, 1, 2, 3, 5, 10]);
    }
}
