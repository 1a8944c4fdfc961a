//! `validation/`: what a network got wrong in the validations of a run, as small pictures and tables.
//!
//! | file | content |
//! |---|---|
//! | [`IMAGES`] | the images of the newest validation: files, classes, predictions |
//! | [`SAMPLES`] | a picture of each image that every validation shows |
//! | `0000000005.png` | the pictures of the validation after epoch 5: mistakes, or predicted masks |
//! | [`CLASS_HISTORY`] | a row per validation and class |
//! | [`CONFUSION`] | the counts of the newest confusion matrix that are not 0 |
//! | [`CURVES`] | several labels: the newest precision–recall curves |
//! | [`POINTS`] | regression: the newest predictions of some images |
//!
//! The pictures of a file have one size and are arranged in rows. [`IMAGES`] names no files: their names
//! follow from the epochs. It is replaced after the new pictures are written and before the old ones are
//! removed, so that its pictures exist whenever it is read.

mod confusion;
mod plots;
mod png_check;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stratus_base::{read_at_most, text};

pub use confusion::{Confusion, MAX_CONFUSIONS, confusions, read_confusion, write_confusion};
pub use plots::{
    LabelPoint, MAX_CURVE_POINTS, MAX_CURVES, MAX_POINT_TARGETS, MAX_TARGET_POINTS, TargetPoint, read_curves,
    read_points, write_curves, write_points,
};

use crate::classes::OutputMetrics;
use crate::csv::{Field, Row, Task};
use crate::{Error, Result, atomic, csv};

/// The index of the pictures.
pub const IMAGES: &str = "images.json";
/// Pictures of the images that every validation shows.
pub const SAMPLES: &str = "samples.png";
/// The metrics of each class after every validation, a table of [`ClassRow`].
pub const CLASS_HISTORY: &str = "classes.csv";
/// The confusion matrix of the newest validation.
pub const CONFUSION: &str = "confusion.csv";
/// The precision–recall curves of labels in the newest validation.
pub const CURVES: &str = "curves.csv";
/// Predicted beside true numbers in the newest validation.
pub const POINTS: &str = "points.csv";
/// The pictures in a row of a file, for classification.
pub const CLASS_COLUMNS: usize = 8;
/// The pictures in a row of a file, for segmentation: image and truth, or prediction and difference.
pub const MASK_COLUMNS: usize = 2;
/// The colour of correct pixels in the pictures of differences.
pub const CORRECT_COLOUR: [u8; 3] = [208, 208, 208];
/// The colour of wrong pixels. Pixels without a class are black.
pub const WRONG_COLOUR: [u8; 3] = [224, 32, 32];
/// The maximum number of validations whose predicted masks are kept.
pub const MAX_EPOCHS: u64 = 20;
/// The maximum number of classes of the tables; of more classes there are none.
pub const MAX_CLASSES: usize = 1000;
/// The maximum size of a table of the newest validation whose epoch is read.
const MAX_TABLE_BYTES: u64 = 16 << 20;
/// The approximate maximum number of rows of [`CLASS_HISTORY`]. Of more, some validations are left out, see
/// [`is_in_history`].
pub const MAX_CLASS_ROWS: u64 = 100_000;
/// The maximum size of [`CLASS_HISTORY`] that is read.
pub const MAX_CLASS_HISTORY_BYTES: u64 = 16 << 20;
/// The maximum number of images of a list in [`IMAGES`]. A run keeps fewer; an edited file may have more.
pub const MAX_IMAGES: usize = 128;
/// The maximum number of colours in [`IMAGES`].
pub const MAX_COLOURS: usize = 1 << 16;
/// The maximum size of a file of pictures.
pub const MAX_PICTURES_BYTES: u64 = 8 << 20;

/// The folder `validation/` of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidationDir(PathBuf);

impl ValidationDir {
    /// The folder at `path`.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of [`IMAGES`].
    #[must_use]
    pub fn images(&self) -> PathBuf {
        self.0.join(IMAGES)
    }

    /// The path of [`CLASS_HISTORY`].
    #[must_use]
    pub fn class_history(&self) -> PathBuf {
        self.0.join(CLASS_HISTORY)
    }

    /// Reads [`CLASS_HISTORY`].
    pub fn read_class_history(&self) -> Result<Vec<ClassRow>> {
        let path = self.class_history();
        let bytes = fs::metadata(&path).map_err(Error::io("read", &path))?.len();
        if bytes > MAX_CLASS_HISTORY_BYTES {
            let reason = format!("it is larger than {}", text::bytes(MAX_CLASS_HISTORY_BYTES));
            return Err(Error::damaged(&path, reason, "remove it"));
        }
        csv::read(&path)
    }

    /// The path of [`CONFUSION`].
    #[must_use]
    pub fn confusion(&self) -> PathBuf {
        self.0.join(CONFUSION)
    }

    /// The path of [`CURVES`].
    #[must_use]
    pub fn curves(&self) -> PathBuf {
        self.0.join(CURVES)
    }

    /// The path of [`POINTS`].
    #[must_use]
    pub fn points(&self) -> PathBuf {
        self.0.join(POINTS)
    }

    /// The path of the pictures of an epoch, or of [`SAMPLES`].
    #[must_use]
    pub fn pictures(&self, pictures: PictureFile) -> PathBuf {
        match pictures {
            PictureFile::Samples => self.0.join(SAMPLES),
            PictureFile::Epoch(epoch) => self.0.join(format!("{epoch:010}.png")),
        }
    }

    /// Creates the folder.
    pub fn create(&self) -> Result<()> {
        fs::create_dir_all(&self.0).map_err(Error::io("create the folder", &self.0))?;
        atomic::sync_folder(atomic::parent(&self.0))
    }

    /// Removes [`IMAGES`], and the pictures of all epochs.
    pub fn remove_index(&self) -> Result<()> {
        remove(&self.images())?;
        self.remove_pictures(|_| true)
    }

    /// Removes those of [`CONFUSION`], [`CURVES`] and [`POINTS`] whose epoch ([`table_epoch`]) `is_removed`.
    pub fn remove_tables(&self, is_removed: impl Fn(Option<u32>) -> bool) -> Result<()> {
        let tables = [self.confusion(), self.curves(), self.points()];
        tables.iter().filter(|path| is_removed(table_epoch(path))).try_for_each(|path| remove(path))
    }

    /// Removes the pictures of all epochs that an index does not describe.
    pub fn remove_pictures_except(&self, index: &ValidationImages) -> Result<()> {
        let kept = index.files();
        self.remove_pictures(|epoch| kept.iter().all(|(file, ..)| *file != PictureFile::Epoch(epoch)))
    }

    /// Removes the pictures of some epochs. Other files stay.
    pub fn remove_pictures(&self, is_removed: impl Fn(u32) -> bool) -> Result<()> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(Error::io("read the folder", &self.0))?,
        };
        for entry in entries {
            let name = entry.map_err(Error::io("read the folder", &self.0))?.file_name();
            let Some(epoch) = name.to_str().and_then(|name| name.strip_suffix(".png")?.parse().ok()) else {
                continue;
            };
            // Only names that this module writes.
            let path = self.pictures(PictureFile::Epoch(epoch));
            if path.file_name() == Some(&name) && is_removed(epoch) {
                remove(&path)?;
            }
        }
        Ok(())
    }
}

/// The epoch of the rows of [`CONFUSION`], [`CURVES`] or [`POINTS`]; `None` if the file has no rows or cannot
/// be read.
#[must_use]
pub fn table_epoch(path: &Path) -> Option<u32> {
    let text = stratus_base::read_text_at_most(path, MAX_TABLE_BYTES).ok()?;
    text.lines().nth(1)?.split(',').next()?.parse().ok()
}

/// Removes a file, if there is one.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", path)(error)),
        _ => Ok(()),
    }
}

/// A file of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureFile {
    /// [`SAMPLES`].
    Samples,
    /// Those of the validation after an epoch.
    Epoch(u32),
}

/// The content of [`IMAGES`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValidationImages {
    /// The epoch of the newest validation, counted from 1.
    pub epoch: u32,
    /// Height and width of each picture, in pixels.
    pub size: [u32; 2],
    /// The number of workers that shared the validation; the images are those of the first worker's batches.
    #[serde(default = "one_worker")]
    pub workers: u32,
    /// The images.
    pub images: TaskImages,
}

/// The number of workers in files without it.
fn one_worker() -> u32 {
    1
}

/// The images of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "snake_case")]
pub enum TaskImages {
    /// One class per image.
    Classification {
        /// The number of images with a mistake, over all workers.
        mistake_count: u64,
        /// The most confident mistakes, the most confident first: the pictures of the newest epoch.
        mistakes: Vec<Mistake>,
        /// The first images of each class, ordered by class: [`SAMPLES`].
        samples: Vec<ClassSample>,
    },
    /// One class per pixel.
    Segmentation {
        /// The files of the images: [`SAMPLES`] has a row for each, image and truth.
        samples: Vec<String>,
        /// The validations whose pictures are kept, the newest last; they have a row for each image,
        /// prediction and difference.
        predictions: Vec<MaskEpoch>,
        /// The colour of each class.
        colours: Vec<[u8; 3]>,
    },
    /// Several labels per image.
    MultiLabel {
        /// The number of images with a wrong label at a threshold of 0.5, among those of the first worker.
        mistake_count: u64,
        /// The worst mistakes, the worst first: the pictures of the newest epoch.
        mistakes: Vec<LabelMistake>,
    },
    /// Numbers per image.
    Regression {
        /// The worst errors, the worst first: the pictures of the newest epoch.
        mistakes: Vec<NumberMistake>,
    },
}

/// An image with wrong labels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabelMistake {
    /// The file.
    pub file: String,
    /// The labels that were predicted, but do not apply.
    pub wrong: Vec<u32>,
    /// The labels that apply, but were not predicted.
    pub missed: Vec<u32>,
}

/// An image with a wrong number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NumberMistake {
    /// The file.
    pub file: String,
    /// The target with the largest error in standard deviations.
    pub target: u32,
    /// Its number.
    pub number: f64,
    /// The predicted number.
    pub predicted: f64,
}

/// An image that was classified wrongly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mistake {
    /// The file.
    pub file: String,
    /// The true class.
    pub class: u32,
    /// The predicted class.
    pub predicted: u32,
    /// The probability of the prediction.
    pub probability: f64,
}

/// An image of a class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassSample {
    /// The file.
    pub file: String,
    /// The true class.
    pub class: u32,
    /// The predicted class.
    pub predicted: u32,
}

/// The masks that were predicted in a validation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MaskEpoch {
    /// The epoch, counted from 1.
    pub epoch: u32,
    /// The mean IoU of each image; `None` without labelled pixels.
    pub iou: Vec<Option<f64>>,
}

impl ValidationImages {
    /// Reads [`IMAGES`]; `None` if there is no such file.
    pub fn read(folder: &ValidationDir) -> Result<Option<Self>> {
        let path = folder.images();
        match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            _ => {}
        }
        let images: Self = atomic::read_json(&path)?;
        match images.problem() {
            None => Ok(Some(images)),
            Some(problem) => Err(Error::damaged(&path, problem, "restore it from a copy, or remove it")),
        }
    }

    /// Replaces [`IMAGES`].
    pub fn write(&self, folder: &ValidationDir) -> Result<()> {
        atomic::write_json(&folder.images(), self)
    }

    /// The first inconsistency, in a file that was edited or damaged.
    fn problem(&self) -> Option<&'static str> {
        let (samples, predictions, colours) = match &self.images {
            TaskImages::Classification { mistakes, samples, .. } => {
                let is_short = mistakes.len().max(samples.len()) <= MAX_IMAGES;
                return (!is_short).then_some("it has too many images");
            }
            TaskImages::MultiLabel { mistakes, .. } => {
                return (mistakes.len() > MAX_IMAGES).then_some("it has too many images");
            }
            TaskImages::Regression { mistakes } => {
                return (mistakes.len() > MAX_IMAGES).then_some("it has too many images");
            }
            TaskImages::Segmentation { samples, predictions, colours } => (samples, predictions, colours),
        };
        let is_complete = predictions.iter().all(|epoch| epoch.iou.len() == samples.len());
        let is_ascending = predictions.windows(2).all(|pair| pair[0].epoch < pair[1].epoch);
        if samples.len() > MAX_IMAGES {
            Some("it has too many images")
        } else if predictions.len() as u64 > MAX_EPOCHS {
            Some("it has too many epochs")
        } else if colours.len() > MAX_COLOURS {
            Some("it has too many colours")
        } else if !is_complete {
            Some("an epoch does not have all images")
        } else if !is_ascending {
            Some("its epochs are not in order")
        } else {
            None
        }
    }

    /// The files of pictures that the index describes, each with the number of its pictures and of the
    /// pictures in a row. Empty files are not written.
    #[must_use]
    pub fn files(&self) -> Vec<(PictureFile, usize, usize)> {
        let mut files = match &self.images {
            TaskImages::Classification { mistakes, samples, .. } => vec![
                (PictureFile::Epoch(self.epoch), mistakes.len(), CLASS_COLUMNS),
                (PictureFile::Samples, samples.len(), CLASS_COLUMNS),
            ],
            TaskImages::MultiLabel { mistakes, .. } => {
                vec![(PictureFile::Epoch(self.epoch), mistakes.len(), CLASS_COLUMNS)]
            }
            TaskImages::Regression { mistakes } => {
                vec![(PictureFile::Epoch(self.epoch), mistakes.len(), CLASS_COLUMNS)]
            }
            TaskImages::Segmentation { samples, predictions, .. } => {
                let count = MASK_COLUMNS * samples.len();
                let epochs = predictions.iter().map(|shown| PictureFile::Epoch(shown.epoch));
                std::iter::once(PictureFile::Samples)
                    .chain(epochs)
                    .map(|file| (file, count, MASK_COLUMNS))
                    .collect()
            }
        };
        files.retain(|(_, count, _)| *count > 0);
        files
    }

    /// Height and width of a file with `count` pictures, in pixels.
    #[must_use]
    pub fn file_size(&self, count: usize, columns: usize) -> [u32; 2] {
        let columns = columns.min(count).max(1);
        let times = |size: u32, count: usize| size.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
        [times(self.size[0], count.div_ceil(columns)), times(self.size[1], columns)]
    }

    /// Reads a file of pictures, and checks that it is a whole PNG file of the size that follows from the
    /// index.
    pub fn read_pictures(&self, folder: &ValidationDir, pictures: PictureFile) -> Result<Vec<u8>> {
        let path = folder.pictures(pictures);
        let damaged = |reason: String| Error::damaged(&path, reason, "remove it");
        let Some((_, count, columns)) = self.files().into_iter().find(|(file, ..)| *file == pictures) else {
            return Err(damaged(format!("{IMAGES} does not describe it")));
        };
        let bytes = read_at_most(&path, MAX_PICTURES_BYTES).map_err(Error::io("read", &path))?;
        let size = png_check::png_size(&bytes).map_err(|reason| damaged(reason.to_owned()))?;
        let expected = self.file_size(count, columns);
        if size != expected {
            let [[height, width], [expected_height, expected_width]] = [size, expected];
            return Err(damaged(format!(
                "it has {height}×{width} pixels instead of {expected_height}×{expected_width}"
            )));
        }
        Ok(bytes)
    }
}

/// Returns whether the masks of a validation are kept after the `newest` one; both are counted from 1. The
/// first, the newest and those at equal distances between them are kept: a power of two, chosen so that there
/// are at most [`MAX_EPOCHS`].
#[must_use]
pub fn is_kept(number: u64, newest: u64) -> bool {
    let mut distance = 1;
    while newest.saturating_sub(1) / distance + 1 >= MAX_EPOCHS {
        distance *= 2;
    }
    number == newest || (number < newest && number.saturating_sub(1).is_multiple_of(distance))
}

/// Returns whether a validation has rows in [`CLASS_HISTORY`]: the last of a run's `validations`, and those
/// at equal distances, chosen so that there are about [`MAX_CLASS_ROWS`] rows of all `classes`. Validations
/// are counted from 1.
#[must_use]
pub fn is_in_history(number: u64, validations: u64, classes: usize) -> bool {
    let distance = validations.saturating_mul(classes as u64).div_ceil(MAX_CLASS_ROWS).max(1);
    number >= validations || number.saturating_sub(1).is_multiple_of(distance)
}

/// A row of [`CLASS_HISTORY`]: a class, label or target after a validation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClassRow {
    /// The epoch, counted from 1.
    pub epoch: u32,
    /// The class, label or target.
    pub class: u64,
    /// The number of its images or pixels: those of the class, with the label, or whose target is known.
    pub samples: u64,
    /// The fraction of them that was predicted correctly.
    pub accuracy: Option<f64>,
    /// Intersection over union.
    pub iou: Option<f64>,
    /// Boundary F1.
    pub bf: Option<f64>,
    /// The columns of labels.
    pub label: LabelFields,
    /// The columns of targets.
    pub target: TargetFields,
}

/// The columns of [`CLASS_HISTORY`] for labels.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LabelFields {
    /// Average precision.
    pub average_precision: Option<f64>,
    /// The area under the ROC curve.
    pub auc: Option<f64>,
    /// The threshold that maximises F1, a probability.
    pub threshold: Option<f64>,
    /// F1 at this threshold.
    pub f1: Option<f64>,
}

/// The columns of [`CLASS_HISTORY`] for targets, in their units.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TargetFields {
    /// Mean absolute error.
    pub mae: Option<f64>,
    /// Root mean squared error.
    pub rmse: Option<f64>,
    /// R².
    pub r2: Option<f64>,
}

impl Row for ClassRow {
    fn visit(&mut self, task: Task, visit: &mut dyn FnMut(&'static str, Field<'_>)) {
        let [class, samples] = match task {
            Task::Classification | Task::Segmentation => ["class", "samples"],
            Task::MultiLabel => ["label", "positives"],
            Task::Regression => ["target", "samples"],
        };
        visit("epoch", Field::Epoch(&mut self.epoch));
        visit(class, Field::Count(&mut self.class));
        visit(samples, Field::Count(&mut self.samples));
        match task {
            Task::Classification | Task::Segmentation => {
                visit("accuracy", Field::OptionalExact(&mut self.accuracy));
                visit("iou", Field::OptionalExact(&mut self.iou));
                visit("bf", Field::OptionalExact(&mut self.bf));
            }
            Task::MultiLabel => {
                let LabelFields { average_precision, auc, threshold, f1 } = &mut self.label;
                visit("average_precision", Field::OptionalExact(average_precision));
                visit("auc", Field::OptionalExact(auc));
                visit("threshold", Field::OptionalExact(threshold));
                visit("f1", Field::OptionalExact(f1));
            }
            Task::Regression => {
                visit("mae", Field::OptionalExact(&mut self.target.mae));
                visit("rmse", Field::OptionalExact(&mut self.target.rmse));
                visit("r2", Field::OptionalExact(&mut self.target.r2));
            }
        }
    }
}

impl ClassRow {
    /// The rows of the metrics of a validation, one per class, label or target.
    pub fn of_validation(epoch: u32, outputs: &OutputMetrics) -> impl Iterator<Item = Self> {
        let classes = outputs.classes.iter().map(move |class| Self {
            epoch,
            class: class.class as u64,
            samples: class.samples,
            accuracy: class.accuracy,
            iou: class.iou,
            bf: class.bf,
            ..Self::default()
        });
        let labels = outputs.labels.iter().map(move |label| Self {
            epoch,
            class: label.label as u64,
            samples: label.positives,
            label: LabelFields {
                average_precision: label.average_precision,
                auc: label.auc,
                threshold: label.at_chosen.map(|point| f64::from(point.threshold)),
                f1: label.at_chosen.and_then(|point| point.f1),
            },
            ..Self::default()
        });
        let targets = outputs.targets.iter().map(move |target| Self {
            epoch,
            class: target.target as u64,
            samples: target.samples,
            target: TargetFields { mae: target.mae, rmse: target.rmse, r2: target.r2 },
            ..Self::default()
        });
        classes.chain(labels).chain(targets)
    }
}

#[cfg(test)]
mod tests;
