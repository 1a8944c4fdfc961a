//! `stratus data show`: draws samples, augmented as in training, on a contact sheet.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use stratus_data::contact_sheet::{ClassPalette, SheetClasses, Tile, contact_sheet};
use stratus_data::{
    BatchBuffer, DataError, Dataset, Element, LastBatch, Layout, Loader, LoaderConfig, Normalisation,
    Position, Split, mix, open,
};
use stratus_experiment::Experiment;
use stratus_train::TrainError;
use stratus_train::input::{BatchFormat, InputPipeline, open_options};

use super::parts::{print_warnings, undivided_options};
use super::{targets, to_failure};
use crate::errors::{Failure, Result};
use crate::output::Output;
use crate::outputs::{Mark, Outputs, Overwrite};

/// Samples per batch: enough to keep the loader threads busy.
const BATCH: usize = 8;
/// The maximum number of pixels of all samples, which are kept in memory until the sheet is drawn (half a
/// gigabyte with their masks).
const MAX_SHEET_PIXELS: usize = 1 << 26;

/// Arguments of `stratus data show`.
#[derive(Args, Debug)]
pub struct ShowArguments {
    /// Data set, like mnist, or folder, archive or table of images
    pub name: String,
    /// Folder of the data set [default: data/NAME]
    #[arg(long, value_name = "DIR")]
    pub path: Option<PathBuf>,
    /// Number of samples
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub count: u32,
    /// Epoch of the samples, counted from 0
    #[arg(long, default_value_t = 0)]
    pub epoch: u32,
    /// Split to draw from: train, validation or test; training samples are shuffled and augmented
    #[arg(long, default_value = "train", value_parser = parse_split)]
    pub split: Split,
    /// Output PNG file
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    /// Colours of the classes of masks: a text file of lines like `128 64 128 road` [default: those that the
    /// data set publishes]
    #[arg(long, value_name = "FILE")]
    pub palette: Option<PathBuf>,
    /// Existing output files.
    #[command(flatten)]
    pub overwrite: Overwrite,
}

#[derive(Serialize)]
struct SheetReport<'a> {
    path: &'a Path,
    images: usize,
    height: usize,
    width: usize,
}

/// Draws samples that were loaded with the keys of `experiment` on a contact sheet.
pub(super) fn show(
    arguments: &ShowArguments,
    name: &str,
    mut experiment: Experiment,
    folder: &Path,
    output: &Output,
) -> Result {
    let ShowArguments { count, epoch, split, out, .. } = arguments;
    let mut outputs = Outputs::new(arguments.overwrite);
    arguments.palette.iter().for_each(|path| outputs.protect(path));
    outputs.claim(out, "the sheet", Mark::Image)?;
    name.clone_into(&mut experiment.data.name);
    let options = open_options(&experiment);
    let set = match open(name, folder, *split, &options) {
        Err(DataError::MissingSplits { .. }) if *split == Split::Train => {
            open(name, folder, *split, &undivided_options(&options))
        }
        result => result,
    };
    let set = set.map_err(to_failure)?;
    print_warnings([set.as_ref()], output);
    let set: Arc<dyn Dataset> = Arc::from(set);
    let names: Vec<String> = (0..set.classes()).map(|class| set.class_name(class)).collect();
    let palette = match &arguments.palette {
        Some(_) if !set.has_masks() => {
            return Err(Failure::usage("--palette has no effect: the data set has classes, not masks"));
        }
        Some(path) => ClassPalette::read(path, &names).map_err(Failure::usage)?,
        None => ClassPalette::for_classes(&names),
    };
    let input = InputPipeline::new(&experiment, set.as_ref());
    let [_, height, width] = input.shape;
    let count = set.len().min(*count as usize);
    let max_count = (MAX_SHEET_PIXELS / (height * width).max(1)).max(1);
    if count > max_count {
        let problem = format!("{count} images of {height}×{width} are too many for one sheet");
        return Err(
            Failure::usage(problem).with_hint(format!("show at most {max_count}: --count {max_count}"))
        );
    }
    let format = BatchFormat { element: Element::F32, layout: Layout::Nhwc };
    let config = match split {
        Split::Train => input.training(format),
        _ => input.evaluation(format, BATCH),
    };
    let config = LoaderConfig {
        batch_size: BATCH.min(count),
        last: LastBatch::Keep,
        start: Position { epoch: *epoch, batch: 0 },
        epochs: Some(epoch.saturating_add(1)),
        ..config
    };
    let mut loader = Loader::new(Arc::clone(&set), config).map_err(TrainError::from)?;
    let mut tiles = Vec::new();
    while tiles.len() < count {
        let Some(batch) = loader.next().map_err(TrainError::from)? else { break };
        let rows = 0..batch.samples.min(count - tiles.len());
        tiles.extend(rows.map(|row| tile(&loader, &batch, row, &input.normalisation)));
        loader.recycle(batch);
    }
    let title = format!("{name}, {split}, epoch {epoch}");
    let classes = SheetClasses { name: &|class| set.class_name(class), palette: &palette };
    let sheet = contact_sheet(&title, &tiles, [height, width], &classes);
    let file = sheet.to_png().map_err(Failure::failed)?;
    fs::write(out, file).map_err(|cause| Failure::failed(format!("{}: {cause}", out.display())))?;
    let report = SheetReport { path: out, images: tiles.len(), height: sheet.height, width: sheet.width };
    output.print_wrapped(&report, || {
        format!("{}: {} images, {} × {} pixels", out.display(), report.images, report.height, report.width)
    })
}

/// The image of one row of a batch (`f32`, NHWC) without normalisation, with its file and its class.
fn tile(loader: &Loader, batch: &BatchBuffer, row: usize, normalisation: &Normalisation) -> Tile {
    let [channels, height, width] = loader.shape();
    let values = height * width * channels;
    let stored = |pixel: &[f32], channel: usize| {
        let channel = channel.min(channels - 1);
        let value = pixel[channel] * normalisation.std[channel] + normalisation.mean[channel];
        (value * 255.0).round().clamp(0.0, 255.0) as u8
    };
    let image = &batch.images.elements::<f32>()[row * values..][..values];
    let pixels =
        image.chunks_exact(channels).flat_map(|pixel| [0, 1, 2].map(|channel| stored(pixel, channel)));
    let labels = &batch.labels[row * loader.label_len()..][..loader.label_len()];
    let (set, sample) = (loader.dataset(), batch.indices[row]);
    let file = set.sample_name(sample as usize).rsplit('/').next().unwrap_or_default().to_owned();
    let (mask, caption) = match usize::try_from(labels[0]) {
        _ if loader.skipped().contains_key(&sample) => (None, "damaged".to_owned()),
        _ if set.has_masks() => (Some(labels.to_vec()), String::new()),
        _ if set.target_kind().is_some() => {
            (None, targets::caption(set, &batch.targets()[row * loader.label_len()..][..loader.label_len()]))
        }
        Ok(class) => (None, caption(labels, class, |class| set.class_name(class))),
        Err(_) => (None, "no class".to_owned()),
    };
    Tile { pixels: pixels.collect(), mask, file, caption }
}

/// The class of a sample; of a mixed sample both classes, with their fractions.
fn caption(labels: &[i32], class: usize, name: impl Fn(usize) -> String) -> String {
    let (other, share) = match *labels {
        [_, other, share] if share > 0 => (other, share),
        _ => return name(class),
    };
    let percent = |share: i32| f64::from(share) / f64::from(mix::FULL_SHARE) * 100.0;
    let [first, second] = [mix::FULL_SHARE - share, share].map(percent);
    format!("{} {first:.0} %, {} {second:.0} %", name(class), name(usize::try_from(other).unwrap_or(class)))
}

/// Parses the name of a split.
fn parse_split(name: &str) -> std::result::Result<Split, DataError> {
    Ok(name.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caption_of_a_mixed_sample_has_both_classes() {
        let name = |class: usize| ["cat", "dog", "ship"][class].to_owned();
        assert_eq!(caption(&[2], 2, name), "ship");
        assert_eq!(caption(&[0, 0, 0], 0, name), "cat");
        assert_eq!(caption(&[0, 1, mix::FULL_SHARE / 4], 0, name), "cat 75 %, dog 25 %");
        assert_eq!(caption(&[2, 0, mix::FULL_SHARE], 2, name), "ship 0 %, cat 100 %");
    }
}
