//! The batches of a run: read ahead by the loader, and copied ahead to a device.

use super::super::loader_threads::{IterationTiming, LoaderThreadSearch};
use super::super::recorder::slots::IterationTimes;
use super::super::setup::RunSetup;
use super::super::worker_role::WorkerRole;
use crate::TrainError;
use crate::compile::CompiledRun;
use crate::evaluate::Evaluator;
use crate::input::BatchFormat;
use std::sync::Arc;
use stratus_data::{BatchBuffer, Loader, LoaderConfig, LoaderError, Position};
use stratus_engine::Plan;
use stratus_run::checkpoint::State;

/// The key of the number of loader threads in a checkpoint's state, if `data.workers` is not set.
const WORKERS: &str = "workers";

/// The loaders of training and validation data, already reading ahead.
pub(in super::super) struct Loaders {
    pub(super) train: Loader,
    pub(super) evaluator: Evaluator,
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
pub(super) struct Batch {
    /// The epoch, counted from 0.
    pub epoch: u32,
    pub samples: usize,
    /// Its buffer, until it is copied to the device or recycled.
    pub buffer: Option<BatchBuffer>,
    /// True if it was copied to the device.
    pub is_on_device: bool,
}

impl Batch {
    /// The images and labels that a plan's program reads; empty without a buffer.
    pub fn slices(&mut self, plan: &Plan) -> (&mut [u8], &mut [u8]) {
        let Some(buffer) = &mut self.buffer else { return (&mut [], &mut []) };
        let [images, labels] = [0, 1].map(|slot| plan.external(slot).map_or(0, |place| place.bytes));
        (&mut buffer.images[..images], &mut bytemuck::cast_slice_mut(&mut buffer.labels)[..labels])
    }
}

/// The batches of a run, in order.
pub(super) struct Batches {
    loader: Loader,
    threads: LoaderThreadSearch,
    /// True if the number of loader threads was logged.
    threads_logged: bool,
    /// The next batch, if it is already on the device.
    prefetched: Option<Batch>,
}

impl Batches {
    /// The batches of a loader, with the number of threads that a checkpoint's `state` recorded.
    pub fn new(loader: Loader, setup: &RunSetup, state: &State) -> Self {
        let found = state.extra.get(WORKERS).and_then(serde_json::Value::as_u64);
        let found = found.and_then(|threads| usize::try_from(threads).ok());
        let max_threads = setup.resolved.max_loader_threads();
        let threads = match setup.resolved.settings().data.workers.or(found) {
            Some(threads) => LoaderThreadSearch::fixed(threads.clamp(1, max_threads)),
            None => LoaderThreadSearch::up_to(max_threads),
        };
        loader.set_active_workers(threads.active());
        Self { loader, threads_logged: threads.is_settled(), threads, prefetched: None }
    }

    pub fn loader(&self) -> &Loader {
        &self.loader
    }

    /// The number of loader threads.
    pub fn loader_threads(&self) -> usize {
        self.threads.active()
    }

    /// The next batch.
    pub fn next(&mut self) -> Result<Batch, TrainError> {
        match self.prefetched.take() {
            Some(batch) => Ok(batch),
            None => self.load(),
        }
    }

    fn load(&mut self) -> Result<Batch, TrainError> {
        let batches = self.loader.batches();
        let buffer = self.loader.next()?.ok_or(LoaderError::Exhausted { batches })?;
        Ok(Batch { epoch: buffer.epoch, samples: buffer.samples, buffer: Some(buffer), is_on_device: false })
    }

    /// Copies the next batch to the device, with the labels that the first stage sends to the last, and
    /// recycles its buffer.
    pub fn prefetch(&mut self, compiled: &mut CompiledRun, role: &WorkerRole) -> Result<(), TrainError> {
        let mut batch = self.load()?;
        if let Some(buffer) = &mut batch.buffer {
            role.forward_labels(&mut buffer.labels)?;
        }
        let (program, _) = self.program_for(&batch, compiled);
        let session = &mut compiled.session;
        let (images, labels) = batch.slices(session.plan(program));
        session.stage(program, images, labels)?;
        self.recycle(&mut batch);
        self.prefetched = Some(Batch { is_on_device: true, ..batch });
        Ok(())
    }

    /// Returns a batch's buffer to the loader, which wakes one of its threads.
    pub fn recycle(&self, batch: &mut Batch) {
        if let Some(buffer) = batch.buffer.take() {
            self.loader.recycle(buffer);
        }
    }

    /// The program for a batch, and whether it is that of the last, smaller batch of an epoch.
    pub fn program_for(&self, batch: &Batch, compiled: &CompiledRun) -> (usize, bool) {
        let is_whole = batch.samples == self.loader.config().rows();
        match (is_whole, compiled.ids.tail) {
            (false, Some(tail)) => (tail, true),
            _ => (compiled.ids.train, false),
        }
    }

    /// Adapts the number of loader threads after an iteration on `images` images.
    pub fn observe(&mut self, images: u64, times: IterationTimes<'_>) {
        let timing = IterationTiming { images, wall: times.wall(), wait: times.data_wait() };
        if let Some(threads) = self.threads.observe(timing) {
            self.loader.set_active_workers(threads);
        }
    }

    /// Records the number of loader threads in a checkpoint's state, once it is final. Returns the message
    /// about it the first time.
    pub fn record_threads(&mut self, state: &mut State) -> Option<String> {
        if !self.threads.is_settled() {
            return None;
        }
        let threads = self.threads.active();
        state.extra.insert(WORKERS.to_owned(), threads.into());
        let is_logged = std::mem::replace(&mut self.threads_logged, true);
        (!is_logged).then(|| format!("data.workers is not set: training needs {threads}"))
    }
}
