//! The records of a run besides its checkpoints: tables, timeline, events, log, totals. The recorder receives
//! the outcomes of iterations and epochs, and decides nothing.

pub(super) mod energy;
mod files;
pub(super) mod slots;
mod tensorboard;
pub(super) mod totals;
mod usage;
mod validation;

use super::jpeg::JpegRecord;
use super::run_position::RunPosition;
use super::run_time::RunTime;
use super::setup::RunSetup;
use crate::evaluate::collector::CollectedPredictions;
use crate::evaluate::targets::LogitThresholds;
use crate::evaluate::{Scores, TaskMetrics};
use crate::weights::{THRESHOLDS, logit_thresholds};
use crate::{EpochResult, Observer, TrainError, ValidationResult};
use energy::{RunEnergy, RunGpus};
use files::RecordFiles;
use slots::IterationTimes;
use stratus_data::{JpegLibrary, Loader};
use stratus_experiment::Decode;
use stratus_run::RunDir;
use stratus_run::checkpoint::State;
use stratus_run::classes::OutputMetrics;
use stratus_run::csv::{CsvReader, EpochRow, IterationRow, LabelColumns, NumberColumns, Task};
use stratus_run::layout::USAGE;
use stratus_run::log::Log;
use stratus_run::machine::{Library, Machine};
use stratus_run::summary::{Energy, FinalMetrics, SpeedPercentiles, Summary, Usage};
use totals::{IterationMetrics, RunningTotals, ValidationKind, final_metrics, percentiles};
use usage::UsageSampler;
use validation::{CLASS_HISTORY_POSITION, ValidationRecord};

/// The key of [`RunningTotals`] in a checkpoint's state.
const TOTALS: &str = "sums";
/// The maximum number of iterations whose speed is kept for the percentiles of the summary.
const MAX_SPEEDS: usize = 1 << 24;

/// The outcome of an iteration.
#[derive(Clone, Copy, Debug)]
pub(super) struct IterationOutcome {
    /// Its epoch, counted from 1.
    pub epoch: u64,
    /// Its number, counted from 1.
    pub iteration: u64,
    /// Images of the batch, over all workers.
    pub images: u64,
    pub learning_rate: f64,
    pub metrics: IterationMetrics,
    /// True if the batch was the last, smaller one of an epoch, which has its own program.
    pub is_tail: bool,
    /// Steps of the program, each of which has a slot of the clock.
    pub steps: usize,
}

/// Records a run.
pub(super) struct Recorder<'a> {
    run: &'a RunDir,
    log: Log,
    files: RecordFiles,
    usage: UsageSampler,
    /// The record of the network's errors, if the run keeps it.
    validation: Option<ValidationRecord>,
    time: RunTime,
    energy: RunEnergy,
    /// Seconds of the run when the current epoch started.
    epoch_started_s: f64,
    totals: RunningTotals,
    /// Images per second of each iteration.
    speeds: Vec<f32>,
    results: Results,
    jpeg: JpegRecord,
}

/// The results of the run up to now.
struct Results {
    validation: ValidationKind,
    metrics: FinalMetrics,
    /// The metrics of each class, label or target in the last validation.
    outputs: OutputMetrics,
    /// The logit from which each label applies, as chosen by the last validation.
    thresholds: LogitThresholds,
}

impl Results {
    /// The results that a run's files record.
    fn read(run: &RunDir, validation: ValidationKind, state: &State) -> Result<Self, TrainError> {
        let mut metrics = FinalMetrics::default();
        for row in epoch_rows(run)? {
            metrics = final_metrics(&row, validation, metrics);
        }
        let outputs = Summary::read(&run.summary()).map(|summary| summary.outputs).unwrap_or_default();
        Ok(Self { validation, metrics, outputs, thresholds: logit_thresholds(state) })
    }
}

impl<'a> Recorder<'a> {
    /// Opens the files of a run, truncated to the lengths that the checkpoint's `state` recorded. `loader`
    /// reads the training data.
    pub fn open(
        run: &'a RunDir,
        mut log: Log,
        setup: &RunSetup,
        state: &State,
        loader: &Loader,
        time: RunTime,
    ) -> Result<Self, TrainError> {
        let files = RecordFiles::open(run, setup, &state.positions)?;
        let position = state.positions.get(USAGE).copied().unwrap_or(0);
        let trained =
            RunPosition::new(setup.resolved.settings(), loader.batches_per_epoch(), state.iteration);
        let class_bytes = state.positions.get(CLASS_HISTORY_POSITION).copied().unwrap_or(0);
        let validation = ValidationRecord::open(run, setup, trained, class_bytes, &mut log)?;
        let usage = UsageSampler::start(run, position, time, setup.energy.clone())?;
        let recorded = state.extra.contains_key(TOTALS).then(|| recorded_totals(state).energy);
        let gpus = match (setup.device.is_accelerator, setup.role.workers()) {
            (false, _) => RunGpus::None,
            (true, None) => RunGpus::One,
            (true, Some(_)) => RunGpus::OnePerWorker,
        };
        let energy = RunEnergy::new(setup.energy.clone(), recorded, gpus);
        Ok(Self {
            run,
            log,
            files,
            usage,
            validation,
            time,
            energy,
            epoch_started_s: time.previous_s,
            totals: RunningTotals { resumed: state.resumed, ..recorded_totals(state) },
            speeds: recorded_speeds(run, setup, loader)?,
            results: Results::read(run, ValidationKind::from_resolved(&setup.resolved), state)?,
            jpeg: JpegRecord::from_state(state),
        })
    }

    pub fn run(&self) -> &RunDir {
        self.run
    }

    pub fn totals(&self) -> &RunningTotals {
        &self.totals
    }

    pub fn final_metrics(&self) -> FinalMetrics {
        self.results.metrics
    }

    /// The metrics of each class, label or target in the last validation.
    pub fn outputs(&self) -> &OutputMetrics {
        &self.results.outputs
    }

    pub fn usage(&self) -> Usage {
        self.usage.usage()
    }

    /// The energy of the run up to now.
    pub fn energy(&self) -> Energy {
        self.energy.in_summary()
    }

    pub fn speed_percentiles(&self) -> SpeedPercentiles {
        percentiles(&self.speeds)
    }

    /// Images per second of the last iteration; 0 before there is one.
    pub fn last_speed(&self) -> f64 {
        self.speeds.last().map_or(0.0, |&speed| f64::from(speed))
    }

    /// Writes a line to the log.
    pub fn log(&mut self, text: &str) -> Result<(), TrainError> {
        Ok(self.log.write(text)?)
    }

    /// Writes a line to the log, and reports it.
    pub fn report(&mut self, text: &str, observer: &mut dyn Observer) -> Result<(), TrainError> {
        self.log.write(text)?;
        observer.info(text);
        Ok(())
    }

    /// Records the startup of this process, which took `seconds`, with the backend's `phases` of it.
    pub fn start_up(&mut self, seconds: f64, phases: &[(&str, f64)]) -> Result<(), TrainError> {
        self.totals.time.startup_s += seconds;
        self.epoch_started_s += seconds;
        let phases = phases.iter().map(|(name, seconds)| format!(", {name} {seconds:.2} s"));
        self.log(&format!("ready after {seconds:.2} s{}", phases.collect::<String>()))
    }

    /// Adds an iteration to totals, tables and timeline.
    pub fn iteration(
        &mut self,
        outcome: &IterationOutcome,
        times: IterationTimes<'_>,
    ) -> Result<(), TrainError> {
        let RunningTotals { epoch, time, .. } = &mut self.totals;
        epoch.add(&outcome.metrics, outcome.images, times.wall_s());
        time.iteration_s += times.wall_s();
        time.attributed_s += times.attributed_s();
        time.data_wait_s += times.data_wait_s();
        time.checkpoint_in_iterations_s += times.checkpoint_s();
        let speed = (outcome.images as f64 / times.wall_s().max(1e-9)) as f32;
        if self.speeds.len() < self.speeds.capacity() {
            self.speeds.push(speed);
        } else if let Some(last) = self.speeds.last_mut() {
            // The percentiles are then those of the first iterations, but the last speed is the current one.
            *last = speed;
        }
        self.files.iteration(outcome, times)
    }

    /// Records what a validation got wrong, after the epoch that `position` ends.
    pub fn validation(
        &mut self,
        position: RunPosition,
        scores: &Scores,
        predictions: Option<CollectedPredictions>,
        setup: &RunSetup,
    ) -> Result<(), TrainError> {
        match &mut self.validation {
            Some(record) => record.epoch(position, scores, predictions, setup, &mut self.log),
            None => Ok(()),
        }
    }

    /// Adds an epoch, counted from 1, which ended after `iteration`, and its validation. Starts the totals of
    /// the next one. Returns its row and its images per second.
    pub fn epoch(
        &mut self,
        position: RunPosition,
        scores: Option<&Scores>,
        validation_s: f64,
    ) -> Result<(EpochRow, f64), TrainError> {
        self.totals.time.validation_s += validation_s;
        let epoch = std::mem::take(&mut self.totals.epoch);
        let row = EpochRow {
            epoch: u32::try_from(position.epochs_done()).unwrap_or(u32::MAX),
            train_loss: epoch.mean_loss(),
            train_accuracy: epoch.accuracy(),
            train_s: epoch.seconds,
            val_s: validation_s,
            elapsed_s: self.time.elapsed_s(),
            ..scores.map(validation_row).unwrap_or_default()
        };
        let Results { validation, metrics, outputs, thresholds } = &mut self.results;
        *metrics = final_metrics(&row, *validation, *metrics);
        if let Some(scores) = scores {
            *outputs = known_outputs(scores);
            thresholds.clone_from(&scores.thresholds);
            stratus_run::classes::write(&self.run.classes(), outputs)?;
        }
        self.files.epoch(position.iteration, &row)?;
        Ok((row, epoch.images_per_second()))
    }

    /// Adds the seconds of the checkpoint at the end of an epoch.
    pub fn epoch_checkpoint(&mut self, seconds: f64) {
        self.totals.time.checkpoint_s += seconds;
    }

    /// The report of the epoch that ends now. Starts the time of the next one.
    pub fn epoch_result(
        &mut self,
        position: RunPosition,
        row: &EpochRow,
        images_per_second: f64,
    ) -> EpochResult {
        let elapsed_s = self.time.elapsed_s();
        let started_s = std::mem::replace(&mut self.epoch_started_s, elapsed_s);
        EpochResult {
            epoch: position.epochs_done(),
            epochs: position.epochs,
            train_loss: row.train_loss,
            train_accuracy: row.train_accuracy,
            task: self.results.validation.task,
            validation: row.val_loss.map(|loss| ValidationResult {
                loss,
                accuracy: row.val_accuracy,
                secondary_metric: match self.results.validation.task {
                    Task::Classification => None,
                    Task::Segmentation => row.val_miou,
                    Task::MultiLabel => row.labels.val_map,
                    Task::Regression => row.numbers.val_rmse,
                },
            }),
            images_per_second,
            seconds: elapsed_s - started_s,
        }
    }

    /// Flushes the files for processes that read them, if that is due.
    pub fn flush_if_due(&mut self) -> Result<(), TrainError> {
        self.files.flush_if_due()
    }

    /// Flushes the rows of iterations and the timeline.
    pub fn flush(&mut self) -> Result<(), TrainError> {
        self.files.flush()
    }

    /// Syncs the files of a worker after the first that are read: its timeline and its usage.
    pub fn sync_as_worker(&mut self) -> Result<(), TrainError> {
        self.usage.sync()?;
        self.files.sync_timeline()
    }

    /// Syncs all files to the disk, and records their lengths and the totals in the state of a checkpoint.
    pub fn sync(&mut self, state: &mut State) -> Result<(), TrainError> {
        state.positions = self.files.sync()?;
        state.positions.insert(USAGE.to_owned(), self.usage.sync()?);
        if let Some(validation) = &mut self.validation {
            state.positions.insert(CLASS_HISTORY_POSITION.to_owned(), validation.sync()?);
        }
        self.totals.time.elapsed_s = self.time.elapsed_s();
        self.totals.energy = self.energy.total();
        if !self.results.thresholds.is_empty() {
            let thresholds = serde_json::to_value(&self.results.thresholds).unwrap_or_default();
            state.extra.insert(THRESHOLDS.to_owned(), thresholds);
        }
        state.resumed = self.totals.resumed;
        state.extra.insert(TOTALS.to_owned(), serde_json::to_value(self.totals).unwrap_or_default());
        Ok(())
    }

    /// Records the JPEG decoder in the state of a checkpoint. The first time that it is known, also in log
    /// and machine.
    pub fn jpeg_decoder(
        &mut self,
        library: Option<&JpegLibrary>,
        decode: Decode,
        state: &mut State,
    ) -> Result<(), TrainError> {
        if let Some(library) = library
            && let Some(decoder) = self.jpeg.set(library, decode)
        {
            self.log.write(&format!("JPEG files are decoded by {decoder}"))?;
            // A resumed run may lack this file.
            if let Ok(mut machine) = Machine::read(&self.run.machine()) {
                let path = library.path().map(|path| path.display().to_string()).unwrap_or_default();
                let about = Library { version: library.version().to_owned(), path };
                machine.libraries.entry(library.name().to_owned()).or_insert(about);
                machine.write(&self.run.machine())?;
            }
        }
        self.jpeg.add_to(state);
        Ok(())
    }

    pub fn write_summary(&self, summary: &Summary) -> Result<(), TrainError> {
        Ok(summary.write(&self.run.summary())?)
    }
}

/// The totals of a checkpoint.
pub(super) fn recorded_totals(state: &State) -> RunningTotals {
    state.extra.get(TOTALS).and_then(RunningTotals::from_checkpoint).unwrap_or_default()
}

/// The epochs recorded in a run's table.
pub(super) fn epoch_rows(run: &RunDir) -> Result<Vec<EpochRow>, TrainError> {
    Ok(stratus_run::csv::read::<EpochRow>(&run.epochs())?)
}

/// The images per second of each iteration in a run's table, with room for all that follow.
fn recorded_speeds(run: &RunDir, setup: &RunSetup, loader: &Loader) -> Result<Vec<f32>, TrainError> {
    let train = &setup.resolved.settings().train;
    let (per_epoch, batch) = (loader.batches_per_epoch(), train.batch_size as u64);
    let total = usize::try_from(per_epoch * train.epochs).unwrap_or(0);
    let mut speeds = Vec::with_capacity(total.min(MAX_SPEEDS));
    for row in CsvReader::<IterationRow>::open(&run.iterations())?.take(speeds.capacity()) {
        let row = row?;
        let images = (loader.samples_per_epoch() - (row.iteration - 1) % per_epoch * batch).min(batch);
        let seconds = row.data_s + row.train_s + row.unattributed_s;
        speeds.push((images as f64 / seconds.max(1e-9)) as f32);
    }
    Ok(speeds)
}

/// The metrics of each class, label or target. Those of outputs that are not finite are unknown: NaN is never
/// predicted, so what is counted says nothing about the network.
fn known_outputs(scores: &Scores) -> OutputMetrics {
    let mut outputs = scores.outputs();
    if !scores.loss.is_finite() {
        for class in &mut outputs.classes {
            (class.accuracy, class.iou, class.bf) = (None, None, None);
        }
    }
    outputs
}

/// The columns of an epoch's row that the validation fills. Outputs that are not finite have only a loss.
fn validation_row(scores: &Scores) -> EpochRow {
    if !scores.loss.is_finite() {
        return EpochRow { val_loss: Some(scores.loss), ..EpochRow::default() };
    }
    let row =
        EpochRow { val_loss: Some(scores.loss), val_accuracy: scores.accuracy(), ..EpochRow::default() };
    match &scores.metrics {
        TaskMetrics::Classification(measures) => EpochRow { val_top5: measures.top5, ..row },
        TaskMetrics::Segmentation(measures) => EpochRow {
            val_mean_accuracy: measures.mean_accuracy,
            val_miou: measures.miou,
            val_bf: measures.bf,
            ..row
        },
        TaskMetrics::MultiLabel(measures) => EpochRow {
            labels: LabelColumns {
                val_map: measures.mean_average_precision,
                val_auc: measures.mean_auc,
                val_f1: measures.at_chosen.macro_f1,
                val_exact_match: measures.at_chosen.exact_match,
            },
            ..row
        },
        TaskMetrics::Regression(measures) => {
            EpochRow { numbers: NumberColumns { val_mae: measures.mae, val_rmse: measures.rmse }, ..row }
        }
    }
}
