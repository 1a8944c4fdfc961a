//! What each step enqueues, a file per operation. Operands are a step's inputs, updates and outputs, in this order, with their layouts.

mod adaptive;
mod add;
mod avg_pool2d;
mod batch_norm;
mod batch_norm_add;
mod concat;
mod conv2d;
mod conv_f32;
mod conv_first;
mod conv_first_gradient;
mod conv_gradient;
mod convert;
mod depthwise;
mod dropout;
mod gelu;
mod joined;
mod linear;
mod linear_update;
mod local_response_norm;
mod loss;
mod loss_scale;
mod max_pool2d;
mod pixels;
mod relu;
mod scale;
mod sgd;
mod stem;

use crate::library::{Asked, Library};
use crate::processor::{Argument, Launch, Made, Processor, Shape, Source};
use std::sync::Arc;
use stratus_engine::{DType, Kernel, Layout, Value};

/// The threads of a block, where nothing speaks for another number.
pub(crate) const THREADS: u32 = 256;

/// What the sums of all parts of a gradient may take.
pub(crate) const MOST_BYTES_OF_SUMS: usize = 256 << 20;

/// The most blocks of a grid in its second and third direction.
pub(crate) const MOST_BLOCKS: usize = 65_535;

/// A value as a step sees it: with the rows of one tile where it is run in tiles.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    pub value: Value,
    pub layout: Layout,
}

impl Operand {
    pub fn dtype(&self) -> DType {
        self.value.dtype
    }

    /// Elements of memory, padding included.
    pub fn elements(&self) -> usize {
        self.layout.elements()
    }

    /// `[N, C, H, W]`; a matrix has maps of one pixel.
    pub fn image(&self) -> Result<[usize; 4], String> {
        match self.value.shape[..] {
            [n, c, h, w] => Ok([n, c, h, w]),
            [n, c] => Ok([n, c, 1, 1]),
            _ => Err(format!("`{}` is {:?}, no feature map", self.value.name, self.value.shape)),
        }
    }
}

/// What makes launches.
pub(crate) struct Maker<'a> {
    pub processor: &'a Arc<dyn Processor>,
    /// cuDNN and cuBLAS; the emulation has none.
    pub library: Option<&'a Library>,
    /// The implementation that the step at hand is asked for.
    pub wanted: Option<&'a str>,
    /// Whether implementations may be measured.
    pub measure: bool,
}

impl Maker<'_> {
    /// What is asked of a choice among implementations.
    pub fn asked(&self) -> Asked<'_> {
        match (self.wanted, self.measure) {
            (Some(name), _) => Asked::For(name),
            (None, true) => Asked::Measured,
            (None, false) => Asked::Any,
        }
    }

    /// A launch of a kernel with any shape.
    pub fn launch(
        &self,
        source: &Source,
        name: &str,
        shape: Shape,
        arguments: Vec<Argument>,
    ) -> Result<Launch, String> {
        Launch::new(self.processor, source, name, shape, arguments)
    }

    /// A launch of a kernel whose threads share out `items` in a loop over the grid: as many blocks as are needed, at most a few for each
    /// multiprocessor.
    pub fn spread(
        &self,
        source: &Source,
        name: &str,
        items: usize,
        arguments: Vec<Argument>,
    ) -> Result<Launch, String> {
        let blocks =
            items.div_ceil(THREADS as usize).clamp(1, 16 * self.processor.multiprocessors() as usize);
        let shape = Shape { grid: [blocks as u32, 1, 1], block: [THREADS, 1, 1], shared: 0 };
        self.launch(source, name, shape, arguments)
    }
}

/// How many elements a thread takes at a time, so that 16 bytes of the widest of `types` are moved at once and `lengths` are multiples of it; else 1.
pub(crate) fn vector(types: &[DType], lengths: &[usize]) -> usize {
    let widest = types.iter().map(|dtype| dtype.bytes()).max().unwrap_or(4);
    let vector = (16 / widest.max(2)).max(1);
    if lengths.iter().all(|length| length.is_multiple_of(vector)) { vector } else { 1 }
}

/// What a GPU that cannot compute with a type says.
pub(crate) const PRECISIONS: &str = "GPUs train in f32, bf16 and f16";

/// That kernels can compute with elements of a type.
pub(crate) fn check_type(dtype: DType) -> Result<(), String> {
    if dtype == DType::F64 { Err(PRECISIONS.to_owned()) } else { Ok(()) }
}

/// Whether tensor cores multiply elements of a type, and add up in f32.
pub(crate) fn is_for_tensor_cores(dtype: DType) -> bool {
    matches!(dtype, DType::Bf16 | DType::F16)
}

/// A number of elements as a parameter.
pub(crate) fn long(count: usize) -> Argument {
    Argument::Long(count as i64)
}

/// A number as a parameter.
pub(crate) fn int(count: usize) -> Result<Argument, String> {
    i32::try_from(count).map(Argument::Int).map_err(|_| format!("{count} is more than a kernel can count"))
}

/// A kernel as calls that a step enqueues.
pub(crate) trait OnGpu {
    /// Makes them. `operands` are inputs, updates and outputs in order, `counts` of each, their shapes checked by
    /// [`KernelSpec::check`](stratus_engine::ops::KernelSpec::check).
    ///
    /// # Errors
    /// Why it cannot be run.
    fn make(&self, operands: &[Operand], counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String>;
}

/// What makes the calls of a kernel.
pub(crate) fn on_gpu(kernel: &Kernel) -> &dyn OnGpu {
    match kernel {
        Kernel::AdaptiveUpdate(kernel) => kernel,
        Kernel::AddForward(kernel) => kernel,
        Kernel::AdjustLossScale(kernel) => kernel,
        Kernel::AvgPoolBackward(kernel) => kernel,
        Kernel::AvgPoolForward(kernel) => kernel,
        Kernel::BatchNormApply(kernel) => kernel,
        Kernel::BatchNormBackwardData(kernel) => kernel,
        Kernel::BatchNormGradients(kernel) => kernel,
        Kernel::BatchNormInference(kernel) => kernel,
        Kernel::BatchNormInferenceBackward(kernel) => kernel,
        Kernel::BatchNormStatistics(kernel) => kernel,
        Kernel::BatchNormAddApply(kernel) => kernel,
        Kernel::BatchNormAddReluGradients(kernel) => kernel,
        Kernel::ConcatBackward(kernel) => kernel,
        Kernel::ConcatForward(kernel) => kernel,
        Kernel::Conv2dBackwardData(kernel) => kernel,
        Kernel::Conv2dBackwardWeights(kernel) => kernel,
        Kernel::Conv2dForward(kernel) => kernel,
        Kernel::Accumulate(kernel) => kernel,
        Kernel::AddTiles(kernel) => kernel,
        Kernel::Convert(kernel) => kernel,
        Kernel::Reorder(kernel) => kernel,
        Kernel::Dropout(kernel) => kernel,
        Kernel::FindOverflow(kernel) => kernel,
        Kernel::GeluBackward(kernel) => kernel,
        Kernel::GeluForward(kernel) => kernel,
        Kernel::JoinWeights(kernel) => kernel,
        Kernel::SplitGradient(kernel) => kernel,
        Kernel::LinearBackwardData(kernel) => kernel,
        Kernel::LinearBackwardWeights(kernel) => kernel,
        Kernel::LinearForward(kernel) => kernel,
        Kernel::LinearUpdate(kernel) => kernel,
        Kernel::LrnBackward(kernel) => kernel,
        Kernel::LrnForward(kernel) => kernel,
        Kernel::SoftmaxCrossEntropy(kernel) => kernel,
        Kernel::MaxPoolBackward(kernel) => kernel,
        Kernel::MaxPoolForward(kernel) => kernel,
        Kernel::NormalisePixels(kernel) => kernel,
        Kernel::ReluBackward(kernel) => kernel,
        Kernel::ReluForward(kernel) => kernel,
        Kernel::Scale(kernel) => kernel,
        Kernel::SgdUpdate(kernel) => kernel,
        Kernel::StemApply(kernel) => kernel,
        Kernel::StemGradients(kernel) => kernel,
        Kernel::StemInference(kernel) => kernel,
        Kernel::StemStatistics(kernel) => kernel,
    }
}
