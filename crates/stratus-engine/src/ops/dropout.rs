//! Dropout in training. Its mask is never stored: it is a function of the run's seed, the iteration, the
//! layer and the element, which the backward pass computes anew.

use super::{HYPER, KernelSpec, Tiling, expect_counts, expect_same_shape, expect_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;
use stratus_graph::ops::Dropout as Op;
use stratus_random::{Purpose, Stream};

/// `(x, hyper) -> y`: an element is 0 with probability `p`, the others are multiplied by `1 / (1 - p)`. The
/// same kernel on `dy` makes `dx`.
///
/// Element `i` takes the word `i % 4` of block `i / 4` of the stream that belongs to (seed, iteration,
/// layer). Elements are counted in row-major order of `[N, ...]` over the whole batch, whatever their layout
/// and however the batch is cut into tiles: the same run has the same masks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dropout {
    /// The share of elements that are dropped.
    pub p: f32,
    /// The layer's number: layers have different masks.
    pub layer: u32,
}

/// Which elements a layer drops in an iteration.
#[derive(Clone, Debug)]
pub struct Mask {
    /// The words that decide.
    pub stream: Stream,
    /// An element whose word is less is dropped.
    pub threshold: u32,
}

impl Mask {
    /// Whether an element of the batch is kept.
    #[must_use]
    pub fn keeps(&self, element: u64) -> bool {
        self.stream.block((element / 4) as u32)[(element % 4) as usize] >= self.threshold
    }
}

impl Dropout {
    /// The mask of an iteration, given its numbers as [`HYPER`] has them.
    #[must_use]
    pub fn mask(&self, hyper: &[f64]) -> Mask {
        let number = |position: usize| hyper.get(position).map_or(0, |&number| number as u64);
        let [_, iteration, low, high] = std::array::from_fn::<u64, { HYPER.len() }, _>(number);
        let stream = Stream::new(low | high << 32, Purpose::Dropout, iteration, self.layer);
        // Exact: the share has 24 bits. It is less than 1, so that the threshold is less than 2^32.
        Mask { stream, threshold: (f64::from(self.p) * 4_294_967_296.0) as u32 }
    }

    /// What elements that are kept are multiplied by.
    #[must_use]
    pub fn scale(&self) -> f64 {
        1.0 / (1.0 - f64::from(self.p))
    }
}

pub(super) fn lower(op: &Op, node: &Node, to: &mut Lowering) -> Result<(), EngineError> {
    if !to.trains(node) || op.p == 0.0 {
        return to.alias(node);
    }
    let (x, hyper) = (to.input(node, 0), to.hyper());
    // Behind a layer that flattens, the input is a feature map as it lies.
    let y = to.output_like(node, x);
    let kernel = Dropout { p: op.p, layer: to.layer_number() };
    to.push(node, kernel, vec![x, hyper], vec![], vec![y]);
    Ok(())
}

impl KernelSpec for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, 1]])?;
        if !(0.0..1.0).contains(&self.p) {
            return Err(format!("it drops {} of all elements; it is at least 0 and less than 1", self.p));
        }
        expect_shape(operands[1], &[HYPER.len()])?;
        expect_same_shape(operands[0], operands[2])
    }

    fn tiling(&self) -> Tiling {
        // Of a sample and its place in the batch, which a kernel knows from its tile.
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[0].elements() as u64
    }

    fn differentiate(&self, step: &Step, to: &mut Differentiator) -> Result<(), EngineError> {
        let [x, hyper] = step.inputs[..] else { return Err(to.no_derivative(step)) };
        let Some(dy) = to.gradient(step.outputs[0]) else { return Ok(()) };
        if to.wants_gradient(x) {
            to.add_gradient(x, |to, dx| {
                to.push(step, *self, Phase::BackwardData, vec![dy, hyper], vec![], vec![dx]);
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYPER: [f64; 4] = [0.1, 5.0, 6.0, 7.0];

    fn kept(p: f32, layer: u32, hyper: [f64; 4]) -> Vec<bool> {
        let mask = Dropout { p, layer }.mask(&hyper);
        (0..20_000).map(|element| mask.keeps(element)).collect()
    }

    #[test]
    fn elements_take_the_words_of_the_stream_in_order() {
        let mut stream = Stream::new(6 | 7 << 32, Purpose::Dropout, 5, 2);
        let expected: Vec<bool> = (0..20_000).map(|_| stream.next_u32() >= 1 << 30).collect();
        assert_eq!(kept(0.25, 2, HYPER), expected);
    }

    #[test]
    fn the_share_that_is_dropped_is_p() {
        for p in [0.1, 0.5, 0.9] {
            let dropped = kept(p, 0, HYPER).iter().filter(|kept| !**kept).count() as f32 / 20_000.0;
            assert!((dropped - p).abs() < 0.015, "{dropped} of {p}");
        }
        assert!(kept(0.0, 0, HYPER).iter().all(|&kept| kept));
        let largest = 1.0f32.next_down();
        assert_eq!(Dropout { p: largest, layer: 0 }.mask(&HYPER).threshold, u32::MAX - 255);
    }

    #[test]
    fn layers_iterations_and_seeds_have_masks_of_their_own() {
        let base = kept(0.5, 0, HYPER);
        let mut others = vec![kept(0.5, 1, HYPER)];
        for position in 1..4 {
            let mut hyper = HYPER;
            hyper[position] += 1.0;
            others.push(kept(0.5, 0, hyper));
        }
        for other in others {
            let same = base.iter().zip(&other).filter(|(a, b)| a == b).count();
            assert!((9_500..10_500).contains(&same), "{same} of 20000 are the same");
        }
        // The rate has no part in it.
        assert_eq!(kept(0.5, 0, [0.2, 5.0, 6.0, 7.0]), base);
    }
}
