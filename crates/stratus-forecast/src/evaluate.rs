//! Fits profiles to a table of measurements, and evaluates them by cross-validation.
//!
//! ```text
//! all machines  ──fit──▶ shared coefficients ──fit to one machine──▶ that machine's
//! ```
//!
//! - *Leave one network out*: both fits use only the other networks, of all machines.
//! - *Leave one machine out*: the shared fit uses only the other machines; the data sheet provides the rest.
//! - The half-width of an interval is a quantile of the errors, in standard deviations, of networks
//!   (machines) that were held out together with the evaluated one: neither the fit nor the width uses it.

use crate::choice::{UNSEEN_LOG_STD, Z_80};
use crate::correction::Correction;
use crate::error::{Error, Result};
use crate::measured::{StepRecord, StepRecords};
use crate::model::fit::{Prior, Sample, fit};
use crate::model::{Coefficients, Framework};
use crate::profile::{COVERAGE, Interval, Profile, Validation};

/// Expected standard deviation of the log error: of a fit to all machines, and of a fit to one.
const EXPECTED_LOG_STD: [f64; 2] = [0.25, 0.06];
/// The standard deviations of a machine's coefficients from the shared ones, as a fraction of the prior's.
const MACHINE_PRIOR_SCALE: f64 = 0.7;
/// Standard deviation of the log error that no coefficient explains: of the profile of a machine, and with a
/// data sheet.
pub const LOG_STD: [f64; 2] = [0.05, 0.15];
/// Maximum quantile of errors with few held-out groups.
const MAX_QUANTILE: f64 = 0.95;

/// The prediction of a step that was not used in the fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeldOutPrediction {
    /// Position in [`StepRecords::steps`].
    pub step: usize,
    /// The predicted time.
    pub predicted: Interval,
    /// Measured seconds.
    pub seconds: f64,
}

impl HeldOutPrediction {
    /// The absolute error in percent.
    #[must_use]
    pub fn percent_error(&self) -> f64 {
        100.0 * (self.predicted.seconds / self.seconds - 1.0).abs()
    }
}

/// Mean absolute error and coverage of predictions; `None` without any.
#[must_use]
pub fn validation<'a>(predictions: impl IntoIterator<Item = &'a HeldOutPrediction>) -> Option<Validation> {
    let predictions: Vec<&HeldOutPrediction> = predictions.into_iter().collect();
    let count = predictions.len() as f64;
    let mean = |sum: f64| sum / count;
    (!predictions.is_empty()).then(|| Validation {
        mean_percent: mean(predictions.iter().map(|step| step.percent_error()).sum()),
        covered_percent: mean(
            predictions
                .iter()
                .map(|step| f64::from(u8::from(step.predicted.contains(step.seconds))))
                .sum::<f64>()
                * 100.0,
        ),
        steps: predictions.len(),
        networks: 0,
    })
}

/// Fits and evaluates profiles of one framework.
#[derive(Clone, Copy, Debug)]
pub struct Evaluation<'a> {
    /// The measurements.
    pub measured: &'a StepRecords,
    /// The prior of the coefficients.
    pub prior: Prior,
}

impl<'a> Evaluation<'a> {
    /// An evaluation of the measurements of a framework on GPUs or on CPUs; `tensor` means on matrix units.
    #[must_use]
    pub fn new(measured: &'a StepRecords, framework: Framework, gpu: bool, tensor: bool) -> Self {
        let (log, deviation) = framework.prior(gpu, tensor);
        Self { measured, prior: Prior { log, deviation } }
    }

    fn samples(&self, keep: impl Fn(&StepRecord) -> bool) -> Vec<Sample> {
        self.measured.steps.iter().filter(|step| keep(step)).map(|step| step.sample).collect()
    }

    /// Fits the coefficients shared by all machines.
    #[must_use]
    pub fn fit_shared(&self, keep: impl Fn(&StepRecord) -> bool) -> Coefficients {
        fit(&self.samples(keep), &self.prior, EXPECTED_LOG_STD[0])
    }

    /// Fits the coefficients of a machine, with the shared ones as prior.
    fn fit_machine(
        &self,
        machine: usize,
        shared: &Coefficients,
        keep: impl Fn(&StepRecord) -> bool,
    ) -> Coefficients {
        let prior =
            Prior { log: shared.log, deviation: self.prior.deviation.map(|sd| MACHINE_PRIOR_SCALE * sd) };
        fit(&self.samples(|step| step.machine == machine && keep(step)), &prior, EXPECTED_LOG_STD[1])
    }

    /// Leave-one-network-out cross-validation of the profiles of machines.
    ///
    /// # Errors
    /// If there are fewer than three networks.
    pub fn leave_one_network_out(&self) -> Result<CrossValidation> {
        let networks = self.measured.networks.len();
        let fit = |held_out: [usize; 2]| {
            let keep = |step: &StepRecord| !held_out.contains(&step.network);
            let shared = self.fit_shared(keep);
            (0..self.measured.machines.len())
                .map(|machine| self.fit_machine(machine, &shared, keep))
                .collect()
        };
        self.cross_validate(networks, |step| step.network, &fit, LOG_STD[0])
    }

    /// Leave-one-network-out cross-validation of the shared profile; for machines with few measured steps.
    ///
    /// # Errors
    /// If there are fewer than three networks.
    pub fn leave_one_network_out_shared(&self) -> Result<CrossValidation> {
        let machines = self.measured.machines.len();
        let fit =
            |held_out: [usize; 2]| vec![self.fit_shared(|step| !held_out.contains(&step.network)); machines];
        self.cross_validate(self.measured.networks.len(), |step| step.network, &fit, LOG_STD[1])
    }

    /// Predicts every step from only the prior.
    #[must_use]
    pub fn predict_from_prior(&self) -> Vec<HeldOutPrediction> {
        let prior = self.fit_shared(|_| false);
        let predict = |(step, measured): (usize, &StepRecord)| {
            let estimate = prior.estimate(&measured.sample.terms);
            let deviations = Z_80 * estimate.deviation.hypot(UNSEEN_LOG_STD);
            let predicted = Interval::new(estimate.seconds, deviations);
            HeldOutPrediction { step, predicted, seconds: measured.sample.seconds }
        };
        self.measured.steps.iter().enumerate().map(predict).collect()
    }

    /// Leave-one-machine-out cross-validation of the shared profile.
    ///
    /// # Errors
    /// If there are fewer than three machines.
    pub fn leave_one_machine_out(&self) -> Result<CrossValidation> {
        let machines = self.measured.machines.len();
        let fit = |held_out: [usize; 2]| {
            let shared = self.fit_shared(|step| !held_out.contains(&step.machine));
            vec![shared; machines]
        };
        self.cross_validate(machines, |step| step.machine, &fit, LOG_STD[1])
    }

    /// Cross-validation over groups of steps; `fit` returns the coefficients of each machine, fitted without
    /// two groups.
    fn cross_validate(
        &self,
        groups: usize,
        group: impl Fn(&StepRecord) -> usize,
        fit: &dyn Fn([usize; 2]) -> Vec<Coefficients>,
        spread: f64,
    ) -> Result<CrossValidation> {
        if groups < 3 {
            let problem = format!("cross-validation needs at least 3 groups, but there are {groups}");
            return Err(Error::TooFew { problem });
        }
        let predict = |coefficients: &[Coefficients], held_out: usize| -> Vec<Residual> {
            let steps = self.measured.steps.iter().enumerate().filter(|(_, step)| group(step) == held_out);
            steps
                .map(|(position, step)| {
                    let estimate = coefficients[step.machine].estimate(&step.sample.terms);
                    let deviation = estimate.deviation.hypot(spread);
                    let error = (estimate.seconds / step.sample.seconds).ln().abs() / deviation;
                    Residual { position, group: held_out, predicted: estimate.seconds, deviation, error }
                })
                .collect()
        };
        // errors[group]: the errors of each other group in the fit without both.
        let mut errors: Vec<Vec<Residual>> = vec![Vec::new(); groups];
        for a in 0..groups {
            for b in 0..a {
                let coefficients = fit([a, b]);
                errors[a].extend(predict(&coefficients, b));
                errors[b].extend(predict(&coefficients, a));
            }
        }
        let (mut predictions, mut all) = (Vec::new(), Vec::new());
        for (held_out, others) in errors.iter().enumerate() {
            let coefficients = fit([held_out, held_out]);
            for error in predict(&coefficients, held_out) {
                let machine = self.measured.steps[error.position].machine;
                let factor = self.factor(others, |other| self.pools(spread, machine, other));
                predictions.push(HeldOutPrediction {
                    step: error.position,
                    predicted: Interval::new(error.predicted, factor * error.deviation),
                    seconds: self.measured.steps[error.position].sample.seconds,
                });
                all.push(error);
            }
        }
        predictions.sort_by_key(|step| step.step);
        Ok(CrossValidation { predictions, errors: all })
    }

    /// Returns whether an error counts for the interval on a machine: with profiles, only errors on that
    /// machine do; with data sheets, all errors do.
    fn pools(&self, spread: f64, machine: usize, other: &Residual) -> bool {
        spread == LOG_STD[1] || self.measured.steps[other.position].machine == machine
    }

    /// The quantile of errors that covers [`COVERAGE`], with equal weights of groups. With `n` groups, the
    /// quantile at `COVERAGE` covers slightly less of a new group, and the one at `COVERAGE (1 + 1/n)`
    /// slightly more (conformal prediction); this is the quantile halfway between.
    fn factor(&self, errors: &[Residual], keep: impl Fn(&Residual) -> bool) -> f64 {
        let mut kept: Vec<&Residual> = errors.iter().filter(|error| keep(error)).collect();
        let mut counts = std::collections::BTreeMap::new();
        for error in &kept {
            *counts.entry(error.group).or_insert(0usize) += 1;
        }
        let groups = counts.len().max(1) as f64;
        let level = (COVERAGE * (1.0 + 0.5 / groups)).min(MAX_QUANTILE);
        kept.sort_by(|a, b| a.error.total_cmp(&b.error));
        let mut sum = 0.0;
        for error in &kept {
            sum += 1.0 / (groups * counts[&error.group] as f64);
            if sum >= level {
                return error.error;
            }
        }
        kept.last().map_or(1.0, |error| error.error)
    }

    /// The profile of each machine, from all of its measurements; `describe` is data and command.
    #[must_use]
    pub fn profiles(
        &self,
        cross_validation: &CrossValidation,
        framework: Framework,
        precision: &str,
        describe: (&str, &str),
    ) -> Vec<Profile> {
        let shared = self.fit_shared(|_| true);
        let profile = |(machine, name): (usize, &String)| {
            let is_on_machine = |step: &StepRecord| step.machine == machine;
            let predictions =
                cross_validation.predictions.iter().filter(|j| is_on_machine(&self.measured.steps[j.step]));
            let mut validation = validation(predictions).unwrap_or_default();
            validation.networks = self.measured.networks.len();
            let pools = |other: &Residual| is_on_machine(&self.measured.steps[other.position]);
            Profile {
                machine: Some(name.clone()),
                framework,
                precision: precision.to_owned(),
                data: describe.0.to_owned(),
                command: describe.1.to_owned(),
                validation,
                coefficients: self.fit_machine(machine, &shared, |_| true),
                spread: LOG_STD[0],
                factor: self.factor(&cross_validation.errors, pools),
                correction: Correction::default(),
                runs: Vec::new(),
            }
        };
        self.measured.machines.iter().enumerate().map(profile).collect()
    }

    /// The shared profile of all machines, to be combined with a data sheet.
    #[must_use]
    pub fn shared_profile(
        &self,
        cross_validation: &CrossValidation,
        framework: Framework,
        precision: &str,
        describe: (&str, &str),
    ) -> Profile {
        let mut validation = validation(&cross_validation.predictions).unwrap_or_default();
        validation.networks = self.measured.networks.len();
        Profile {
            machine: None,
            framework,
            precision: precision.to_owned(),
            data: describe.0.to_owned(),
            command: describe.1.to_owned(),
            validation,
            coefficients: self.fit_shared(|_| true),
            spread: LOG_STD[1],
            factor: self.factor(&cross_validation.errors, |_| true),
            correction: Correction::default(),
            runs: Vec::new(),
        }
    }
}

/// The error of the prediction of a held-out step, in standard deviations.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Residual {
    position: usize,
    group: usize,
    predicted: f64,
    deviation: f64,
    error: f64,
}

/// The result of a cross-validation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CrossValidation {
    /// The prediction of every step, in the order of the measurements.
    pub predictions: Vec<HeldOutPrediction>,
    errors: Vec<Residual>,
}
