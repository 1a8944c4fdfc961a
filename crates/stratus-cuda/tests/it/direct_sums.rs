//! Sums by a group of GPUs that has one member: its whole path, on a GPU with NCCL and recorded graphs.

use crate::oracle::gpu;
use std::sync::Arc;
use stratus_cuda::Cuda;
use stratus_engine::exchange::{Communicator, DeviceGroup};
use stratus_engine::ops::{SgdUpdate, SumMethod};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::fuse::fuse_with;
use stratus_engine::passes::lower::lower;
use stratus_engine::passes::parts::{BatchParts, split_into_parts};
use stratus_engine::passes::update::{Optimiser, update};
use stratus_engine::plan::{Persistent, Plan};
use stratus_engine::program::Mode;
use stratus_engine::session::IterationScalars;
use stratus_engine::{Backend, Choices, Clock, DType, Precision, Program, Session};
use stratus_graph::zoo::{self, ModelConfig};

const IMAGES: usize = 4;
const PIXELS: usize = 28 * 28;
/// On a GPU, the first two run before the graph is recorded, for each of the two buffers of inputs.
const ITERATIONS: u64 = 6;

/// The other workers as seen through the process: there is none, so every sum is that of this worker.
struct Alone {
    /// True if sums must not reach the process.
    is_unused: bool,
}

impl Communicator for Alone {
    fn start_all_reduce(
        &self,
        _bucket: usize,
        _dtype: DType,
        _method: SumMethod,
        _values: &[&mut [u8]],
    ) -> Result<(), String> {
        if self.is_unused { Err("the sum was not computed by the GPU".to_owned()) } else { Ok(()) }
    }

    fn wait_all_reduce(&self, _bucket: usize, _values: &mut [&mut [u8]]) -> Result<(), String> {
        Ok(())
    }

    fn send(&self, _to: usize, _message: usize, _values: &[&mut [u8]]) -> Result<(), String> {
        Err("there are no stages".to_owned())
    }

    fn receive(&self, _: usize, _: usize, _: bool, _values: &mut [&mut [u8]]) -> Result<(), String> {
        Err("there are no stages".to_owned())
    }
}

/// The program of one of two workers.
fn program(backend: &Cuda, gradients: SumMethod) -> Program {
    let config = ModelConfig { input: [1, 28, 28], classes: 10, width: None };
    let graph = (zoo::find("digits").unwrap().build)(&config).unwrap();
    let forward = lower(&graph, Mode::Train, Precision::F32, IMAGES).unwrap();
    let whole = differentiate(&fuse_with(&forward, backend.fusions()).unwrap()).unwrap();
    let parts =
        BatchParts { count: 2, workers: 2, bucket_bytes: 1 << 16, synchronise_batch_norm: false, gradients };
    let sgd = SgdUpdate {
        momentum: 0.9,
        weight_decay: 1e-4,
        nesterov: false,
        rate_factor: 1.0,
        loss_scaled: false,
    };
    update(&split_into_parts(&whole, parts).unwrap(), Optimiser::Sgd(sgd)).unwrap()
}

/// The bits of every value of a checkpoint after training; with `group`, sums are computed by the GPU.
fn trained(backend: &Cuda, gradients: SumMethod, group: Option<&DeviceGroup>) -> Vec<u32> {
    let program = program(backend, gradients);
    let mut persistent = Persistent::default();
    let plan = Plan::prepare(backend, &program, Choices::default(), false, &mut persistent).unwrap();
    let mut session = Session::on_backend(backend, vec![plan], persistent).unwrap();
    let exchange: Arc<dyn Communicator> = Arc::new(Alone { is_unused: group.is_some() });
    group.iter().for_each(|group| session.join_group(group).unwrap());
    session.connect(&exchange, 0, group.is_some()).unwrap();
    let names: Vec<(String, usize)> =
        session.state().map(|value| (value.name.to_owned(), value.shape.iter().product())).collect();
    for (name, count) in &names {
        let weight = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 400.0;
        let first = |i: usize| if name.contains("var") { 1.0 } else { weight(i) };
        session.write(name, &(0..*count).map(first).collect::<Vec<_>>()).unwrap();
    }
    let mut inputs = session.inputs(0).unwrap();
    for iteration in 0..ITERATIONS {
        let pixel = |i: usize| ((i * 7919 + iteration as usize * 104_729) % 255) as f32 / 127.0 - 1.0;
        let images: Vec<f32> = (0..IMAGES * PIXELS).map(pixel).collect();
        let labels: Vec<i32> = (0..IMAGES).map(|i| (i as i32 + 3 * iteration as i32) % 10).collect();
        inputs.images.as_mut_slice().copy_from_slice(bytemuck::cast_slice(&images));
        inputs.labels.as_mut_slice().copy_from_slice(bytemuck::cast_slice(&labels));
        session.set_iteration_scalars(IterationScalars { learning_rate: 0.05, iteration, seed: 1 }).unwrap();
        let (images, labels) = (inputs.images.as_mut_slice(), inputs.labels.as_mut_slice());
        session.run(0, images, labels, &mut Clock::new(session.slots(0)), 0).unwrap();
    }
    names.iter().flat_map(|(name, _)| session.read(name).unwrap()).map(f32::to_bits).collect()
}

/// The distance of two lists of f32 bits, relative to the second one.
fn relative_distance(one: &[u32], other: &[u32]) -> f64 {
    let value = |bits: &u32| f64::from(f32::from_bits(*bits));
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference = norm(&mut one.iter().zip(other).map(|(one, other)| value(one) - value(other)));
    difference / norm(&mut other.iter().map(value))
}

/// A sum over one GPU is its own value, however it is sent; as bf16 by a library it is rounded.
fn check_group_of_one(backend: &Cuda) {
    let alone = trained(backend, SumMethod::default(), None);
    for (as_bf16, any_order) in [(false, false), (false, true), (true, false), (true, true)] {
        // A group is joined once.
        let group = DeviceGroup { id: backend.new_group_id().unwrap(), rank: 0, size: 1 };
        let found = trained(backend, SumMethod { as_bf16, any_order }, Some(&group));
        assert_eq!(found == alone, !(as_bf16 && any_order), "as bf16: {as_bf16}, in any order: {any_order}");
        let distance = relative_distance(&found, &alone);
        assert!(distance < 0.1, "as bf16: {as_bf16}, in any order: {any_order}: {distance}");
    }
}

#[test]
fn group_of_one_emulated_gpu_keeps_its_values() {
    for late in [false, true] {
        check_group_of_one(&Cuda::emulated_with(4, late).unwrap());
    }
}

/// `scripts/gpu-check.sh run FOLDER workers`
#[test]
fn group_of_one_gpu_keeps_its_values() {
    let Some([gpu, _]) = gpu() else { return };
    println!("{}", gpu.direct_exchange().unwrap());
    check_group_of_one(&gpu);
}
