//! `stratus eval`: evaluates the weights of a run or file on labelled images.

mod mistakes;

use self::mistakes::MistakeArguments;
use super::common_keys::{BatchAndDeviceArguments, KeyFlag, KeyFlags};
use super::target::RunOrExperiment;
use super::windows::WindowArguments;
use crate::errors::{Failure, Result};
use crate::globals::Globals;
use crate::output::{Output, key_value_list, printable, table};
use crate::outputs::{Mark, Outputs, Overwrite};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use stratus_base::text::significant;
use stratus_experiment::Experiment;
use stratus_measures::{ClassMetrics, LabelMetrics, TargetMetrics};
use stratus_report::run_table::MAX_CLASSES_WITHOUT_TOP5;
use stratus_run::classes;
use stratus_train::evaluate::{
    DataPart, EvaluatedImages, ImageSelection, Mistake, Mistakes, Scores, TaskMetrics, evaluate_run,
    evaluate_run_in_windows, evaluate_weights, evaluate_weights_in_windows, view_count,
};
use stratus_train::weights::CheckpointChoice;

/// Arguments of `stratus eval`.
#[derive(Args, Debug)]
pub struct EvalArguments {
    /// Run directory; with --weights also a built-in experiment, experiment file or layer file
    #[arg(value_name = "RUN|EXPERIMENT")]
    pub target: String,
    /// Checkpoint to evaluate: an iteration, or `best` (see checkpoint.keep_best) [default: newest valid]
    #[arg(long, value_name = "ITERATION|best")]
    pub checkpoint: Option<CheckpointChoice>,
    /// Weights to evaluate: a safetensors file, a PyTorch state dict (.pth), or a run
    #[arg(long, value_name = "FILE|RUN", conflicts_with = "checkpoint")]
    pub weights: Option<String>,
    /// Folder of another data set to evaluate on [default split: val, or all if it has no splits]
    #[arg(long, value_name = "PATH")]
    pub data: Option<String>,
    /// Batch size and device.
    #[command(flatten)]
    pub batch_and_device: BatchAndDeviceArguments,
    /// Split to evaluate on: train, val, test or all [default: val]
    #[arg(long, value_name = "SPLIT")]
    pub split: Option<DataPart>,
    /// Write the metrics of each class to this file, in the format of a run's classes.csv
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write the confusion matrix to this file, as CSV: one row per true class, one column per predicted
    /// class
    #[arg(long, value_name = "FILE")]
    pub confusion: Option<PathBuf>,
    /// Mistakes.
    #[command(flatten)]
    pub mistakes: MistakeArguments,
    /// Sliding windows.
    #[command(flatten)]
    pub windows: WindowArguments,
    /// Existing output files.
    #[command(flatten)]
    pub overwrite: Overwrite,
}

/// The maximum number of classes of a classification shown in the table; `--csv` writes all.
const MAX_SHOWN_CLASSES: usize = 20;

#[derive(Serialize)]
struct RunReport {
    run: String,
    iteration: u64,
    weights_sha256: String,
    /// Omitted if false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    averaged: bool,
    #[serde(flatten)]
    results: Results,
}

#[derive(Serialize)]
struct FileReport {
    experiment: String,
    weights: String,
    file_sha256: String,
    #[serde(flatten)]
    results: Results,
}

/// The results, with the data that were evaluated.
#[derive(Serialize)]
struct Results {
    views: usize,
    measured: EvaluatedImages,
    /// The measures of the task, without those of classes.
    measures: BTreeMap<&'static str, Option<f64>>,
    #[serde(flatten)]
    scores: Scores,
    /// Omitted if not requested.
    #[serde(flatten)]
    mistakes: Option<MistakesReport>,
}

/// The mistakes in a report.
#[derive(Serialize)]
struct MistakesReport {
    /// The number of images with a mistake.
    images_with_mistakes: usize,
    /// The worst of them, the worst first.
    mistakes: Vec<Mistake>,
    /// The number of images on the gallery.
    #[serde(skip)]
    drawn: usize,
}

impl From<Mistakes> for MistakesReport {
    fn from(Mistakes { count, listed, gallery }: Mistakes) -> Self {
        Self { images_with_mistakes: count, mistakes: listed, drawn: gallery.tiles.len() }
    }
}

/// Runs `stratus eval`. `--set` overrides keys of the experiment, such as `data.path`.
///
/// # Errors
/// If the run, the weights or the data cannot be read, or do not match.
pub fn run(arguments: &EvalArguments, globals: &Globals, output: &Output) -> Result {
    let windows = arguments.windows.windows()?;
    arguments.claim_files()?;
    if let Some(value) = &arguments.data {
        KeyFlag { flag: "--data", key: "data.path", value }.check_agreement(globals)?;
    }
    let globals = &arguments.batch_and_device.prepend_to(globals)?;
    let target = RunOrExperiment::resolve(&arguments.target, globals)?;
    let images = ImageSelection { path: arguments.data.clone(), part: arguments.split };
    let request = arguments.mistakes.request();
    let mut warn = |text: &str| output.warning(text);
    if let (RunOrExperiment::Run(run), None) = (&target, &arguments.weights) {
        let checkpoint = arguments.checkpoint.unwrap_or_default();
        let evaluated = match windows {
            Some(windows) => {
                evaluate_run_in_windows(run, checkpoint, &globals.set, &images, windows, &mut warn)?
            }
            None => evaluate_run(run, checkpoint, &globals.set, &images, request, &mut warn)?,
        };
        warn_of_skipped_images(&evaluated.images, output);
        arguments.write_files(&evaluated.scores, evaluated.mistakes.as_ref())?;
        if matches!(evaluated.images.part, "all" | "train") && is_training_data_set(run, &evaluated.images) {
            output.warning("these images include training images; --split val and --split test are held out");
        }
        let report = RunReport {
            run: run.display().to_string(),
            iteration: evaluated.iteration,
            weights_sha256: evaluated.weights_sha256,
            averaged: evaluated.averaged,
            results: Results {
                views: evaluated.views,
                measured: evaluated.images,
                measures: evaluated.scores.metrics.measures(),
                scores: evaluated.scores,
                mistakes: evaluated.mistakes.map(MistakesReport::from),
            },
        };
        let iteration = report.iteration.to_string();
        let average = if report.averaged { "the moving average of " } else { "" };
        let weights = format!("{average}{}", report.weights_sha256);
        let about = [("run", &report.run), ("iteration", &iteration), ("weights", &weights)];
        return output.print_wrapped(&report, || render(&about, &report.results));
    }
    let mut experiment = target.experiment(globals)?;
    if let Some(weights) = &arguments.weights {
        experiment.model.weights = Some(super::weights::weights_setting(weights)?);
    }
    let Some(weights) = experiment.model.weights.clone() else {
        return Err(Failure::usage(format!("{} has no weights", arguments.target))
            .with_hint("use --weights FILE, or name a run directory"));
    };
    if arguments.checkpoint.is_some() {
        return Err(Failure::usage("--checkpoint needs a run directory"));
    }
    super::weights::replace_record(&target, &mut experiment, &weights, globals, &mut warn)?;
    let path = Path::new(&weights);
    let evaluated = match windows {
        Some(windows) => evaluate_weights_in_windows(&experiment, path, &images, windows, &mut warn)?,
        None => evaluate_weights(&experiment, path, &images, request, &mut warn)?,
    };
    warn_of_skipped_images(&evaluated.images, output);
    arguments.write_files(&evaluated.scores, evaluated.mistakes.as_ref())?;
    let report = FileReport {
        experiment: experiment.name().to_owned(),
        weights: evaluated.weights.path,
        file_sha256: evaluated.weights.sha256,
        results: Results {
            views: view_count(&experiment),
            measured: evaluated.images,
            measures: evaluated.scores.metrics.measures(),
            scores: evaluated.scores,
            mistakes: evaluated.mistakes.map(MistakesReport::from),
        },
    };
    let about =
        [("experiment", &report.experiment), ("weights", &report.weights), ("file", &report.file_sha256)];
    output.print_wrapped(&report, || render(&about, &report.results))
}

/// Warns of images that could not be decoded.
fn warn_of_skipped_images(measured: &EvaluatedImages, output: &Output) {
    if measured.skipped > 0 {
        output.warning(&format!(
            "cannot decode {} of {measured}: skipped; `stratus data check` lists them",
            measured.skipped
        ));
    }
}

/// Returns whether images are from the data set that a run was trained on.
fn is_training_data_set(run: &Path, measured: &EvaluatedImages) -> bool {
    let experiment = Experiment::load(&run.join(stratus_run::layout::EXPERIMENT));
    let canonical = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    experiment.is_ok_and(|found| canonical(&found.data_path()) == canonical(Path::new(&measured.path)))
}

/// Renders the data, the metrics, the table of classes and the mistakes.
fn render(about: &[(&str, &String)], results: &Results) -> String {
    let Results { views, measured, scores, mistakes, .. } = results;
    let mut rows: Vec<(String, String)> =
        about.iter().map(|(name, value)| ((*name).to_owned(), (*value).clone())).collect();
    if *views > 1 {
        rows.push(("views".to_owned(), format!("{views} of each image")));
    }
    rows.push(("evaluated on".to_owned(), measured.to_string()));
    rows.extend(measured.note().map(|note| (String::new(), note)));
    if scores.samples != measured.images as u64 {
        rows.push(("samples".to_owned(), format!("{} counted", scores.samples)));
    }
    rows.push(("loss".to_owned(), format!("{:.5}", scores.loss)));
    let shares: &[(&str, Option<f64>)] = match &scores.metrics {
        TaskMetrics::Classification(metrics) if metrics.classes.len() <= MAX_CLASSES_WITHOUT_TOP5 => {
            &[("top-1", metrics.top1)]
        }
        TaskMetrics::Classification(metrics) => &[("top-1", metrics.top1), ("top-5", metrics.top5)],
        TaskMetrics::Segmentation(metrics) => &[
            ("accuracy", metrics.accuracy),
            ("mean accuracy", metrics.mean_accuracy),
            ("mean IoU", metrics.miou),
            ("weighted IoU", metrics.weighted_iou),
            ("boundary F1", metrics.bf),
        ],
        TaskMetrics::MultiLabel(metrics) => &[
            ("label accuracy", metrics.at_default.accuracy),
            ("mean average precision", metrics.mean_average_precision),
            ("mean AUC", metrics.mean_auc),
            ("mean F1", metrics.at_chosen.macro_f1),
            ("exact match", metrics.at_chosen.exact_match),
        ],
        TaskMetrics::Regression(_) => &[],
    };
    rows.extend(shares.iter().map(|(name, share)| ((*name).to_owned(), percent(*share))));
    if let TaskMetrics::Regression(metrics) = &scores.metrics {
        let errors = [("R²", metrics.r2), ("mean absolute error", metrics.mae), ("RMSE", metrics.rmse)];
        rows.extend(errors.map(|(name, error)| (name.to_owned(), number(error))));
    }
    let is_shown = !matches!(scores.metrics, TaskMetrics::Classification(_))
        || scores.classes().len() <= MAX_SHOWN_CLASSES;
    let class_table = match &scores.metrics {
        _ if !is_shown => String::new(),
        TaskMetrics::Classification(_) | TaskMetrics::Segmentation(_) => class_table(scores),
        TaskMetrics::MultiLabel(metrics) => label_table(&metrics.labels),
        TaskMetrics::Regression(metrics) => target_table(&metrics.targets),
    };
    let mistakes = mistakes.as_ref().map(mistakes::render).unwrap_or_default();
    format!("{}{class_table}{mistakes}", key_value_list(&rows))
}

/// Formats a fraction in percent; `–` if there is none.
fn percent(share: Option<f64>) -> String {
    share.map_or("–".to_owned(), |share| format!("{:.2} %", 100.0 * share))
}

/// Formats a number; `–` if there is none.
fn number(number: Option<f64>) -> String {
    number.map_or("–".to_owned(), significant)
}

/// Renders one row per label.
fn label_table(labels: &[LabelMetrics]) -> String {
    let heads = ["label", "positives", "average precision", "AUC", "threshold", "precision", "recall", "F1"];
    let row = |label: &LabelMetrics| {
        let point = label.at_chosen.unwrap_or(label.at_default);
        let [precision, recall, f1] = [point.precision, point.recall, point.f1].map(percent);
        vec![
            printable(&label.name),
            label.positives.to_string(),
            percent(label.average_precision),
            percent(label.auc),
            format!("{:.4}", point.threshold),
            precision,
            recall,
            f1,
        ]
    };
    rows_below(&heads, labels.iter().map(row))
}

/// Renders one row per target.
fn target_table(targets: &[TargetMetrics]) -> String {
    let heads = ["target", "samples", "mean", "R²", "mean absolute error", "RMSE"];
    let row = |target: &TargetMetrics| {
        let TargetMetrics { name, samples, mean, r2, mae, rmse, .. } = target;
        let [mean, r2, mae, rmse] = [*mean, *r2, *mae, *rmse].map(number);
        vec![printable(name), samples.to_string(), mean, r2, mae, rmse]
    };
    rows_below(&heads, targets.iter().map(row))
}

/// A table below the metrics.
fn rows_below(heads: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let heads = heads.iter().map(|&head| head.to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(heads).chain(rows).collect();
    format!("\n{}", table(&rows.iter().map(Vec::as_slice).collect::<Vec<_>>()))
}

/// Renders one row per class.
fn class_table(scores: &Scores) -> String {
    let heads = ["class", "samples", "accuracy", "IoU", "boundary F1"].map(str::to_owned);
    let row = |class: &ClassMetrics| {
        let ClassMetrics { name, samples, accuracy, iou, bf, .. } = class;
        [printable(name), samples.to_string(), percent(*accuracy), percent(*iou), percent(*bf)]
    };
    let mut rows = vec![heads];
    rows.extend(scores.classes().iter().map(row));
    // Classification has no boundary F1.
    let columns = if matches!(scores.metrics, TaskMetrics::Segmentation(_)) { 5 } else { 4 };
    let rows: Vec<&[String]> = rows.iter().map(|row| &row[..columns]).collect();
    format!("\n{}", table(&rows))
}

impl EvalArguments {
    /// Claims the output files, before anything is computed.
    fn claim_files(&self) -> Result {
        let mut outputs = Outputs::new(self.overwrite);
        let read = [Some(&self.target), self.weights.as_ref(), self.data.as_ref()];
        read.into_iter().flatten().for_each(|path| outputs.protect(path));
        for (path, what, mark) in [
            (&self.csv, "the table of classes", Mark::Classes),
            (&self.confusion, "the confusion matrix", Mark::Confusion),
        ] {
            path.iter().try_for_each(|path| outputs.claim(path, what, mark))?;
        }
        for (path, what, mark) in self.mistakes.files() {
            path.iter().try_for_each(|path| outputs.claim(path, what, mark))?;
        }
        Ok(())
    }

    /// Writes the output files.
    fn write_files(&self, scores: &Scores, mistakes: Option<&Mistakes>) -> Result {
        if self.confusion.is_some() && scores.confusion.classes() == 0 {
            return Err(Failure::usage("--confusion: labels and numbers have no confusion matrix"));
        }
        let write = |path: &Path, text: String| Outputs::write(path, text.as_bytes());
        if let Some(path) = &self.csv {
            write(path, scores.outputs().to_csv())?;
        }
        if let Some(path) = &self.confusion {
            let names: Vec<&str> = scores.classes().iter().map(|class| class.name.as_str()).collect();
            write(path, classes::confusion_to_csv(&names, scores.confusion.rows()))?;
        }
        match mistakes {
            Some(mistakes) => self.mistakes.write(mistakes, &self.target, &scores.outputs()),
            None => Ok(()),
        }
    }
}
