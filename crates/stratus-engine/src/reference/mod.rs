//! The reference backend: plain loops over plain layouts, one file per operation, optimised for readability.
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
mod bias;
mod channel_scale;
mod channels;
mod clip;
mod concat;
mod conv2d;
mod convert;
mod count_labels;
mod dropout;
mod dropout2d;
mod ema;
mod gelu;
mod hard_sigmoid;
mod joined;
mod layer_norm;
mod layer_scale;
mod linear;
mod linear_update;
mod local_response_norm;
mod loss;
mod loss_scale;
mod max_pool2d;
mod pixel_loss;
mod pixels;
mod relu;
mod resize;
mod scale;
mod sgd;
mod sigmoid;
mod stage_transfer;
mod stem;
mod tensor;
mod tree_sum;

use crate::backend::{
    MAX_OPERANDS, Operands, PrepareRequest, PreparedProgram, PreparedStep, StepKernel, Tile, step_key,
};
use crate::ops::KernelSpec;
use crate::{Backend, Choices, DType, EngineError, Kernel, Layout, Precision, Program, Value};
use tensor::Tensor;

/// The implementation name in plans and reports.
const IMPLEMENTATION: &str = "reference";

/// The naive backend: one thread, row-major layouts, double-precision sums.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReferenceBackend;

/// The implementation of a kernel. It is stateless: equal operands give bitwise equal results.
trait ReferenceKernel: Send {
    /// The number of double-precision scratch elements for these operands.
    fn scratch(&self, _operands: &[&Value]) -> usize {
        0
    }

    /// Runs the kernel. `operands` are inputs, updates and outputs in order, their shapes checked by
    /// [`KernelSpec::check`].
    fn run(&self, operands: &mut [Tensor<'_>], scratch: &mut [f64], tile: Tile) -> Result<(), String>;
}

/// The implementation of a kernel.
fn reference(kernel: &Kernel) -> Box<dyn ReferenceKernel> {
    match kernel {
        Kernel::Accumulate(kernel) => Box::new(*kernel),
        Kernel::AdaptiveUpdate(kernel) => Box::new(*kernel),
        Kernel::AddBias(kernel) => Box::new(*kernel),
        Kernel::AddForward(kernel) => Box::new(*kernel),
        Kernel::TreeSum(kernel) => Box::new(*kernel),
        Kernel::AddTiles(kernel) => Box::new(*kernel),
        Kernel::AdjustLossScale(kernel) => Box::new(*kernel),
        Kernel::AvgPoolBackward(kernel) => Box::new(*kernel),
        Kernel::AvgPoolForward(kernel) => Box::new(*kernel),
        Kernel::BatchNormAddApply(kernel) => Box::new(*kernel),
        Kernel::BatchNormAddReluGradients(kernel) => Box::new(*kernel),
        Kernel::BatchNormApply(kernel) => Box::new(*kernel),
        Kernel::BatchNormBackwardData(kernel) => Box::new(*kernel),
        Kernel::BatchNormGradients(kernel) => Box::new(*kernel),
        Kernel::BatchNormInference(kernel) => Box::new(*kernel),
        Kernel::BatchNormInferenceBackward(kernel) => Box::new(*kernel),
        Kernel::BatchNormStatistics(kernel) => Box::new(*kernel),
        Kernel::BiasGradient(kernel) => Box::new(*kernel),
        Kernel::ChannelScale(kernel) => Box::new(*kernel),
        Kernel::ChannelScaleGradient(kernel) => Box::new(*kernel),
        Kernel::ClipFactor(kernel) => Box::new(*kernel),
        Kernel::ClipGradient(kernel) => Box::new(*kernel),
        Kernel::ConcatBackward(kernel) => Box::new(*kernel),
        Kernel::ConcatForward(kernel) => Box::new(*kernel),
        Kernel::Conv2dBackwardData(kernel) => Box::new(*kernel),
        Kernel::Conv2dBackwardWeights(kernel) => Box::new(*kernel),
        Kernel::Conv2dForward(kernel) => Box::new(*kernel),
        Kernel::Convert(kernel) => Box::new(*kernel),
        Kernel::CountLabels(kernel) => Box::new(*kernel),
        Kernel::Dropout(kernel) => Box::new(*kernel),
        Kernel::Dropout2d(kernel) => Box::new(*kernel),
        Kernel::EmaUpdate(kernel) => Box::new(*kernel),
        Kernel::AllReduceBucket(kernel) => Box::new(*kernel),
        Kernel::FindOverflow(kernel) => Box::new(*kernel),
        Kernel::Flatten(kernel) => Box::new(*kernel),
        Kernel::GeluBackward(kernel) => Box::new(*kernel),
        Kernel::GeluForward(kernel) => Box::new(*kernel),
        Kernel::HardSigmoidBackward(kernel) => Box::new(*kernel),
        Kernel::HardSigmoidForward(kernel) => Box::new(*kernel),
        Kernel::HardSwishBackward(kernel) => Box::new(*kernel),
        Kernel::HardSwishForward(kernel) => Box::new(*kernel),
        Kernel::JoinWeights(kernel) => Box::new(*kernel),
        Kernel::LayerNormBackward(kernel) => Box::new(*kernel),
        Kernel::LayerNormForward(kernel) => Box::new(*kernel),
        Kernel::LayerNormGradients(kernel) => Box::new(*kernel),
        Kernel::LayerScale(kernel) => Box::new(*kernel),
        Kernel::LayerScaleGradient(kernel) => Box::new(*kernel),
        Kernel::LinearBackwardData(kernel) => Box::new(*kernel),
        Kernel::LinearBackwardWeights(kernel) => Box::new(*kernel),
        Kernel::LinearForward(kernel) => Box::new(*kernel),
        Kernel::LinearUpdate(kernel) => Box::new(*kernel),
        Kernel::LrnBackward(kernel) => Box::new(*kernel),
        Kernel::LrnForward(kernel) => Box::new(*kernel),
        Kernel::MaxPoolBackward(kernel) => Box::new(*kernel),
        Kernel::MaxPoolForward(kernel) => Box::new(*kernel),
        Kernel::NormalisePixels(kernel) => Box::new(*kernel),
        Kernel::PixelCrossEntropy(kernel) => Box::new(*kernel),
        Kernel::ScatterChannels(kernel) => Box::new(*kernel),
        Kernel::ReluBackward(kernel) => Box::new(*kernel),
        Kernel::ReluForward(kernel) => Box::new(*kernel),
        Kernel::ResizeBackward(kernel) => Box::new(*kernel),
        Kernel::ResizeForward(kernel) => Box::new(*kernel),
        Kernel::Scale(kernel) => Box::new(*kernel),
        Kernel::SelectChannels(kernel) => Box::new(*kernel),
        Kernel::Reorder(kernel) => Box::new(*kernel),
        Kernel::SgdUpdate(kernel) => Box::new(*kernel),
        Kernel::SigmoidBackward(kernel) => Box::new(*kernel),
        Kernel::SigmoidForward(kernel) => Box::new(*kernel),
        Kernel::SiluBackward(kernel) => Box::new(*kernel),
        Kernel::SiluForward(kernel) => Box::new(*kernel),
        Kernel::SoftmaxCrossEntropy(kernel) => Box::new(*kernel),
        Kernel::SplitGradient(kernel) => Box::new(*kernel),
        Kernel::StemApply(kernel) => Box::new(*kernel),
        Kernel::StemGradients(kernel) => Box::new(*kernel),
        Kernel::StemInference(kernel) => Box::new(*kernel),
        Kernel::StemStatistics(kernel) => Box::new(*kernel),
        Kernel::SumOfSquares(kernel) => Box::new(*kernel),
        Kernel::StageTransfer(kernel) => Box::new(*kernel),
    }
}

impl Backend for ReferenceBackend {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn describe(&self) -> String {
        "plain Rust".to_owned()
    }

    fn revision(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    fn threads(&self) -> usize {
        1
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
fn unexpected_operands() -> String {
    "unexpected operands".to_owned()
}
