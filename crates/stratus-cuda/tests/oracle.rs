//! Every case of the case tables against the reference backend, on an emulated GPU, where our plain kernels stand in for cuDNN and cuBLAS.
//!
//! CASES restricts a run to the cases whose name or kernel contains it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use stratus_cuda::Cuda;
use stratus_engine::cases::{self, Case};
use stratus_engine::ops::KernelSpec;
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::{Choices, EngineError, Precision};

const PRECISIONS: [Precision; 2] = [Precision::F32, Precision::Bf16];

/// What the cases are restricted to.
fn filter() -> Option<String> {
    std::env::var("CASES").ok().filter(|filter| !filter.is_empty())
}

fn cases_of(precision: Precision) -> Vec<Case> {
    let filter = filter().unwrap_or_default();
    let wanted = |case: &Case| case.name.contains(&filter) || case.kernel.name().contains(&filter);
    cases::of(precision).into_iter().filter(wanted).collect()
}

/// Compares all cases on some numbers of multiprocessors, forwards and backwards: the same bits, whatever the order of threads and blocks.
fn compare_all(precision: Precision, multiprocessors: u32) {
    let orders = [false, true].map(|backwards| Cuda::emulated_with(multiprocessors, backwards).unwrap());
    let mut failures = Vec::new();
    for case in cases_of(precision) {
        let [got, again] =
            orders.each_ref().map(|cuda| cases::run(cuda, &case, precision, Choices::default()));
        let failure = match got {
            Ok(got) => {
                let expected = cases::run(&ReferenceBackend, &case, precision, Choices::default()).unwrap();
                case.compare(precision, &expected, &got).and_then(|()| same_bits(&got, again)).err()
            }
            Err(error) => Some(error.to_string()),
        };
        failures.extend(failure.map(|failure| format!("{precision} `{}`: {failure}", case.name)));
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

fn same_bits(got: &[Vec<f64>], again: Result<Vec<Vec<f64>>, EngineError>) -> Result<(), String> {
    let again = again.map_err(|error| format!("backwards: {error}"))?;
    let bits = |results: &[Vec<f64>]| -> Vec<u64> { results.iter().flatten().map(|x| x.to_bits()).collect() };
    let (got, again) = (bits(got), bits(&again));
    match got.iter().zip(&again).position(|(got, again)| got != again) {
        Some(position) => Err(format!("result {position} hangs on the order of the threads")),
        None if got.len() != again.len() => Err("another number of results".to_owned()),
        None => Ok(()),
    }
}

#[test]
fn every_case_in_f32_on_three_multiprocessors() {
    compare_all(Precision::F32, 3);
}

#[test]
fn every_case_in_f32_on_many_multiprocessors() {
    compare_all(Precision::F32, 64);
}

#[test]
fn every_case_in_bf16_on_three_multiprocessors() {
    compare_all(Precision::Bf16, 3);
}

#[test]
fn every_case_in_bf16_on_many_multiprocessors() {
    compare_all(Precision::Bf16, 64);
}

#[test]
fn double_precision_is_refused() {
    let cuda = Cuda::emulated().unwrap();
    let mut failures = Vec::new();
    for case in cases_of(Precision::F64) {
        let result = cases::run(&cuda, &case, Precision::F64, Choices::default());
        if !matches!(result, Err(EngineError::Unsupported { .. })) {
            failures.push(format!("`{}`: {:?}", case.name, result.err()));
        }
    }
    assert!(failures.is_empty(), "{} are not refused:\n{}", failures.len(), failures.join("\n"));
}

/// What no case reaches: sums of tiles, and maps that are to lie in another way. The units have tests of these.
const WITHOUT_CASE: [&str; 2] = ["add_tiles", "reorder"];

/// No other kernel is without a case.
#[test]
fn every_kernel_is_reached() {
    if let Some(filter) = filter() {
        eprintln!("SKIPPED: CASES={filter} reaches not all");
        return;
    }
    let cuda = Cuda::emulated().unwrap();
    for precision in PRECISIONS {
        for case in cases::of(precision) {
            // What is wrong with a case is told by the others.
            let _ = cases::run(&cuda, &case, precision, Choices::default());
        }
    }
    let reached = Cuda::launched_in_emulation();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/source");
    let mut unreached = BTreeSet::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let file = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let kernels = text.lines().filter_map(|line| line.strip_prefix("EXPORT(")?.strip_suffix(')'));
        let kernels = kernels.filter(|kernel| !WITHOUT_CASE.contains(kernel));
        unreached.extend(
            kernels
                .filter(|kernel| !reached.iter().any(|(at, name)| *at == file && name == kernel))
                .map(|kernel| format!("{file}: {kernel}")),
        );
    }
    assert!(unreached.is_empty(), "{unreached:?}");
}
