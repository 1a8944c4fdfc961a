//! The calls that each step enqueues: a file per operation, named as in `stratus-engine/src/ops`.
//! Implementations of convolutions are in `conv2d/`.
//!
//! Operands are a step's inputs, updates and outputs, in this order, with their layouts.

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
mod conv2d_inference;
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
mod parts;
mod pixel_loss;
mod pixels;
mod prelu;
mod quantised;
mod relu;
mod resize;
mod scale;
mod sgd;
mod stem;
mod target_loss;

use crate::gpu_libraries::{GpuLibraries, ImplementationChoice, PlanRequest};
use crate::processor::{Argument, Implementation, Launch, Processor, Shape, Source};
use std::cell::RefCell;
use std::sync::Arc;
use stratus_engine::{DType, Kernel, Layout, Value};

/// The threads of a block, unless a kernel says otherwise.
pub(crate) const THREADS: u32 = 256;

/// The maximum scratch of a gradient's partial sums, in bytes.
pub(crate) const MAX_PARTIAL_SUM_BYTES: usize = 256 << 20;

/// The maximum number of blocks of a grid in its y and z dimensions.
pub(crate) const MAX_GRID_YZ: usize = 65_535;

/// The bound of all counts of kernels that use `int`.
pub(crate) const MAX_INT_COUNT: usize = 1 << 30;

/// A value as seen by a step: the samples of one tile, if the step is tiled.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    pub value: Value,
    pub layout: Layout,
}

impl Operand {
    pub fn dtype(&self) -> DType {
        self.value.dtype
    }

    /// The elements in memory, including padding.
    pub fn elements(&self) -> usize {
        self.layout.elements()
    }

    /// The shape `[N, C, H, W]`; a matrix `[N, C]` counts as a map of one pixel.
    ///
    /// # Errors
    /// If the value has another rank.
    pub fn image(&self) -> Result<[usize; 4], String> {
        match self.value.shape[..] {
            [n, c, h, w] => Ok([n, c, h, w]),
            [n, c] => Ok([n, c, 1, 1]),
            _ => {
                Err(format!("`{}` has shape {:?}, expected a feature map", self.value.name, self.value.shape))
            }
        }
    }
}

/// Builds the launches of a step.
pub(crate) struct KernelBuilder<'a> {
    pub processor: &'a Arc<dyn Processor>,
    /// cuDNN and cuBLAS; the emulation has none.
    pub libraries: Option<&'a GpuLibraries>,
    /// The name of the implementation requested for the step.
    pub requested: Option<&'a str>,
    /// True if implementations may be measured.
    pub measure: bool,
    /// True if f32 factors may be rounded to TF32.
    pub tf32: bool,
    /// The list that collects the convolutions, each with the name of the requested implementation.
    pub convolutions: Option<&'a RefCell<Vec<PlanRequest>>>,
}

#[cfg(test)]
impl<'a> KernelBuilder<'a> {
    /// A builder without libraries and requests.
    pub fn without_libraries(processor: &'a Arc<dyn Processor>) -> Self {
        let (libraries, requested, convolutions) = (None, None, None);
        Self { processor, libraries, requested, measure: false, tf32: false, convolutions }
    }
}

impl KernelBuilder<'_> {
    /// Returns whether an implementation of this name may be used.
    pub fn allows(&self, name: &str) -> bool {
        self.requested.is_none_or(|requested| requested == name)
    }

    /// The choice among several implementations.
    pub fn choice(&self) -> ImplementationChoice<'_> {
        match (self.requested, self.measure) {
            (Some(name), _) => ImplementationChoice::Named(name),
            (None, true) => ImplementationChoice::Fastest,
            (None, false) => ImplementationChoice::First,
        }
    }

    /// Compiles a kernel and returns its launch with this shape.
    ///
    /// # Errors
    /// The compiler's error message.
    pub fn launch(
        &self,
        source: &Source,
        name: &str,
        shape: Shape,
        arguments: Vec<Argument>,
    ) -> Result<Launch, String> {
        Launch::new(self.processor, source, name, shape, arguments)
    }

    /// The launch of a kernel that processes `items` in a grid-stride loop: the blocks that the items need,
    /// but at most 16 per multiprocessor.
    ///
    /// # Errors
    /// The compiler's error message.
    pub fn grid_stride(
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

/// The elements that a thread loads at once: 16 bytes of the widest of `types` if all of `lengths` are
/// multiples of that number, else 1.
pub(crate) fn vector(types: &[DType], lengths: &[usize]) -> usize {
    let widest = types.iter().map(|dtype| dtype.bytes()).max().unwrap_or(4);
    let vector = (16 / widest.max(2)).max(1);
    if lengths.iter().all(|length| length.is_multiple_of(vector)) { vector } else { 1 }
}

/// The error for other precisions.
pub(crate) const UNSUPPORTED_PRECISION: &str = "GPUs support f32, bf16 and f16";

/// Checks that kernels support elements of a type.
///
/// # Errors
/// For f64.
pub(crate) fn check_type(dtype: DType) -> Result<(), String> {
    if dtype == DType::F64 { Err(UNSUPPORTED_PRECISION.to_owned()) } else { Ok(()) }
}

/// Returns whether tensor cores multiply elements of a type and accumulate in f32.
pub(crate) fn is_for_tensor_cores(dtype: DType) -> bool {
    matches!(dtype, DType::Bf16 | DType::F16)
}

/// A count as a parameter of type `long long`.
pub(crate) fn long(count: usize) -> Argument {
    Argument::Long(count as i64)
}

/// A count as a parameter of type `int`.
///
/// # Errors
/// For counts of 2^31 and more.
pub(crate) fn int(count: usize) -> Result<Argument, String> {
    i32::try_from(count).map(Argument::Int).map_err(|_| format!("{count} exceeds the range of `int`"))
}

/// The implementation of a step, or the reason why it cannot run on a GPU.
pub(crate) type BuildResult = Result<Implementation, String>;

/// The GPU implementation of an engine kernel.
pub(crate) trait GpuOp {
    /// Builds the calls that a step of this kernel enqueues. `operands` are inputs, updates and outputs in
    /// this order, `counts` their numbers; their shapes were checked by
    /// [`KernelSpec::check`](stratus_engine::ops::KernelSpec::check).
    ///
    /// # Errors
    /// If it cannot run on a GPU.
    fn build(&self, operands: &[Operand], counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult;
}

macro_rules! operation_files {
    ({} $($module:ident: $operation:ident [$($kernel:ident),*];)*) => {
        $(mod $module;)*
    };
}

stratus_graph::with_operations!(operation_files);

macro_rules! dispatch {
    ($($(#[$serde:meta])* $name:ident),* $(,)?) => {
        /// The GPU implementation of a kernel.
        pub(crate) fn on_gpu(kernel: &Kernel) -> &dyn GpuOp {
            match kernel {
                $(Kernel::$name(kernel) => kernel,)*
            }
        }
    };
}

stratus_engine::with_kernels!(dispatch);
