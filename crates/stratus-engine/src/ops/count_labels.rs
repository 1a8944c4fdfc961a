//! Label counts by class: the divisor of a loss whose batch is split into micro-batches or parts.

use super::labels::MIXED_LABEL_LEN;
use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_shape};
use crate::{DType, Value};
use serde::{Deserialize, Serialize};

/// `labels i32 [N], [N, 3] or [N, H, W] -> counts f64 [K]`: the number of labels of each class; or `targets
/// f32 [N, T] -> counts f64 [T]`: the number of present targets in each column, those that are not NaN.
///
/// Negative labels are not counted, nor are those out of range, which the loss rejects. Counts are integers,
/// so that their sum over workers is exact in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CountLabels {
    /// True if labels are `[N, 3]`, see [`MIXED_LABEL_LEN`]; the first class is counted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "mixed")]
    pub mixed_labels: bool,
}

impl CountLabels {
    /// The stride between the classes of neighbouring labels, in elements.
    #[must_use]
    pub fn stride(&self) -> usize {
        if self.mixed_labels { MIXED_LABEL_LEN } else { 1 }
    }
}

impl KernelSpec for CountLabels {
    fn name(&self) -> &'static str {
        "count_labels"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        let (labels, counted) = (operands[0], operands[1]);
        expect_label_counts(counted)?;
        match (labels.dtype, &labels.shape[..]) {
            (DType::I32, [_, ..]) => {}
            (DType::F32, &[_, targets]) if !self.mixed_labels => {
                return expect_shape(counted, &[targets]);
            }
            (dtype, shape) => {
                return Err(format!("labels: expected i32 [N…] or f32 [N, T], got {dtype} {shape:?}"));
            }
        }
        if self.mixed_labels && labels.shape[1..] != [MIXED_LABEL_LEN] {
            return Err(format!("mixed labels: expected [N, {MIXED_LABEL_LEN}], got {:?}", labels.shape));
        }
        Ok(())
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::WholeBatch
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        (operands[0].elements() / self.stride()) as u64
    }
}

/// Checks the counts of a batch's labels: f64 `[K]`.
pub(super) fn expect_label_counts(counts: &Value) -> Result<(), String> {
    if counts.dtype != DType::F64 || counts.shape.len() != 1 {
        return Err(format!("`{}`: expected f64 [K], got {} {:?}", counts.name, counts.dtype, counts.shape));
    }
    Ok(())
}
