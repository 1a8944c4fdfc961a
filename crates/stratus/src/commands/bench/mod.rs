//! `stratus bench`: benchmarks of kernels, inference, data loading, communication and forecasts.

mod exchange;
mod infer;
mod threads;

use super::common_keys::{BenchKeyArguments, KeyFlags};
use super::forecast::bench_here::HereOptions;
use super::target::RunOrExperiment;
use crate::errors::{Failure, Result};
use crate::globals::Globals;
use crate::output::{Output, key_value_list, table};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use stratus_base::text::bytes;
use stratus_conformance::{Verification, measure_cases};
use stratus_experiment::Experiment;
use stratus_train::bench::data_rate::{DataRate, measure_epochs, measure_rounds};
use stratus_train::bench::threads::measure as measure_threads;
use stratus_train::bench::trace::StepTrace;
use stratus_train::bench::{Bench, Floor};
use stratus_train::device::{self, OpenDevice};

/// Arguments of `stratus bench`.
#[derive(Args, Debug)]
pub struct BenchArguments {
    /// The benchmark.
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// Subcommands of `stratus bench`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Time each kernel separately; the sum is a lower bound for the step time
    Kernels {
        /// Built-in experiment, experiment file or run directory
        #[arg(value_name = "EXPERIMENT", default_value = "digits")]
        target: String,
        /// Common configuration keys.
        #[command(flatten)]
        keys: BenchKeyArguments,
        /// Number of rounds, each of five whole steps and five runs of each kernel
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        rounds: u32,
        /// Compare thread counts, like `1,2,4,8`: speed-up and bottleneck of each kernel
        #[arg(long, value_name = "NUMBERS", value_delimiter = ',', value_parser = parse_thread_count)]
        threads: Option<Vec<usize>>,
    },
    /// Measure the overhead of the timeline by alternating iterations with and without it
    Overhead {
        /// Built-in experiment, experiment file or run directory
        #[arg(value_name = "EXPERIMENT", default_value = "digits")]
        target: String,
        /// Common configuration keys.
        #[command(flatten)]
        keys: BenchKeyArguments,
        /// Number of pairs of iterations
        #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
        pairs: u32,
    },
    /// Benchmark the data pipeline alone: reading, decoding, augmentation, batching
    Data {
        /// Built-in experiment, experiment file or run directory
        #[arg(value_name = "EXPERIMENT", default_value = "digits")]
        target: String,
        /// Common configuration keys.
        #[command(flatten)]
        keys: BenchKeyArguments,
        /// Minimum number of images per round
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
        images: u32,
        /// Number of rounds; 0 only opens the data set
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(..=10_000))]
        rounds: u32,
        /// Run a whole epoch per round, without prefetching before the first, as in training from a remote
        /// store
        #[arg(long, conflicts_with = "images")]
        epochs: bool,
    },
    /// Measure the latency of inference, whole and by layer, against the peaks of this machine
    Infer(infer::BenchInferArguments),
    /// Compare the tree all-reduce with MPI_Allreduce
    Exchange {
        /// Number of workers, a power of two
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=1024))]
        workers: u16,
        /// Size of the data to reduce, in MiB; the gradients of ResNet-50 take 98
        #[arg(long, default_value_t = 98, value_parser = clap::value_parser!(u32).range(1..=4096))]
        mib: u32,
        /// Number of rounds
        #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        rounds: u32,
    },
    /// Time the test suite's operation cases
    Ops {
        /// Run only cases whose name contains this text
        filter: Option<String>,
    },
    /// Compare GPU step times measured by CUDA events and by CUPTI
    Trace {
        /// Built-in experiment, experiment file or run directory
        #[arg(value_name = "EXPERIMENT", default_value = "digits")]
        target: String,
        /// Common configuration keys.
        #[command(flatten)]
        keys: BenchKeyArguments,
        /// Number of steps
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        runs: u32,
    },
    /// Cross-validate forecasts against measured step times
    Forecast {
        /// Compare forecasts of several GPUs with published speeds
        #[arg(long, conflicts_with_all = ["here", "batch", "precision", "calibrated"])]
        devices: bool,
        /// Compare forecasts with measured steps on this machine, for these experiments; the forecasts use
        /// kernels timed separately
        #[arg(long, value_name = "EXPERIMENTS", value_delimiter = ',')]
        here: Vec<String>,
        /// Batch sizes of `--here` [default: each experiment's]
        #[arg(
            long,
            value_name = "SIZES",
            value_delimiter = ',',
            requires = "here",
            value_parser = clap::value_parser!(u32).range(1..=16_777_216)
        )]
        batch: Vec<u32>,
        /// Precisions of `--here`, like `f32,bf16`
        #[arg(long, value_name = "PRECISIONS", value_delimiter = ',', requires = "here")]
        precision: Vec<String>,
        /// Compare the forecasts of this calibration file (see `stratus calibrate`) instead of timing kernels
        #[arg(long, value_name = "FILE", requires = "here")]
        calibrated: Option<PathBuf>,
        /// Number of repetitions, of which the medians count
        #[arg(
            long,
            value_name = "COUNT",
            requires = "here",
            default_value_t = 1,
            value_parser = clap::value_parser!(u32).range(1..=100)
        )]
        rounds: u32,
    },
    /// Check kernels against the reference backend
    Verify {
        /// Run only cases whose name contains this text
        filter: Option<String>,
    },
}

/// Runs `stratus bench`.
///
/// # Errors
/// If the experiment is invalid, or a kernel fails.
pub fn run(arguments: &BenchArguments, globals: &Globals, output: &Output) -> Result {
    let open = |target: &str, keys: &BenchKeyArguments| -> Result<Bench> {
        let globals = &keys.prepend_to(globals)?;
        let experiment = RunOrExperiment::resolve(target, globals)?.single_process_experiment(globals)?;
        Ok(Bench::new(&experiment, &mut |text| output.warning(text))?)
    };
    match &arguments.command {
        BenchCommand::Kernels { target, keys, rounds, threads: Some(counts) } => {
            let globals = &keys.prepend_to(globals)?;
            let experiment = RunOrExperiment::resolve(target, globals)?.single_process_experiment(globals)?;
            let by = measure_threads(counts, |count| {
                let mut experiment = experiment.clone();
                experiment.train.threads = count;
                output.message(&format!("{count} threads"));
                let mut bench = Bench::new(&experiment, &mut |text| output.warning(text))?;
                bench.floor(*rounds as usize)
            })?;
            output.print_wrapped(&by, || threads::render(&by, output.terminal_width()))
        }
        BenchCommand::Kernels { target, keys, rounds, threads: None } => {
            let floor = open(target, keys)?.floor(*rounds as usize)?;
            output.print_wrapped(&floor, || render_floor(&floor))
        }
        BenchCommand::Overhead { target, keys, pairs: count } => {
            let overhead = open(target, keys)?.overhead(*count)?;
            output.print_wrapped(&overhead, || {
                let mut rows = vec![
                    ("pairs".to_owned(), overhead.pairs.to_string()),
                    ("with timeline".to_owned(), format!("{:.3} ms", overhead.stamped_s * 1e3)),
                    ("without".to_owned(), format!("{:.3} ms", overhead.unstamped_s * 1e3)),
                    ("overhead".to_owned(), format!("{:+.3} %", overhead.overhead_percent)),
                ];
                if let Some([steps, marks]) = overhead.marks {
                    rows.push(("marker kernels".to_owned(), format!("{marks} in {steps} steps")));
                }
                rows.push(("startup".to_owned(), format!("{:.2} s", overhead.startup_s)));
                let phase = |(name, seconds): &(&str, f64)| (format!("  {name}"), format!("{seconds:.2} s"));
                rows.extend(overhead.phases.iter().map(phase));
                key_value_list(&rows)
            })
        }
        BenchCommand::Data { target, keys, images, rounds, epochs: whole_epochs } => {
            let globals = &keys.prepend_to(globals)?;
            let experiment = RunOrExperiment::resolve(target, globals)?.experiment(globals)?;
            let device = device::open(&experiment.train)?;
            let rate = if *whole_epochs {
                measure_epochs(&experiment, &device, *rounds as usize)?
            } else {
                measure_rounds(&experiment, &device, *images as usize, *rounds as usize)?
            };
            output.print_wrapped(&rate, || render_rate(&rate))
        }
        BenchCommand::Infer(arguments) => infer::run(arguments, globals, output),
        BenchCommand::Trace { target, keys, runs } => {
            let traced = open(target, keys)?.trace(*runs as usize)?;
            output.print_wrapped(&traced, || render_trace(&traced))
        }
        BenchCommand::Forecast { devices: true, .. } => super::forecast::bench::run_devices(output),
        BenchCommand::Forecast { here, .. } if here.is_empty() => super::forecast::bench::run(output),
        BenchCommand::Forecast {
            devices: _,
            here: experiments,
            batch: batches,
            precision: precisions,
            calibrated,
            rounds,
        } => {
            let calibrated = calibrated.as_deref();
            let options = HereOptions { experiments, batches, precisions, calibrated, rounds: *rounds };
            super::forecast::bench_here::run(&options, globals, output)
        }
        BenchCommand::Exchange { workers, mib, rounds } => {
            exchange::run(*workers, *mib as usize, *rounds, output)
        }
        BenchCommand::Verify { filter } => verify(filter.as_deref(), globals, output),
        BenchCommand::Ops { filter } => ops(filter.as_deref(), globals, output),
    }
}

/// Parses a number of threads.
fn parse_thread_count(text: &str) -> std::result::Result<usize, String> {
    match text.trim().parse() {
        Ok(count @ 1..=1024) => Ok(count),
        _ => Err("must be from 1 to 1024".to_owned()),
    }
}

fn render_trace(traced: &StepTrace) -> String {
    let row = |layer: &str, kernels: usize, [marked, traced, elapsed]: [f64; 3]| {
        let difference = match elapsed > 0.0 {
            true => format!("{:+.2} %", 100.0 * (marked / elapsed - 1.0)),
            false => "–".to_owned(),
        };
        let [marked, traced, elapsed] = [marked, traced, elapsed].map(|s| format!("{:.4}", s * 1e3));
        [layer.to_owned(), kernels.to_string(), marked, elapsed, difference, traced]
    };
    let heading = ["layer", "kernels", "marks, ms", "CUPTI, ms", "difference", "kernels alone, ms"];
    let heading = heading.map(str::to_owned);
    let mut rows = vec![heading];
    rows.extend(
        traced
            .layers
            .iter()
            .map(|layer| row(&layer.layer, layer.kernels, [layer.marked_s, layer.traced_s, layer.elapsed_s])),
    );
    let kernels = traced.layers.iter().map(|layer| layer.kernels).sum();
    rows.push(row("all", kernels, [traced.marked_s, traced.traced_s, traced.elapsed_s]));
    let StepTrace { network, precision, batch, library, runs, .. } = traced;
    format!("{network} {precision} batch {batch}, medians of {runs} steps, {library}\n{}", table(&rows))
}

fn render_rate(rate: &DataRate) -> String {
    let columns = [
        ("decode only, 1 thread", "images/s", &rate.decoded),
        ("delivered", "images/s", &rate.delivered),
        ("first batch after", "s", &rate.first_batch_s),
        ("then", "images/s", &rate.after_first),
    ];
    let columns = columns.into_iter().filter(|(_, _, rounds)| !rounds.is_empty()).collect::<Vec<_>>();
    let row = |name: String, value: &dyn Fn(&[f64]) -> f64| -> Vec<String> {
        let cell = |value: f64, unit: &str| format!("{value:.*} {unit}", if unit == "s" { 3 } else { 1 });
        let values = columns.iter().map(|(_, unit, rounds)| cell(value(rounds), unit));
        [name].into_iter().chain(values).collect()
    };
    let names = columns.iter().map(|(name, _, _)| *name);
    let heading = ["round"].into_iter().chain(names).map(str::to_owned).collect();
    let mut rows = vec![heading];
    rows.extend((0..rate.delivered.len()).map(|at| row((at + 1).to_string(), &|rounds| rounds[at])));
    rows.push(row("median".to_owned(), &DataRate::median));
    let [channels, height, width] = rate.shape;
    let DataRate { dataset, samples, open_s, precision, workers, batches, images, .. } = rate;
    let opened =
        format!("{dataset}, {samples} images, opened in {open_s:.3} s, {}", bytes(rate.resident_bytes));
    if rate.delivered.is_empty() {
        return format!("{opened}\n");
    }
    let jpeg = rate.jpeg.as_ref().map(|library| format!("; JPEG by {library}")).unwrap_or_default();
    format!(
        "{opened}\n{images} images per round, {channels} × {height} × {width} {precision}, \
         {workers} worker{}, {batches} batches; {}{jpeg}\n{}",
        if *workers == 1 { "" } else { "s" },
        if rate.decoded.is_empty() { "whole epochs" } else { "decoding only, on one thread" },
        table(&rows)
    )
}

fn render_floor(floor: &Floor) -> String {
    let heading = ["layer", "kernel", "alone, ms", "in step, ms", "GFLOP/s", "GB/s", "implementation"]
        .map(str::to_owned);
    let mut rows = vec![heading];
    rows.extend(floor.kernels.iter().map(|kernel| {
        [
            kernel.layer.clone(),
            kernel.kernel.clone(),
            format!("{:.3}", kernel.alone_s * 1e3),
            format!("{:.3}", kernel.within_s * 1e3),
            format!("{:.1}", kernel.flops as f64 * 1e-9 / kernel.alone_s),
            format!("{:.1}", kernel.bytes as f64 * 1e-9 / kernel.alone_s),
            kernel.implementation.clone(),
        ]
    }));
    format!(
        "{} {} batch {}, {}\n{}\nkernels alone {:.3} ms, whole step {:.3} ms: {:.1} % of the floor's speed, \
         {:.0} images/s\n",
        floor.network,
        floor.precision,
        floor.batch,
        floor.library,
        table(&rows),
        floor.floor_s * 1e3,
        floor.step_s * 1e3,
        floor.percent_of_floor,
        floor.images_per_second
    )
}

fn open_device(globals: &Globals, output: &Output) -> Result<OpenDevice> {
    let settings = Experiment::default().with_overrides(&globals.set)?.train;
    let device = device::open(&settings)?;
    device.warnings.iter().for_each(|warning| output.warning(warning));
    Ok(device)
}

fn no_case(filter: Option<&str>) -> Failure {
    Failure::usage(format!("no case matches `{}`", filter.unwrap_or_default()))
}

fn verify(filter: Option<&str>, globals: &Globals, output: &Output) -> Result {
    let device = open_device(globals, output)?;
    let verified = Verification::new(device.backend.as_ref(), filter);
    let Verification { library, compared, failures } = &verified;
    if *compared == 0 {
        return Err(no_case(filter));
    }
    output.print_wrapped(&verified, || {
        let lines: String = failures.iter().map(|failure| format!("{failure}\n")).collect();
        format!("{lines}{library}: {compared} cases compared, {} differ", failures.len())
    })?;
    match failures.len() {
        0 => Ok(()),
        count => Err(Failure::failed(format!("{count} cases differ from the reference"))),
    }
}

fn ops(filter: Option<&str>, globals: &Globals, output: &Output) -> Result {
    let device = open_device(globals, output)?;
    let measured = measure_cases(device.backend.as_ref(), filter)?;
    if measured.is_empty() {
        return Err(no_case(filter));
    }
    output.print_wrapped(&measured, || {
        let heading =
            ["case", "kernel", "precision", "ms", "GFLOP/s", "GB/s", "implementation"].map(str::to_owned);
        let mut rows = vec![heading];
        rows.extend(measured.iter().map(|m| {
            [
                m.case.clone(),
                m.kernel.to_owned(),
                m.precision.to_string(),
                format!("{:.3}", m.seconds * 1e3),
                format!("{:.1}", m.gigaflops()),
                format!("{:.1}", m.gigabytes()),
                m.implementation.clone(),
            ]
        }));
        table(&rows)
    })
}
