//! Fusion for inference: the fused program computes what the separate steps do.

use crate::common::{TestSession, fuse, training_program};
use stratus_engine::ops::{Conv2dInference, FusedActivation, KernelSpec};
use stratus_engine::passes::fuse::fuse_inference;
use stratus_engine::passes::lower::lower;
use stratus_engine::program::Mode;
use stratus_engine::{Kernel, Precision, Program, Role};
use stratus_graph::ops::{Gelu, HardSwish, Sigmoid, Silu};
use stratus_graph::{Graph, layer_file};

fn folded() -> Graph {
    layer_file::parse(include_str!("folded.toml")).unwrap()
}

/// The evaluation program before and after the fusion.
fn programs() -> [Program; 2] {
    let separate = fuse(&lower(&folded(), Mode::Evaluate, Precision::F32, 3).unwrap()).unwrap();
    let fused = fuse_inference(&separate).unwrap();
    [separate, fused]
}

#[test]
fn sums_and_activations_become_part_of_the_convolutions_before_them() {
    let [_, fused] = programs();
    let kernels: Vec<_> = (fused.steps.iter())
        .filter_map(|step| match step.kernel {
            Kernel::Conv2dInference(Conv2dInference { adds, activation, .. }) => {
                Some((fused.layer_name(step), adds, activation))
            }
            _ => None,
        })
        .collect();
    let [swish, silu] = [HardSwish.into(), Silu.into()].map(FusedActivation::Activation);
    let [sigmoid, gelu] = [Sigmoid.into(), Gelu.into()].map(FusedActivation::Activation);
    let expected = [
        ("stem+stem_swish", false, swish),
        ("expand+expand_silu", false, silu),
        ("depthwise+depthwise_clipped", false, FusedActivation::Relu { ceiling: Some(6.0) }),
        ("excite+gate", false, sigmoid),
        ("project+project_sum", true, FusedActivation::Identity),
        ("main+block_sum+block_relu", true, FusedActivation::RELU),
        ("last+last_sum+last_gelu", true, gelu),
    ];
    let expected = expected.map(|(layers, adds, activation)| (layers.to_owned(), adds, activation));
    assert_eq!(kernels, expected);
    let names: Vec<_> = fused.steps.iter().map(|step| step.kernel.name()).collect();
    let count = |name: &str| names.iter().filter(|other| **other == name).count();
    // Those of the shortcut, of the map that is read twice, and of the sum with its own input.
    assert_eq!(
        (count("conv2d_forward"), count("add_forward"), count("tanh_forward")),
        (3, 2, 1),
        "{names:?}"
    );
}

#[test]
fn the_fused_program_computes_what_the_separate_steps_do() {
    let logits = programs().map(|mut program| {
        let output = program.values.iter().position(|value| value.name == "fc:y").unwrap();
        program.values[output].role = Role::Observed;
        let mut test = TestSession::filled(&program);
        test.loss();
        test.read("fc:y")
    });
    let [separate, fused] = &logits;
    assert!(separate.iter().any(|value| value.abs() > 0.01), "{separate:?}");
    for (a, b) in separate.iter().zip(fused) {
        assert!((a - b).abs() <= 1e-5 * a.abs().max(1.0), "{separate:?} and {fused:?}");
    }
}

/// An observed map is written, so the step that writes it stays.
#[test]
fn an_observed_map_is_kept() {
    let [mut separate, _] = programs();
    for name in ["expand:y", "main:y"] {
        let map = separate.values.iter().position(|value| value.name == name).unwrap();
        separate.values[map].role = Role::Observed;
    }
    let fused = fuse_inference(&separate).unwrap();
    let layers: Vec<String> = fused.steps.iter().map(|step| fused.layer_name(step)).collect();
    for layer in ["expand", "expand_silu", "main"] {
        assert!(layers.iter().any(|other| other == layer), "{layer}: {layers:?}");
    }
}

#[test]
fn a_training_program_is_refused() {
    let program = training_program(&folded(), Precision::F32, 3);
    let error = fuse_inference(&program).unwrap_err().to_string();
    assert!(error.contains("evaluation program"), "{error}");
}

#[test]
fn kernels_survive_a_round_trip() {
    let [_, fused] = programs();
    for step in &fused.steps {
        let text = serde_json::to_string(&step.kernel).unwrap();
        assert_eq!(serde_json::from_str::<Kernel>(&text).unwrap(), step.kernel, "{text}");
    }
}
