//! The training loop.

mod epoch;
mod save;
mod stopping;
mod summary;

use super::best::BestEpochTracker;
use super::loader_threads::{IterationTiming, LoaderThreadSearch};
use super::loss_monitor::LossMonitor;
use super::pipeline;
use super::process_group::{Decision, ProcessGroup};
use super::records::{
    BOOKKEEPING, CHECKPOINT, DATA_WAIT, FIRST_STEP, IterationMetrics, RunningTotals, ValidationKind,
    final_metrics, timeline_program,
};
use super::setup::RunSetup;
use super::tensorboard::TensorBoardLog;
use super::time_estimator::TimeEstimator;
use super::usage::UsageSampler;
use super::{JPEG, RunOptions, announce};
use crate::evaluate::Evaluator;
use crate::input::BatchFormat;
use crate::{Observer, TrainError, TrainingProgress};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use stratus_data::{BatchBuffer, Loader, LoaderConfig, LoaderError, Position};
use stratus_engine::session::IterationScalars;
use stratus_engine::{Clock, Plan};
use stratus_experiment::Schedule;
use stratus_measures::ClassMetrics;
use stratus_run::RunDir;
use stratus_run::checkpoint::{Checkpoints, State};
use stratus_run::csv::{CsvWriter, EpochRow, IterationRow};
use stratus_run::layout::{EPOCHS, ITERATIONS, TENSORBOARD, TIMELINE, USAGE};
use stratus_run::log::Log;
use stratus_run::summary::{FinalMetrics, Status, StoppedEarly, Summary};
use stratus_run::timeline::{ProgramId, TimelineWriter};

/// The key of [`RunningTotals`] in a checkpoint's state.
const TOTALS: &str = "sums";
/// The key of the number of loader threads in a checkpoint's state, if `data.workers` is not set.
const WORKERS: &str = "workers";
/// Seconds between flushes, for processes that read the files while training runs.
const FLUSH_S: f64 = 1.0;

/// The loaders of training and validation data, already reading ahead.
pub(super) struct Loaders {
    train: Loader,
    evaluator: Evaluator,
}

impl Loaders {
    /// Starts reading at `start`.
    pub fn new(setup: &RunSetup, start: Position) -> Result<Self, TrainError> {
        let RunSetup { resolved, datasets, compiled, .. } = setup;
        let (session, ids) = (&compiled.session, compiled.ids);
        let config = LoaderConfig {
            workers: resolved.max_loader_threads(),
            start,
            slice: resolved.batch_slice(),
            positions_only: resolved.stage().is_some_and(|stage| stage.index > 0),
            epochs: Some(u32::try_from(resolved.settings().train.epochs).unwrap_or(u32::MAX)),
            ..resolved.input().training(BatchFormat::from_plan(session.plan(ids.train)))
        };
        let config = resolved.input().read_ahead(datasets.train.as_ref(), config)?;
        let train = Loader::new(Arc::clone(&datasets.train), config)?;
        train.set_active_workers(resolved.settings().data.workers.unwrap_or(1));
        Ok(Self {
            train,
            evaluator: Evaluator::new(resolved, session, ids.evaluate, Arc::clone(&datasets.validation))?,
        })
    }
}

/// A batch of an iteration.
struct Batch {
    epoch: u32,
    samples: usize,
    /// Its buffer, until it is copied to the device or recycled.
    buffer: Option<BatchBuffer>,
    /// True if it was copied to the device.
    is_on_device: bool,
}

impl Batch {
    /// The images and labels that a plan's program reads; empty without a buffer.
    fn slices(&mut self, plan: &Plan) -> (&mut [u8], &mut [u8]) {
        let Some(buffer) = &mut self.buffer else { return (&mut [], &mut []) };
        let [images, labels] = [0, 1].map(|slot| plan.external(slot).map_or(0, |place| place.bytes));
        (&mut buffer.images[..images], &mut bytemuck::cast_slice_mut(&mut buffer.labels)[..labels])
    }
}

/// A run in progress.
pub(super) struct Trainer<'a> {
    setup: RunSetup,
    run: &'a RunDir,
    log: Log,
    stop: Arc<AtomicBool>,
    until_epoch: Option<u64>,
    /// When this process started or resumed the run.
    started: Instant,
    /// Samples how the machine is used.
    usage: UsageSampler,
    schedule: Schedule,
    loader: Loader,
    loader_threads: LoaderThreadSearch,
    /// True if the number of loader threads was logged.
    loader_threads_logged: bool,
    evaluator: Evaluator,
    rows: CsvWriter<IterationRow>,
    epochs: CsvWriter<EpochRow>,
    timeline: TimelineWriter,
    /// The TensorBoard events, if they are enabled.
    tensorboard: Option<TensorBoardLog>,
    timeline_train: ProgramId,
    timeline_tail: Option<ProgramId>,
    checkpoints: Checkpoints,
    clock: Clock,
    /// When the last iteration ended, or the clock was restarted.
    iteration_started: Instant,
    last_saved: Instant,
    last_flushed: Instant,
    /// Iterations done.
    iteration: u64,
    /// The next batch, if it is already on the device.
    prefetched: Option<Batch>,
    totals: RunningTotals,
    /// Images per second of each iteration.
    rates: Vec<f32>,
    final_metrics: FinalMetrics,
    /// The metrics of each class in the last validation.
    classes: Vec<ClassMetrics>,
    best_epochs: BestEpochTracker,
    time_estimator: TimeEstimator,
    /// The iteration of the newest checkpoint.
    saved_iteration: Option<u64>,
    weights_sha256: Option<String>,
    /// Seconds of the run in earlier processes.
    previous_s: f64,
    loss_monitor: LossMonitor,
    /// The JPEG decoder, once it is known and logged.
    jpeg: Option<String>,
    /// The JPEG decoder before the run was resumed.
    jpeg_before: Option<String>,
    group: ProcessGroup,
    /// The decision of all workers for the next iteration.
    decision: Decision,
}

impl<'a> Trainer<'a> {
    pub fn new(
        setup: RunSetup,
        loaders: Loaders,
        run: &'a RunDir,
        log: Log,
        state: Option<State>,
        options: &RunOptions,
        started: Instant,
    ) -> Result<Self, TrainError> {
        let settings = setup.resolved.settings();
        let resumed = state.as_ref().map_or(0, |state| state.resumed + 1);
        let mut state = state.unwrap_or_default();
        let group = options.group.clone();
        if !group.is_first() {
            // The positions are those of the first worker's files.
            state.positions.clear();
        }
        let mut totals: RunningTotals =
            state.extra.get(TOTALS).and_then(RunningTotals::from_checkpoint).unwrap_or_default();
        totals.resumed = resumed;
        let validation = ValidationKind::from_resolved(&setup.resolved);
        let task = validation.task;
        let Loaders { train: loader, evaluator } = loaders;
        let position = |name: &str| state.positions.get(name).copied().unwrap_or(0);
        let rows = CsvWriter::resume_at(&run.iterations(), task, position(ITERATIONS))?;
        let epochs = CsvWriter::resume_at(&run.epochs(), task, position(EPOCHS))?;
        let mut timeline = TimelineWriter::resume_at(&run.timeline(), position(TIMELINE))?;
        let (session, ids) = (&setup.compiled.session, setup.compiled.ids);
        let program = timeline_program("train", session, ids.train);
        let timeline_train = timeline.register(&program)?;
        let logs_events = settings.train.tensorboard && group.is_first();
        let tensorboard = logs_events
            .then(|| TensorBoardLog::open(run, position(TENSORBOARD), task, &program, &setup.graph))
            .transpose()?;
        let timeline_tail = ids
            .tail
            .map(|tail| timeline.register(&timeline_program("train_tail", session, tail)))
            .transpose()?;
        let slots = session.slots(ids.train).max(ids.tail.map_or(0, |tail| session.slots(tail)));
        let total = loader.batches_per_epoch() * settings.train.epochs;
        let mut rates = Vec::with_capacity(usize::try_from(total).unwrap_or(0).min(1 << 24));
        let samples = |iteration: u64| {
            let per_epoch = loader.batches_per_epoch();
            let batch = settings.train.batch_size as u64;
            let remaining = loader.samples_per_epoch() - (iteration - 1) % per_epoch * batch;
            remaining.min(batch)
        };
        for row in stratus_run::csv::read::<IterationRow>(&run.iterations())? {
            let seconds = row.data_s + row.train_s + row.unattributed_s;
            rates.push((samples(row.iteration) as f64 / seconds.max(1e-9)) as f32);
        }
        let epoch_rows = stratus_run::csv::read::<EpochRow>(&run.epochs())?;
        let final_metrics = epoch_rows
            .iter()
            .fold(FinalMetrics::default(), |metrics, row| final_metrics(row, validation, metrics));
        let classes = Summary::read(&run.summary()).map(|summary| summary.classes).unwrap_or_default();
        let best_epochs = BestEpochTracker::new(settings, loader.batches_per_epoch(), &epoch_rows);
        let schedule = setup.resolved.schedule();
        let found = state.extra.get(WORKERS).and_then(serde_json::Value::as_u64);
        let found = found.and_then(|threads| usize::try_from(threads).ok());
        let max_threads = setup.resolved.max_loader_threads();
        let loader_threads = match settings.data.workers.or(found) {
            Some(threads) => LoaderThreadSearch::fixed(threads.clamp(1, max_threads)),
            None => LoaderThreadSearch::up_to(max_threads),
        };
        loader.set_active_workers(loader_threads.active());
        let meter = setup.device.backend.meter();
        let usage = UsageSampler::start(run, position(USAGE), (started, totals.elapsed_s), meter)?;
        let time_estimator = stopping::time_estimator(&setup, run, totals.elapsed_s, started, options)?;
        let now = Instant::now();
        Ok(Self {
            checkpoints: Checkpoints::new(run.checkpoints()),
            clock: Clock::new(FIRST_STEP + slots),
            stop: Arc::clone(&options.stop),
            until_epoch: options.until_epoch,
            weights_sha256: Some(state.weights_sha256).filter(|sum| !sum.is_empty()),
            iteration: state.iteration,
            time_estimator,
            saved_iteration: None,
            previous_s: totals.elapsed_s,
            setup,
            run,
            log,
            started,
            usage,
            schedule,
            loader,
            loader_threads_logged: loader_threads.is_settled(),
            loader_threads,
            evaluator,
            rows,
            epochs,
            timeline,
            tensorboard,
            timeline_train,
            timeline_tail,
            iteration_started: now,
            last_saved: now,
            last_flushed: now,
            prefetched: None,
            totals,
            rates,
            final_metrics,
            classes,
            best_epochs,
            loss_monitor: LossMonitor::default(),
            jpeg: None,
            group,
            decision: Decision::default(),
            jpeg_before: state.libraries.get(JPEG).cloned(),
        })
    }

    /// Trains to the end, or until it is stopped; returns whether it was stopped.
    pub fn run(&mut self, observer: &mut dyn Observer) -> Result<bool, TrainError> {
        let startup_s = self.started.elapsed().as_secs_f64();
        self.totals.startup_s += startup_s;
        self.log_startup(startup_s)?;
        observer.info(&announce::line("start-up", &format!("{startup_s:.1} s")));
        self.summary(Status::Running).write(&self.run.summary())?;
        self.restart_clock();
        let per_epoch = self.loader.batches_per_epoch();
        let total = self.setup.resolved.settings().train.epochs * per_epoch;
        let mut epoch_started_s = self.totals.elapsed_s + startup_s;
        self.report_time_limit(observer)?;
        loop {
            self.decide(total)?;
            if self.iteration >= total || self.decision.early {
                break;
            }
            if self.decision.limit {
                self.stop_for_limit(observer)?;
                return Ok(true);
            }
            if self.decision.stop && self.iteration > 0 {
                if self.saved_iteration != Some(self.iteration) {
                    self.save(self.iteration / per_epoch, self.iteration % per_epoch)?;
                }
                self.log.write(&format!("interrupted after iteration {}", self.iteration))?;
                return Ok(true);
            }
            if self.decision.save {
                self.save(self.iteration / per_epoch, self.iteration % per_epoch)?;
                self.clock.stamp(CHECKPOINT);
            }
            if let Some(epoch) = self.until_epoch.filter(|epoch| self.iteration >= epoch * per_epoch) {
                self.log.write(&format!("stopped after epoch {epoch}, as requested"))?;
                return Ok(true);
            }
            let epoch = self.iterate(per_epoch, total, observer)?;
            if self.iteration.is_multiple_of(per_epoch) {
                self.end_epoch(epoch, &mut epoch_started_s, observer)?;
            }
        }
        self.log.write("completed")?;
        if let Some(stopped) = self.stopped_early() {
            let text = stopped.to_string();
            self.log.write(&text)?;
            observer.info(&text);
        }
        Ok(false)
    }

    /// Decides with the other workers what to do before the next iteration. Only the first worker decides on
    /// anything that depends on time.
    fn decide(&mut self, total: u64) -> Result<(), TrainError> {
        let unfinished = self.iteration < total;
        let is_first = self.group.is_first();
        let decision = Decision {
            stop: unfinished && self.stop.load(Ordering::Relaxed),
            save: unfinished
                && is_first
                && self.saved_iteration != Some(self.iteration)
                && self.checkpoint_is_due(),
            limit: unfinished && is_first && self.would_exceed_limit(),
            early: is_first && self.stopped_early().is_some(),
        };
        self.decision = self.group.agree(decision)?;
        Ok(())
    }

    /// Logs the start-up time and the backend's phases of it.
    fn log_startup(&mut self, seconds: f64) -> Result<(), TrainError> {
        let phases = self.setup.device.backend.startup_times();
        let phases = phases.iter().map(|(name, seconds)| format!(", {name} {seconds:.2} s"));
        Ok(self.log.write(&format!("ready after {seconds:.2} s{}", phases.collect::<String>()))?)
    }

    /// The reason why training stops before its last epoch, if it does.
    fn stopped_early(&self) -> Option<StoppedEarly> {
        let total = self.setup.resolved.settings().train.epochs * self.loader.batches_per_epoch();
        self.best_epochs.stopped_early().filter(|_| self.iteration < total)
    }

    /// Runs one iteration; returns its epoch, counted from 1.
    fn iterate(
        &mut self,
        per_epoch: u64,
        total: u64,
        observer: &mut dyn Observer,
    ) -> Result<u64, TrainError> {
        let mut batch = match self.prefetched.take() {
            Some(batch) => batch,
            None => self.next_batch()?,
        };
        self.clock.stamp(DATA_WAIT);
        let epoch = u64::from(batch.epoch) + 1;
        let rate = self.schedule.learning_rate(self.iteration, per_epoch, total);
        let (program, timeline) = self.program_for(&batch);
        let session = &mut self.setup.compiled.session;
        session.set_iteration_scalars(IterationScalars {
            learning_rate: rate as f32,
            iteration: self.iteration,
            seed: self.setup.resolved.settings().train.seed,
        })?;
        if let (Some(stage), Some(workers), Some(buffer)) =
            (self.setup.resolved.stage(), self.group.workers(), &mut batch.buffer)
        {
            pipeline::forward_labels(workers, stage, &mut buffer.labels)?;
        }
        if batch.is_on_device {
            session.launch(program, &mut [], &mut [], &mut self.clock, FIRST_STEP)?;
        } else {
            let (images, labels) = batch.slices(session.plan(program));
            session.launch(program, images, labels, &mut self.clock, FIRST_STEP)?;
        }
        let slots = session.slots(program);
        // The next batch is copied to the device while it computes.
        let waited = if !session.device_slots().is_empty() && self.iteration + 1 < total {
            let started = Instant::now();
            self.prefetch_next()?;
            Some((DATA_WAIT, u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX)))
        } else {
            None
        };
        let session = &mut self.setup.compiled.session;
        session.finish(&mut self.clock, waited)?;
        let metrics = match (self.setup.resolved.stage(), self.group.workers()) {
            (Some(_), Some(workers)) => pipeline::metrics_of_last_stage(workers, session.metrics())?,
            _ => session.metrics(),
        };
        let metrics = IterationMetrics::new(self.setup.resolved.task(), metrics);
        self.clock.stamp(BOOKKEEPING);
        // Recycling the buffer wakes a loader thread: that time counts as data wait.
        if let Some(buffer) = batch.buffer.take() {
            self.loader.recycle(buffer);
        }
        self.clock.stamp(DATA_WAIT);
        self.iteration += 1;
        if !metrics.loss.is_finite() {
            return Err(TrainError::Diverged { loss: metrics.loss, iteration: self.iteration, epoch });
        }
        self.clock.stamp(BOOKKEEPING);
        let images = (batch.samples * self.setup.resolved.rank().world_size) as u64;
        self.record([epoch, images], rate, metrics, timeline, FIRST_STEP + slots)?;
        if let Some(text) = self.loss_monitor.add(metrics.loss, rate) {
            self.log.write(&text)?;
            observer.warn(&text);
        }
        let images_per_second = self.rates.last().map_or(0.0, |&rate| f64::from(rate));
        observer.iteration(&TrainingProgress {
            epoch,
            epochs: self.setup.resolved.settings().train.epochs,
            iteration: self.iteration,
            iterations: total,
            images_per_second,
            remaining_s: self.time_estimator.remaining_s(self.remaining()),
            loss: self.totals.mean_loss(),
            task: self.setup.resolved.task(),
            accuracy: self.totals.accuracy(),
        });
        if self.last_flushed.elapsed().as_secs_f64() > FLUSH_S {
            self.rows.flush()?;
            self.timeline.flush()?;
            self.tensorboard.as_mut().map_or(Ok(()), TensorBoardLog::flush)?;
            self.last_flushed = Instant::now();
        }
        // The time of recording belongs to the next iteration, since this one's row is written.
        self.clock.stamp(BOOKKEEPING);
        Ok(epoch)
    }

    /// The loader's next batch.
    fn next_batch(&mut self) -> Result<Batch, TrainError> {
        let batches = self.loader.batches();
        let buffer = self.loader.next()?.ok_or(LoaderError::Exhausted { batches })?;
        Ok(Batch { epoch: buffer.epoch, samples: buffer.samples, buffer: Some(buffer), is_on_device: false })
    }

    /// Copies the loader's next batch to the device, and recycles its buffer.
    fn prefetch_next(&mut self) -> Result<(), TrainError> {
        let mut batch = self.next_batch()?;
        let (program, _) = self.program_for(&batch);
        let session = &mut self.setup.compiled.session;
        let (images, labels) = batch.slices(session.plan(program));
        session.stage(program, images, labels)?;
        if let Some(buffer) = batch.buffer.take() {
            self.loader.recycle(buffer);
        }
        self.prefetched = Some(Batch { is_on_device: true, ..batch });
        Ok(())
    }

    /// The program for a batch. The last batch of an epoch may be smaller and have its own.
    fn program_for(&self, batch: &Batch) -> (usize, ProgramId) {
        let ids = self.setup.compiled.ids;
        let is_whole = batch.samples == self.loader.config().rows();
        match (is_whole, ids.tail, self.timeline_tail) {
            (false, Some(program), Some(timeline)) => (program, timeline),
            _ => (ids.train, self.timeline_train),
        }
    }

    /// Writes the row and the timeline record of an iteration on `images` images.
    fn record(
        &mut self,
        [epoch, images]: [u64; 2],
        rate: f64,
        metrics: IterationMetrics,
        timeline: ProgramId,
        slots: usize,
    ) -> Result<(), TrainError> {
        let end = Instant::now();
        let wall_ns = end.duration_since(self.iteration_started).as_nanos() as u64;
        self.iteration_started = end;
        let attributed_ns: u64 = self.clock.slots()[..slots].iter().sum();
        let seconds = |ns: u64| ns as f64 * 1e-9;
        let (wall, attributed) = (seconds(wall_ns), seconds(attributed_ns));
        let data = seconds(self.clock.slots()[DATA_WAIT]);
        self.totals.add(&metrics, images as usize);
        self.totals.epoch_s += wall;
        self.totals.iteration_s += wall;
        self.totals.attributed_s += attributed;
        self.totals.data_wait_s += data;
        self.totals.checkpoint_in_iterations_s += seconds(self.clock.slots()[CHECKPOINT]);
        let steps_s = seconds(self.clock.slots()[FIRST_STEP..slots].iter().sum());
        let is_whole = images == self.setup.resolved.settings().train.batch_size as u64;
        self.time_estimator.record_iteration(wall, steps_s, is_whole);
        let wait = Duration::from_nanos(self.clock.slots()[DATA_WAIT]);
        let timing = IterationTiming { images, wall: Duration::from_nanos(wall_ns), wait };
        if let Some(threads) = self.loader_threads.observe(timing) {
            self.loader.set_active_workers(threads);
        }
        if self.rates.len() < self.rates.capacity() {
            self.rates.push((images as f64 / wall.max(1e-9)) as f32);
        }
        let epoch = u32::try_from(epoch).unwrap_or(u32::MAX);
        let row = IterationRow {
            epoch,
            iteration: self.iteration,
            loss: metrics.loss,
            accuracy: metrics.fraction(metrics.correct),
            top5: metrics.top5.and_then(|top5| metrics.fraction(top5)),
            learning_rate: rate,
            data_s: data,
            train_s: attributed - data,
            unattributed_s: wall - attributed,
        };
        self.rows.append(&row)?;
        let times = &self.clock.slots()[..slots];
        self.timeline.append(timeline, epoch, self.iteration, wall_ns, times)?;
        if let Some(tensorboard) = &mut self.tensorboard {
            let whole = (timeline == self.timeline_train).then_some(times);
            tensorboard.iteration(&row, images as f64 / wall.max(1e-9), (whole, wall_ns))?;
        }
        self.clock.begin_iteration();
        Ok(())
    }

    fn restart_clock(&mut self) {
        self.clock.begin_iteration();
        self.clock.restart();
        self.iteration_started = Instant::now();
    }

    fn elapsed_s(&self) -> f64 {
        self.previous_s + self.started.elapsed().as_secs_f64()
    }

    /// Writes and returns the final summary.
    pub fn finish(&mut self, status: Status) -> Result<Summary, TrainError> {
        if status == Status::Failed {
            // Rows up to the failure help to explain it. If flushing fails too, the first error is reported.
            let _ = self.rows.flush().and_then(|()| self.timeline.flush());
        }
        let summary = self.summary(status);
        summary.write(&self.run.summary())?;
        Ok(summary)
    }
}
