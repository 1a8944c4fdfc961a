//! Gradient clipping: all gradients are scaled by one factor, that of the norm of all of them, before any
//! parameter is updated.

use crate::common::{Probe, branches, digits, fuse, sgd};
use stratus_engine::ops::{ClipFactor, LOSS_SCALE_NAME};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::lower;
use stratus_engine::passes::micro_batch::micro_batches;
use stratus_engine::passes::update::{Optimisers, update_joined};
use stratus_engine::program::Mode;
use stratus_engine::{Kernel, Precision, Program, Role, ValueId};
use stratus_graph::Graph;

const BATCH: usize = 6;

fn differentiated(graph: &Graph, precision: Precision) -> Program {
    differentiate(&fuse(&lower(graph, Mode::Train, precision, BATCH).unwrap()).unwrap()).unwrap()
}

fn updated(differentiated: &Program, clip_norm: Option<f64>) -> Program {
    // Even the smallest layer would be updated where its gradient is made, if nothing had to wait.
    let large = if clip_norm.is_some() { 0 } else { usize::MAX };
    update_joined(differentiated, Optimisers { clip_norm, ..sgd().into() }, large).unwrap()
}

/// The gradients of the parameters, by the parameters' names, as the last run left them.
fn gradients(probe: &Probe) -> Vec<(String, Vec<f64>)> {
    let program = &probe.program;
    let parameters = (0..program.values.len()).map(ValueId);
    let trained = parameters.filter(|&id| program.value(id).role == Role::Parameter);
    let gradient = |id: ValueId| {
        let gradient = program.gradient_of(id).unwrap();
        (program.value(id).name.clone(), probe.read(&program.value(gradient).name))
    };
    trained.map(gradient).collect()
}

fn norm(gradients: &[(String, Vec<f64>)]) -> f64 {
    gradients.iter().flat_map(|(_, gradient)| gradient).map(|g| g * g).sum::<f64>().sqrt()
}

#[test]
fn updates_wait_for_the_norm() {
    for graph in [digits([2, 9, 8], 4, 3), branches()] {
        let whole = differentiated(&graph, Precision::F32);
        let parts = micro_batches(&whole, 2).unwrap();
        for program in [whole, parts] {
            let program = updated(&program, Some(1.0));
            let positions = |is: &dyn Fn(&Kernel) -> bool| -> Vec<usize> {
                (0..program.steps.len()).filter(|&step| is(&program.steps[step].kernel)).collect()
            };
            let sums = positions(&|kernel| matches!(kernel, Kernel::SumOfSquares(_)));
            let begun = positions(&|kernel| matches!(kernel, Kernel::SumOfSquares(sum) if sum.first));
            let factors = positions(&|kernel| matches!(kernel, Kernel::ClipFactor(_)));
            let clips = positions(&|kernel| matches!(kernel, Kernel::ClipGradient(_)));
            let updates = positions(&|kernel| matches!(kernel, Kernel::SgdUpdate(_)));
            let parameters = program.values.iter().filter(|value| value.role == Role::Parameter).count();
            assert_eq!([sums.len(), clips.len(), updates.len()], [parameters; 3]);
            assert_eq!((begun, factors.len()), (vec![sums[0]], 1));
            assert!(sums.last() < factors.first() && factors.last() < clips.first());
            assert!(clips.iter().zip(&updates).all(|(clip, update)| clip + 1 == *update));
            // Not even the largest layer is updated where its gradient is made.
            assert_eq!(positions(&|kernel| matches!(kernel, Kernel::LinearUpdate(_))), [0; 0]);
        }
    }
}

#[test]
fn all_gradients_are_scaled_by_one_factor() {
    // The scale of the loss is no part of the norm.
    for (precision, scale) in [(Precision::F64, 1.0), (Precision::F16, 256.0)] {
        for graph in [digits([2, 9, 8], 4, 3), branches()] {
            let program = differentiated(&graph, precision);
            let run = |clip_norm| {
                let mut probe = Probe::filled(&updated(&program, clip_norm));
                if probe.has(LOSS_SCALE_NAME) {
                    probe.write(LOSS_SCALE_NAME, &[-8.0, 0.0, 0.0, 0.0]);
                }
                probe.loss();
                probe
            };
            let whole = gradients(&run(None));
            let norm = norm(&whole);
            for max_norm in [norm / scale / 4.0, norm / scale * 1.5] {
                let clipped = run(Some(max_norm));
                let factor = ClipFactor { max_norm, scaled: false }.factor(norm * norm, scale);
                assert!((factor - 1.0_f64.min(max_norm * scale / norm)).abs() < 1e-3);
                let rounding = if precision == Precision::F64 { 1e-12 } else { 1e-6 };
                for ((name, clipped), (_, whole)) in gradients(&clipped).iter().zip(&whole) {
                    for (clipped, whole) in clipped.iter().zip(whole) {
                        assert!(
                            (clipped - factor * whole).abs() <= rounding * norm,
                            "{name}: {clipped} {whole}"
                        );
                    }
                }
            }
        }
    }
}

/// What an optimiser takes is the clipped gradient, to which it then adds the decay.
#[test]
fn updates_take_clipped_gradients() {
    let program = updated(&differentiated(&branches(), Precision::F64), Some(1e-3));
    let mut probe = Probe::filled(&program);
    let mut before = Vec::new();
    for (name, _) in gradients(&probe) {
        before.push([probe.read(&name), probe.read(&format!("{name}:momentum"))]);
    }
    probe.loss();
    let (momentum, decay) = (f64::from(0.9_f32), f64::from(1e-4_f32));
    for ((name, gradient), [parameter, velocity]) in gradients(&probe).into_iter().zip(before) {
        let after = probe.read(&format!("{name}:momentum"));
        for (i, gradient) in gradient.iter().enumerate() {
            let expected = momentum * velocity[i] + gradient + decay * parameter[i];
            assert!((after[i] - expected).abs() < 1e-12, "{name}");
        }
    }
    assert!((norm(&gradients(&probe)) - 1e-3).abs() < 1e-6);
}

/// As PyTorch's `clip_grad_norm_(error_if_nonfinite=False)`.
#[test]
fn a_norm_that_is_no_number_shows() {
    let program = updated(&differentiated(&branches(), Precision::F64), Some(1.0));
    let mut probe = Probe::filled(&program);
    let images = probe.read("images").len();
    probe.write("images", &vec![f64::NAN; images]);
    probe.loss();
    assert!(gradients(&probe).iter().flat_map(|(_, gradient)| gradient).all(|g| g.is_nan()));
}
