//! The summary of a run in progress.

use super::super::first_stage;
use super::Trainer;
use crate::compile::CompiledRun;
use stratus_data::Loader;
use stratus_engine::Session;
use stratus_engine::ops::{self, LOSS_SCALE_FIELDS, LOSS_SCALE_NAME};
use stratus_experiment::OnBadSample;
use stratus_forecast::choice::Source;
use stratus_run::summary::{
    BadSample, BadSamples, Forecast, LossScaleSummary, Memory, Status, Summary, TimeAccount, TimeBreakdown,
};

/// Skipped samples that the summary lists, at most.
const MAX_BAD_SAMPLES: usize = 1000;
/// Classes that the summary lists, at most; `classes.csv` has all of them.
const MAX_CLASSES: usize = 100;

impl Trainer<'_> {
    /// The summary up to now.
    pub(super) fn summary(&self, status: Status) -> Summary {
        let (settings, totals) = (self.setup.resolved.settings(), self.recorder.totals());
        let (loader, time) = (self.batches.loader(), &totals.time);
        let classes = self.recorder.classes();
        let CompiledRun { session, plans, .. } = &self.setup.compiled;
        let on_device = session.device_bytes().map(|bytes| bytes as u64);
        let arena = if on_device.is_some() { 0 } else { plans.arena_bytes as u64 };
        let planned = arena
            + plans.exchange_bytes()
            + loader.memory_bytes()
            + self.evaluator.bytes()
            + self.setup.datasets.train.resident_bytes()
            + self.setup.datasets.validation.resident_bytes();
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
            time: TimeBreakdown {
                total_s: self.time.elapsed_s(),
                startup_s: time.startup_s,
                train_s: time.iteration_s - time.data_wait_s - time.checkpoint_in_iterations_s,
                validation_s: time.validation_s,
                data_wait_s: time.data_wait_s,
                checkpoint_s: time.checkpoint_s + time.checkpoint_in_iterations_s,
            },
            forecast: self.forecast(),
            usage: self.recorder.usage(),
            accounting: TimeAccount::new(time.iteration_s, time.attributed_s),
            final_metrics: self.recorder.final_metrics(),
            classes: if classes.len() > MAX_CLASSES { Vec::new() } else { classes.to_vec() },
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

    /// The forecast step time, compared with the measured one.
    fn forecast(&self) -> Option<Forecast> {
        let estimator = &self.stop_policy.estimator;
        let forecast = estimator.forecast()?;
        let measured_step_s = estimator.measured_step_s();
        let total = self.position.whole();
        Some(Forecast {
            step_s: forecast.step.seconds,
            low_s: forecast.step.low,
            high_s: forecast.step.high,
            total_s: forecast.step.seconds * total.iterations as f64
                + forecast.validation_s * total.validations as f64,
            source: Source::Measured.name().to_owned(),
            measured_step_s,
            error_percent: measured_step_s.map(|step_s| 100.0 * (forecast.step.seconds / step_s - 1.0)),
        })
    }
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
