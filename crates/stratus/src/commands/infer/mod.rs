//! `stratus infer`: what a trained network says of images.

mod files;
mod report;
mod video;

use self::files::{Files, frame_mask, overlay_of};
use self::report::{ErrorReport, ImageReport, Milliseconds, Report, Spread, Top, csv, text};
use super::target::Target;
use super::windows::WindowArguments;
use crate::cli::Globals;
use crate::errors::{Failure, Result};
use crate::output::Output;
use crate::outputs::{Outputs, Overwrite};
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Instant;
use stratus_data::contact_sheet::{Picture, Tile, class_colour, contact_sheet, mask_to_png};
use stratus_run::csv::Task;
use stratus_train::infer::{Answer, Inference, Outcome, Prediction, Predictor, Reason};
use stratus_train::weights::CheckpointChoice;

/// The most images of a contact sheet.
const SHEET: usize = 200;

/// Arguments of `stratus infer`.
#[derive(Args, Debug)]
pub struct InferArguments {
    /// A run directory; with --weights also a built-in experiment, an experiment file or a layer file
    #[arg(value_name = "RUN|EXPERIMENT")]
    pub target: String,
    /// Images, JPEG or PNG, folders of them, and videos, whose frames ffmpeg decodes where it is installed;
    /// - reads their names from standard input, a line each
    #[arg(value_name = "IMAGE|FOLDER|VIDEO|-", required = true)]
    pub images: Vec<PathBuf>,
    /// The checkpoint of the run after this many iterations, or the best by checkpoint.keep_best;
    /// without it the newest good one
    #[arg(long, value_name = "ITERATION|best")]
    pub checkpoint: Option<CheckpointChoice>,
    /// Take these weights: a safetensors file, a PyTorch state dict (.pth), or a run
    #[arg(long, value_name = "FILE|RUN", conflicts_with = "checkpoint")]
    pub weights: Option<String>,
    /// Classification: how many classes to show of each image
    #[arg(long, value_name = "K", default_value_t = 5)]
    pub top: usize,
    /// Segmentation: the folder for a mask of each image, a PNG whose values are the classes
    #[arg(short, long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Segmentation: masks are grey, without a palette
    #[arg(long, requires = "out")]
    pub raw: bool,
    /// Segmentation: also write each image with its mask laid over it
    #[arg(long, requires = "out")]
    pub overlay: bool,
    /// Write a contact sheet of the first 200 images, as the network sees them, to this PNG file
    #[arg(long, value_name = "FILE", conflicts_with = "window")]
    pub sheet: Option<PathBuf>,
    /// Classification: write the classes of each image to this CSV file
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Images that go through the network together; without it as in validation
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub batch: Option<u32>,
    /// Videos: show the network every Nth frame, from the first on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub every: u64,
    /// Videos: show the network at most this many frames of each
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub frames: Option<u64>,
    /// Windows of large images.
    #[command(flatten)]
    pub windows: WindowArguments,
    /// Files that are replaced.
    #[command(flatten)]
    pub overwrite: Overwrite,
}

/// Runs `stratus infer`. An image that cannot be decoded gets no answer and changes none of the others.
///
/// # Errors
/// Where the run or the weights cannot be read, a file not be written or may not be replaced, and at the end
/// where an image got no answer.
pub fn run(arguments: &InferArguments, globals: &Globals, output: &Output) -> Result {
    let mut files = Files::find(arguments)?;
    let windows = arguments.windows.windows()?;
    let mut warn = |text: &str| output.warning(text);
    let mut predictor = predictor(arguments, globals, &mut warn)?;
    expect_task(arguments, predictor.task())?;
    if let Some(windows) = windows {
        predictor = predictor.in_windows(windows)?;
    }
    files.claim(arguments)?;
    let Files { images, videos, masks } = files;
    let mut shown = Shown::new(arguments, &predictor, output);
    let most = if videos.is_empty() && windows.is_none() { images.len() } else { usize::MAX };
    let mut network = predictor.prepare(most, &mut warn)?;
    let begun = Instant::now();
    let views = arguments.overlay || arguments.sheet.is_some();
    if !images.is_empty() {
        network.files(images.clone(), views, |index, outcome| {
            let file = &images[index];
            shown.take(file.display().to_string(), name_of(file), masks.get(index), outcome)
        })?;
    }
    for video in &videos {
        if let Err(failure) = frames(video, arguments, &mut network, &mut shown)? {
            shown.unanswered(video.display().to_string(), &failure);
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let Shown { reports, errors, faults, times, tiles, size, .. } = shown;
    if let (Some(path), false) = (&arguments.sheet, tiles.is_empty()) {
        let sheet = contact_sheet(&arguments.target, &tiles, size, |class| predictor.class_name(class));
        Outputs::write(path, &sheet.to_png().map_err(Failure::failed)?)?;
    }
    if let Some(path) = &arguments.csv {
        Outputs::write(path, csv(&reports).as_bytes())?;
    }
    let total: Vec<f64> = reports.iter().map(|report| report.ms / 1e3).collect();
    let (all, [decode, network, writing]) = (Spread::of(total), times.map(Spread::of));
    let report = Report {
        images_per_second: reports.len() as f64 / seconds.max(1e-9),
        images: reports,
        errors,
        milliseconds: Milliseconds { median: all.median, p99: all.p99, decode, network, write: writing },
    };
    output.result(&report, || text(&report))?;
    complete(&report, &faults)
}

/// Says how many images got no answer.
///
/// # Errors
/// Where some did not: wrong usage, where all of them are smaller than a window.
fn complete(report: &Report, faults: &[Reason]) -> Result {
    let Some(first) = faults.first() else { return Ok(()) };
    let (without, all) = (faults.len(), faults.len() + report.images.len());
    let plural = if all == 1 { "" } else { "s" };
    let problem = format!("{without} of {all} image{plural} got no answer");
    let usage = report.images.is_empty() && faults.iter().all(|reason| *reason == Reason::TooSmall);
    let failure = if usage { Failure::usage(problem) } else { Failure::failed(problem) };
    Err(failure.hint(first.hint()))
}

/// Runs the network on the frames of a video, a batch at a time. The inner error is the video's: it cannot be
/// decoded, or no further.
fn frames(
    video: &Path,
    arguments: &InferArguments,
    network: &mut Inference<'_>,
    shown: &mut Shown<'_>,
) -> Result<std::result::Result<(), Failure>> {
    let views = arguments.overlay || arguments.sheet.is_some();
    let mut decoded = match video::Frames::open(video) {
        Ok(decoded) => decoded,
        Err(failure) => return Ok(Err(failure)),
    };
    let most = arguments.frames.unwrap_or(u64::MAX);
    let (mut number, mut count, mut ended) = (0, 0, None);
    while ended.is_none() {
        let (mut batch, mut numbers, mut seconds) = (Vec::new(), Vec::new(), Vec::new());
        while batch.len() < network.batch() && ended.is_none() {
            let begun = Instant::now();
            let frame = match if count < most { decoded.next() } else { Ok(None) } {
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
            number += 1;
            if (number - 1) % arguments.every == 0 {
                count += 1;
                batch.push(frame);
                numbers.push(number);
                seconds.push(begun.elapsed().as_secs_f64());
            }
        }
        if batch.is_empty() {
            break;
        }
        network.images(batch, views, |index, mut outcome| {
            let number: u64 = numbers[index];
            if let Ok(prediction) = &mut outcome {
                prediction.decode_s = seconds[index];
            }
            let mask = arguments.out.as_ref().map(|folder| folder.join(frame_mask(video, number)));
            let name = format!("{}#{number}", name_of(video));
            shown.take(format!("{}#{number}", video.display()), name, mask.as_ref(), outcome)
        })?;
    }
    Ok(ended.unwrap_or(Ok(())))
}

/// What the network said so far.
struct Shown<'a> {
    arguments: &'a InferArguments,
    predictor: &'a Predictor,
    output: &'a Output,
    reports: Vec<ImageReport>,
    /// The images without an answer, and why they have none.
    errors: Vec<ErrorReport>,
    faults: Vec<Reason>,
    /// Seconds of decoding, network and writing.
    times: [Vec<f64>; 3],
    /// Those of the contact sheet, and their height and width.
    tiles: Vec<Tile>,
    size: [usize; 2],
}

impl<'a> Shown<'a> {
    fn new(arguments: &'a InferArguments, predictor: &'a Predictor, output: &'a Output) -> Self {
        let (reports, errors, faults) = (Vec::new(), Vec::new(), Vec::new());
        let (times, tiles) = ([const { Vec::new() }; 3], Vec::new());
        Self { arguments, predictor, output, reports, errors, faults, times, tiles, size: [0; 2] }
    }

    /// Records a video that cannot be decoded, or no further.
    fn unanswered(&mut self, path: String, failure: &Failure) {
        let hint = failure.hint.as_ref().map_or(String::new(), |hint| format!("; {hint}"));
        let error = failure.error.to_string();
        self.output.warning(&format!("{error}{hint}"));
        // The message begins with the path.
        let error = error.strip_prefix(&format!("{path}: ")).unwrap_or(&error).to_owned();
        self.errors.push(ErrorReport { path, error });
        self.faults.push(Reason::Unreadable);
    }

    /// Writes what was asked for of one image, and keeps what the tables need.
    fn take(&mut self, path: String, caption: String, mask: Option<&PathBuf>, said: Outcome) -> Result {
        let Prediction { answer, decode_s, network_s, view, .. } = match said {
            Ok(prediction) => prediction,
            Err(unanswered) => {
                self.output.warning(&unanswered.message(&path));
                self.errors.push(ErrorReport { path, error: unanswered.problem });
                self.faults.push(unanswered.reason);
                return Ok(());
            }
        };
        let writing = Instant::now();
        let mut report = ImageReport { path, top: None, mask: None, ms: 0.0 };
        let mut tile = Tile { pixels: Vec::new(), mask: None, caption };
        match answer {
            Answer::Classes(classes) => {
                let top = classes.iter().take(self.arguments.top.max(1)).map(|&(class, probability)| Top {
                    class,
                    name: self.predictor.class_name(class),
                    probability,
                });
                let top: Vec<Top> = top.collect();
                if let Some(first) = top.first() {
                    tile.caption = format!("{} {:.0} %", first.name, 100.0 * first.probability);
                }
                report.top = Some(top);
            }
            Answer::Mask(classes, size) => {
                if let Some(file) = mask {
                    let png = mask_to_png(&classes, size, self.arguments.raw).map_err(Failure::failed)?;
                    Outputs::write(file, &png)?;
                    report.mask = Some(file.display().to_string());
                }
                if let Some(Picture { height, width, .. }) = view {
                    tile.mask = Some(stretched(classes, size, [height, width]));
                }
            }
        }
        if let Some(Picture { pixels, height, width }) = view {
            tile.pixels = pixels;
            self.size = [height, width];
            if let (true, Some(mask)) = (self.arguments.overlay, mask) {
                let png = overlay(&tile, self.size).to_png().map_err(Failure::failed)?;
                Outputs::write(&overlay_of(mask), &png)?;
            }
            if self.arguments.sheet.is_some() && self.tiles.len() < SHEET {
                self.tiles.push(tile);
            }
        }
        let write_s = writing.elapsed().as_secs_f64();
        report.ms = 1e3 * (decode_s + network_s + write_s);
        for (times, seconds) in self.times.iter_mut().zip([decode_s, network_s, write_s]) {
            times.push(seconds);
        }
        self.reports.push(report);
        Ok(())
    }
}

/// The classes of pixels in a picture of another size: each has the class of the nearest.
fn stretched(classes: Vec<i32>, [h, w]: [usize; 2], [height, width]: [usize; 2]) -> Vec<i32> {
    if [h, w] == [height, width] {
        return classes;
    }
    let rows = (0..height).map(|row| row * h / height);
    rows.flat_map(|row| (0..width).map(move |column| row * w + column * w / width))
        .map(|at| classes[at])
        .collect()
}

fn predictor(arguments: &InferArguments, globals: &Globals, warn: &mut dyn FnMut(&str)) -> Result<Predictor> {
    let target = Target::find(&arguments.target, globals)?;
    let mut overrides = globals.set.clone();
    overrides.extend(arguments.batch.map(|batch| ("validation.batch_size".to_owned(), batch.to_string())));
    if let (Target::Run(run), None) = (&target, &arguments.weights) {
        return Ok(Predictor::of_run(run, arguments.checkpoint.unwrap_or_default(), &overrides, warn)?);
    }
    if arguments.checkpoint.is_some() {
        return Err(Failure::usage("--checkpoint is a run's, and no run is named"));
    }
    let mut experiment = target.experiment(globals)?.with_overrides(&overrides)?;
    let weights = match &arguments.weights {
        Some(weights) => Some(super::weights::setting(weights)?),
        None => experiment.model.weights.clone(),
    };
    let Some(weights) = weights else {
        return Err(Failure::usage(format!("{} has no weights", arguments.target))
            .hint("name them with --weights FILE, or give a run directory"));
    };
    super::weights::replace_record(&target, &mut experiment, &weights, globals, warn)?;
    Ok(Predictor::of_weights(&experiment, Path::new(&weights), warn)?)
}

/// Checks that what is to be written is what the network says.
fn expect_task(arguments: &InferArguments, task: Task) -> Result {
    let (flag, what) = match task {
        Task::Classification if arguments.out.is_some() => ("--out", "classes of images, and no masks"),
        Task::Segmentation if arguments.csv.is_some() => ("--csv", "masks, and no classes of images"),
        _ => return Ok(()),
    };
    Err(Failure::usage(format!("{flag} changes nothing: the network gives {what}")))
}

/// An image with half of each pixel's colour that of its class.
fn overlay(tile: &Tile, [height, width]: [usize; 2]) -> Picture {
    let mut pixels = tile.pixels.clone();
    for (pixel, &class) in pixels.chunks_exact_mut(3).zip(tile.mask.iter().flatten()) {
        let Ok(class) = usize::try_from(class) else { continue };
        for (value, colour) in pixel.iter_mut().zip(class_colour(class)) {
            *value = value.midpoint(colour);
        }
    }
    Picture { pixels, height, width }
}

fn name_of(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
