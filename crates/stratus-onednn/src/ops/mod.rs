//! The kernels of each operation, one file per operation: its candidates among oneDNN's implementations and
//! native kernels, or its only native kernel. Operands are a step's inputs, updates and outputs, in this
//! order.

mod activation;
mod adaptive;
mod add;
mod avg_pool2d;
mod batch_norm;
mod batch_norm_add;
mod bias;
mod candidates;
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
mod implementations;
mod joined;
mod layer_norm;
mod layer_scale;
mod linear;
mod linear_update;
mod local_response_norm;
mod loss;
mod loss_scale;
mod max_pool2d;
mod native;
mod operands;
mod parts;
mod pixel_loss;
mod pixels;
mod prelu;
mod relu;
mod resize;
mod scale;
mod sgd;
mod stem;

pub(crate) use candidates::{Candidate, Implementation, KernelBuilder, NATIVE_PREFIX, REORDERED};
pub(crate) use convert::conversion_candidate;
pub(crate) use implementations::{is_fallback, is_generalised, register_bytes, runs_on_amx};
pub(crate) use native::NativeStep;
pub(crate) use operands::{StepOperands, data_type};

use crate::native::elementwise::CpuContext;
use crate::prepare::{LayoutNeeds, PlanBuilder};
use stratus_engine::{Kernel, Step};

/// Properties of a step that runs on oneDNN, for planning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OneDnnUse {
    /// True if it is a pass of a convolution.
    pub is_convolution: bool,
    /// True if its channels fill the tiles of AMX, which is then several times faster than everything else.
    pub fills_amx_tiles: bool,
}

/// The CPU implementation of an engine kernel.
///
/// Most kernels implement only [`build`](Self::build): one native kernel for feature maps in any layout.
/// Kernels with several candidates, and those that decide the layouts of weights, implement
/// [`prepare`](Self::prepare).
pub(crate) trait CpuOp {
    /// Builds the native kernel for operands whose shapes
    /// [`KernelSpec::check`](stratus_engine::ops::KernelSpec::check) has checked.
    ///
    /// # Errors
    /// If these types or layouts are not supported.
    fn build(&self, _operands: &StepOperands, _cpu: &CpuContext) -> Result<NativeStep, String> {
        Err("no native kernel; it runs on oneDNN".to_owned())
    }

    /// Adds `step`, whose kernel this is, to the plan, with the layout changes it needs.
    ///
    /// # Errors
    /// If it cannot be run.
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        let measure = plan.compares_map_layouts();
        plan.add_native(step.clone(), measure)
    }

    /// Marks the operands that do not simply take the plan's layout of feature maps.
    fn layouts(&self, _step: &Step, _needs: &mut LayoutNeeds) {}

    /// Its use of oneDNN, if it runs there.
    fn onednn_use(&self) -> Option<OneDnnUse> {
        None
    }
}

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
