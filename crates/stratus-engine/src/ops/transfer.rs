//! What one stage of a pipeline hands to another.

use super::{KernelSpec, Tiling, expect_counts};
use crate::Value;
use serde::{Deserialize, Serialize};

/// A message between two stages of a pipeline, of which each part of a batch has one:
///
/// ```text
/// values… ->    sends it; it goes on its way beside the steps that follow
/// -> values…    waits for it
/// ```
///
/// Values of both ends have the same bytes: kernels and layouts are those of the uncut program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Transfer {
    /// The number of the other stage.
    pub stage: usize,
    /// Which of the messages between the two in this direction.
    pub message: usize,
    /// Whether it is sent.
    pub sends: bool,
    /// Whether it belongs to the backward pass. Where a stage receives the first of these, the backward half
    /// of its steps begins.
    pub backward: bool,
}

impl Transfer {
    /// Whether a stage's backward half begins with it, if no other was before.
    #[must_use]
    pub fn turns_back(&self) -> bool {
        self.backward && !self.sends
    }
}

impl KernelSpec for Transfer {
    fn name(&self) -> &'static str {
        if self.sends { "stage_send" } else { "stage_receive" }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let count = operands.len().max(1);
        expect_counts(counts, &[if self.sends { [count, 0, 0] } else { [0, 0, count] }])
    }

    fn tiling(&self) -> Tiling {
        Tiling::Whole
    }

    fn flops(&self, _operands: &[&Value]) -> u64 {
        0
    }
}
