//! From steps to calls.

use crate::backend::Cuda;
use crate::layouts::lay_out;
use crate::ops::{Maker, Operand, PRECISIONS, on_gpu};
use crate::processor::{CudaStep, Made};
use stratus_engine::backend::step_key;
use stratus_engine::ops::KernelSpec;
use stratus_engine::{
    Choices, EngineError, Kernel, Precision, PrepareRequest, Prepared, PreparedStep, Program,
};

/// Prepares a program: a layout for each value, and for each step what it enqueues.
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
        let maker = Maker {
            processor: &backend.processor,
            library: backend.library.as_ref(),
            wanted: request.choices.implementations.get(&key).map(String::as_str),
            measure: request.measure,
        };
        let counts = [step.inputs.len(), step.updates.len(), step.outputs.len()];
        let made = on_gpu(&step.kernel).make(&operands, counts, &maker).map_err(unsupported)?;
        let Made { implementation, calls, scratch_bytes } = made;
        if maker.library.is_some() && is_chosen(&step.kernel) {
            choices.implementations.insert(key, implementation.clone());
        }
        // A step without scratch has no operand for it: what would ask for its address gets 0.
        let kernel = Box::new(CudaStep { calls, scratch: operands.len() });
        steps.push(PreparedStep { implementation, scratch_bytes, kernel });
    }
    if let Some(library) = &backend.library {
        library.clear_room();
    }
    Ok(Prepared { program: program.clone(), layouts, steps, choices })
}

/// Whether a kernel has several implementations to choose from.
fn is_chosen(kernel: &Kernel) -> bool {
    matches!(
        kernel,
        Kernel::Conv2dForward(_) | Kernel::Conv2dBackwardData(_) | Kernel::Conv2dBackwardWeights(_)
    )
}
