//! Communication between the workers of a training: all-reduced buckets of sums and pipeline messages, in the
//! background of the computing steps.

use crate::backend::{Operands, StepKernel};
use crate::ops::{AllReduceBucket, Kernel, MAX_BUCKET_VALUES, StageTransfer};
use crate::{DType, PreparedStep, Program};
use std::sync::Arc;

/// Communication with the other workers of a training.
pub trait Communicator: Send + Sync {
    /// Starts an all-reduce (sum) of a bucket. All values of a bucket have one type, and every worker starts
    /// the same buckets in the same order.
    ///
    /// # Errors
    /// If an earlier exchange failed.
    fn start_all_reduce(&self, bucket: usize, dtype: DType, values: &[&mut [u8]]) -> Result<(), String>;

    /// Waits for a bucket and replaces the values with their sums.
    ///
    /// # Errors
    /// If a worker is gone or its values do not match.
    fn wait_all_reduce(&self, bucket: usize, values: &mut [&mut [u8]]) -> Result<(), String>;

    /// Sends values to worker `to`. They are copied and sent in the background.
    ///
    /// # Errors
    /// If an earlier exchange failed.
    fn send(&self, to: usize, message: usize, values: &[&mut [u8]]) -> Result<(), String>;

    /// Waits for a message from worker `from` and writes it to `values`, whose size it must have. With
    /// `more`, the next such message is received in the background.
    ///
    /// # Errors
    /// If a worker is gone or sends a different number of bytes.
    fn receive(
        &self,
        from: usize,
        message: usize,
        more: bool,
        values: &mut [&mut [u8]],
    ) -> Result<(), String>;
}

/// The error of a communication step before a session is connected; all backends prepare such steps in the
/// same way.
pub const NOT_CONNECTED_ERROR: &str = "this worker is not connected to the others";

/// Replaces the kernel of a communication step with one that uses `to`; leaves other steps alone.
pub(crate) fn connect(
    program: &Program,
    position: usize,
    prepared: &mut PreparedStep,
    to: &Arc<dyn Communicator>,
) {
    let step = &program.steps[position];
    let Some(first) = step.operands().next() else { return };
    let (exchange, count) = (Arc::clone(to), step.operands().count());
    match step.kernel {
        Kernel::AllReduceBucket(kernel) => {
            let dtype = program.value(first).dtype;
            prepared.kernel = Box::new(AllReduceKernel { exchange, kernel, dtype, count });
        }
        Kernel::StageTransfer(kernel) => {
            let per_part = program.section_of(position).is_some();
            prepared.kernel = Box::new(StageTransferKernel { exchange, kernel, count, per_part });
        }
        _ => {}
    }
}

/// The operands of a communication step.
fn values<'a>(operands: &mut Operands<'a>, count: usize) -> [&'a mut [u8]; MAX_BUCKET_VALUES] {
    std::array::from_fn(|position| match position < count {
        true => operands.take(position),
        false => Default::default(),
    })
}

struct StageTransferKernel {
    exchange: Arc<dyn Communicator>,
    kernel: StageTransfer,
    count: usize,
    /// True if each batch part has its own message.
    per_part: bool,
}

impl StepKernel for StageTransferKernel {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        let tile = operands.tile();
        let mut values = values(operands, self.count);
        let StageTransfer { stage, message, sends, .. } = self.kernel;
        match sends {
            true => self.exchange.send(stage, message, &values[..self.count]),
            false => {
                let more = self.per_part && tile.micro_batch + 1 < tile.micro_batches;
                self.exchange.receive(stage, message, more, &mut values[..self.count])
            }
        }
    }
}

struct AllReduceKernel {
    exchange: Arc<dyn Communicator>,
    kernel: AllReduceBucket,
    dtype: DType,
    count: usize,
}

impl StepKernel for AllReduceKernel {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        let mut values = values(operands, self.count);
        let AllReduceBucket { bucket, waits } = self.kernel;
        match waits {
            false => self.exchange.start_all_reduce(bucket, self.dtype, &values[..self.count]),
            true => self.exchange.wait_all_reduce(bucket, &mut values[..self.count]),
        }
    }
}
