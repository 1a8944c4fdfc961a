//! Convolution in inference, with the sum and the activation that follow it. The pass
//! [`fuse_inference`](crate::passes::fuse::fuse_inference) inserts it into evaluation programs, so it has no
//! derivative.

use super::conv2d::{check_forward, flops};
use super::{FusedActivation, KernelSpec, Tiling, WorkKind, expect_same_shape};
use crate::Value;
use serde::{Deserialize, Serialize};
use stratus_graph::ops::Conv2d;

/// `(x [N,C,H,W], weight [O,C/G,KH,KW], bias? [O], addend? [N,O,H',W']) -> y [N,O,H',W']`:
/// `y = f(z + addend)`, where `z` is the convolution with its bias, and `f` the activation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conv2dInference {
    /// Attributes.
    pub conv: Conv2d,
    /// True if a map is added to the output, before the activation.
    pub adds: bool,
    /// The activation.
    pub activation: FusedActivation,
}

impl Conv2dInference {
    /// The number of inputs.
    #[must_use]
    pub fn inputs(&self) -> usize {
        2 + usize::from(self.conv.bias) + usize::from(self.adds)
    }
}

impl KernelSpec for Conv2dInference {
    fn name(&self) -> &'static str {
        let is_activated = self.activation != FusedActivation::Identity;
        match (self.adds, is_activated) {
            (false, false) => "conv2d_inference",
            (false, true) => "conv2d_activation_inference",
            (true, false) => "conv2d_add_inference",
            (true, true) => "conv2d_add_activation_inference",
        }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let inputs = self.inputs();
        check_forward(&self.conv, operands, counts, inputs)?;
        if self.adds { expect_same_shape(operands[inputs - 1], operands[inputs]) } else { Ok(()) }
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::MatrixProduct
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        flops(&self.conv, operands[operands.len() - 1])
    }
}
