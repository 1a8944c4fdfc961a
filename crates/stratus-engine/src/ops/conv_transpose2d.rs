//! Transposed convolution. It is the gradient of a convolution's input, its own gradients are that
//! convolution's forward pass and the gradient of its weight: it has no kernels of its own, and runs on
//! whatever is fastest for those.
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

pub(super) fn lower(op: &ConvTranspose2d, node: &Node, to: &mut Lowering) -> Result<(), EngineError> {
    let (x, weight) = (to.input(node, 0), to.compute_parameter(node, 0));
    let y = to.output(node);
    to.push(node, Conv2dBackwardData { conv: op.transposed() }, vec![x, weight], vec![], vec![y]);
    if op.bias {
        let bias = to.parameter(node, 1);
        to.push(node, AddBias, vec![bias], vec![y], vec![]);
    }
    Ok(())
}
