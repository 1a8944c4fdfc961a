//! Pipelines: results are bit-identical to those of one process for any number of stages.

use crate::training::{
    PART, PARTS, Trained, branches, digits, numbers, of_part, of_part_with, train, train_with, with_updates,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use stratus_cuda::Cuda;
use stratus_engine::passes::lower::{LossFunction, lower, with_loss};
use stratus_engine::passes::recompute::recompute;
use stratus_engine::passes::stage::{PipelinePartition, StageMemory};
use stratus_engine::passes::step_costs::StepCosts;
use stratus_engine::plan::Persistent;
use stratus_engine::program::Mode;
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::{Backend, Choices, Clock, Kernel, Plan, Precision, Program, Role, Session};
use stratus_exchange::{WorkerGroup, in_process};
use stratus_graph::{Graph, zoo};

pub const ROOM: StageMemory =
    StageMemory { bytes_per_parameter_byte: 4, limit_bytes: usize::MAX, recomputes: false };
/// Low enough that gradients are clipped, by the norm over all stages.
pub const CLIP: Option<f64> = Some(0.01);

pub fn evaluation(graph: &Graph, precision: Precision) -> Program {
    lower(graph, Mode::Evaluate, precision, PART).unwrap()
}

/// The program of each stage.
fn stages(graph: &Graph, precision: Precision, count: usize, recomputes: bool) -> Vec<Program> {
    stages_of_pipelines(graph, precision, count, 1, recomputes)
}

/// The program of each stage of one of several pipelines, which divide the parts.
fn stages_of_pipelines(
    graph: &Graph,
    precision: Precision,
    count: usize,
    pipelines: usize,
    recomputes: bool,
) -> Vec<Program> {
    let (whole, evaluation) = (of_part(graph, precision), evaluation(graph, precision));
    stages_of(&whole, &evaluation, count, pipelines, recomputes)
}

/// The program of each stage of the program of one part.
fn stages_of(
    whole: &Program,
    evaluation: &Program,
    count: usize,
    pipelines: usize,
    recomputes: bool,
) -> Vec<Program> {
    let cut = PipelinePartition::balanced(whole, evaluation, count, ROOM, &StepCosts::estimated()).unwrap();
    let of_part = |number| {
        let stage = cut.stage(whole, number).unwrap();
        if recomputes { recompute(&stage, 0).unwrap() } else { stage }
    };
    (0..count).map(|number| with_updates(&of_part(number), pipelines, CLIP)).collect()
}

/// Trains each stage on a thread of its own, in several pipelines.
pub fn train_in(programs: &[Program], pipelines: usize) -> Vec<Trained> {
    train_on(&|| Box::new(ReferenceBackend), programs, pipelines)
}

/// [`train_in`] on the devices that `backend` opens.
fn train_on(
    backend: &(dyn Fn() -> Box<dyn Backend> + Sync),
    programs: &[Program],
    pipelines: usize,
) -> Vec<Trained> {
    let stages = programs.len();
    std::thread::scope(|scope| {
        let ends = in_process::transports(stages * pipelines).into_iter().zip(programs.iter().cycle());
        let threads: Vec<_> = ends
            .map(|(transport, program)| {
                scope.spawn(move || {
                    let workers = Arc::new(WorkerGroup::open(|| Ok(transport)).unwrap());
                    workers.set_stages(stages);
                    let share = workers.rank() / stages;
                    let trained = train_with(backend().as_ref(), program, Some(Arc::clone(&workers)), share);
                    workers.leave().unwrap();
                    trained
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn results_are_bit_identical_for_any_number_of_stages() {
    for (graph, precision) in
        [(digits(), Precision::F32), (digits(), Precision::Bf16), (branches(), Precision::F32)]
    {
        let alone = train(&with_updates(&of_part(&graph, precision), 1, CLIP), None, 0);
        let unclipped = train(&with_updates(&of_part(&graph, precision), 1, None), None, 0);
        assert_ne!(alone.0, unclipped.0, "gradients are clipped");
        let expected: BTreeMap<_, _> = alone.0.into_iter().collect();
        for count in [2, 4] {
            let programs = stages(&graph, precision, count, false);
            for (number, program) in programs.iter().enumerate() {
                let copies = program.live_copies().into_iter().max();
                assert_eq!(copies, Some(count - number), "{}", program.dump());
                let has = |role| program.find_role(role).is_some();
                assert_eq!([has(Role::Images), has(Role::Labels)], [number == 0, number + 1 == count]);
            }
            let trained = train_in(&programs, 1);
            assert_eq!(trained.last().unwrap().1, alone.1, "{count} stages of {}", graph.name);
            // Each value belongs to exactly one stage.
            let counts: Vec<usize> = trained.iter().map(|(values, _)| values.len()).collect();
            assert_eq!(counts.iter().sum::<usize>(), expected.len());
            assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
            for (name, bits) in trained.into_iter().flat_map(|(values, _)| values) {
                assert_eq!(bits, expected[&name], "`{name}` in {count} stages of {}", graph.name);
            }
        }
    }
}

/// The last stage has the targets, and counts those that are present.
#[test]
fn losses_of_several_targets_are_bit_identical_for_any_number_of_stages() {
    for (graph, loss) in
        [(branches(), LossFunction::BinaryCrossEntropy), (digits(), LossFunction::SquaredError)]
    {
        let whole = of_part_with(&graph, Precision::F32, loss);
        let alone = train(&with_updates(&whole, 1, CLIP), None, 0);
        let expected: BTreeMap<_, _> = alone.0.into_iter().collect();
        let evaluation = with_loss(evaluation(&graph, Precision::F32), loss).unwrap();
        for (count, pipelines) in [(2, 1), (4, 2)] {
            let trained = train_in(&stages_of(&whole, &evaluation, count, pipelines, false), pipelines);
            assert_eq!(trained.last().unwrap().1, alone.1, "{count} stages of {}", graph.name);
            for (name, bits) in trained.into_iter().flat_map(|(values, _)| values) {
                assert_eq!(bits, expected[&name], "`{name}` in {count} stages of {}", graph.name);
            }
        }
    }
}

/// Pipelines that divide the parts of a batch add their sums along the same tree.
#[test]
fn results_are_bit_identical_for_several_pipelines() {
    for (graph, precision) in [(digits(), Precision::F32), (branches(), Precision::Bf16)] {
        let alone = train(&with_updates(&of_part(&graph, precision), 1, CLIP), None, 0);
        let expected: BTreeMap<_, _> = alone.0.into_iter().collect();
        for (count, pipelines) in [(2, 2), (2, 4), (4, 2)] {
            let programs = stages_of_pipelines(&graph, precision, count, pipelines, false);
            let trained = train_in(&programs, pipelines);
            assert_eq!(trained.len(), count * pipelines);
            for (rank, (values, metrics)) in trained.into_iter().enumerate() {
                if rank % count + 1 == count {
                    assert_eq!(metrics, alone.1, "{count} stages, worker {rank}");
                }
                for (name, bits) in values {
                    assert_eq!(bits, expected[&name], "`{name}` in {count} stages, worker {rank}");
                }
            }
        }
    }
}

/// Messages between the stages of emulated GPUs, whose queues run early or late.
#[test]
fn stages_on_gpus_are_bit_identical() {
    let (graph, precision) = (digits(), Precision::F32);
    let whole = with_updates(&of_part(&graph, precision), 1, CLIP);
    let alone = train_with(&Cuda::emulated().unwrap(), &whole, None, 0);
    let expected: BTreeMap<_, _> = alone.0.into_iter().collect();
    for (count, pipelines, late) in [(2, 1, false), (4, 1, true), (2, 2, true)] {
        let programs = stages_of_pipelines(&graph, precision, count, pipelines, false);
        let backend = || Box::new(Cuda::emulated_with(4, late).unwrap()) as Box<dyn Backend>;
        let trained = train_on(&backend, &programs, pipelines);
        assert_eq!(trained.last().unwrap().1, alone.1, "{count} stages");
        for (name, bits) in trained.into_iter().flat_map(|(values, _)| values) {
            assert_eq!(bits, expected[&name], "`{name}` in {pipelines} × {count} stages");
        }
    }
}

/// A stage that recomputes activations does not keep them for each part that it is ahead.
#[test]
fn recomputation_in_stages_is_bit_identical() {
    let graph = branches();
    let ahead = |programs: &[Program]| {
        let copies = programs[0].live_copies();
        let values = programs[0].values.iter().zip(copies);
        values.filter(|(_, copies)| *copies > 1).map(|(value, copies)| copies * value.bytes()).sum::<usize>()
    };
    let kept = stages(&graph, Precision::F32, 4, false);
    let recomputed = stages(&graph, Precision::F32, 4, true);
    assert!(ahead(&recomputed) < ahead(&kept), "{} {}", ahead(&recomputed), ahead(&kept));
    assert_eq!(train_in(&recomputed, 1), train_in(&kept, 1));
}

/// One forward, one backward: no stage is further ahead than the later stages need.
#[test]
fn stages_alternate_forward_and_backward_passes() {
    let programs = stages(&digits(), Precision::F32, 2, false);
    let order = |program: &Program| {
        let section = program.sections[0];
        let turns = program.schedule(&section).into_iter();
        turns.map(|(steps, part)| (steps.start == section.first, part)).collect::<Vec<_>>()
    };
    let first = order(&programs[0]);
    assert_eq!(first[..6], [(true, 0), (true, 1), (false, 0), (true, 2), (false, 1), (true, 3)]);
    let last = PARTS - 1;
    assert_eq!(first[first.len() - 3..], [(true, last), (false, last - 1), (false, last)]);
    assert_eq!(first.len(), 2 * PARTS);
    // The last stage starts a backward pass right after each forward pass.
    assert_eq!(order(&programs[1]), (0..PARTS).map(|part| (true, part)).collect::<Vec<_>>());
}

/// Every step of a network is in exactly one stage.
#[test]
fn splits_every_network_of_the_zoo_into_stages() {
    for network in zoo::NETWORKS {
        let graph = (network.build)(&(network.defaults)()).unwrap();
        let train = of_part(&graph, Precision::F32);
        let evaluate = evaluation(&graph, Precision::F32);
        for count in [2, 4] {
            let cut =
                match PipelinePartition::balanced(&train, &evaluate, count, ROOM, &StepCosts::estimated()) {
                    Ok(cut) => cut,
                    Err(error) => panic!("{}: {error}", graph.name),
                };
            for program in [&train, &evaluate] {
                let parts: Vec<Program> =
                    (0..count).map(|number| cut.stage(program, number).unwrap()).collect();
                let count_steps = |program: &Program| {
                    let is_own =
                        |step: &&stratus_engine::Step| !matches!(step.kernel, Kernel::StageTransfer(_));
                    program.steps.iter().filter(is_own).count()
                };
                assert_eq!(
                    parts.iter().map(count_steps).sum::<usize>(),
                    program.steps.len(),
                    "{}",
                    graph.name
                );
            }
        }
    }
}

#[test]
fn refuses_more_stages_than_the_network_has() {
    let (train, evaluate) = (of_part(&digits(), Precision::F32), evaluation(&digits(), Precision::F32));
    let error = PipelinePartition::balanced(&train, &evaluate, 100, ROOM, &StepCosts::estimated())
        .unwrap_err()
        .to_string();
    assert!(error.contains("can have at most 7 stages, got 100"), "{error}");
}

/// Validation runs through the stages too.
#[test]
fn evaluation_in_stages_equals_that_of_one_process() {
    let graph = digits();
    let (train, whole) = (of_part(&graph, Precision::F32), evaluation(&graph, Precision::F32));
    let cut = PipelinePartition::balanced(&train, &whole, 2, ROOM, &StepCosts::estimated()).unwrap();
    let programs = [0, 1].map(|number| cut.stage(&whole, number).unwrap());
    let run = |program: &Program, workers: Option<Arc<WorkerGroup>>| {
        let mut persistent = Persistent::default();
        let plan =
            Plan::prepare(&ReferenceBackend, program, Choices::default(), false, &mut persistent).unwrap();
        let mut session = Session::new(vec![plan], persistent).unwrap();
        if let Some(workers) = workers {
            workers.set_stages(2);
            let exchange: Arc<dyn stratus_engine::exchange::Communicator> = workers;
            session.connect(&exchange, 0, false).unwrap();
        }
        let names: Vec<(String, usize)> =
            session.state().map(|value| (value.name.to_owned(), value.shape.iter().product())).collect();
        for (name, count) in names {
            let values: Vec<f32> = (0..count).map(|i| 0.1 + (i % 7) as f32 / 10.0).collect();
            session.write(&name, &values).unwrap();
        }
        let mut inputs = session.inputs(0).unwrap();
        let images: &mut [f32] = numbers(inputs.images.as_mut_slice());
        images.iter_mut().enumerate().for_each(|(i, pixel)| *pixel = (i % 11) as f32 / 11.0);
        let (images, labels) = (inputs.images.as_mut_slice(), inputs.labels.as_mut_slice());
        let mut metrics = Vec::new();
        for _ in 0..3 {
            session.run(0, images, labels, &mut Clock::disabled(program.steps.len()), 0).unwrap();
            metrics.push(session.metrics());
        }
        metrics
    };
    let alone = run(&whole, None);
    assert!(alone[0].loss > 0.0);
    std::thread::scope(|scope| {
        let ends = in_process::transports(2).into_iter().zip(&programs);
        let threads: Vec<_> = ends
            .map(|(transport, program)| {
                let run = &run;
                scope
                    .spawn(move || run(program, Some(Arc::new(WorkerGroup::open(|| Ok(transport)).unwrap()))))
            })
            .collect();
        let evaluated: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(evaluated[1], alone);
    });
}
