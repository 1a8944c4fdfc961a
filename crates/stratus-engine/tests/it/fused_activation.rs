//! Activations after batch norms, and squeeze-and-excitation: the fused steps have the gradients of the
//! separate ones.

use crate::common::{CheckCounts, check_gradient, fuse};
use crate::gradients::{differentiated, network};
use stratus_engine::ops::{BatchNormApply, ChannelOffsets, FusedActivation, KernelSpec};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::lower;
use stratus_engine::program::Mode;
use stratus_engine::{Kernel, Precision, Program};
use stratus_graph::ops::{Activation, BatchNorm2d, HardSwish, Mish, Silu};
use stratus_graph::{Graph, layer_file};

fn excited() -> Graph {
    layer_file::parse(include_str!("excited.toml")).unwrap()
}

fn names(program: &Program) -> Vec<&'static str> {
    program.steps.iter().map(|step| step.kernel.name()).collect()
}

#[test]
fn activations_after_norms_are_fused_in_training_and_evaluation() {
    for mode in [Mode::Train, Mode::Evaluate] {
        let program = fuse(&lower(&excited(), mode, Precision::F32, 4).unwrap()).unwrap();
        let fused: Vec<FusedActivation> = (program.steps.iter())
            .filter_map(|step| match step.kernel {
                Kernel::BatchNormApply(norm) => Some(norm.activation),
                Kernel::BatchNormInference(norm) => Some(norm.activation),
                _ => None,
            })
            .collect();
        let clipped = FusedActivation::Relu { ceiling: Some(6.0) };
        let [silu, swish, mish] =
            [Silu.into(), HardSwish.into(), Mish.into()].map(FusedActivation::Activation);
        assert_eq!(fused, [silu, swish, clipped, mish], "{mode:?}");
        // Those that no norm precedes stay steps of their own.
        let names = names(&program);
        let alone: Vec<_> = ["tanh", "sigmoid", "silu", "hard_swish", "clipped_relu", "mish"]
            .into_iter()
            .filter(|name| names.contains(&format!("{name}_forward").as_str()))
            .collect();
        assert_eq!(alone, ["tanh", "sigmoid"], "{mode:?}");
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

/// A step between the two terms changes the gradient that the first one reads: they stay separate.
#[test]
fn terms_of_squeeze_and_excitation_stay_separate_if_their_gradient_changes_between() {
    let layer =
        |name: &str, op: &str, rest: &str| format!("[[layer]]\nname = \"{name}\"\nop = \"{op}\"\n{rest}\n");
    let conv = |name: &str, input: &str, kernel: usize| {
        let rest = format!("inputs = [\"{input}\"]\nout_channels = 3\nkernel = {kernel}");
        layer(name, "conv2d", &rest)
    };
    let text = "name = \"between\"\ninput = [2, 4, 4]\noutput = \"fc\"\n".to_owned()
        + &conv("x", "input", 1)
        + &conv("a", "input", 1)
        + &layer("mean", "adaptive_avg_pool2d", "inputs = [\"x\"]\noutput = 1")
        + &layer("gate", "sigmoid", "")
        + &conv("c", "a", 1)
        + &layer("scale", "channel_scale", "inputs = [\"x\", \"gate\"]")
        + &layer("sum", "add", "inputs = [\"scale\", \"a\"]")
        + &conv("p", "sum", 1)
        + &conv("q", "c", 1)
        + &layer("total", "add", "inputs = [\"p\", \"q\"]")
        + &layer("flatten", "flatten", "")
        + &layer("fc", "linear", "out_features = 3");
    let graph = layer_file::parse(&text).unwrap();
    let forward = fuse(&lower(&graph, Mode::Train, Precision::F32, 4).unwrap()).unwrap();
    let names = names(&differentiate(&forward).unwrap());
    assert!(names.contains(&"adaptive_avg_pool_backward"), "{names:?}");
    let mut test = network(&graph, true);
    let mut checked = CheckCounts::default();
    for name in differentiated(&test) {
        check_gradient(&mut test, &name, 12, &mut checked);
    }
    assert!(checked.agreed > 30 && checked.zero == 0, "{checked:?}");
}

/// Plans of earlier versions have `"relu": true` or `false`.
#[test]
fn kernels_with_activations_survive_a_round_trip_and_earlier_plans_stay_readable() {
    let kernel = |activation| {
        let (norm, offsets) = (BatchNorm2d::new(8), ChannelOffsets::default());
        Kernel::from(BatchNormApply { norm, activation, pool: None, offsets })
    };
    let table = Activation::examples().into_iter().filter_map(FusedActivation::after_norm);
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
