//! Max pooling of a ReLU output: it records in its argmax index where ReLU was inactive, so that no separate
//! mask pass is needed. Both steps remain, because the map itself is needed.

use super::only_reader;
use crate::ops::{AddForward, Conv2dForward, FusedPool, ReluForward};
use crate::program::Mode;
use crate::{Kernel, Program};

/// Makes every pooling that is the only reader of a ReLU output mask its gradient.
pub(super) fn fuse(program: &mut Program) {
    if program.mode != Mode::Train {
        return;
    }
    for producer in 0..program.steps.len() {
        let step = &program.steps[producer];
        let &[y] = &step.outputs[..] else { continue };
        if !applies_relu(&step.kernel) {
            continue;
        }
        let Some(reader) = only_reader(program, y) else { continue };
        let reader = &mut program.steps[reader];
        if let Kernel::MaxPoolForward(pool) = &mut reader.kernel {
            pool.mask_relu = reader.outputs.len() == 2 && FusedPool::from_pool(&pool.pool).is_some();
        }
    }
}

/// Returns whether a kernel applies ReLU to its output and would mask the gradient in a separate pass.
fn applies_relu(kernel: &Kernel) -> bool {
    match kernel {
        Kernel::Conv2dForward(Conv2dForward { relu, .. }) | Kernel::AddForward(AddForward { relu }) => *relu,
        Kernel::ReluForward(ReluForward { ceiling }) => ceiling.is_none(),
        _ => false,
    }
}
