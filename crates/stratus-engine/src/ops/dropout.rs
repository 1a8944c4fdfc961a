//! Dropout in training. Its mask is never stored: it is a function of the run's seed, the iteration, the
//! layer and the element, which the backward pass recomputes.

use super::{
    ITERATION_SCALAR_FIELDS, KernelSpec, Tiling, WorkKind, expect_counts, expect_same_shape, expect_shape,
};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;
use stratus_graph::ops::Dropout as Op;
use stratus_random::{Purpose, Stream};

/// `(x, scalars) -> y`: an element is 0 with probability `p`, the others are multiplied by `1 / (1 - p)`. The
/// same kernel computes `dx` from `dy`.
///
/// Element `i` takes the word `i % 4` of block `i / 4` of the stream that belongs to (seed, iteration,
/// layer). Elements are counted in row-major order of `[N, ...]` over the whole batch, independent of layout
/// and tiles, so that a repeated run has the same masks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dropout {
    /// The probability of dropping an element.
    pub p: f32,
    /// The layer's index: layers have different masks.
    pub layer: u32,
}

/// The elements that a layer drops in an iteration.
#[derive(Clone, Debug)]
pub struct Mask {
    /// The random words of the elements.
    pub stream: Stream,
    /// An element is dropped if its word is less.
    pub threshold: u32,
}

impl Mask {
    /// Returns whether an element of the batch is kept.
    #[must_use]
    pub fn keeps(&self, element: u64) -> bool {
        self.stream.block((element / 4) as u32)[(element % 4) as usize] >= self.threshold
    }
}

impl Dropout {
    /// The mask of an iteration, given its [`ITERATION_SCALAR_FIELDS`].
    #[must_use]
    pub fn mask(&self, scalars: &[f64]) -> Mask {
        let number = |position: usize| scalars.get(position).map_or(0, |&number| number as u64);
        let [_, iteration, low, high] =
            std::array::from_fn::<u64, { ITERATION_SCALAR_FIELDS.len() }, _>(number);
        let stream = Stream::new(low | high << 32, Purpose::Dropout, iteration, self.layer);
        // Exact, because `p` has 24 bits. It is less than 1, so the threshold is less than 2^32.
        Mask { stream, threshold: (f64::from(self.p) * 4_294_967_296.0) as u32 }
    }

    /// The factor of kept elements.
    #[must_use]
    pub fn scale(&self) -> f64 {
        1.0 / (1.0 - f64::from(self.p))
    }
}

pub(super) fn lower(op: &Op, node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
    if !lowering.is_training(node) || op.p == 0.0 {
        return lowering.alias(node);
    }
    let (x, scalars) = (lowering.input(node, 0), lowering.iteration_scalars());
    // After a flatten, the input is still a feature map in its layout.
    let y = lowering.output_like(node, x);
    let kernel = Dropout { p: op.p, layer: lowering.layer_index() };
    lowering.push(node, kernel, vec![x, scalars], vec![], vec![y]);
    Ok(())
}

impl KernelSpec for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, 1]])?;
        if !(0.0..1.0).contains(&self.p) {
            return Err(format!("`p` must be in [0, 1), got {}", self.p));
        }
        expect_shape(operands[1], &[ITERATION_SCALAR_FIELDS.len()])?;
        expect_same_shape(operands[0], operands[2])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        // The mask depends on the sample's position in the batch, which a kernel knows from its tile.
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[0].elements() as u64
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let [x, scalars] = step.inputs[..] else { return Err(backward.no_derivative(step)) };
        let Some(dy) = backward.gradient(step.outputs[0]) else { return Ok(()) };
        if backward.requires_grad(x) {
            backward.add_gradient(x, |backward, dx| {
                backward.push(step, *self, Phase::BackwardData, vec![dy, scalars], vec![], vec![dx]);
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITERATION_SCALARS: [f64; 4] = [0.1, 5.0, 6.0, 7.0];

    fn kept(p: f32, layer: u32, scalars: [f64; 4]) -> Vec<bool> {
        let mask = Dropout { p, layer }.mask(&scalars);
        (0..20_000).map(|element| mask.keeps(element)).collect()
    }

    #[test]
    fn elements_use_the_words_of_the_stream_in_order() {
        let mut stream = Stream::new(6 | 7 << 32, Purpose::Dropout, 5, 2);
        let expected: Vec<bool> = (0..20_000).map(|_| stream.next_u32() >= 1 << 30).collect();
        assert_eq!(kept(0.25, 2, ITERATION_SCALARS), expected);
    }

    #[test]
    fn p_is_the_share_of_dropped_elements() {
        for p in [0.1, 0.5, 0.9] {
            let dropped =
                kept(p, 0, ITERATION_SCALARS).iter().filter(|kept| !**kept).count() as f32 / 20_000.0;
            assert!((dropped - p).abs() < 0.015, "{dropped} of {p}");
        }
        assert!(kept(0.0, 0, ITERATION_SCALARS).iter().all(|&kept| kept));
        let largest = 1.0f32.next_down();
        assert_eq!(Dropout { p: largest, layer: 0 }.mask(&ITERATION_SCALARS).threshold, u32::MAX - 255);
    }

    #[test]
    fn masks_differ_by_layer_iteration_and_seed() {
        let base = kept(0.5, 0, ITERATION_SCALARS);
        let mut others = vec![kept(0.5, 1, ITERATION_SCALARS)];
        for position in 1..4 {
            let mut scalars = ITERATION_SCALARS;
            scalars[position] += 1.0;
            others.push(kept(0.5, 0, scalars));
        }
        for other in others {
            let same = base.iter().zip(&other).filter(|(a, b)| a == b).count();
            assert!((9_500..10_500).contains(&same), "{same} of 20000 are the same");
        }
        // The learning rate does not change the mask.
        assert_eq!(kept(0.5, 0, [0.2, 5.0, 6.0, 7.0]), base);
    }
}
