//! Fusion of a batch norm and the following activation.

use crate::Kernel;
use crate::ops::{ActivationForward, BatchNormApply, BatchNormInference, FusedActivation, ReluForward};

pub(super) fn fuse(producer: &Kernel, reader: &Kernel) -> Option<Kernel> {
    let activation = match reader {
        Kernel::ReluForward(ReluForward { ceiling }) => FusedActivation::Relu { ceiling: *ceiling },
        Kernel::ActivationForward(ActivationForward(activation)) => FusedActivation::after_norm(*activation)?,
        _ => return None,
    };
    let is_alone = |before: FusedActivation, pooled: bool| before == FusedActivation::Identity && !pooled;
    match producer {
        Kernel::BatchNormApply(norm) if is_alone(norm.activation, norm.pool.is_some()) => {
            Some(BatchNormApply { activation, ..*norm }.into())
        }
        Kernel::BatchNormInference(norm) if is_alone(norm.activation, norm.pool.is_some()) => {
            Some(BatchNormInference { activation, ..*norm }.into())
        }
        _ => None,
    }
}
