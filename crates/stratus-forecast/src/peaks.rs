//! A machine's peaks as its data sheet gives them, in a number format.

use crate::catalogue::{Cpu, Gpu, Processor};
use crate::error::{Error, Result};
use crate::model::Peaks;
use std::fmt;

/// What convolutions and matrix products are computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// f32, all 24 bits of it.
    F32,
    /// f32 whose products are rounded to TF32, on tensor cores.
    Tf32,
    /// bf16, summed in f32.
    Bf16,
    /// f16, summed in f32.
    F16,
}

impl Format {
    /// Its name in tables and keys.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Base over boost clock where a data sheet is silent: the middle of the catalogue's.
const BASE_OF_BOOST: f64 = 0.8;
/// Cycles a second of a GPU whose data sheet is silent.
const GPU_CLOCK: f64 = 1.4e9;
/// Bytes a second that one core of a processor can move; the socket's bandwidth takes several.
const CORE_BANDWIDTH: f64 = 25e9;

/// The part of its stated peak that an architecture's arithmetic is good for, against others.
///
/// Kepler's multiprocessors feed 192 cores from schedulers that reach 128 without pairing instructions; the
/// best hand-written matrix products come to 42 % of the peak there (Lai, Seznec: "Performance upper bound
/// analysis and optimization of SGEMM on Fermi and Kepler GPUs", 2013), where those of later ones reach 90 %.
fn architecture(name: &str) -> f64 {
    if name == "kepler" { 0.5 } else { 1.0 }
}

/// Whether convolutions of this format run on tensor cores, or a processor's matrix unit.
#[must_use]
pub fn on_matrix_units(processor: &Processor, format: Format) -> bool {
    match processor {
        Processor::Gpu(_) => format != Format::F32,
        Processor::Cpu(cpu) => format == Format::Bf16 && has_matrix_unit(cpu),
    }
}

/// AMX multiplies eight times as many numbers as vector units of bf16.
fn has_matrix_unit(cpu: &Cpu) -> bool {
    cpu.bf16_flops_per_cycle.is_some_and(|bf16| bf16 >= 4.0 * cpu.f32_flops_per_cycle)
}

/// The peaks in a number format.
///
/// A GPU holds neither its base nor its boost clock: its arithmetic is taken at the geometric mean of both.
///
/// # Errors
/// Where the machine has no units for the format.
pub fn peaks(processor: &Processor, format: Format) -> Result<Peaks> {
    match processor {
        Processor::Gpu(gpu) => of_gpu(gpu, format),
        Processor::Cpu(cpu) => of_cpu(cpu, format),
    }
}

fn of_gpu(gpu: &Gpu, format: Format) -> Result<Peaks> {
    let stated = match format {
        Format::F32 => Some(gpu.f32_tflops),
        Format::Tf32 => gpu.tf32_tensor_tflops,
        Format::Bf16 => gpu.bf16_tensor_tflops,
        Format::F16 => gpu.f16_tensor_tflops.or(gpu.f16_tflops),
    };
    let stated = stated
        .ok_or_else(|| Error::Precision { machine: gpu.name.clone(), precision: format.name().to_owned() })?;
    let clocks = gpu.base_mhz.zip(gpu.boost_mhz);
    let held = clocks.map_or(BASE_OF_BOOST, |(base, boost)| base / boost).sqrt();
    Ok(Peaks {
        arithmetic: stated * 1e12 * held * architecture(&gpu.architecture),
        bandwidth: gpu.bandwidth_gb_s * 1e9,
        clock: clocks.map_or(GPU_CLOCK, |(base, boost)| (base * boost).sqrt() * 1e6),
    })
}

fn of_cpu(cpu: &Cpu, format: Format) -> Result<Peaks> {
    let per_cycle = match format {
        Format::F32 => Some(cpu.f32_flops_per_cycle),
        // Without instructions for it, bf16 is computed as f32.
        Format::Bf16 => Some(cpu.bf16_flops_per_cycle.unwrap_or(cpu.f32_flops_per_cycle)),
        Format::Tf32 | Format::F16 => None,
    };
    let per_cycle = per_cycle
        .ok_or_else(|| Error::Precision { machine: cpu.name.clone(), precision: format.name().to_owned() })?;
    let clock = (cpu.base_ghz * cpu.boost_ghz.unwrap_or(cpu.base_ghz)).sqrt() * 1e9;
    let cores = cpu.cores as f64;
    Ok(Peaks {
        arithmetic: cores * clock * per_cycle,
        bandwidth: (cpu.bandwidth_gb_s * 1e9).min(cores * CORE_BANDWIDTH),
        clock,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;

    fn of(name: &str, format: Format) -> Result<Peaks> {
        peaks(&Catalogue::builtin()?.find(name)?.processor, format)
    }

    #[test]
    fn clocks_are_between_base_and_boost() {
        let t4 = of("t4-16gb", Format::F32).unwrap();
        assert!((4.9e12..4.93e12).contains(&t4.arithmetic) && t4.bandwidth == 320e9);
        let k80 = of("k80-12gb", Format::F32).unwrap();
        assert!((1.74e12..1.76e12).contains(&k80.arithmetic));
    }

    #[test]
    fn formats_that_a_machine_has_not_are_refused() {
        let error = of("t4-16gb", Format::Bf16).unwrap_err();
        assert_eq!(error.to_string(), "t4-16gb does not compute in bf16");
        assert!(of("v100-16gb", Format::F16).is_ok() && of("xeon-gold-6230", Format::F16).is_err());
        let gold = of("xeon-gold-6230", Format::Bf16).unwrap();
        assert_eq!(gold, of("xeon-gold-6230", Format::F32).unwrap());
    }
}
