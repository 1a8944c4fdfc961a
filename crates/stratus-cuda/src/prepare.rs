//! Prepares a program for a GPU: chooses a layout for every value, and builds the calls that every step
//! enqueues.
//!
//! Steps are built twice. The first time only collects the sources they need, so that these are compiled in
//! parallel.

use crate::gpu_libraries::{GpuLibraries, PlanRequest};
use crate::layouts::lay_out;
use crate::ops::{KernelBuilder, Operand, UNSUPPORTED_PRECISION, on_gpu};
use crate::processor::{Call, Implementation, Processor};
use crate::sources::SourceCollector;
use crate::step_clock::StepClock;
use std::cell::RefCell;
use std::sync::Arc;
use stratus_engine::backend::{Operands, StepKernel, step_key};
use stratus_engine::ops::KernelSpec;
use stratus_engine::{
    Choices, EngineError, Kernel, Layout, Precision, PrepareRequest, PreparedProgram, PreparedStep, Program,
    StartupTimes, Step,
};

/// The processor that kernels are built for, its libraries, and the clock of their steps.
#[derive(Clone, Copy)]
pub(crate) struct KernelTarget<'a> {
    pub processor: &'a Arc<dyn Processor>,
    pub libraries: Option<&'a GpuLibraries>,
    pub clock: &'a Arc<StepClock>,
    pub phases: &'a StartupTimes,
}

/// Prepares a program. Implementations requested by name are used; others are measured if `request` allows
/// it.
///
/// # Errors
/// If a step cannot run on a GPU, with its layer and the reason.
pub(crate) fn prepare(
    target: KernelTarget<'_>,
    program: &Program,
    request: &PrepareRequest,
) -> Result<PreparedProgram, EngineError> {
    let layouts = lay_out(program, request)?;
    let preparation = Preparation { target, program, request, layouts: &layouts };
    preparation.precompile();
    let libraries = target.libraries;
    let mut choices = Choices::default();
    let mut steps = Vec::with_capacity(program.steps.len());
    for (position, step) in program.steps.iter().enumerate() {
        let operands = preparation.operands(position, step);
        let unsupported = |reason: String| EngineError::Unsupported {
            backend: "cuda".to_owned(),
            kernel: step.kernel.name().to_owned(),
            layer: program.layer_name(step),
            reason,
        };
        if program.precision == Precision::F64 {
            return Err(unsupported(UNSUPPORTED_PRECISION.to_owned()));
        }
        let implementation =
            preparation.build(step, &operands, target.processor, libraries, None).map_err(unsupported)?;
        let Implementation { name, calls, scratch_bytes } = target.processor.adapt(implementation);
        if libraries.is_some() && has_choice(&step.kernel) {
            choices.implementations.insert(step_key(program, step), name.clone());
        }
        // A step without scratch has no operand at this position: its address reads as 0.
        let kernel = Box::new(CudaStep { calls, scratch: operands.len(), clock: Arc::clone(target.clock) });
        steps.push(PreparedStep { implementation: name, scratch_bytes, kernel });
    }
    if let Some(libraries) = libraries {
        libraries.finish_measuring();
    }
    Ok(PreparedProgram { program: program.clone(), layouts, steps, choices })
}

/// A program being prepared, with the layouts of its values.
struct Preparation<'a> {
    target: KernelTarget<'a>,
    program: &'a Program,
    request: &'a PrepareRequest,
    layouts: &'a [Layout],
}

impl Preparation<'_> {
    /// The operands of a step: the samples of one tile, if it is tiled.
    fn operands(&self, position: usize, step: &Step) -> Vec<Operand> {
        let tiles = self.program.tiles(position);
        let operand = |id| {
            let value = self.program.tile_view(id, tiles);
            let mut layout = self.layouts[id.0].clone();
            if self.program.is_tiled(id, tiles) {
                layout.shape[0] /= tiles;
                layout.padded[0] /= tiles;
            }
            Operand { value, layout }
        };
        step.operands().map(operand).collect()
    }

    /// The implementation of a step, with kernels of `processor`.
    fn build(
        &self,
        step: &Step,
        operands: &[Operand],
        processor: &Arc<dyn Processor>,
        libraries: Option<&GpuLibraries>,
        convolutions: Option<&RefCell<Vec<PlanRequest>>>,
    ) -> Result<Implementation, String> {
        let requested = self.request.choices.implementations.get(&step_key(self.program, step));
        let builder = KernelBuilder {
            processor,
            libraries,
            requested: requested.map(String::as_str),
            measure: self.request.measure,
            convolutions,
            tf32: self.target.libraries.is_some_and(|libraries| libraries.tf32),
        };
        let counts = [step.inputs.len(), step.updates.len(), step.outputs.len()];
        on_gpu(&step.kernel).build(operands, counts, &builder)
    }

    /// Compiles the kernels of the steps, including candidates, and queries cuDNN for plans. Errors are
    /// ignored here, because they recur when the kernel is needed.
    fn precompile(&self) {
        let convolutions = RefCell::default();
        let processor = self.target.processor;
        let collector =
            Arc::new(SourceCollector::for_processor(processor.as_ref(), self.target.libraries.is_some()));
        let collecting: Arc<dyn Processor> = Arc::clone(&collector) as Arc<dyn Processor>;
        for (position, step) in self.program.steps.iter().enumerate() {
            let operands = self.operands(position, step);
            let _ = self.build(step, &operands, &collecting, None, Some(&convolutions));
        }
        let (sources, convolutions) = (collector.take(), convolutions.into_inner());
        std::thread::scope(|scope| {
            if let Some(libraries) = self.target.libraries {
                // If no thread can be started, cuDNN is queried step by step.
                let query = || libraries.prefetch_plans(convolutions);
                let _ = std::thread::Builder::new().spawn_scoped(scope, query);
            }
            self.target.phases.time("compiling kernels", || processor.precompile(sources));
        });
    }
}

/// Returns whether a kernel has several implementations to choose from.
fn has_choice(kernel: &Kernel) -> bool {
    matches!(
        kernel,
        Kernel::Conv2dForward(_) | Kernel::Conv2dBackwardData(_) | Kernel::Conv2dBackwardWeights(_)
    )
}

/// A step as the session runs it.
struct CudaStep {
    calls: Vec<Box<dyn Call>>,
    /// The position of the scratch: after the operands.
    scratch: usize,
    clock: Arc<StepClock>,
}

impl StepKernel for CudaStep {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        self.calls.iter_mut().try_for_each(|call| {
            if !call.is_native() {
                self.clock.before_library()?;
            }
            call.enqueue(operands, self.scratch)
        })
    }
}
