//! A processor that runs and compiles nothing: to count what would be put into a GPU's queue.

use crate::Cuda;
use crate::processor::{Call, Function, HOPPER, Implementation, Processor, Shape, Source};
use crate::step_clock::{Stamps, StepClock};
use stratus_engine::backend::Operands;
use stratus_engine::{Prepared, Tile};

/// Accepts every kernel and every launch.
#[derive(Default)]
pub(crate) struct Counting(Stamps);

impl Processor for Counting {
    fn function(&self, _source: &Source, _name: &str) -> Result<Function, String> {
        Ok(Function(0))
    }

    fn launch(&self, _function: Function, _shape: Shape, _arguments: &mut [u64]) -> Result<(), String> {
        Ok(())
    }

    fn stamps(&self) -> &Stamps {
        &self.0
    }

    fn capability(&self) -> u32 {
        HOPPER
    }

    /// Those of an H100.
    fn multiprocessors(&self) -> u32 {
        132
    }
}

/// What a library would be called for.
struct AssumedLibraryCall;

impl Call for AssumedLibraryCall {
    fn enqueue(&mut self, _operands: &Operands<'_>, _scratch: usize) -> Result<(), String> {
        Ok(())
    }
}

/// An implementation as on a GPU: the plain kernels, which stand in for the libraries, are calls of these.
pub(crate) fn by_libraries(mut implementation: Implementation) -> Implementation {
    if implementation.name == "stratus:plain"
        && let Some(plain) = implementation.calls.first_mut()
    {
        *plain = Box::new(AssumedLibraryCall);
    }
    implementation
}

impl Cuda {
    /// The marks that taking the times of steps has in a recording, and how many of them are kernels that do
    /// nothing else, where this is the backend of [`Cuda::counting`].
    ///
    /// # Errors
    /// Where a step cannot be enqueued.
    pub fn count_marks(&self, prepared: &mut Prepared) -> Result<[usize; 2], String> {
        let steps = prepared.steps.len();
        let mut ends = Vec::new();
        let mut count = [0; 2];
        // As on a GPU, the second time is recorded.
        for _ in 0..2 {
            self.clock.begin(StepClock::words(steps) as u64, steps, ends);
            for (slot, step) in prepared.steps.iter_mut().enumerate() {
                step.kernel.run(&mut Operands::new(Tile::WHOLE))?;
                self.clock.mark(slot);
            }
            let enqueued = self.clock.end()?;
            count = [enqueued.steps(), enqueued.marks];
            ends = enqueued.ends;
        }
        Ok(count)
    }
}
