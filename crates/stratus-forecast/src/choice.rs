//! The choice of the profile for a forecast: the machine's own, or the shared one with the data sheet.

use crate::catalogue::{Machine, Processor};
use crate::error::{Error, Result};
use crate::model::{Framework, Term};
use crate::peaks::NumberFormat;
use crate::profile::{Profile, Validation};
use serde::Serialize;

/// The source of the coefficients of a forecast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Kernels timed on this machine.
    Measured,
    /// A profile fitted to steps of such a machine.
    Profile,
    /// The data sheet, with coefficients fitted to other machines.
    DataSheet,
}

impl Source {
    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Profile => "profile",
            Self::DataSheet => "data sheet",
        }
    }
}

/// The profile for training steps of Stratus on a machine: the first of these.
///
/// - The profile fitted to Stratus on such a machine, if there is one.
/// - For f32 on a GPU without tensor cores, the coefficients of convolutions come from TensorFlow's profile
///   of this machine or of all machines, since both use cuDNN; those of memory-bound terms come from Stratus
///   on the GPU that it was measured on. No such step was measured, so the interval is wider by
///   [`UNSEEN_LOG_STD`].
/// - Otherwise, the profile of other machines with the data sheet of this one; the interval is wider by
///   [`UNSEEN_LOG_STD`].
///
/// # Errors
/// If there is no profile for the format.
pub fn choose(
    profiles: &[Profile],
    processor: &Processor,
    format: NumberFormat,
) -> Result<(Profile, Source)> {
    let (name, gpu) = (processor.name(), matches!(processor, Processor::Gpu(_)));
    // On matrix units, the other formats differ from bf16 only in their peak.
    let precision = match (format, gpu) {
        (NumberFormat::F32, _) => "f32",
        _ => "bf16",
    };
    let find = |framework: Framework, precision: &str, machine: Option<&str>| {
        profiles.iter().find(|profile| {
            profile.framework == framework
                && profile.precision == precision
                && profile.machine.as_deref() == machine
        })
    };
    if let Some(own) = find(Framework::Stratus, format.name(), Some(name)) {
        return Ok((own.clone(), Source::Profile));
    }
    let missing = || Error::TooFew { problem: format!("no profile of Stratus in {format}") };
    if !gpu {
        let shared = find(Framework::Stratus, precision, None).ok_or_else(missing)?;
        return Ok((widened_for_unseen_machine(shared), Source::DataSheet));
    }
    let measured = profiles.iter().find(|profile| {
        profile.framework == Framework::Stratus && profile.precision == "bf16" && profile.machine.is_some()
    });
    let measured = measured.ok_or_else(missing)?;
    if format != NumberFormat::F32 {
        return Ok((widened_for_unseen_machine(measured), Source::DataSheet));
    }
    let machine_profile = find(Framework::Tensorflow, "f32", Some(name));
    let source = if machine_profile.is_some() { Source::Profile } else { Source::DataSheet };
    let convolutions =
        machine_profile.or_else(|| find(Framework::Tensorflow, "f32", None)).ok_or_else(missing)?;
    Ok((with_stratus_memory_terms(convolutions, measured), source))
}

/// The profile for training steps of TensorFlow in f32 on a GPU: the machine's, or the one of all machines.
///
/// # Errors
/// If the format is not f32, or the machine is not a GPU.
pub fn choose_tensorflow(
    profiles: &[Profile],
    processor: &Processor,
    format: NumberFormat,
) -> Result<(Profile, Source)> {
    let Processor::Gpu(gpu) = processor else {
        return Err(Error::TooFew { problem: "no profile of TensorFlow for CPUs".to_owned() });
    };
    if format != NumberFormat::F32 {
        return Err(Error::TooFew { problem: format!("no profile of TensorFlow in {format}") });
    }
    let find = |machine: Option<&str>| {
        profiles.iter().find(|profile| {
            profile.framework == Framework::Tensorflow && profile.machine.as_deref() == machine
        })
    };
    let missing = || Error::TooFew { problem: "no profile of TensorFlow".to_owned() };
    match find(Some(&gpu.name)) {
        Some(own) => Ok((own.clone(), Source::Profile)),
        None => Ok((find(None).ok_or_else(missing)?.clone(), Source::DataSheet)),
    }
}

/// The measurements behind a forecast.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evidence {
    /// The machine that is forecast.
    pub name: String,
    /// The number format.
    pub precision: String,
    /// The source of the coefficients.
    pub source: Source,
    /// The machine of the measurements; `None` if there are several, or for kernels timed on this machine.
    pub measured_on: Option<String>,
    /// A description of the measurements.
    pub data: String,
    /// The accuracy for networks that were left out; `None` if kernels were timed on this machine.
    pub validation: Option<Validation>,
}

/// The profile of a forecast, and the measurements behind it.
///
/// # Errors
/// As [`choose`] and [`choose_tensorflow`].
pub fn evidence(
    framework: Framework,
    profiles: &[Profile],
    machine: &Machine,
    format: NumberFormat,
) -> Result<(Profile, Evidence)> {
    let (profile, source) = match framework {
        Framework::Stratus => choose(profiles, &machine.processor, format)?,
        Framework::Tensorflow => choose_tensorflow(profiles, &machine.processor, format)?,
    };
    let evidence = Evidence {
        name: machine.name.clone(),
        precision: format.name().to_owned(),
        source,
        measured_on: profile.machine.clone(),
        data: profile.data.clone(),
        validation: Some(profile.validation),
    };
    Ok((profile, evidence))
}

/// Additional standard deviation of the log error on a kind of machine without any measurement.
pub const UNSEEN_LOG_STD: f64 = 0.3;
/// Half-width of the 80 % interval of a normal distribution, in standard deviations.
pub(crate) const Z_80: f64 = 1.282;

/// A profile of other machines, with its interval widened for an unseen machine.
fn widened_for_unseen_machine(profile: &Profile) -> Profile {
    let spread = profile.spread.hypot(UNSEEN_LOG_STD);
    Profile { machine: None, spread, factor: Z_80, ..profile.clone() }
}

/// Combines TensorFlow's coefficients of convolutions with Stratus' coefficients of its own kernels.
fn with_stratus_memory_terms(convolutions: &Profile, measured: &Profile) -> Profile {
    let mut profile = Profile {
        framework: Framework::Stratus,
        spread: convolutions.spread.hypot(UNSEEN_LOG_STD),
        factor: Z_80,
        ..convolutions.clone()
    };
    for term in Term::ALL {
        let is_own = matches!(
            term,
            Term::HostConstant
                | Term::HostLaunch
                | Term::Constant
                | Term::Launch
                | Term::DepthwiseBytes
                | Term::NormBytes
                | Term::PoolBytes
                | Term::ElementwiseBytes
                | Term::BiasGradientBytes
                | Term::UpdateBytes
        );
        if is_own {
            let at = term as usize;
            profile.coefficients.log[at] = measured.coefficients.log[at];
            for other in Term::ALL {
                let other = other as usize;
                profile.coefficients.covariance[at][other] = 0.0;
                profile.coefficients.covariance[other][at] = 0.0;
            }
            profile.coefficients.covariance[at][at] = measured.coefficients.covariance[at][at];
        }
    }
    profile
}
