//! A network with transposed convolutions and spatial dropout: what becomes of it.

use crate::common::{decoder, training_program};
use stratus_engine::{Kernel, Phase, Precision, Role};

#[test]
fn training_program_in_bf16() {
    insta::assert_snapshot!(training_program(&decoder(), Precision::Bf16, 4).dump());
}

/// What is a gradient elsewhere is counted to the forward pass here, and the other way round.
#[test]
fn phases_are_those_of_the_layer() {
    let program = training_program(&decoder(), Precision::Bf16, 4);
    let phases = |layer: &str| -> Vec<(Phase, &'static str)> {
        let steps = program.steps.iter().filter(|step| program.layer_name(step) == layer);
        steps.map(|step| (step.phase, stratus_engine::ops::KernelSpec::name(&step.kernel))).collect()
    };
    assert_eq!(
        phases("up2")[..5],
        [
            (Phase::Forward, "conv2d_backward_data"),
            (Phase::Forward, "add_bias"),
            (Phase::BackwardWeights, "bias_gradient"),
            (Phase::Update, "sgd_update"),
            (Phase::BackwardData, "conv2d_forward"),
        ]
    );
    // Kernels read the weight's bf16 copy, which the update renews.
    for step in program.steps.iter().filter(|step| matches!(step.kernel, Kernel::Conv2dBackwardData(_))) {
        assert_eq!(program.value(step.inputs[1]).role, Role::Copy);
    }
}
