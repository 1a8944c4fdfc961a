//! Communication between the workers of a training: all-reduced buckets of sums and pipeline messages, in the
//! background of the computing steps.

mod halving;

pub use halving::{ALIGNED_UNIT, Halving, Round};

use crate::backend::{Operands, StepKernel, Tile};
use crate::ops::{AllReduceBucket, Kernel, MAX_BUCKET_VALUES, StageTransfer, SumMethod};
use crate::{DType, Program};
use std::sync::Arc;

/// Communication with the other workers of a training.
pub trait Communicator: Send + Sync {
    /// Starts an all-reduce (sum) of a bucket over the workers that compute the same stage. All values of a
    /// bucket have one type, and every worker starts the same buckets in the same order.
    ///
    /// # Errors
    /// If an earlier exchange failed.
    fn start_all_reduce(
        &self,
        bucket: usize,
        dtype: DType,
        method: SumMethod,
        values: &[&mut [u8]],
    ) -> Result<(), String>;

    /// Waits for a bucket and replaces the values with their sums.
    ///
    /// # Errors
    /// If a worker is gone or its values do not match.
    fn wait_all_reduce(&self, bucket: usize, values: &mut [&mut [u8]]) -> Result<(), String>;

    /// Sends values to stage `to` of the same pipeline. They are copied and sent in the background.
    ///
    /// # Errors
    /// If an earlier exchange failed.
    fn send(&self, to: usize, message: usize, values: &[&mut [u8]]) -> Result<(), String>;

    /// Waits for a message from stage `from` of the same pipeline and writes it to `values`, whose size it
    /// must have. With `more`, the next such message is received in the background.
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

/// A group of devices of several workers that sum values directly, without the memory of their processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceGroup {
    /// The identity of the group, of [`GROUP_ID_BYTES`] bytes, from one member's
    /// [`Backend::new_group_id`](crate::Backend::new_group_id).
    pub id: Vec<u8>,
    /// The rank of this worker's device in the group.
    pub rank: usize,
    /// The number of devices, a power of two.
    pub size: usize,
}

/// The bytes of the identity of a [`DeviceGroup`].
pub const GROUP_ID_BYTES: usize = 128;

/// The error of a communication step before a session is connected; all backends prepare such steps in the
/// same way.
pub const NOT_CONNECTED_ERROR: &str = "this worker is not connected to the others";

/// A communication step, bound to the memory of its operands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeStep {
    /// The action.
    pub action: ExchangeAction,
    /// The type of its values.
    pub dtype: DType,
    /// The bytes of each value, in the order of the operands.
    pub value_bytes: Vec<usize>,
    /// The number of times that the step runs in an iteration: once, or once for each batch part of this
    /// worker.
    pub runs: usize,
}

/// The action of a communication step on its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeAction {
    /// Starts the all-reduce of a bucket.
    StartAllReduce {
        /// The index of the bucket.
        bucket: usize,
        /// How its values are summed.
        method: SumMethod,
    },
    /// Waits for the all-reduce of a bucket.
    WaitAllReduce {
        /// The index of the bucket.
        bucket: usize,
    },
    /// Sends a message to another stage.
    Send {
        /// The index of the receiver.
        to: usize,
        /// The index of the message.
        message: usize,
    },
    /// Receives a message from another stage.
    Receive {
        /// The index of the sender.
        from: usize,
        /// The index of the message.
        message: usize,
    },
}

impl ExchangeStep {
    /// The communication step at `position`, whose operands have `value_bytes`; `None` for other steps.
    pub(crate) fn of(program: &Program, position: usize, value_bytes: Vec<usize>) -> Option<Self> {
        let step = &program.steps[position];
        let dtype = program.value(step.operands().next()?).dtype;
        let action = match step.kernel {
            Kernel::AllReduceBucket(AllReduceBucket { bucket, waits: false, method }) => {
                ExchangeAction::StartAllReduce { bucket, method }
            }
            Kernel::AllReduceBucket(AllReduceBucket { bucket, waits: true, .. }) => {
                ExchangeAction::WaitAllReduce { bucket }
            }
            Kernel::StageTransfer(StageTransfer { stage: to, message, sends: true, .. }) => {
                ExchangeAction::Send { to, message }
            }
            Kernel::StageTransfer(StageTransfer { stage: from, message, .. }) => {
                ExchangeAction::Receive { from, message }
            }
            _ => return None,
        };
        Some(Self { action, dtype, value_bytes, runs: program.tiles(position) })
    }

    /// The kernel of the step for values in the process's memory.
    pub(crate) fn on_host(self, exchange: &Arc<dyn Communicator>) -> Box<dyn StepKernel> {
        Box::new(HostExchange { exchange: Arc::clone(exchange), step: self })
    }

    /// Performs the step on its values. With `more`, another such message follows in the same iteration.
    ///
    /// # Errors
    /// Those of [`Communicator`].
    pub fn perform(
        &self,
        exchange: &dyn Communicator,
        values: &mut [&mut [u8]],
        more: bool,
    ) -> Result<(), String> {
        match self.action {
            ExchangeAction::StartAllReduce { bucket, method } => {
                exchange.start_all_reduce(bucket, self.dtype, method, values)
            }
            ExchangeAction::WaitAllReduce { bucket } => exchange.wait_all_reduce(bucket, values),
            ExchangeAction::Send { to, message } => exchange.send(to, message, values),
            ExchangeAction::Receive { from, message } => exchange.receive(from, message, more, values),
        }
    }

    /// Returns whether another message like that of `tile` follows in the same iteration.
    #[must_use]
    pub fn expects_more(&self, tile: Tile) -> bool {
        matches!(self.action, ExchangeAction::Receive { .. }) && !self.is_last_run(tile)
    }

    /// `kernel`, the kernel of the step, for those of its runs in which it has something to do: a sum over
    /// this worker's parts is complete only after the last part.
    pub(crate) fn when_complete(self, kernel: Box<dyn StepKernel>) -> Box<dyn StepKernel> {
        match self.action {
            ExchangeAction::StartAllReduce { .. } if self.runs > 1 => {
                Box::new(AfterLastPart { step: self, kernel })
            }
            _ => kernel,
        }
    }

    fn is_last_run(&self, tile: Tile) -> bool {
        // The parts of a worker are aligned to their number.
        tile.micro_batch % self.runs.max(1) + 1 >= self.runs
    }
}

/// The operands of a communication step.
fn values<'a>(operands: &mut Operands<'a>, count: usize) -> [&'a mut [u8]; MAX_BUCKET_VALUES] {
    std::array::from_fn(|position| match position < count {
        true => operands.take(position),
        false => Default::default(),
    })
}

/// A communication step that runs only for the last part of a worker.
struct AfterLastPart {
    step: ExchangeStep,
    kernel: Box<dyn StepKernel>,
}

impl StepKernel for AfterLastPart {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        if self.step.is_last_run(operands.tile()) { self.kernel.run(operands) } else { Ok(()) }
    }
}

/// A communication step on values in the process's memory.
struct HostExchange {
    exchange: Arc<dyn Communicator>,
    step: ExchangeStep,
}

impl StepKernel for HostExchange {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        let more = self.step.expects_more(operands.tile());
        let count = self.step.value_bytes.len();
        let mut values = values(operands, count);
        self.step.perform(self.exchange.as_ref(), &mut values[..count], more)
    }
}
