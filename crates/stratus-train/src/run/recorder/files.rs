//! The files that grow with every iteration or epoch: CSV tables, timeline, TensorBoard events.

use super::super::setup::RunSetup;
use super::IterationOutcome;
use super::slots::{IterationTimes, timeline_program};
use super::tensorboard::TensorBoardLog;
use super::totals::ValidationKind;
use crate::TrainError;
use std::collections::BTreeMap;
use std::time::Instant;
use stratus_run::RunDir;
use stratus_run::csv::{CsvWriter, EpochRow, IterationRow};
use stratus_run::layout::{EPOCHS, ITERATIONS, TENSORBOARD, TIMELINE};
use stratus_run::timeline::{ProgramId, TimelineWriter};

/// Seconds between flushes, for processes that read the files while training runs.
const FLUSH_S: f64 = 1.0;

/// The writers of a run's growing files.
pub(super) struct RecordFiles {
    iterations: CsvWriter<IterationRow>,
    epochs: CsvWriter<EpochRow>,
    timeline: TimelineWriter,
    /// The timeline's program for whole batches.
    train: ProgramId,
    /// The timeline's program for the last, smaller batch of an epoch.
    tail: Option<ProgramId>,
    /// The TensorBoard events, if they are enabled.
    tensorboard: Option<TensorBoardLog>,
    last_flushed: Instant,
}

impl RecordFiles {
    /// Opens the files, truncated to the `positions` of a checkpoint.
    pub fn open(
        run: &RunDir,
        setup: &RunSetup,
        positions: &BTreeMap<String, u64>,
    ) -> Result<Self, TrainError> {
        let task = ValidationKind::from_resolved(&setup.resolved).task;
        let position = |name: &str| positions.get(name).copied().unwrap_or(0);
        let iterations = CsvWriter::resume_at(&run.iterations(), task, position(ITERATIONS))?;
        let epochs = CsvWriter::resume_at(&run.epochs(), task, position(EPOCHS))?;
        let mut timeline = TimelineWriter::resume_at(&run.timeline(), position(TIMELINE))?;
        let (session, ids) = (&setup.compiled.session, setup.compiled.ids);
        let program = timeline_program("train", session, ids.train);
        let train = timeline.register(&program)?;
        let logs_events = setup.resolved.settings().train.tensorboard && setup.role.is_first();
        let tensorboard = logs_events
            .then(|| TensorBoardLog::open(run, position(TENSORBOARD), task, &program, &setup.graph))
            .transpose()?;
        let tail = ids
            .tail
            .map(|tail| timeline.register(&timeline_program("train_tail", session, tail)))
            .transpose()?;
        Ok(Self { iterations, epochs, timeline, train, tail, tensorboard, last_flushed: Instant::now() })
    }

    /// Appends an iteration to the tables and the timeline.
    pub fn iteration(
        &mut self,
        outcome: &IterationOutcome,
        times: IterationTimes<'_>,
    ) -> Result<(), TrainError> {
        let IterationOutcome { images, metrics, .. } = outcome;
        let epoch = u32::try_from(outcome.epoch).unwrap_or(u32::MAX);
        let (wall, attributed, data) = (times.wall_s(), times.attributed_s(), times.data_wait_s());
        let row = IterationRow {
            epoch,
            iteration: outcome.iteration,
            loss: metrics.loss,
            accuracy: metrics.fraction(metrics.correct),
            top5: metrics.top5.and_then(|top5| metrics.fraction(top5)),
            learning_rate: outcome.learning_rate,
            data_s: data,
            train_s: attributed - data,
            unattributed_s: wall - attributed,
        };
        self.iterations.append(&row)?;
        let tail = self.tail.filter(|_| outcome.is_tail);
        let program = tail.unwrap_or(self.train);
        self.timeline.append(program, epoch, outcome.iteration, times.wall_ns, times.slots)?;
        if let Some(tensorboard) = &mut self.tensorboard {
            let whole = tail.is_none().then_some(times.slots);
            tensorboard.iteration(&row, *images as f64 / wall.max(1e-9), whole, times.wall_ns)?;
        }
        Ok(())
    }

    /// Appends an epoch, which ended after `iteration`.
    pub fn epoch(&mut self, iteration: u64, row: &EpochRow) -> Result<(), TrainError> {
        self.epochs.append(row)?;
        self.tensorboard.as_mut().map_or(Ok(()), |tensorboard| tensorboard.epoch(iteration, row))
    }

    /// Flushes rows, timeline and events, if the last flush was long enough ago.
    pub fn flush_if_due(&mut self) -> Result<(), TrainError> {
        if self.last_flushed.elapsed().as_secs_f64() > FLUSH_S {
            self.flush()?;
            self.tensorboard.as_mut().map_or(Ok(()), TensorBoardLog::flush)?;
            self.last_flushed = Instant::now();
        }
        Ok(())
    }

    /// Flushes the rows of iterations and the timeline.
    pub fn flush(&mut self) -> Result<(), TrainError> {
        self.iterations.flush()?;
        Ok(self.timeline.flush()?)
    }

    /// Syncs all files to the disk; returns their lengths.
    pub fn sync(&mut self) -> Result<BTreeMap<String, u64>, TrainError> {
        self.iterations.sync()?;
        self.epochs.sync()?;
        self.timeline.sync()?;
        let mut positions = BTreeMap::from([
            (ITERATIONS.to_owned(), self.iterations.position()),
            (EPOCHS.to_owned(), self.epochs.position()),
            (TIMELINE.to_owned(), self.timeline.position()),
        ]);
        if let Some(tensorboard) = &mut self.tensorboard {
            positions.insert(TENSORBOARD.to_owned(), tensorboard.sync()?);
        }
        Ok(positions)
    }

    /// Syncs the timeline, which every worker has.
    pub fn sync_timeline(&mut self) -> Result<(), TrainError> {
        Ok(self.timeline.sync()?)
    }
}
