//! Emulated GPUs that sum directly with each other.

use crate::rounded::relative_distance;
use crate::training::{
    Trained, branches, digits, of_part, train_in_group, train_with, train_workers, with_method, with_updates,
};
use std::sync::Arc;
use stratus_cuda::Cuda;
use stratus_engine::exchange::DeviceGroup;
use stratus_engine::ops::SumMethod;
use stratus_engine::{Backend, Precision, Program};
use stratus_exchange::{WorkerGroup, in_process};

/// Trains the program of each of `size` workers, whose queues run late or early.
fn train_directly(program: &Program, size: usize, late: bool) -> Vec<Trained> {
    let id = Cuda::emulated().unwrap().new_group_id().unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = in_process::transports(size)
            .into_iter()
            .map(|transport| {
                let id = id.clone();
                scope.spawn(move || {
                    let workers = WorkerGroup::open(|| Ok(transport)).unwrap();
                    let rank = workers.rank();
                    let backend = Cuda::emulated_with(4, late).unwrap();
                    let group = DeviceGroup { id, rank, size };
                    train_in_group(&backend, program, Some(Arc::new(workers)), rank, Some(&group))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn exact_sums_have_the_bits_of_one_process() {
    let all_sizes: &[(usize, bool)] = &[(2, false), (4, true), (8, true)];
    for (graph, precision, sizes) in
        [(digits(), Precision::F32, all_sizes), (branches(), Precision::Bf16, &[(2, true)])]
    {
        let of_part = of_part(&graph, precision);
        let alone = train_with(&Cuda::emulated().unwrap(), &with_updates(&of_part, 1, Some(1.0)), None, 0);
        for &(size, late) in sizes {
            let program = with_updates(&of_part, size, Some(1.0));
            for (rank, trained) in train_directly(&program, size, late).into_iter().enumerate() {
                assert_eq!(trained, alone, "GPU {rank} of {size}, late: {late}");
            }
        }
    }
}

/// Rounded sums have the bits that they have through host memory.
#[test]
fn rounded_sums_have_the_bits_of_processes() {
    let rounded = SumMethod { as_bf16: true, any_order: false };
    let of_part = of_part(&digits(), Precision::F32);
    for (size, late) in [(2, true), (4, false)] {
        let program = with_method(&of_part, size, Some(1.0), rounded);
        let backend = || Box::new(Cuda::emulated().unwrap()) as Box<dyn Backend>;
        let expected = train_workers(&backend, &program, size);
        assert_eq!(train_directly(&program, size, late), expected, "{size} GPUs");
    }
}

/// Sums in another order: all workers have the same bits, and all except gradients is exact.
#[test]
fn sums_in_any_order_keep_workers_equal() {
    let of_part = of_part(&digits(), Precision::F32);
    let exact = train_with(&Cuda::emulated().unwrap(), &with_updates(&of_part, 1, Some(1.0)), None, 0);
    for as_bf16 in [false, true] {
        let method = SumMethod { as_bf16, any_order: true };
        let program = with_method(&of_part, 4, Some(1.0), method);
        let [early, late] = [false, true].map(|late| train_directly(&program, 4, late));
        assert_eq!(early, late);
        assert!(early.iter().all(|trained| *trained == early[0]), "workers differ");
        assert_eq!(early[0].1[0], exact.1[0], "the first metrics");
        assert_ne!(early[0].0, exact.0, "another order gives other bits");
        let distance = relative_distance(&early[0], &exact);
        assert!(distance < 0.1, "{distance}");
    }
}
