//! Fusion of a batch norm and the following ReLU.

use crate::Kernel;
use crate::ops::{BatchNormApply, BatchNormInference, ReluForward};

pub(super) fn fuse(producer: &Kernel, reader: &Kernel) -> Option<Kernel> {
    match (producer, reader) {
        (Kernel::BatchNormApply(norm), Kernel::ReluForward(ReluForward { ceiling: None }))
            if !norm.relu && norm.pool.is_none() =>
        {
            Some(BatchNormApply { relu: true, ..*norm }.into())
        }
        (Kernel::BatchNormInference(norm), Kernel::ReluForward(ReluForward { ceiling: None }))
            if !norm.relu && norm.pool.is_none() =>
        {
            Some(BatchNormInference { relu: true, ..*norm }.into())
        }
        _ => None,
    }
}
