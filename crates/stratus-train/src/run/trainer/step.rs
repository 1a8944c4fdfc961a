//! One step: the batch runs through the network, forward and backward, and the parameters are updated.

use super::super::recorder::IterationOutcome;
use super::super::recorder::slots::{DATA_WAIT, FIRST_STEP};
use super::super::recorder::totals::IterationMetrics;
use super::Trainer;
use super::batches::Batch;
use crate::TrainError;
use std::time::Instant;
use stratus_engine::session::IterationScalars;

impl Trainer<'_> {
    /// Runs the training program on a batch. Meanwhile, the next batch is copied to the device, if there is
    /// one.
    pub(super) fn step(&mut self, batch: &mut Batch) -> Result<IterationOutcome, TrainError> {
        let Self { setup, batches, clock, position, .. } = self;
        let learning_rate =
            self.schedule.learning_rate(position.iteration, position.iterations_per_epoch, position.total());
        let (program, is_tail) = batches.program_for(batch, &setup.compiled);
        let session = &mut setup.compiled.session;
        session.set_iteration_scalars(IterationScalars {
            learning_rate: learning_rate as f32,
            iteration: position.iteration,
            seed: setup.resolved.settings().train.seed,
        })?;
        // Those of a batch that is on the device already were forwarded before they were copied.
        if let Some(buffer) = &mut batch.buffer {
            setup.role.forward_labels(&mut buffer.labels)?;
        }
        if batch.is_on_device {
            session.launch(program, &mut [], &mut [], &mut clock.stamps, FIRST_STEP)?;
        } else {
            let (images, labels) = batch.slices(session.plan(program));
            session.launch(program, images, labels, &mut clock.stamps, FIRST_STEP)?;
        }
        let steps = session.slots(program);
        let waited = if !session.device_slots().is_empty() && position.iteration + 1 < position.total() {
            let started = Instant::now();
            batches.prefetch(&mut setup.compiled, &setup.role)?;
            Some((DATA_WAIT, u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX)))
        } else {
            None
        };
        let session = &mut setup.compiled.session;
        session.finish(&mut clock.stamps, waited)?;
        let metrics = IterationMetrics::new(setup.resolved.task(), setup.role.metrics(session)?);
        Ok(IterationOutcome {
            epoch: u64::from(batch.epoch) + 1,
            iteration: position.iteration + 1,
            images: (batch.samples * setup.resolved.rank().world_size) as u64,
            learning_rate,
            metrics,
            is_tail,
            steps,
        })
    }
}
