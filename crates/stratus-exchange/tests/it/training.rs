//! Data-parallel training: results are bit-identical for any number of workers.

use std::sync::Arc;
use stratus_cuda::Cuda;
use stratus_engine::exchange::{Communicator, DeviceGroup};
use stratus_engine::fusions::Fusions;
use stratus_engine::ops::{Kernel, KernelSpec, SumMethod};
use stratus_engine::passes::average::average;
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::fuse::fuse_with;
use stratus_engine::passes::lower::{LossFunction, lower, with_loss};
use stratus_engine::passes::parts::{BatchParts, split_into_parts};
use stratus_engine::passes::update::{Optimiser, Optimisers, update};
use stratus_engine::plan::{Persistent, Plan};
use stratus_engine::program::Mode;
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::session::{IterationScalars, Metrics};
use stratus_engine::{Backend, Choices, Clock, DType, Precision, Program, Role, Session};
use stratus_exchange::{Transport, WorkerGroup, in_process};
use stratus_graph::{Graph, layer_file, zoo};

pub const PARTS: usize = 8;
pub const PART: usize = 3;
const ITERATIONS: u64 = 3;

pub fn digits() -> Graph {
    let network = zoo::find("digits").unwrap();
    (network.build)(&zoo::ModelConfig { input: [2, 9, 8], classes: 4, width: Some(3) }).unwrap()
}

/// Dropout, an auxiliary loss, sums of gradients.
pub fn branches() -> Graph {
    layer_file::parse(include_str!("../../../stratus-engine/tests/it/branches.toml")).unwrap()
}

/// The forward and backward pass of one part.
pub fn of_part(graph: &Graph, precision: Precision) -> Program {
    differentiate(&fused(graph, precision, PART, true)).unwrap()
}

/// [`of_part`] with another loss.
pub fn of_part_with(graph: &Graph, precision: Precision, loss: LossFunction) -> Program {
    let forward = with_loss(lower(graph, Mode::Train, precision, PART).unwrap(), loss).unwrap();
    let fusions = Fusions { min_horizontal_bytes: 0, ..Fusions::default() };
    differentiate(&fuse_with(&forward, fusions).unwrap()).unwrap()
}

/// The fused forward pass of a batch.
fn fused(graph: &Graph, precision: Precision, batch: usize, stem: bool) -> Program {
    let forward = lower(graph, Mode::Train, precision, batch).unwrap();
    fuse_with(&forward, Fusions { min_horizontal_bytes: 0, stem, ..Fusions::default() }).unwrap()
}

fn program(graph: &Graph, precision: Precision, workers: usize) -> Program {
    with_updates(&of_part(graph, precision), workers, Some(1.0))
}

/// Like [`program`], with the batch norm statistics of the whole batch.
fn synchronised(graph: &Graph, precision: Precision, workers: usize) -> Program {
    let of_part = differentiate(&fused(graph, precision, PART, false)).unwrap();
    let cut = BatchParts {
        count: PARTS,
        workers,
        bucket_bytes: 600,
        synchronise_batch_norm: true,
        gradients: SumMethod::default(),
    };
    with_optimiser(&split_into_parts(&of_part, cut).unwrap(), Some(1.0))
}

/// All parts of a worker, followed by the updates.
pub fn with_updates(of_part: &Program, workers: usize, clip_norm: Option<f64>) -> Program {
    with_method(of_part, workers, clip_norm, SumMethod::default())
}

/// [`with_updates`] with a method by which gradients are summed.
pub fn with_method(
    of_part: &Program,
    workers: usize,
    clip_norm: Option<f64>,
    gradients: SumMethod,
) -> Program {
    // Buckets of a few values each.
    let cut =
        BatchParts { count: PARTS, workers, bucket_bytes: 600, synchronise_batch_norm: false, gradients };
    with_optimiser(&split_into_parts(of_part, cut).unwrap(), clip_norm)
}

fn with_optimiser(program: &Program, clip_norm: Option<f64>) -> Program {
    let sgd = stratus_engine::ops::SgdUpdate {
        momentum: 0.9,
        weight_decay: 1e-4,
        nesterov: false,
        rate_factor: 1.0,
        loss_scaled: false,
    };
    let optimisers = Optimisers { clip_norm, ..Optimiser::Sgd(sgd).into() };
    average(&update(program, optimisers).unwrap(), 0.9).unwrap()
}

/// Pseudo-random numbers.
fn number(i: usize) -> f32 {
    let mixed = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 40) as f32 / (1u64 << 24) as f32) - 0.5
}

/// Reinterprets bytes as numbers. A stage without this input has an empty slice, which need not be aligned.
pub fn numbers<T: bytemuck::Pod>(bytes: &mut [u8]) -> &mut [T] {
    if bytes.is_empty() { &mut [] } else { bytemuck::cast_slice_mut(bytes) }
}

/// The result of a training: every value of a checkpoint, and the metrics of each iteration.
pub type Trained = (Vec<(String, Vec<u32>)>, Vec<Metrics>);

/// Trains one worker on the rows of the batch that belong to `rank`.
pub fn train(program: &Program, exchange: Option<Arc<WorkerGroup>>, rank: usize) -> Trained {
    train_with(&ReferenceBackend, program, exchange, rank)
}

/// [`train`] with a backend.
pub fn train_with(
    backend: &dyn Backend,
    program: &Program,
    exchange: Option<Arc<WorkerGroup>>,
    rank: usize,
) -> Trained {
    train_in_group(backend, program, exchange, rank, None)
}

/// [`train_with`] with a group of devices that sum directly.
pub fn train_in_group(
    backend: &dyn Backend,
    program: &Program,
    exchange: Option<Arc<WorkerGroup>>,
    rank: usize,
    group: Option<&DeviceGroup>,
) -> Trained {
    let mut persistent = Persistent::default();
    let plan = Plan::prepare(backend, program, Choices::default(), false, &mut persistent).unwrap();
    let mut session = Session::on_backend(backend, vec![plan], persistent).unwrap();
    if let Some(workers) = exchange {
        let exchange: Arc<dyn Communicator> = workers;
        group.iter().for_each(|group| session.join_group(group).unwrap());
        session.connect(&exchange, rank * program.batch / PART, group.is_some()).unwrap();
    }
    let names: Vec<(String, usize)> =
        session.state().map(|value| (value.name.to_owned(), value.shape.iter().product())).collect();
    for (name, count) in &names {
        let at = name.bytes().fold(7, |sum: usize, byte| (31 * sum + usize::from(byte)) % 1_000_003);
        let positive = name.contains("var");
        let first = |i: usize| if positive { 1.0 } else { number(1000 * at + i) };
        session.write(name, &(0..*count).map(first).collect::<Vec<_>>()).unwrap();
    }
    let mut inputs = session.inputs(0).unwrap();
    let mut metrics = Vec::new();
    for iteration in 0..ITERATIONS {
        let images = inputs.images.as_mut_slice();
        let width = program.precision.compute().bytes();
        let shift = 1_000_000 * (iteration as usize + 1) + rank * (images.len() / width);
        for (i, pixel) in images.chunks_mut(width).enumerate() {
            // The upper half of an f32 is a bf16.
            pixel.copy_from_slice(&number(shift + i).to_le_bytes()[size_of::<f32>() - width..]);
        }
        fill_labels(program, inputs.labels.as_mut_slice(), rank);
        session.set_iteration_scalars(IterationScalars { learning_rate: 0.1, iteration, seed: 5 }).unwrap();
        let (images, labels) = (inputs.images.as_mut_slice(), inputs.labels.as_mut_slice());
        session.run(0, images, labels, &mut Clock::new(session.slots(0)), 0).unwrap();
        metrics.push(session.metrics());
    }
    let values = names.into_iter().map(|(name, _)| {
        let bits = session.read(&name).unwrap().into_iter().map(f32::to_bits).collect();
        (name, bits)
    });
    (values.collect(), metrics)
}

/// Writes the labels of a worker. Some samples are unlabelled, and some targets of others are missing.
fn fill_labels(program: &Program, labels: &mut [u8], rank: usize) {
    let value = program.find_role(Role::Labels).map(|id| program.value(id));
    let Some(targets) = value.filter(|value| value.dtype == DType::F32) else {
        let labels: &mut [i32] = numbers(labels);
        let before = rank * labels.len();
        let label = |i: usize| if i % 7 == 6 { -1 } else { (i % 3) as i32 };
        labels.iter_mut().enumerate().for_each(|(i, at)| *at = label(before + i));
        return;
    };
    let (columns, labels) = (targets.shape[1], numbers::<f32>(labels));
    let before = rank * labels.len();
    for (i, at) in (before..).zip(labels) {
        let is_missing = i / columns % 7 == 6 || i % 5 == 4;
        *at = if is_missing { f32::NAN } else { (i % 3) as f32 / 2.0 };
    }
}

/// Trains the program of each of `size` workers; `backend` opens the device of each.
pub fn train_workers(
    backend: &(dyn Fn() -> Box<dyn Backend> + Sync),
    program: &Program,
    size: usize,
) -> Vec<Trained> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = in_process::transports(size)
            .into_iter()
            .map(|transport| {
                scope.spawn(move || {
                    assert!(transport.rank() < size);
                    let workers = WorkerGroup::open(|| Ok(transport)).unwrap();
                    let rank = workers.rank();
                    train_with(backend().as_ref(), program, Some(Arc::new(workers)), rank)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn results_are_bit_identical_for_any_number_of_workers() {
    for (graph, precision) in
        [(digits(), Precision::F32), (digits(), Precision::Bf16), (branches(), Precision::F32)]
    {
        let alone = train(&program(&graph, precision, 1), None, 0);
        let losses: Vec<f64> = alone.1.iter().map(|metrics| metrics.loss).collect();
        assert!(
            losses.iter().all(|loss| loss.is_finite() && *loss > 0.0) && losses[0] != losses[1],
            "{losses:?}"
        );
        let rows = (PARTS * PART) as f64;
        assert_eq!(alone.1[0].samples, rows - (PARTS * PART / 7) as f64);
        for size in [1, 2, 4, 8] {
            for (rank, trained) in
                train_workers(&|| Box::new(ReferenceBackend), &program(&graph, precision, size), size)
                    .into_iter()
                    .enumerate()
            {
                assert_eq!(trained.1, alone.1, "worker {rank} of {size}");
                for (found, expected) in trained.0.iter().zip(&alone.0) {
                    assert_eq!(found, expected, "worker {rank} of {size}");
                }
            }
        }
    }
}

/// Missing targets are distributed unevenly over the parts.
#[test]
fn losses_of_several_targets_are_bit_identical_for_any_number_of_workers() {
    for (graph, loss) in [
        (digits(), LossFunction::BinaryCrossEntropy),
        (branches(), LossFunction::BinaryCrossEntropy),
        (digits(), LossFunction::Huber),
    ] {
        let of_part = of_part_with(&graph, Precision::F32, loss);
        let alone = train(&with_updates(&of_part, 1, Some(1.0)), None, 0);
        let losses: Vec<f64> = alone.1.iter().map(|metrics| metrics.loss).collect();
        assert!(losses.iter().all(|loss| loss.is_finite() && *loss > 0.0) && losses[0] != losses[1]);
        for size in [2, 8] {
            let program = with_updates(&of_part, size, Some(1.0));
            for trained in train_workers(&|| Box::new(ReferenceBackend), &program, size) {
                assert_eq!(trained, alone, "{loss:?} of {} on {size} workers", graph.name);
            }
        }
    }
    // On GPUs, whose kernels sum in another order.
    let of_part = of_part_with(&digits(), Precision::F32, LossFunction::BinaryCrossEntropy);
    let alone = train_with(&Cuda::emulated().unwrap(), &with_updates(&of_part, 1, Some(1.0)), None, 0);
    let backend = || Box::new(Cuda::emulated().unwrap()) as Box<dyn Backend>;
    for trained in train_workers(&backend, &with_updates(&of_part, 2, Some(1.0)), 2) {
        assert_eq!(trained, alone);
    }
}

/// Sums over the parts of a GPU, and between GPUs, whether their queues run early or late.
#[test]
fn results_are_bit_identical_for_any_number_of_gpus() {
    // The emulation is slow: each number of GPUs once, some with queues that run late.
    let all_sizes: &[(usize, bool)] = &[(1, true), (2, false), (4, true), (8, true)];
    for (graph, precision, sizes) in
        [(digits(), Precision::F32, all_sizes), (branches(), Precision::Bf16, &[(2, true)])]
    {
        let alone = train_with(&Cuda::emulated().unwrap(), &program(&graph, precision, 1), None, 0);
        let losses: Vec<f64> = alone.1.iter().map(|metrics| metrics.loss).collect();
        assert!(losses.iter().all(|loss| loss.is_finite() && *loss > 0.0) && losses[0] != losses[1]);
        for &(size, late) in sizes {
            let backend = || Box::new(Cuda::emulated_with(4, late).unwrap()) as Box<dyn Backend>;
            let program = program(&graph, precision, size);
            for (rank, trained) in train_workers(&backend, &program, size).into_iter().enumerate() {
                assert_eq!(trained, alone, "GPU {rank} of {size}, late: {late}");
            }
        }
    }
}

/// With synchronised batch norm, on CPUs and GPUs.
#[test]
fn synchronised_results_are_bit_identical_for_any_number_of_workers() {
    for (graph, precision) in
        [(digits(), Precision::F32), (digits(), Precision::Bf16), (branches(), Precision::F32)]
    {
        let alone = train(&synchronised(&graph, precision, 1), None, 0);
        assert!(alone.1.iter().all(|metrics| metrics.loss.is_finite() && metrics.loss > 0.0));
        for size in [2, 4, 8] {
            let program = synchronised(&graph, precision, size);
            for trained in train_workers(&|| Box::new(ReferenceBackend), &program, size) {
                assert_eq!(trained, alone, "{size} workers");
            }
        }
    }
    let alone = train_with(&Cuda::emulated().unwrap(), &synchronised(&digits(), Precision::F32, 1), None, 0);
    for (size, late) in [(2, true), (8, false)] {
        let backend = || Box::new(Cuda::emulated_with(4, late).unwrap()) as Box<dyn Backend>;
        for trained in train_workers(&backend, &synchronised(&digits(), Precision::F32, size), size) {
            assert_eq!(trained, alone, "{size} GPUs, late: {late}");
        }
    }
}

/// Nothing but sums and maps is used on both sides of a batch norm.
#[test]
fn every_network_of_the_zoo_can_be_synchronised() {
    for network in zoo::NETWORKS {
        let graph = (network.build)(&(network.defaults)()).unwrap();
        let norms = graph.nodes.iter().filter(|node| matches!(node.op, stratus_graph::Op::BatchNorm2d(_)));
        let norms = norms.count();
        for workers in [1, PARTS] {
            let program = synchronised(&graph, Precision::F32, workers);
            let count = |name: &str| program.steps.iter().filter(|step| step.kernel.name() == name).count();
            assert_eq!(count("batch_norm_statistics_from_sums"), norms, "{}", graph.name);
            assert_eq!(count("batch_norm_statistics"), 0, "{}", graph.name);
        }
    }
}

/// With synchronised batch norm, parts give the results of one whole batch, up to rounding; without, they
/// do not.
#[test]
fn synchronised_parts_equal_one_batch() {
    // Without dropout, whose masks differ between a batch and its parts.
    let graph = digits();
    let whole = differentiate(&fused(&graph, Precision::F32, PARTS * PART, false)).unwrap();
    let whole = train(&with_optimiser(&whole, Some(1.0)), None, 0);
    let difference = |other: &Trained| {
        let pairs = other.0.iter().zip(&whole.0).flat_map(|(a, b)| {
            assert_eq!(a.0, b.0);
            a.1.iter().zip(&b.1)
        });
        let differences = pairs.map(|(a, b)| (f32::from_bits(*a) - f32::from_bits(*b)).abs());
        differences.fold(0.0, f32::max)
    };
    for (name, program, is_equal) in [
        ("eight parts", synchronised(&graph, Precision::F32, 1), true),
        ("eight parts with their own statistics", program(&graph, Precision::F32, 1), false),
    ] {
        let trained = train(&program, None, 0);
        assert_eq!(difference(&trained) < 1e-4, is_equal, "{name}: {}", difference(&trained));
        let losses = |trained: &Trained| trained.1.iter().map(|m| m.loss).collect::<Vec<_>>();
        let close = losses(&trained).iter().zip(losses(&whole)).all(|(a, b)| (a - b).abs() < 1e-5);
        assert_eq!(close, is_equal, "{name}: {:?} and {:?}", losses(&trained), losses(&whole));
    }
}

/// Running statistics are the mean over all parts, not those of the last part.
#[test]
fn running_statistics_are_the_mean_over_the_parts() {
    let graph = digits();
    let whole = program(&graph, Precision::F32, 1);
    let scales = whole.steps.iter().filter(|step| step.kernel.clone() == mean());
    assert_eq!(scales.count(), 6);
    let text = whole.dump();
    assert!(text.contains("in 8 micro-batches"), "{text}");
    let worker = program(&graph, Precision::F32, 8);
    assert!(worker.sections.is_empty() && worker.batch == PART && worker.batch_parts == PARTS);
    let starts = worker.dump().matches("exchange_start").count();
    assert!(starts > 3, "{starts}");
}

fn mean() -> Kernel {
    stratus_engine::ops::Scale { factor: 1.0 / PARTS as f32 }.into()
}

#[test]
fn rejects_parts_that_are_not_powers_of_two() {
    let forward = lower(&digits(), Mode::Train, Precision::F32, PART).unwrap();
    let differentiated = differentiate(&forward).unwrap();
    for (count, workers) in [(6, 2), (8, 3), (2, 4)] {
        let error = split_into_parts(
            &differentiated,
            BatchParts {
                count,
                workers,
                bucket_bytes: 1,
                synchronise_batch_norm: false,
                gradients: Default::default(),
            },
        )
        .unwrap_err();
        assert!(error.to_string().contains("powers of two"), "{error}");
    }
    // A worker that is not connected fails instead of returning its own values as the sum.
    let program = program(&digits(), Precision::F32, 2);
    let outcome = std::panic::catch_unwind(|| train(&program, None, 0));
    assert!(outcome.is_err());
}

/// The norm of the gradients is summed in the order of one process, whatever the order of buckets.
#[test]
fn gradient_norm_is_summed_in_a_fixed_order() {
    for graph in [digits(), branches()] {
        let of_part = of_part(&graph, Precision::F32);
        let order = |workers| -> Vec<String> {
            let program = with_updates(&of_part, workers, Some(1.0));
            let sums = program.steps.iter().filter(|step| matches!(step.kernel, Kernel::SumOfSquares(_)));
            let gradient = |step: &stratus_engine::Step| program.value(step.inputs[0]).name.clone();
            sums.map(gradient).collect()
        };
        let alone = order(1);
        assert!(alone.len() > 3);
        for workers in [2, 4, 8] {
            assert_eq!(order(workers), alone, "{workers} workers");
        }
    }
}
