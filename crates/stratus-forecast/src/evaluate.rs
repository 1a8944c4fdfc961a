//! Fitting profiles to a table of measurements, and judging them by what they did not see.
//!
//! ```text
//! all machines  ──fit──▶ shared coefficients ──fit to one machine──▶ that machine's
//! ```
//!
//! - *Leave one network out*: both fits see the other networks only, of all machines.
//! - *Leave one machine out*: the shared fit sees the other machines only; the data sheet does the rest.
//! - Half an interval's width is a quantile of errors, in deviations, of networks (machines) that were left
//!   out beside the one that is judged: neither fit nor width sees what it is judged on.

use crate::correction::Correction;
use crate::error::{Error, Result};
use crate::measured::{Measured, MeasuredStep};
use crate::model::fit::{Prior, Sample, fit};
use crate::model::{Coefficients, Framework};
use crate::profile::{COVERED, Interval, Profile, Validation};

/// The error of logarithms that a fit to all machines is expected to have, and to one.
const SIGMA: [f64; 2] = [0.25, 0.06];
/// By how much a machine's coefficients differ from those of all, as a part of the prior's deviations.
const OWN: f64 = 0.7;
/// The error of a logarithm that no coefficient explains: of a machine's profile, and of a data sheet.
pub const SPREAD: [f64; 2] = [0.05, 0.15];
/// The error of a logarithm on a machine of a kind that nothing was measured on.
pub const UNSEEN: f64 = 0.3;
/// Deviations to each side that hold four of five, of a normal distribution.
const QUANTILE: f64 = 1.282;
/// The highest quantile of errors that is taken where few groups were left out.
const HIGHEST: f64 = 0.95;

/// A step that was predicted without having been seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    /// Position in [`Measured::steps`].
    pub step: usize,
    /// What was predicted.
    pub predicted: Interval,
    /// What was measured, seconds.
    pub seconds: f64,
}

impl Judged {
    /// The absolute error in percent.
    #[must_use]
    pub fn percent(&self) -> f64 {
        100.0 * (self.predicted.seconds / self.seconds - 1.0).abs()
    }
}

/// Mean absolute error and coverage of some judged steps; `None` of none.
#[must_use]
pub fn validation<'a>(judged: impl IntoIterator<Item = &'a Judged>) -> Option<Validation> {
    let judged: Vec<&Judged> = judged.into_iter().collect();
    let count = judged.len() as f64;
    let mean = |sum: f64| sum / count;
    (!judged.is_empty()).then(|| Validation {
        mean_percent: mean(judged.iter().map(|step| step.percent()).sum()),
        covered_percent: mean(
            judged.iter().map(|step| f64::from(u8::from(step.predicted.holds(step.seconds)))).sum::<f64>()
                * 100.0,
        ),
        steps: judged.len(),
        networks: 0,
    })
}

/// Measurements that profiles of one framework are fitted to.
#[derive(Clone, Copy, Debug)]
pub struct Evaluation<'a> {
    /// The measurements.
    pub measured: &'a Measured,
    /// What is known before.
    pub prior: Prior,
}

impl<'a> Evaluation<'a> {
    /// Of a framework's measurements on GPUs, or on processors; `tensor`: on matrix units.
    #[must_use]
    pub fn new(measured: &'a Measured, framework: Framework, gpu: bool, tensor: bool) -> Self {
        let (log, deviation) = framework.prior(gpu, tensor);
        Self { measured, prior: Prior { log, deviation } }
    }

    fn samples(&self, keep: impl Fn(&MeasuredStep) -> bool) -> Vec<Sample> {
        self.measured.steps.iter().filter(|step| keep(step)).map(|step| step.sample).collect()
    }

    /// Fits what all machines share.
    #[must_use]
    pub fn shared(&self, keep: impl Fn(&MeasuredStep) -> bool) -> Coefficients {
        fit(&self.samples(keep), &self.prior, SIGMA[0])
    }

    /// Fits a machine's own from what all share.
    fn own(
        &self,
        machine: usize,
        shared: &Coefficients,
        keep: impl Fn(&MeasuredStep) -> bool,
    ) -> Coefficients {
        let prior = Prior { log: shared.log, deviation: self.prior.deviation.map(|sd| OWN * sd) };
        fit(&self.samples(|step| step.machine == machine && keep(step)), &prior, SIGMA[1])
    }

    /// Leaves out one network after the other.
    ///
    /// # Errors
    /// Where there are fewer than three networks.
    pub fn without_network(&self) -> Result<LeftOut> {
        let networks = self.measured.networks.len();
        let fit = |left: [usize; 2]| {
            let keep = |step: &MeasuredStep| !left.contains(&step.network);
            let shared = self.shared(keep);
            (0..self.measured.machines.len()).map(|machine| self.own(machine, &shared, keep)).collect()
        };
        self.leave_out(networks, |step| step.network, &fit, SPREAD[0])
    }

    /// Leaves out one network after the other, and fits what all machines share: where few steps of each were
    /// measured.
    ///
    /// # Errors
    /// Where there are fewer than three networks.
    pub fn without_network_shared(&self) -> Result<LeftOut> {
        let machines = self.measured.machines.len();
        let fit = |left: [usize; 2]| vec![self.shared(|step| !left.contains(&step.network)); machines];
        self.leave_out(self.measured.networks.len(), |step| step.network, &fit, SPREAD[1])
    }

    /// Predicts every step from the prior alone.
    #[must_use]
    pub fn unfitted(&self) -> Vec<Judged> {
        let prior = self.shared(|_| false);
        let of = |(step, measured): (usize, &MeasuredStep)| {
            let estimate = prior.estimate(&measured.sample.terms);
            let deviations = QUANTILE * estimate.deviation.hypot(UNSEEN);
            let predicted = Interval::new(estimate.seconds, deviations);
            Judged { step, predicted, seconds: measured.sample.seconds }
        };
        self.measured.steps.iter().enumerate().map(of).collect()
    }

    /// Leaves out one machine after the other.
    ///
    /// # Errors
    /// Where there are fewer than three machines.
    pub fn without_machine(&self) -> Result<LeftOut> {
        let machines = self.measured.machines.len();
        let fit = |left: [usize; 2]| {
            let shared = self.shared(|step| !left.contains(&step.machine));
            vec![shared; machines]
        };
        self.leave_out(machines, |step| step.machine, &fit, SPREAD[1])
    }

    /// `fit` gives coefficients for each machine, fitted without two groups.
    fn leave_out(
        &self,
        groups: usize,
        group: impl Fn(&MeasuredStep) -> usize,
        fit: &dyn Fn([usize; 2]) -> Vec<Coefficients>,
        spread: f64,
    ) -> Result<LeftOut> {
        if groups < 3 {
            let problem = format!("{groups} cannot be left out one after the other: it takes at least 3");
            return Err(Error::TooFew { problem });
        }
        let judge = |coefficients: &[Coefficients], left: usize| -> Vec<Residual> {
            let of_group = self.measured.steps.iter().enumerate().filter(|(_, step)| group(step) == left);
            of_group
                .map(|(position, step)| {
                    let estimate = coefficients[step.machine].estimate(&step.sample.terms);
                    let deviation = estimate.deviation.hypot(spread);
                    let error = (estimate.seconds / step.sample.seconds).ln().abs() / deviation;
                    Residual { position, group: left, predicted: estimate.seconds, deviation, error }
                })
                .collect()
        };
        // errors[judged]: those of each other group where both were left out.
        let mut errors: Vec<Vec<Residual>> = vec![Vec::new(); groups];
        for one in 0..groups {
            for other in 0..one {
                let coefficients = fit([one, other]);
                errors[one].extend(judge(&coefficients, other));
                errors[other].extend(judge(&coefficients, one));
            }
        }
        let (mut judged, mut all) = (Vec::new(), Vec::new());
        for (left, others) in errors.iter().enumerate() {
            let coefficients = fit([left, left]);
            for error in judge(&coefficients, left) {
                let machine = self.measured.steps[error.position].machine;
                let factor = self.factor(others, |other| self.pools(spread, machine, other));
                judged.push(Judged {
                    step: error.position,
                    predicted: Interval::new(error.predicted, factor * error.deviation),
                    seconds: self.measured.steps[error.position].sample.seconds,
                });
                all.push(error);
            }
        }
        judged.sort_by_key(|step| step.step);
        Ok(LeftOut { judged, errors: all })
    }

    /// Whether errors of a machine say something of the interval on another: with profiles, the machine's own
    /// do; with data sheets, all.
    fn pools(&self, spread: f64, machine: usize, other: &Residual) -> bool {
        spread == SPREAD[1] || self.measured.steps[other.position].machine == machine
    }

    /// The quantile of errors that covers [`COVERED`], each group counting the same. Of `n` groups, the
    /// quantile itself covers somewhat less of the next, that of `COVERED (1 + 1/n)` somewhat more
    /// (conformal prediction): it is the one between.
    fn factor(&self, errors: &[Residual], keep: impl Fn(&Residual) -> bool) -> f64 {
        let mut kept: Vec<&Residual> = errors.iter().filter(|error| keep(error)).collect();
        let mut counts = std::collections::BTreeMap::new();
        for error in &kept {
            *counts.entry(error.group).or_insert(0usize) += 1;
        }
        let groups = counts.len().max(1) as f64;
        let level = (COVERED * (1.0 + 0.5 / groups)).min(HIGHEST);
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

    /// The profile of each machine, from all of its measurements; `describe` gives data and command.
    ///
    /// # Errors
    /// As [`Self::without_network`].
    pub fn profiles(
        &self,
        left_out: &LeftOut,
        framework: Framework,
        precision: &str,
        describe: (&str, &str),
    ) -> Vec<Profile> {
        let shared = self.shared(|_| true);
        let of = |(machine, name): (usize, &String)| {
            let of_machine = |step: &MeasuredStep| step.machine == machine;
            let judged = left_out.judged.iter().filter(|j| of_machine(&self.measured.steps[j.step]));
            let mut validation = validation(judged).unwrap_or_default();
            validation.networks = self.measured.networks.len();
            let pools = |other: &Residual| of_machine(&self.measured.steps[other.position]);
            Profile {
                machine: Some(name.clone()),
                framework,
                precision: precision.to_owned(),
                data: describe.0.to_owned(),
                command: describe.1.to_owned(),
                validation,
                coefficients: self.own(machine, &shared, |_| true),
                spread: SPREAD[0],
                factor: self.factor(&left_out.errors, pools),
                correction: Correction::default(),
                runs: Vec::new(),
            }
        };
        self.measured.machines.iter().enumerate().map(of).collect()
    }

    /// The profile of all machines, which a data sheet completes.
    #[must_use]
    pub fn shared_profile(
        &self,
        left_out: &LeftOut,
        framework: Framework,
        precision: &str,
        describe: (&str, &str),
    ) -> Profile {
        let mut validation = validation(&left_out.judged).unwrap_or_default();
        validation.networks = self.measured.networks.len();
        Profile {
            machine: None,
            framework,
            precision: precision.to_owned(),
            data: describe.0.to_owned(),
            command: describe.1.to_owned(),
            validation,
            coefficients: self.shared(|_| true),
            spread: SPREAD[1],
            factor: self.factor(&left_out.errors, |_| true),
            correction: Correction::default(),
            runs: Vec::new(),
        }
    }
}

/// An error of a step that was left out, in deviations.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Residual {
    position: usize,
    group: usize,
    predicted: f64,
    deviation: f64,
    error: f64,
}

/// What leaving out gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeftOut {
    /// Every step, in the order of the measurements.
    pub judged: Vec<Judged>,
    errors: Vec<Residual>,
}
