//! Messages between the stages of a pipeline.

use super::{KernelSpec, Tiling, WorkKind, expect_counts};
use crate::Value;
use serde::{Deserialize, Serialize};

/// A message between two stages of a pipeline, sent once for each batch part:
///
/// ```text
/// values… ->    sends it in the background
/// -> values…    waits for it
/// ```
///
/// Both ends store the values identically, because kernels and layouts are those of the unpartitioned
/// program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StageTransfer {
    /// The index of the other stage.
    pub stage: usize,
    /// The index of the message among those between the two stages in this direction.
    pub message: usize,
    /// True if this stage sends it; otherwise it receives it.
    pub sends: bool,
    /// True if it belongs to the backward pass. The backward half of a stage starts with the first such
    /// message that it receives.
    pub backward: bool,
}

impl StageTransfer {
    /// Returns whether a stage's backward half starts with it, if it is the first such step.
    #[must_use]
    pub fn starts_backward(&self) -> bool {
        self.backward && !self.sends
    }
}

impl KernelSpec for StageTransfer {
    fn name(&self) -> &'static str {
        if self.sends { "stage_send" } else { "stage_receive" }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let count = operands.len().max(1);
        expect_counts(counts, &[if self.sends { [count, 0, 0] } else { [0, 0, count] }])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::WholeBatch
    }

    fn flops(&self, _operands: &[&Value]) -> u64 {
        0
    }
}
