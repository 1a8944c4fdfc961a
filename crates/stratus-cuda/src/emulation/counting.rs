//! A processor that runs and compiles nothing, to count the entries that a GPU's queue would have.

use crate::Cuda;
use crate::processor::{Call, Function, HOPPER, Implementation, Processor, Shape, Source};
use crate::step_clock::{StepClock, TimestampSlots};
use stratus_engine::backend::Operands;
use stratus_engine::{PreparedProgram, Tile};

/// Accepts every kernel and every launch.
#[derive(Default)]
pub(crate) struct Counting(TimestampSlots);

impl Processor for Counting {
    fn function(&self, _source: &Source, _name: &str) -> Result<Function, String> {
        Ok(Function(0))
    }

    fn launch(&self, _function: Function, _shape: Shape, _arguments: &mut [u64]) -> Result<(), String> {
        Ok(())
    }

    fn timestamps(&self) -> &TimestampSlots {
        &self.0
    }

    fn capability(&self) -> u32 {
        HOPPER
    }

    /// As on an H100.
    fn multiprocessors(&self) -> u32 {
        132
    }
}

/// A stand-in for a library call.
struct AssumedLibraryCall;

impl Call for AssumedLibraryCall {
    fn enqueue(&mut self, _operands: &Operands<'_>, _scratch: usize) -> Result<(), String> {
        Ok(())
    }
}

/// Adapts an implementation as on a GPU: plain kernels, which stand in for the libraries, become library
/// calls.
pub(crate) fn by_libraries(mut implementation: Implementation) -> Implementation {
    if implementation.name == "stratus:plain"
        && let Some(plain) = implementation.calls.first_mut()
    {
        *plain = Box::new(AssumedLibraryCall);
    }
    implementation
}

impl Cuda {
    /// The numbers of step ends and of marker kernels for timing the steps of a recording, if this is the
    /// backend of [`Cuda::counting`].
    ///
    /// # Errors
    /// If a step cannot be enqueued.
    pub fn count_markers(&self, prepared: &mut PreparedProgram) -> Result<[usize; 2], String> {
        let steps = prepared.steps.len();
        let mut ends = Vec::new();
        let mut count = [0; 2];
        // As on a GPU, the second run is recorded.
        for _ in 0..2 {
            self.clock.begin(StepClock::words(steps) as u64, steps, ends);
            for (slot, step) in prepared.steps.iter_mut().enumerate() {
                step.kernel.run(&mut Operands::new(Tile::WHOLE))?;
                self.clock.end_step(slot);
            }
            let enqueued = self.clock.end()?;
            count = [enqueued.steps(), enqueued.markers];
            ends = enqueued.ends;
        }
        Ok(count)
    }
}
