//! Batch norm and the rectifier after it.

use crate::Kernel;
use crate::ops::{BatchNormApply, BatchNormInference};

pub(super) fn fuse(producer: &Kernel, reader: &Kernel) -> Option<Kernel> {
    match (producer, reader) {
        (Kernel::BatchNormApply(norm), Kernel::ReluForward(_)) if !norm.relu && norm.pool.is_none() => {
            Some(BatchNormApply { relu: true, ..*norm }.into())
        }
        (Kernel::BatchNormInference(norm), Kernel::ReluForward(_)) if !norm.relu && norm.pool.is_none() => {
            Some(BatchNormInference { relu: true, ..*norm }.into())
        }
        _ => None,
    }
}
