//! What workers exchange while they train together: sums over all of them, bucket by bucket, beside the steps
//! that compute.

use crate::backend::{Operands, StepKernel};
use crate::ops::{BUCKET_VALUES, Kernel};
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

/// A step that exchanges, as every backend prepares it: it does nothing until a session has connected it.
pub fn unconnected() -> impl FnMut(&mut Operands<'_>) -> Result<(), String> + Send + 'static {
    |_| Err("this worker is not connected with the others".to_owned())
}

/// The kernel of a step that exchanges, where it is one.
pub(crate) fn connected(
    program: &Program,
    step: &Step,
    exchange: &Arc<dyn Exchange>,
) -> Option<Box<dyn StepKernel>> {
    let first = step.operands().next()?;
    let (count, dtype) = (step.operands().count(), program.value(first).dtype);
    let exchange = Arc::clone(exchange);
    match step.kernel {
        Kernel::ExchangeStart(kernel) => {
            Some(Box::new(Start { exchange, bucket: kernel.bucket, dtype, count }))
        }
        Kernel::ExchangeWait(kernel) => Some(Box::new(Wait { exchange, bucket: kernel.bucket, count })),
        _ => None,
    }
}

/// Takes the operands of a step.
fn values<'a>(operands: &mut Operands<'a>, count: usize) -> [&'a mut [u8]; BUCKET_VALUES] {
    std::array::from_fn(|position| match position < count {
        true => operands.take(position),
        false => Default::default(),
    })
}

struct Start {
    exchange: Arc<dyn Exchange>,
    bucket: usize,
    dtype: DType,
    count: usize,
}

impl StepKernel for Start {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        let values = values(operands, self.count);
        self.exchange.start(self.bucket, self.dtype, &values[..self.count])
    }
}

struct Wait {
    exchange: Arc<dyn Exchange>,
    bucket: usize,
    count: usize,
}

impl StepKernel for Wait {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        let mut values = values(operands, self.count);
        self.exchange.wait(self.bucket, &mut values[..self.count])
    }
}

/// Puts the connected kernel in the place of a step's own, where it exchanges.
pub(crate) fn connect(program: &Program, step: &Step, kernel: &mut PreparedStep, to: &Arc<dyn Exchange>) {
    if let Some(connected) = connected(program, step, to) {
        kernel.kernel = connected;
    }
}
