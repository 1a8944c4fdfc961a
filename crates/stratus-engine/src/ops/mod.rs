//! Kernels: the computation of a step, the lowering of each graph operation to steps, and the steps of its
//! derivative. A new operation is a file here, whose kernels its line in [`stratus_graph::with_operations!`]
//! names.

mod activation;
mod adaptive;
mod add;
mod avg_pool2d;
mod batch_norm;
mod batch_norm_add;
mod batch_norm_names;
mod batch_norm_sums;
mod bias;
mod channel_scale;
mod channels;
mod clip;
mod concat;
mod conv2d;
mod conv2d_inference;
mod conv_transpose2d;
mod convert;
mod count_labels;
mod distillation;
mod dropout;
mod dropout2d;
mod ema;
mod fake_quantise;
mod fused_activation;
mod joined;
mod labels;
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
mod stored_kernel;
mod target_loss;
mod tree_sum;

pub use activation::{ActivationBackward, ActivationForward};
pub use adaptive::{Adaptive, AdaptiveUpdate};
pub use add::AddForward;
pub use avg_pool2d::{AvgPoolBackward, AvgPoolForward, AvgPooling, PoolRange};
pub use batch_norm::{
    BatchNormApply, BatchNormBackwardData, BatchNormGradients, BatchNormInference,
    BatchNormInferenceBackward, BatchNormStatistics, CHANNEL_SLICE_ALIGNMENT, ChannelOffsets, FusedPool,
};
pub use batch_norm_add::{BatchNormAddApply, BatchNormAddReluGradients};
pub use batch_norm_sums::{BatchNormStatisticsFromSums, BatchNormSums};
pub use bias::{AddBias, BiasGradient};
pub use channel_scale::{ChannelScale, ChannelScaleGradient, ChannelScaleMeanBackward};
pub use channels::{ScatterChannels, SelectChannels};
pub use clip::{ClipFactor, ClipGradient, GRADIENT_NORM_FIELDS, GRADIENT_NORM_NAME, SumOfSquares};
pub use concat::{ConcatBackward, ConcatForward};
pub use conv2d::{Conv2dBackwardData, Conv2dBackwardWeights, Conv2dForward};
pub use conv2d_inference::Conv2dInference;
pub use convert::{Accumulate, AddTiles, Convert, Flatten, Reorder};
pub use count_labels::CountLabels;
pub use distillation::{DistillationFunction, DistillationLoss};
pub use dropout::{Dropout, Mask};
pub use dropout2d::Dropout2d;
pub use ema::EmaUpdate;
pub use fake_quantise::{FakeQuantise, FakeQuantiseBackward, FakeQuantiseWeights};
pub use fused_activation::FusedActivation;
pub use joined::{JoinWeights, MAX_JOINED_WEIGHTS, SplitGradient};
pub use labels::{FULL_SHARE, MIXED_LABEL_LEN};
pub use layer_norm::{LayerNormBackward, LayerNormForward, LayerNormGradients};
pub use layer_scale::{LayerScale, LayerScaleGradient};
pub use linear::{LinearBackwardData, LinearBackwardWeights, LinearForward};
pub use linear_update::LinearUpdate;
pub use loss::{METRICS_FIELDS, SoftmaxCrossEntropy};
pub use loss_scale::{
    AdjustLossScale, FindOverflow, GROWTH_INTERVAL, INITIAL_SCALE, LOSS_SCALE_FIELDS, LOSS_SCALE_NAME,
    LossScale, MAX_EXPONENT,
};
pub use max_pool2d::{MaxPoolBackward, MaxPoolForward};
pub use pixel_loss::{BINARY_CLASSES, CLASS_WEIGHTS, PIXEL_METRICS_FIELDS, PixelCrossEntropy};
pub use pixels::{MAX_IMAGE_CHANNELS, NormalisePixels};
pub use prelu::{PreluBackward, PreluForward, PreluGradient};
pub use quantised::{Addend, Quantise, QuantisedConv2d, Uint8Scale};
pub use relu::{ReluBackward, ReluForward};
pub use resize::{Interpolation, ResizeBackward, ResizeForward, Taps};
pub use scale::Scale;
pub use sgd::{ITERATION_SCALAR_FIELDS, SgdUpdate};
pub use stage_transfer::StageTransfer;
pub use stem::{Stem, StemApply, StemGradients, StemInference, StemStatistics};
pub use target_loss::{TARGET_METRICS_FIELDS, TARGET_WEIGHT_ROWS, TargetFunction, TargetLoss};
pub use tree_sum::{AllReduceBucket, MAX_BUCKET_VALUES, SumMethod, TreeStep, TreeSum};

use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{DType, EngineError, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::{Node, Op};

/// The ways in which a kernel can run over a batch that is split into tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiling {
    /// The result for a sample depends on that sample alone.
    PerSample,
    /// It sums over the samples of a tile and overwrites its output; [`crate::passes::tile`] appends an
    /// [`AddTiles`] step that adds up the tiles' sums.
    PartialSums,
    /// It sums over the samples and continues from the previous tile. Its results are complete after the last
    /// tile.
    Accumulates,
    /// It needs the whole batch.
    WholeBatch,
}

/// The kind of a kernel's work, by which forecasts estimate its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// Each element is read and written once.
    Elementwise,
    /// Convolutions and linear layers.
    MatrixProduct,
    /// Statistics of many elements, which are then read again.
    Normalisation,
    /// Windows or neighbours of pixels.
    Pooling,
    /// A parameter or its gradient is updated.
    Update,
}

/// Shape rules, cost and derivative of a kernel. Operands are inputs, then updates, then outputs.
pub trait KernelSpec {
    /// Its name in dumps and reports.
    fn name(&self) -> &'static str;

    /// Checks operand counts (`[inputs, updates, outputs]`), shapes and types.
    ///
    /// # Errors
    /// If the operands do not fit; the message names the shapes.
    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String>;

    /// Floating-point operations (a multiply-add counts two).
    fn flops(&self, operands: &[&Value]) -> u64;

    /// How it can run tile by tile. There is no default, so that every new kernel decides.
    fn tiling(&self) -> Tiling;

    /// The kind of its work. There is no default either: a forgotten kind would be a wrong forecast.
    fn work_kind(&self) -> WorkKind;

    /// The number of channels of the operand at `position` that it reads or writes, if not all.
    fn channels_touched(&self, _operands: &[&Value], _position: usize) -> Option<usize> {
        None
    }

    /// Adds the steps of its derivative. The default is for kernels without derivative.
    ///
    /// # Errors
    /// If it has no derivative.
    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        Err(backward.no_derivative(step))
    }
}

macro_rules! kernels {
    ($($(#[$serde:meta])* $name:ident),* $(,)?) => {
        /// The computation of a step, with its attributes.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case", remote = "Self")]
        pub enum Kernel {
            $(
                #[doc = concat!("See [`", stringify!($name), "`].")]
                $(#[$serde])*
                $name($name),
            )*
        }

        $(impl From<$name> for Kernel {
            fn from(kernel: $name) -> Self {
                Self::$name(kernel)
            }
        })*

        impl KernelSpec for Kernel {
            fn name(&self) -> &'static str {
                match self { $(Self::$name(kernel) => kernel.name(),)* }
            }
            fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
                match self { $(Self::$name(kernel) => kernel.check(operands, counts),)* }
            }
            fn flops(&self, operands: &[&Value]) -> u64 {
                match self { $(Self::$name(kernel) => kernel.flops(operands),)* }
            }
            fn tiling(&self) -> Tiling {
                match self { $(Self::$name(kernel) => kernel.tiling(),)* }
            }
            fn work_kind(&self) -> WorkKind {
                match self { $(Self::$name(kernel) => kernel.work_kind(),)* }
            }
            fn channels_touched(&self, operands: &[&Value], position: usize) -> Option<usize> {
                match self { $(Self::$name(kernel) => kernel.channels_touched(operands, position),)* }
            }
            fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
                match self { $(Self::$name(kernel) => kernel.differentiate(step, backward),)* }
            }
        }
    };
}

/// Calls a macro with the names of all kernels, separated by commas. Attributes before a name say how plans
/// store it. Backends generate their dispatch from it.
#[macro_export]
macro_rules! with_kernels {
    ($callback:ident) => {
        $crate::with_operations! { $crate::add_kernels, $callback }
    };
}

/// The kernels of [`with_kernels!`]: those of [`with_operations!`](stratus_graph::with_operations), and
/// others.
#[doc(hidden)]
#[macro_export]
macro_rules! add_kernels {
    ({ $callback:ident } $($module:ident: $operation:ident [$($kernel:ident),*];)*) => {
        $callback! {
            Accumulate,
            // Stored under the names of the activations: see `stored_kernel`.
            #[serde(skip)] ActivationBackward,
            #[serde(skip)] ActivationForward,
            AdaptiveUpdate,
            AddBias,
            AddForward,
            AddTiles,
            AdjustLossScale,
            #[serde(rename = "exchange_sums")] AllReduceBucket,
            AvgPoolBackward,
            AvgPoolForward,
            BatchNormAddApply,
            BatchNormAddReluGradients,
            BatchNormApply,
            BatchNormBackwardData,
            BatchNormGradients,
            BatchNormInference,
            BatchNormInferenceBackward,
            BatchNormStatistics,
            BatchNormStatisticsFromSums,
            BatchNormSums,
            BiasGradient,
            ChannelScale,
            ChannelScaleGradient,
            ChannelScaleMeanBackward,
            ClipFactor,
            ClipGradient,
            ConcatBackward,
            ConcatForward,
            Conv2dBackwardData,
            Conv2dBackwardWeights,
            Conv2dForward,
            Conv2dInference,
            Convert,
            CountLabels,
            DistillationLoss,
            Dropout,
            Dropout2d,
            EmaUpdate,
            FakeQuantise,
            FakeQuantiseBackward,
            FakeQuantiseWeights,
            FindOverflow,
            Flatten,
            JoinWeights,
            LayerNormBackward,
            LayerNormForward,
            LayerNormGradients,
            LayerScale,
            LayerScaleGradient,
            LinearBackwardData,
            LinearBackwardWeights,
            LinearForward,
            LinearUpdate,
            MaxPoolBackward,
            MaxPoolForward,
            NormalisePixels,
            PixelCrossEntropy,
            PreluBackward,
            PreluForward,
            PreluGradient,
            Quantise,
            QuantisedConv2d,
            ReluBackward,
            ReluForward,
            ResizeBackward,
            ResizeForward,
            Scale,
            #[serde(rename = "place_channels")] ScatterChannels,
            SelectChannels,
            Reorder,
            SgdUpdate,
            SoftmaxCrossEntropy,
            SplitGradient,
            #[serde(rename = "transfer")] StageTransfer,
            StemApply,
            StemGradients,
            StemInference,
            StemStatistics,
            SumOfSquares,
            TargetLoss,
            #[serde(rename = "add_parts")] TreeSum,
            $($($kernel,)*)*
        }
    };
}

with_kernels!(kernels);

macro_rules! operation_files {
    ({} $($module:ident: $operation:ident [$($kernel:ident),*];)*) => {
        $(
            mod $module;
            pub use $module::{$($kernel),*};
        )*

        /// Adds the forward steps of a node.
        pub(crate) fn lower(node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
            match &node.op {
                $(Op::$operation(op) => $module::lower(op, node, lowering),)*
                Op::Activation(op) => activation::lower(*op, node, lowering),
                Op::AdaptiveAvgPool2d(op) => avg_pool2d::lower(AvgPooling::Bins(*op), node, lowering),
                Op::AvgPool2d(op) => avg_pool2d::lower(AvgPooling::Windows(*op), node, lowering),
                Op::Add(_) => add::lower(node, lowering),
                Op::BatchNorm2d(op) => batch_norm::lower(op, node, lowering),
                Op::ChannelScale(_) => channel_scale::lower(node, lowering),
                Op::ChannelShuffle(op) => channels::lower_shuffle(op, node, lowering),
                Op::ChannelSlice(op) => channels::lower_slice(op, node, lowering),
                Op::Concat(_) => concat::lower(node, lowering),
                Op::Conv2d(op) => conv2d::lower(op, node, lowering),
                Op::ConvTranspose2d(op) => conv_transpose2d::lower(op, node, lowering),
                Op::Dropout(op) => dropout::lower(op, node, lowering),
                Op::Dropout2d(op) => dropout2d::lower(op, node, lowering),
                // Memory does not change: readers of a flattened value take the feature map in its layout.
                // The logits of a loss are a matrix: `lower` adds a step.
                Op::Flatten(_) => lowering.alias(node),
                Op::LayerNorm2d(op) => layer_norm::lower(op, node, lowering),
                Op::LayerScale(_) => layer_scale::lower(node, lowering),
                Op::Linear(op) => linear::lower(op, node, lowering),
                Op::MaxPool2d(op) => max_pool2d::lower(op, node, lowering),
                Op::PointwiseLinear(op) => conv2d::lower(&op.conv(), node, lowering),
                Op::Prelu(_) => prelu::lower(node, lowering),
                Op::Relu(_) => relu::lower(None, node, lowering),
                Op::Relu6(_) => relu::lower(Some(stratus_graph::ops::Relu6::CEILING), node, lowering),
                Op::Resize(op) => resize::lower(op, node, lowering),
                Op::Scale(op) => scale::lower(op, node, lowering),
                Op::StochasticDepth(op) => dropout2d::lower_stochastic_depth(op, node, lowering),
            }
        }
    };
}

stratus_graph::with_operations!(operation_files);

impl Kernel {
    /// Returns whether it adds a tile or a micro-batch to the sum of the earlier ones.
    #[must_use]
    pub fn accumulates_tiles(&self) -> bool {
        matches!(self, Self::AddTiles(_) | Self::TreeSum(_))
    }
}

/// Checks the operand counts of a step against the `allowed` ones.
fn expect_counts(counts: [usize; 3], allowed: &[[usize; 3]]) -> Result<(), String> {
    if allowed.contains(&counts) {
        return Ok(());
    }
    Err(format!("expected [inputs, updates, outputs] to be one of {allowed:?}, got {counts:?}"))
}

/// Checks that two values have the same shape.
fn expect_same_shape(a: &Value, b: &Value) -> Result<(), String> {
    if a.shape == b.shape {
        return Ok(());
    }
    Err(format!("`{}` {:?} and `{}` {:?} differ in shape", a.name, a.shape, b.name, b.shape))
}

/// Checks a value's shape.
fn expect_shape(value: &Value, shape: &[usize]) -> Result<(), String> {
    if value.shape == shape {
        return Ok(());
    }
    Err(format!("`{}`: expected {shape:?}, got {:?}", value.name, value.shape))
}

/// Checks that a feature map contains the channels of a map of the given shape, starting at channel `first`.
fn expect_channels(whole: &Value, first: usize, [n, channels, h, w]: [usize; 4]) -> Result<(), String> {
    let [_, available, ..] = image_shape(whole)?;
    if first + channels > available {
        return Err(format!(
            "`{}` has {available} channels; channels {first}..{} are out of range",
            whole.name,
            first + channels
        ));
    }
    expect_shape(whole, &[n, available, h, w])
}

/// Checks a sum over the batch.
fn expect_f64(value: &Value) -> Result<(), String> {
    if value.dtype == DType::F64 {
        return Ok(());
    }
    Err(format!("`{}`: expected f64, got {}", value.name, value.dtype))
}

/// Checks the argmax indices of a pooling whose output is `y`.
fn expect_index(y: &Value, index: Option<&Value>) -> Result<(), String> {
    match index {
        Some(index) if index.dtype == DType::U8 => expect_same_shape(y, index),
        _ => Err("fused pooling needs an index of type u8".to_owned()),
    }
}

/// The four extents `[N, C, H, W]` of a value.
fn image_shape(value: &Value) -> Result<[usize; 4], String> {
    value
        .shape
        .as_slice()
        .try_into()
        .map_err(|_| format!("`{}`: expected four dimensions, got {:?}", value.name, value.shape))
}
