//! The native kernels, in CUDA C, compiled when a plan needs them: by NVRTC for the GPU, in tests by a C++
//! compiler.

/// Generates the end of `activation.cu`: the kernels of every activation and their exports.
macro_rules! activation_kernels {
    ($($name:ident $kind:literal,)*) => {
        concat!($(
            "ACTIVATION(", $kind, ")\n",
            "EXPORT(", $kind, "_forward)\n",
            "EXPORT(", $kind, "_backward)\n",
        )*)
    };
}

/// The text of a file, by its name without its extension, with the files that it includes. A file of one
/// operation that needs no other file is not listed: [`Source::of_text`](crate::processor::Source::of_text).
#[must_use]
pub(crate) fn text(file: &str) -> Option<&'static str> {
    let files = [
        ("common", include_str!("common.cu")),
        (
            "activation",
            concat!(
                include_str!("elementwise_common.cu"),
                include_str!("activation_functions.cu"),
                include_str!("activation.cu"),
                stratus_graph::with_activations!(activation_kernels)
            ),
        ),
        ("adaptive", concat!(include_str!("loss_scale_common.cu"), include_str!("adaptive.cu"))),
        (
            "batch_norm",
            concat!(
                include_str!("activation_functions.cu"),
                include_str!("batch_norm_common.cu"),
                include_str!("batch_norm.cu")
            ),
        ),
        (
            "batch_norm_pool",
            concat!(
                include_str!("activation_functions.cu"),
                include_str!("batch_norm_common.cu"),
                include_str!("batch_norm_pool.cu")
            ),
        ),
        (
            "batch_norm_sums",
            concat!(
                include_str!("activation_functions.cu"),
                include_str!("batch_norm_common.cu"),
                include_str!("batch_norm_sums.cu")
            ),
        ),
        ("batch_norm_from_sums", include_str!("batch_norm_from_sums.cu")),
        ("channel_scale", include_str!("channel_scale.cu")),
        ("channels", include_str!("channels.cu")),
        ("clip", concat!(include_str!("loss_scale_common.cu"), include_str!("clip.cu"))),
        ("concat", include_str!("concat.cu")),
        ("conv", include_str!("conv.cu")),
        (
            "conv_first",
            concat!(
                include_str!("tensor_cores.cu"),
                include_str!("conv_first_common.cu"),
                include_str!("conv_first.cu")
            ),
        ),
        (
            "conv_first_gradient",
            concat!(
                include_str!("tensor_cores.cu"),
                include_str!("conv_gradient_common.cu"),
                include_str!("conv_first_common.cu"),
                include_str!("conv_first_gradient.cu")
            ),
        ),
        ("conv_f32", concat!(include_str!("tensor_cores.cu"), include_str!("conv_f32.cu"))),
        (
            "conv_gradient",
            concat!(
                include_str!("tensor_cores.cu"),
                include_str!("conv_gradient_common.cu"),
                include_str!("conv_gradient.cu")
            ),
        ),
        (
            "conv_gradient_hopper",
            concat!(
                include_str!("tensor_cores.cu"),
                include_str!("hopper.cu"),
                include_str!("conv_gradient_common.cu"),
                include_str!("conv_gradient_hopper.cu")
            ),
        ),
        ("depthwise", concat!(include_str!("depthwise_common.cu"), include_str!("depthwise.cu"))),
        (
            "depthwise_weights",
            concat!(include_str!("depthwise_common.cu"), include_str!("depthwise_weights.cu")),
        ),
        ("distillation", concat!(include_str!("loss_scale_common.cu"), include_str!("distillation.cu"))),
        ("dropout", include_str!("dropout.cu")),
        ("elementwise", concat!(include_str!("elementwise_common.cu"), include_str!("elementwise.cu"))),
        ("ema", include_str!("ema.cu")),
        ("layer_norm", include_str!("layer_norm.cu")),
        ("linear", include_str!("linear.cu")),
        ("loss", concat!(include_str!("loss_scale_common.cu"), include_str!("loss.cu"))),
        ("loss_scale", concat!(include_str!("loss_scale_common.cu"), include_str!("loss_scale.cu"))),
        ("mark", include_str!("mark.cu")),
        ("label_counts", include_str!("label_counts.cu")),
        (
            "output_distillation",
            concat!(include_str!("loss_scale_common.cu"), include_str!("output_distillation.cu")),
        ),
        ("pixel_loss", concat!(include_str!("loss_scale_common.cu"), include_str!("pixel_loss.cu"))),
        ("pixels", include_str!("pixels.cu")),
        ("pool", include_str!("pool.cu")),
        ("prelu", concat!(include_str!("elementwise_common.cu"), include_str!("prelu.cu"))),
        ("resize", include_str!("resize.cu")),
        ("stem", include_str!("stem.cu")),
        ("target_loss", concat!(include_str!("loss_scale_common.cu"), include_str!("target_loss.cu"))),
        ("update", concat!(include_str!("loss_scale_common.cu"), include_str!("update.cu"))),
    ];
    files.into_iter().find(|(name, _)| *name == file).map(|(_, text)| text)
}

/// Returns whether a file uses instructions that only GPUs of compute capability 9.0 have.
#[must_use]
pub(crate) fn is_for_hopper(file: &str) -> bool {
    file == "conv_gradient_hopper"
}
