//! ERFNet (Romera, Álvarez, Bergasa, Arroyo: "ERFNet: efficient residual factorized ConvNet for real-time
//! semantic segmentation", 2018): an encoder of factorised residual blocks and a small decoder of transposed
//! convolutions. Layers are named as in the authors' published weights.
//!
//! ```text
//! image ─▶ 1/2, 16 channels ─▶ 1/4, 64, 5 blocks ─▶ 1/8, 128, 8 dilated blocks         encoder
//!       ◀─ classes ◀─ 1/2, 16, 2 blocks ◀─ 1/4, 64, 2 blocks ◀─────────────┘            decoder
//! ```
//!
//! The authors first train the encoder, followed by a 1x1 convolution, with masks of an eighth of the size
//! (`erfnet_encoder`), then the whole network.

use super::{ChannelScaling, ModelConfig, Network, NetworkBuilder, image};
use crate::ops::{Add, Concat, Conv2d, ConvTranspose2d, Dropout2d, MaxPool2d, Relu, Resize};
use crate::{Graph, GraphBuilder, GraphError, Initialisation, TensorId};

pub(super) const NETWORK: Network = Network {
    name: "erfnet",
    description: "ERFNet: factorised residual blocks, per-pixel classes (Romera et al., 2018)",
    defaults: || CITYSCAPES,
    build: whole,
};

pub(super) const ENCODER: Network = Network {
    name: "erfnet_encoder",
    description: "the encoder of erfnet, trained first: one class per 8x8 pixels",
    defaults: || CITYSCAPES,
    build: encoder_alone,
};

/// Cityscapes: images at half size, and its classes.
const CITYSCAPES: ModelConfig = ModelConfig { input: [3, 512, 1024], classes: 19, width: None };

/// Channels after each of the three downsamplers.
const CHANNELS: [usize; 3] = [16, 64, 128];

/// PyTorch's default initialisation, as used by the authors.
fn weights(conv: &Conv2d) -> Initialisation {
    Initialisation::Uniform { bound: conv.bound() }
}

fn begin(
    network: &str,
    config: &ModelConfig,
) -> Result<(NetworkBuilder, ChannelScaling, TensorId), GraphError> {
    let scaling = ChannelScaling::new(network, config, CHANNELS[0])?;
    let (graph, images) = GraphBuilder::new(network, image(config.input));
    Ok((NetworkBuilder { graph, conv: weights, epsilon: 1e-3 }, scaling, images))
}

fn whole(config: &ModelConfig) -> Result<Graph, GraphError> {
    let (mut net, scaling, images) = begin(NETWORK.name, config)?;
    let mut x = encoder(&mut net, &scaling, images)?;
    for (stage, channels) in [CHANNELS[1], CHANNELS[0]].into_iter().enumerate() {
        let layer = |position: usize| format!("decoder.layers.{}", 3 * stage + position);
        x = upsampler(&mut net, &layer(0), scaling.scale(channels), x)?;
        for position in 1..3 {
            x = factorised(&mut net, &layer(position), 1, 0.0, x)?;
        }
    }
    let from = net.channels(x);
    let last = ConvTranspose2d { bias: true, ..ConvTranspose2d::new(from, scaling.classes, 2, 2, 0, 0) };
    x = net.add("decoder.output_conv", last, x)?;
    // For images whose sides are not multiples of 8, the output is slightly too large.
    if net.graph.shape(x).0[1..] != config.input[1..] {
        x = net.graph.add("resize", Resize::LIKE, &[x, images])?;
    }
    net.graph.finish(x)
}

fn encoder_alone(config: &ModelConfig) -> Result<Graph, GraphError> {
    let (mut net, scaling, images) = begin(ENCODER.name, config)?;
    let mut x = encoder(&mut net, &scaling, images)?;
    let conv = Conv2d { bias: true, ..Conv2d::new(net.channels(x), scaling.classes, 1, 1, 0) };
    x = net.add("encoder.output_conv", conv, x)?;
    net.graph.finish(x)
}

/// Adds the encoder: 128 channels at an eighth of the size.
fn encoder(
    net: &mut NetworkBuilder,
    scaling: &ChannelScaling,
    images: TensorId,
) -> Result<TensorId, GraphError> {
    let mut x = downsampler(net, "encoder.initial_block", scaling.scale(CHANNELS[0]), images)?;
    let mut number = 0..;
    let mut layer = || format!("encoder.layers.{}", number.next().unwrap_or(0));
    x = downsampler(net, &layer(), scaling.scale(CHANNELS[1]), x)?;
    for _ in 0..5 {
        x = factorised(net, &layer(), 1, 0.03, x)?;
    }
    x = downsampler(net, &layer(), scaling.scale(CHANNELS[2]), x)?;
    for dilation in [2, 4, 8, 16, 2, 4, 8, 16] {
        x = factorised(net, &layer(), dilation, 0.3, x)?;
    }
    Ok(x)
}

/// Halves the size: concatenates a strided convolution and a max pooling.
fn downsampler(
    net: &mut NetworkBuilder,
    name: &str,
    channels: usize,
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let from = net.channels(x);
    let filters = channels.saturating_sub(from).max(1);
    let conv = Conv2d { bias: true, ..Conv2d::new(from, filters, 3, 2, 1) };
    let strided = net.add(&format!("{name}.conv"), conv, x)?;
    // With an odd side the last pixel is a separate window, as in the convolution.
    let pool = MaxPool2d { ceil_mode: true, ..MaxPool2d::new(2, 2, 0) };
    let pooled = net.add(&format!("{name}.pool"), pool, x)?;
    let mut y = net.graph.add(&format!("{name}.join"), Concat, &[strided, pooled])?;
    y = net.norm(&format!("{name}.bn"), y)?;
    net.add(&format!("{name}.relu"), Relu, y)
}

/// Doubles the size.
fn upsampler(
    net: &mut NetworkBuilder,
    name: &str,
    channels: usize,
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let conv = ConvTranspose2d::new(net.channels(x), channels, 3, 2, 1, 1);
    let conv = ConvTranspose2d { bias: true, ..conv };
    let mut y = net.add(&format!("{name}.conv"), conv, x)?;
    y = net.norm(&format!("{name}.bn"), y)?;
    net.add(&format!("{name}.relu"), Relu, y)
}

/// A residual block of two 3x3 convolutions, each factorised into 3x1 and 1x3; the taps of the second are
/// `dilation` apart.
fn factorised(
    net: &mut NetworkBuilder,
    name: &str,
    dilation: usize,
    dropout: f32,
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let channels = net.channels(x);
    let conv = |vertical: bool, dilation: usize| {
        let kernel = if vertical { [3, 1] } else { [1, 3] };
        let along = |one: usize| if vertical { [one, 0] } else { [0, one] };
        Conv2d {
            kernel,
            padding_before: along(dilation),
            padding_after: along(dilation),
            dilation: if vertical { [dilation, 1] } else { [1, dilation] },
            bias: true,
            ..Conv2d::new(channels, channels, 1, 1, 0)
        }
    };
    let mut y = x;
    for (number, dilation) in [(1, 1), (2, dilation)] {
        y = net.add(&format!("{name}.conv3x1_{number}"), conv(true, dilation), y)?;
        y = net.add(&format!("{name}.relu3x1_{number}"), Relu, y)?;
        y = net.add(&format!("{name}.conv1x3_{number}"), conv(false, dilation), y)?;
        y = net.norm(&format!("{name}.bn{number}"), y)?;
        if number == 1 {
            y = net.add(&format!("{name}.relu1"), Relu, y)?;
        }
    }
    if dropout > 0.0 {
        y = net.add(&format!("{name}.dropout"), Dropout2d { p: dropout }, y)?;
    }
    y = net.graph.add(&format!("{name}.add"), Add, &[y, x])?;
    net.add(&format!("{name}.relu2"), Relu, y)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(network: &Network, input: [usize; 3]) -> Graph {
        (network.build)(&ModelConfig { input, ..(network.defaults)() }).unwrap()
    }

    #[test]
    fn outputs_have_the_size_of_the_image_or_an_eighth() {
        for ([height, width], eighth) in [([360, 480], [45, 60]), ([33, 47], [5, 6]), ([8, 8], [1, 1])] {
            let graph = built(&NETWORK, [3, height, width]);
            assert_eq!(graph.shape(graph.output).0, [19, height, width]);
            let graph = built(&ENCODER, [3, height, width]);
            assert_eq!(graph.shape(graph.output).0[1..], eighth);
        }
    }

    /// Table I of the paper: 23 layers. The encoder's weights fit the whole network.
    #[test]
    fn encoder_weights_fit_the_whole_network() {
        let (graph, encoder) = (built(&NETWORK, [3, 512, 1024]), built(&ENCODER, [3, 512, 1024]));
        assert_eq!(graph.trained_parameters(), 2_064_191);
        let shapes = |graph: &Graph| -> Vec<(String, Vec<usize>)> {
            graph.parameters.iter().map(|p| (p.name.clone(), p.shape.clone())).collect()
        };
        let whole = shapes(&graph);
        let (mut shared, head): (Vec<_>, Vec<_>) =
            shapes(&encoder).into_iter().partition(|one| whole.contains(one));
        assert_eq!(head.len(), 2);
        shared.retain(|(name, _)| !name.starts_with("encoder."));
        assert!(shared.is_empty());
    }
}
