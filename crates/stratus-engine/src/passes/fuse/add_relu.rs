//! Fusion of the sum of a residual block and the following ReLU.

use crate::Kernel;
use crate::ops::{AddForward, ReluForward};

pub(super) fn fuse(producer: &Kernel, reader: &Kernel) -> Option<Kernel> {
    match (producer, reader) {
        (
            Kernel::AddForward(AddForward { relu: false }),
            Kernel::ReluForward(ReluForward { ceiling: None }),
        ) => Some(AddForward { relu: true }.into()),
        _ => None,
    }
}
