//! Which profile a forecast is made with: one of the machine, or what all share and the data sheet.

use crate::catalogue::Processor;
use crate::error::{Error, Result};
use crate::evaluate::UNSEEN;
use crate::model::{Framework, Term};
use crate::peaks::Format;
use crate::profile::Profile;
use serde::Serialize;

/// Where a forecast's coefficients are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Kernels that were timed on this machine.
    Measured,
    /// A profile that was fitted to steps of such a machine.
    Profile,
    /// The data sheet, and what was fitted to other machines.
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

/// The profile for steps of Stratus on a machine.
///
/// - One that was fitted to Stratus on such a machine.
/// - f32 on a GPU, outside of tensor cores: cuDNN's convolutions are the same in TensorFlow, so their
///   coefficients are those of TensorFlow's profile, of this machine or of all. What goes through memory is
///   Stratus' own, as on the GPU that it was measured on. No such step of Stratus was measured, hence
///   [`UNSEEN`].
/// - Otherwise the profile of other machines with this one's data sheet, and an interval that is wider by
///   [`UNSEEN`].
///
/// # Errors
/// Where there is no profile of the format.
pub fn choose(profiles: &[Profile], processor: &Processor, format: Format) -> Result<(Profile, Source)> {
    let (name, gpu) = match processor {
        Processor::Gpu(gpu) => (&gpu.name, true),
        Processor::Cpu(cpu) => (&cpu.name, false),
    };
    // On matrix units the other formats differ from bf16 in their peak alone.
    let precision = match (format, gpu) {
        (Format::F32, _) => "f32",
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
    let missing = || Error::TooFew { problem: format!("there is no profile of Stratus in {format}") };
    if !gpu {
        let shared = find(Framework::Stratus, precision, None).ok_or_else(missing)?;
        return Ok((unseen(shared), Source::DataSheet));
    }
    let measured = profiles.iter().find(|profile| {
        profile.framework == Framework::Stratus && profile.precision == "bf16" && profile.machine.is_some()
    });
    let measured = measured.ok_or_else(missing)?;
    if format != Format::F32 {
        return Ok((unseen(measured), Source::DataSheet));
    }
    let of_machine = find(Framework::Tensorflow, "f32", Some(name));
    let source = if of_machine.is_some() { Source::Profile } else { Source::DataSheet };
    let convolutions = of_machine.or_else(|| find(Framework::Tensorflow, "f32", None)).ok_or_else(missing)?;
    Ok((with_own_memory(convolutions, measured), source))
}

/// The profile for steps of TensorFlow, in f32 on a GPU: the machine's, or that of all.
///
/// # Errors
/// Where it is another format, or no GPU.
pub fn choose_tensorflow(
    profiles: &[Profile],
    processor: &Processor,
    format: Format,
) -> Result<(Profile, Source)> {
    let Processor::Gpu(gpu) = processor else {
        return Err(Error::TooFew { problem: "no step of TensorFlow was measured on processors".to_owned() });
    };
    if format != Format::F32 {
        return Err(Error::TooFew { problem: format!("no step of TensorFlow was measured in {format}") });
    }
    let find = |machine: Option<&str>| {
        profiles.iter().find(|profile| {
            profile.framework == Framework::Tensorflow && profile.machine.as_deref() == machine
        })
    };
    let missing = || Error::TooFew { problem: "there is no profile of TensorFlow".to_owned() };
    match find(Some(&gpu.name)) {
        Some(own) => Ok((own.clone(), Source::Profile)),
        None => Ok((find(None).ok_or_else(missing)?.clone(), Source::DataSheet)),
    }
}

/// Deviations to each side for four of five, where there is nothing to take the quantile of.
pub(crate) const WIDTH: f64 = 1.282;

/// The profile of machines that this one is not.
fn unseen(profile: &Profile) -> Profile {
    let spread = profile.spread.hypot(UNSEEN);
    Profile { machine: None, spread, factor: WIDTH, ..profile.clone() }
}

/// TensorFlow's coefficients with Stratus' of everything that is Stratus' own.
fn with_own_memory(convolutions: &Profile, measured: &Profile) -> Profile {
    let mut profile = Profile {
        framework: Framework::Stratus,
        spread: convolutions.spread.hypot(UNSEEN),
        factor: WIDTH,
        ..convolutions.clone()
    };
    for term in Term::ALL {
        let own = matches!(
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
        if own {
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
