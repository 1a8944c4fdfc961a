//! The summary of a run in progress.

use super::super::first_stage;
use super::super::run_position::RunPosition;
use super::Trainer;
use crate::compile::CompiledRun;
use stratus_data::Loader;
use stratus_engine::Session;
use stratus_engine::ops::{self, LOSS_SCALE_FIELDS, LOSS_SCALE_NAME};
use stratus_experiment::OnBadSample;
use stratus_forecast::choice::Source;
use stratus_run::classes::OutputMetrics;
use stratus_run::forecast::{RunPart, with_total};
use stratus_run::summary::{
    BadSample, BadSamples, Forecast, LossScaleSummary, Memory, Status, Summary, TimeAccount, TimeBreakdown,
};

/// Skipped samples that the summary lists, at most.
const MAX_BAD_SAMPLES: usize = 1000;
/// Classes, labels or targets that the summary lists, at most; `classes.csv` has all of them.
const MAX_CLASSES: usize = 100;

impl Trainer<'_> {
    /// The summary up to now.
    pub(super) fn summary(&self, status: Status) -> Summary {
        let (settings, totals) = (self.setup.resolved.settings(), self.recorder.totals());
        let (loader, time) = (self.batches.loader(), &totals.time);
        let outputs = self.recorder.outputs();
        let CompiledRun { session, plans, .. } = &self.setup.compiled;
        let on_device = session.device_bytes().map(|bytes| bytes as u64);
        let arena = if on_device.is_some() { 0 } else { plans.arena_bytes as u64 };
        let sums = if self.setup.path.uses_processes() { plans.exchange_bytes() } else { 0 };
        // Messages between stages pass through host memory with NCCL too.
        let exchange = sums + plans.message_bytes();
        let planned = arena
            + exchange
            + loader.memory_bytes()
            + self.evaluator.bytes()
            + self.setup.datasets.train.resident_bytes()
            + self.setup.datasets.validation.resident_bytes();
        let breakdown = TimeBreakdown {
            total_s: self.time.elapsed_s(),
            startup_s: time.startup_s,
            train_s: time.iteration_s - time.data_wait_s - time.checkpoint_in_iterations_s,
            validation_s: time.validation_s,
            data_wait_s: time.data_wait_s,
            checkpoint_s: time.checkpoint_s + time.checkpoint_in_iterations_s,
        };
        Summary {
            status,
            experiment: settings.name().to_owned(),
            model: self.setup.graph.name.clone(),
            dataset: settings.data.name.clone(),
            device: self.setup.device.backend.name().to_owned(),
            threads: u32::try_from(self.setup.device.backend.threads()).unwrap_or(u32::MAX),
            precision: self.setup.compiled.plans.train.program.precision.to_string(),
            batch_size: settings.train.batch_size as u64,
            epochs: u32::try_from(self.position.epochs_done()).unwrap_or(u32::MAX),
            iterations: self.position.iteration,
            images_per_second: self.recorder.speed_percentiles(),
            time: breakdown,
            forecast: self.forecast(&breakdown),
            usage: self.recorder.usage(),
            energy: self.recorder.energy(),
            accounting: TimeAccount::new(time.iteration_s, time.attributed_s),
            final_metrics: self.recorder.final_metrics(),
            outputs: if outputs.len() > MAX_CLASSES { OutputMetrics::default() } else { outputs.clone() },
            first_stage: first_stage::read_summary(self.recorder.run()),
            memory: Memory {
                planned_peak_bytes: Some(planned),
                measured_peak_rss_bytes: stratus_run::machine::peak_rss_bytes(),
                planned_device_bytes: on_device,
                device_peak_bytes: self.setup.device.backend.device_bytes(),
            },
            weights_sha256: self.checkpointer.weights_sha256().map(str::to_owned),
            resumed: totals.resumed,
            data_workers: u32::try_from(self.batches.loader_threads()).unwrap_or(u32::MAX),
            loss_scale: loss_scale(session),
            bad_samples: (settings.data.on_bad_sample == OnBadSample::Skip)
                .then(|| bad_samples([loader, self.evaluator.loader()])),
            best: self.checkpointer.best(),
            stopped_early: self.stop_policy.stopped_early(self.position),
        }
    }

    /// The forecast, compared with the measured times of the work that is done.
    fn forecast(&self, measured: &TimeBreakdown) -> Option<Forecast> {
        let estimator = &self.stop_policy.estimator;
        let forecast = estimator.forecast()?;
        let measured_step_s = estimator.measured_step_s();
        let (total, done) = (self.position.whole(), self.position.done());
        let checkpoint_s = estimator.checkpoint_forecast_s();
        let iterations_s = forecast.step.seconds * done.iterations as f64;
        let every_s = self.setup.resolved.settings().checkpoint.every_seconds;
        let checkpoints = checkpoints(self.position, forecast.step.seconds, every_s);
        let parts = with_total(&[
            (RunPart::Iterations, [iterations_s, measured.train_s]),
            (RunPart::DataWait, [0.0, measured.data_wait_s]),
            (RunPart::Validation, [forecast.validation_s * done.validations as f64, measured.validation_s]),
            (RunPart::Checkpoints, [checkpoint_s * checkpoints, measured.checkpoint_s]),
        ]);
        Some(Forecast {
            step_s: forecast.step.seconds,
            low_s: forecast.step.low,
            high_s: forecast.step.high,
            total_s: forecast.step.seconds * total.iterations as f64
                + forecast.validation_s * total.validations as f64,
            source: Source::Measured.name().to_owned(),
            measured_step_s,
            error_percent: measured_step_s.map(|step_s| 100.0 * (forecast.step.seconds / step_s - 1.0)),
            validation_s: Some(forecast.validation_s),
            checkpoint_s: Some(checkpoint_s),
            parts,
        })
    }
}

/// The number of checkpoints that a forecast counts, for iterations of `step_s`: one at the end of each
/// epoch, and one every `every_s` within it.
fn checkpoints(position: RunPosition, step_s: f64, every_s: f64) -> f64 {
    let every_s = if every_s > 0.0 { every_s } else { f64::INFINITY };
    let within = |iterations: u64| (step_s * iterations as f64 / every_s).floor();
    let per_epoch = position.iterations_per_epoch.max(1);
    position.epochs_done() as f64 * (1.0 + within(per_epoch)) + within(position.iteration % per_epoch)
}

/// The loss scale in f16; `None` in other formats, or if the device can no longer be read.
fn loss_scale(session: &Session) -> Option<LossScaleSummary> {
    let numbers: [f32; LOSS_SCALE_FIELDS.len()] = session.read(LOSS_SCALE_NAME).ok()?.try_into().ok()?;
    let ops::LossScale { scale, skipped, .. } = ops::LossScale::from_fields(numbers.map(f64::from));
    Some(LossScaleSummary { scale, skipped_iterations: skipped as u64 })
}

/// The samples that cannot be decoded: found when the data sets were opened, or since then.
fn bad_samples(loaders: [&Loader; 2]) -> BadSamples {
    let mut bad = BadSamples::default();
    for loader in loaders {
        let mut all = loader.skipped();
        all.extend(loader.dataset().damaged().iter().cloned());
        bad.count += all.len() as u64;
        let free = MAX_BAD_SAMPLES.saturating_sub(bad.listed.len());
        bad.listed.extend(all.into_iter().take(free).map(|(index, problem)| BadSample {
            sample: loader.dataset().sample_name(index as usize),
            problem,
        }));
    }
    bad
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_are_counted_within_epochs_and_at_their_ends() {
        // Two epochs of 100 iterations, and 50 iterations of the third.
        let position =
            RunPosition { iteration: 250, iterations_per_epoch: 100, epochs: 3, validation_epochs: 1 };
        assert_eq!(checkpoints(position, 1.0, 0.0), 2.0);
        assert_eq!(checkpoints(position, 1.0, 40.0), 2.0 * 3.0 + 1.0);
        assert_eq!(checkpoints(position, 1.0, 1000.0), 2.0);
        let done = position.done();
        assert_eq!((done.iterations, done.validations, done.epochs), (250, 2, 2));
    }
}
