//! Group normalisation, of each sample's groups of channels.
//!
//! ```text
//! x̂ = (x - mean) / sqrt(variance + ε)        y = w x̂ + b          of a group's pixels and channels
//! g = w dy            dx = (g - mean(g) - x̂ mean(g x̂)) / sqrt(variance + ε)
//! dw = Σ dy x̂         db = Σ dy               over samples and pixels
//! ```
//!
//! Mean and variance are recomputed in the backward pass, as they are for a layer norm. Without `affine`
//! there is neither weight nor bias.

use super::{KernelSpec, Tiling, WorkKind, expect_counts, layer_norm};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::reference::{ReferenceKernel, Tensor, unexpected_operands};
use crate::{EngineError, Step, Tile, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;
use stratus_graph::ops::GroupNorm;

/// `(x [N,C,H,W], weight [C], bias [C]) -> y`, without `affine` `x -> y`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupNormForward {
    /// Attributes.
    pub norm: GroupNorm,
}

/// `(x, dy, weight) -> dx`, without `affine` `(x, dy) -> dx`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupNormBackward {
    /// Attributes.
    pub norm: GroupNorm,
}

/// `(x, dy) -> dweight [C], dbias [C]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupNormGradients {
    /// Attributes.
    pub norm: GroupNorm,
}

pub(super) fn lower(op: &GroupNorm, node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
    let mut inputs = vec![lowering.input(node, 0)];
    if op.affine {
        inputs.extend([lowering.parameter(node, 0), lowering.parameter(node, 1)]);
    }
    let y = lowering.output(node);
    lowering.push(node, GroupNormForward { norm: *op }, inputs, vec![], vec![y]);
    Ok(())
}

/// Checks the groups, maps of one shape, and values per channel.
fn check_all(norm: &GroupNorm, maps: &[&Value], channels: &[&Value]) -> Result<(), String> {
    if norm.groups == 0 || !norm.channels.is_multiple_of(norm.groups) {
        return Err(format!("{} channels cannot be divided into {} groups", norm.channels, norm.groups));
    }
    layer_norm::check_all(norm.channels, maps, channels)
}

impl KernelSpec for GroupNormForward {
    fn name(&self) -> &'static str {
        "group_norm_forward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[if self.norm.affine { 3 } else { 1 }, 0, 1]])?;
        let (y, inputs) = operands.split_last().ok_or("no operands")?;
        check_all(&self.norm, &[operands[0], y], &inputs[1..])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Normalisation
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    /// The same count as in the graph.
    fn flops(&self, operands: &[&Value]) -> u64 {
        8 * operands[0].elements() as u64
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let norm = self.norm;
        layer_norm::differentiate(step, GroupNormBackward { norm }, GroupNormGradients { norm }, backward)
    }
}

impl KernelSpec for GroupNormBackward {
    fn name(&self) -> &'static str {
        "group_norm_backward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2 + usize::from(self.norm.affine), 0, 1]])?;
        let (dx, inputs) = operands.split_last().ok_or("no operands")?;
        check_all(&self.norm, &[inputs[0], inputs[1], dx], &inputs[2..])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Normalisation
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    /// Recomputing the statistics, two sums, and the gradient.
    fn flops(&self, operands: &[&Value]) -> u64 {
        14 * operands[0].elements() as u64
    }
}

impl KernelSpec for GroupNormGradients {
    fn name(&self) -> &'static str {
        "group_norm_gradients"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, 2]])?;
        check_all(&self.norm, &operands[..2], &operands[2..4])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Normalisation
    }

    fn tiling(&self) -> Tiling {
        Tiling::PartialSums
    }

    /// Recomputing the statistics, and two sums.
    fn flops(&self, operands: &[&Value]) -> u64 {
        9 * operands[0].elements() as u64
    }
}

/// A group of a sample: the positions of its elements, which are contiguous in row-major maps, and its
/// statistics.
struct Group {
    first: usize,
    /// The number of elements.
    count: usize,
    /// The elements of a channel.
    pixels: usize,
    /// The group's first channel.
    channel: usize,
    mean: f64,
    /// One over the square root of the variance plus epsilon.
    scale: f64,
}

impl Group {
    /// All groups of a map.
    fn all<'a>(norm: &'a GroupNorm, x: &'a Tensor<'_>) -> impl Iterator<Item = Self> + 'a {
        let [samples, _, height, width] = x.image();
        let (pixels, channels) = (height * width, norm.group_channels());
        let count = channels * pixels;
        (0..samples * norm.groups).map(move |number| {
            let first = number * count;
            let mean = (first..first + count).map(|at| x.get(at)).sum::<f64>() / count as f64;
            let squares = (first..first + count).map(|at| (x.get(at) - mean).powi(2)).sum::<f64>();
            let scale = (squares / count as f64 + f64::from(norm.epsilon)).sqrt().recip();
            Self { first, count, pixels, channel: number % norm.groups * channels, mean, scale }
        })
    }

    /// The positions of its elements, each with its channel.
    fn elements(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let Self { first, count, pixels, channel, .. } = *self;
        (0..count).map(move |at| (first + at, channel + at / pixels))
    }

    /// An element of the map, normalised.
    fn normalised(&self, x: &Tensor<'_>, at: usize) -> f64 {
        (x.get(at) - self.mean) * self.scale
    }
}

impl ReferenceKernel for GroupNormForward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, parameters @ .., y] = operands else { return Err(unexpected_operands()) };
        for group in Group::all(&self.norm, x) {
            for (at, channel) in group.elements() {
                let normalised = group.normalised(x, at);
                y.set(
                    at,
                    match parameters {
                        [weight, bias] => weight.get(channel) * normalised + bias.get(channel),
                        _ => normalised,
                    },
                );
            }
        }
        Ok(())
    }
}

impl ReferenceKernel for GroupNormBackward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, dy, weight @ .., dx] = operands else { return Err(unexpected_operands()) };
        for group in Group::all(&self.norm, x) {
            let gradient = |(at, channel): (usize, usize)| {
                dy.get(at) * weight.first().map_or(1.0, |weight| weight.get(channel))
            };
            let mean_of = |value: &dyn Fn((usize, usize)) -> f64| {
                group.elements().map(value).sum::<f64>() / group.count as f64
            };
            let plain = mean_of(&gradient);
            let along = mean_of(&|element| gradient(element) * group.normalised(x, element.0));
            for element in group.elements() {
                let normalised = group.normalised(x, element.0);
                dx.set(element.0, (gradient(element) - plain - normalised * along) * group.scale);
            }
        }
        Ok(())
    }
}

impl ReferenceKernel for GroupNormGradients {
    /// The two sums of each channel.
    fn scratch(&self, _operands: &[&Value]) -> usize {
        2 * self.norm.channels
    }

    fn run(&self, operands: &mut [Tensor<'_>], scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, dy, dweight, dbias] = operands else { return Err(unexpected_operands()) };
        let (products, sums) = scratch.split_at_mut(self.norm.channels);
        products.fill(0.0);
        sums.fill(0.0);
        for group in Group::all(&self.norm, x) {
            for (at, channel) in group.elements() {
                products[channel] += dy.get(at) * group.normalised(x, at);
                sums[channel] += dy.get(at);
            }
        }
        dweight.write(0, products);
        dbias.write(0, &sums[..self.norm.channels]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::run_in_f64;

    /// The results of `torch.nn.functional.group_norm` of PyTorch 2.15 in float64, which derivatives by
    /// complex steps in numpy confirm.
    #[test]
    fn matches_pytorch() {
        let norm = GroupNorm { epsilon: 1e-2, ..GroupNorm::new(4, 2) };
        let map = &[2, 4, 1, 2][..];
        let x = [1.0, 2.0, 4.0, -1.0, 0.5, 3.0, -2.0, 1.5, 0.0, 1.0, -3.0, 2.0, 2.5, 0.25, 1.0, -1.0];
        let dy = [1.0, -1.0, 2.0, 0.5, 0.25, 3.0, 1.0, -2.0, 0.5, -0.5, 1.0, 2.0, -1.0, 0.75, 0.25, 1.0];
        let (weight, bias) = ((&[4][..], &[1.0, -2.0, 0.5, 3.0][..]), (&[4][..], &[0.1, 0.2, 0.3, -0.4][..]));
        let empty = (map, &[0.0; 16][..]);
        let close = |found: &[f64], expected: &[f64]| {
            assert_eq!(found.len(), expected.len());
            // The epsilon is rounded to f32.
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 2e-8), "{found:?} {expected:?}");
        };
        let y = run_in_f64(&GroupNormForward { norm }, &[(map, &x), weight, bias, empty], 1);
        let expected = [
            -0.176924388,
            0.376924388,
            -2.569243878,
            2.969243878,
            0.231423152,
            0.91719163,
            -4.926071952,
            0.83438326,
            0.1,
            0.633760513,
            3.402563076,
            -1.935042051,
            1.013015119,
            0.127892902,
            0.337601847,
            -4.383049975,
        ];
        close(&y[0], &expected);
        let dx = run_in_f64(&GroupNormBackward { norm }, &[(map, &x), (map, &dy), weight, empty], 1);
        let expected = [
            1.065649216,
            0.318972723,
            -0.620531489,
            -0.76409045,
            0.160090045,
            1.885166709,
            0.766626206,
            -2.81188296,
            1.067521025,
            0.628803339,
            -0.552008735,
            -1.144315629,
            0.195286016,
            -0.732175122,
            0.10149546,
            0.435393645,
        ];
        close(&dx[0], &expected);
        let operands = [(map, &x[..]), (map, &dy), (&[4], &[0.0; 4]), (&[4], &[0.0; 4])];
        let gradients = run_in_f64(&GroupNormGradients { norm }, &operands, 2);
        close(&gradients[0], &[-0.820729032, 2.610693421, 1.98467047, -3.597829328]);
        close(&gradients[1], &[0.0, 5.5, 3.0, 0.25]);
    }
}
