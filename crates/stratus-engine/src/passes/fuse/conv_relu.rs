//! Fusion of a convolution and the following ReLU, which is applied while the result is in registers.

use crate::Kernel;
use crate::ops::{Conv2dForward, ReluForward};

pub(super) fn fuse(producer: &Kernel, reader: &Kernel) -> Option<Kernel> {
    match (producer, reader) {
        (Kernel::Conv2dForward(conv), Kernel::ReluForward(ReluForward { ceiling: None })) if !conv.relu => {
            Some(Conv2dForward { relu: true, ..*conv }.into())
        }
        _ => None,
    }
}
