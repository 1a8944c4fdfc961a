//! The queues of the emulation beside its kernels. Their work runs at once, or as late as its events allow:
//! on a GPU it may run at any time between.

use super::group::EmulatedGroup;
use super::memory;
use crate::exchange::{DeviceRange, HostFunction, Queue, Queues, Staging};
use crate::processor::{Function, Processor, Shape};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use stratus_engine::DType;

/// The queues of an emulated GPU.
pub(crate) struct EmulatedQueues {
    late: bool,
    /// Runs the kernels of queues.
    processor: Arc<dyn Processor>,
    state: Mutex<[PendingWork; 3]>,
}

/// The work that a queue has not run yet.
#[derive(Default)]
struct PendingWork {
    in_use: bool,
    work: VecDeque<Work>,
    /// The number of points recorded in this queue, and of those that it has reached.
    recorded: u64,
    reached: u64,
}

enum Work {
    /// Reaches a recorded point.
    Reach,
    /// Waits for a point of another queue.
    Wait(Queue, u64),
    CopyOut(u64, Arc<HostMemory>, Range<usize>),
    CopyIn(Arc<HostMemory>, Range<usize>, u64),
    Call(Arc<HostFunction>),
    CopyWithin {
        from: u64,
        to: u64,
        bytes: usize,
    },
    Launch(Function, Shape, Vec<u64>),
    SendReceive {
        group: Arc<EmulatedGroup>,
        peer: usize,
        send: DeviceRange,
        receive: DeviceRange,
    },
    AllReduce(Arc<EmulatedGroup>, DeviceRange, DType),
}

/// A point in a queue other than that of the kernels, and the number of its points up to it.
#[derive(Default)]
pub(crate) struct EmulatedEvent(Mutex<Option<(Queue, u64)>>);

/// Memory of the process.
pub(crate) struct HostMemory(Mutex<Vec<u8>>);

impl Staging for HostMemory {
    fn with_bytes(&self, function: &mut dyn FnMut(&mut [u8])) {
        function(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// The index of a queue; `None` for that of the kernels, whose work runs at once.
fn index(queue: Queue) -> Option<usize> {
    match queue {
        Queue::Kernels => None,
        Queue::Outgoing => Some(0),
        Queue::Incoming => Some(1),
        Queue::Sums => Some(2),
    }
}

impl EmulatedQueues {
    /// Creates queues whose work runs at once, or as late as possible.
    pub fn new(late: bool, processor: &Arc<dyn Processor>) -> Self {
        Self { late, processor: Arc::clone(processor), state: Mutex::default() }
    }

    /// Adds work to a queue, or runs it at once.
    fn add(&self, queue: Queue, work: Work) -> Result<(), String> {
        let Some(index) = index(queue) else { return self.perform(None, work) };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = &mut state[index];
        pending.recorded += u64::from(matches!(work, Work::Reach));
        pending.work.push_back(work);
        let end = pending.recorded;
        drop(state);
        if self.late { Ok(()) } else { self.run_until(index, end, true) }
    }

    /// Runs the work of a queue until it has reached a point; with `all`, also what follows.
    fn run_until(&self, index: usize, point: u64, all: bool) -> Result<(), String> {
        loop {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let pending = &mut state[index];
            if pending.reached >= point && !all {
                return Ok(());
            }
            let Some(work) = pending.work.pop_front() else { return Ok(()) };
            drop(state);
            self.perform(Some(index), work)?;
        }
    }

    fn perform(&self, index: Option<usize>, work: Work) -> Result<(), String> {
        match work {
            Work::Reach => {
                if let Some(index) = index {
                    self.state.lock().unwrap_or_else(PoisonError::into_inner)[index].reached += 1;
                }
                Ok(())
            }
            Work::Wait(other, point) => match self::index(other) {
                Some(other) => self.run_until(other, point, false),
                None => Ok(()),
            },
            Work::CopyOut(address, to, range) => {
                to.with_bytes(&mut |bytes| memory::copy_from(address, &mut bytes[range.clone()]));
                Ok(())
            }
            Work::CopyIn(from, range, address) => {
                from.with_bytes(&mut |bytes| memory::copy_to(&bytes[range.clone()], address));
                Ok(())
            }
            Work::Call(call) => {
                call.run();
                Ok(())
            }
            Work::CopyWithin { from, to, bytes } => {
                let mut copy = vec![0; bytes];
                memory::copy_from(from, &mut copy);
                memory::copy_to(&copy, to);
                Ok(())
            }
            Work::Launch(function, shape, mut arguments) => {
                self.processor.launch(function, shape, &mut arguments)
            }
            Work::SendReceive { group, peer, send, receive } => {
                group.send_receive(peer, send, receive);
                Ok(())
            }
            Work::AllReduce(group, values, dtype) => {
                group.all_reduce(values, dtype);
                Ok(())
            }
        }
    }
}

impl Queues for EmulatedQueues {
    type Event = EmulatedEvent;
    type Staging = HostMemory;
    type Group = EmulatedGroup;

    fn event(&self) -> Result<EmulatedEvent, String> {
        Ok(EmulatedEvent::default())
    }

    fn staging(&self, bytes: usize) -> Result<HostMemory, String> {
        Ok(HostMemory(Mutex::new(vec![0; bytes])))
    }

    fn record(&self, event: &EmulatedEvent, queue: Queue) -> Result<(), String> {
        let mut recorded = event.0.lock().unwrap_or_else(PoisonError::into_inner);
        let point = match index(queue) {
            // Kernels have run when the call that enqueues them returns.
            None => 0,
            Some(index) => self.state.lock().unwrap_or_else(PoisonError::into_inner)[index].recorded + 1,
        };
        *recorded = Some((queue, point));
        drop(recorded);
        if queue == Queue::Kernels { Ok(()) } else { self.add(queue, Work::Reach) }
    }

    fn wait(&self, queue: Queue, event: &EmulatedEvent) -> Result<(), String> {
        if let Some(index) = index(queue) {
            self.state.lock().unwrap_or_else(PoisonError::into_inner)[index].in_use = true;
        }
        let recorded = *event.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (other, point) = recorded.ok_or("a queue waits for an event that no queue has")?;
        self.add(queue, Work::Wait(other, point))
    }

    fn copy_out(
        &self,
        queue: Queue,
        address: u64,
        to: &Arc<HostMemory>,
        range: Range<usize>,
    ) -> Result<(), String> {
        self.add(queue, Work::CopyOut(address, Arc::clone(to), range))
    }

    fn copy_in(
        &self,
        queue: Queue,
        from: &Arc<HostMemory>,
        range: Range<usize>,
        address: u64,
    ) -> Result<(), String> {
        self.add(queue, Work::CopyIn(Arc::clone(from), range, address))
    }

    fn copy_within(&self, queue: Queue, from: u64, to: u64, bytes: usize) -> Result<(), String> {
        self.add(queue, Work::CopyWithin { from, to, bytes })
    }

    fn launch(
        &self,
        queue: Queue,
        function: Function,
        shape: Shape,
        arguments: Vec<u64>,
    ) -> Result<(), String> {
        self.add(queue, Work::Launch(function, shape, arguments))
    }

    fn send_receive(
        &self,
        queue: Queue,
        group: &Arc<EmulatedGroup>,
        peer: usize,
        send: DeviceRange,
        receive: DeviceRange,
    ) -> Result<(), String> {
        self.add(queue, Work::SendReceive { group: Arc::clone(group), peer, send, receive })
    }

    fn all_reduce(
        &self,
        queue: Queue,
        group: &Arc<EmulatedGroup>,
        values: DeviceRange,
        dtype: DType,
    ) -> Result<(), String> {
        self.add(queue, Work::AllReduce(Arc::clone(group), values, dtype))
    }

    fn call(&self, queue: Queue, call: &Arc<HostFunction>) -> Result<(), String> {
        self.add(queue, Work::Call(Arc::clone(call)))
    }

    fn is_in_use(&self, queue: Queue) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        index(queue).is_none_or(|index| state[index].in_use)
    }

    fn synchronise(&self) -> Result<(), String> {
        // Work that no kernel waits for has nothing to write to.
        Ok(())
    }

    fn begin(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.iter_mut().for_each(|pending| pending.in_use = false);
    }
}
