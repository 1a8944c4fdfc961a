//! `stratus infer`: runs inference on images and videos.

mod files;
mod report;
mod stream;
mod video;
mod writer;

use self::files::{InferenceFiles, frame_mask_name};
use self::report::{ErrorReport, ImageReport, LatencyReport, Percentiles, Report, csv, render};
use self::stream::StreamInput;
use self::video::{FrameSelection, VideoFrames, VideoSource};
use self::writer::{PredictionWriter, WrittenPrediction};
use super::target::RunOrExperiment;
use super::windows::WindowArguments;
use crate::errors::{Failure, Result};
use crate::globals::Globals;
use crate::output::Output;
use crate::outputs::{Outputs, Overwrite};
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Instant;
use stratus_data::contact_sheet::{ClassPalette, SheetClasses, Tile, contact_sheet};
use stratus_run::csv::Task;
use stratus_train::infer::{FailureReason, Inference, Outcome, Predictor};
use stratus_train::weights::CheckpointChoice;

/// The maximum number of images on a contact sheet.
const MAX_SHEET_IMAGES: usize = 200;

/// Arguments of `stratus infer`.
#[derive(Args, Debug)]
pub struct InferArguments {
    /// Run directory; with --weights also a built-in experiment, experiment file or layer file
    #[arg(value_name = "RUN|EXPERIMENT")]
    pub target: String,
    /// JPEG, PNG or WebP files, folders, or videos (these need ffmpeg); `-` reads paths of images and videos
    /// from standard input, one per line, and answers each at once with a line
    #[arg(value_name = "IMAGE|FOLDER|VIDEO|-", required = true)]
    pub images: Vec<PathBuf>,
    /// Checkpoint to use: an iteration, or `best` (see checkpoint.keep_best) [default: newest valid]
    #[arg(long, value_name = "ITERATION|best")]
    pub checkpoint: Option<CheckpointChoice>,
    /// Weights to use: a safetensors file, a PyTorch state dict (.pth), or a run
    #[arg(long, value_name = "FILE|RUN", conflicts_with = "checkpoint")]
    pub weights: Option<String>,
    /// Classification: number of classes to show per image
    #[arg(long, value_name = "K", default_value_t = 5)]
    pub top: usize,
    /// Segmentation: output folder for the masks, PNG files whose pixel values are class indices
    #[arg(short, long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Segmentation: write greyscale masks, without a palette
    #[arg(long, requires = "out")]
    pub raw: bool,
    /// Segmentation: also write each image with its mask overlaid
    #[arg(long, requires = "out")]
    pub overlay: bool,
    /// Segmentation: colours of the classes, a text file of lines like `128 64 128 road` [default: those that
    /// the data set publishes]
    #[arg(long, value_name = "FILE")]
    pub palette: Option<PathBuf>,
    /// Write a contact sheet of the first 200 preprocessed images to this PNG file
    #[arg(long, value_name = "FILE", conflicts_with = "window")]
    pub sheet: Option<PathBuf>,
    /// Write the predicted classes, labels or numbers of each image to this file, as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Batch size [default: validation.batch_size]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub batch: Option<u32>,
    /// `-` is a video on standard input, not a list of paths; every frame is answered at once with a line
    #[arg(long)]
    pub video: bool,
    /// Videos: process every Nth frame
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub every: u64,
    /// Videos: maximum number of processed frames per video
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub frames: Option<u64>,
    /// Sliding windows.
    #[command(flatten)]
    pub windows: WindowArguments,
    /// Existing output files.
    #[command(flatten)]
    pub overwrite: Overwrite,
}

/// Runs `stratus infer`. An image that cannot be decoded is reported, and does not affect others.
///
/// # Errors
/// If the run or the weights cannot be read, or a file cannot be written or may not be replaced; after all
/// images, if one has no prediction.
pub fn run(arguments: &InferArguments, globals: &Globals, output: &Output) -> Result {
    let stream = StreamInput::of(arguments)?;
    let mut files = match stream {
        Some(_) => InferenceFiles::default(),
        None => InferenceFiles::find(arguments)?,
    };
    let windows = arguments.windows.windows()?;
    let mut warn = |text: &str| output.warning(text);
    let mut predictor = open_predictor(arguments, globals, &mut warn)?;
    check_flags_fit_task(arguments, predictor.task())?;
    if let Some(windows) = windows {
        predictor = predictor.in_windows(windows)?;
    }
    let palette = palette(arguments, &predictor)?;
    let writer = PredictionWriter { arguments, predictor: &predictor, palette: &palette };
    if let Some(input) = stream {
        return stream::run(input, writer, output);
    }
    files.claim(arguments)?;
    let InferenceFiles { images, videos, masks } = files;
    let mut results = InferenceResults::new(writer, output);
    let max_images = if videos.is_empty() && windows.is_none() { images.len() } else { usize::MAX };
    let mut network = predictor.prepare(max_images, &mut warn)?;
    let started = Instant::now();
    let views = arguments.overlay || arguments.sheet.is_some();
    if !images.is_empty() {
        network.predict_files(images.clone(), views, |index, outcome| {
            let file = &images[index];
            results.record(file.display().to_string(), file_name(file), masks.get(index), outcome)
        })?;
    }
    for video in &videos {
        if let Err(failure) = infer_video(video, arguments, &mut network, &mut results)? {
            results.record_video_failure(video.display().to_string(), &failure);
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let InferenceResults { reports, errors, reasons, times, tiles, size, .. } = results;
    if let (Some(path), false) = (&arguments.sheet, tiles.is_empty()) {
        let classes = SheetClasses { name: &|class| predictor.class_name(class), palette: &palette };
        let sheet = contact_sheet(&arguments.target, &tiles, size, &classes);
        Outputs::write(path, &sheet.to_png().map_err(Failure::failed)?)?;
    }
    if let Some(path) = &arguments.csv {
        Outputs::write(path, csv(&reports, predictor.task()).as_bytes())?;
    }
    let total: Vec<f64> = reports.iter().map(|report| report.ms / 1e3).collect();
    let (all, [decode, network, writing]) = (Percentiles::of(total), times.map(Percentiles::of));
    let report = Report {
        images_per_second: reports.len() as f64 / seconds.max(1e-9),
        images: reports,
        errors,
        milliseconds: LatencyReport { median: all.median, p99: all.p99, decode, network, write: writing },
    };
    output.print_wrapped(&report, || render(&report))?;
    check_all_predicted(&report, &reasons)
}

/// Checks that every image has a prediction.
///
/// # Errors
/// If one has none; a usage error if all images are smaller than a window.
fn check_all_predicted(report: &Report, reasons: &[FailureReason]) -> Result {
    let Some(first) = reasons.first() else { return Ok(()) };
    let (failed, all) = (reasons.len(), reasons.len() + report.images.len());
    let plural = if all == 1 { "" } else { "s" };
    let problem = format!("no prediction for {failed} of {all} image{plural}");
    let usage = report.images.is_empty() && reasons.iter().all(|reason| *reason == FailureReason::TooSmall);
    let failure = if usage { Failure::usage(problem) } else { Failure::failed(problem) };
    Err(failure.with_hint(first.hint()))
}

/// Runs inference on the frames of a video, in batches. The inner error is one of decoding.
fn infer_video(
    video: &Path,
    arguments: &InferArguments,
    network: &mut Inference<'_>,
    results: &mut InferenceResults<'_>,
) -> Result<std::result::Result<(), Failure>> {
    let views = arguments.overlay || arguments.sheet.is_some();
    let mut decoded = match VideoFrames::open(VideoSource::File(video), 1) {
        Ok(decoded) => decoded,
        Err(failure) => return Ok(Err(failure)),
    };
    let (mut selection, mut ended) = (FrameSelection::new(arguments.every, arguments.frames), None);
    while ended.is_none() {
        let (mut batch, mut numbers, mut seconds) = (Vec::new(), Vec::new(), Vec::new());
        while batch.len() < network.batch() && ended.is_none() {
            let started = Instant::now();
            let frame = match if selection.is_complete() { Ok(None) } else { decoded.next() } {
                Ok(Some(frame)) => frame,
                Ok(None) => {
                    ended = Some(Ok(()));
                    break;
                }
                Err(failure) => {
                    ended = Some(Err(failure));
                    break;
                }
            };
            if let Some(number) = selection.select() {
                batch.push(frame);
                numbers.push(number);
                seconds.push(started.elapsed().as_secs_f64());
            }
        }
        if batch.is_empty() {
            break;
        }
        network.predict_images(batch, views, |index, mut outcome| {
            let number: u64 = numbers[index];
            if let Ok(prediction) = &mut outcome {
                prediction.decode_s = seconds[index];
            }
            let mask = arguments.out.as_ref().map(|folder| folder.join(frame_mask_name(video, number)));
            let name = format!("{}#{number}", file_name(video));
            results.record(format!("{}#{number}", video.display()), name, mask.as_ref(), outcome)
        })?;
    }
    Ok(ended.unwrap_or(Ok(())))
}

/// The results so far.
struct InferenceResults<'a> {
    writer: PredictionWriter<'a>,
    output: &'a Output,
    reports: Vec<ImageReport>,
    /// The images and videos that failed.
    errors: Vec<ErrorReport>,
    /// The reason of each failure.
    reasons: Vec<FailureReason>,
    /// Seconds of decoding, network and writing, per image.
    times: [Vec<f64>; 3],
    /// The images of the contact sheet.
    tiles: Vec<Tile>,
    /// Height and width of the images of the contact sheet.
    size: [usize; 2],
}

impl<'a> InferenceResults<'a> {
    fn new(writer: PredictionWriter<'a>, output: &'a Output) -> Self {
        let (reports, errors, reasons) = (Vec::new(), Vec::new(), Vec::new());
        let (times, tiles) = ([const { Vec::new() }; 3], Vec::new());
        Self { writer, output, reports, errors, reasons, times, tiles, size: [0; 2] }
    }

    /// Records a video that cannot be decoded to its end.
    fn record_video_failure(&mut self, path: String, failure: &Failure) {
        self.output.warning(&with_hint(failure));
        self.errors.push(ErrorReport { error: without_path(&failure.error.to_string(), &path), path });
        self.reasons.push(FailureReason::Unreadable);
    }

    /// Writes the outputs of one image, and records its result.
    fn record(&mut self, path: String, file: String, mask: Option<&PathBuf>, outcome: Outcome) -> Result {
        let prediction = match outcome {
            Ok(prediction) => prediction,
            Err(failure) => {
                self.output.warning(&failure.message(&path));
                self.errors.push(ErrorReport { path, error: failure.problem });
                self.reasons.push(failure.reason);
                return Ok(());
            }
        };
        let WrittenPrediction { report, tile, size, seconds } =
            self.writer.write(path, file, mask.map(PathBuf::as_path), prediction)?;
        if let Some(size) = size {
            self.size = size;
            if self.writer.arguments.sheet.is_some() && self.tiles.len() < MAX_SHEET_IMAGES {
                self.tiles.push(tile);
            }
        }
        for (times, seconds) in self.times.iter_mut().zip(seconds) {
            times.push(seconds);
        }
        self.reports.push(report);
        Ok(())
    }
}

/// The message of a failure with its hint.
fn with_hint(failure: &Failure) -> String {
    let hint = failure.hint.as_ref().map_or(String::new(), |hint| format!("; {hint}"));
    format!("{}{hint}", failure.error)
}

/// A message without the path that it starts with, which has its own field.
fn without_path(message: &str, path: &str) -> String {
    message.strip_prefix(&format!("{path}: ")).unwrap_or(message).to_owned()
}

fn open_predictor(
    arguments: &InferArguments,
    globals: &Globals,
    warn: &mut dyn FnMut(&str),
) -> Result<Predictor> {
    let target = RunOrExperiment::resolve(&arguments.target, globals)?;
    let mut overrides = globals.set.clone();
    overrides.extend(arguments.batch.map(|batch| ("validation.batch_size".to_owned(), batch.to_string())));
    if let (RunOrExperiment::Run(run), None) = (&target, &arguments.weights) {
        return Ok(Predictor::from_run(run, arguments.checkpoint.unwrap_or_default(), &overrides, warn)?);
    }
    if arguments.checkpoint.is_some() {
        return Err(Failure::usage("--checkpoint needs a run directory"));
    }
    let mut experiment = target.experiment(globals)?.with_overrides(&overrides)?;
    let weights = match &arguments.weights {
        Some(weights) => Some(super::weights::weights_setting(weights)?),
        None => experiment.model.weights.clone(),
    };
    let Some(weights) = weights else {
        return Err(Failure::usage(format!("{} has no weights", arguments.target))
            .with_hint("use --weights FILE, or name a run directory"));
    };
    super::weights::replace_record(&target, &mut experiment, &weights, globals, warn)?;
    Ok(Predictor::from_weights(&experiment, Path::new(&weights), warn)?)
}

/// The colours of the network's classes.
fn palette(arguments: &InferArguments, predictor: &Predictor) -> Result<ClassPalette> {
    let names: Vec<String> = (0..predictor.classes()).map(|class| predictor.class_name(class)).collect();
    match &arguments.palette {
        Some(path) => ClassPalette::read(path, &names).map_err(Failure::usage),
        None => Ok(ClassPalette::for_classes(&names)),
    }
}

/// Checks that the output flags fit the network's task.
fn check_flags_fit_task(arguments: &InferArguments, task: Task) -> Result {
    let (flag, outputs) = match task {
        Task::Classification if arguments.out.is_some() => ("--out", "classes, not masks"),
        Task::Classification if arguments.palette.is_some() => ("--palette", "classes, not masks"),
        Task::MultiLabel if arguments.out.is_some() => ("--out", "labels, not masks"),
        Task::MultiLabel if arguments.palette.is_some() => ("--palette", "labels, not masks"),
        Task::Regression if arguments.out.is_some() => ("--out", "numbers, not masks"),
        Task::Regression if arguments.palette.is_some() => ("--palette", "numbers, not masks"),
        Task::Segmentation if arguments.csv.is_some() => ("--csv", "masks, not classes"),
        _ => return Ok(()),
    };
    Err(Failure::usage(format!("{flag} has no effect: the network outputs {outputs}")))
}

fn file_name(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
