//! Gradients that are sent as bf16: all workers have the same bits, and everything else is exact.

use crate::training::{Trained, branches, digits, of_part, train, train_workers, with_method, with_updates};
use stratus_cuda::Cuda;
use stratus_engine::ops::{Kernel, SumMethod};
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::{Backend, DType, Precision, Program, Role};

const ROUNDED: SumMethod = SumMethod { as_bf16: true, any_order: false };

fn rounded(of_part: &Program, workers: usize) -> Program {
    with_method(of_part, workers, Some(1.0), ROUNDED)
}

/// The distance of two trainings' values, relative to those of the second one.
pub fn relative_distance(one: &Trained, other: &Trained) -> f64 {
    let values = |trained: &Trained| -> Vec<f64> {
        trained.0.iter().flat_map(|(_, bits)| bits).map(|bits| f64::from(f32::from_bits(*bits))).collect()
    };
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let (one, other) = (values(one), values(other));
    norm(&mut one.iter().zip(&other).map(|(one, other)| one - other)) / norm(&mut other.iter().copied())
}

#[test]
fn workers_stay_equal_and_near_the_exact_training() {
    for (graph, precision) in [(digits(), Precision::F32), (branches(), Precision::Bf16)] {
        let of_part = of_part(&graph, precision);
        let exact = train(&with_updates(&of_part, 1, Some(1.0)), None, 0);
        for size in [2, 4, 8] {
            let backend = || Box::new(ReferenceBackend) as Box<dyn Backend>;
            let all = train_workers(&backend, &rounded(&of_part, size), size);
            assert!(all.iter().all(|trained| *trained == all[0]), "{size} workers differ");
            assert_eq!(train_workers(&backend, &rounded(&of_part, size), size)[0], all[0], "not repeatable");
            // The first iteration's metrics do not depend on gradients.
            assert_eq!(all[0].1[0], exact.1[0]);
            assert_ne!(all[0].0, exact.0, "gradients were not rounded");
            let distance = relative_distance(&all[0], &exact);
            assert!(distance < 0.1, "{size} workers: {distance}");
        }
    }
}

/// On a GPU, whether its queues run early or late.
#[test]
fn gpus_round_as_processes_do() {
    let program = rounded(&of_part(&digits(), Precision::F32), 2);
    let trained = [false, true].map(|late| {
        let backend = || Box::new(Cuda::emulated_with(4, late).unwrap()) as Box<dyn Backend>;
        let all = train_workers(&backend, &program, 2);
        assert_eq!(all[0], all[1]);
        all
    });
    assert_eq!(trained[0], trained[1]);
}

/// Gradients alone are rounded: not the metrics, the counts of labels, and the running statistics.
#[test]
fn only_buckets_of_gradients_are_rounded() {
    let of_part = of_part(&branches(), Precision::F32);
    let exact = with_updates(&of_part, 4, None);
    let program = with_method(&of_part, 4, None, ROUNDED);
    let starts = |program: &Program, is_rounded: bool| -> Vec<String> {
        let starts = program.steps.iter().filter(|step| match &step.kernel {
            Kernel::AllReduceBucket(half) => !half.waits && half.method.as_bf16 == is_rounded,
            _ => false,
        });
        let mut names: Vec<String> =
            starts.flat_map(|step| &step.inputs).map(|id| program.value(*id).name.clone()).collect();
        names.sort();
        names
    };
    let is_gradient = |name: &String| {
        let parameters = program.values.iter().filter(|value| value.role == Role::Parameter);
        let value = program.values.iter().find(|value| value.name == *name).unwrap();
        value.dtype == DType::F32 && parameters.clone().any(|parameter| name.contains(&parameter.name))
    };
    let gradients = starts(&program, true);
    assert!(gradients.len() > 4 && gradients.iter().all(is_gradient), "{gradients:?}");
    let others = starts(&program, false);
    assert!(others.iter().any(|name| name.contains("running_mean")), "{others:?}");
    assert_eq!(gradients.len() + others.len(), starts(&exact, false).len());
}
