//! `validation/`: what the network gets wrong after every validation, as pictures and tables. The files of a
//! resumed run equal those of an uninterrupted one.

mod masks;
mod pictures;

use super::super::run_position::RunPosition;
use super::super::setup::RunSetup;
use super::known_outputs;
use crate::TrainError;
use crate::evaluate::collector::{ClassPrediction, CollectedPredictions, MaskPrediction};
use crate::evaluate::targets::TargetMistake;
use crate::evaluate::{Scores, TaskMetrics};
use masks::{MaskHistory, remove_later};
use pictures::{MaskPictures, ShownImages};
use std::fs;
use std::io;
use stratus_data::contact_sheet::ClassPalette;
use stratus_run::csv::CsvWriter;
use stratus_run::log::Log;
use stratus_run::validation::{
    ClassRow, ClassSample, LabelMistake, MAX_CLASSES, MaskEpoch, Mistake, NumberMistake, PictureFile,
    TaskImages, ValidationDir, ValidationImages, confusions, is_in_history, is_kept, write_confusion,
    write_curves, write_points,
};
use stratus_run::{Error, RunDir, atomic};

/// The key of the length of the table of classes in a checkpoint's state.
pub(super) const CLASS_HISTORY_POSITION: &str = "validation/classes.csv";
/// The maximum length of the name of an image.
const MAX_NAME_CHARACTERS: usize = 500;

/// Records what validations get wrong.
pub(super) struct ValidationRecord {
    folder: ValidationDir,
    classes: CsvWriter<ClassRow>,
    /// The validations whose masks are kept.
    masks: MaskHistory,
    images: ShownImages,
    /// The samples whose pictures this process has written.
    written_samples: Vec<u32>,
}

impl ValidationRecord {
    /// Opens the files of a run, without what was written after the checkpoint at `position`, which recorded
    /// `class_bytes` of the table of classes. `None` if the run keeps nothing, or another worker writes it.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn open(
        run: &RunDir,
        setup: &RunSetup,
        position: RunPosition,
        class_bytes: u64,
        log: &mut Log,
    ) -> Result<Option<Self>, TrainError> {
        let images = setup.resolved.settings().validation.images.unwrap_or(0);
        if images == 0 || !setup.role.is_first() {
            return Ok(None);
        }
        let folder = run.validation();
        folder.create()?;
        // A folder that was removed is made again, with the validations that follow.
        let written = fs::metadata(folder.class_history()).map_or(0, |facts| facts.len());
        let task = setup.resolved.task();
        let class_bytes = if written == 0 { 0 } else { class_bytes };
        let classes = CsvWriter::resume_at(&folder.class_history(), task, class_bytes)?;
        let masks = remove_later(&folder, epoch_of(position), log)?;
        Ok(Some(Self { folder, classes, masks, images: ShownImages::default(), written_samples: Vec::new() }))
    }

    /// Records a validation, after the epoch that `position` ends. An image that cannot be read again is left
    /// out. Without `predictions`, as in pipeline stages, only the tables are written.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn epoch(
        &mut self,
        position: RunPosition,
        scores: &Scores,
        predictions: Option<CollectedPredictions>,
        setup: &RunSetup,
        log: &mut Log,
    ) -> Result<(), TrainError> {
        let epoch = epoch_of(position);
        if scores.outputs().len() <= MAX_CLASSES {
            self.tables(position, scores)?;
        }
        let Some(predictions) = predictions else {
            // The run may have images from a time without stages, which are out of date now.
            self.masks = MaskHistory::default();
            return Ok(self.folder.remove_index()?);
        };
        let problems = self.images.read(&predictions, setup);
        problems.iter().try_for_each(|problem| log.write(problem))?;
        let name = |index: u32| -> String {
            let name = setup.datasets.validation.sample_name(index as usize);
            name.chars().take(MAX_NAME_CHARACTERS).collect()
        };
        let images = match predictions {
            CollectedPredictions::Classes { mistakes, samples } => {
                // Of all workers, while the images are those of this one.
                let mistake_count = scores.confusion.total() - scores.confusion.correct();
                self.classified(epoch, mistake_count, [mistakes, samples], name)?
            }
            CollectedPredictions::Masks { samples, .. } => {
                let names: Vec<String> = scores.classes().iter().map(|class| class.name.clone()).collect();
                self.masks.epochs.retain(|shown| {
                    is_kept(position.validation_number(shown.epoch), position.validation_number(epoch))
                });
                self.segmented(epoch, &samples, &names, name)?
            }
            CollectedPredictions::Targets { mistake_count, mistakes } => {
                let is_labels = matches!(scores.metrics, TaskMetrics::MultiLabel(_));
                self.targets(epoch, is_labels, mistake_count, mistakes, name)?
            }
        };
        let size = self.images.size().map(|side| u32::try_from(side).unwrap_or(u32::MAX));
        let workers = u32::try_from(setup.resolved.rank().world_size).unwrap_or(u32::MAX);
        let index = ValidationImages { epoch, size, workers, images };
        index.write(&self.folder)?;
        Ok(self.folder.remove_pictures_except(&index)?)
    }

    /// Syncs the table of classes; returns its length.
    pub fn sync(&mut self) -> Result<u64, TrainError> {
        self.classes.sync()?;
        Ok(self.classes.position())
    }

    /// Adds the classes to their table, unless it would become too long, and replaces the table of the newest
    /// validation: the confusion matrix, curves of labels, or points of targets.
    fn tables(&mut self, position: RunPosition, scores: &Scores) -> Result<(), TrainError> {
        let epoch = epoch_of(position);
        let last = u32::try_from(position.epochs).unwrap_or(u32::MAX);
        let [number, validations] = [epoch, last].map(|epoch| position.validation_number(epoch));
        let outputs = known_outputs(scores);
        if is_in_history(number, validations, outputs.len()) {
            ClassRow::of_validation(epoch, &outputs).try_for_each(|row| self.classes.append(&row))?;
        }
        self.classes.flush()?;
        let is_finite = scores.loss.is_finite();
        match &scores.metrics {
            TaskMetrics::Classification(_) | TaskMetrics::Segmentation(_) => {
                let counts = if is_finite { confusions(&scores.confusion) } else { Vec::new() };
                write_confusion(&self.folder.confusion(), epoch, &counts)?;
            }
            TaskMetrics::MultiLabel(_) => {
                write_curves(&self.folder.curves(), epoch, &scores.plots.curves)?;
            }
            TaskMetrics::Regression(_) => {
                write_points(&self.folder.points(), epoch, &scores.plots.points)?;
            }
        }
        Ok(())
    }

    /// Writes the pictures of classified images.
    fn classified(
        &mut self,
        epoch: u32,
        mistake_count: u64,
        predictions: [Vec<ClassPrediction>; 2],
        name: impl Fn(u32) -> String,
    ) -> Result<TaskImages, TrainError> {
        let [mistakes, samples] = predictions.map(|all| self.images.known(all, |image| image.index));
        let [mistake_indices, sample_indices] =
            [&mistakes, &samples].map(|all| all.iter().map(|image| image.index).collect::<Vec<_>>());
        if !mistakes.is_empty() {
            self.write(PictureFile::Epoch(epoch), self.images.class_pictures(&mistake_indices))?;
        }
        if !samples.is_empty() && sample_indices != self.written_samples {
            self.write(PictureFile::Samples, self.images.class_pictures(&sample_indices))?;
            self.written_samples = sample_indices;
        }
        let class = |class: usize| u32::try_from(class).unwrap_or(u32::MAX);
        let mistake = |&ClassPrediction { index, class: label, predicted, probability }: &ClassPrediction| {
            Mistake { file: name(index), class: class(label), predicted: class(predicted), probability }
        };
        let sample = |&ClassPrediction { index, class: label, predicted, .. }: &ClassPrediction| {
            ClassSample { file: name(index), class: class(label), predicted: class(predicted) }
        };
        Ok(TaskImages::Classification {
            mistake_count,
            mistakes: mistakes.iter().map(mistake).collect(),
            samples: samples.iter().map(sample).collect(),
        })
    }

    /// Writes the pictures of the images with the worst labels or numbers.
    fn targets(
        &mut self,
        epoch: u32,
        is_labels: bool,
        mistake_count: u64,
        mistakes: Vec<(u32, TargetMistake)>,
        name: impl Fn(u32) -> String,
    ) -> Result<TaskImages, TrainError> {
        let mistakes = self.images.known(mistakes, |(index, _)| *index);
        let indices: Vec<u32> = mistakes.iter().map(|(index, _)| *index).collect();
        if !mistakes.is_empty() {
            self.write(PictureFile::Epoch(epoch), self.images.class_pictures(&indices))?;
        }
        let number = |target: usize| u32::try_from(target).unwrap_or(u32::MAX);
        let numbers = |labels: &[usize]| labels.iter().copied().map(number).collect();
        if is_labels {
            let mistakes = mistakes.iter().filter_map(|(index, mistake)| match mistake {
                TargetMistake::Labels { wrong, missed } => {
                    Some(LabelMistake { file: name(*index), wrong: numbers(wrong), missed: numbers(missed) })
                }
                TargetMistake::Number { .. } => None,
            });
            return Ok(TaskImages::MultiLabel { mistake_count, mistakes: mistakes.collect() });
        }
        let mistakes = mistakes.iter().filter_map(|(index, mistake)| match mistake {
            &TargetMistake::Number { target, number: truth, predicted } => Some(NumberMistake {
                file: name(*index),
                target: number(target),
                number: f64::from(truth),
                predicted: f64::from(predicted),
            }),
            TargetMistake::Labels { .. } => None,
        });
        Ok(TaskImages::Regression { mistakes: mistakes.collect() })
    }

    /// Writes the pictures of segmented images.
    fn segmented(
        &mut self,
        epoch: u32,
        samples: &[MaskPrediction],
        class_names: &[String],
        name: impl Fn(u32) -> String,
    ) -> Result<TaskImages, TrainError> {
        let samples = self.images.known(samples.iter().collect(), |sample| sample.index);
        let indices: Vec<u32> = samples.iter().map(|sample| sample.index).collect();
        let names: Vec<String> = indices.iter().copied().map(name).collect();
        let palette = ClassPalette::for_classes(class_names);
        let colours = (0..class_names.len()).map(|class| palette.colour(class)).collect();
        // The masks of other images: one of them could not be read this time or before, or another number of
        // workers divides the batches otherwise.
        if !self.masks.is_of(&names) {
            self.masks = MaskHistory::default();
            // Its pictures must not be shown beside the new ones.
            self.folder.remove_index()?;
        }
        if !samples.is_empty() {
            let pictures = MaskPictures { images: &self.images, palette, classes: class_names.len() };
            if indices != self.written_samples {
                self.write(PictureFile::Samples, pictures.images_and_truth(&indices))?;
            }
            self.write(PictureFile::Epoch(epoch), pictures.predictions_and_differences(&samples))?;
            let shown = MaskEpoch { epoch, iou: samples.iter().map(|sample| sample.iou).collect() };
            self.masks.add(&names, shown);
            self.written_samples = indices;
        }
        Ok(TaskImages::Segmentation { samples: names, predictions: self.masks.epochs.clone(), colours })
    }

    /// Writes a file of pictures.
    fn write(&self, pictures: PictureFile, file: Result<Vec<u8>, io::Error>) -> Result<(), TrainError> {
        let path = self.folder.pictures(pictures);
        let file = file.map_err(Error::io("write", &path))?;
        Ok(atomic::write(&path, &file)?)
    }
}

/// The number of epochs that are done.
fn epoch_of(position: RunPosition) -> u32 {
    u32::try_from(position.epochs_done()).unwrap_or(u32::MAX)
}
