//! Prepares a program for a GPU: a layout for every value, and for every step the calls that it enqueues.

use crate::backend::Cuda;
use crate::layouts::lay_out;
use crate::ops::{KernelBuilder, Operand, PRECISIONS, on_gpu};
use crate::processor::{CudaStep, Implementation};
use std::sync::Arc;
use stratus_engine::backend::step_key;
use stratus_engine::ops::KernelSpec;
use stratus_engine::{
    Choices, EngineError, Kernel, Precision, PrepareRequest, Prepared, PreparedStep, Program,
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
    let mut choices = Choices::default();
    let mut steps = Vec::with_capacity(program.steps.len());
    for (position, step) in program.steps.iter().enumerate() {
        let tiles = program.tiles(position);
        let operands: Vec<Operand> = step
            .operands()
            .map(|id| {
                let value = program.seen(id, tiles);
                let mut layout = layouts[id.0].clone();
                if program.is_cut(id, tiles) {
                    layout.shape[0] /= tiles;
                    layout.padded[0] /= tiles;
                }
                Operand { value, layout }
            })
            .collect();
        let unsupported = |reason: String| EngineError::Unsupported {
            backend: "cuda".to_owned(),
            kernel: step.kernel.name().to_owned(),
            layer: program.layer_name(step),
            reason,
        };
        if program.precision == Precision::F64 {
            return Err(unsupported(PRECISIONS.to_owned()));
        }
        let key = step_key(program, step);
        let builder = KernelBuilder {
            processor: &backend.processor,
            libraries: backend.libraries.as_ref(),
            requested: request.choices.implementations.get(&key).map(String::as_str),
            measure: request.measure,
        };
        let counts = [step.inputs.len(), step.updates.len(), step.outputs.len()];
        let implementation = on_gpu(&step.kernel).build(&operands, counts, &builder).map_err(unsupported)?;
        let Implementation { name, calls, scratch_bytes } = backend.adapted(implementation);
        if builder.libraries.is_some() && has_choice(&step.kernel) {
            choices.implementations.insert(key, name.clone());
        }
        // A step without scratch has no operand at this position: its address reads as 0.
        let kernel = Box::new(CudaStep { calls, scratch: operands.len(), clock: Arc::clone(&backend.clock) });
        steps.push(PreparedStep { implementation: name, scratch_bytes, kernel });
    }
    if let Some(libraries) = &backend.libraries {
        libraries.release_measuring_memory();
    }
    Ok(Prepared { program: program.clone(), layouts, steps, choices })
}

/// Whether a kernel has several implementations to choose from.
fn has_choice(kernel: &Kernel) -> bool {
    matches!(
        kernel,
        Kernel::Conv2dForward(_) | Kernel::Conv2dBackwardData(_) | Kernel::Conv2dBackwardWeights(_)
    )
}
