//! Fusion of a batch norm and the following activation.

use super::activation;
use crate::Kernel;
use crate::ops::{BatchNormApply, BatchNormInference, FusedActivation};

pub(super) fn fuse(producer: &Kernel, reader: &Kernel) -> Option<Kernel> {
    let activation = match activation(reader)? {
        FusedActivation::Activation(activation) => FusedActivation::after_norm(activation)?,
        rectifier => rectifier,
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
