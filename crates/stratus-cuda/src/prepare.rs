//! Prepares a program for a GPU: a layout for every value, and for every step the calls that it enqueues.
//!
//! Steps are built twice. The first time only notes which sources they need, so that these are compiled side
//! by side.

use crate::backend::Cuda;
use crate::gpu_libraries::{Asked, GpuLibraries};
use crate::layouts::lay_out;
use crate::ops::{KernelBuilder, Operand, PRECISIONS, on_gpu};
use crate::processor::{CudaStep, Implementation, Processor};
use crate::sources::SourceCollector;
use std::cell::RefCell;
use std::sync::Arc;
use stratus_engine::backend::step_key;
use stratus_engine::ops::KernelSpec;
use stratus_engine::{
    Choices, EngineError, Kernel, Layout, Precision, PrepareRequest, Prepared, PreparedStep, Program, Step,
};

/// Prepares a program. Implementations that `request` names are taken; others are measured where it allows
/// that.
///
/// # Errors
/// Where a step cannot be run on a GPU, with its layer and the reason.
pub(crate) fn prepare(
    backend: &Cuda,
    program: &Program,
    request: &PrepareRequest,
) -> Result<Prepared, EngineError> {
    let layouts = lay_out(program, request)?;
    let preparation = Preparation { backend, program, request, layouts: &layouts };
    preparation.compile_ahead();
    let libraries = backend.libraries.as_ref();
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
            return Err(unsupported(PRECISIONS.to_owned()));
        }
        let implementation =
            preparation.build(step, &operands, &backend.processor, libraries, None).map_err(unsupported)?;
        let Implementation { name, calls, scratch_bytes } = backend.adapted(implementation);
        if libraries.is_some() && has_choice(&step.kernel) {
            choices.implementations.insert(step_key(program, step), name.clone());
        }
        // A step without scratch has no operand at this position: its address reads as 0.
        let kernel = Box::new(CudaStep { calls, scratch: operands.len(), clock: Arc::clone(&backend.clock) });
        steps.push(PreparedStep { implementation: name, scratch_bytes, kernel });
    }
    if let Some(libraries) = libraries {
        libraries.end_measuring();
    }
    Ok(Prepared { program: program.clone(), layouts, steps, choices })
}

/// A program that is prepared, with the layouts of its values.
struct Preparation<'a> {
    backend: &'a Cuda,
    program: &'a Program,
    request: &'a PrepareRequest,
    layouts: &'a [Layout],
}

impl Preparation<'_> {
    /// The operands of a step: the samples of one tile, where it runs in tiles.
    fn operands(&self, position: usize, step: &Step) -> Vec<Operand> {
        let tiles = self.program.tiles(position);
        let operand = |id| {
            let value = self.program.seen(id, tiles);
            let mut layout = self.layouts[id.0].clone();
            if self.program.is_cut(id, tiles) {
                layout.shape[0] /= tiles;
                layout.padded[0] /= tiles;
            }
            Operand { value, layout }
        };
        step.operands().map(operand).collect()
    }

    /// What a step enqueues, with its kernels from `processor`.
    fn build(
        &self,
        step: &Step,
        operands: &[Operand],
        processor: &Arc<dyn Processor>,
        libraries: Option<&GpuLibraries>,
        convolutions: Option<&RefCell<Vec<Asked>>>,
    ) -> Result<Implementation, String> {
        let requested = self.request.choices.implementations.get(&step_key(self.program, step));
        let builder = KernelBuilder {
            processor,
            libraries,
            requested: requested.map(String::as_str),
            measure: self.request.measure,
            convolutions,
            tf32: self.backend.libraries.as_ref().is_some_and(|libraries| libraries.tf32),
        };
        let counts = [step.inputs.len(), step.updates.len(), step.outputs.len()];
        on_gpu(&step.kernel).build(operands, counts, &builder)
    }

    /// Compiles what the steps need, candidates included, and asks cuDNN for plans. What fails here fails
    /// again when it is needed.
    fn compile_ahead(&self) {
        let convolutions = RefCell::default();
        let processor = &self.backend.processor;
        let collector = Arc::new(SourceCollector::of(processor.as_ref(), self.backend.libraries.is_some()));
        let collecting: Arc<dyn Processor> = Arc::clone(&collector) as Arc<dyn Processor>;
        for (position, step) in self.program.steps.iter().enumerate() {
            let operands = self.operands(position, step);
            let _ = self.build(step, &operands, &collecting, None, Some(&convolutions));
        }
        let (sources, convolutions) = (collector.take(), convolutions.into_inner());
        std::thread::scope(|scope| {
            if let Some(libraries) = &self.backend.libraries {
                // Where no thread can be had, cuDNN is asked step by step.
                let ask = || libraries.plan_ahead(convolutions);
                let _ = std::thread::Builder::new().spawn_scoped(scope, ask);
            }
            self.backend.phases.during("compiling kernels", || processor.compile_ahead(sources));
        });
    }
}

/// Whether a kernel has several implementations to choose from.
fn has_choice(kernel: &Kernel) -> bool {
    matches!(
        kernel,
        Kernel::Conv2dForward(_) | Kernel::Conv2dBackwardData(_) | Kernel::Conv2dBackwardWeights(_)
    )
}
