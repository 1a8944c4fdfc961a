//! Activations behind batch norms, and squeeze-and-excitation: the fused steps have the gradients of the
//! separate ones.

use crate::common::{CheckCounts, check_gradient, fuse};
use crate::gradients::{differentiated, network};
use stratus_engine::ops::{BatchNormApply, ChannelOffsets, FusedActivation, KernelSpec};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::lower;
use stratus_engine::program::Mode;
use stratus_engine::{Kernel, Precision, Program};
use stratus_graph::ops::{Activation, BatchNorm2d};
use stratus_graph::{Graph, layer_file};

fn excited() -> Graph {
    layer_file::parse(include_str!("excited.toml")).unwrap()
}

fn names(program: &Program) -> Vec<&'static str> {
    program.steps.iter().map(|step| step.kernel.name()).collect()
}

#[test]
fn activations_behind_norms_are_fused_in_training_and_evaluation() {
    for (mode, suffix) in [(Mode::Train, "_apply"), (Mode::Evaluate, "_inference")] {
        let program = fuse(&lower(&excited(), mode, Precision::F32, 4).unwrap()).unwrap();
        let names = names(&program);
        if mode == Mode::Train {
            for activation in ["silu", "hard_swish", "clipped_relu", "mish"] {
                assert!(names.contains(&format!("batch_norm_{activation}{suffix}").as_str()), "{names:?}");
            }
        }
        // Those that no norm precedes stay steps of their own.
        let alone: Vec<&&str> = names.iter().filter(|name| name.ends_with("_forward")).collect();
        for activation in ["silu", "hard_swish", "clipped_relu", "mish"] {
            assert!(!alone.contains(&&format!("{activation}_forward").as_str()), "{names:?}");
        }
        assert!(alone.contains(&&"tanh_forward") && alone.contains(&&"sigmoid_forward"), "{names:?}");
    }
}

/// Both terms of the gradient of a scaled map are one step, and no sum is left.
#[test]
fn gradients_of_squeeze_and_excitation_take_one_pass() {
    let forward = fuse(&lower(&excited(), Mode::Train, Precision::F32, 4).unwrap()).unwrap();
    let names = names(&differentiate(&forward).unwrap());
    assert!(names.contains(&"channel_scale_mean_backward"), "{names:?}");
    for name in ["adaptive_avg_pool_backward", "accumulate", "silu_backward", "mish_backward"] {
        assert!(!names.contains(&name), "{name} in {names:?}");
    }
}

#[test]
fn gradients_match_differences_and_those_of_separate_steps() {
    let graph = excited();
    let [mut separate, mut fused] = [false, true].map(|fused| network(&graph, fused));
    let names = differentiated(&fused);
    assert_eq!(names, differentiated(&separate));
    let mut checked = CheckCounts::default();
    for name in &names {
        check_gradient(&mut fused, name, 12, &mut checked);
    }
    assert!(checked.agreed > 90 && checked.kinks * 20 < checked.agreed && checked.zero == 0, "{checked:?}");
    assert_eq!(separate.loss(), fused.loss());
    for name in &names {
        for (a, b) in separate.read_gradient(name).into_iter().zip(fused.read_gradient(name)) {
            assert!((a - b).abs() <= 1e-12 * a.abs().max(1.0), "{name}: {a} and {b}");
        }
    }
}

/// Plans of earlier versions have `"relu": true` or `false`.
#[test]
fn kernels_with_activations_survive_a_round_trip_and_earlier_plans_stay_readable() {
    let kernel = |activation| {
        let (norm, offsets) = (BatchNorm2d::new(8), ChannelOffsets::default());
        Kernel::from(BatchNormApply { norm, activation, pool: None, offsets })
    };
    let table = Activation::examples().into_iter().filter_map(FusedActivation::behind_norm);
    let others = [FusedActivation::Identity, FusedActivation::RELU];
    let clipped = FusedActivation::Relu { ceiling: Some(6.0) };
    for activation in table.chain(others).chain([clipped]) {
        let kernel = kernel(activation);
        let text = serde_json::to_string(&kernel).unwrap();
        assert_eq!(serde_json::from_str::<Kernel>(&text).unwrap(), kernel, "{text}");
    }
    for (relu, activation) in [(false, FusedActivation::Identity), (true, FusedActivation::RELU)] {
        let mut stored = serde_json::to_value(kernel(activation)).unwrap();
        let fields = stored["batch_norm_apply"].as_object_mut().unwrap();
        fields.remove("activation").unwrap();
        fields.insert("relu".to_owned(), relu.into());
        assert_eq!(serde_json::from_value::<Kernel>(stored).unwrap(), kernel(activation));
    }
}
