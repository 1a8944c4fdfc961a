//! Fusion of a batch norm, its ReLU and the following max pooling.

use crate::Kernel;
use crate::ops::{BatchNormApply, BatchNormInference, FusedActivation, FusedPool};

pub(super) fn fuse(producer: &Kernel, reader: &Kernel) -> Option<Kernel> {
    let Kernel::MaxPoolForward(max_pool) = reader else { return None };
    let pool = Some(FusedPool::from_pool(&max_pool.pool)?);
    let fits = |activation: FusedActivation| activation.as_plain_relu().is_some();
    match producer {
        Kernel::BatchNormApply(norm) if norm.pool.is_none() && fits(norm.activation) => {
            Some(BatchNormApply { pool, ..*norm }.into())
        }
        Kernel::BatchNormInference(norm) if norm.pool.is_none() && fits(norm.activation) => {
            Some(BatchNormInference { pool, ..*norm }.into())
        }
        _ => None,
    }
}
