//! Calibrates this machine: measures generated networks in each number format, and fits a profile to them
//! ([`stratus_forecast::calibration`]).

mod network;

use super::speed_reference::SpeedReference;
use super::{median, peaks};
use crate::TrainError;
use crate::device::OpenDevice;
use crate::libraries::LibraryProbes;
pub(super) use network::TrainingStep;
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
    /// The networks in each number format, at one speed of the machine.
    measured: Vec<Vec<MeasuredNetwork>>,
    /// The times of the speed reference.
    reference: ReferenceTimes,
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
        let mut repeats = Repeats::new(&processor, &formats, device)?;
        repeats.measure(started, seconds, progress)?;
        let (measured, reference) = repeats.at_median_speed();
        Ok(Self { processor, library, formats, measured, reference, started })
    }

    /// The lowest and the highest speed of the machine meanwhile, relative to the median.
    #[must_use]
    pub fn speeds(&self) -> [f64; 2] {
        self.reference.speeds()
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
        let Self { processor, library, formats, measured, reference, started } = self;
        let data = format!(
            "{} networks of stratus calibrate, {library}, {} s",
            self.networks(),
            started.elapsed().as_secs()
        );
        let fit = |(format, networks): (&NumberFormat, &Vec<MeasuredNetwork>)| {
            profile(networks, processor, *format, (&data, "stratus calibrate"))
        };
        let profiles = formats.iter().zip(measured).map(fit).collect::<stratus_forecast::Result<_>>()?;
        let machine = CalibratedMachine {
            library: library.clone(),
            reference_s: Some(reference.median_s()),
            processor: processor.clone(),
        };
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

/// The times of the speed reference, in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
struct ReferenceTimes(Vec<f64>);

impl ReferenceTimes {
    fn median_s(&self) -> f64 {
        median(&mut self.0.clone())
    }

    fn speeds(&self) -> [f64; 2] {
        let (median_s, mut lowest_s, mut highest_s) = (self.median_s(), f64::INFINITY, 0.0_f64);
        for &seconds in &self.0 {
            lowest_s = lowest_s.min(seconds);
            highest_s = highest_s.max(seconds);
        }
        [median_s / highest_s, median_s / lowest_s]
    }
}

/// A measurement of a network, and the mean time of the speed reference before and after it.
struct Repeat {
    network: MeasuredNetwork,
    reference_s: f64,
}

/// The repeated measurements of generated networks.
struct Repeats<'a> {
    formats: &'a [NumberFormat],
    device: &'a OpenDevice,
    /// True if convolutions are assumed to run on matrix units, for each number format.
    on_matrix_units: Vec<bool>,
    designs: Vec<Design>,
    /// For each number format and network.
    repeats: Vec<Vec<Vec<Repeat>>>,
    chosen: Vec<Vec<Option<ReusedChoices>>>,
    speed: SpeedReference,
    reference: ReferenceTimes,
}

impl<'a> Repeats<'a> {
    fn new(processor: &Cpu, formats: &'a [NumberFormat], device: &'a OpenDevice) -> Result<Self, TrainError> {
        let processor = Processor::Cpu(processor.clone());
        let mut speed = SpeedReference::new(device)?;
        let reference = ReferenceTimes(vec![speed.measure()?]);
        Ok(Self {
            formats,
            device,
            on_matrix_units: formats.iter().map(|format| on_matrix_units(&processor, *format)).collect(),
            designs: Vec::new(),
            repeats: formats.iter().map(|_| Vec::new()).collect(),
            chosen: formats.iter().map(|_| Vec::new()).collect(),
            speed,
            reference,
        })
    }

    /// Measures networks in each number format until `seconds` seconds after `started`: first new ones, then
    /// the same ones repeatedly.
    fn measure(
        &mut self,
        started: Instant,
        seconds: f64,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), TrainError> {
        let elapsed_share = || started.elapsed().as_secs_f64() / seconds;
        while self.designs.len() < MIN_NETWORKS
            || self.designs.len() < MAX_NETWORKS && elapsed_share() < NEW_NETWORK_TIME_SHARE
        {
            let at = self.designs.len();
            self.designs.push(network(at)?);
            for format in 0..self.formats.len() {
                self.repeats[format].push(Vec::new());
                self.chosen[format].push(None);
                self.measure_one(format, at)?;
            }
            progress(&format!("network {}: {:.0} s", at + 1, started.elapsed().as_secs_f64()));
        }
        let mut rounds = 1;
        while elapsed_share() < 1.0 {
            for at in 0..self.designs.len() {
                for format in 0..self.formats.len() {
                    if elapsed_share() < 1.0 {
                        self.measure_one(format, at)?;
                    }
                }
            }
            rounds += 1;
            progress(&format!("round {rounds}: {:.0} s", started.elapsed().as_secs_f64()));
        }
        Ok(())
    }

    fn measure_one(&mut self, format: usize, at: usize) -> Result<(), TrainError> {
        let (number_format, on_matrix_units) = (self.formats[format], self.on_matrix_units[format]);
        let chosen = &mut self.chosen[format][at];
        let network =
            measure_network(&self.designs[at], number_format, on_matrix_units, self.device, chosen)?;
        let before_s = self.reference.0.last().copied();
        let after_s = self.speed.measure()?;
        self.reference.0.push(after_s);
        let reference_s = 0.5 * (before_s.unwrap_or(after_s) + after_s);
        self.repeats[format][at].push(Repeat { network, reference_s });
        Ok(())
    }

    /// The networks in each number format, with the times that they would have had at the median speed.
    fn at_median_speed(self) -> (Vec<Vec<MeasuredNetwork>>, ReferenceTimes) {
        let median_s = self.reference.median_s();
        let combine = |repeats: Vec<Repeat>| {
            let scaled = |Repeat { network, reference_s }: Repeat| network.scaled(median_s / reference_s);
            MeasuredNetwork::median(&repeats.into_iter().map(scaled).collect::<Vec<_>>())
        };
        let measured = |networks: Vec<Vec<Repeat>>| networks.into_iter().map(combine).collect();
        (self.repeats.into_iter().map(measured).collect(), self.reference)
    }
}
