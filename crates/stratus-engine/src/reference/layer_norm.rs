//! Layer normalisation over the channels of each pixel.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{LayerNormBackward, LayerNormForward, LayerNormGradients};

/// The offsets of the first channel of each pixel of a map, and the distance between channels.
fn pixels([batch, channels, height, width]: [usize; 4]) -> (impl Iterator<Item = usize>, usize) {
    let pixels = height * width;
    ((0..batch).flat_map(move |n| (0..pixels).map(move |pixel| n * channels * pixels + pixel)), pixels)
}

/// The mean of a pixel's channels, and one over the square root of their variance plus epsilon.
fn moments(x: &Tensor<'_>, [first, stride, channels]: [usize; 3], epsilon: f32) -> [f64; 2] {
    let value = |c: usize| x.get(first + c * stride);
    let mean = (0..channels).map(value).sum::<f64>() / channels as f64;
    let variance = (0..channels).map(|c| (value(c) - mean).powi(2)).sum::<f64>() / channels as f64;
    [mean, (variance + f64::from(epsilon)).sqrt().recip()]
}

impl ReferenceKernel for LayerNormForward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, weight, bias, y] = operands else { return Err(unexpected_operands()) };
        let (shape, channels) = (x.image(), self.norm.channels);
        let (pixels, stride) = pixels(shape);
        for first in pixels {
            let [mean, scale] = moments(x, [first, stride, channels], self.norm.epsilon);
            for c in 0..channels {
                let at = first + c * stride;
                y.set(at, weight.get(c) * (x.get(at) - mean) * scale + bias.get(c));
            }
        }
        Ok(())
    }
}

impl ReferenceKernel for LayerNormBackward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, dy, weight, dx] = operands else { return Err(unexpected_operands()) };
        let (shape, channels) = (x.image(), self.norm.channels);
        let (pixels, stride) = pixels(shape);
        for first in pixels {
            let [mean, scale] = moments(x, [first, stride, channels], self.norm.epsilon);
            let normalised = |c: usize| (x.get(first + c * stride) - mean) * scale;
            let gradient = |c: usize| weight.get(c) * dy.get(first + c * stride);
            let mean_of =
                |value: &dyn Fn(usize) -> f64| (0..channels).map(value).sum::<f64>() / channels as f64;
            let [plain, along] = [mean_of(&gradient), mean_of(&|c| gradient(c) * normalised(c))];
            for c in 0..channels {
                dx.set(first + c * stride, (gradient(c) - plain - normalised(c) * along) * scale);
            }
        }
        Ok(())
    }
}

impl ReferenceKernel for LayerNormGradients {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, dy, dweight, dbias] = operands else { return Err(unexpected_operands()) };
        let (shape, channels) = (x.image(), self.norm.channels);
        for c in 0..channels {
            let (mut weight_gradient, mut bias_gradient) = (0.0, 0.0);
            let (pixels, stride) = pixels(shape);
            for first in pixels {
                let [mean, scale] = moments(x, [first, stride, channels], self.norm.epsilon);
                let at = first + c * stride;
                weight_gradient += dy.get(at) * (x.get(at) - mean) * scale;
                bias_gradient += dy.get(at);
            }
            dweight.set(c, weight_gradient);
            dbias.set(c, bias_gradient);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::run_in_f64 as run;
    use stratus_graph::ops::LayerNorm2d;

    /// The results of `torch.nn.functional.layer_norm` of PyTorch 2.15 in float64, with channels moved to the
    /// end and back.
    #[test]
    fn matches_pytorch() {
        let norm = LayerNorm2d { channels: 3, epsilon: 1e-2 };
        let map = &[1, 3, 1, 2][..];
        let (x, dy) = ([1.0, 2.0, 4.0, -1.0, 0.5, 3.0], [1.0, -1.0, 2.0, 0.5, 0.25, 3.0]);
        let (weight, bias) = ((&[3][..], &[1.0, -2.0, 0.5][..]), (&[3][..], &[0.1, 0.2, 0.3][..]));
        let empty = (map, &[0.0; 6][..]);
        let close = |found: &[f64], expected: &[f64]| {
            assert_eq!(found.len(), expected.len());
            // The epsilon is rounded to f32.
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 2e-8), "{found:?} {expected:?}");
        };
        let y = run(&LayerNormForward { norm }, &[(map, &x), weight, bias, empty], 1);
        close(&y[0], &[-0.438038914, 0.491555164, -2.597802353, 2.940886149, -0.130431131, 0.789443955]);
        let dx = run(&LayerNormBackward { norm }, &[(map, &x), (map, &dy), weight, empty], 1);
        close(&dx[0], &[0.541689803, -0.677042251, -0.08481776, 0.167150082, -0.456872043, 0.509892169]);
        let operands = [(map, &x[..]), (map, &dy), (&[3], &[0.0; 3]), (&[3], &[0.0; 3])];
        let gradients = run(&LayerNormGradients { norm }, &operands, 2);
        close(&gradients[0], &[-0.929594078, 2.112580816, 2.721448165]);
        close(&gradients[1], &[0.0, 2.5, 3.25]);
    }
}
