//! ERFNet (Romera, Álvarez, Bergasa, Arroyo: "ERFNet: efficient residual factorized ConvNet for real-time
//! semantic segmentation", 2018): an encoder of factorised residual blocks and a small decoder of transposed
//! convolutions. Layers are named as in the authors' published weights.
//!
//! ```text
//! image ─▶ 1/2, 16 channels ─▶ 1/4, 64, 5 blocks ─▶ 1/8, 128, 8 dilated blocks         encoder
//!       ◀─ classes ◀─ 1/2, 16, 2 blocks ◀─ 1/4, 64, 2 blocks ◀─────────────┘            decoder
//! ```
//!
//! The authors train the encoder first, with a convolution of one tap behind it against masks of an eighth of
//! the size (`erfnet_encoder`), then the whole network.

use super::{Chain, Hyperparameters, Network, Sizes, image};
use crate::ops::{Add, Concat, Conv2d, ConvTranspose2d, Dropout2d, MaxPool2d, Relu, Resize};
use crate::{Graph, GraphBuilder, GraphError, Initialisation, TensorId};

pub(super) const NETWORK: Network = Network {
    name: "erfnet",
    about: "ERFNet: factorised residual blocks, a class for every pixel (Romera et al., 2018)",
    defaults: || CITYSCAPES,
    build: whole,
};

pub(super) const ENCODER: Network = Network {
    name: "erfnet_encoder",
    about: "the encoder of erfnet, a class for every 8x8 pixels: it is trained first",
    defaults: || CITYSCAPES,
    build: encoder_alone,
};

/// Cityscapes' images at half of their size, and its classes.
const CITYSCAPES: Hyperparameters = Hyperparameters { input: [3, 512, 1024], classes: 19, width: None };

/// Channels after each of the three downsamplers.
const CHANNELS: [usize; 3] = [16, 64, 128];

/// PyTorch's defaults, as the authors have them.
fn weights(conv: &Conv2d) -> Initialisation {
    Initialisation::Uniform { bound: conv.bound() }
}

fn begin(network: &str, hyper: &Hyperparameters) -> Result<(Chain, Sizes, TensorId), GraphError> {
    let sizes = Sizes::new(network, hyper, CHANNELS[0])?;
    let (graph, images) = GraphBuilder::new(network, image(hyper.input));
    Ok((Chain { graph, conv: weights, epsilon: 1e-3 }, sizes, images))
}

fn whole(hyper: &Hyperparameters) -> Result<Graph, GraphError> {
    let (mut chain, sizes, images) = begin(NETWORK.name, hyper)?;
    let mut x = encoder(&mut chain, &sizes, images)?;
    for (stage, channels) in [CHANNELS[1], CHANNELS[0]].into_iter().enumerate() {
        let layer = |position: usize| format!("decoder.layers.{}", 3 * stage + position);
        x = upsampler(&mut chain, &layer(0), sizes.of(channels), x)?;
        for position in 1..3 {
            x = factorised(&mut chain, &layer(position), 1, 0.0, x)?;
        }
    }
    let from = chain.channels(x);
    let last = ConvTranspose2d { bias: true, ..ConvTranspose2d::new(from, sizes.classes, 2, 2, 0, 0) };
    x = chain.add("decoder.output_conv", last, x)?;
    // Of images whose sides are no multiples of 8, the decoder makes a little more.
    if chain.graph.shape(x).0[1..] != hyper.input[1..] {
        x = chain.graph.add("resize", Resize::LIKE, &[x, images])?;
    }
    chain.graph.finish(x)
}

fn encoder_alone(hyper: &Hyperparameters) -> Result<Graph, GraphError> {
    let (mut chain, sizes, images) = begin(ENCODER.name, hyper)?;
    let mut x = encoder(&mut chain, &sizes, images)?;
    let conv = Conv2d { bias: true, ..Conv2d::new(chain.channels(x), sizes.classes, 1, 1, 0) };
    x = chain.add("encoder.output_conv", conv, x)?;
    chain.graph.finish(x)
}

/// 128 channels at an eighth of the size.
fn encoder(chain: &mut Chain, sizes: &Sizes, images: TensorId) -> Result<TensorId, GraphError> {
    let mut x = downsampler(chain, "encoder.initial_block", sizes.of(CHANNELS[0]), images)?;
    let mut number = 0..;
    let mut layer = || format!("encoder.layers.{}", number.next().unwrap_or(0));
    x = downsampler(chain, &layer(), sizes.of(CHANNELS[1]), x)?;
    for _ in 0..5 {
        x = factorised(chain, &layer(), 1, 0.03, x)?;
    }
    x = downsampler(chain, &layer(), sizes.of(CHANNELS[2]), x)?;
    for dilation in [2, 4, 8, 16, 2, 4, 8, 16] {
        x = factorised(chain, &layer(), dilation, 0.3, x)?;
    }
    Ok(x)
}

/// Half the size: a strided convolution's channels beside those of a max-pooling.
fn downsampler(chain: &mut Chain, name: &str, channels: usize, x: TensorId) -> Result<TensorId, GraphError> {
    let from = chain.channels(x);
    let filters = channels.saturating_sub(from).max(1);
    let conv = Conv2d { bias: true, ..Conv2d::new(from, filters, 3, 2, 1) };
    let strided = chain.add(&format!("{name}.conv"), conv, x)?;
    // Of an odd side the last pixel is a window of its own, as it is one of the convolution's.
    let pool = MaxPool2d { ceil_mode: true, ..MaxPool2d::new(2, 2, 0) };
    let pooled = chain.add(&format!("{name}.pool"), pool, x)?;
    let mut y = chain.graph.add(&format!("{name}.join"), Concat, &[strided, pooled])?;
    y = chain.norm(&format!("{name}.bn"), y)?;
    chain.add(&format!("{name}.relu"), Relu, y)
}

/// Twice the size.
fn upsampler(chain: &mut Chain, name: &str, channels: usize, x: TensorId) -> Result<TensorId, GraphError> {
    let conv = ConvTranspose2d::new(chain.channels(x), channels, 3, 2, 1, 1);
    let conv = ConvTranspose2d { bias: true, ..conv };
    let mut y = chain.add(&format!("{name}.conv"), conv, x)?;
    y = chain.norm(&format!("{name}.bn"), y)?;
    chain.add(&format!("{name}.relu"), Relu, y)
}

/// A residual block of two 3x3 convolutions, each factorised into 3x1 and 1x3; the taps of the second are
/// `dilation` apart.
fn factorised(
    chain: &mut Chain,
    name: &str,
    dilation: usize,
    dropout: f32,
    x: TensorId,
) -> Result<TensorId, GraphError> {
    let channels = chain.channels(x);
    let conv = |vertical: bool, dilation: usize| {
        let kernel = if vertical { [3, 1] } else { [1, 3] };
        let along = |one: usize| if vertical { [one, 0] } else { [0, one] };
        let apart = if vertical { [dilation, 1] } else { [1, dilation] };
        Conv2d {
            kernel,
            padding_before: along(dilation),
            padding_after: along(dilation),
            dilation: apart,
            bias: true,
            ..Conv2d::new(channels, channels, 1, 1, 0)
        }
    };
    let mut y = x;
    for (number, dilation) in [(1, 1), (2, dilation)] {
        y = chain.add(&format!("{name}.conv3x1_{number}"), conv(true, dilation), y)?;
        y = chain.add(&format!("{name}.relu3x1_{number}"), Relu, y)?;
        y = chain.add(&format!("{name}.conv1x3_{number}"), conv(false, dilation), y)?;
        y = chain.norm(&format!("{name}.bn{number}"), y)?;
        if number == 1 {
            y = chain.add(&format!("{name}.relu1"), Relu, y)?;
        }
    }
    if dropout > 0.0 {
        y = chain.add(&format!("{name}.dropout"), Dropout2d { p: dropout }, y)?;
    }
    y = chain.graph.add(&format!("{name}.add"), Add, &[y, x])?;
    chain.add(&format!("{name}.relu2"), Relu, y)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(network: &Network, input: [usize; 3]) -> Graph {
        (network.build)(&Hyperparameters { input, ..(network.defaults)() }).unwrap()
    }

    #[test]
    fn answers_have_the_size_of_the_image_or_an_eighth() {
        for ([height, width], eighth) in [([360, 480], [45, 60]), ([33, 47], [5, 6]), ([8, 8], [1, 1])] {
            let graph = built(&NETWORK, [3, height, width]);
            assert_eq!(graph.shape(graph.output).0, [19, height, width]);
            let graph = built(&ENCODER, [3, height, width]);
            assert_eq!(graph.shape(graph.output).0[1..], eighth);
        }
    }

    /// Table I of the paper: 23 layers. The encoder's weights fit the whole network.
    #[test]
    fn the_encoder_is_part_of_the_whole() {
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
