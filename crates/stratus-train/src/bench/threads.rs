//! The speed-up of each kernel by threads, and its bottleneck.

use super::{Floor, peaks};
use crate::TrainError;
use crate::libraries::LibraryProbes;
use serde::Serialize;
use std::collections::BTreeMap;
use stratus_run::machine::survey::MachineSurvey;

/// The time of the kernels of one kind in a layer, by threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KernelScaling {
    /// The layers that the kernels compute.
    pub layer: String,
    /// The kernel.
    pub kernel: String,
    /// The phase.
    pub phase: &'static str,
    /// Milliseconds within a whole step, by number of threads; `None` if that plan has no such kernel.
    pub ms: Vec<Option<f64>>,
    /// The speed-up from the fewest to the most threads.
    pub speed_up: Option<f64>,
    /// GFLOP/s with the most threads.
    pub gflops: Option<f64>,
    /// GB/s with the most threads.
    pub gb_per_second: Option<f64>,
    /// Percent of the machine's measured peak of memory or of arithmetic; the higher of the two.
    pub percent_of_peak: Option<f64>,
    /// The bottleneck: `memory` or `arithmetic`.
    pub bound: Option<&'static str>,
}

/// A network's step by threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThreadScaling {
    /// The network.
    pub network: String,
    /// Element type.
    pub precision: String,
    /// Samples per step.
    pub batch: usize,
    /// The compared numbers of threads.
    pub threads: Vec<usize>,
    /// Images per second in whole steps.
    pub images_per_second: Vec<f64>,
    /// Seconds of whole steps.
    pub step_s: Vec<f64>,
    /// The peak memory bandwidth of all usable threads (triad) in GB/s, if measured.
    pub peak_gb_per_second: Option<f64>,
    /// The peak of all usable threads in this precision in GFLOP/s, if measured.
    pub peak_gflops: Option<f64>,
    /// The kernels, by time with the most threads, longest first.
    pub kernels: Vec<KernelScaling>,
}

/// Measures `floor` with each number of threads, and compares the results.
///
/// # Errors
/// If `floor` fails.
pub fn measure(
    threads: &[usize],
    mut floor: impl FnMut(usize) -> Result<Floor, TrainError>,
) -> Result<ThreadScaling, TrainError> {
    let mut threads = threads.to_vec();
    threads.sort_unstable();
    threads.dedup();
    let floors = threads.iter().map(|count| floor(*count)).collect::<Result<Vec<Floor>, TrainError>>()?;
    let probes = LibraryProbes::detect();
    let peaks = peaks::measure(&MachineSurvey::probe(), &probes.compute);
    let precision = floors.first().map(|floor| floor.precision.clone()).unwrap_or_default();
    let peak_gflops = peaks.compute.iter().find(|compute| compute.name.starts_with(&precision));
    Ok(compare_threads(
        threads,
        &floors,
        peaks.memory_gb_per_second,
        peak_gflops.map(|compute| compute.gflops),
    ))
}

fn compare_threads(
    threads: Vec<usize>,
    floors: &[Floor],
    memory: Option<f64>,
    arithmetic: Option<f64>,
) -> ThreadScaling {
    /// The sum over the kernels of a kind, phase and layer: seconds by threads; operations and bytes with the
    /// most threads.
    #[derive(Default)]
    struct Sum {
        seconds: BTreeMap<usize, f64>,
        flops: u64,
        bytes: u64,
    }
    let mut sums: BTreeMap<(String, String, &'static str), Sum> = BTreeMap::new();
    for (at, floor) in floors.iter().enumerate() {
        for kernel in &floor.kernels {
            let key = (kernel.layer.clone(), kernel.kernel.clone(), kernel.phase);
            let sum = sums.entry(key).or_default();
            *sum.seconds.entry(at).or_default() += kernel.within_s;
            if at + 1 == floors.len() {
                sum.flops += kernel.flops;
                sum.bytes += kernel.bytes;
            }
        }
    }
    let last = floors.len().saturating_sub(1);
    let mut kernels: Vec<KernelScaling> = sums
        .into_iter()
        .map(|((layer, kernel, phase), sum)| {
            let with_most = sum.seconds.get(&last).copied().filter(|seconds| *seconds > 0.0);
            let rate =
                |amount: u64| with_most.filter(|_| amount > 0).map(|seconds| amount as f64 * 1e-9 / seconds);
            let (gflops, gb_per_second) = (rate(sum.flops), rate(sum.bytes));
            let share =
                |rate: Option<f64>, peak: Option<f64>| Some(100.0 * rate? / peak.filter(|p| *p > 0.0)?);
            let shares =
                [("memory", share(gb_per_second, memory)), ("arithmetic", share(gflops, arithmetic))];
            let bound = shares
                .into_iter()
                .filter_map(|(name, share)| Some((name, share?)))
                .max_by(|a, b| a.1.total_cmp(&b.1));
            KernelScaling {
                layer,
                kernel,
                phase,
                ms: (0..floors.len()).map(|at| sum.seconds.get(&at).map(|seconds| seconds * 1e3)).collect(),
                speed_up: sum.seconds.get(&0).and_then(|fewest| Some(fewest / with_most?)),
                gflops,
                gb_per_second,
                percent_of_peak: bound.map(|(_, share)| share),
                bound: bound.map(|(name, _)| name),
            }
        })
        .collect();
    let at_last = |kernel: &KernelScaling| kernel.ms.get(last).copied().flatten().unwrap_or(0.0);
    kernels.sort_by(|a, b| at_last(b).total_cmp(&at_last(a)));
    let first = floors.first();
    ThreadScaling {
        network: first.map(|floor| floor.network.clone()).unwrap_or_default(),
        precision: first.map(|floor| floor.precision.clone()).unwrap_or_default(),
        batch: first.map_or(0, |floor| floor.batch),
        threads,
        images_per_second: floors.iter().map(|floor| floor.images_per_second).collect(),
        step_s: floors.iter().map(|floor| floor.step_s).collect(),
        peak_gb_per_second: memory,
        peak_gflops: arithmetic,
        kernels,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::KernelTime;

    fn floor(kernels: &[(&str, f64)]) -> Floor {
        let kernel = |(name, ms): &(&str, f64)| KernelTime {
            layer: "conv1".into(),
            kernel: (*name).into(),
            phase: "forward",
            implementation: String::new(),
            alone_s: ms * 1e-3,
            within_s: ms * 1e-3,
            flops: 2_000_000,
            bytes: 1_000_000,
        };
        Floor {
            network: "net".into(),
            precision: "bf16".into(),
            batch: 8,
            library: String::new(),
            kernels: kernels.iter().map(kernel).collect(),
            floor_s: 0.001,
            step_s: 0.002,
            percent_of_floor: 50.0,
            images_per_second: 4000.0,
            device_bytes: None,
        }
    }

    #[test]
    fn kernels_of_a_kind_are_summed_and_compared() {
        let floors = [floor(&[("a", 6.0), ("a", 2.0), ("b", 1.0)]), floor(&[("a", 2.0), ("c", 3.0)])];
        let by = compare_threads(vec![1, 4], &floors, Some(2.0), Some(10.0));
        assert_eq!(by.kernels.iter().map(|kernel| &kernel.kernel[..]).collect::<Vec<_>>(), ["c", "a", "b"]);
        let a = &by.kernels[1];
        assert_eq!((&a.ms[..], a.speed_up), (&[Some(8.0), Some(2.0)][..], Some(4.0)));
        // 2 million operations and a million bytes in 2 ms: 1 GFLOP/s of 10, 0.5 GB/s of 2.
        assert_eq!((a.gflops.map(f64::round), a.bound), (Some(1.0), Some("memory")));
        assert!((a.percent_of_peak.unwrap() - 25.0).abs() < 1e-9);
        let b = &by.kernels[2];
        assert_eq!((&b.ms[..], b.speed_up, b.gflops, b.bound), (&[Some(1.0), None][..], None, None, None));
        assert_eq!((by.kernels[0].speed_up, by.kernels[0].ms[0]), (None, None));
    }
}
