//! Weights in signed bytes: symmetric, with a scale for each output channel.

/// The weights of a layer in signed bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantisedWeights {
    /// The bytes, row-major, output channels slowest.
    pub bytes: Vec<i8>,
    /// The weight that the byte 1 stands for, for each output channel.
    pub scales: Vec<f32>,
}

/// Divides the weights of each of `channels` output channels by a scale, so that the largest magnitude
/// becomes `largest`, and rounds them. A channel of zeros gets the scale 1.
///
/// # Panics
/// If the weights cannot be divided among the channels.
#[must_use]
pub fn quantise_weights(weights: &[f32], channels: usize, largest: i8) -> QuantisedWeights {
    assert!(channels > 0 && weights.len().is_multiple_of(channels), "weights of {channels} channels");
    let limit = f32::from(largest);
    let mut bytes = Vec::with_capacity(weights.len());
    let mut scales = Vec::with_capacity(channels);
    for channel in weights.chunks_exact((weights.len() / channels).max(1)) {
        let magnitude = channel.iter().fold(0.0_f32, |largest, weight| largest.max(weight.abs()));
        let scale = magnitude / limit;
        let scale = if scale.is_normal() { scale } else { 1.0 };
        let byte = |weight: &f32| (weight / scale).round_ties_even().clamp(-limit, limit) as i8;
        bytes.extend(channel.iter().map(byte));
        scales.push(scale);
    }
    scales.resize(channels, 1.0);
    QuantisedWeights { bytes, scales }
}

/// The biases of a layer whose input is `scale * (byte - zero)`: the sum of the products of a channel's
/// weights with the byte `zero` is subtracted. Without `biases` they are 0.
#[must_use]
pub fn corrected_biases(
    weights: &QuantisedWeights,
    biases: Option<&[f32]>,
    scale: f32,
    zero: u8,
) -> Vec<f32> {
    let QuantisedWeights { bytes, scales } = weights;
    let channels = bytes.chunks((bytes.len() / scales.len().max(1)).max(1));
    let channels = channels.zip(scales).enumerate();
    channels
        .map(|(channel, (bytes, weight_scale))| {
            let sum: i64 = bytes.iter().map(|&byte| i64::from(byte)).sum();
            let shift = f64::from(scale) * f64::from(*weight_scale) * f64::from(zero) * sum as f64;
            let bias = biases.and_then(|biases| biases.get(channel)).copied().unwrap_or(0.0);
            (f64::from(bias) - shift) as f32
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_rounded_to_the_scale_of_their_channel() {
        let weights = [1.0, -2.0, 0.5, 0.0, 0.0, 0.0, 1e30, -1e30, 3e28];
        for largest in [127, 63] {
            let quantised = quantise_weights(&weights, 3, largest);
            for (channel, (weights, bytes)) in weights.chunks(3).zip(quantised.bytes.chunks(3)).enumerate() {
                let scale = quantised.scales[channel];
                for (weight, &byte) in weights.iter().zip(bytes) {
                    assert!(byte.abs() <= largest);
                    assert!((weight - f32::from(byte) * scale).abs() <= 0.5001 * scale, "{weight} {byte}");
                }
            }
            assert_eq!(quantised.bytes[1], -largest);
        }
    }

    #[test]
    fn biases_make_up_for_the_byte_that_stands_for_zero() {
        let weights = quantise_weights(&[1.0, -2.0, 0.5, 3.0, 1.0, 1.0], 2, 127);
        let (scale, zero) = (0.02, 77);
        let biases = corrected_biases(&weights, Some(&[0.5, -1.0]), scale, zero);
        for channel in 0..2 {
            // All inputs are 0: their bytes are `zero`, and the result is the bias.
            let bytes = &weights.bytes[3 * channel..][..3];
            let products: i32 = bytes.iter().map(|&byte| i32::from(byte) * i32::from(zero)).sum();
            let result = products as f32 * weights.scales[channel] * scale + biases[channel];
            assert!((result - [0.5, -1.0][channel]).abs() < 1e-5, "{result}");
        }
        let none = quantise_weights(&[1.0], 1, 127);
        assert_eq!(corrected_biases(&none, None, 0.1, 0), [0.0]);
    }
}
