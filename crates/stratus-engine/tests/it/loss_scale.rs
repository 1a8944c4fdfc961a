//! Training in f16: the loss is scaled, and an overflow skips all updates.

use crate::common::{ITERATION_SCALARS, TestSession, branches, digits, fuse, sgd};
use stratus_engine::ops::{Adaptive, AdaptiveUpdate, KernelSpec, LOSS_SCALE_NAME};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::lower;
use stratus_engine::passes::micro_batch::split_into_micro_batches;
use stratus_engine::passes::recompute::recompute;
use stratus_engine::passes::update::{MIN_FUSED_UPDATE_WEIGHTS, Optimiser, update, update_with_threshold};
use stratus_engine::program::Mode;
use stratus_engine::{Kernel, Phase, Precision, Program, Role, ValueId};
use stratus_graph::Graph;

const BATCH: usize = 6;

fn adam() -> Optimiser {
    let rule = Adaptive::Adam { betas: [0.9, 0.999], epsilon: 1e-8, decoupled: false };
    Optimiser::Adaptive(AdaptiveUpdate { rule, weight_decay: 1e-3, rate_factor: 1.0, loss_scaled: false })
}

fn differentiated(graph: &Graph, precision: Precision) -> Program {
    differentiate(&fuse(&lower(graph, Mode::Train, precision, BATCH).unwrap()).unwrap()).unwrap()
}

fn program(graph: &Graph, precision: Precision, optimiser: Optimiser) -> Program {
    update(&differentiated(graph, precision), optimiser).unwrap()
}

/// The values that an optimiser changes, with their contents.
fn trained(test: &TestSession) -> Vec<(String, Vec<f64>)> {
    let is_trained = |role| matches!(role, Role::Parameter | Role::ComputeCopy | Role::OptimiserState);
    let values = test.program.values.iter().filter(|value| is_trained(value.role));
    let values = values.filter(|value| value.name != LOSS_SCALE_NAME);
    values.map(|value| (value.name.clone(), test.read(&value.name))).collect()
}

/// A session with zero optimiser state, as at the start of a run.
fn fresh(program: &Program) -> TestSession {
    let mut test = TestSession::filled(program);
    for value in &program.values {
        if value.role == Role::OptimiserState {
            test.write(&value.name, &vec![0.0; value.elements()]);
        }
    }
    test
}

/// Refreshes the copies of parameters.
fn equal_copies(test: &mut TestSession) {
    let program = test.program.clone();
    for (id, copy) in program.values.iter().enumerate().filter(|(_, value)| value.role == Role::ComputeCopy) {
        let master = program.master_of(ValueId(id));
        test.write(&copy.name, &test.read(&program.value(master).name));
    }
}

/// A scale without overflow in these networks of random parameters.
const SMALL: [f64; 4] = [-8.0, 0.0, 0.0, 0.0];

#[test]
fn updates_wait_for_all_gradients() {
    for graph in [digits([2, 9, 8], 4, 3), branches()] {
        let whole = differentiated(&graph, Precision::F16);
        let parts = split_into_micro_batches(&whole, 2).unwrap();
        for program in [whole, parts] {
            // Not even the largest layer is updated in the step of its gradient.
            for min_fused_weights in [0, MIN_FUSED_UPDATE_WEIGHTS] {
                let program = update_with_threshold(&program, sgd(), min_fused_weights).unwrap();
                let positions = |is: &dyn Fn(&Kernel) -> bool| -> Vec<usize> {
                    (0..program.steps.len()).filter(|&step| is(&program.steps[step].kernel)).collect()
                };
                let searches = positions(&|kernel| matches!(kernel, Kernel::FindOverflow(_)));
                let updates = positions(&|kernel| matches!(kernel, Kernel::SgdUpdate(k) if k.loss_scaled));
                let adjusts = positions(&|kernel| matches!(kernel, Kernel::AdjustLossScale(_)));
                let parameters = program.values.iter().filter(|value| value.role == Role::Parameter).count();
                assert_eq!([searches.len(), updates.len(), adjusts.len()], [parameters, parameters, 1]);
                assert!(searches.last() < updates.first() && updates.last() < adjusts.first());
                assert_eq!(positions(&|kernel| matches!(kernel, Kernel::LinearUpdate(_))), [0; 0]);
                let backward = [Phase::BackwardData, Phase::BackwardWeights];
                let last = program.steps.iter().rposition(|step| backward.contains(&step.phase));
                assert!(last.as_ref() < updates.first());
            }
        }
    }
}

#[test]
fn other_precisions_have_no_loss_scale() {
    for precision in [Precision::F32, Precision::Bf16, Precision::F64] {
        assert_eq!(program(&branches(), precision, sgd()).find(LOSS_SCALE_NAME), None);
    }
    let evaluation = lower(&branches(), Mode::Evaluate, Precision::F16, BATCH).unwrap();
    assert_eq!(evaluation.find(LOSS_SCALE_NAME), None);
}

/// Updates are independent of the loss scale: a step equals that in double precision, except for the rounding
/// of activations.
#[test]
fn updates_match_double_precision() {
    for graph in [digits([2, 9, 8], 4, 3), digits([1, 12, 12], 4, 5)] {
        let [mut half, mut double] =
            [Precision::F16, Precision::F64].map(|precision| fresh(&program(&graph, precision, sgd())));
        equal_copies(&mut half);
        half.write(LOSS_SCALE_NAME, &SMALL);
        for (id, value) in half.program.values.clone().into_iter().enumerate() {
            let is_given = value.role.is_persistent() || value.name == "images";
            if is_given && double.has(&value.name) && !half.program.is_gradient(ValueId(id)) {
                double.write(&value.name, &half.read(&value.name));
            }
        }
        let before = trained(&half);
        let [loss, exact] = [&mut half, &mut double].map(TestSession::loss);
        assert!((loss - exact).abs() < 1e-2 * exact, "{loss} {exact}");
        assert!(half.read(LOSS_SCALE_NAME) == [SMALL[0], 1.0, 0.0, 0.0]);
        for (name, before) in before.into_iter().filter(|(name, _)| !name.contains(':')) {
            let [half, double] = [&half, &double].map(|test| -> Vec<f64> {
                test.read(&name).iter().zip(&before).map(|(after, before)| after - before).collect()
            });
            let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
            let difference: Vec<f64> = half.iter().zip(&double).map(|(a, b)| a - b).collect();
            let [difference, all] = [norm(&difference), norm(&double)];
            assert!(difference <= 3e-2 * all + 1e-5, "{} {name}: {difference} of {all}", graph.name);
        }
    }
}

#[test]
fn overflow_skips_all_updates_of_one_iteration() {
    for (graph, optimisers) in [(digits([2, 9, 8], 4, 3), [sgd(), adam()].as_slice()), (branches(), &[sgd()])]
    {
        for &optimiser in optimisers {
            let program = program(&graph, Precision::F16, optimiser);
            let mut test = fresh(&program);
            equal_copies(&mut test);
            let before = trained(&test);
            // 2^32 times a gradient of 0.25 overflows f16.
            test.write(LOSS_SCALE_NAME, &[16.0, 5.0, 0.0, 0.0]);
            let loss = test.loss();
            assert!(loss.is_finite());
            assert_eq!(test.read(LOSS_SCALE_NAME), [15.0, 0.0, 0.0, 1.0]);
            assert!(trained(&test) == before);
            // As if the iteration had not happened: Adam does not count it.
            let mut other = fresh(&program);
            for (name, values) in &before {
                other.write(name, values);
            }
            if optimiser == adam() {
                let [rate, iteration, low, high] = ITERATION_SCALARS;
                other.write("hyper", &[rate, iteration - 1.0, low, high]);
            }
            test.write(LOSS_SCALE_NAME, &[SMALL[0], 0.0, 0.0, 1.0]);
            other.write(LOSS_SCALE_NAME, &SMALL);
            for test in [&mut test, &mut other] {
                test.loss();
            }
            assert!(trained(&test) == trained(&other), "{}", graph.name);
            assert!(trained(&test) != before);
        }
    }
}

/// Recomputed activations, and gradients that are sums over parts of a batch.
#[test]
fn supports_recomputation_and_micro_batches() {
    let graph = branches();
    let whole = differentiated(&graph, Precision::F16);
    let expected = {
        let mut test = fresh(&update(&whole, sgd()).unwrap());
        test.write(LOSS_SCALE_NAME, &SMALL);
        test.loss();
        trained(&test)
    };
    let mut again = fresh(&update(&recompute(&whole, 0).unwrap(), sgd()).unwrap());
    again.write(LOSS_SCALE_NAME, &SMALL);
    again.loss();
    for (name, expected) in expected {
        assert!(again.read(&name) == expected, "{name}");
    }
    let half = differentiate(&fuse(&lower(&graph, Mode::Train, Precision::F16, BATCH / 2).unwrap()).unwrap());
    let mut parts = fresh(&update(&split_into_micro_batches(&half.unwrap(), 2).unwrap(), sgd()).unwrap());
    parts.write(LOSS_SCALE_NAME, &SMALL);
    parts.loss();
    assert!(parts.read(LOSS_SCALE_NAME) == [SMALL[0], 1.0, 0.0, 0.0]);
    assert!(trained(&parts).iter().flat_map(|(_, values)| values).all(|value| value.is_finite()));
}

#[test]
fn kernels_reject_invalid_operands() {
    let error = program(&digits([2, 9, 8], 4, 3), Precision::F16, sgd());
    let step = error.steps.iter().find(|step| matches!(step.kernel, Kernel::SgdUpdate(_))).unwrap();
    let operands: Vec<_> = step.operands().map(|id| error.value(id)).collect();
    let counts = [step.inputs.len() - 1, step.updates.len(), step.outputs.len()];
    let without = [&operands[..2], &operands[3..]].concat();
    insta::assert_snapshot!(step.kernel.check(&without, counts).unwrap_err());
    let mut other = operands[2].clone();
    other.shape = vec![3];
    let with = [&operands[..2], &[&other], &operands[3..]].concat();
    let counts = [step.inputs.len(), step.updates.len(), step.outputs.len()];
    insta::assert_snapshot!(step.kernel.check(&with, counts).unwrap_err());
    // A fused update cannot wait for other gradients.
    let fused =
        update_with_threshold(&differentiated(&digits([2, 9, 8], 4, 3), Precision::F32), sgd(), 0).unwrap();
    let step = fused.steps.iter().find(|step| matches!(step.kernel, Kernel::LinearUpdate(_))).unwrap();
    let operands: Vec<_> = step.operands().map(|id| fused.value(id)).collect();
    let counts = [step.inputs.len(), step.updates.len(), step.outputs.len()];
    let mut kernel = step.kernel.clone();
    assert_eq!(kernel.check(&operands, counts), Ok(()));
    if let Kernel::LinearUpdate(update) = &mut kernel {
        update.sgd.loss_scaled = true;
    }
    insta::assert_snapshot!(kernel.check(&operands, counts).unwrap_err());
}
