//! The labels of a batch, counted by class: the divisor of a loss whose batch is cut into micro-batches or
//! parts.

use super::loss::MIXED;
use super::{KernelSpec, Tiling, expect_counts};
use crate::{DType, Value};
use serde::{Deserialize, Serialize};

/// `labels i32 [N], [N, 3] or [N, H, W] -> counts f64 [K]`: the number of labels of each class.
///
/// Negative labels are not counted, nor are those beyond the classes, which the loss refuses. Counts are
/// whole numbers, so that their sum over workers is exact in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CountLabels {
    /// Whether samples are mixed of two: labels are `[N, 3]`, see [`MIXED`], and the first class is counted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mixed: bool,
}

impl CountLabels {
    /// The distance between the classes of neighbouring labels, in numbers.
    #[must_use]
    pub fn stride(&self) -> usize {
        if self.mixed { MIXED } else { 1 }
    }
}

impl KernelSpec for CountLabels {
    fn name(&self) -> &'static str {
        "count_labels"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        let (labels, counted) = (operands[0], operands[1]);
        if labels.dtype != DType::I32 || labels.shape.is_empty() {
            return Err(format!("labels are {} {:?}, they should be i32 [N…]", labels.dtype, labels.shape));
        }
        if self.mixed && labels.shape[1..] != [MIXED] {
            return Err(format!(
                "labels of mixed samples are {:?}, they should be [N, {MIXED}]",
                labels.shape
            ));
        }
        expect_label_counts(counted)
    }

    fn tiling(&self) -> Tiling {
        Tiling::Whole
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        (operands[0].elements() / self.stride()) as u64
    }
}

/// Checks the counts of a batch's labels: f64 `[K]`.
pub(super) fn expect_label_counts(counts: &Value) -> Result<(), String> {
    if counts.dtype != DType::F64 || counts.shape.len() != 1 {
        return Err(format!(
            "`{}` is {} {:?}, it should be f64 [K]",
            counts.name, counts.dtype, counts.shape
        ));
    }
    Ok(())
}
