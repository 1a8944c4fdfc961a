//! The summary of a run in progress.

use super::super::first_stage;
use super::super::records::percentiles;
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
        let (settings, totals) = (self.setup.resolved.settings(), &self.totals);
        let CompiledRun { session, plans, .. } = &self.setup.compiled;
        let on_device = session.device_bytes().map(|bytes| bytes as u64);
        let arena = if on_device.is_some() { 0 } else { plans.arena_bytes as u64 };
        let planned = arena
            + plans.exchange_bytes()
            + self.loader.memory_bytes()
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
            epochs: u32::try_from(self.iteration / self.loader.batches_per_epoch().max(1))
                .unwrap_or(u32::MAX),
            iterations: self.iteration,
            images_per_second: percentiles(&self.rates),
            time: TimeBreakdown {
                total_s: self.elapsed_s(),
                startup_s: totals.startup_s,
                train_s: totals.iteration_s - totals.data_wait_s - totals.checkpoint_in_iterations_s,
                validation_s: totals.validation_s,
                data_wait_s: totals.data_wait_s,
                checkpoint_s: totals.checkpoint_s + totals.checkpoint_in_iterations_s,
            },
            forecast: self.forecast(),
            usage: self.usage.usage(),
            accounting: TimeAccount::new(totals.iteration_s, totals.attributed_s),
            final_metrics: self.final_metrics,
            classes: if self.classes.len() > MAX_CLASSES { Vec::new() } else { self.classes.clone() },
            first_stage: first_stage::read_summary(self.run),
            memory: Memory {
                planned_peak_bytes: Some(planned),
                measured_peak_rss_bytes: stratus_run::machine::peak_rss_bytes(),
                planned_device_bytes: on_device,
                device_peak_bytes: self.setup.device.backend.device_bytes(),
            },
            weights_sha256: self.weights_sha256.clone(),
            resumed: totals.resumed,
            data_workers: u32::try_from(self.loader_threads.active()).unwrap_or(u32::MAX),
            loss_scale: loss_scale(session),
            bad_samples: (settings.data.on_bad_sample == OnBadSample::Skip)
                .then(|| bad_samples([&self.loader, self.evaluator.loader()])),
            best: self.best_epochs.best(),
            stopped_early: self.stopped_early(),
        }
    }
}

impl Trainer<'_> {
    /// The forecast step time, compared with the measured one.
    fn forecast(&self) -> Option<Forecast> {
        let forecast = self.time_estimator.forecast()?;
        let measured_step_s = self.time_estimator.measured_step_s();
        let total = self.total_work();
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
