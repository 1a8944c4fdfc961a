//! This machine's peaks, measured in about two seconds: memory bandwidth by a triad over arrays larger than
//! every cache, arithmetic by the backend's largest matrix product.

use super::Survey;
use serde::Serialize;
use std::fmt;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};
use stratus_run::machine::caches;

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Peaks {
    /// Threads that measured.
    pub threads: usize,
    /// Bytes that the triad moved a second, in GB (10⁹), counted as STREAM does.
    pub memory_gb_per_second: Option<f64>,
    /// Arithmetic, each by the source that measured it.
    pub compute: Vec<Compute>,
}

/// A peak of arithmetic.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compute {
    /// The name in `machine.json`: `f32_gflops`.
    pub name: String,
    /// Number format and source: "f32, oneDNN matmul".
    pub what: String,
    /// 10⁹ floating-point operations a second, a multiply-add being two.
    pub gflops: f64,
}

/// A way to measure arithmetic; gives GFLOP/s with this many threads, nothing where it cannot.
pub struct ComputeSource {
    /// The name in `machine.json`: `f32_gflops`.
    pub name: String,
    /// Number format and source: "f32, oneDNN matmul".
    pub what: String,
    /// Measures, in about half a second.
    pub measure: Box<dyn Fn(usize) -> Option<f64>>,
}

impl fmt::Debug for ComputeSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ComputeSource").field("what", &self.what).finish_non_exhaustive()
    }
}

impl ComputeSource {
    /// Plain Rust. Built for the oldest processor of its architecture, so it is a lower bound and no more.
    pub fn portable() -> Self {
        ComputeSource {
            name: "portable_f32_gflops".into(),
            what: "f32, portable code: a lower bound".into(),
            measure: Box::new(|threads| Some(portable_gflops(threads, Duration::from_millis(400)))),
        }
    }
}

/// Measures the machine with as many threads as this process may use.
pub fn measure(machine: &Survey, sources: &[ComputeSource]) -> Peaks {
    let threads = machine.threads();
    let compute = sources
        .iter()
        .filter_map(|source| {
            let gflops = (source.measure)(threads).filter(|gflops| gflops.is_finite())?;
            Some(Compute { name: source.name.clone(), what: source.what.clone(), gflops })
        })
        .collect();
    let memory_gb_per_second = triad_gb_per_second(threads, triad_elements(machine));
    Peaks { threads, memory_gb_per_second, compute }
}

/// Elements of each of the triad's three f32 arrays: four times the last-level cache; together at most a
/// quarter of the memory, and at most 4 GiB.
fn triad_elements(machine: &Survey) -> usize {
    let wanted = caches::last_level(&machine.machine.cpu.caches).unwrap_or(32 << 20).saturating_mul(4);
    let most = machine.usable_memory().map_or(256 << 20, |usable| (usable / 4).min(4 << 30)) / 3;
    usize::try_from(wanted.min(most) / 4).unwrap_or(1 << 24).max(1 << 16)
}

/// The best of some rounds of `a = b + s · c`; nothing where the memory cannot be had.
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
    // Written by the thread that uses them, so that they lie near it.
    let mut arrays = filled(elements, 0.0).zip(filled(elements, 1.0)).zip(filled(elements, 2.0));
    let mut seconds = [0.0; ROUNDS];
    for round in &mut seconds {
        // Every thread waits in every round, also one that has no memory: the others wait for it.
        barrier.wait();
        if let Some(((a, b), c)) = &mut arrays {
            let begun = Instant::now();
            let factor = black_box(3.0);
            for ((a, b), c) in a.iter_mut().zip(b.iter()).zip(c.iter()) {
                *a = *b + factor * *c;
            }
            black_box(a.as_slice());
            *round = begun.elapsed().as_secs_f64();
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

/// Multiplies and adds in registers, on every thread, for about this long.
fn portable_gflops(threads: usize, duration: Duration) -> f64 {
    /// Independent sums: enough to fill the pipelines, few enough to stay in registers.
    const LANES: usize = 40;
    const STEPS: usize = 20_000;
    let barrier = Barrier::new(threads);
    let work = || {
        let (factor, addend) = (black_box(0.999_f32), black_box(0.001_f32));
        let mut sums = [1.0_f32; LANES];
        barrier.wait();
        let begun = Instant::now();
        let mut rounds = 0.0;
        while begun.elapsed() < duration {
            for _ in 0..STEPS {
                for sum in &mut sums {
                    *sum = *sum * factor + addend;
                }
            }
            rounds += 1.0;
        }
        black_box(sums);
        rounds * (2 * STEPS * LANES) as f64 / begun.elapsed().as_secs_f64() / 1e9
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(cache: u64, usable: Option<u64>) -> Survey {
        let mut survey = Survey { ram_available_bytes: usable, ..Survey::default() };
        survey.machine.cpu.caches =
            vec![caches::Cache { level: 3, kind: "Unified".into(), bytes: cache, count: 1 }];
        survey
    }

    #[test]
    fn arrays_exceed_the_cache_but_not_the_memory() {
        assert_eq!(triad_elements(&machine(32 << 20, Some(64 << 30))), 32 << 20);
        assert_eq!(triad_elements(&machine(32 << 20, Some(120 << 20))), (10 << 20) / 4);
        assert!(triad_elements(&machine(u64::MAX, Some(u64::MAX))) <= 1 << 29);
        assert_eq!(triad_elements(&machine(0, Some(0))), 1 << 16);
        assert_eq!(triad_elements(&machine(1 << 30, None)), (256 << 20) / 3 / 4);
    }

    #[test]
    fn measuring_gives_numbers() {
        assert!(triad_gb_per_second(2, 1 << 12).is_some_and(|rate| rate > 0.0));
        assert!(portable_gflops(2, Duration::from_millis(1)) > 0.0);
    }

    #[test]
    fn memory_that_cannot_be_had_is_no_panic() {
        assert_eq!(triad_gb_per_second(2, usize::MAX / 2), None);
    }

    #[test]
    fn sources_that_cannot_measure_are_left_out() {
        let source = |what: &str, value: Option<f64>| ComputeSource {
            name: what.into(),
            what: what.into(),
            measure: Box::new(move |_| value),
        };
        let small = machine(0, Some(0));
        let peaks =
            measure(&small, &[source("no", None), source("nan", Some(f64::NAN)), source("yes", Some(5.0))]);
        assert_eq!(peaks.compute, [Compute { name: "yes".into(), what: "yes".into(), gflops: 5.0 }]);
    }
}
