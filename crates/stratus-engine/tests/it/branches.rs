//! A network whose values have several readers, with dropout and an auxiliary loss: its programs and metrics.

use crate::common::{ITERATION_SCALARS, TestSession, branches, fuse, numbers, session, training_program};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::lower;
use stratus_engine::program::Mode;
use stratus_engine::session::IterationScalars;
use stratus_engine::{Clock, DType, Kernel, Precision, Program, Role, Session, Step};
use stratus_graph::{Graph, GraphBuilder, Shape, ops};

fn evaluation(precision: Precision, batch: usize) -> Program {
    fuse(&lower(&branches(), Mode::Evaluate, precision, batch).unwrap()).unwrap()
}

#[test]
fn training_program_in_bf16() {
    insta::assert_snapshot!(training_program(&branches(), Precision::Bf16, 4).dump());
}

#[test]
fn evaluation_program() {
    insta::assert_snapshot!(evaluation(Precision::Bf16, 4).dump());
}

/// A sum shares its gradient without a copy: a new value is created only if the old one is still needed, or
/// is both terms.
#[test]
fn sums_share_their_gradient() {
    let program = training_program(&branches(), Precision::F32, 4);
    let count = |is: &dyn Fn(&Kernel) -> bool| program.steps.iter().filter(|step| is(&step.kernel)).count();
    let forward = lower(&branches(), Mode::Train, Precision::F32, 4).unwrap();
    let sums = forward.steps.iter().filter(|step| matches!(step.kernel, Kernel::AddForward(_))).count();
    assert_eq!(sums, 6);
    let is_sum = |kernel: &Kernel| matches!(kernel, Kernel::AddForward(_) | Kernel::BatchNormAddApply(_));
    assert_eq!(count(&is_sum), sums + 3, "{}", program.dump());
    // The last term of the gradient of a sum after a batch norm is added by the step that masks it.
    let is_masking = |step: &&Step| matches!(step.kernel, Kernel::BatchNormAddReluGradients(_));
    let adding = program.steps.iter().filter(is_masking).filter(|step| step.inputs.len() == 5).count();
    let accumulations = count(&|kernel| matches!(kernel, Kernel::Accumulate(_)));
    assert_eq!([accumulations, adding], [5, 1], "{}", program.dump());
    assert_eq!(count(&|kernel| matches!(kernel, Kernel::Convert(_))), 0, "{}", program.dump());
}

/// Mean cross-entropy of rows of logits, and the number of rows whose label has the largest logit.
fn cross_entropy(logits: &[f64], labels: &[f64]) -> (f64, f64) {
    let (mut loss, mut right, mut counted) = (0.0, 0.0, 0.0);
    for (row, &label) in logits.chunks_exact(logits.len() / labels.len()).zip(labels) {
        if label < 0.0 {
            continue;
        }
        let label_logit = row[label as usize];
        loss += row.iter().map(|logit| logit.exp()).sum::<f64>().ln() - label_logit;
        right += f64::from(u8::from(row.iter().all(|&logit| logit <= label_logit)));
        counted += 1.0;
    }
    (loss / counted, right)
}

#[test]
fn auxiliary_losses_are_weighted_and_hits_are_those_of_the_main_output() {
    let mut forward = lower(&branches(), Mode::Train, Precision::F64, 8).unwrap();
    let outputs = ["fc2:y", "aux.fc:y"];
    for value in forward.values.iter_mut().filter(|value| outputs.contains(&value.name.as_str())) {
        value.role = Role::Buffer;
    }
    let mut test = TestSession::new(&differentiate(&forward).unwrap());
    test.write("hyper", &ITERATION_SCALARS);
    for (index, parameter) in branches().parameters.iter().enumerate() {
        test.write(&parameter.name, &numbers(parameter.elements(), index as u64, 0.5));
    }
    test.write("images", &numbers(8 * 2 * 36, 99, 1.0));
    test.write("labels", &[0.0; 8]);
    test.loss();
    // Labels are the auxiliary output's top classes, which differ from the main output's: hits must differ.
    let best = |logits: &[f64]| -> Vec<f64> {
        let rows = logits.chunks_exact(10);
        rows.map(|row| (0..10).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as f64).collect()
    };
    let mut labels = best(&test.read("aux.fc:y"));
    labels[..3].copy_from_slice(&best(&test.read("fc2:y"))[..3]);
    labels[7] = -1.0;
    test.write("labels", &labels);
    let total = test.loss();
    let [main, auxiliary] = outputs.map(|name| cross_entropy(&test.read(name), &labels));
    assert!((total - (main.0 + f64::from(0.3f32) * auxiliary.0)).abs() < 1e-12, "{total}");
    assert_ne!(main.1, auxiliary.1);
    assert_eq!(test.read("metrics")[1..3], [7.0, main.1]);
}

#[test]
fn evaluation_has_neither_auxiliary_outputs_nor_dropout() {
    let program = evaluation(Precision::F32, 4);
    assert!(program.layers.iter().all(|layer| !layer.name.contains("aux")));
    assert!(program.values.iter().all(|value| !value.name.contains("aux")));
    assert!(!program.steps.iter().any(|step| matches!(step.kernel, Kernel::Dropout(_))));
    let training = training_program(&branches(), Precision::F32, 4);
    let layer = |name: &str| training.layers.iter().any(|layer| layer.name == name);
    assert!(layer("loss") && layer("loss.aux1") && !layer("loss.aux2"));
}

/// The loss of one batch with the current parameters.
fn loss(session: &mut Session, iteration: u64, seed: u64) -> f64 {
    session.set_iteration_scalars(IterationScalars { learning_rate: 0.0, iteration, seed }).unwrap();
    let mut inputs = session.inputs(0).unwrap();
    let images = inputs.images.as_mut_slice();
    for (position, number) in numbers(images.len() / 4, 3, 1.0).into_iter().enumerate() {
        DType::F32.store(images, position, number);
    }
    let mut clock = Clock::disabled(session.plan(0).steps.len());
    session.run(0, images, inputs.labels.as_mut_slice(), &mut clock, 0).unwrap();
    session.metrics().loss
}

#[test]
fn dropout_masks_depend_on_iteration_and_seed() {
    let mut session = session(&training_program(&branches(), Precision::F32, 4));
    for (index, parameter) in branches().parameters.iter().enumerate() {
        let values = numbers(parameter.elements(), index as u64, 0.5);
        session.write(&parameter.name, &values.iter().map(|&x| x as f32).collect::<Vec<_>>()).unwrap();
    }
    let base = loss(&mut session, 3, 9);
    for (iteration, seed) in [(4, 9), (3 + (1 << 40), 9), (3, 10), (3, 9 + (1 << 32))] {
        assert_ne!(loss(&mut session, iteration, seed), base, "iteration {iteration} seed {seed}");
        assert_eq!(loss(&mut session, 3, 9), base);
    }
}

/// One batch norm per channel, concatenated in one layer or two at a time.
fn many_branches(count: usize, at_once: bool) -> Graph {
    let (mut graph, images) = GraphBuilder::new("test", Shape::image(1, 2, 2));
    let mut parts = Vec::new();
    for part in 0..count {
        parts.push(graph.add(&format!("norm{part}"), ops::BatchNorm2d::new(1), &[images]).unwrap());
    }
    let mut x = parts[0];
    if at_once {
        x = graph.add("all", ops::Concat, &parts).unwrap();
    } else {
        for (number, &part) in parts.iter().enumerate().skip(1) {
            x = graph.add(&format!("all{number}"), ops::Concat, &[x, part]).unwrap();
        }
    }
    x = graph.add("flatten", ops::Flatten, &[x]).unwrap();
    x = graph.add("fc", ops::Linear::new(4 * count, 3), &[x]).unwrap();
    graph.finish(x).unwrap()
}

/// More maps than a step has operands give the same results as maps concatenated two at a time.
#[test]
fn many_maps_are_concatenated_in_several_steps() {
    let (steps, batch) = (2, 2);
    for (count, concats) in [(14, 1), (15, 2), (28, 3), (29, 3), (197, 16)] {
        let trained = |at_once: bool| {
            let program = training_program(&many_branches(count, at_once), Precision::F32, batch);
            let joins = program.steps.iter().filter(|step| matches!(step.kernel, Kernel::ConcatForward(_)));
            assert_eq!(joins.count(), if at_once { concats } else { count - 1 }, "{count}");
            let mut session = session(&program);
            for parameter in &many_branches(count, at_once).parameters {
                let values: Vec<f32> =
                    numbers(parameter.elements(), 5, 0.5).iter().map(|&x| x as f32).collect();
                session.write(&parameter.name, &values).unwrap();
            }
            session
                .set_iteration_scalars(IterationScalars { learning_rate: 0.1, iteration: 0, seed: 1 })
                .unwrap();
            for _ in 0..steps {
                let mut inputs = session.inputs(0).unwrap();
                let images = inputs.images.as_mut_slice();
                for (position, number) in numbers(batch * 4, 3, 1.0).into_iter().enumerate() {
                    DType::F32.store(images, position, number);
                }
                let mut clock = Clock::disabled(session.plan(0).steps.len());
                session.run(0, images, inputs.labels.as_mut_slice(), &mut clock, 0).unwrap();
            }
            ["fc.weight", "norm0.weight", &format!("norm{}.bias", count - 1)]
                .map(|name| session.read(name).unwrap())
        };
        assert_eq!(trained(true), trained(false), "{count}");
    }
}
