//! The training loop.
//!
//! ```text
//! decide with the other workers: end, save, or neither
//! next batch ─▶ step ─▶ outcome ─▶ recorder, stop policy, loader threads
//! at the end of an epoch: validation, its row, a checkpoint
//! ```

mod batches;
mod clock;
mod epoch;
mod save;
mod step;
mod summary;

use super::announce;
use super::chance::chance_warning;
use super::checkpointer::Checkpointer;
use super::recorder::slots::{BOOKKEEPING, CHECKPOINT, DATA_WAIT};
use super::recorder::{IterationOutcome, Recorder, epoch_rows, recorded_totals};
use super::run_position::RunPosition;
use super::run_time::RunTime;
use super::setup::RunSetup;
use super::stop_policy::{Interruption, StopPolicy};
use super::worker_role::Decision;
use super::{OpenRun, PreparedRun, RunOptions};
use crate::evaluate::Evaluator;
use crate::{Observer, TrainError, TrainingProgress};
use batches::Batches;
pub(super) use batches::Loaders;
use clock::IterationClock;
use stratus_experiment::Schedule;
use stratus_run::checkpoint::State;
use stratus_run::log::Log;
use stratus_run::summary::{Status, Summary};

/// A run in progress.
pub(super) struct Trainer<'a> {
    setup: RunSetup,
    schedule: Schedule,
    batches: Batches,
    evaluator: Evaluator,
    clock: IterationClock,
    position: RunPosition,
    recorder: Recorder<'a>,
    checkpointer: Checkpointer,
    stop_policy: StopPolicy,
    time: RunTime,
}

impl<'a> Trainer<'a> {
    /// A run that continues from the `state` of its checkpoint, or starts without one.
    pub fn new(
        prepared: PreparedRun,
        run: &'a OpenRun,
        log: Log,
        state: Option<State>,
        options: &RunOptions,
    ) -> Result<Self, TrainError> {
        let PreparedRun { setup, loaders } = prepared;
        let mut state = match state {
            Some(state) => State { resumed: state.resumed + 1, ..state },
            None => State::default(),
        };
        if !setup.role.is_first() {
            // The positions are those of the first worker's files.
            state.positions.clear();
        }
        let OpenRun { folder, started, .. } = run;
        let time = RunTime { started: *started, previous_s: recorded_totals(&state).time.elapsed_s };
        let Loaders { train: loader, mut evaluator } = loaders;
        if setup.role.is_first() {
            let images = setup.resolved.settings().validation.images.unwrap_or(0);
            evaluator.collect_predictions(&setup.resolved, images);
        }
        let per_epoch = loader.batches_per_epoch();
        let (session, ids) = (&setup.compiled.session, setup.compiled.ids);
        let steps = session.slots(ids.train).max(ids.tail.map_or(0, |tail| session.slots(tail)));
        let recorder = Recorder::open(folder, log, &setup, &state, &loader, time)?;
        let rows = epoch_rows(folder)?;
        Ok(Self {
            schedule: setup.resolved.schedule(),
            batches: Batches::new(loader, &setup, &state),
            evaluator,
            clock: IterationClock::new(steps),
            position: RunPosition::new(setup.resolved.settings(), per_epoch, state.iteration),
            recorder,
            checkpointer: Checkpointer::new(folder, &setup, &state, per_epoch, &rows),
            stop_policy: StopPolicy::new(&setup, folder, options, time, &rows)?,
            time,
            setup,
        })
    }

    /// Trains to the end, or until it is stopped; returns whether it was stopped.
    pub fn run(&mut self, observer: &mut dyn Observer) -> Result<bool, TrainError> {
        self.start(observer)?;
        loop {
            let decision = self.decide()?;
            if self.position.is_complete() || decision.early {
                break;
            }
            if let Some(interruption) = self.stop_policy.interruption(decision, self.position) {
                self.save_unless_saved()?;
                self.report_interruption(interruption, observer)?;
                return Ok(true);
            }
            if decision.save {
                self.save()?;
                self.clock.stamp(CHECKPOINT);
            }
            if let Some(epoch) = self.stop_policy.requested_epoch(self.position) {
                self.recorder.log(&format!("stopped after epoch {epoch}, as requested"))?;
                return Ok(true);
            }
            self.iterate(observer)?;
            if self.position.is_epoch_end() {
                self.end_epoch(observer)?;
            }
        }
        self.recorder.log("completed")?;
        if let Some(stopped) = self.stop_policy.stopped_early(self.position) {
            self.recorder.report(&stopped.to_string(), observer)?;
        }
        self.warn_of_chance(observer)?;
        Ok(false)
    }

    /// Warns if the results of the whole run are not better than chance.
    fn warn_of_chance(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        if !self.setup.role.is_first() {
            return Ok(());
        }
        let (resolved, rows) = (&self.setup.resolved, epoch_rows(self.recorder.run())?);
        let (task, outputs) = (resolved.task(), self.recorder.outputs());
        let iterations = self.position.iteration;
        if let Some(text) = chance_warning(resolved.settings(), task, &rows, outputs, iterations) {
            self.recorder.log(&text)?;
            observer.warn(&text);
        }
        Ok(())
    }

    /// Records and reports the startup, and starts the clock.
    fn start(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let startup_s = self.time.process_s();
        self.recorder.start_up(startup_s, &self.setup.device.backend.startup_times())?;
        observer.info(&announce::line("startup", &format!("{startup_s:.1} s")));
        self.write_summary(Status::Running)?;
        self.clock.restart();
        self.report_time_limit(observer)
    }

    /// Decides with the other workers what to do before the next iteration.
    fn decide(&self) -> Result<Decision, TrainError> {
        let Self { setup, position, .. } = self;
        let is_first = setup.role.is_first();
        let is_due = !position.is_complete() && is_first && self.checkpointer.is_due(position.iteration);
        let decision = self.stop_policy.decide(*position, is_first);
        setup.role.agree(Decision { save: is_due, ..decision })
    }

    /// Runs one iteration: the next batch, a step, its records.
    fn iterate(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let mut batch = self.batches.next()?;
        self.clock.stamp(DATA_WAIT);
        let outcome = self.step(&mut batch)?;
        self.clock.stamp(BOOKKEEPING);
        // Recycling the buffer wakes a loader thread: that time counts as data wait.
        self.batches.recycle(&mut batch);
        self.clock.stamp(DATA_WAIT);
        self.position.iteration = outcome.iteration;
        self.stop_policy.check_loss(&outcome)?;
        self.clock.stamp(BOOKKEEPING);
        self.record(&outcome)?;
        self.report(&outcome, observer)?;
        self.recorder.flush_if_due()?;
        // The time of recording belongs to the next iteration, since this one's row is written.
        self.clock.stamp(BOOKKEEPING);
        Ok(())
    }

    /// Ends the time of an iteration, and passes its outcome on.
    fn record(&mut self, outcome: &IterationOutcome) -> Result<(), TrainError> {
        let times = self.clock.end_iteration(outcome.steps);
        let is_whole = outcome.images == self.setup.resolved.settings().train.batch_size as u64;
        self.stop_policy.estimator.record_iteration(times.wall_s(), times.steps_s(), is_whole);
        self.batches.observe(outcome.images, times);
        self.recorder.iteration(outcome, times)?;
        self.clock.begin_iteration();
        Ok(())
    }

    /// Reports the progress, and warns if the loss rises.
    fn report(&mut self, outcome: &IterationOutcome, observer: &mut dyn Observer) -> Result<(), TrainError> {
        if let Some(text) = self.stop_policy.loss_warning(outcome) {
            self.recorder.log(&text)?;
            observer.warn(&text);
        }
        let epoch = &self.recorder.totals().epoch;
        observer.iteration(&TrainingProgress {
            epoch: outcome.epoch,
            epochs: self.position.epochs,
            iteration: outcome.iteration,
            iterations: self.position.total(),
            images_per_second: self.recorder.last_speed(),
            remaining_s: self.stop_policy.estimator.remaining_s(self.position.remaining()),
            loss: epoch.mean_loss(),
            task: self.setup.resolved.task(),
            accuracy: epoch.accuracy(),
        });
        Ok(())
    }

    /// Reports whether the run will finish within deadline and budget, if the answer changed.
    fn report_time_limit(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        match self.stop_policy.limit_message(self.position) {
            Some(text) => self.recorder.report(&text, observer),
            None => Ok(()),
        }
    }

    /// Logs why training stops before its end. A limit is also reported, since no user requested this stop.
    fn report_interruption(
        &mut self,
        interruption: Interruption,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        match interruption {
            Interruption::Limit => {
                self.recorder.report(&self.stop_policy.limit_reached(self.position), observer)
            }
            Interruption::Signal => {
                self.recorder.log(&format!("interrupted after iteration {}", self.position.iteration))
            }
        }
    }

    /// Writes and returns the final summary.
    pub fn finish(&mut self, status: Status) -> Result<Summary, TrainError> {
        if status == Status::Failed {
            // Rows up to the failure help to explain it. If flushing fails too, the first error is reported.
            let _ = self.recorder.flush();
        }
        self.write_summary(status)
    }

    fn write_summary(&self, status: Status) -> Result<Summary, TrainError> {
        let summary = self.summary(status);
        self.recorder.write_summary(&summary)?;
        Ok(summary)
    }
}
