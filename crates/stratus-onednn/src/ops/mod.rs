//! The kernels of each operation, one file per operation: its candidates among oneDNN's implementations and
//! native kernels, or its only native kernel. An operation with one native kernel may implement [`CpuOp`] in
//! the kernel's file instead. Operands are a step's inputs, updates and outputs, in this order.

mod activation;
mod adaptive;
mod add;
mod avg_pool2d;
mod batch_norm;
mod batch_norm_add;
mod batch_norm_sums;
mod bias;
mod candidates;
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
mod implementations;
mod joined;
mod layer_norm;
mod layer_scale;
mod linear;
mod linear_update;
mod loss;
mod loss_scale;
mod max_pool2d;
mod native;
mod operands;
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

pub(crate) use candidates::{Candidate, Implementation, KernelBuilder, NATIVE_PREFIX, REORDERED};
pub(crate) use convert::conversion_candidate;
pub(crate) use implementations::{SEPARATE, is_fallback, is_generalised, register_bytes, runs_on_amx};
pub(crate) use native::{NativeStep, native_step, typed};
pub(crate) use operands::{StepOperands, data_type};

pub(crate) use crate::prepare::{CpuOp, OneDnnUse};
use stratus_engine::Kernel;

macro_rules! dispatch {
    ($($(#[$serde:meta])* $name:ident),* $(,)?) => {
        /// The [`CpuOp`] implementation of a step's kernel.
        pub(crate) fn on_cpu(kernel: &Kernel) -> &dyn CpuOp {
            match kernel {
                $(Kernel::$name(kernel) => kernel,)*
            }
        }
    };
}

stratus_engine::with_kernels!(dispatch);
