//! What workers exchange while they train together: sums over all of them, bucket by bucket, beside the steps
//! that compute.

use crate::backend::{Operands, StepKernel};
use crate::ops::{BUCKET_VALUES, ExchangeSums, Kernel};
use crate::{DType, PreparedStep, Program, Step};
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
}

/// What a step that exchanges answers, as every backend prepares it, until a session has connected it.
pub const UNCONNECTED: &str = "this worker is not connected with the others";

/// Puts a kernel that exchanges in the place of a step's own, where it is such a step.
pub(crate) fn connect(program: &Program, step: &Step, prepared: &mut PreparedStep, to: &Arc<dyn Exchange>) {
    if let Kernel::ExchangeSums(kernel) = step.kernel
        && let Some(first) = step.operands().next()
    {
        let (exchange, count) = (Arc::clone(to), step.operands().count());
        prepared.kernel = Box::new(Connected { exchange, kernel, dtype: program.value(first).dtype, count });
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
        let mut values: [&mut [u8]; BUCKET_VALUES] =
            std::array::from_fn(|position| match position < self.count {
                true => operands.take(position),
                false => Default::default(),
            });
        let ExchangeSums { bucket, waits } = self.kernel;
        match waits {
            false => self.exchange.start(bucket, self.dtype, &values[..self.count]),
            true => self.exchange.wait(bucket, &mut values[..self.count]),
        }
    }
}
