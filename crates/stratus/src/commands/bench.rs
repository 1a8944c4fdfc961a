//! `stratus bench`: kernels alone, the cost of measuring, the operations' cases.

mod exchange;
mod threads;

use super::forecast::bench_here::Asked;
use super::target::Target;
use crate::cli::Globals;
use crate::errors::{Failure, Result};
use crate::output::{Output, bytes, pairs, table};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::path::PathBuf;
use stratus_conformance::{Case, Suite, cases};
use stratus_engine::{Backend, Choices, Precision};
use stratus_train::bench::data_rate::{DataRate, data, epochs};
use stratus_train::bench::trace::StepTrace;
use stratus_train::bench::{Bench, Floor};
use stratus_train::device;
use stratus_train::experiment::Experiment;

/// Arguments of `stratus bench`.
#[derive(Args, Debug)]
pub struct BenchArguments {
    /// What to measure.
    #[command(subcommand)]
    pub what: What,
}

/// What `stratus bench` measures.
#[derive(Debug, Subcommand)]
pub enum What {
    /// The kernels of a network alone, one by one: the floor under its iteration
    Kernels {
        /// A built-in experiment, an experiment file or a run directory
        #[arg(value_name = "EXPERIMENT", default_value = "digits")]
        target: String,
        /// Rounds of five whole steps and five runs of each kernel
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        rounds: u32,
        /// Compare numbers of threads, such as `1,2,4,8`: where do more stop to help, and what bounds each
        /// kernel there?
        #[arg(long, value_name = "NUMBERS", value_delimiter = ',', value_parser = thread_count)]
        threads: Option<Vec<usize>>,
    },
    /// What the stamps of the timeline cost: iterations with and without them in turn, in one process
    Overhead {
        /// A built-in experiment, an experiment file or a run directory
        #[arg(value_name = "EXPERIMENT", default_value = "digits")]
        target: String,
        /// Pairs of iterations to compare
        #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
        pairs: u32,
    },
    /// What brings a network its images, alone: reading, decoding, augmentation, batches
    Data {
        /// A built-in experiment, an experiment file or a run directory
        #[arg(value_name = "EXPERIMENT", default_value = "digits")]
        target: String,
        /// Images of a round, at least
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
        images: u32,
        /// Rounds; after none the data set has been opened, and nothing else
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(..=10_000))]
        rounds: u32,
        /// Make each round a whole epoch, with nothing read ahead before the first: what a training waits for
        /// where the data come from a server
        #[arg(long, conflicts_with = "images")]
        epochs: bool,
    },
    /// Sums over workers: along our tree, and by the MPI library's own all-reduce
    Exchange {
        /// How many, a power of two
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=1024))]
        workers: u16,
        /// MiB of numbers; ResNet-50's gradients are 98
        #[arg(long, default_value_t = 98, value_parser = clap::value_parser!(u32).range(1..=4096))]
        mib: u32,
        /// Rounds
        #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        rounds: u32,
    },
    /// The operation cases that the tests use, timed
    Ops {
        /// Only the cases whose name contains this
        filter: Option<String>,
    },
    /// A training step on a GPU, measured by our marks and by CUPTI at the same time
    Trace {
        /// A built-in experiment, an experiment file or a run directory
        #[arg(value_name = "EXPERIMENT", default_value = "digits")]
        target: String,
        /// Steps
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        runs: u32,
    },
    /// How good forecasts are: measured step times against forecasts that did not see them
    Forecast {
        /// Compare on this machine instead, for these experiments: kernels timed alone against whole steps
        #[arg(long, value_name = "EXPERIMENTS", value_delimiter = ',')]
        here: Vec<String>,
        /// Batch sizes of `--here`; without it that of each experiment
        #[arg(
            long,
            value_name = "SIZES",
            value_delimiter = ',',
            requires = "here",
            value_parser = clap::value_parser!(u32).range(1..=16_777_216)
        )]
        batch: Vec<u32>,
        /// Number formats of `--here`, such as `f32,bf16`
        #[arg(long, value_name = "FORMATS", value_delimiter = ',', requires = "here")]
        precision: Vec<String>,
        /// What `stratus calibrate` wrote: its forecasts are compared, and no kernel is timed
        #[arg(long, value_name = "FILE", requires = "here")]
        calibrated: Option<PathBuf>,
        /// Measure all steps so often, one after the other; of each the shortest counts
        #[arg(
            long,
            value_name = "COUNT",
            requires = "here",
            default_value_t = 1,
            value_parser = clap::value_parser!(u32).range(1..=100)
        )]
        rounds: u32,
    },
    /// Run the operation cases of the tests and compare with the reference backend: does this machine compute
    /// what it should?
    Verify {
        /// Only the cases whose name contains this
        filter: Option<String>,
    },
}

/// Runs `stratus bench`.
///
/// # Errors
/// Where the experiment is not in order or a kernel fails.
pub fn run(arguments: &BenchArguments, globals: &Globals, output: &Output) -> Result {
    let open = |target: &str| -> Result<Bench> {
        let experiment = Target::find(target, globals)?.experiment_of_one_process(globals)?;
        Ok(Bench::new(&experiment, &mut |text| output.warning(text))?)
    };
    match &arguments.what {
        What::Kernels { target, rounds, threads: Some(counts) } => {
            let experiment = Target::find(target, globals)?.experiment_of_one_process(globals)?;
            let by = threads::measure(counts, |count| {
                let mut experiment = experiment.clone();
                experiment.train.threads = count;
                output.message(&format!("{count} threads"));
                let mut bench = Bench::new(&experiment, &mut |text| output.warning(text))?;
                Ok(bench.floor(*rounds as usize)?)
            })?;
            output.result(&by, || threads::render(&by, output.narrow()))
        }
        What::Kernels { target, rounds, threads: None } => {
            let floor = open(target)?.floor(*rounds as usize)?;
            output.result(&floor, || render_floor(&floor))
        }
        What::Overhead { target, pairs: count } => {
            let overhead = open(target)?.overhead(*count)?;
            output.result(&overhead, || {
                let mut rows = vec![
                    ("pairs".to_owned(), overhead.pairs.to_string()),
                    ("with stamps".to_owned(), format!("{:.3} ms", overhead.stamped_s * 1e3)),
                    ("without".to_owned(), format!("{:.3} ms", overhead.unstamped_s * 1e3)),
                    ("stamps cost".to_owned(), format!("{:+.3} %", overhead.overhead_percent)),
                ];
                if let Some([steps, marks]) = overhead.marks {
                    rows.push(("kernels that only mark".to_owned(), format!("{marks} in {steps} steps")));
                }
                rows.push(("start-up".to_owned(), format!("{:.2} s", overhead.startup_s)));
                let phase = |(name, seconds): &(&str, f64)| (format!("  {name}"), format!("{seconds:.2} s"));
                rows.extend(overhead.phases.iter().map(phase));
                pairs(&rows)
            })
        }
        What::Data { target, images, rounds, epochs: whole } => {
            let experiment = Target::find(target, globals)?.experiment(globals)?;
            let device = device::open(&experiment.train)?;
            let rate = if *whole {
                epochs(&experiment, &device, *rounds as usize)?
            } else {
                data(&experiment, &device, *images as usize, *rounds as usize)?
            };
            output.result(&rate, || render_rate(&rate))
        }
        What::Trace { target, runs } => {
            let traced = open(target)?.trace(*runs as usize)?;
            output.result(&traced, || render_trace(&traced))
        }
        What::Forecast { here, .. } if here.is_empty() => super::forecast::bench::run(output),
        What::Forecast { here: experiments, batch: batches, precision: precisions, calibrated, rounds } => {
            let calibrated = calibrated.as_deref();
            let asked = Asked { experiments, batches, precisions, calibrated, rounds: *rounds };
            super::forecast::bench_here::run(&asked, globals, output)
        }
        What::Exchange { workers, mib, rounds } => exchange::run(*workers, *mib as usize, *rounds, output),
        What::Verify { filter } => verify(filter.as_deref(), globals, output),
        What::Ops { filter } => ops(filter.as_deref(), globals, output),
    }
}

/// A number of threads.
fn thread_count(text: &str) -> std::result::Result<usize, String> {
    match text.trim().parse() {
        Ok(count @ 1..=1024) => Ok(count),
        _ => Err("a number of threads is from 1 to 1024".to_owned()),
    }
}

fn render_trace(traced: &StepTrace) -> String {
    let row = |layer: &str, kernels: usize, [marked, traced, elapsed]: [f64; 3]| {
        let off = match elapsed > 0.0 {
            true => format!("{:+.2} %", 100.0 * (marked / elapsed - 1.0)),
            false => "–".to_owned(),
        };
        let [marked, traced, elapsed] = [marked, traced, elapsed].map(|s| format!("{:.4}", s * 1e3));
        [layer.to_owned(), kernels.to_string(), marked, elapsed, off, traced]
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
        "{opened}\n{images} images a round, {channels} × {height} × {width} {precision}, \
         {workers} worker{}, {batches} batches; {}{jpeg}\n{}",
        if *workers == 1 { "" } else { "s" },
        if rate.decoded.is_empty() { "whole epochs" } else { "decoding only, on one thread" },
        table(&rows)
    )
}

fn render_floor(floor: &Floor) -> String {
    let heading =
        ["layer", "kernel", "alone ms", "within ms", "GFLOP/s", "GB/s", "implementation"].map(str::to_owned);
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

/// What came of comparing cases.
#[derive(Serialize)]
struct Verified {
    /// Library and device.
    library: String,
    /// Cases that were compared, once for each precision.
    compared: usize,
    /// What went wrong, a line each.
    failures: Vec<String>,
}

/// The precisions that networks are trained in, as far as a backend has them.
fn precisions(backend: &dyn Backend) -> Vec<Precision> {
    backend.precisions().into_iter().filter(|&precision| precision != Precision::F64).collect()
}

fn verify(filter: Option<&str>, globals: &Globals, output: &Output) -> Result {
    let settings = Experiment::default().with_overrides(&globals.set)?.train;
    let device = device::open(&settings)?;
    device.warnings.iter().for_each(|warning| output.warning(warning));
    let backend = device.backend.as_ref();
    let mut verified = Verified { library: backend.describe(), compared: 0, failures: Vec::new() };
    for precision in precisions(backend) {
        let wanted = |case: &Case| filter.is_none_or(|filter| case.name.contains(filter));
        let cases: Vec<Case> = cases::of(precision).into_iter().filter(wanted).collect();
        let report = Suite::new(backend).run(precision, &cases);
        verified.compared += report.compared;
        verified.failures.extend(report.failures);
    }
    if verified.compared == 0 {
        return Err(Failure::usage(format!("no case's name contains `{}`", filter.unwrap_or_default())));
    }
    output.result(&verified, || {
        let Verified { library, compared, failures } = &verified;
        let failures: String = failures.iter().map(|failure| format!("{failure}\n")).collect();
        format!("{failures}{library}: {compared} cases compared, {} differ", verified.failures.len())
    })?;
    match verified.failures.len() {
        0 => Ok(()),
        count => Err(Failure::failed(format!("{count} cases differ from the reference"))),
    }
}

/// A case, measured.
#[derive(Serialize)]
struct Measured {
    case: String,
    kernel: &'static str,
    implementation: String,
    precision: Precision,
    seconds: f64,
    gflops: f64,
    gb_per_second: f64,
}

fn ops(filter: Option<&str>, globals: &Globals, output: &Output) -> Result {
    const RUNS: usize = 10;
    let settings = Experiment::default().with_overrides(&globals.set)?.train;
    let device = device::open(&settings)?;
    device.warnings.iter().for_each(|warning| output.warning(warning));
    let mut measured = Vec::new();
    for precision in precisions(device.backend.as_ref()) {
        for case in cases::benchmarks(precision) {
            if filter.is_some_and(|filter| !case.name.contains(filter)) {
                continue;
            }
            let result = case.bench(device.backend.as_ref(), precision, Choices::default(), true, RUNS)?;
            measured.push(Measured {
                gflops: result.gigaflops(),
                gb_per_second: result.gigabytes(),
                case: result.case,
                kernel: result.kernel,
                implementation: result.implementation,
                precision,
                seconds: result.seconds,
            });
        }
    }
    if measured.is_empty() {
        return Err(Failure::usage(format!("no case's name contains `{}`", filter.unwrap_or_default())));
    }
    output.result(&measured, || {
        let heading =
            ["case", "kernel", "type", "ms", "GFLOP/s", "GB/s", "implementation"].map(str::to_owned);
        let mut rows = vec![heading];
        rows.extend(measured.iter().map(|m| {
            [
                m.case.clone(),
                m.kernel.to_owned(),
                m.precision.to_string(),
                format!("{:.3}", m.seconds * 1e3),
                format!("{:.1}", m.gflops),
                format!("{:.1}", m.gb_per_second),
                m.implementation.clone(),
            ]
        }));
        table(&rows)
    })
}
