//! `stratus optimise`: prunes or quantises the network of a run, fine-tunes it, and compares the variants.

use super::common_keys::{DeviceArgument, KeyFlags};
use crate::errors::{Failure, Result};
use crate::globals::Globals;
use crate::output::{Output, Table, key_value_list};
use crate::progress::Progress;
use crate::signals;
use clap::{ArgGroup, Args, ValueEnum};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use stratus_base::text::shell_path;
use stratus_engine::passes::quantise::QuantisedMap;
use stratus_onnx::{Int8Weights, QuantisedLayers, Uint8Map};
use stratus_report::report::Score;
use stratus_report::variant_table;
use stratus_run::machine::Machine;
use stratus_run::optimised::Pruning;
use stratus_run::quantisation::Quantisation;
use stratus_run::{RunDir, atomic};
use stratus_train::infer::{Int8Layers, Predictor};
use stratus_train::optimise::{
    ImportanceCriterion, LatencyTarget, OptimiseOptions, Optimised, QuantiseOptions, VariantTable,
    measure_variants, optimise, quantise_run,
};
use stratus_train::run::RunOptions;
use stratus_train::weights::{CheckpointChoice, load_trained_network, model_tensors};
use stratus_train::{Observer, TrainError};

/// The number of times that the latency of each variant is measured.
const LATENCY_RUNS: usize = 50;

/// Arguments of `stratus optimise`.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("goal").args(["prune", "int8", "target_ms"]).multiple(true).required(true)))]
#[command(group(ArgGroup::new("int8_options").args(["int8", "target_ms"]).multiple(true)))]
#[command(group(ArgGroup::new("fine_tuning").args(["prune", "target_ms", "epochs"]).multiple(true)))]
pub struct OptimiseArguments {
    /// Directory of a finished run
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Remove channels until at least this share of the multiply-adds is gone, like 0.5
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub prune: Option<f64>,
    /// Compute with eight-bit integers: in the layers where that is faster on this machine, or in all that
    /// can
    #[arg(
        long,
        value_name = "LAYERS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "faster"
    )]
    pub int8: Option<Int8Argument>,
    /// Make an image take at most this time on this machine: by int8 layers if that is enough, else also by
    /// removing as few channels as are needed
    #[arg(
        long,
        value_name = "MS",
        value_parser = parse_milliseconds,
        conflicts_with_all = ["prune", "int8", "checkpoint"]
    )]
    pub target_ms: Option<f64>,
    /// Largest drop of the score on the validation images by int8 layers, in points: 1 % of accuracy, mean
    /// IoU or mean average precision, or 0.01 of R²
    #[arg(
        long,
        value_name = "POINTS",
        default_value_t = 0.5,
        value_parser = parse_points,
        requires = "int8_options"
    )]
    pub keep: f64,
    /// Number of training images for the ranges of int8 layers
    #[arg(
        long,
        value_name = "IMAGES",
        default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=100_000),
        requires = "int8_options"
    )]
    pub calibration_images: u32,
    /// Use the original network as the teacher of the fine-tuning: the new network also learns to reproduce
    /// its outputs (keys `train.teacher_weight`, `train.teacher_temperature`)
    #[arg(long, requires = "fine_tuning", conflicts_with = "checkpoint")]
    pub teacher: bool,
    /// Epochs of fine-tuning; with `--int8` alone, it uses fake quantisation [default: a fifth of those of
    /// the run; 0 with `--int8` alone]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub epochs: Option<u64>,
    /// Directory of the new run; if it has a run of the same request, that is resumed [default:
    /// RUN-optimised]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Criterion by which channels are chosen
    #[arg(long, value_name = "CRITERION", default_value = "taylor")]
    pub importance: ImportanceArgument,
    /// Number of training batches for the gradients of `--importance taylor`
    #[arg(
        long,
        value_name = "BATCHES",
        default_value_t = 16,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    pub calibration_batches: u32,
    /// Layers that lose channels keep a multiple of this number, since kernels compute blocks of channels
    #[arg(
        long,
        value_name = "CHANNELS",
        default_value_t = 16,
        value_parser = clap::value_parser!(u32).range(1..=4096)
    )]
    pub granularity: u32,
    /// Checkpoint to start from: an iteration, or `best` (see checkpoint.keep_best) [default: newest valid]
    #[arg(long, value_name = "ITERATION|best")]
    pub checkpoint: Option<CheckpointChoice>,
    /// Device.
    #[command(flatten)]
    pub device: DeviceArgument,
}

/// The values of `--int8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Int8Argument {
    /// Layers that are faster with eight-bit integers on this machine
    Faster,
    /// Every layer that can, without measuring: for other machines
    All,
}

/// The values of `--importance`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ImportanceArgument {
    /// By the expected change of the loss, from gradients on training images
    Taylor,
    /// By the magnitude of weights
    L1,
    /// At random, to compare
    Random,
}

impl From<ImportanceArgument> for ImportanceCriterion {
    fn from(argument: ImportanceArgument) -> Self {
        match argument {
            ImportanceArgument::Taylor => Self::Taylor,
            ImportanceArgument::L1 => Self::L1,
            ImportanceArgument::Random => Self::Random,
        }
    }
}

#[derive(Serialize)]
struct Report {
    /// The directory of the new run.
    run: String,
    /// The removed channels; `null` without `--prune`.
    pruning: Option<Pruning>,
    /// The layers that run in int8; `null` without `--int8`.
    quantisation: Option<Quantisation>,
    /// The latency that was asked for, and the fastest network; `null` without `--target-ms`.
    target: Option<TargetReport>,
    #[serde(flatten)]
    table: VariantTable,
}

/// How close the fastest network is to a latency.
#[derive(Serialize)]
struct TargetReport {
    /// The milliseconds that were asked for.
    target_ms: f64,
    /// The milliseconds of the fastest network.
    ms: f64,
    /// Its name in the table.
    variant: String,
    /// The points of the score that it loses, hundredths; `null` if unknown.
    lost_points: Option<f64>,
}

impl TargetReport {
    fn new(target_ms: f64, table: &VariantTable) -> Option<Self> {
        let fastest = table.variants.iter().min_by(|one, other| one.ms_median.total_cmp(&other.ms_median))?;
        let original = table.variants.first().and_then(|variant| variant.measure);
        let lost = original.zip(fastest.measure).map(|(before, after)| 100.0 * (before - after));
        let (ms, variant) = (fastest.ms_median, fastest.variant.clone());
        Some(Self { target_ms, ms, variant, lost_points: lost })
    }

    /// Warns if the network is slower than asked, or loses more points than allowed.
    fn warn(&self, allowed_points: f64, output: &Output) {
        let Self { target_ms, ms, variant, lost_points } = self;
        if ms > target_ms {
            output.warning(&format!(
                "{variant} takes {ms:.3} ms, more than the {target_ms} ms asked for: repeat the measurement \
                 with the same command, or ask for less in another directory"
            ));
        }
        if let Some(lost) = lost_points.filter(|lost| lost > &allowed_points) {
            output.warning(&format!(
                "{variant} loses {lost:.2} points, more than the {allowed_points} of --keep: fine-tune \
                 longer with --epochs in another directory, or ask for more milliseconds"
            ));
        }
    }
}

fn parse_share(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share < 1.0 => Ok(share),
        _ => Err("must be above 0 and below 1".to_owned()),
    }
}

fn parse_points(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(points) if (0.0..=100.0).contains(&points) => Ok(points),
        _ => Err("must be 0 to 100".to_owned()),
    }
}

fn parse_milliseconds(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ms) if ms > 0.0 && ms.is_finite() => Ok(ms),
        _ => Err("must be above 0".to_owned()),
    }
}

/// Runs `stratus optimise`.
///
/// # Errors
/// If the run is not finished, the share cannot be reached, or training fails or is interrupted.
pub fn run(arguments: &OptimiseArguments, globals: &Globals, output: &Output) -> Result {
    let process_started = Some(Instant::now());
    let globals = &arguments.device.prepend_to(globals)?;
    RunDir::open(&arguments.run).map_err(Failure::usage)?;
    let out = arguments.out.clone().unwrap_or_else(|| default_directory(&arguments.run));
    let checkpoint = arguments.checkpoint.unwrap_or_default();
    let faster_layers = QuantiseOptions {
        images: arguments.calibration_images as usize,
        max_loss_points: arguments.keep,
        all_layers: false,
    };
    let options = OptimiseOptions {
        checkpoint,
        prune: arguments.prune,
        teacher: arguments.teacher,
        int8: arguments
            .int8
            .map(|layers| QuantiseOptions { all_layers: layers == Int8Argument::All, ..faster_layers }),
        target: arguments.target_ms.map(|ms| LatencyTarget { ms, int8: faster_layers }),
        importance: arguments.importance.into(),
        calibration_batches: arguments.calibration_batches as usize,
        granularity: arguments.granularity as usize,
        epochs: arguments.epochs,
        set: globals.set.clone(),
    };
    let stop = signals::stop_flag()?;
    let mut display = Progress::new(*output);
    let run_options = RunOptions {
        out: Some(out.clone()),
        stop: Arc::clone(&stop),
        monitor: display.startup_monitor(),
        process_started,
        ..RunOptions::default()
    };
    let Optimised { outcome, request } =
        optimise(&arguments.run, &options, &run_options, Machine::probe(), &mut display)?;
    if outcome.interrupted {
        drop(display);
        let hint = format!("resume with the same command, which continues {}", shell_path(&out));
        return Err(Failure::interrupted(outcome.run.path()).with_hint(hint));
    }
    let run = outcome.run;
    let pruning = request.prune.map(|_| Pruning::read(&run)).transpose()?;
    let int8 = request.int8.map(|int8| quantise_run(&run, int8, &globals.set, &stop, &mut display));
    let quantisation = match int8 {
        // A latency may be reached without int8, whose layers were chosen before the pruning.
        Some(Err(TrainError::NoInt8Layer { problem, .. })) if request.target.is_some() => {
            display.warn(&format!("not in int8: {problem}"));
            None
        }
        chosen => chosen.transpose()?,
    };
    drop(display);
    write_model(&run, &globals.set)?;
    output.message("comparing accuracy and latency of the networks");
    let mut warn = |text: &str| output.warning(text);
    let runs = LATENCY_RUNS;
    let table =
        measure_variants(&arguments.run, checkpoint, run.path(), &globals.set, runs, &stop, &mut warn)?;
    let target = arguments.target_ms.and_then(|ms| TargetReport::new(ms, &table));
    if let Some(target) = &target {
        target.warn(arguments.keep, output);
    }
    let report = Report { run: run.path().display().to_string(), pruning, quantisation, target, table };
    output.print_wrapped(&report, || render(&report, &run, output.terminal_width()))
}

/// `runs/digits/1` gives `runs/digits/1-optimised`.
fn default_directory(run: &Path) -> PathBuf {
    let absolute = std::path::absolute(run).unwrap_or_else(|_| run.to_owned());
    let name = absolute.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    match run.parent() {
        Some(parent) if run.file_name().is_some() => parent.join(format!("{name}-optimised")),
        _ => absolute.with_file_name(format!("{name}-optimised")),
    }
}

/// Writes the ONNX model of the folded network.
fn write_model(run: &RunDir, overrides: &[(String, String)]) -> Result {
    let mut ignored = |_: &str| {};
    let predictor = Predictor::from_run(run.path(), CheckpointChoice::Newest, overrides, &mut ignored)?;
    let model = predictor.folded_model()?;
    let quantised = predictor.int8_layers()?.map(onnx_layers);
    let metadata = load_trained_network(run.path(), CheckpointChoice::Newest, &mut ignored)?.metadata;
    atomic::write_with(&run.onnx_model(), |out| {
        Ok::<(), Failure>(stratus_onnx::write_quantised(
            out,
            &model.graph,
            &model_tensors(&model),
            &metadata.entries(),
            quantised.as_ref(),
        )?)
    })
}

/// The layers that run in int8, for the ONNX model.
fn onnx_layers(Int8Layers { maps, weights }: Int8Layers) -> QuantisedLayers {
    let maps = maps.into_iter().map(|(layer, QuantisedMap { scale, is_stored })| {
        (layer, Uint8Map { scale: scale.scale, zero_point: scale.zero_point, is_stored })
    });
    let weights = weights.into_iter().map(|(layer, (weights, biases))| {
        (layer, Int8Weights { bytes: weights.bytes, scales: weights.scales, biases })
    });
    QuantisedLayers { maps: maps.collect(), weights: weights.collect() }
}

fn render(report: &Report, run: &RunDir, width: Option<usize>) -> String {
    let Report { pruning, quantisation, target, table: VariantTable { task, variants, .. }, .. } = report;
    let score = Score::Of(*task);
    let heading = variant_table::heads(score);
    let rows: Vec<[String; 7]> = std::iter::once(heading)
        .chain(variants.iter().map(|variant| variant_table::cells(score, variant)))
        .collect();
    let table = Table::new(&rows).max_width(width, &variant_table::OPTIONAL_COLUMNS);
    let change = |[before, after]: [f64; 2]| format!("{:.1} % are left", 100.0 * after / before.max(1.0));
    let mut facts = Vec::new();
    if let Some(TargetReport { target_ms, ms, variant, .. }) = target {
        let reached = if ms <= target_ms { "reached" } else { "missed" };
        facts.push(("target".to_owned(), format!("{target_ms} ms, {reached}: {ms:.3} ms, {variant}")));
    }
    if let Some(pruning) = pruning {
        facts.extend([
            ("multiply-adds".to_owned(), change(pruning.multiply_adds.map(|count| count as f64))),
            ("parameters".to_owned(), change(pruning.parameters.map(|count| count as f64))),
        ]);
    }
    if let Some(Quantisation { layers, kept, precision, .. }) = quantisation {
        facts.push(("int8".to_owned(), format!("{} layers, the others {precision}", layers.len())));
        facts.extend(kept.iter().map(|kept| (format!("  {}", kept.layer), kept.reason.clone())));
    }
    facts.push(("model".to_owned(), run.onnx_model().display().to_string()));
    let facts = key_value_list(&facts);
    let path = shell_path(run.path());
    format!("{table}\n{facts}\nnext: `stratus infer {path} IMAGE`, `stratus report {path}`\n")
}

#[cfg(test)]
mod tests {
    use super::{default_directory, parse_share};
    use std::path::Path;

    #[test]
    fn the_new_run_is_beside_the_run() {
        assert_eq!(default_directory(Path::new("runs/digits/1")), Path::new("runs/digits/1-optimised"));
        assert_eq!(default_directory(Path::new("runs/digits/1/")), Path::new("runs/digits/1-optimised"));
        let here = std::env::current_dir().unwrap();
        let name = format!("{}-optimised", here.file_name().unwrap().to_str().unwrap());
        assert_eq!(default_directory(Path::new(".")), here.with_file_name(name));
    }

    #[test]
    fn shares_are_between_0_and_1() {
        for (text, share) in [("0.5", Some(0.5)), ("0", None), ("1", None), ("nan", None), ("half", None)] {
            assert_eq!(parse_share(text).ok(), share, "{text}");
        }
    }
}
