//! Saving the state of a run in progress.

use super::super::setup::RunSetup;
use super::super::{JPEG, jpeg_decoder};
use super::{SUMS, Trainer, WORKERS};
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
        every > 0.0 && self.saved.elapsed().as_secs_f64() >= every
    }

    /// Saves a checkpoint from which training continues with `batch` of `epoch`, both counted from 0.
    pub(super) fn save(&mut self, epoch: u64, batch: u64) -> Result<(), TrainError> {
        let saving = Instant::now();
        let staged = self.setup.staged.as_ref().zip(self.group.workers());
        if staged.is_none() {
            self.group.expect_same_state(&self.setup.compiled.session, self.iteration)?;
        }
        if !self.group.is_first() {
            // The first worker writes what all have, or what it asks the other stages for.
            if let Some((staged, workers)) = staged {
                staged.serve(workers, &self.setup.compiled.session)?;
            }
            self.timeline.sync()?;
            self.saved = Instant::now();
            self.saved_at = Some(self.iteration);
            return Ok(());
        }
        self.rows.sync()?;
        self.epochs.sync()?;
        self.timeline.sync()?;
        self.sums.elapsed_s = self.elapsed_s();
        let jpeg = self.jpeg_library()?;
        let mut positions = BTreeMap::from([
            (ITERATIONS.to_owned(), self.rows.position()),
            (EPOCHS.to_owned(), self.epochs.position()),
            (TIMELINE.to_owned(), self.timeline.position()),
            (USAGE.to_owned(), self.usage.sync()?),
        ]);
        if let Some(board) = &mut self.board {
            positions.insert(TENSORBOARD.to_owned(), board.sync()?);
        }
        let mut state = State {
            epoch: u32::try_from(epoch).unwrap_or(u32::MAX),
            iteration: self.iteration,
            batch,
            positions,
            best: self.best.best(),
            resumed: self.sums.resumed,
            ..self.setup.state()
        };
        state.extra.insert(SUMS.to_owned(), serde_json::to_value(self.sums).unwrap_or_default());
        if self.workers.is_over() {
            state.extra.insert(WORKERS.to_owned(), self.workers.active().into());
            if !self.workers_are_logged {
                self.workers_are_logged = true;
                let workers = self.workers.active();
                self.log.say(&format!("data.workers is not set: training needs {workers}"))?;
            }
        }
        // If no JPEG file was read since the run was resumed, its results still depend on the earlier
        // decoder.
        let jpeg = jpeg.or_else(|| self.jpeg_before.clone());
        state.libraries.extend(jpeg.map(|library| (JPEG.to_owned(), library)));
        let retention = Retention {
            last: self.setup.resolved.settings().checkpoint.keep,
            pinned: state.best.as_ref().map(|best| best.iteration),
        };
        let RunSetup { compiled, graph, staged, .. } = &self.setup;
        let staged = staged.as_ref().zip(self.group.workers());
        let snapshot = Snapshot::new(compiled, staged, graph, self.iteration)?;
        let saved = self.checkpoints.save(&state, &snapshot.tensors(), &retention);
        staged.map_or(Ok(()), |(staged, workers)| staged.end(workers))?;
        let saved = saved?;
        if let Some(problem) = saved.not_pruned {
            self.log.say(&format!("an old checkpoint could not be removed: {problem}"))?;
        }
        self.weights_sha256 = Some(saved.weights_sha256);
        self.saved = Instant::now();
        self.saved_at = Some(self.iteration);
        self.outlook.saved(saving.elapsed().as_secs_f64());
        Ok(())
    }

    /// The JPEG decoder, if JPEG files were read; the first time, it is logged and recorded in
    /// `machine.json`.
    fn jpeg_library(&mut self) -> Result<Option<String>, TrainError> {
        let library = self.loader.jpeg_library().or(self.evaluator.loader().jpeg_library());
        let Some(library) = library.filter(|_| self.jpeg.is_none()) else { return Ok(self.jpeg.clone()) };
        let decoder = jpeg_decoder(library, self.setup.resolved.settings().data.decode);
        self.log.say(&format!("JPEG files are decoded by {decoder}"))?;
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
