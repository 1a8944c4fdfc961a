//! Kernels: what a step computes, which steps an operation of the graph becomes, and the steps of its
//! derivative. A new operation is a file here and its entries in `with_kernels!` and `lower`.

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
mod conv_transpose2d;
mod convert;
mod dropout;
mod dropout2d;
mod ema;
mod joined;
mod layer_norm;
mod layer_scale;
mod linear;
mod linear_update;
mod local_response_norm;
mod loss;
mod loss_scale;
mod max_pool2d;
mod parts;
mod pixel_loss;
mod pixels;
mod relu;
mod resize;
mod scale;
mod sgd;
mod stem;
mod transfer;

pub use activation::{
    Activation, ActivationBackward, ActivationForward, GeluBackward, GeluForward, HardSigmoidBackward,
    HardSigmoidForward, HardSwishBackward, HardSwishForward, SigmoidBackward, SigmoidForward, SiluBackward,
    SiluForward,
};
pub use adaptive::{Adaptive, AdaptiveUpdate};
pub use add::AddForward;
pub use avg_pool2d::{Averages, AvgPoolBackward, AvgPoolForward, Stretch};
pub use batch_norm::{
    BatchNormApply, BatchNormBackwardData, BatchNormGradients, BatchNormInference,
    BatchNormInferenceBackward, BatchNormStatistics, FusedPool, PART_BORDER, Parts,
};
pub use batch_norm_add::{BatchNormAddApply, BatchNormAddReluGradients};
pub use bias::{AddBias, BiasGradient};
pub use channel_scale::{ChannelScale, ChannelScaleGradient};
pub use channels::{PlaceChannels, SelectChannels};
pub use clip::{ClipFactor, ClipGradient, GRADIENT_NORM, GRADIENT_NORM_NAME, SumOfSquares};
pub use concat::{ConcatBackward, ConcatForward};
pub use conv2d::{Conv2dBackwardData, Conv2dBackwardWeights, Conv2dForward};
pub use convert::{Accumulate, AddTiles, Convert, Flatten, Reorder};
pub use dropout::{Dropout, Mask};
pub use dropout2d::Dropout2d;
pub use ema::EmaUpdate;
pub use joined::{JoinWeights, MAX_JOINED, SplitGradient};
pub use layer_norm::{LayerNormBackward, LayerNormForward, LayerNormGradients};
pub use layer_scale::{LayerScale, LayerScaleGradient};
pub use linear::{LinearBackwardData, LinearBackwardWeights, LinearForward};
pub use linear_update::LinearUpdate;
pub use local_response_norm::{LrnBackward, LrnForward};
pub use loss::{METRICS, MIXED, SoftmaxCrossEntropy, WHOLE_SHARE};
pub use loss_scale::{
    AdjustLossScale, FIRST_SCALE, FindOverflow, GROWS_AFTER, LOSS_SCALE, LOSS_SCALE_NAME, LossScale,
    MOST_STEPS,
};
pub use max_pool2d::{MaxPoolBackward, MaxPoolForward};
pub use parts::{AddParts, BUCKET_VALUES, ExchangeSums, Turn};
pub use pixel_loss::{CLASS_WEIGHTS, PIXEL_METRICS, PixelCrossEntropy};
pub use pixels::{MOST_CHANNELS, NormalisePixels};
pub use relu::{ReluBackward, ReluForward};
pub use resize::{Bilinear, ResizeBackward, ResizeForward, Taps};
pub use scale::Scale;
pub use sgd::{HYPER, SgdUpdate};
pub use stem::{Stem, StemApply, StemGradients, StemInference, StemStatistics};
pub use transfer::Transfer;

use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{DType, EngineError, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::{Node, Op, Operation};

/// How a kernel can run over a batch that is cut into tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiling {
    /// What it makes of a sample depends on that sample alone.
    PerSample,
    /// It adds up over the samples that it is given, and overwrites: [`crate::passes::tile`] adds the tiles'
    /// sums up behind it with [`AddTiles`].
    Sums,
    /// It adds up over the samples, and continues where the tile before left off; its results are there after
    /// the last tile.
    Continues,
    /// It needs the whole batch.
    Whole,
}

/// What every kernel knows of itself. Operands are inputs, then updates, then outputs.
pub trait KernelSpec {
    /// Its name in dumps and reports.
    fn name(&self) -> &'static str;

    /// Checks operand counts (`[inputs, updates, outputs]`), shapes and types.
    ///
    /// # Errors
    /// What does not fit, with the shapes.
    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String>;

    /// Floating-point operations (a multiply-add counts two).
    fn flops(&self, operands: &[&Value]) -> u64;

    /// How it can run tile by tile. No default: whoever adds a kernel decides.
    fn tiling(&self) -> Tiling;

    /// How many channels of the operand at `position` it reads or writes, where these are not all.
    fn channels_touched(&self, _operands: &[&Value], _position: usize) -> Option<usize> {
        None
    }

    /// Adds the steps of its derivative. The default is for kernels that no gradient passes.
    ///
    /// # Errors
    /// Where it has no derivative.
    fn differentiate(&self, step: &Step, to: &mut Differentiator) -> Result<(), EngineError> {
        Err(to.no_derivative(step))
    }
}

macro_rules! kernels {
    ($($name:ident),* $(,)?) => {
        /// What a step computes, with its attributes.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Kernel {
            $(#[doc = concat!("See [`", stringify!($name), "`].")] $name($name),)*
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
            fn channels_touched(&self, operands: &[&Value], position: usize) -> Option<usize> {
                match self { $(Self::$name(kernel) => kernel.channels_touched(operands, position),)* }
            }
            fn differentiate(&self, step: &Step, to: &mut Differentiator) -> Result<(), EngineError> {
                match self { $(Self::$name(kernel) => kernel.differentiate(step, to),)* }
            }
        }
    };
}

/// Calls a macro with the names of all kernels, separated by commas: the one list of them. Backends make
/// their dispatch of it.
#[macro_export]
macro_rules! with_kernels {
    ($callback:ident) => {
        $callback! {
            Accumulate,
            AdaptiveUpdate,
            AddBias,
            AddForward,
            AddParts,
            AddTiles,
            AdjustLossScale,
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
            BiasGradient,
            ChannelScale,
            ChannelScaleGradient,
            ClipFactor,
            ClipGradient,
            ConcatBackward,
            ConcatForward,
            Conv2dBackwardData,
            Conv2dBackwardWeights,
            Conv2dForward,
            Convert,
            Dropout,
            Dropout2d,
            EmaUpdate,
            ExchangeSums,
            FindOverflow,
            Flatten,
            GeluBackward,
            GeluForward,
            HardSigmoidBackward,
            HardSigmoidForward,
            HardSwishBackward,
            HardSwishForward,
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
            LrnBackward,
            LrnForward,
            MaxPoolBackward,
            MaxPoolForward,
            NormalisePixels,
            PixelCrossEntropy,
            PlaceChannels,
            ReluBackward,
            ReluForward,
            ResizeBackward,
            ResizeForward,
            Scale,
            SelectChannels,
            Reorder,
            SgdUpdate,
            SigmoidBackward,
            SigmoidForward,
            SiluBackward,
            SiluForward,
            SoftmaxCrossEntropy,
            SplitGradient,
            StemApply,
            StemGradients,
            StemInference,
            StemStatistics,
            SumOfSquares,
            Transfer,
        }
    };
}

with_kernels!(kernels);

/// Adds the forward steps of a node.
pub(crate) fn lower(node: &Node, to: &mut Lowering) -> Result<(), EngineError> {
    match &node.op {
        Op::AdaptiveAvgPool2d(op) => avg_pool2d::lower(Averages::Bins(*op), node, to),
        Op::AvgPool2d(op) => avg_pool2d::lower(Averages::Windows(*op), node, to),
        Op::Add(_) => add::lower(node, to),
        Op::BatchNorm2d(op) => batch_norm::lower(op, node, to),
        Op::ChannelScale(_) => channel_scale::lower(node, to),
        Op::ChannelShuffle(op) => channels::lower_shuffle(op, node, to),
        Op::ChannelSlice(op) => channels::lower_slice(op, node, to),
        Op::Concat(_) => concat::lower(node, to),
        Op::Conv2d(op) => conv2d::lower(op, node, to),
        Op::ConvTranspose2d(op) => conv_transpose2d::lower(op, node, to),
        Op::Dropout(op) => dropout::lower(op, node, to),
        Op::Dropout2d(op) => dropout2d::lower(op, node, to),
        // Memory does not change: what reads a flattened value takes the feature map as it lies. Logits are a
        // matrix: the pass `lower` adds a step before their loss.
        Op::Flatten(_) => to.alias(node),
        Op::Gelu(op) => activation::lower(*op, node, to),
        Op::HardSigmoid(op) => activation::lower(*op, node, to),
        Op::HardSwish(op) => activation::lower(*op, node, to),
        Op::LayerNorm2d(op) => layer_norm::lower(op, node, to),
        Op::LayerScale(_) => layer_scale::lower(node, to),
        Op::Linear(op) => linear::lower(op, node, to),
        Op::LocalResponseNorm(op) => local_response_norm::lower(op, node, to),
        Op::MaxPool2d(op) => max_pool2d::lower(op, node, to),
        Op::PointwiseLinear(op) => conv2d::lower(&op.conv(), node, to),
        Op::Relu(_) => relu::lower(None, node, to),
        Op::Relu6(_) => relu::lower(Some(stratus_graph::ops::Relu6::CEILING), node, to),
        Op::Resize(op) => resize::lower(op, node, to),
        Op::Scale(op) => scale::lower(op, node, to),
        Op::Sigmoid(op) => activation::lower(*op, node, to),
        Op::Silu(op) => activation::lower(*op, node, to),
        Op::StochasticDepth(op) => dropout2d::lower_whole(op, node, to),
    }
}

impl Kernel {
    /// Whether it adds a tile or a micro-batch to the sum over those before it.
    #[must_use]
    pub fn adds_up(&self) -> bool {
        matches!(self, Self::AddTiles(_) | Self::AddParts(_))
    }
}

/// What a layer is answered with that cannot be lowered.
fn no_kernel(node: &Node, reason: &str) -> EngineError {
    EngineError::Mismatch(format!("layer `{}` ({}) cannot be run: {reason}", node.name, node.op.kind()))
}

/// Checks operand counts against what a kernel takes; `allowed` lists the possibilities.
fn expect_counts(counts: [usize; 3], allowed: &[[usize; 3]]) -> Result<(), String> {
    if allowed.contains(&counts) {
        return Ok(());
    }
    Err(format!("it has {counts:?} inputs, updates and outputs, it takes {allowed:?}"))
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
    Err(format!("`{}` is {:?}, it should be {shape:?}", value.name, value.shape))
}

/// Checks that a feature map has the channels of a map of `shape`, from the channel `first` on.
fn expect_channels(whole: &Value, first: usize, [n, channels, h, w]: [usize; 4]) -> Result<(), String> {
    let [_, of, ..] = image_shape(whole)?;
    if first + channels > of {
        return Err(format!(
            "`{}` has {of} channels, it takes {channels} from channel {first} on",
            whole.name
        ));
    }
    expect_shape(whole, &[n, of, h, w])
}

/// Checks a sum over the batch.
fn expect_f64(value: &Value) -> Result<(), String> {
    if value.dtype == DType::F64 {
        return Ok(());
    }
    Err(format!("`{}` is {}, it should be f64", value.name, value.dtype))
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
        .map_err(|_| format!("`{}` is {:?}, it should have four dimensions", value.name, value.shape))
}
