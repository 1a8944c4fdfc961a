//! Training in f16: the loss is scaled, and where a gradient overflows nothing is updated.

use crate::common::{HYPER, Probe, branches, digits, fuse, sgd};
use stratus_engine::ops::{Adaptive, AdaptiveUpdate, KernelSpec, LOSS_SCALE_NAME};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::lower;
use stratus_engine::passes::micro_batch::micro_batches;
use stratus_engine::passes::recompute::recompute;
use stratus_engine::passes::update::{LARGE, Optimiser, update, update_joined};
use stratus_engine::program::Mode;
use stratus_engine::{Kernel, Phase, Precision, Program, Role, ValueId};
use stratus_graph::Graph;

const BATCH: usize = 6;

fn adam() -> Optimiser {
    let rule = Adaptive::Adam { betas: [0.9, 0.999], epsilon: 1e-8, decoupled: false };
    Optimiser::Adaptive(AdaptiveUpdate { rule, weight_decay: 1e-3, rate: 1.0, scaled: false })
}

fn differentiated(graph: &Graph, precision: Precision) -> Program {
    differentiate(&fuse(&lower(graph, Mode::Train, precision, BATCH).unwrap()).unwrap()).unwrap()
}

fn program(graph: &Graph, precision: Precision, optimiser: Optimiser) -> Program {
    update(&differentiated(graph, precision), optimiser).unwrap()
}

/// The values that an optimiser changes, with what they hold.
fn trained(probe: &Probe) -> Vec<(String, Vec<f64>)> {
    let is_trained = |role| matches!(role, Role::Parameter | Role::Copy | Role::Momentum);
    let values = probe.program.values.iter().filter(|value| is_trained(value.role));
    let values = values.filter(|value| value.name != LOSS_SCALE_NAME);
    values.map(|value| (value.name.clone(), probe.read(&value.name))).collect()
}

/// Velocities that begin with nothing, as in a run.
fn fresh(program: &Program) -> Probe {
    let mut probe = Probe::filled(program);
    for value in &program.values {
        if value.role == Role::Momentum {
            probe.write(&value.name, &vec![0.0; value.elements()]);
        }
    }
    probe
}

/// Brings copies up to date with their parameters.
fn equal_copies(probe: &mut Probe) {
    let program = probe.program.clone();
    for (id, copy) in program.values.iter().enumerate().filter(|(_, value)| value.role == Role::Copy) {
        let master = program.master_of(ValueId(id));
        probe.write(&copy.name, &probe.read(&program.value(master).name));
    }
}

/// A scale at which nothing of these networks overflows, though their numbers are drawn and not trained.
const SMALL: [f64; 4] = [-8.0, 0.0, 0.0, 0.0];

#[test]
fn updates_wait_for_all_gradients() {
    for graph in [digits([2, 9, 8], 4, 3), branches()] {
        let whole = differentiated(&graph, Precision::F16);
        let parts = micro_batches(&whole, 2).unwrap();
        for program in [whole, parts] {
            // Not even the largest layer is updated where its gradient is made.
            for large in [0, LARGE] {
                let program = update_joined(&program, sgd(), large).unwrap();
                let positions = |is: &dyn Fn(&Kernel) -> bool| -> Vec<usize> {
                    (0..program.steps.len()).filter(|&step| is(&program.steps[step].kernel)).collect()
                };
                let searches = positions(&|kernel| matches!(kernel, Kernel::FindOverflow(_)));
                let updates = positions(&|kernel| matches!(kernel, Kernel::SgdUpdate(k) if k.scaled));
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
fn other_precisions_have_no_scale() {
    for precision in [Precision::F32, Precision::Bf16, Precision::F64] {
        assert_eq!(program(&branches(), precision, sgd()).find(LOSS_SCALE_NAME), None);
    }
    let evaluation = lower(&branches(), Mode::Evaluate, Precision::F16, BATCH).unwrap();
    assert_eq!(evaluation.find(LOSS_SCALE_NAME), None);
}

/// The scale is gone from what is updated: a step is that of double precision, but for the rounding of
/// activations.
#[test]
fn a_step_follows_double_precision() {
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
        let [loss, exact] = [&mut half, &mut double].map(Probe::loss);
        assert!((loss - exact).abs() < 1e-2 * exact, "{loss} {exact}");
        assert!(half.read(LOSS_SCALE_NAME) == [SMALL[0], 1.0, 0.0, 0.0]);
        for (name, before) in before.into_iter().filter(|(name, _)| !name.contains(':')) {
            let [half, double] = [&half, &double].map(|probe| -> Vec<f64> {
                probe.read(&name).iter().zip(&before).map(|(after, before)| after - before).collect()
            });
            let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
            let apart: Vec<f64> = half.iter().zip(&double).map(|(a, b)| a - b).collect();
            let [apart, all] = [norm(&apart), norm(&double)];
            assert!(apart <= 3e-2 * all + 1e-5, "{} {name}: {apart} of {all}", graph.name);
        }
    }
}

#[test]
fn an_overflow_updates_nothing_and_the_next_iteration_goes_on() {
    for (graph, optimisers) in [(digits([2, 9, 8], 4, 3), [sgd(), adam()].as_slice()), (branches(), &[sgd()])]
    {
        for &optimiser in optimisers {
            let program = program(&graph, Precision::F16, optimiser);
            let mut probe = fresh(&program);
            equal_copies(&mut probe);
            let before = trained(&probe);
            // 2^32 times a gradient of a quarter is no f16.
            probe.write(LOSS_SCALE_NAME, &[16.0, 5.0, 0.0, 0.0]);
            let loss = probe.loss();
            assert!(loss.is_finite());
            assert_eq!(probe.read(LOSS_SCALE_NAME), [15.0, 0.0, 0.0, 1.0]);
            assert!(trained(&probe) == before);
            // As if that iteration had never been: Adam counts its steps without it.
            let mut other = fresh(&program);
            for (name, values) in &before {
                other.write(name, values);
            }
            if optimiser == adam() {
                let [rate, iteration, low, high] = HYPER;
                other.write("hyper", &[rate, iteration - 1.0, low, high]);
            }
            probe.write(LOSS_SCALE_NAME, &[SMALL[0], 0.0, 0.0, 1.0]);
            other.write(LOSS_SCALE_NAME, &SMALL);
            for probe in [&mut probe, &mut other] {
                probe.loss();
            }
            assert!(trained(&probe) == trained(&other), "{}", graph.name);
            assert!(trained(&probe) != before);
        }
    }
}

/// Activations that are made again, and gradients that are sums over parts of a batch.
#[test]
fn other_passes_go_before() {
    let graph = branches();
    let whole = differentiated(&graph, Precision::F16);
    let expected = {
        let mut probe = fresh(&update(&whole, sgd()).unwrap());
        probe.write(LOSS_SCALE_NAME, &SMALL);
        probe.loss();
        trained(&probe)
    };
    let mut again = fresh(&update(&recompute(&whole, 0).unwrap(), sgd()).unwrap());
    again.write(LOSS_SCALE_NAME, &SMALL);
    again.loss();
    for (name, expected) in expected {
        assert!(again.read(&name) == expected, "{name}");
    }
    let half = differentiate(&fuse(&lower(&graph, Mode::Train, Precision::F16, BATCH / 2).unwrap()).unwrap());
    let mut parts = fresh(&update(&micro_batches(&half.unwrap(), 2).unwrap(), sgd()).unwrap());
    parts.write(LOSS_SCALE_NAME, &SMALL);
    parts.loss();
    assert!(parts.read(LOSS_SCALE_NAME) == [SMALL[0], 1.0, 0.0, 0.0]);
    assert!(trained(&parts).iter().flat_map(|(_, values)| values).all(|value| value.is_finite()));
}

#[test]
fn kernels_say_what_they_cannot_take() {
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
    // What updates where a gradient is made cannot wait for the others.
    let joined = update_joined(&differentiated(&digits([2, 9, 8], 4, 3), Precision::F32), sgd(), 0).unwrap();
    let step = joined.steps.iter().find(|step| matches!(step.kernel, Kernel::LinearUpdate(_))).unwrap();
    let operands: Vec<_> = step.operands().map(|id| joined.value(id)).collect();
    let counts = [step.inputs.len(), step.updates.len(), step.outputs.len()];
    let mut kernel = step.kernel.clone();
    assert_eq!(kernel.check(&operands, counts), Ok(()));
    if let Kernel::LinearUpdate(update) = &mut kernel {
        update.sgd.scaled = true;
    }
    insta::assert_snapshot!(kernel.check(&operands, counts).unwrap_err());
}
