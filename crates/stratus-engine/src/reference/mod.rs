//! The reference backend: plain loops over plain layouts, optimised for readability, in one file per
//! operation: here, or for a short operation in its file of [`ops`](crate::ops).
//!
//! It is the oracle of all other backends and runs if no kernel library is found. Elements of any type are
//! widened to double precision, all sums are accumulated in it, and each result is rounded once, when it is
//! stored.

mod activation;
mod adaptive;
mod add;
mod avg_pool2d;
mod batch_norm;
mod batch_norm_add;
mod batch_norm_sums;
mod bias;
mod channel_scale;
mod channels;
mod clip;
mod concat;
mod conv2d;
mod convert;
mod count_labels;
mod distillation;
mod dropout;
mod dropout2d;
mod ema;
mod fake_quantise;
mod joined;
mod layer_norm;
mod layer_scale;
mod linear;
mod linear_update;
mod loss;
mod loss_scale;
mod max_pool2d;
mod pixel_loss;
mod pixels;
mod prelu;
mod quantised;
mod relu;
mod resize;
mod scale;
mod sgd;
mod stage_transfer;
mod stem;
mod target_loss;
mod tensor;
mod tree_sum;

use crate::backend::{Operands, PrepareRequest, PreparedProgram, PreparedStep, StepKernel, Tile, step_key};
use crate::ops::KernelSpec;
use crate::program::MAX_OPERANDS;
use crate::{Backend, Choices, DType, EngineError, Kernel, Layout, Precision, Program, Value};
pub(crate) use tensor::Tensor;

/// The implementation name in plans and reports.
const IMPLEMENTATION: &str = "reference";

/// The naive backend: one thread, row-major layouts, double-precision sums.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReferenceBackend;

/// The implementation of a kernel. It is stateless: equal operands give bitwise equal results.
pub(crate) trait ReferenceKernel: Send {
    /// The number of double-precision scratch elements for these operands.
    fn scratch(&self, _operands: &[&Value]) -> usize {
        0
    }

    /// Runs the kernel. `operands` are inputs, updates and outputs in order, their shapes checked by
    /// [`KernelSpec::check`].
    fn run(&self, operands: &mut [Tensor<'_>], scratch: &mut [f64], tile: Tile) -> Result<(), String>;
}

macro_rules! dispatch {
    ($($(#[$serde:meta])* $name:ident),* $(,)?) => {
        /// The implementation of a kernel.
        fn reference(kernel: &Kernel) -> Box<dyn ReferenceKernel> {
            match kernel {
                $(Kernel::$name(kernel) => Box::new(*kernel),)*
            }
        }
    };
}

crate::with_kernels!(dispatch);

impl Backend for ReferenceBackend {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn describe(&self) -> String {
        "reference backend".to_owned()
    }

    fn revision(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    fn threads(&self) -> usize {
        1
    }

    fn max_int8_weight(&self) -> Option<i8> {
        Some(i8::MAX)
    }

    fn precisions(&self) -> Vec<Precision> {
        vec![Precision::F32, Precision::Bf16, Precision::F16, Precision::F64]
    }

    fn prepare(&self, program: &Program, request: &PrepareRequest) -> Result<PreparedProgram, EngineError> {
        let layouts: Vec<Layout> = program.values.iter().map(|value| Layout::plain(&value.shape)).collect();
        for (value, plain) in program.values.iter().zip(&layouts) {
            let fixed = request.fixed.get(&value.name).filter(|fixed| !fixed.same_bytes(plain));
            let chosen = request.choices.layouts.get(&value.name).filter(|tag| **tag != plain.tag);
            if let Some(tag) = fixed.map(|layout| &layout.tag).or(chosen) {
                return Err(EngineError::InvalidRequest(format!(
                    "the reference backend supports row-major layouts only; layout {tag} was requested for \
                     `{}`",
                    value.name
                )));
            }
        }
        let steps = (0..program.steps.len())
            .map(|position| prepare_step(program, position, &request.choices))
            .collect::<Result<_, _>>()?;
        Ok(PreparedProgram { program: program.clone(), layouts, steps, choices: Choices::default() })
    }
}

fn prepare_step(program: &Program, position: usize, choices: &Choices) -> Result<PreparedStep, EngineError> {
    let step = &program.steps[position];
    let unsupported = |reason: String| EngineError::Unsupported {
        backend: IMPLEMENTATION.to_owned(),
        kernel: step.kernel.name().to_owned(),
        layer: program.layer_name(step),
        reason,
    };
    let chosen = choices.implementations.get(&step_key(program, step));
    if let Some(chosen) = chosen.filter(|chosen| *chosen != IMPLEMENTATION) {
        return Err(unsupported(format!("no implementation `{chosen}`")));
    }
    let operands = program.operands(position);
    let operands: Vec<&Value> = operands.iter().collect();
    if operands.len() >= MAX_OPERANDS {
        return Err(unsupported(format!("unsupported number of operands: {}", operands.len())));
    }
    let kernel = reference(&step.kernel);
    let scratch_bytes = kernel.scratch(&operands) * DType::F64.bytes();
    let operands = operands.iter().map(|value| (value.dtype, value.shape.clone())).collect();
    Ok(PreparedStep {
        implementation: IMPLEMENTATION.to_owned(),
        scratch_bytes,
        kernel: Box::new(ReferenceStep { kernel, operands }),
    })
}

/// A kernel with the types and shapes of its operands.
struct ReferenceStep {
    kernel: Box<dyn ReferenceKernel>,
    operands: Vec<(DType, Vec<usize>)>,
}

impl StepKernel for ReferenceStep {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        let (count, tile) = (self.operands.len(), operands.tile());
        let mut tensors: [Tensor<'_>; MAX_OPERANDS] =
            std::array::from_fn(|position| match self.operands.get(position) {
                Some((dtype, shape)) => Tensor::new(*dtype, shape, operands.take(position)),
                None => Tensor::new(DType::U8, &[0], &mut []),
            });
        let scratch = operands.elements(count);
        self.kernel.run(&mut tensors[..count], scratch, tile)
    }
}

/// The error for operands that differ from the checked ones.
pub(crate) fn unexpected_operands() -> String {
    "unexpected operands".to_owned()
}

/// Runs a kernel on operands in `f64`, each with its shape; returns the last `results` of them.
#[cfg(test)]
pub(crate) fn run_in_f64(
    kernel: &dyn ReferenceKernel,
    operands: &[(&[usize], &[f64])],
    results: usize,
) -> Vec<Vec<f64>> {
    let mut bytes: Vec<Vec<u8>> = operands
        .iter()
        .map(|(_, values)| values.iter().flat_map(|value| value.to_ne_bytes()).collect())
        .collect();
    let mut tensors: Vec<Tensor<'_>> = operands
        .iter()
        .zip(&mut bytes)
        .map(|((shape, _), bytes)| Tensor::new(DType::F64, shape, bytes))
        .collect();
    let mut scratch = vec![f64::NAN; 64];
    kernel.run(&mut tensors, &mut scratch, Tile::WHOLE).unwrap();
    let read = |tensor: &Tensor<'_>| (0..tensor.len()).map(|at| tensor.get(at)).collect();
    tensors[operands.len() - results..].iter().map(read).collect()
}
