//! Saving the state of a run in progress.

use super::super::setup::RunSetup;
use super::super::{JPEG, jpeg_decoder};
use super::{TOTALS, Trainer, WORKERS};
use crate::TrainError;
use crate::weights::session_state::Snapshot;
use std::collections::BTreeMap;
use std::time::Instant;
use stratus_run::checkpoint::{Retention, State};
use stratus_run::layout::{EPOCHS, ITERATIONS, TENSORBOARD, TIMELINE, USAGE};
use stratus_run::machine::{Library, Machine};

impl Trainer<'_> {
    pub(super) fn checkpoint_is_due(&self) -> bool {
        let every = self.setup.resolved.settings().checkpoint.every_seconds;
        every > 0.0 && self.last_saved.elapsed().as_secs_f64() >= every
    }

    /// Saves a checkpoint from which training resumes with `batch` of `epoch`, both counted from 0.
    pub(super) fn save(&mut self, epoch: u64, batch: u64) -> Result<(), TrainError> {
        let started = Instant::now();
        let pipeline = self.setup.pipeline_state.as_ref().zip(self.group.workers());
        if pipeline.is_none() {
            self.group.check_same_state(&self.setup.compiled.session, self.iteration)?;
        }
        if !self.group.is_first() {
            // The first worker writes the checkpoint; it requests the values of other stages.
            if let Some((pipeline, workers)) = pipeline {
                pipeline.serve(workers, &self.setup.compiled.session)?;
            }
            self.timeline.sync()?;
            self.last_saved = Instant::now();
            self.saved_iteration = Some(self.iteration);
            return Ok(());
        }
        self.rows.sync()?;
        self.epochs.sync()?;
        self.timeline.sync()?;
        self.totals.elapsed_s = self.elapsed_s();
        let jpeg = self.jpeg_library()?;
        let mut positions = BTreeMap::from([
            (ITERATIONS.to_owned(), self.rows.position()),
            (EPOCHS.to_owned(), self.epochs.position()),
            (TIMELINE.to_owned(), self.timeline.position()),
            (USAGE.to_owned(), self.usage.sync()?),
        ]);
        if let Some(tensorboard) = &mut self.tensorboard {
            positions.insert(TENSORBOARD.to_owned(), tensorboard.sync()?);
        }
        let mut state = State {
            epoch: u32::try_from(epoch).unwrap_or(u32::MAX),
            iteration: self.iteration,
            batch,
            positions,
            best: self.best_epochs.best(),
            resumed: self.totals.resumed,
            ..self.setup.state()
        };
        state.extra.insert(TOTALS.to_owned(), serde_json::to_value(self.totals).unwrap_or_default());
        if self.loader_threads.is_settled() {
            state.extra.insert(WORKERS.to_owned(), self.loader_threads.active().into());
            if !self.loader_threads_logged {
                self.loader_threads_logged = true;
                let threads = self.loader_threads.active();
                self.log.write(&format!("data.workers is not set: training needs {threads}"))?;
            }
        }
        // If no JPEG file was read since the run was resumed, its results depend on the earlier decoder only.
        let jpeg = jpeg.or_else(|| self.jpeg_before.clone());
        state.libraries.extend(jpeg.map(|library| (JPEG.to_owned(), library)));
        let retention = Retention {
            last: self.setup.resolved.settings().checkpoint.keep,
            pinned: state.best.as_ref().map(|best| best.iteration),
        };
        let RunSetup { compiled, graph, pipeline_state, .. } = &self.setup;
        let pipeline = pipeline_state.as_ref().zip(self.group.workers());
        let snapshot = Snapshot::new(compiled, pipeline, graph, self.iteration)?;
        let saved = self.checkpoints.save(&state, &snapshot.tensors(), &retention);
        pipeline.map_or(Ok(()), |(pipeline, workers)| pipeline.finish(workers))?;
        let saved = saved?;
        if let Some(problem) = saved.prune_error {
            self.log.write(&format!("cannot remove an old checkpoint: {problem}"))?;
        }
        self.weights_sha256 = Some(saved.weights_sha256);
        self.last_saved = Instant::now();
        self.saved_iteration = Some(self.iteration);
        self.time_estimator.record_checkpoint(started.elapsed().as_secs_f64());
        Ok(())
    }

    /// The JPEG decoder, if JPEG files were read. The first call that returns it also logs it and records it
    /// in `machine.json`.
    fn jpeg_library(&mut self) -> Result<Option<String>, TrainError> {
        let library = self.loader.jpeg_library().or(self.evaluator.loader().jpeg_library());
        let Some(library) = library.filter(|_| self.jpeg.is_none()) else { return Ok(self.jpeg.clone()) };
        let decoder = jpeg_decoder(library, self.setup.resolved.settings().data.decode);
        self.log.write(&format!("JPEG files are decoded by {decoder}"))?;
        // A resumed run may lack this file.
        if let Ok(mut machine) = Machine::read(&self.run.machine()) {
            let path = library.path().map(|path| path.display().to_string()).unwrap_or_default();
            let about = Library { version: library.version().to_owned(), path };
            machine.libraries.entry(library.name().to_owned()).or_insert(about);
            machine.write(&self.run.machine())?;
        }
        self.jpeg = Some(decoder);
        Ok(self.jpeg.clone())
    }
}
