//! `stratus eval`: measures weights, those of a run or of a file, on images with known classes.

use super::target::Target;
use super::windows::WindowArguments;
use crate::cli::Globals;
use crate::errors::{Failure, Result};
use crate::output::{Output, pairs, table};
use crate::outputs::{Mark, Outputs, Overwrite};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use stratus_measures::ClassMeasures;
use stratus_report::run_table::FEW_CLASSES;
use stratus_run::classes;
use stratus_train::Experiment;
use stratus_train::evaluate::{
    ImageChoice, MeasuredImages, Measures, Part, Scores, of_run, of_run_in_windows, of_weights,
    of_weights_in_windows, view_count,
};
use stratus_train::weights::CheckpointChoice;

/// Arguments of `stratus eval`.
#[derive(Args, Debug)]
pub struct EvalArguments {
    /// A run directory; with --weights also a built-in experiment, an experiment file or a layer file
    #[arg(value_name = "RUN|EXPERIMENT")]
    pub target: String,
    /// The checkpoint of the run after this many iterations, or the best by checkpoint.keep_best;
    /// without it the newest good one
    #[arg(long, value_name = "ITERATION|best")]
    pub checkpoint: Option<CheckpointChoice>,
    /// Measure these weights: a safetensors file, a PyTorch state dict (.pth), or a run
    #[arg(long, value_name = "FILE|RUN", conflicts_with = "checkpoint")]
    pub weights: Option<String>,
    /// Measure on the data set in this folder. Without --split on its validation images, or on all if it is a
    /// folder of classes without parts
    #[arg(long, value_name = "PATH")]
    pub data: Option<String>,
    /// Measure on this part: train, val, test or all; without it the validation images
    #[arg(long, value_name = "PART")]
    pub split: Option<Part>,
    /// Write the measures of each class to this file, as classes.csv of a run has them
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write the confusion matrix to this file, as CSV: a line for each class, a column for each prediction
    #[arg(long, value_name = "FILE")]
    pub confusion: Option<PathBuf>,
    /// Windows of large images.
    #[command(flatten)]
    pub windows: WindowArguments,
    /// Files that are replaced.
    #[command(flatten)]
    pub overwrite: Overwrite,
}

/// The most classes of a classification that the table shows; `--csv` writes all.
const CLASSES_SHOWN: usize = 20;

#[derive(Serialize)]
struct RunReport {
    run: String,
    iteration: u64,
    weights_sha256: String,
    /// Not written for the weights themselves.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    averaged: bool,
    views: usize,
    measured: MeasuredImages,
    #[serde(flatten)]
    scores: Scores,
}

#[derive(Serialize)]
struct FileReport {
    experiment: String,
    weights: String,
    file_sha256: String,
    views: usize,
    measured: MeasuredImages,
    #[serde(flatten)]
    scores: Scores,
}

/// Runs `stratus eval`. `--set` overrides keys of the experiment, such as `data.path`.
///
/// # Errors
/// Where the run, the weights or the data cannot be read, or do not fit each other.
pub fn run(arguments: &EvalArguments, globals: &Globals, output: &Output) -> Result {
    let windows = arguments.windows.windows()?;
    arguments.claim_files()?;
    let target = Target::find(&arguments.target, globals)?;
    let images = ImageChoice { path: arguments.data.clone(), part: arguments.split };
    let mut warn = |text: &str| output.warning(text);
    if let (Target::Run(run), None) = (&target, &arguments.weights) {
        let checkpoint = arguments.checkpoint.unwrap_or_default();
        let evaluated = match windows {
            Some(windows) => of_run_in_windows(run, checkpoint, &globals.set, &images, windows, &mut warn)?,
            None => of_run(run, checkpoint, &globals.set, &images, &mut warn)?,
        };
        warn_of_left_out(&evaluated.measured, output);
        arguments.write_files(&evaluated.scores)?;
        if matches!(evaluated.measured.part, "all" | "train") && is_own(run, &evaluated.measured) {
            output.warning(
                "the run was trained on images among these; --split val and --split test are parts that it \
                 was not trained on",
            );
        }
        let report = RunReport {
            run: run.display().to_string(),
            iteration: evaluated.iteration,
            weights_sha256: evaluated.weights_sha256,
            averaged: evaluated.averaged,
            views: evaluated.views,
            measured: evaluated.measured,
            scores: evaluated.scores,
        };
        let iteration = report.iteration.to_string();
        let average = if report.averaged { "the moving average of " } else { "" };
        let weights = format!("{average}{}", report.weights_sha256);
        let about = [("run", &report.run), ("iteration", &iteration), ("weights", &weights)];
        return output.result(&report, || lines(&about, report.views, &report.measured, &report.scores));
    }
    let mut experiment = target.experiment(globals)?;
    if let Some(weights) = &arguments.weights {
        experiment.model.weights = Some(super::weights::setting(weights)?);
    }
    let Some(weights) = experiment.model.weights.clone() else {
        return Err(Failure::usage(format!("{} has no weights to measure", arguments.target))
            .hint("name them with --weights FILE, or give a run directory"));
    };
    if arguments.checkpoint.is_some() {
        return Err(Failure::usage("--checkpoint is a run's, and no run is named"));
    }
    super::weights::replace_record(&target, &mut experiment, &weights, globals, &mut warn)?;
    let path = Path::new(&weights);
    let evaluated = match windows {
        Some(windows) => of_weights_in_windows(&experiment, path, &images, windows, &mut warn)?,
        None => of_weights(&experiment, path, &images, &mut warn)?,
    };
    warn_of_left_out(&evaluated.measured, output);
    arguments.write_files(&evaluated.scores)?;
    let report = FileReport {
        experiment: experiment.name().to_owned(),
        weights: evaluated.weights.path,
        file_sha256: evaluated.weights.sha256,
        views: view_count(&experiment),
        measured: evaluated.measured,
        scores: evaluated.scores,
    };
    let about =
        [("experiment", &report.experiment), ("weights", &report.weights), ("file", &report.file_sha256)];
    output.result(&report, || lines(&about, report.views, &report.measured, &report.scores))
}

/// Says how many images could not be decoded.
fn warn_of_left_out(measured: &MeasuredImages, output: &Output) {
    if measured.left_out > 0 {
        output.warning(&format!(
            "{} of {measured} cannot be decoded and are left out; `stratus data check` lists them",
            measured.left_out
        ));
    }
}

/// Whether images are of the data set that a run was trained on.
fn is_own(run: &Path, measured: &MeasuredImages) -> bool {
    let own = Experiment::load(&run.join(stratus_run::layout::EXPERIMENT)).map(|own| own.data_path());
    let place = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    own.is_ok_and(|own| place(&own) == place(Path::new(&measured.path)))
}

/// What was measured, and what came out.
fn lines(about: &[(&str, &String)], views: usize, measured: &MeasuredImages, scores: &Scores) -> String {
    let mut rows: Vec<(String, String)> =
        about.iter().map(|(name, value)| ((*name).to_owned(), (*value).clone())).collect();
    if views > 1 {
        rows.push(("views".to_owned(), format!("{views} of each image")));
    }
    rows.push(("measured on".to_owned(), measured.to_string()));
    rows.extend(measured.note().map(|note| (String::new(), note)));
    if scores.samples != measured.images as u64 {
        rows.push(("samples".to_owned(), format!("{} that count", scores.samples)));
    }
    rows.push(("loss".to_owned(), format!("{:.5}", scores.loss)));
    let shares: &[(&str, Option<f64>)] = match &scores.measures {
        Measures::Classification(measures) if measures.classes.len() <= FEW_CLASSES => {
            &[("top-1", measures.top1)]
        }
        Measures::Classification(measures) => &[("top-1", measures.top1), ("top-5", measures.top5)],
        Measures::Segmentation(measures) => &[
            ("accuracy", measures.accuracy),
            ("mean accuracy", measures.mean_accuracy),
            ("mean IoU", measures.miou),
            ("weighted IoU", measures.weighted_iou),
            ("boundary F1", measures.bf),
        ],
    };
    rows.extend(shares.iter().map(|(name, share)| ((*name).to_owned(), percent(*share))));
    let classes = scores.classes();
    let is_shown = matches!(scores.measures, Measures::Segmentation(_)) || classes.len() <= CLASSES_SHOWN;
    format!("{}{}", pairs(&rows), if is_shown { class_table(scores) } else { String::new() })
}

/// A share in percent; `–` where there is none.
fn percent(share: Option<f64>) -> String {
    share.map_or("–".to_owned(), |share| format!("{:.2} %", 100.0 * share))
}

/// A line for each class.
fn class_table(scores: &Scores) -> String {
    let heads = ["class", "samples", "accuracy", "IoU", "boundary F1"].map(str::to_owned);
    let of_class = |class: &ClassMeasures| {
        let ClassMeasures { name, samples, accuracy, iou, bf, .. } = class;
        [name.clone(), samples.to_string(), percent(*accuracy), percent(*iou), percent(*bf)]
    };
    let mut rows = vec![heads];
    rows.extend(scores.classes().iter().map(of_class));
    // Images have no boundaries.
    let columns = if matches!(scores.measures, Measures::Segmentation(_)) { 5 } else { 4 };
    let rows: Vec<&[String]> = rows.iter().map(|row| &row[..columns]).collect();
    format!("\n{}", table(&rows))
}

impl EvalArguments {
    /// Claims the files that were asked for, before anything is measured.
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
        Ok(())
    }

    /// Writes the files that were asked for.
    fn write_files(&self, scores: &Scores) -> Result {
        let write = |path: &Path, text: String| Outputs::write(path, text.as_bytes());
        if let Some(path) = &self.csv {
            write(path, classes::to_csv(scores.classes()))?;
        }
        if let Some(path) = &self.confusion {
            let names: Vec<&str> = scores.classes().iter().map(|class| class.name.as_str()).collect();
            write(path, classes::confusion_to_csv(&names, scores.confusion.rows()))?;
        }
        Ok(())
    }
}
