//! The summary of a run in progress.

use super::super::first_stage;
use super::super::records::spread;
use super::Trainer;
use crate::compile::CompiledRun;
use crate::experiment::OnBadSample;
use stratus_data::Loader;
use stratus_engine::Session;
use stratus_engine::ops::{self, LOSS_SCALE, LOSS_SCALE_NAME};
use stratus_forecast::choice::Source;
use stratus_run::summary::{
    BadSample, BadSamples, Forecast, LossScale, Memory, Status, Summary, Time, TimeAccount,
};

/// The most skipped samples that it lists.
const BAD_SAMPLES_LISTED: usize = 1000;
/// The most classes that it has; `classes.csv` has any number.
const MOST_CLASSES: usize = 100;

impl Trainer<'_> {
    /// The summary up to now.
    pub(super) fn summary(&self, status: Status) -> Summary {
        let (settings, sums) = (self.setup.resolved.settings(), &self.sums);
        let CompiledRun { session, plans, .. } = &self.setup.compiled;
        let on_device = session.device_bytes().map(|bytes| bytes as u64);
        let arena = if on_device.is_some() { 0 } else { plans.arena_bytes as u64 };
        let planned = arena
            + plans.exchange_bytes()
            + self.loader.bytes()
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
            images_per_second: spread(&self.rates),
            time: Time {
                total_s: self.elapsed_s(),
                startup_s: sums.startup_s,
                train_s: sums.iteration_s - sums.data_wait_s - sums.checkpoint_in_iterations_s,
                validation_s: sums.validation_s,
                data_wait_s: sums.data_wait_s,
                checkpoint_s: sums.checkpoint_s + sums.checkpoint_in_iterations_s,
            },
            forecast: self.forecast(),
            usage: self.usage.usage(),
            accounting: TimeAccount::new(sums.iteration_s, sums.attributed_s),
            last: self.last,
            classes: if self.classes.len() > MOST_CLASSES { Vec::new() } else { self.classes.clone() },
            first_stage: first_stage::summary_of(self.run),
            memory: Memory {
                planned_peak_bytes: Some(planned),
                measured_peak_rss_bytes: stratus_run::machine::peak_rss_bytes(),
                planned_device_bytes: on_device,
                device_peak_bytes: self.setup.device.backend.device_bytes(),
            },
            weights_sha256: self.weights_sha256.clone(),
            resumed: sums.resumed,
            data_workers: u32::try_from(self.workers.active()).unwrap_or(u32::MAX),
            loss_scale: loss_scale(session),
            bad_samples: (settings.data.on_bad_sample == OnBadSample::Skip)
                .then(|| bad_samples([&self.loader, self.evaluator.loader()])),
            best: self.best.best(),
            stopped_early: self.stopped_early(),
            ..Summary::default()
        }
    }
}

impl Trainer<'_> {
    /// What was forecast, beside what was measured.
    fn forecast(&self) -> Option<Forecast> {
        let foreseen = self.outlook.foreseen()?;
        let measured_step_s = self.outlook.measured_step_s();
        let all = self.all();
        Some(Forecast {
            step_s: foreseen.step.seconds,
            low_s: foreseen.step.low,
            high_s: foreseen.step.high,
            total_s: foreseen.step.seconds * all.iterations as f64
                + foreseen.validation_s * all.validations as f64,
            source: Source::Measured.name().to_owned(),
            measured_step_s,
            error_percent: measured_step_s.map(|step_s| 100.0 * (foreseen.step.seconds / step_s - 1.0)),
        })
    }
}

/// The loss scale, in f16. `None` also if the device can no longer be read.
fn loss_scale(session: &Session) -> Option<LossScale> {
    let numbers: [f32; LOSS_SCALE.len()] = session.read(LOSS_SCALE_NAME).ok()?.try_into().ok()?;
    let ops::LossScale { scale, skipped, .. } = ops::LossScale::of(numbers.map(f64::from));
    Some(LossScale { scale, skipped_iterations: skipped as u64 })
}

/// The samples that cannot be decoded: those found when the data sets were opened, and those met since.
fn bad_samples(loaders: [&Loader; 2]) -> BadSamples {
    let mut bad = BadSamples::default();
    for loader in loaders {
        let mut all = loader.skipped();
        all.extend(loader.dataset().damaged().iter().cloned());
        bad.count += all.len() as u64;
        let room = BAD_SAMPLES_LISTED.saturating_sub(bad.listed.len());
        bad.listed.extend(all.into_iter().take(room).map(|(index, problem)| BadSample {
            sample: loader.dataset().sample_name(index as usize),
            problem,
        }));
    }
    bad
}
