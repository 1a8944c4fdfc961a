//! The peaks of a machine in a number format, from its data sheet.

use crate::catalogue::{Cpu, Gpu, Processor};
use crate::error::{Error, Result};
use crate::model::Peaks;
use std::fmt;

/// The number format of convolutions and matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberFormat {
    /// Full f32.
    F32,
    /// f32 with products rounded to TF32, on tensor cores.
    Tf32,
    /// bf16, accumulated in f32.
    Bf16,
    /// f16, accumulated in f32.
    F16,
}

impl NumberFormat {
    /// The name in tables and keys.
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

impl fmt::Display for NumberFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Default ratio of base to boost clock: the median of the catalogue.
const BASE_OF_BOOST: f64 = 0.8;
/// Default clock of a GPU, cycles/s.
const GPU_CLOCK: f64 = 1.4e9;
/// Memory bandwidth of a single CPU core, bytes/s; only several cores reach the socket's bandwidth.
const CORE_BANDWIDTH: f64 = 25e9;

/// The relative fraction of the specified peak that an architecture achieves.
///
/// Kepler's multiprocessors have 192 cores, but their schedulers reach only 128 without pairing instructions;
/// the best hand-written matrix products reach 42 % of the peak (Lai, Seznec: "Performance upper bound
/// analysis and optimization of SGEMM on Fermi and Kepler GPUs", 2013), and 90 % on later architectures.
fn architecture_efficiency(name: &str) -> f64 {
    if name == "kepler" { 0.5 } else { 1.0 }
}

/// Returns whether convolutions in this format run on tensor cores, or on the matrix unit of a CPU.
#[must_use]
pub fn on_matrix_units(processor: &Processor, format: NumberFormat) -> bool {
    match processor {
        Processor::Gpu(_) => format != NumberFormat::F32,
        Processor::Cpu(cpu) => format == NumberFormat::Bf16 && has_matrix_unit(cpu),
    }
}

/// Returns whether the CPU has AMX, which multiplies eight times more bf16 numbers than vector units.
fn has_matrix_unit(cpu: &Cpu) -> bool {
    cpu.bf16_flops_per_cycle.is_some_and(|bf16| bf16 >= 4.0 * cpu.f32_flops_per_cycle)
}

/// The peaks of a processor in a number format.
///
/// A GPU sustains neither its base nor its boost clock, so its arithmetic peak is at their geometric mean.
///
/// # Errors
/// If the machine does not support the format.
pub fn peaks(processor: &Processor, format: NumberFormat) -> Result<Peaks> {
    match processor {
        Processor::Gpu(gpu) => gpu_peaks(gpu, format),
        Processor::Cpu(cpu) => cpu_peaks(cpu, format),
    }
}

fn gpu_peaks(gpu: &Gpu, format: NumberFormat) -> Result<Peaks> {
    let specified = match format {
        NumberFormat::F32 => Some(gpu.f32_tflops),
        NumberFormat::Tf32 => gpu.tf32_tensor_tflops,
        NumberFormat::Bf16 => gpu.bf16_tensor_tflops,
        NumberFormat::F16 => gpu.f16_tensor_tflops.or(gpu.f16_tflops),
    };
    let specified = specified
        .ok_or_else(|| Error::Precision { machine: gpu.name.clone(), precision: format.name().to_owned() })?;
    let clocks = gpu.base_mhz.zip(gpu.boost_mhz);
    let clock_factor = clocks.map_or(BASE_OF_BOOST, |(base, boost)| base / boost).sqrt();
    Ok(Peaks {
        arithmetic: specified * 1e12 * clock_factor * architecture_efficiency(&gpu.architecture),
        bandwidth: gpu.bandwidth_gb_s * 1e9,
        clock: clocks.map_or(GPU_CLOCK, |(base, boost)| (base * boost).sqrt() * 1e6),
    })
}

fn cpu_peaks(cpu: &Cpu, format: NumberFormat) -> Result<Peaks> {
    let per_cycle = match format {
        NumberFormat::F32 => Some(cpu.f32_flops_per_cycle),
        // Without bf16 instructions, bf16 is computed in f32.
        NumberFormat::Bf16 => Some(cpu.bf16_flops_per_cycle.unwrap_or(cpu.f32_flops_per_cycle)),
        NumberFormat::Tf32 | NumberFormat::F16 => None,
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

    fn peaks_of(name: &str, format: NumberFormat) -> Result<Peaks> {
        peaks(&Catalogue::builtin()?.find(name)?.processor, format)
    }

    #[test]
    fn clocks_are_between_base_and_boost() {
        let t4 = peaks_of("t4-16gb", NumberFormat::F32).unwrap();
        assert!((4.9e12..4.93e12).contains(&t4.arithmetic) && t4.bandwidth == 320e9);
        let k80 = peaks_of("k80-12gb", NumberFormat::F32).unwrap();
        assert!((1.74e12..1.76e12).contains(&k80.arithmetic));
    }

    #[test]
    fn refuses_unsupported_formats() {
        let error = peaks_of("t4-16gb", NumberFormat::Bf16).unwrap_err();
        assert_eq!(error.to_string(), "t4-16gb does not compute in bf16");
        assert!(
            peaks_of("v100-16gb", NumberFormat::F16).is_ok()
                && peaks_of("xeon-gold-6230", NumberFormat::F16).is_err()
        );
        let gold = peaks_of("xeon-gold-6230", NumberFormat::Bf16).unwrap();
        assert_eq!(gold, peaks_of("xeon-gold-6230", NumberFormat::F32).unwrap());
    }
}
