//! The supply of images: reading and decoding on processor cores, and a link over which they stream.
//!
//! ```text
//! on a GPU  batch = max(step,                           images · core_s / cores, images · bytes / link)
//! on a CPU  batch = max(step + images · core_s / cores, images · core_s / loaders, images · bytes / link)
//! ```
//!
//! Loader threads work while a GPU computes. On a CPU they share its cores with the step.

use crate::catalogue::{Machine, Processor};
use crate::choice::Z_80;
use crate::model::Bottleneck;
use crate::profile::Interval;
use serde::Serialize;

/// Seconds of a core for a photograph of [`PHOTOGRAPH_BYTES`], until it is in a batch of 224×224 crops: the
/// median of five rounds with libjpeg-turbo on a Xeon (docs/benchmarks/data.md, 586 images/s).
pub const PHOTOGRAPH_CORE_S: f64 = 1.0 / 586.0;
/// Bytes of such a photograph: the mean of the 100 files measured there, most of 500×375 pixels.
pub const PHOTOGRAPH_BYTES: f64 = 103_859.0;
/// Cores per virtual CPU: most virtual CPUs of clouds are threads of a core, two of which do up to 1.3 times
/// the work of one (Marr et al., "Hyper-Threading Technology Architecture and Microarchitecture", 2002).
pub const CORES_PER_VCPU: f64 = 0.65;
/// Standard deviation of the log time of decoding if it was not measured on the machine: cores differ in
/// speed.
pub const UNMEASURED_LOG_STD: f64 = 0.35;
/// The same if it was measured on the machine.
pub const MEASURED_LOG_STD: f64 = 0.08;

/// The part of a machine that a training batch waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Arithmetic of the step.
    Arithmetic,
    /// Memory traffic of the step.
    Memory,
    /// Launching the kernels of the step.
    Launch,
    /// Reading and decoding images.
    Decoding,
    /// The link over which images stream.
    Link,
}

impl Limit {
    /// The name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Arithmetic => "arithmetic",
            Self::Memory => "bandwidth",
            Self::Launch => "launch",
            Self::Decoding => "decoding",
            Self::Link => "link",
        }
    }
}

impl From<Bottleneck> for Limit {
    fn from(bottleneck: Bottleneck) -> Self {
        match bottleneck {
            Bottleneck::Arithmetic => Self::Arithmetic,
            Bottleneck::Memory => Self::Memory,
            Bottleneck::Launch => Self::Launch,
        }
    }
}

/// The supply of images of a data set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ImageSupply {
    /// Decoding, if the images are decoded.
    pub decoding: Option<Decoding>,
    /// Threads that decode, if set: the smaller of this and the number of cores work.
    pub loaders: Option<u64>,
    /// Bytes of an image and bytes per second of the link, if images stream while training.
    pub stream: Option<[f64; 2]>,
}

/// The time to read and decode an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decoding {
    /// Seconds of a core per image.
    pub core_s: f64,
    /// True if this was measured on the machine of the forecast's program.
    pub is_measured: bool,
}

impl Decoding {
    /// The time of a stated number of images per second and core.
    #[must_use]
    pub fn stated(images_per_s: f64) -> Self {
        Self { core_s: 1.0 / images_per_s, is_measured: false }
    }
}

/// The time of a batch, with the rates that limit it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SuppliedBatch {
    /// Seconds of a batch.
    pub batch: Interval,
    /// Images per second that are decoded, if they are and the cores are known.
    pub decoding_rate: Option<f64>,
    /// Images per second over the link.
    pub link_rate: Option<f64>,
    /// The supply that takes longer than the step, if any.
    pub limit: Option<Limit>,
    /// Loader threads: as set, or those that decode as many images as the device trains; at most one per
    /// core, or per virtual CPU of an instance.
    pub loader_threads: u64,
}

/// The number of processor cores of a machine, if known. Those of an instance follow from its virtual CPUs.
#[must_use]
pub fn cores(machine: &Machine) -> Option<f64> {
    match (&machine.instance, &machine.processor) {
        (Some(instance), _) => instance.vcpus.map(|vcpus| f64::from(vcpus) * CORES_PER_VCPU),
        (None, Processor::Cpu(cpu)) => Some(cpu.cores as f64),
        (None, Processor::Gpu(_)) => None,
    }
}

impl ImageSupply {
    /// The time of a batch of `images` images whose computation takes `step`. `is_here`: on the machine of
    /// this program.
    pub(crate) fn batch(
        &self,
        machine: &Machine,
        is_here: bool,
        step: Interval,
        images: f64,
    ) -> SuppliedBatch {
        let cores = cores(machine);
        let decoding = self.decoding.zip(cores).map(|(decoding, cores)| {
            let loaders = self.loaders.map_or(cores, |loaders| cores.min(loaders as f64));
            let std = if decoding.is_measured && is_here { MEASURED_LOG_STD } else { UNMEASURED_LOG_STD };
            let core_s = Interval::new(decoding.core_s, Z_80 * std).times(images);
            (core_s, cores, loaders)
        });
        let compute = match (&machine.processor, decoding) {
            (Processor::Cpu(_), Some((core_s, cores, _))) => step.plus(core_s.times(1.0 / cores)),
            _ => step,
        };
        let mut supplied = SuppliedBatch {
            batch: compute,
            decoding_rate: None,
            link_rate: None,
            // On a CPU, decoding may take the larger part of the time of its cores.
            limit: (compute.seconds > 2.0 * step.seconds).then_some(Limit::Decoding),
            loader_threads: self.loader_threads(machine, step.seconds / images),
        };
        if let Some((core_s, _, loaders)) = decoding {
            let seconds = core_s.times(1.0 / loaders);
            supplied.decoding_rate = Some(images / seconds.seconds);
            supplied.wait_for(seconds, Limit::Decoding);
        }
        if let Some([bytes, per_s]) = self.stream {
            let seconds = Interval::new(bytes * images / per_s, 0.0);
            supplied.link_rate = Some(images / seconds.seconds);
            supplied.wait_for(seconds, Limit::Link);
        }
        supplied
    }
}

impl ImageSupply {
    /// The loader threads that are set, or those that decode an image in `image_s` seconds; at most one per
    /// core, or per virtual CPU of an instance.
    fn loader_threads(&self, machine: &Machine, image_s: f64) -> u64 {
        let cores_per_thread = if machine.instance.is_some() { CORES_PER_VCPU } else { 1.0 };
        let decoding_s = self.decoding.map_or(0.0, |decoding| decoding.core_s);
        let threads = (decoding_s / image_s / cores_per_thread).ceil();
        let threads = self.loaders.map_or(threads, |loaders| loaders as f64);
        let max = cores(machine).map_or(f64::INFINITY, |cores| (cores / cores_per_thread).round());
        threads.min(max).max(1.0) as u64
    }
}

impl SuppliedBatch {
    /// Waits for a supply that may take longer.
    fn wait_for(&mut self, supply: Interval, limit: Limit) {
        if supply.seconds > self.batch.seconds {
            self.limit = Some(limit);
        }
        self.batch = Interval {
            seconds: self.batch.seconds.max(supply.seconds),
            low: self.batch.low.max(supply.low),
            high: self.batch.high.max(supply.high),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;

    const STEP: Interval = Interval { seconds: 1.0, low: 0.5, high: 2.0 };

    fn supply(core_s: f64, loaders: Option<u64>, stream: Option<[f64; 2]>) -> ImageSupply {
        ImageSupply { decoding: Some(Decoding { core_s, is_measured: true }), loaders, stream }
    }

    fn machine(name: &str) -> Machine {
        Catalogue::builtin().unwrap().find(name).unwrap()
    }

    #[test]
    fn a_gpu_waits_for_the_slowest_supply() {
        let gpu = machine("g4dn.xlarge");
        let of = |supply: ImageSupply| supply.batch(&gpu, false, STEP, 100.0);
        // Four virtual CPUs count as 2.6 cores, which decode 100 images of 20 ms in 0.77 s. The step of 1 s
        // covers that.
        let fast = of(supply(0.02, None, None));
        assert_eq!((fast.batch.seconds, fast.limit, fast.loader_threads), (1.0, None, 4));
        assert!((fast.decoding_rate.unwrap() - 130.0).abs() < 1e-9);
        let slow = of(supply(0.08, None, None));
        assert!((slow.batch.seconds - 8.0 / 2.6).abs() < 1e-9);
        assert_eq!((slow.limit, slow.loader_threads), (Some(Limit::Decoding), 4));
        // The upper end is the step's or that of decoding.
        assert!(slow.batch.high > 3.0 * (Z_80 * 0.3).exp() && slow.batch.low > 1.0);
        // More loader threads than cores do not help, fewer slow it down.
        assert_eq!(of(supply(0.08, Some(99), None)).batch.seconds, slow.batch.seconds);
        assert_eq!(of(supply(0.08, Some(2), None)).batch.seconds, 4.0);
        let streamed = of(supply(0.08, None, Some([1e6, 20e6])));
        assert_eq!((streamed.batch.seconds, streamed.limit), (5.0, Some(Limit::Link)));
        assert_eq!(streamed.link_rate, Some(20.0));
    }

    #[test]
    fn a_cpu_shares_its_cores_with_decoding() {
        let cpu = machine("epyc-9354");
        let of = |supply: ImageSupply| supply.batch(&cpu, true, STEP, 100.0);
        // 32 cores: 100 images of 80 ms take 0.25 s of all.
        let shared = of(supply(0.08, None, None));
        assert_eq!((shared.batch.seconds, shared.limit), (1.25, None));
        // One loader thread takes 8 s.
        let one = of(supply(0.08, Some(1), None));
        assert_eq!((one.batch.seconds, one.limit), (8.0, Some(Limit::Decoding)));
        // 0.8 s of 32 cores each take 2.5 times as long as the step.
        let mostly = of(supply(0.8, None, None));
        assert_eq!((mostly.batch.seconds, mostly.limit), (3.5, Some(Limit::Decoding)));
    }

    #[test]
    fn unknown_cores_and_stored_pixels_leave_the_step() {
        let bare = supply(9.0, None, None).batch(&machine("rtx-3090"), false, STEP, 100.0);
        assert_eq!((bare.batch, bare.decoding_rate, bare.limit), (STEP, None, None));
        assert_eq!(bare.loader_threads, 900);
        let stored = ImageSupply::default().batch(&machine("g4dn.xlarge"), false, STEP, 100.0);
        assert_eq!((stored.batch, stored.limit, stored.loader_threads), (STEP, None, 1));
    }
}
