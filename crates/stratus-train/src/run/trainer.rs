//! The training loop.

mod epoch;
mod save;
mod stopping;
mod summary;

use super::best::BestEpochs;
use super::board::Board;
use super::loss_watch::LossWatch;
use super::outlook::Outlook;
use super::pipeline;
use super::process_group::{Decision, ProcessGroup};
use super::records::{
    BOOKKEEPING, CHECKPOINT, DATA_WAIT, FIRST_STEP, Measured, RunningTotals, ValidationKind, final_metrics,
    timeline_program,
};
use super::setup::RunSetup;
use super::usage::UsageSampler;
use super::workers::{Observed, WorkerSearch};
use super::{JPEG, Options, announce};
use crate::evaluate::Evaluator;
use crate::input::BatchFormat;
use crate::{Observer, Schedule, TrainError, TrainingProgress};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use stratus_data::{BatchBuffer, Loader, LoaderConfig, LoaderError, Position};
use stratus_engine::session::Hyper;
use stratus_engine::{Clock, Plan};
use stratus_measures::ClassMeasures;
use stratus_run::RunDir;
use stratus_run::checkpoint::{Checkpoints, State};
use stratus_run::csv::{CsvWriter, EpochRow, IterationRow};
use stratus_run::layout::{EPOCHS, ITERATIONS, TENSORBOARD, TIMELINE, USAGE};
use stratus_run::log::Log;
use stratus_run::summary::{FinalMetrics, Status, StoppedEarly, Summary};
use stratus_run::timeline::{ProgramId, TimelineWriter};

/// The key of [`RunningTotals`] in a checkpoint's state.
const SUMS: &str = "sums";
/// The key of the number of loader threads in a checkpoint's state, where it was not set.
const WORKERS: &str = "workers";
/// Seconds between flushes, for processes that read the files while training runs.
const FLUSH_S: f64 = 1.0;

/// The readers of training and validation data, already reading.
pub(super) struct Loaders {
    train: Loader,
    evaluator: Evaluator,
}

impl Loaders {
    /// Begins to read from `start` on.
    pub fn new(setup: &RunSetup, start: Position) -> Result<Self, TrainError> {
        let RunSetup { resolved, datasets, compiled, .. } = setup;
        let (session, ids) = (&compiled.session, compiled.ids);
        let config = LoaderConfig {
            workers: resolved.most_workers(),
            start,
            share: resolved.share(),
            elsewhere: resolved.stage().is_some_and(|stage| stage.number > 0),
            epochs: Some(u32::try_from(resolved.settings().train.epochs).unwrap_or(u32::MAX)),
            ..resolved.input().training(BatchFormat::of(session.plan(ids.train)))
        };
        let config = resolved.input().read_ahead(datasets.train.as_ref(), config)?;
        let train = Loader::new(Arc::clone(&datasets.train), config)?;
        train.set_workers(resolved.settings().data.workers.unwrap_or(1));
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
    /// Its buffer, until it is copied to the device or given back.
    buffer: Option<BatchBuffer>,
    /// Whether it was copied to the device.
    is_staged: bool,
}

impl Batch {
    /// Its images and labels, as far as a plan's program takes them; empty without a buffer.
    fn of(&mut self, plan: &Plan) -> (&mut [u8], &mut [u8]) {
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
    begun: Instant,
    /// How the machine is used.
    usage: UsageSampler,
    schedule: Schedule,
    loader: Loader,
    workers: WorkerSearch,
    /// Whether the log has the number of loader threads.
    workers_are_logged: bool,
    evaluator: Evaluator,
    rows: CsvWriter<IterationRow>,
    epochs: CsvWriter<EpochRow>,
    timeline: TimelineWriter,
    /// What TensorBoard shows, where that is asked for.
    board: Option<Board>,
    timeline_train: ProgramId,
    timeline_tail: Option<ProgramId>,
    checkpoints: Checkpoints,
    clock: Clock,
    /// When the last iteration ended, or the clock was restarted.
    mark: Instant,
    saved: Instant,
    flushed: Instant,
    /// Iterations done.
    iteration: u64,
    /// The next batch, if it was copied to the device already.
    staged: Option<Batch>,
    sums: RunningTotals,
    rates: Vec<f32>,
    last: FinalMetrics,
    /// What the last validation measured of each class.
    classes: Vec<ClassMeasures>,
    best: BestEpochs,
    outlook: Outlook,
    /// The iteration of the newest checkpoint.
    saved_at: Option<u64>,
    weights_sha256: Option<String>,
    /// Seconds of the run before this process.
    earlier_s: f64,
    loss_watch: LossWatch,
    /// The JPEG decoder, once it is known and logged.
    jpeg: Option<String>,
    /// The JPEG decoder before the run was resumed.
    jpeg_before: Option<String>,
    group: ProcessGroup,
    /// What all workers do before the next iteration.
    decided: Decision,
}

impl<'a> Trainer<'a> {
    pub fn new(
        setup: RunSetup,
        loaders: Loaders,
        run: &'a RunDir,
        log: Log,
        state: Option<State>,
        options: &Options,
        begun: Instant,
    ) -> Result<Self, TrainError> {
        let settings = setup.resolved.settings();
        let resumed = state.as_ref().map_or(0, |state| state.resumed + 1);
        let mut state = state.unwrap_or_default();
        let group = options.group.clone();
        if !group.is_first() {
            // The positions are those of the first worker's files.
            state.positions.clear();
        }
        let mut sums: RunningTotals =
            state.extra.get(SUMS).and_then(RunningTotals::of_checkpoint).unwrap_or_default();
        sums.resumed = resumed;
        let validation = ValidationKind::of(&setup.resolved);
        let task = validation.task;
        let Loaders { train: loader, evaluator } = loaders;
        let position = |name: &str| state.positions.get(name).copied().unwrap_or(0);
        let rows = CsvWriter::resume_at(&run.iterations(), task, position(ITERATIONS))?;
        let epochs = CsvWriter::resume_at(&run.epochs(), task, position(EPOCHS))?;
        let mut timeline = TimelineWriter::resume_at(&run.timeline(), position(TIMELINE))?;
        let (session, ids) = (&setup.compiled.session, setup.compiled.ids);
        let program = timeline_program("train", session, ids.train);
        let timeline_train = timeline.declare(&program)?;
        let shows = settings.train.tensorboard && group.is_first();
        let board = shows
            .then(|| Board::open(run, position(TENSORBOARD), task, &program, &setup.graph))
            .transpose()?;
        let timeline_tail = ids
            .tail
            .map(|tail| timeline.declare(&timeline_program("train_tail", session, tail)))
            .transpose()?;
        let slots = session.slots(ids.train).max(ids.tail.map_or(0, |tail| session.slots(tail)));
        let total = loader.batches_per_epoch() * settings.train.epochs;
        let mut rates = Vec::with_capacity(usize::try_from(total).unwrap_or(0).min(1 << 24));
        let samples = |iteration: u64| {
            let per_epoch = loader.batches_per_epoch();
            let batch = settings.train.batch_size as u64;
            let left = loader.samples_per_epoch() - (iteration - 1) % per_epoch * batch;
            left.min(batch)
        };
        for row in stratus_run::csv::read::<IterationRow>(&run.iterations())? {
            let seconds = row.data_s + row.train_s + row.unattributed_s;
            rates.push((samples(row.iteration) as f64 / seconds.max(1e-9)) as f32);
        }
        let epoch_rows = stratus_run::csv::read::<EpochRow>(&run.epochs())?;
        let last =
            epoch_rows.iter().fold(FinalMetrics::default(), |last, row| final_metrics(row, validation, last));
        let classes = Summary::read(&run.summary()).map(|summary| summary.classes).unwrap_or_default();
        let best = BestEpochs::new(settings, loader.batches_per_epoch(), &epoch_rows);
        let schedule = setup.resolved.schedule();
        let found = state.extra.get(WORKERS).and_then(serde_json::Value::as_u64);
        let found = found.and_then(|workers| usize::try_from(workers).ok());
        let most = setup.resolved.most_workers();
        let workers = match settings.data.workers.or(found) {
            Some(workers) => WorkerSearch::fixed(workers.clamp(1, most)),
            None => WorkerSearch::up_to(most),
        };
        loader.set_workers(workers.active());
        let meter = setup.device.backend.meter();
        let usage = UsageSampler::start(run, position(USAGE), (begun, sums.elapsed_s), meter)?;
        let outlook = stopping::outlook(&setup, run, sums.elapsed_s, begun, options)?;
        let now = Instant::now();
        Ok(Self {
            checkpoints: Checkpoints::new(run.checkpoints()),
            clock: Clock::new(FIRST_STEP + slots),
            stop: Arc::clone(&options.stop),
            until_epoch: options.until_epoch,
            weights_sha256: Some(state.weights_sha256).filter(|sum| !sum.is_empty()),
            iteration: state.iteration,
            outlook,
            saved_at: None,
            earlier_s: sums.elapsed_s,
            setup,
            run,
            log,
            begun,
            usage,
            schedule,
            loader,
            workers_are_logged: workers.is_over(),
            workers,
            evaluator,
            rows,
            epochs,
            timeline,
            board,
            timeline_train,
            timeline_tail,
            mark: now,
            saved: now,
            flushed: now,
            staged: None,
            sums,
            rates,
            last,
            classes,
            best,
            loss_watch: LossWatch::default(),
            jpeg: None,
            group,
            decided: Decision::default(),
            jpeg_before: state.libraries.get(JPEG).cloned(),
        })
    }

    /// Trains to the end, or until told to stop; returns whether it was stopped.
    pub fn run(&mut self, observer: &mut dyn Observer) -> Result<bool, TrainError> {
        let startup_s = self.begun.elapsed().as_secs_f64();
        self.sums.startup_s += startup_s;
        self.say_startup(startup_s)?;
        observer.say(&announce::line("start-up", &format!("{startup_s:.1} s")));
        self.summary(Status::Running).write(&self.run.summary())?;
        self.restart_clock();
        let per_epoch = self.loader.batches_per_epoch();
        let total = self.setup.resolved.settings().train.epochs * per_epoch;
        let mut epoch_begun = self.sums.elapsed_s + startup_s;
        self.say_outlook(observer)?;
        loop {
            self.decide(total)?;
            if self.iteration >= total || self.decided.early {
                break;
            }
            if self.decided.limit {
                self.stop_for_limit(observer)?;
                return Ok(true);
            }
            if self.decided.stop && self.iteration > 0 {
                if self.saved_at != Some(self.iteration) {
                    self.save(self.iteration / per_epoch, self.iteration % per_epoch)?;
                }
                self.log.say(&format!("interrupted after iteration {}", self.iteration))?;
                return Ok(true);
            }
            if self.decided.save {
                self.save(self.iteration / per_epoch, self.iteration % per_epoch)?;
                self.clock.stamp(CHECKPOINT);
            }
            if let Some(epoch) = self.until_epoch.filter(|epoch| self.iteration >= epoch * per_epoch) {
                self.log.say(&format!("stopped after epoch {epoch}, as was asked"))?;
                return Ok(true);
            }
            let epoch = self.iterate(per_epoch, total, observer)?;
            if self.iteration.is_multiple_of(per_epoch) {
                self.end_epoch(epoch, &mut epoch_begun, observer)?;
            }
        }
        self.log.say("completed")?;
        if let Some(stopped) = self.stopped_early() {
            let text = stopped.to_string();
            self.log.say(&text)?;
            observer.say(&text);
        }
        Ok(false)
    }

    /// What all workers do before the next iteration. What depends on time the first decides.
    fn decide(&mut self, total: u64) -> Result<(), TrainError> {
        let goes_on = self.iteration < total;
        let is_first = self.group.is_first();
        let own = Decision {
            stop: goes_on && self.stop.load(Ordering::Relaxed),
            save: goes_on && is_first && self.saved_at != Some(self.iteration) && self.checkpoint_is_due(),
            limit: goes_on && is_first && self.is_over(),
            early: is_first && self.stopped_early().is_some(),
        };
        self.decided = self.group.agree(own)?;
        Ok(())
    }

    /// Logs how long starting took, and the phases that the backend knows of.
    fn say_startup(&mut self, seconds: f64) -> Result<(), TrainError> {
        let phases = self.setup.device.backend.phases();
        let phases = phases.iter().map(|(name, seconds)| format!(", {name} {seconds:.2} s"));
        Ok(self.log.say(&format!("ready after {seconds:.2} s{}", phases.collect::<String>()))?)
    }

    /// Why training ends before its last epoch, if it does.
    fn stopped_early(&self) -> Option<StoppedEarly> {
        let all = self.setup.resolved.settings().train.epochs * self.loader.batches_per_epoch();
        self.best.stopped_early().filter(|_| self.iteration < all)
    }

    /// One iteration; returns its epoch, counted from 1.
    fn iterate(
        &mut self,
        per_epoch: u64,
        total: u64,
        observer: &mut dyn Observer,
    ) -> Result<u64, TrainError> {
        let mut batch = match self.staged.take() {
            Some(batch) => batch,
            None => self.next_batch()?,
        };
        self.clock.stamp(DATA_WAIT);
        let epoch = u64::from(batch.epoch) + 1;
        let rate = self.schedule.learning_rate(self.iteration, per_epoch, total);
        let (program, timeline) = self.program_of(&batch);
        let session = &mut self.setup.compiled.session;
        session.set_hyper(Hyper {
            learning_rate: rate as f32,
            iteration: self.iteration,
            seed: self.setup.resolved.settings().train.seed,
        })?;
        if let (Some(stage), Some(workers), Some(buffer)) =
            (self.setup.resolved.stage(), self.group.workers(), &mut batch.buffer)
        {
            pipeline::hand_on_labels(workers, stage, &mut buffer.labels)?;
        }
        if batch.is_staged {
            session.launch(program, &mut [], &mut [], &mut self.clock, FIRST_STEP)?;
        } else {
            let (images, labels) = batch.of(session.plan(program));
            session.launch(program, images, labels, &mut self.clock, FIRST_STEP)?;
        }
        let slots = session.slots(program);
        // While a device works, the next batch is copied to it.
        let waited = if !session.device_slots().is_empty() && self.iteration + 1 < total {
            let begun = Instant::now();
            self.stage_next()?;
            Some((DATA_WAIT, u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX)))
        } else {
            None
        };
        let session = &mut self.setup.compiled.session;
        session.finish(&mut self.clock, waited)?;
        let metrics = match (self.setup.resolved.stage(), self.group.workers()) {
            (Some(_), Some(workers)) => pipeline::of_last(workers, session.metrics())?,
            _ => session.metrics(),
        };
        let measured = Measured::of(self.setup.resolved.task(), metrics);
        self.clock.stamp(BOOKKEEPING);
        // Giving the buffer back wakes a worker: that time counts as data wait.
        if let Some(buffer) = batch.buffer.take() {
            self.loader.recycle(buffer);
        }
        self.clock.stamp(DATA_WAIT);
        self.iteration += 1;
        if !measured.loss.is_finite() {
            return Err(TrainError::Diverged { loss: measured.loss, iteration: self.iteration, epoch });
        }
        self.clock.stamp(BOOKKEEPING);
        let images = (batch.samples * self.setup.resolved.place().workers) as u64;
        self.record([epoch, images], rate, measured, timeline, FIRST_STEP + slots)?;
        if let Some(text) = self.loss_watch.add(measured.loss, rate) {
            self.log.say(&text)?;
            observer.warn(&text);
        }
        let images_per_second = self.rates.last().map_or(0.0, |&rate| f64::from(rate));
        observer.iteration(&TrainingProgress {
            epoch,
            epochs: self.setup.resolved.settings().train.epochs,
            iteration: self.iteration,
            iterations: total,
            images_per_second,
            left_s: self.outlook.left_s(self.left()),
            loss: self.sums.mean_loss(),
            task: self.setup.resolved.task(),
            accuracy: self.sums.accuracy(),
        });
        if self.flushed.elapsed().as_secs_f64() > FLUSH_S {
            self.rows.flush()?;
            self.timeline.flush()?;
            self.board.as_mut().map_or(Ok(()), Board::flush)?;
            self.flushed = Instant::now();
        }
        // The time of recording belongs to the next iteration, since this one's row is written.
        self.clock.stamp(BOOKKEEPING);
        Ok(epoch)
    }

    /// The loader's next batch.
    fn next_batch(&mut self) -> Result<Batch, TrainError> {
        let batches = self.loader.batches();
        let buffer = self.loader.next()?.ok_or(LoaderError::Exhausted { batches })?;
        Ok(Batch { epoch: buffer.epoch, samples: buffer.samples, buffer: Some(buffer), is_staged: false })
    }

    /// Copies the loader's next batch to the device, and gives its buffer back.
    fn stage_next(&mut self) -> Result<(), TrainError> {
        let mut batch = self.next_batch()?;
        let (program, _) = self.program_of(&batch);
        let session = &mut self.setup.compiled.session;
        let (images, labels) = batch.of(session.plan(program));
        session.stage(program, images, labels)?;
        if let Some(buffer) = batch.buffer.take() {
            self.loader.recycle(buffer);
        }
        self.staged = Some(Batch { is_staged: true, ..batch });
        Ok(())
    }

    /// The program for a batch: an epoch's last one may be smaller.
    fn program_of(&self, batch: &Batch) -> (usize, ProgramId) {
        let ids = self.setup.compiled.ids;
        let whole = batch.samples == self.loader.config().rows();
        match (whole, ids.tail, self.timeline_tail) {
            (false, Some(program), Some(timeline)) => (program, timeline),
            _ => (ids.train, self.timeline_train),
        }
    }

    /// Writes the row and the timeline record of an iteration on so many `images`.
    fn record(
        &mut self,
        [epoch, images]: [u64; 2],
        rate: f64,
        measured: Measured,
        timeline: ProgramId,
        slots: usize,
    ) -> Result<(), TrainError> {
        let end = Instant::now();
        let wall_ns = end.duration_since(self.mark).as_nanos() as u64;
        self.mark = end;
        let attributed_ns: u64 = self.clock.slots()[..slots].iter().sum();
        let seconds = |ns: u64| ns as f64 * 1e-9;
        let (wall, attributed) = (seconds(wall_ns), seconds(attributed_ns));
        let data = seconds(self.clock.slots()[DATA_WAIT]);
        self.sums.add(&measured, images as usize);
        self.sums.epoch_s += wall;
        self.sums.iteration_s += wall;
        self.sums.attributed_s += attributed;
        self.sums.data_wait_s += data;
        self.sums.checkpoint_in_iterations_s += seconds(self.clock.slots()[CHECKPOINT]);
        let steps_s = seconds(self.clock.slots()[FIRST_STEP..slots].iter().sum());
        let is_whole = images == self.setup.resolved.settings().train.batch_size as u64;
        self.outlook.iterated(wall, steps_s, is_whole);
        let wait = Duration::from_nanos(self.clock.slots()[DATA_WAIT]);
        if let Some(workers) =
            self.workers.observe(Observed { images, wall: Duration::from_nanos(wall_ns), wait })
        {
            self.loader.set_workers(workers);
        }
        if self.rates.len() < self.rates.capacity() {
            self.rates.push((images as f64 / wall.max(1e-9)) as f32);
        }
        let epoch = u32::try_from(epoch).unwrap_or(u32::MAX);
        let row = IterationRow {
            epoch,
            iteration: self.iteration,
            loss: measured.loss,
            accuracy: measured.share(measured.right),
            top5: measured.top5.and_then(|top5| measured.share(top5)),
            learning_rate: rate,
            data_s: data,
            train_s: attributed - data,
            unattributed_s: wall - attributed,
        };
        self.rows.append(&row)?;
        let times = &self.clock.slots()[..slots];
        self.timeline.append(timeline, epoch, self.iteration, wall_ns, times)?;
        if let Some(board) = &mut self.board {
            let whole = (timeline == self.timeline_train).then_some(times);
            board.iteration(&row, images as f64 / wall.max(1e-9), (whole, wall_ns))?;
        }
        self.clock.begin_iteration();
        Ok(())
    }

    fn restart_clock(&mut self) {
        self.clock.begin_iteration();
        self.clock.restart();
        self.mark = Instant::now();
    }

    fn elapsed_s(&self) -> f64 {
        self.earlier_s + self.begun.elapsed().as_secs_f64()
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
