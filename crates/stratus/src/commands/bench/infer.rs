//! `stratus bench infer`: the latency of a network, and what it consists of.

use crate::commands::target::RunOrExperiment;
use crate::errors::{Failure, Result};
use crate::globals::Globals;
use crate::output::{Output, Table, table};
use crate::signals;
use clap::Args;
use serde::Serialize;
use stratus_base::text::{bytes, counted};
use stratus_run::machine::survey::MachineSurvey;
use stratus_train::bench::peaks::{self, Peaks};
use stratus_train::infer::{BatchLatency, InferenceLatency, Predictor, StepLatency, measure_latency};
use stratus_train::libraries::LibraryProbes;
use stratus_train::weights::CheckpointChoice;

/// Arguments of `stratus bench infer`.
#[derive(Args, Debug)]
pub struct BenchInferArguments {
    /// Run directory; or a built-in experiment or experiment file, whose network is measured with initial
    /// weights
    #[arg(value_name = "RUN|EXPERIMENT")]
    pub target: String,
    /// Batch sizes, measured in turn
    #[arg(
        long,
        value_name = "SIZES",
        value_delimiter = ',',
        default_value = "1,8",
        value_parser = clap::value_parser!(u32).range(1..=65_536)
    )]
    pub batch: Vec<u32>,
    /// Number of threads: `train.threads`
    #[arg(long, value_name = "NUMBER", value_parser = super::parse_thread_count)]
    pub threads: Option<usize>,
    /// Number of runs per batch size
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub runs: u32,
    /// Checkpoint to use: an iteration, or `best` (see checkpoint.keep_best) [default: newest valid]
    #[arg(long, value_name = "ITERATION|best")]
    pub checkpoint: Option<CheckpointChoice>,
}

/// The measured latency with the peaks of the machine.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    latency: InferenceLatency,
    /// The peak memory bandwidth in GB/s, if measured.
    peak_gb_per_second: Option<f64>,
    /// The peak of arithmetic in this precision in GFLOP/s, if measured.
    peak_gflops: Option<f64>,
}

/// Runs `stratus bench infer`.
///
/// # Errors
/// If the run or experiment is invalid, or a kernel fails.
pub(super) fn run(arguments: &BenchInferArguments, globals: &Globals, output: &Output) -> Result {
    let threads = arguments.threads.map(|count| ("train.threads".to_owned(), count.to_string()));
    let overrides: Vec<_> = globals.set.iter().cloned().chain(threads).collect();
    let globals = &Globals { set: overrides, ..globals.clone() };
    let mut warn = |text: &str| output.warning(text);
    let target = RunOrExperiment::resolve(&arguments.target, globals)?;
    if arguments.checkpoint.is_some() && !matches!(target, RunOrExperiment::Run(_)) {
        return Err(Failure::usage("--checkpoint needs a run directory"));
    }
    let stop = signals::stop_flag()?;
    let predictor = match &target {
        RunOrExperiment::Run(run) => {
            Predictor::from_run(run, arguments.checkpoint.unwrap_or_default(), &globals.set, &mut warn)?
        }
        RunOrExperiment::Experiment(experiment) => Predictor::with_initial_weights(experiment)?,
    };
    let mut batches: Vec<usize> = arguments.batch.iter().map(|&batch| batch as usize).collect();
    batches.sort_unstable();
    batches.dedup();
    let runs = arguments.runs as usize;
    let measured = measure_latency(&[&predictor], &batches, runs, &stop, &mut warn)?;
    let Some(latency) = measured.into_iter().next() else { return Ok(()) };
    let [peak_gb_per_second, peak_gflops] = measure_peaks(&latency, output);
    let report = Report { latency, peak_gb_per_second, peak_gflops };
    output.print_wrapped(&report, || render(&report, output.terminal_width()))
}

/// The peaks of memory in GB/s and of arithmetic in GFLOP/s of the processor with all its threads; those of
/// an accelerator are not measured.
fn measure_peaks(latency: &InferenceLatency, output: &Output) -> [Option<f64>; 2] {
    if latency.is_accelerator {
        return [None; 2];
    }
    output.message("measuring memory and arithmetic, about two seconds");
    let Peaks { memory_gb_per_second, compute, .. } =
        peaks::measure(&MachineSurvey::probe(), &LibraryProbes::detect().compute);
    let peak = compute.iter().find(|compute| compute.name.starts_with(&latency.precision));
    [memory_gb_per_second, peak.map(|peak| peak.gflops)]
}

impl Report {
    /// The percentage of a peak that a step reaches, the higher of memory and arithmetic, and which.
    fn bound(&self, step: &StepLatency) -> Option<(f64, &'static str)> {
        let percent = |amount: u64, peak: Option<f64>| Some(amount as f64 * 1e-4 / step.ms / peak?);
        let memory = percent(step.bytes, self.peak_gb_per_second).map(|percent| (percent, "memory"));
        let arithmetic = percent(step.flops, self.peak_gflops).map(|percent| (percent, "arithmetic"));
        let bounds = memory.into_iter().chain(arithmetic).filter(|(percent, _)| percent.is_finite());
        bounds.max_by(|one, other| one.0.total_cmp(&other.0))
    }
}

/// Renders the latency of each batch size, and the steps of each, at most `width` columns wide.
fn render(report: &Report, width: Option<usize>) -> String {
    let InferenceLatency { network, precision, library, runs, batches, .. } = &report.latency;
    let heading = ["batch", "median, ms", "p90, ms", "p99, ms", "images/s", "memory"].map(str::to_owned);
    let mut rows = vec![heading.to_vec()];
    rows.extend(batches.iter().map(|batch| {
        let ms = [batch.ms_median, batch.ms_p90, batch.ms_p99].map(|ms| format!("{ms:.3}"));
        let rest = [format!("{:.1}", batch.images_per_second), bytes(batch.bytes as u64)];
        [batch.batch.to_string()].into_iter().chain(ms).chain(rest).collect()
    }));
    let runs = counted(*runs as u64, "run");
    let mut text = format!("{network} {precision}, {runs} per batch size, {library}\n{}", table(&rows));
    for batch in batches {
        text.push_str(&format!("\nbatch {}\n{}", batch.batch, steps(report, batch, width)));
    }
    let peak = |value: Option<f64>, unit: &str| {
        value.map_or_else(|| "not measured".to_owned(), |value| format!("{value:.0} {unit}"))
    };
    let [memory, arithmetic] = [peak(report.peak_gb_per_second, "GB/s"), peak(report.peak_gflops, "GFLOP/s")];
    text.push_str(&format!("\npeaks of this machine: memory {memory}, arithmetic {arithmetic}\n"));
    text
}

fn steps(report: &Report, batch: &BatchLatency, width: Option<usize>) -> String {
    let heading =
        ["layer", "kernel", "ms", "share", "GFLOP/s", "GB/s", "% of peak", "bound", "implementation"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(batch.steps.iter().map(|step| {
        let rate = |amount: u64| format!("{:.1}", amount as f64 * 1e-6 / step.ms.max(f64::MIN_POSITIVE));
        let dash = || "–".to_owned();
        let bound = report.bound(step);
        vec![
            step.layer.clone(),
            step.kernel.clone(),
            format!("{:.3}", step.ms),
            format!("{:.1} %", step.percent),
            rate(step.flops),
            rate(step.bytes),
            bound.map_or_else(dash, |(percent, _)| format!("{percent:.0} %")),
            bound.map_or_else(dash, |(_, name)| name.to_owned()),
            step.implementation.clone(),
        ]
    }));
    Table::new(&rows).max_width(width, &["implementation", "bound", "kernel", "GB/s", "GFLOP/s"]).to_string()
}
