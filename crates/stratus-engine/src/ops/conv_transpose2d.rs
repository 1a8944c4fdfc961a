//! Transposed convolution. It is the gradient of a convolution's input; its own gradients are that
//! convolution's forward pass and weight gradient. It therefore reuses the convolution's kernels.
//!
//! ```text
//! conv = op.transposed(), from the channels of y to those of x
//! forward           y  = Conv2dBackwardData(x, w)         y += b: AddBias
//! data gradient     dx = Conv2dForward(dy, w)
//! weight gradient   dw = Conv2dBackwardWeights(dy, x)     db = BiasGradient(dy)
//! ```

use super::{AddBias, Conv2dBackwardData};
use crate::EngineError;
use crate::build::Lowering;
use stratus_graph::Node;
use stratus_graph::ops::ConvTranspose2d;

pub(super) fn lower(op: &ConvTranspose2d, node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
    let (x, weight) = (lowering.input(node, 0), lowering.compute_parameter(node, 0));
    let y = lowering.output(node);
    lowering.push(node, Conv2dBackwardData { conv: op.transposed() }, vec![x, weight], vec![], vec![y]);
    if op.bias {
        let bias = lowering.parameter(node, 1);
        lowering.push(node, AddBias, vec![bias], vec![y], vec![]);
    }
    Ok(())
}
