//! Max-pooling of a rectified map: the largest of a window was cut off by the rectifier where it is not
//! positive, which pooling writes down with the winners. The map's gradient comes masked then, and need not
//! be masked in a pass of its own. Both steps remain: the map itself is needed.

use super::only_reader;
use crate::ops::{AddForward, Conv2dForward, FusedPool, ReluForward};
use crate::program::Mode;
use crate::{Kernel, Program};

/// Has every pooling that alone reads a rectified map cut its gradient.
pub(super) fn fuse(program: &mut Program) {
    if program.mode != Mode::Train {
        return;
    }
    for producer in 0..program.steps.len() {
        let step = &program.steps[producer];
        let &[y] = &step.outputs[..] else { continue };
        if !rectifies(&step.kernel) {
            continue;
        }
        let Some(reader) = only_reader(program, y) else { continue };
        let reader = &mut program.steps[reader];
        if let Kernel::MaxPoolForward(pool) = &mut reader.kernel {
            pool.cut = reader.outputs.len() == 2 && FusedPool::from_pool(&pool.pool).is_some();
        }
    }
}

/// Whether a kernel rectifies what it makes, and masks the gradient in a pass of its own.
fn rectifies(kernel: &Kernel) -> bool {
    match kernel {
        Kernel::Conv2dForward(Conv2dForward { relu, .. }) | Kernel::AddForward(AddForward { relu }) => *relu,
        Kernel::ReluForward(ReluForward { ceiling }) => ceiling.is_none(),
        _ => false,
    }
}
