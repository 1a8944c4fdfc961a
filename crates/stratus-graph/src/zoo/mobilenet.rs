//! MobileNetV2 (Sandler et al.: "MobileNetV2: inverted residuals and linear bottlenecks", 2018),
//! torchvision's layers and names.

use super::{Chain, Hyperparameters, Network, Sizes, image, imagenet, kaiming_fan_out};
use crate::ops::{AdaptiveAvgPool2d, Add, Conv2d, Dropout, Flatten, Linear, Relu6};
use crate::{Graph, GraphBuilder, GraphError, Initialisation, TensorId};

pub(super) const NETWORK: Network = Network {
    name: "mobilenet_v2",
    about: "MobileNetV2: 17 inverted residual blocks of depthwise convolutions (Sandler et al., 2018)",
    defaults: || imagenet(224),
    build,
};

/// Filters of the first and of the last convolution.
const FIRST: usize = 32;
const LAST: usize = 1280;

/// Blocks one behind the other: by how much the first 1x1 convolution widens, channels, blocks, stride of
/// the first block.
const STAGES: [(usize, usize, usize, usize); 7] = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
];

/// A published channel count at another width than the published one, rounded to a multiple of eight, but not
/// by more than a tenth below: the authors' rule. A width that is no multiple of eight rounds to the largest
/// power of two that divides it, so that it is itself a possible count.
pub(super) fn scaled(channels: usize, width: usize, published: usize) -> usize {
    let step = 1 << width.trailing_zeros().min(3);
    // In units of 1 / published of a channel.
    let exact = channels * width;
    let rounded = ((exact + step * published / 2) / (step * published) * step).max(step);
    if rounded * published * 10 < exact * 9 { rounded + step } else { rounded }
}

fn build(hyper: &Hyperparameters) -> Result<Graph, GraphError> {
    let sizes = Sizes::new(NETWORK.name, hyper, FIRST)?;
    let (graph, mut x) = GraphBuilder::new(NETWORK.name, image(hyper.input));
    let mut chain = Chain { graph, conv: kaiming_fan_out, epsilon: 1e-5 };
    x = unit(
        &mut chain,
        "features.0",
        Conv2d::new(hyper.input[0], scaled(FIRST, sizes.width, FIRST), 3, 2, 1),
        x,
    )?;
    let mut position = 1;
    for (expansion, channels, blocks, stride) in STAGES {
        for block in 0..blocks {
            let stride = if block == 0 { stride } else { 1 };
            let name = format!("features.{position}");
            x = inverted_residual(
                &mut chain,
                &name,
                expansion,
                scaled(channels, sizes.width, FIRST),
                stride,
                x,
            )?;
            position += 1;
        }
    }
    // A narrow network keeps its last features.
    let conv = Conv2d::new(chain.channels(x), scaled(LAST, sizes.width.max(FIRST), FIRST), 1, 1, 0);
    x = unit(&mut chain, &format!("features.{position}"), conv, x)?;
    x = chain.add("avgpool", AdaptiveAvgPool2d::GLOBAL, x)?;
    x = chain.add("flatten", Flatten, x)?;
    x = chain.add("classifier.0", Dropout { p: 0.2 }, x)?;
    let initial = [("weight", Initialisation::Normal { std: 0.01 }), ("bias", Initialisation::Zeros)];
    let linear = Linear::new(chain.channels(x), sizes.classes);
    x = chain.graph.add_with("classifier.1", linear, &[x], &initial)?;
    chain.graph.finish(x)
}

/// Convolution, batch norm, ReLU6: parts 0 to 2 of a module.
fn unit(chain: &mut Chain, name: &str, conv: Conv2d, x: TensorId) -> Result<TensorId, GraphError> {
    let mut y = chain.conv(&format!("{name}.0"), conv, x)?;
    y = chain.norm(&format!("{name}.1"), y)?;
    chain.add(&format!("{name}.2"), Relu6, y)
}

/// Widens, convolves each channel by itself, narrows without a rectifier; adds its input where shapes agree.
fn inverted_residual(
    chain: &mut Chain,
    name: &str,
    expansion: usize,
    channels: usize,
    stride: usize,
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let narrow = chain.channels(x);
    let wide = narrow * expansion;
    let (mut y, mut part) = (x, 0);
    if expansion > 1 {
        y = unit(chain, &format!("{name}.conv.{part}"), Conv2d::new(narrow, wide, 1, 1, 0), y)?;
        part += 1;
    }
    let depthwise = Conv2d { groups: wide, ..Conv2d::new(wide, wide, 3, stride, 1) };
    y = unit(chain, &format!("{name}.conv.{part}"), depthwise, y)?;
    y = chain.conv(&format!("{name}.conv.{}", part + 1), Conv2d::new(wide, channels, 1, 1, 0), y)?;
    y = chain.norm(&format!("{name}.conv.{}", part + 2), y)?;
    if stride == 1 && narrow == channels {
        y = chain.graph.add(&format!("{name}.add"), Add, &[x, y])?;
    }
    Ok(y)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_rounded_as_published() {
        // Torchvision's width_mult of 1, 0.5, 0.75 and 1.5.
        let counts = |width| [32, 16, 24, 64, 96, 160, 320].map(|channels| scaled(channels, width, FIRST));
        assert_eq!(counts(32), [32, 16, 24, 64, 96, 160, 320]);
        assert_eq!(counts(16), [16, 8, 16, 32, 48, 80, 160]);
        assert_eq!(counts(24), [24, 16, 24, 48, 72, 120, 240]);
        assert_eq!(counts(48), [48, 24, 40, 96, 144, 240, 480]);
        // Narrower than eight.
        assert_eq!(counts(4), [4, 4, 4, 8, 12, 20, 40]);
        assert_eq!(counts(1), [1, 1, 1, 2, 3, 5, 10]);
    }
}
