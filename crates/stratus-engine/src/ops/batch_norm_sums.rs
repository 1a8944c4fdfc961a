//! Batch statistics over several parts of a batch: each part contributes sums, which add up over the parts,
//! and the statistics follow from the sums of all.
//!
//! Sums of squares lose precision where the mean is much larger than the deviation. In double precision this
//! matters only from a ratio of 10⁷ on, at which single-precision maps have no deviation left.

use super::batch_norm::{ChannelOffsets, check_all};
use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_f64, expect_shape};
use crate::Value;
use serde::{Deserialize, Serialize};
use stratus_graph::ops::BatchNorm2d;

/// `x -> sums f64 [2, C]`: per channel the sum of `x`, then that of `x²`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormSums {
    /// Attributes.
    pub norm: BatchNorm2d,
    /// The first of its channels within a larger map.
    pub offset: Option<usize>,
}

/// `(sums f64 [2, C]) updates (running_mean, running_var) -> mean, inverse_deviation`: the results of
/// [`super::BatchNormStatistics`] from the sums of [`BatchNormSums`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormStatisticsFromSums {
    /// Attributes.
    pub norm: BatchNorm2d,
    /// The number of elements of each channel over which the sums are taken.
    pub count: u64,
}

impl KernelSpec for BatchNormSums {
    fn name(&self) -> &'static str {
        "batch_norm_sums"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        let (x, parts) = (operands[0], ChannelOffsets { x: self.offset, y: self.offset });
        check_all(&self.norm, (None, parts), x, x, &[])?;
        expect_shape(operands[1], &[2, self.norm.channels])?;
        expect_f64(operands[1])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Normalisation
    }

    fn tiling(&self) -> Tiling {
        Tiling::PartialSums
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        let channels = operands[0].shape.get(1).copied().unwrap_or(1).max(1);
        3 * (operands[0].elements() / channels * self.norm.channels) as u64
    }

    fn channels_touched(&self, _operands: &[&Value], position: usize) -> Option<usize> {
        (self.offset.is_some() && position == 0).then_some(self.norm.channels)
    }
}

impl KernelSpec for BatchNormStatisticsFromSums {
    fn name(&self) -> &'static str {
        "batch_norm_statistics_from_sums"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 2, 2]])?;
        if self.count == 0 {
            return Err("statistics of no elements".to_owned());
        }
        expect_shape(operands[0], &[2, self.norm.channels])?;
        expect_f64(operands[0])?;
        operands[1..].iter().try_for_each(|value| expect_shape(value, &[self.norm.channels]))
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::WholeBatch
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        6 * operands[0].elements() as u64
    }
}
