//! Calibrates this machine: measures generated networks in each number format, and fits a profile to them
//! ([`stratus_forecast::calibration`]).

mod network;

use super::peaks;
use crate::TrainError;
use crate::device::OpenDevice;
use crate::libraries::LibraryProbes;
use network::{ReusedChoices, measure_network};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use stratus_base::time::timestamp;
use stratus_engine::Precision;
use stratus_experiment::Precision as PrecisionSetting;
use stratus_forecast::calibration::design::{Design, network};
use stratus_forecast::calibration::{CalibratedMachine, Calibration, MIN_NETWORKS, MeasuredNetwork, profile};
use stratus_forecast::catalogue::{Catalogue, Cpu, Processor};
use stratus_forecast::peaks::{NumberFormat, on_matrix_units};
use stratus_forecast::work::{Kernel, MatrixProduct};
use stratus_run::csv;
use stratus_run::machine::survey::MachineSurvey;

/// A nominal clock: only the product of GHz and FLOP/cycle matters.
const NOMINAL_GHZ: f64 = 3.0;
/// The maximum number of networks to measure.
const MAX_NETWORKS: usize = 60;
/// The fraction of the time for fitting.
const FIT_TIME_SHARE: f64 = 0.05;
/// The fraction of the remaining time for new networks; in the rest, networks are repeated.
const NEW_NETWORK_TIME_SHARE: f64 = 0.75;

/// The header of the table of kernels.
pub const KERNELS_HEADER: &str = "precision,network,kernel,kind,flops,bytes,launches,rows,columns,depth,\
                              of_weights,padding,sizes,seconds\n";

/// The measured kernels of generated networks.
pub struct CalibrationMeasurement {
    /// The machine, with measured peaks.
    processor: Cpu,
    library: String,
    formats: Vec<NumberFormat>,
    /// The networks in each number format.
    measured: Vec<Vec<MeasuredNetwork>>,
    started: Instant,
}

impl CalibrationMeasurement {
    /// Measures a device for about `minutes`, in the number formats of `setting`. `name` is the machine's
    /// name in forecasts, by default that of its CPU. `progress` is called after each network.
    ///
    /// # Errors
    /// If the device is a GPU or has no library of kernels, does not train in this number format, or a kernel
    /// fails.
    pub fn run(
        device: &OpenDevice,
        name: Option<&str>,
        setting: PrecisionSetting,
        minutes: f64,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let started = Instant::now();
        let refused =
            |problem: String, hint: &str| TrainError::Configuration { problem, hint: hint.to_owned() };
        let library = device.backend.describe();
        if device.is_accelerator {
            return Err(refused(
                format!("cannot calibrate {library}: only CPUs are supported"),
                "calibrate the CPU with --set train.device=cpu; `stratus forecast fit` fits step times of \
                 GPUs",
            ));
        }
        if device.libraries.is_empty() {
            return Err(refused(
                "cannot calibrate the reference backend".to_owned(),
                "run `make deps`, which installs oneDNN",
            ));
        }
        let processor = measured_cpu(name, device)?;
        let formats = formats_to_calibrate(&processor, device, setting)?;
        let seconds = 60.0 * minutes * (1.0 - FIT_TIME_SHARE);
        let measured = measure(&processor, &formats, device, started, seconds, progress)?;
        Ok(Self { processor, library, formats, measured, started })
    }

    /// The number of networks.
    #[must_use]
    pub fn networks(&self) -> usize {
        self.measured.first().map_or(0, Vec::len)
    }

    /// Fits a profile in each number format.
    ///
    /// # Errors
    /// If there are too few networks.
    pub fn fit(&self) -> stratus_forecast::Result<Calibration> {
        let Self { processor, library, formats, measured, started } = self;
        let data = format!(
            "{} networks of stratus calibrate, {library}, {} s",
            self.networks(),
            started.elapsed().as_secs()
        );
        let fit = |(format, networks): (&NumberFormat, &Vec<MeasuredNetwork>)| {
            profile(networks, processor, *format, (&data, "stratus calibrate"))
        };
        let profiles = formats.iter().zip(measured).map(fit).collect::<stratus_forecast::Result<_>>()?;
        let machine = CalibratedMachine { library: library.clone(), processor: processor.clone() };
        Ok(Calibration { machine, profiles })
    }

    /// The time of each kernel, as CSV with the header [`KERNELS_HEADER`].
    #[must_use]
    pub fn kernels_csv(&self) -> String {
        let mut rows = Vec::new();
        for (format, networks) in self.formats.iter().zip(&self.measured) {
            for (measured, network) in networks.iter().zip(1..) {
                for (kernel, seconds) in &measured.kernels {
                    let Kernel { name, kind, flops, bytes, launches, features: sizes, .. } = kernel;
                    let MatrixProduct { rows: r, columns, depth, of_weights, padding } =
                        kernel.product.unwrap_or_default();
                    let numbers = [flops, bytes, launches, &r, &columns, &depth].map(ToString::to_string);
                    let mut row =
                        vec![format.to_string(), network.to_string(), name.clone(), kind.name().to_owned()];
                    row.extend(numbers);
                    row.extend([of_weights.to_string(), padding.to_string()]);
                    row.extend([sizes.map(|size| format!("{size:.3}")).join(" "), format!("{seconds:.9}")]);
                    rows.push(row);
                }
            }
        }
        KERNELS_HEADER.to_owned() + &csv::to_text(rows)
    }
}

/// The catalogue row of this machine, with measured peaks.
fn measured_cpu(name: Option<&str>, device: &OpenDevice) -> Result<Cpu, TrainError> {
    let survey = MachineSurvey::probe();
    let measured = peaks::measure(&survey, &LibraryProbes::detect().compute);
    let cores = device.backend.threads().max(1);
    let model = survey.machine.cpu.model.clone();
    let found = Catalogue::builtin()?.cpu_of_model(&model, cores);
    let per_cycle = |name: &str| {
        let compute = measured.compute.iter().find(|compute| compute.name.contains(name))?;
        Some(compute.gflops / (NOMINAL_GHZ * cores as f64))
    };
    let slug = || {
        let dashed = model.to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let words: Vec<&str> = dashed.split('-').filter(|word| !word.is_empty()).take(4).collect();
        format!("{}-{cores}", if words.is_empty() { "processor".to_owned() } else { words.join("-") })
    };
    let missing = |quantity: &'static str| TrainError::Unmeasurable { quantity };
    Ok(Cpu {
        name: name.map_or_else(slug, str::to_owned),
        base_ghz: NOMINAL_GHZ,
        f32_flops_per_cycle: per_cycle("f32").ok_or_else(|| missing("f32 arithmetic"))?,
        bf16_flops_per_cycle: per_cycle("bf16"),
        bandwidth_gb_s: measured.memory_gb_per_second.ok_or_else(|| missing("memory bandwidth"))?,
        memory_gib: survey.usable_memory().map(|bytes| bytes as f64 / f64::from(1 << 30)),
        second_level_kib: (device.tile_kib > 0).then_some(device.tile_kib / cores),
        source: "stratus calibrate: base_ghz is nominal".to_owned(),
        date: timestamp(SystemTime::now().max(UNIX_EPOCH)).chars().take(7).collect(),
        ..found.map_or_else(|| Cpu::unknown(&model, cores), |known| Cpu { cores, boost_ghz: None, ..known })
    })
}

/// The number formats to calibrate: f32 and bf16, or that of `train.precision`.
fn formats_to_calibrate(
    processor: &Cpu,
    device: &OpenDevice,
    setting: PrecisionSetting,
) -> Result<Vec<NumberFormat>, TrainError> {
    let precisions = device.backend.precisions();
    let has_bf16 = precisions.contains(&Precision::Bf16) && processor.bf16_flops_per_cycle.is_some();
    match setting {
        PrecisionSetting::Auto if has_bf16 => Ok(vec![NumberFormat::F32, NumberFormat::Bf16]),
        PrecisionSetting::Auto | PrecisionSetting::F32 => Ok(vec![NumberFormat::F32]),
        PrecisionSetting::Bf16 if has_bf16 => Ok(vec![NumberFormat::Bf16]),
        PrecisionSetting::Bf16 | PrecisionSetting::F16 => Err(TrainError::Configuration {
            problem: format!("{} does not train in {setting}", processor.name),
            hint: "leave train.precision unset, or set it to f32".to_owned(),
        }),
    }
}

/// Measures networks in each number format until `seconds` seconds after `started`: first new ones, then the
/// same ones repeatedly; the shortest time of each step counts.
fn measure(
    processor: &Cpu,
    formats: &[NumberFormat],
    device: &OpenDevice,
    started: Instant,
    seconds: f64,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Vec<MeasuredNetwork>>, TrainError> {
    let processor = Processor::Cpu(processor.clone());
    let mut measured = vec![Vec::new(); formats.len()];
    let (mut designs, mut chosen): (Vec<Design>, Vec<Vec<Option<ReusedChoices>>>) = Default::default();
    let measure = |design: &Design, format: NumberFormat, chosen: &mut Option<ReusedChoices>| {
        measure_network(design, format, on_matrix_units(&processor, format), device, chosen)
    };
    let elapsed_share = || started.elapsed().as_secs_f64() / seconds;
    while designs.len() < MIN_NETWORKS
        || designs.len() < MAX_NETWORKS && elapsed_share() < NEW_NETWORK_TIME_SHARE
    {
        let design = network(designs.len())?;
        let mut kernels = vec![None; formats.len()];
        for ((format, networks), kernels) in formats.iter().zip(&mut measured).zip(&mut kernels) {
            networks.push(measure(&design, *format, kernels)?);
        }
        designs.push(design);
        chosen.push(kernels);
        progress(&format!("network {}: {:.0} s", designs.len(), started.elapsed().as_secs_f64()));
    }
    let mut rounds = 1;
    while elapsed_share() < 1.0 {
        for (at, (design, chosen)) in designs.iter().zip(&mut chosen).enumerate() {
            for ((format, networks), chosen) in formats.iter().zip(&mut measured).zip(chosen) {
                if elapsed_share() < 1.0 {
                    networks[at].keep_faster(measure(design, *format, chosen)?);
                }
            }
        }
        rounds += 1;
        progress(&format!("round {rounds}: {:.0} s", started.elapsed().as_secs_f64()));
    }
    Ok(measured)
}
