//! The names of the kernels of a batch norm, which say what is fused, except for `batch_norm_inference`.

use super::FusedActivation;
use stratus_graph::ops::Activation;

/// A kernel of a batch norm with fused operations.
#[derive(Clone, Copy)]
pub(super) enum NormKernel {
    Apply,
    Gradients,
    BackwardData,
    InferenceBackward,
}

/// The names of the four kernels: a prefix that says what is fused, and the kernel.
macro_rules! four {
    ($($prefix:literal)*) => {
        [
            concat!("batch_norm", $($prefix,)* "_apply"),
            concat!("batch_norm", $($prefix,)* "_gradients"),
            concat!("batch_norm", $($prefix,)* "_backward_data"),
            concat!("batch_norm", $($prefix,)* "_inference_backward"),
        ]
    };
}

macro_rules! names_of_table {
    ($($name:ident $kind:literal,)*) => {
        fn with_activation(activation: Activation) -> [&'static str; 4] {
            match activation { $(Activation::$name(_) => four!("_" $kind),)* }
        }
    };
}

stratus_graph::with_activations!(names_of_table);

/// The name of a kernel with this activation, and with pooling if `pooled`.
pub(super) fn name(kernel: NormKernel, activation: FusedActivation, pooled: bool) -> &'static str {
    let names = match (activation, pooled) {
        (FusedActivation::Identity, false) => four!(),
        (FusedActivation::Identity, true) => four!("_pool"),
        (FusedActivation::Relu { ceiling: None }, false) => four!("_relu"),
        (FusedActivation::Relu { .. }, true) => four!("_relu_pool"),
        (FusedActivation::Relu { ceiling: Some(_) }, false) => four!("_clipped_relu"),
        (FusedActivation::Activation(activation), _) => with_activation(activation),
    };
    names[kernel as usize]
}
