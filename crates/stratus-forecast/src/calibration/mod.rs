//! Calibration of a machine: a profile from single kernels of generated networks (`design.rs`), measured
//! within whole steps, so that it generalises to other networks.
//!
//! ```text
//! design ──run──▶ kernels with their seconds ──fit──▶ coefficients of the terms
//!                                            ──learn──▶ corrections of the terms per kernel (correction.rs)
//! ```
//!
//! The file has a catalogue row for the machine, with measured peaks instead of data-sheet values, and a
//! profile per number format.

pub mod design;

use crate::catalogue::{Cpu, Machine, Processor};
use crate::correction::{Correction, KernelResidual, group_name};
use crate::error::{Error, Result};
use crate::file;
use crate::model::fit::{Prior, Sample, fit};
use crate::model::{Coefficients, Framework, Peaks, Terms};
use crate::peaks::{NumberFormat, on_matrix_units, peaks};
use crate::profile::{COVERAGE, ComparedRun, FORMAT_VERSION, MAX_FILE_BYTES, Profile, Validation, versioned};
use crate::work::{Kernel, Work};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Expected standard deviation of the log error of a kernel.
const EXPECTED_LOG_STD: f64 = 0.25;
/// Minimum standard deviation of the log error of a step.
const MIN_LOG_STD: f64 = 0.02;
/// Minimum number of networks that a profile is fitted to.
pub const MIN_NETWORKS: usize = 5;

/// The measurements of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredNetwork {
    /// Its kernels with their seconds within a step; layout changes are part of the following kernel.
    pub kernels: Vec<(Kernel, f64)>,
}

impl MeasuredNetwork {
    /// Seconds of a step.
    #[must_use]
    pub fn step_s(&self) -> f64 {
        self.kernels.iter().map(|(_, seconds)| seconds).sum()
    }

    /// The measurements at another speed of the machine: all times multiplied by a factor.
    #[must_use]
    pub fn scaled(mut self, factor: f64) -> Self {
        self.kernels.iter_mut().for_each(|(_, seconds)| *seconds *= factor);
        self
    }

    /// Combines repeated measurements of a network: the median of each kernel. Empty without any.
    #[must_use]
    pub fn median(repeats: &[Self]) -> Self {
        let Some(first) = repeats.first() else { return Self { kernels: Vec::new() } };
        let kernels = first.kernels.iter().enumerate().map(|(at, (kernel, _))| {
            let mut seconds: Vec<f64> = repeats
                .iter()
                .filter_map(|repeat| repeat.kernels.get(at))
                .map(|(_, seconds)| *seconds)
                .collect();
            (kernel.clone(), stratus_base::median(&mut seconds).unwrap_or(0.0))
        });
        Self { kernels: kernels.collect() }
    }

    fn work(&self) -> Work {
        Work { kernels: self.kernels.iter().map(|(kernel, _)| kernel.clone()).collect() }
    }
}

/// The calibrated machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibratedMachine {
    /// The library whose kernels were measured, and its number of threads.
    pub library: String,
    /// Median seconds of the step of [`design::speed_reference`]: the speed that the profiles are for. `None`
    /// in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_s: Option<f64>,
    /// Its catalogue row, with measured peaks.
    pub processor: Cpu,
}

/// The content of a calibration file.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// The machine.
    pub machine: CalibratedMachine,
    /// A profile per number format.
    pub profiles: Vec<Profile>,
}

#[derive(Serialize)]
struct CalibrationHeader<'a> {
    format: u32,
    machine: &'a CalibratedMachine,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CalibrationFile {
    machine: CalibratedMachine,
    profile: Vec<toml::Table>,
}

impl Calibration {
    /// The machine to forecast for.
    #[must_use]
    pub fn machine(&self) -> Machine {
        let cpu = self.machine.processor.clone();
        Machine { name: cpu.name.clone(), processor: Processor::Cpu(cpu), instance: None }
    }

    /// Adds a run to the profile of its number format. Its forecast must not include the correction by
    /// earlier runs.
    ///
    /// # Errors
    /// If there is no profile for the format.
    pub fn add_run(&mut self, format: NumberFormat, run: ComparedRun) -> Result<()> {
        let name = &self.machine.processor.name;
        let missing = || Error::Precision { machine: name.clone(), precision: format.name().to_owned() };
        let profile = self.profiles.iter_mut().find(|profile| profile.precision == format.name());
        profile.ok_or_else(missing)?.runs.push(run);
        Ok(())
    }

    /// Reads a calibration file.
    ///
    /// # Errors
    /// If the file cannot be read, or as [`Self::parse`].
    pub fn read(path: &Path) -> Result<Self> {
        Self::parse(&path.display().to_string(), &file::read(path, MAX_FILE_BYTES)?)
    }

    /// Parses a calibration file.
    ///
    /// # Errors
    /// If the file is too large, not a calibration, or has a different format version.
    pub fn parse(file: &str, text: &str) -> Result<Self> {
        let problem = |problem: String| Error::File { file: file.to_owned(), problem };
        let mut table = versioned(file, text)?;
        table.remove("format");
        if !table.contains_key("profile") {
            return Err(problem("not a calibration; pass a profile with --profile".to_owned()));
        }
        let file_content: CalibrationFile = table.try_into().map_err(|error| problem(error.to_string()))?;
        let machine = file_content.machine;
        machine.processor.check(file)?;
        let parse_profile = |table| Profile::from_table(table).map_err(problem);
        let profiles: Vec<Profile> =
            file_content.profile.into_iter().map(parse_profile).collect::<Result<_>>()?;
        let is_own = |profile: &Profile| profile.machine.as_ref() == Some(&machine.processor.name);
        if profiles.is_empty() || !profiles.iter().all(is_own) {
            return Err(problem("its profiles belong to a different machine".to_owned()));
        }
        Ok(Self { machine, profiles })
    }

    /// The text of the file.
    ///
    /// # Errors
    /// Only if a value cannot be serialised (covered by a test).
    pub fn to_toml(&self) -> Result<String> {
        let head = toml::to_string(&CalibrationHeader { format: FORMAT_VERSION, machine: &self.machine });
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
    fn new(networks: &[&MeasuredNetwork], prior: &Prior, peaks: &Peaks) -> Self {
        let kernels =
            || networks.iter().flat_map(|network| &network.kernels).filter(|(_, seconds)| *seconds > 0.0);
        let samples: Vec<Sample> = kernels()
            .map(|(kernel, seconds)| Sample { terms: Terms::for_kernel(kernel, peaks), seconds: *seconds })
            .collect();
        let coefficients = fit(&samples, prior, EXPECTED_LOG_STD);
        let rows: Vec<(String, KernelResidual)> = kernels()
            .zip(&samples)
            .map(|((kernel, seconds), sample)| {
                let residual = (seconds / coefficients.estimate(&sample.terms).seconds).ln();
                (group_name(kernel), KernelResidual { features: kernel.features, residual })
            })
            .filter(|(_, row)| row.residual.is_finite())
            .collect();
        Self { coefficients, correction: Correction::learn(&rows) }
    }
}

/// Fits the profile of a number format. Its interval and validation are from leave-one-out cross-validation
/// over the networks.
///
/// # Errors
/// If the machine does not support the format, or too few networks were measured.
pub fn profile(
    networks: &[MeasuredNetwork],
    processor: &Cpu,
    format: NumberFormat,
    (data, command): (&str, &str),
) -> Result<Profile> {
    if networks.len() < MIN_NETWORKS {
        let problem =
            format!("{} networks were measured in {format}; a profile needs {MIN_NETWORKS}", networks.len());
        return Err(Error::TooFew { problem });
    }
    let machine = Processor::Cpu(processor.clone());
    let (log, deviation) = Framework::Stratus.prior(false, on_matrix_units(&machine, format));
    let (prior, peaks) = (Prior { log, deviation }, peaks(&machine, format)?);
    let all: Vec<&MeasuredNetwork> = networks.iter().collect();
    let Fitted { coefficients, correction } = Fitted::new(&all, &prior, &peaks);
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
        .map(|held_out| {
            let others: Vec<_> = all
                .iter()
                .enumerate()
                .filter(|(at, _)| *at != held_out)
                .map(|(_, network)| *network)
                .collect();
            let Fitted { coefficients, correction } = Fitted::new(&others, &prior, &peaks);
            let held_out_profile = Profile { coefficients, correction, ..profile.clone() };
            (held_out_profile.estimate_work(&networks[held_out].work(), &peaks).0.seconds
                / networks[held_out].step_s())
            .ln()
        })
        .collect();
    let count = errors.len() as f64;
    let squares: f64 = errors.iter().map(|error| error * error).sum();
    profile.spread = (squares / count).sqrt().max(MIN_LOG_STD);
    let mut deviations: Vec<f64> = errors.iter().map(|error| error.abs() / profile.spread).collect();
    deviations.sort_by(f64::total_cmp);
    let rank = (COVERAGE * (1.0 + 0.5 / count) * count).ceil() as usize;
    profile.factor = deviations[rank.clamp(1, deviations.len()) - 1].max(0.1);
    let covered = deviations.iter().filter(|deviation| **deviation <= profile.factor).count() as f64;
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
