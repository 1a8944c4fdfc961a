//! `stratus data show`: samples as the network gets them, on one picture.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use stratus_data::contact_sheet::{Tile, contact_sheet};
use stratus_data::{
    BatchBuffer, DataError, Dataset, Element, LastBatch, Layout, Loader, LoaderConfig, Normalisation,
    Position, Split, mix, open,
};
use stratus_train::input::{BatchFormat, InputPipeline, open_options};
use stratus_train::{Experiment, TrainError};

use super::data_failure;
use super::parts::whole;
use crate::errors::{Failure, Result};
use crate::output::Output;
use crate::outputs::{Mark, Outputs, Overwrite};

/// Samples of a batch: enough that workers share the work.
const BATCH: usize = 8;
/// The most pixels of all samples together: they are held until the sheet is drawn (half a gigabyte with
/// their masks).
const MOST_PIXELS: usize = 1 << 26;

/// Arguments of `stratus data show`.
#[derive(Args, Debug)]
pub struct ShowArguments {
    /// The data set, like mnist, or a folder of photographs
    pub name: String,
    /// Where the files are; without it data/NAME
    #[arg(long, value_name = "DIR")]
    pub path: Option<PathBuf>,
    /// How many samples to show
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub count: u32,
    /// The epoch whose first samples to show, counted from 0
    #[arg(long, default_value_t = 0)]
    pub epoch: u32,
    /// The part: train, validation or test. Training samples are shuffled and augmented as training would
    #[arg(long, default_value = "train", value_parser = split)]
    pub split: Split,
    /// The PNG file to write
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    /// Files that are replaced.
    #[command(flatten)]
    pub overwrite: Overwrite,
}

#[derive(Serialize)]
struct Shown<'a> {
    path: &'a Path,
    images: usize,
    height: usize,
    width: usize,
}

/// Writes a sheet of samples that have gone through the loader by the `experiment`'s keys.
pub(super) fn show(
    arguments: &ShowArguments,
    name: &str,
    mut experiment: Experiment,
    folder: &Path,
    output: &Output,
) -> Result {
    let ShowArguments { count, epoch, split, out, .. } = arguments;
    Outputs::new(arguments.overwrite).claim(out, "the sheet", Mark::Picture)?;
    name.clone_into(&mut experiment.data.name);
    let options = open_options(&experiment);
    let set = match open(name, folder, *split, &options) {
        Err(DataError::Undivided { .. }) if *split == Split::Train => {
            open(name, folder, *split, &whole(&options))
        }
        opened => opened,
    };
    let set = set.map_err(data_failure)?;
    let set: Arc<dyn Dataset> = Arc::from(set);
    let input = InputPipeline::new(&experiment, set.as_ref());
    let [_, height, width] = input.shape;
    let count = set.len().min(*count as usize);
    let most = (MOST_PIXELS / (height * width).max(1)).max(1);
    if count > most {
        let problem = format!("{count} images of {height}×{width} are too many for a picture");
        return Err(Failure::usage(problem).hint(format!("show at most {most}: --count {most}")));
    }
    let format = BatchFormat { element: Element::F32, layout: Layout::Nhwc };
    let config = match split {
        Split::Train => input.training(format),
        _ => input.measuring(format, BATCH),
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
    let sheet = contact_sheet(&title, &tiles, [height, width], |class| set.class_name(class));
    let file = sheet.to_png().map_err(Failure::failed)?;
    fs::write(out, file).map_err(|cause| Failure::failed(format!("{}: {cause}", out.display())))?;
    let shown = Shown { path: out, images: tiles.len(), height: sheet.height, width: sheet.width };
    output.result(&shown, || {
        format!("{}: {} images, {} × {} pixels", out.display(), shown.images, shown.height, shown.width)
    })
}

/// The image of one row of a batch (`f32`, NHWC) with its normalisation undone. Its caption is its file where
/// it has a mask, else its class.
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
    let file = || set.sample_name(sample as usize).rsplit('/').next().unwrap_or_default().to_owned();
    let (mask, caption) = match usize::try_from(labels[0]) {
        _ if loader.skipped().contains_key(&sample) => (None, format!("damaged: {}", file())),
        _ if set.masks() => (Some(labels.to_vec()), file()),
        Ok(class) => (None, caption(labels, class, |class| set.class_name(class))),
        Err(_) => (None, "no class".to_owned()),
    };
    Tile { pixels: pixels.collect(), mask, caption }
}

/// The class of a sample, or where it is mixed both with their shares.
fn caption(labels: &[i32], class: usize, name: impl Fn(usize) -> String) -> String {
    let (other, share) = match *labels {
        [_, other, share] if share > 0 => (other, share),
        _ => return name(class),
    };
    let percent = |share: i32| f64::from(share) / f64::from(mix::WHOLE) * 100.0;
    let [own, second] = [mix::WHOLE - share, share].map(percent);
    format!("{} {own:.0} %, {} {second:.0} %", name(class), name(usize::try_from(other).unwrap_or(class)))
}

/// A part of a data set by its name.
fn split(name: &str) -> std::result::Result<Split, DataError> {
    name.parse()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mixed_sample_is_called_by_both_its_classes() {
        let name = |class: usize| ["cat", "dog", "ship"][class].to_owned();
        assert_eq!(caption(&[2], 2, name), "ship");
        assert_eq!(caption(&[0, 0, 0], 0, name), "cat");
        assert_eq!(caption(&[0, 1, mix::WHOLE / 4], 0, name), "cat 75 %, dog 25 %");
        assert_eq!(caption(&[2, 0, mix::WHOLE], 2, name), "ship 0 %, cat 100 %");
    }
}
