//! How each operation runs on this backend, a file per operation: its candidates among oneDNN's
//! implementations and native kernels, or its one native kernel. Operands are a step's inputs, updates and
//! outputs, in this order.

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
mod relu;
mod resize;
mod scale;
mod sgd;
mod stem;

pub(crate) use candidates::{Candidate, Implementation, KernelBuilder, NATIVE_PREFIX, REORDERED};
pub(crate) use convert::transfer;
pub(crate) use implementations::{is_fallback, is_generalised, register_bytes, runs_on_amx};
pub(crate) use native::NativeStep;
pub(crate) use operands::{StepOperands, data_type};

use crate::native::elementwise::CpuContext;
use crate::prepare::{LayoutNeeds, PlanBuilder};
use stratus_engine::{Kernel, Step};

/// What planning has to know of a kernel that oneDNN runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LibraryUse {
    /// Whether it is a pass of a convolution.
    pub is_convolution: bool,
    /// Whether its channels fill the tiles of AMX, which then multiply several times as fast as anything
    /// else.
    pub fills_amx_tiles: bool,
}

/// An engine kernel on this backend.
///
/// Most kernels implement [`build`](Self::build) alone: one native kernel for feature maps in the layouts
/// they have. Kernels with several candidates, and those that decide the layouts of weights, implement
/// [`prepare`](Self::prepare).
pub(crate) trait OnCpu {
    /// Makes the native kernel for operands whose shapes
    /// [`KernelSpec::check`](stratus_engine::ops::KernelSpec::check) has checked.
    ///
    /// # Errors
    /// Why there is none for these types or layouts.
    fn build(&self, _operands: &StepOperands, _cpu: &CpuContext) -> Result<NativeStep, String> {
        Err("it runs on oneDNN".to_owned())
    }

    /// Adds `step`, whose kernel this is, to the plan, with the layout changes it needs.
    ///
    /// # Errors
    /// Why it cannot be run.
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        let measure = plan.compares_map_layouts();
        plan.add_native(step.clone(), measure)
    }

    /// Says which operands do not simply take the plan's layout of feature maps.
    fn layouts(&self, _step: &Step, _needs: &mut LayoutNeeds) {}

    /// How oneDNN runs it, where it does.
    fn library(&self) -> Option<LibraryUse> {
        None
    }
}

macro_rules! dispatch {
    ($($name:ident),* $(,)?) => {
        /// The implementation of [`OnCpu`] for a step's kernel.
        pub(crate) fn on_cpu(kernel: &Kernel) -> &dyn OnCpu {
            match kernel {
                $(Kernel::$name(kernel) => kernel,)*
            }
        }
    };
}

stratus_engine::with_kernels!(dispatch);
