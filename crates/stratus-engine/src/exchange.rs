//! What workers exchange while they train together: sums over all of them, bucket by bucket, beside the steps
//! that compute.

use crate::backend::{Operands, StepKernel};
use crate::ops::{BUCKET_VALUES, ExchangeSums, Kernel, Transfer};
use crate::{DType, PreparedStep, Program};
use std::sync::Arc;

/// The other workers of a training.
pub trait Exchange: Send + Sync {
    /// Begins to add up a bucket's values over all workers. Values of a bucket are of one type, and every
    /// worker starts the same buckets in the same order.
    ///
    /// # Errors
    /// Where an earlier exchange has failed.
    fn start(&self, bucket: usize, dtype: DType, values: &[&mut [u8]]) -> Result<(), String>;

    /// Waits for a bucket, and writes the sums over the values.
    ///
    /// # Errors
    /// Where a worker is gone, or gave other values.
    fn wait(&self, bucket: usize, values: &mut [&mut [u8]]) -> Result<(), String>;

    /// Sends values to the worker `to`; they are copied, and go on their way beside what follows.
    ///
    /// # Errors
    /// Where an earlier exchange has failed.
    fn send(&self, to: usize, message: usize, values: &[&mut [u8]]) -> Result<(), String>;

    /// Waits for a message of the worker `from`, of as many bytes as `values` hold, and writes it there. With
    /// `more` another one of its kind will follow: it may arrive beside what follows.
    ///
    /// # Errors
    /// Where a worker is gone, or sends another number of bytes.
    fn receive(
        &self,
        from: usize,
        message: usize,
        more: bool,
        values: &mut [&mut [u8]],
    ) -> Result<(), String>;
}

/// What a step that exchanges answers, as every backend prepares it, until a session has connected it.
pub const UNCONNECTED: &str = "this worker is not connected with the others";

/// Puts a kernel that exchanges in the place of a step's own, where it is such a step.
pub(crate) fn connect(
    program: &Program,
    position: usize,
    prepared: &mut PreparedStep,
    to: &Arc<dyn Exchange>,
) {
    let step = &program.steps[position];
    let Some(first) = step.operands().next() else { return };
    let (exchange, count) = (Arc::clone(to), step.operands().count());
    match step.kernel {
        Kernel::ExchangeSums(kernel) => {
            let dtype = program.value(first).dtype;
            prepared.kernel = Box::new(Connected { exchange, kernel, dtype, count });
        }
        Kernel::Transfer(kernel) => {
            let of_parts = program.section_of(position).is_some();
            prepared.kernel = Box::new(ConnectedStage { exchange, kernel, count, of_parts });
        }
        _ => {}
    }
}

/// The operands of a step that exchanges.
fn values<'a>(operands: &mut Operands<'a>, count: usize) -> [&'a mut [u8]; BUCKET_VALUES] {
    std::array::from_fn(|position| match position < count {
        true => operands.take(position),
        false => Default::default(),
    })
}

struct ConnectedStage {
    exchange: Arc<dyn Exchange>,
    kernel: Transfer,
    count: usize,
    /// Whether there is a message for each part of a batch.
    of_parts: bool,
}

impl StepKernel for ConnectedStage {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        let tile = operands.tile();
        let mut values = values(operands, self.count);
        let Transfer { stage, message, sends, .. } = self.kernel;
        match sends {
            true => self.exchange.send(stage, message, &values[..self.count]),
            false => {
                let more = self.of_parts && tile.micro_batch + 1 < tile.micro_batches;
                self.exchange.receive(stage, message, more, &mut values[..self.count])
            }
        }
    }
}

struct Connected {
    exchange: Arc<dyn Exchange>,
    kernel: ExchangeSums,
    dtype: DType,
    count: usize,
}

impl StepKernel for Connected {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        let mut values = values(operands, self.count);
        let ExchangeSums { bucket, waits } = self.kernel;
        match waits {
            false => self.exchange.start(bucket, self.dtype, &values[..self.count]),
            true => self.exchange.wait(bucket, &mut values[..self.count]),
        }
    }
}
