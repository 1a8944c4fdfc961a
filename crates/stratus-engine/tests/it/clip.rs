//! Gradient clipping: all gradients are scaled by one factor, determined by their global norm, before any
//! parameter is updated.

use crate::common::{TestSession, branches, digits, fuse, sgd};
use stratus_engine::ops::{ClipFactor, LOSS_SCALE_NAME};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::lower;
use stratus_engine::passes::micro_batch::split_into_micro_batches;
use stratus_engine::passes::update::{Optimisers, update_with_threshold};
use stratus_engine::program::Mode;
use stratus_engine::{Kernel, Precision, Program, Role, ValueId};
use stratus_graph::Graph;

const BATCH: usize = 6;

fn differentiated(graph: &Graph, precision: Precision) -> Program {
    differentiate(&fuse(&lower(graph, Mode::Train, precision, BATCH).unwrap()).unwrap()).unwrap()
}

fn updated(differentiated: &Program, clip_norm: Option<f64>) -> Program {
    // Without clipping, even the smallest layer would be updated in the step of its gradient.
    let large = if clip_norm.is_some() { 0 } else { usize::MAX };
    update_with_threshold(differentiated, Optimisers { clip_norm, ..sgd().into() }, large).unwrap()
}

/// The gradients of the parameters, by parameter name, after the last run.
fn gradients(test: &TestSession) -> Vec<(String, Vec<f64>)> {
    let program = &test.program;
    let parameters = (0..program.values.len()).map(ValueId);
    let trained = parameters.filter(|&id| program.value(id).role == Role::Parameter);
    let gradient = |id: ValueId| {
        let gradient = program.gradient_of(id).unwrap();
        (program.value(id).name.clone(), test.read(&program.value(gradient).name))
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
        let parts = split_into_micro_batches(&whole, 2).unwrap();
        for program in [whole, parts] {
            let program = updated(&program, Some(1.0));
            let positions = |is: &dyn Fn(&Kernel) -> bool| -> Vec<usize> {
                (0..program.steps.len()).filter(|&step| is(&program.steps[step].kernel)).collect()
            };
            let sums = positions(&|kernel| matches!(kernel, Kernel::SumOfSquares(_)));
            let first_sums = positions(&|kernel| matches!(kernel, Kernel::SumOfSquares(sum) if sum.first));
            let factors = positions(&|kernel| matches!(kernel, Kernel::ClipFactor(_)));
            let clips = positions(&|kernel| matches!(kernel, Kernel::ClipGradient(_)));
            let updates = positions(&|kernel| matches!(kernel, Kernel::SgdUpdate(_)));
            let parameters = program.values.iter().filter(|value| value.role == Role::Parameter).count();
            assert_eq!([sums.len(), clips.len(), updates.len()], [parameters; 3]);
            assert_eq!((first_sums, factors.len()), (vec![sums[0]], 1));
            assert!(sums.last() < factors.first() && factors.last() < clips.first());
            assert!(clips.iter().zip(&updates).all(|(clip, update)| clip + 1 == *update));
            // Not even the largest layer is updated in the step of its gradient.
            assert_eq!(positions(&|kernel| matches!(kernel, Kernel::LinearUpdate(_))), [0; 0]);
        }
    }
}

#[test]
fn all_gradients_are_scaled_by_one_factor() {
    // The norm is independent of the loss scale.
    for (precision, scale) in [(Precision::F64, 1.0), (Precision::F16, 256.0)] {
        for graph in [digits([2, 9, 8], 4, 3), branches()] {
            let program = differentiated(&graph, precision);
            let run = |clip_norm| {
                let mut test = TestSession::filled(&updated(&program, clip_norm));
                if test.has(LOSS_SCALE_NAME) {
                    test.write(LOSS_SCALE_NAME, &[-8.0, 0.0, 0.0, 0.0]);
                }
                test.loss();
                test
            };
            let whole = gradients(&run(None));
            let norm = norm(&whole);
            for max_norm in [norm / scale / 4.0, norm / scale * 1.5] {
                let clipped = run(Some(max_norm));
                let factor = ClipFactor { max_norm, loss_scaled: false }.factor(norm * norm, scale);
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

/// Optimisers use the clipped gradient and then add weight decay.
#[test]
fn updates_use_clipped_gradients() {
    let program = updated(&differentiated(&branches(), Precision::F64), Some(1e-3));
    let mut test = TestSession::filled(&program);
    let mut before = Vec::new();
    for (name, _) in gradients(&test) {
        before.push([test.read(&name), test.read(&format!("{name}:momentum"))]);
    }
    test.loss();
    let (momentum, decay) = (f64::from(0.9_f32), f64::from(1e-4_f32));
    for ((name, gradient), [parameter, velocity]) in gradients(&test).into_iter().zip(before) {
        let after = test.read(&format!("{name}:momentum"));
        for (i, gradient) in gradient.iter().enumerate() {
            let expected = momentum * velocity[i] + gradient + decay * parameter[i];
            assert!((after[i] - expected).abs() < 1e-12, "{name}");
        }
    }
    assert!((norm(&gradients(&test)) - 1e-3).abs() < 1e-6);
}

/// As in PyTorch's `clip_grad_norm_(error_if_nonfinite=False)`.
#[test]
fn nan_norm_makes_gradients_nan() {
    let program = updated(&differentiated(&branches(), Precision::F64), Some(1.0));
    let mut test = TestSession::filled(&program);
    let images = test.read("images").len();
    test.write("images", &vec![f64::NAN; images]);
    test.loss();
    assert!(gradients(&test).iter().flat_map(|(_, gradient)| gradient).all(|g| g.is_nan()));
}
