//! `stratus infer`: what a trained network says of images.

mod video;

use super::target::Target;
use super::windows::WindowArguments;
use crate::cli::Globals;
use crate::errors::{Failure, Result};
use crate::output::{Output, pairs, table};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::time::Instant;
use stratus_data::contact_sheet::{Picture, Tile, class_colour, contact_sheet, mask_to_png};
use stratus_data::images::find_images;
use stratus_run::atomic;
use stratus_run::csv::Task;
use stratus_train::TrainError;
use stratus_train::infer::{Answer, Inference, Prediction, Predictor};
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
}

#[derive(Serialize)]
struct Report {
    images: Vec<ImageReport>,
    milliseconds: Milliseconds,
    images_per_second: f64,
}

#[derive(Serialize)]
struct ImageReport {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    top: Option<Vec<Top>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mask: Option<String>,
    ms: f64,
}

#[derive(Serialize)]
struct Top {
    class: usize,
    name: String,
    probability: f64,
}

/// Milliseconds an image.
#[derive(Serialize)]
struct Milliseconds {
    median: f64,
    p99: f64,
    decode: Spread,
    network: Spread,
    write: Spread,
}

#[derive(Serialize)]
struct Spread {
    median: f64,
    p99: f64,
}

impl Spread {
    fn of(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let last = seconds.len().saturating_sub(1);
            seconds.get((last as f64 * share).round() as usize).map_or(0.0, |seconds| 1e3 * seconds)
        };
        Self { median: at(0.5), p99: at(0.99) }
    }
}

/// Runs `stratus infer`.
///
/// # Errors
/// Where the run, the weights or an image cannot be read, or a file not be written.
pub fn run(arguments: &InferArguments, globals: &Globals, output: &Output) -> Result {
    let (files, videos) = images(&arguments.images)?;
    let windows = arguments.windows.windows()?;
    let mut warn = |text: &str| output.warning(text);
    let mut predictor = predictor(arguments, globals, &mut warn)?;
    expect_task(arguments, predictor.task())?;
    if let Some(windows) = windows {
        predictor = predictor.in_windows(windows)?;
    }
    let masks = mask_files(arguments, &files, &videos)?;
    let mut shown = Shown::new(arguments, &predictor);
    let most = if videos.is_empty() && windows.is_none() { files.len() } else { usize::MAX };
    let mut network = predictor.prepare(most, &mut warn)?;
    let begun = Instant::now();
    let views = arguments.overlay || arguments.sheet.is_some();
    if !files.is_empty() {
        network.files(files.clone(), views, |prediction| {
            let file = &files[prediction.index];
            shown.take(file.display().to_string(), name_of(file), masks.get(prediction.index), prediction)
        })?;
    }
    for video in &videos {
        frames(video, arguments, &mut network, &mut shown)?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let Shown { reports, times, tiles, size, .. } = shown;
    if let (Some(path), false) = (&arguments.sheet, tiles.is_empty()) {
        let sheet = contact_sheet(&arguments.target, &tiles, size, |class| predictor.class_name(class));
        write(path, &sheet.to_png().map_err(Failure::failed)?)?;
    }
    if let Some(path) = &arguments.csv {
        write(path, csv(&reports).as_bytes())?;
    }
    let total: Vec<f64> = reports.iter().map(|report| report.ms / 1e3).collect();
    let (all, [decode, network, writing]) = (Spread::of(total), times.map(Spread::of));
    let report = Report {
        images_per_second: reports.len() as f64 / seconds.max(1e-9),
        images: reports,
        milliseconds: Milliseconds { median: all.median, p99: all.p99, decode, network, write: writing },
    };
    output.result(&report, || text(&report))
}

/// Shows the network the frames of a video, a batch at a time.
fn frames(
    video: &Path,
    arguments: &InferArguments,
    network: &mut Inference<'_>,
    shown: &mut Shown<'_>,
) -> Result {
    let views = arguments.overlay || arguments.sheet.is_some();
    let mut decoded = video::Frames::open(video)?;
    let most = arguments.frames.unwrap_or(u64::MAX);
    let (mut number, mut count, mut ended) = (0, 0, false);
    while !ended {
        let (mut batch, mut numbers, mut seconds) = (Vec::new(), Vec::new(), Vec::new());
        while batch.len() < network.batch() && !ended {
            let begun = Instant::now();
            let Some(frame) = (if count < most { decoded.next()? } else { None }) else {
                ended = true;
                break;
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
        network.images(batch, views, |mut prediction| {
            let number: u64 = numbers[prediction.index];
            prediction.decode_s = seconds[prediction.index];
            let mask = arguments.out.as_ref().map(|folder| folder.join(frame_name(video, number)));
            let name = format!("{}#{number}", name_of(video));
            shown.take(format!("{}#{number}", video.display()), name, mask.as_ref(), prediction)
        })?;
    }
    Ok(())
}

/// The name of a frame's mask.
fn frame_name(video: &Path, number: u64) -> String {
    format!("{}-{number:06}.png", video.file_stem().unwrap_or_default().to_string_lossy())
}

/// What the network said so far.
struct Shown<'a> {
    arguments: &'a InferArguments,
    predictor: &'a Predictor,
    reports: Vec<ImageReport>,
    /// Seconds of decoding, network and writing.
    times: [Vec<f64>; 3],
    /// Those of the contact sheet, and their height and width.
    tiles: Vec<Tile>,
    size: [usize; 2],
}

impl<'a> Shown<'a> {
    fn new(arguments: &'a InferArguments, predictor: &'a Predictor) -> Self {
        let (reports, times, tiles) = (Vec::new(), [const { Vec::new() }; 3], Vec::new());
        Self { arguments, predictor, reports, times, tiles, size: [0; 2] }
    }

    /// Writes what was asked for of one image, and keeps what the tables need.
    fn take(&mut self, path: String, caption: String, mask: Option<&PathBuf>, said: Prediction) -> Result {
        let Prediction { answer, decode_s, network_s, view, .. } = said;
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
                    write(file, &png)?;
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
                write(&mask.with_extension("overlay.png"), &png)?;
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

/// The image files that were named, and the videos.
fn images(named: &[PathBuf]) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let (mut files, mut videos) = (Vec::new(), Vec::new());
    for path in named {
        if path == Path::new("-") {
            for line in std::io::stdin().lock().lines() {
                let line = line.map_err(|cause| Failure::failed(format!("standard input: {cause}")))?;
                let path = Path::new(line.trim());
                if video::is_video(path) {
                    videos.push(path.to_owned());
                } else if !line.trim().is_empty() {
                    files.extend(find_images(path).map_err(TrainError::from)?);
                }
            }
            continue;
        }
        if video::is_video(path) {
            videos.push(path.clone());
            continue;
        }
        if !path.exists() {
            return Err(Failure::usage(format!("{}: there is no such file or folder", path.display())));
        }
        let found = find_images(path).map_err(TrainError::from)?;
        if found.is_empty() {
            return Err(Failure::usage(format!("{} has no images", path.display()))
                .hint("name JPEG or PNG files, or a folder that has some"));
        }
        files.extend(found);
    }
    if files.is_empty() && videos.is_empty() {
        return Err(Failure::usage("no images are named").hint("name JPEG or PNG files, a line each"));
    }
    Ok((files, videos))
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
    let experiment = target.experiment(globals)?.with_overrides(&overrides)?;
    let weights = match &arguments.weights {
        Some(weights) => Some(super::weights::setting(weights)?),
        None => experiment.model.weights.clone(),
    };
    let Some(weights) = weights else {
        return Err(Failure::usage(format!("{} has no weights", arguments.target))
            .hint("name them with --weights FILE, or give a run directory"));
    };
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

/// The mask of each image file; none where none are to be written.
fn mask_files(arguments: &InferArguments, files: &[PathBuf], videos: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let Some(folder) = &arguments.out else { return Ok(Vec::new()) };
    let mut taken: BTreeMap<PathBuf, &Path> = BTreeMap::new();
    let mut masks = Vec::with_capacity(files.len());
    for file in files {
        let mask = folder.join(file.file_stem().unwrap_or_default()).with_extension("png");
        if let Some(other) = taken.insert(mask.clone(), file) {
            return Err(Failure::usage(format!(
                "the masks of {} and {} would both be {}",
                other.display(),
                file.display(),
                mask.display()
            ))
            .hint("give images of different names"));
        }
        if file.canonicalize().ok().is_some_and(|image| mask.canonicalize().ok() == Some(image)) {
            return Err(Failure::usage(format!("the mask of {} would replace it", file.display()))
                .hint("write to another folder"));
        }
        masks.push(mask);
    }
    for (position, video) in videos.iter().enumerate() {
        let same = |other: &&PathBuf| other.file_stem() == video.file_stem();
        if let Some(other) = videos[..position].iter().find(same) {
            return Err(Failure::usage(format!(
                "the masks of {} and {} would have the same names",
                other.display(),
                video.display()
            ))
            .hint("give videos of different names"));
        }
        let prefix = format!("{}-", video.file_stem().unwrap_or_default().to_string_lossy());
        let is_frame = |mask: &&PathBuf| {
            let stem = mask.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let number = stem.strip_prefix(&prefix);
            number
                .is_some_and(|number| number.len() >= 6 && number.bytes().all(|digit| digit.is_ascii_digit()))
        };
        if let Some(mask) = masks.iter().find(is_frame) {
            return Err(Failure::usage(format!(
                "{} would be the mask of an image and of a frame of {}",
                mask.display(),
                video.display()
            ))
            .hint("give images and videos of different names"));
        }
    }
    fs::create_dir_all(folder).map_err(|cause| Failure::failed(format!("{}: {cause}", folder.display())))?;
    Ok(masks)
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

fn write(path: &Path, bytes: &[u8]) -> Result {
    atomic::write(path, bytes).map_err(Failure::failed)
}

/// A line for each image and class.
fn csv(images: &[ImageReport]) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let mut text = String::from("path,rank,class,name,probability\n");
    for image in images {
        for (top, rank) in image.top.iter().flatten().zip(1..) {
            let Top { class, name, probability } = top;
            let (path, name) = (quoted(&image.path), quoted(name));
            text.push_str(&format!("{path},{rank},{class},{name},{probability:?}\n"));
        }
    }
    text
}

/// The answers as a table, and how long they took.
fn text(report: &Report) -> String {
    let mut rows = Vec::new();
    for image in &report.images {
        let mut row = vec![image.path.clone()];
        match (&image.top, &image.mask) {
            (Some(top), _) => {
                row.extend(top.iter().map(|top| format!("{} {:.1} %", top.name, 100.0 * top.probability)));
            }
            (None, Some(mask)) => row.push(mask.clone()),
            (None, None) => {}
        }
        rows.push(row);
    }
    let Milliseconds { median, p99, decode, network, write } = &report.milliseconds;
    let spread = |spread: &Spread| format!("{:.2} ms in the median, p99 {:.2} ms", spread.median, spread.p99);
    let times = [
        ("images".to_owned(), report.images.len().to_string()),
        ("an image".to_owned(), format!("{median:.2} ms in the median, p99 {p99:.2} ms")),
        ("decoding".to_owned(), spread(decode)),
        ("network".to_owned(), spread(network)),
        ("writing".to_owned(), spread(write)),
        ("images/s".to_owned(), format!("{:.1}", report.images_per_second)),
    ];
    format!("{}\n{}", table(&rows), pairs(&times))
}
