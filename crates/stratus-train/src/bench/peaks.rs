//! The peaks of this machine, measured in about two seconds.
//!
//! Memory bandwidth is measured by a triad over arrays larger than every cache, arithmetic by a large matrix
//! product of the backend.

use serde::Serialize;
use std::fmt;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};
use stratus_run::machine::survey::MachineSurvey;
use stratus_run::machine::{Machine, caches};

/// Measured peaks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Peaks {
    /// Threads of the measurement.
    pub threads: usize,
    /// Memory bandwidth of the triad in GB/s (10⁹ bytes), counted as STREAM counts it.
    pub memory_gb_per_second: Option<f64>,
    /// Peaks of arithmetic, one for each benchmark that ran.
    pub compute: Vec<ComputePeak>,
}

impl Peaks {
    /// Adds the peaks to the content of `machine.json`.
    pub fn add_to(&self, machine: &mut Machine) {
        let bandwidth = self.memory_gb_per_second.map(|rate| ("triad_gb_per_s".to_owned(), rate));
        let compute = self.compute.iter().map(|compute| (compute.name.clone(), compute.gflops));
        machine.peaks.extend(bandwidth.into_iter().chain(compute));
    }
}

/// A peak of arithmetic.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComputePeak {
    /// The name in `machine.json`: `f32_gflops`.
    pub name: String,
    /// Precision and source: "f32, oneDNN matmul".
    #[serde(rename = "what")]
    pub description: String,
    /// GFLOP/s; a multiply-add counts as two operations.
    pub gflops: f64,
}

/// A benchmark of arithmetic.
pub struct ComputeBenchmark {
    /// The name in `machine.json`: `f32_gflops`.
    pub name: String,
    /// Precision and source: "f32, oneDNN matmul".
    pub description: String,
    /// Measures GFLOP/s with a number of threads in about half a second; `None` if it cannot run.
    pub measure: Box<dyn Fn(usize) -> Option<f64>>,
}

impl fmt::Debug for ComputeBenchmark {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ComputeBenchmark").field("description", &self.description).finish_non_exhaustive()
    }
}

impl ComputeBenchmark {
    /// Plain Rust, compiled for the oldest CPU of the architecture: a lower bound.
    #[must_use]
    pub fn portable() -> Self {
        ComputeBenchmark {
            name: "portable_f32_gflops".into(),
            description: "f32, portable code: a lower bound".into(),
            measure: Box::new(|threads| Some(portable_gflops(threads, Duration::from_millis(400)))),
        }
    }
}

/// Measures the peaks of the machine with all threads that this process may use.
#[must_use]
pub fn measure(machine: &MachineSurvey, sources: &[ComputeBenchmark]) -> Peaks {
    let threads = machine.threads();
    let compute = sources
        .iter()
        .filter_map(|source| {
            let gflops = (source.measure)(threads).filter(|gflops| gflops.is_finite())?;
            Some(ComputePeak { name: source.name.clone(), description: source.description.clone(), gflops })
        })
        .collect();
    let memory_gb_per_second = triad_gb_per_second(threads, triad_elements(machine));
    Peaks { threads, memory_gb_per_second, compute }
}

/// The number of elements of each of the triad's three f32 arrays.
///
/// An array is four times as large as the last-level cache; together they take at most a quarter of the
/// memory, and at most 4 GiB.
fn triad_elements(machine: &MachineSurvey) -> usize {
    let preferred_bytes =
        caches::last_level_bytes(&machine.machine.cpu.caches).unwrap_or(32 << 20).saturating_mul(4);
    let max_bytes = machine.usable_memory().map_or(256 << 20, |usable| (usable / 4).min(4 << 30)) / 3;
    usize::try_from(preferred_bytes.min(max_bytes) / 4).unwrap_or(1 << 24).max(1 << 16)
}

/// Measures the best of several rounds of `a = b + s · c`; `None` if the memory cannot be allocated.
fn triad_gb_per_second(threads: usize, elements: usize) -> Option<f64> {
    const ROUNDS: usize = 8;
    let each = elements.div_ceil(threads);
    let barrier = Barrier::new(threads);
    let seconds: Vec<Option<[f64; ROUNDS]>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| triad_rounds(each, &barrier))).collect();
        workers.into_iter().map(|worker| worker.join().ok().flatten()).collect()
    });
    let seconds: Vec<[f64; ROUNDS]> = seconds.into_iter().collect::<Option<_>>()?;
    let slowest = |round: usize| seconds.iter().map(|rounds| rounds[round]).fold(0.0, f64::max);
    let best = (0..ROUNDS).map(slowest).fold(f64::INFINITY, f64::min);
    let bytes = (each * threads * 3 * size_of::<f32>()) as f64;
    (best > 0.0).then(|| bytes / best / 1e9)
}

fn triad_rounds<const ROUNDS: usize>(elements: usize, barrier: &Barrier) -> Option<[f64; ROUNDS]> {
    // Each thread writes its arrays first, so that they are on its NUMA node.
    let mut arrays = filled(elements, 0.0).zip(filled(elements, 1.0)).zip(filled(elements, 2.0));
    let mut seconds = [0.0; ROUNDS];
    for round in &mut seconds {
        // A thread whose allocation failed waits too, since the barrier counts all threads.
        barrier.wait();
        if let Some(((a, b), c)) = &mut arrays {
            let started = Instant::now();
            let factor = black_box(3.0);
            for ((a, b), c) in a.iter_mut().zip(b.iter()).zip(c.iter()) {
                *a = *b + factor * *c;
            }
            black_box(a.as_slice());
            *round = started.elapsed().as_secs_f64();
        }
    }
    arrays.map(|_| seconds)
}

fn filled(elements: usize, value: f32) -> Option<Vec<f32>> {
    let mut array = Vec::new();
    array.try_reserve_exact(elements).ok()?;
    array.resize(elements, value);
    Some(array)
}

/// Measures multiply-adds in registers on every thread, for about `duration`.
fn portable_gflops(threads: usize, duration: Duration) -> f64 {
    /// Independent sums: enough to fill the pipelines, few enough to stay in registers.
    const LANES: usize = 40;
    const STEPS: usize = 20_000;
    let barrier = Barrier::new(threads);
    let work = || {
        let (factor, addend) = (black_box(0.999_f32), black_box(0.001_f32));
        let mut sums = [1.0_f32; LANES];
        barrier.wait();
        let started = Instant::now();
        let mut rounds = 0.0;
        while started.elapsed() < duration {
            for _ in 0..STEPS {
                for sum in &mut sums {
                    *sum = *sum * factor + addend;
                }
            }
            rounds += 1.0;
        }
        black_box(sums);
        rounds * (2 * STEPS * LANES) as f64 / started.elapsed().as_secs_f64() / 1e9
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(cache: u64, usable: Option<u64>) -> MachineSurvey {
        let mut survey = MachineSurvey { ram_available_bytes: usable, ..MachineSurvey::default() };
        survey.machine.cpu.caches =
            vec![caches::Cache { level: 3, kind: "Unified".into(), bytes: cache, count: 1 }];
        survey
    }

    #[test]
    fn triad_arrays_exceed_the_cache_but_not_the_memory() {
        assert_eq!(triad_elements(&machine(32 << 20, Some(64 << 30))), 32 << 20);
        assert_eq!(triad_elements(&machine(32 << 20, Some(120 << 20))), (10 << 20) / 4);
        assert!(triad_elements(&machine(u64::MAX, Some(u64::MAX))) <= 1 << 29);
        assert_eq!(triad_elements(&machine(0, Some(0))), 1 << 16);
        assert_eq!(triad_elements(&machine(1 << 30, None)), (256 << 20) / 3 / 4);
    }

    #[test]
    fn measured_rates_are_positive() {
        assert!(triad_gb_per_second(2, 1 << 12).is_some_and(|rate| rate > 0.0));
        assert!(portable_gflops(2, Duration::from_millis(1)) > 0.0);
    }

    #[test]
    fn failed_allocation_gives_no_bandwidth() {
        assert_eq!(triad_gb_per_second(2, usize::MAX / 2), None);
    }

    #[test]
    fn benchmarks_without_a_result_are_omitted() {
        let source = |name: &str, value: Option<f64>| ComputeBenchmark {
            name: name.into(),
            description: name.into(),
            measure: Box::new(move |_| value),
        };
        let small = machine(0, Some(0));
        let peaks =
            measure(&small, &[source("no", None), source("nan", Some(f64::NAN)), source("yes", Some(5.0))]);
        assert_eq!(
            peaks.compute,
            [ComputePeak { name: "yes".into(), description: "yes".into(), gflops: 5.0 }]
        );
    }
}
