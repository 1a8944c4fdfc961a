//! A machine's own profile: single kernels of networks that are made for it (`design.rs`), measured within
//! whole steps, so that it holds for networks that were not measured.
//!
//! ```text
//! design ──run──▶ kernels with their seconds ──fit──▶ coefficients of the terms
//!                                            ──learn──▶ what the terms leave of each kernel (correction.rs)
//! ```
//!
//! The file holds a row for the machine as the catalogue has it, with measured peaks in the place of its data
//! sheet's, and a profile for each number format.

pub mod design;

use crate::catalogue::{Cpu, Machine, Processor};
use crate::correction::{Correction, Row, group_of};
use crate::error::{Error, Result};
use crate::model::fit::{Prior, Sample, fit};
use crate::model::{Coefficients, Framework, Peaks, Terms};
use crate::peaks::{Format, on_matrix_units, peaks};
use crate::profile::{COVERED, ComparedRun, FORMAT, Profile, Validation, versioned};
use crate::work::{Kernel, Work};
use serde::{Deserialize, Serialize};

/// The error of a kernel's logarithm that the terms are expected to have.
const SIGMA: f64 = 0.25;
/// The least error of a step's logarithm.
const LEAST_SPREAD: f64 = 0.02;
/// The fewest networks that a profile is fitted to.
pub const FEWEST: usize = 5;

/// A network that was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredNetwork {
    /// Its kernels, with the seconds that each took within a step; layout changes are part of the kernel
    /// behind them.
    pub kernels: Vec<(Kernel, f64)>,
}

impl MeasuredNetwork {
    /// Seconds of a step.
    #[must_use]
    pub fn step_s(&self) -> f64 {
        self.kernels.iter().map(|(_, seconds)| seconds).sum()
    }

    /// Takes the other's times where its step is shorter: what else a machine does makes steps longer.
    pub fn improve(&mut self, other: Self) {
        if other.step_s() < self.step_s() {
            *self = other;
        }
    }

    fn work(&self) -> Work {
        Work { kernels: self.kernels.iter().map(|(kernel, _)| kernel.clone()).collect() }
    }
}

/// The machine that was calibrated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibrated {
    /// The library whose kernels were measured, and its threads.
    pub library: String,
    /// Its row, with measured peaks.
    pub processor: Cpu,
}

/// What calibration writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// The machine.
    pub machine: Calibrated,
    /// A profile for each number format.
    pub profiles: Vec<Profile>,
}

#[derive(Serialize)]
struct Head<'a> {
    format: u32,
    machine: &'a Calibrated,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    machine: Calibrated,
    profile: Vec<toml::Table>,
}

impl Calibration {
    /// The machine, to forecast for.
    #[must_use]
    pub fn machine(&self) -> Machine {
        let cpu = self.machine.processor.clone();
        Machine { name: cpu.name.clone(), processor: Processor::Cpu(cpu), instance: None }
    }

    /// Adds a run that the profile of its number format is compared with. What it had forecast is without the
    /// runs before.
    ///
    /// # Errors
    /// Where there is no profile of the format.
    pub fn learn(&mut self, format: Format, run: ComparedRun) -> Result<()> {
        let name = &self.machine.processor.name;
        let missing = || Error::Precision { machine: name.clone(), precision: format.name().to_owned() };
        let profile = self.profiles.iter_mut().find(|profile| profile.precision == format.name());
        profile.ok_or_else(missing)?.runs.push(run);
        Ok(())
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Where it is too long, no calibration, or one of another format.
    pub fn parse(file: &str, text: &str) -> Result<Self> {
        let problem = |problem: String| Error::File { file: file.to_owned(), problem };
        let mut table = versioned(file, text)?;
        table.remove("format");
        if !table.contains_key("profile") {
            let what = "it is of no machine that was calibrated; give a profile with --profile";
            return Err(problem(what.to_owned()));
        }
        let written: Written = table.try_into().map_err(|error| problem(error.to_string()))?;
        let machine = written.machine;
        machine.processor.check(file)?;
        let of = |table| Profile::of_table(table).map_err(problem);
        let profiles: Vec<Profile> = written.profile.into_iter().map(of).collect::<Result<_>>()?;
        let is_own = |profile: &Profile| profile.machine.as_ref() == Some(&machine.processor.name);
        if profiles.is_empty() || !profiles.iter().all(is_own) {
            return Err(problem("its profiles are not those of its machine".to_owned()));
        }
        Ok(Self { machine, profiles })
    }

    /// The file's content.
    ///
    /// # Errors
    /// Never but by a mistake in this crate, which a test would find.
    pub fn to_toml(&self) -> Result<String> {
        let head = toml::to_string(&Head { format: FORMAT, machine: &self.machine });
        let problem = |error: toml::ser::Error| Error::TooFew { problem: error.to_string() };
        let mut text = head.map_err(problem)?;
        for profile in &self.profiles {
            text += "\n[[profile]]\n";
            text += &profile.body("profile.");
        }
        Ok(text)
    }
}

/// Coefficients and corrections.
struct Fitted {
    coefficients: Coefficients,
    correction: Correction,
}

impl Fitted {
    fn of(networks: &[&MeasuredNetwork], prior: &Prior, peaks: &Peaks) -> Self {
        let kernels =
            || networks.iter().flat_map(|network| &network.kernels).filter(|(_, seconds)| *seconds > 0.0);
        let samples: Vec<Sample> = kernels()
            .map(|(kernel, seconds)| Sample { terms: Terms::of_kernel(kernel, peaks), seconds: *seconds })
            .collect();
        let coefficients = fit(&samples, prior, SIGMA);
        let rows: Vec<(String, Row)> = kernels()
            .zip(&samples)
            .map(|((kernel, seconds), sample)| {
                let residual = (seconds / coefficients.estimate(&sample.terms).seconds).ln();
                (group_of(kernel), Row { sizes: kernel.sizes, residual })
            })
            .filter(|(_, row)| row.residual.is_finite())
            .collect();
        Self { coefficients, correction: Correction::learn(&rows) }
    }
}

/// Fits the profile of a number format. Its interval, and what it says of itself, are from networks that were
/// left out one after the other.
///
/// # Errors
/// Where the machine does not compute in the format, or too few networks were measured.
pub fn profile(
    networks: &[MeasuredNetwork],
    processor: &Cpu,
    format: Format,
    (data, command): (&str, &str),
) -> Result<Profile> {
    if networks.len() < FEWEST {
        let problem =
            format!("{} networks were measured in {format}: a profile takes {FEWEST}", networks.len());
        return Err(Error::TooFew { problem });
    }
    let of_machine = Processor::Cpu(processor.clone());
    let (log, deviation) = Framework::Stratus.prior(false, on_matrix_units(&of_machine, format));
    let (prior, peaks) = (Prior { log, deviation }, peaks(&of_machine, format)?);
    let all: Vec<&MeasuredNetwork> = networks.iter().collect();
    let Fitted { coefficients, correction } = Fitted::of(&all, &prior, &peaks);
    let mut profile = Profile {
        machine: Some(processor.name.clone()),
        framework: Framework::Stratus,
        precision: format.name().to_owned(),
        data: data.to_owned(),
        command: command.to_owned(),
        validation: Validation::default(),
        coefficients,
        spread: 1.0,
        factor: 1.0,
        correction,
        runs: Vec::new(),
    };
    let errors: Vec<f64> = (0..networks.len())
        .map(|left| {
            let others: Vec<_> =
                all.iter().enumerate().filter(|(at, _)| *at != left).map(|(_, of)| *of).collect();
            let Fitted { coefficients, correction } = Fitted::of(&others, &prior, &peaks);
            let without = Profile { coefficients, correction, ..profile.clone() };
            (without.work(&networks[left].work(), &peaks).0.seconds / networks[left].step_s()).ln()
        })
        .collect();
    let count = errors.len() as f64;
    let squares: f64 = errors.iter().map(|error| error * error).sum();
    profile.spread = (squares / count).sqrt().max(LEAST_SPREAD);
    let mut off: Vec<f64> = errors.iter().map(|error| error.abs() / profile.spread).collect();
    off.sort_by(f64::total_cmp);
    let place = (COVERED * (1.0 + 0.5 / count) * count).ceil() as usize;
    profile.factor = off[place.clamp(1, off.len()) - 1].max(0.1);
    let covered = off.iter().filter(|off| **off <= profile.factor).count() as f64;
    profile.validation = Validation {
        mean_percent: errors.iter().map(|error| 100.0 * (error.exp() - 1.0).abs()).sum::<f64>() / count,
        covered_percent: 100.0 * covered / count,
        steps: networks.len(),
        networks: networks.len(),
    };
    Ok(profile)
}

#[cfg(test)]
mod tests;
