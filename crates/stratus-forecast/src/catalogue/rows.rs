//! The rows of a catalogue file and their validation.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use stratus_base::time::days;

/// A GPU.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// The name on the command line: lower case with dashes.
    pub name: String,
    /// The name of the vendor.
    pub title: String,
    /// The name in SkyPilot.
    pub skypilot: Option<String>,
    /// Further names in SkyPilot's catalogue, of some clouds.
    #[serde(default)]
    pub skypilot_aliases: Vec<String>,
    /// `kepler`, `maxwell`, `pascal`, `volta`, `turing`, `ampere`, `ada`, `hopper` or later.
    pub architecture: String,
    /// CUDA compute capability.
    pub compute_capability: f64,
    /// f32 without tensor cores at the boost clock, 10¹² FLOP/s.
    pub f32_tflops: f64,
    /// f16 without tensor cores, if it is faster than f32.
    pub f16_tflops: Option<f64>,
    /// f16 on tensor cores, dense, accumulated in f32.
    pub f16_tensor_tflops: Option<f64>,
    /// bf16 on tensor cores, dense.
    pub bf16_tensor_tflops: Option<f64>,
    /// TF32 on tensor cores, dense.
    pub tf32_tensor_tflops: Option<f64>,
    /// Guaranteed clock, MHz.
    pub base_mhz: Option<f64>,
    /// Clock that the peaks are specified for, MHz.
    pub boost_mhz: Option<f64>,
    /// Memory, GiB.
    pub memory_gib: f64,
    /// Memory available to programs, MiB, if known.
    pub usable_mib: Option<f64>,
    /// Memory bandwidth, 10⁹ bytes/s.
    pub bandwidth_gb_s: f64,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// The maximum power, W, if known.
    pub tdp_watts: Option<f64>,
    /// The links to other GPUs, if known.
    pub links: Option<GpuLinks>,
    /// The source of the values.
    pub source: String,
    /// The date of the source: `YYYY-MM`.
    pub date: String,
}

/// The links of a GPU to others of its machine, in one direction.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuLinks {
    /// NVLink to any other GPU, 10⁹ bytes/s.
    pub nvlink_gb_s: Option<f64>,
    /// PCI Express, 10⁹ bytes/s.
    pub pcie_gb_s: Option<f64>,
    /// The source of the values.
    pub source: String,
}

/// The network of an instance, in one direction.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstanceNetwork {
    /// 10⁹ bits/s of the whole instance.
    pub gbit_s: f64,
    /// The source of the value.
    pub source: String,
}

impl Gpu {
    /// Returns whether SkyPilot's catalogue uses this name for the GPU.
    #[must_use]
    pub fn has_skypilot_name(&self, name: &str) -> bool {
        self.skypilot.iter().chain(&self.skypilot_aliases).any(|known| known.eq_ignore_ascii_case(name))
    }

    /// Bytes of memory available to programs; 94 % of the total if unknown.
    #[must_use]
    pub fn usable_bytes(&self) -> u64 {
        let mib = self.usable_mib.unwrap_or(self.memory_gib * 1024.0 * 0.94);
        (mib * 1_048_576.0) as u64
    }
}

/// A CPU: one socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// The name on the command line.
    pub name: String,
    /// The name of the vendor.
    pub title: String,
    /// Texts that identify the CPU: it matches if the system's model name contains any of them.
    #[serde(default)]
    pub models: Vec<String>,
    /// Number of cores.
    pub cores: usize,
    /// Guaranteed clock, GHz.
    pub base_ghz: f64,
    /// Boost clock of a single core, GHz.
    pub boost_ghz: Option<f64>,
    /// f32 FLOPs per core and cycle; a multiply-add counts as two.
    pub f32_flops_per_cycle: f64,
    /// bf16 FLOPs per core and cycle, if it has bf16 instructions.
    pub bf16_flops_per_cycle: Option<f64>,
    /// Memory bandwidth, 10⁹ bytes/s.
    pub bandwidth_gb_s: f64,
    /// Memory, GiB, if known.
    pub memory_gib: Option<f64>,
    /// L2 cache per core, KiB, if known.
    pub second_level_kib: Option<usize>,
    /// The source of the values.
    pub source: String,
    /// The date of the source: `YYYY-MM`.
    pub date: String,
}

impl Cpu {
    /// Validates all values.
    pub(crate) fn check(&self, file: &str) -> Result<()> {
        let row = Row { file, kind: "cpu", name: &self.name };
        row.texts(&self.source, &self.date)?;
        row.above("cores", Some(self.cores as f64), 1e5)?;
        row.above("base_ghz", Some(self.base_ghz), 100.0)?;
        row.above("boost_ghz", self.boost_ghz, 100.0)?;
        row.above("f32_flops_per_cycle", Some(self.f32_flops_per_cycle), 1e5)?;
        row.above("bf16_flops_per_cycle", self.bf16_flops_per_cycle, 1e6)?;
        row.above("bandwidth_gb_s", Some(self.bandwidth_gb_s), 1e6)?;
        row.above("memory_gib", self.memory_gib, 1e6)?;
        row.above("second_level_kib", self.second_level_kib.map(|kib| kib as f64), 1e6)?;
        if self.models.iter().any(|model| model.trim().is_empty()) {
            return row.refuse("`models` has an empty entry, which would match every CPU".to_owned());
        }
        Ok(())
    }

    /// A CPU that is not in the catalogue: its name and cores come from the operating system, the data-sheet
    /// values are 0.
    #[must_use]
    pub fn unknown(model: &str, cores: usize) -> Self {
        Self {
            name: super::THIS_MACHINE.to_owned(),
            title: model.to_owned(),
            models: Vec::new(),
            cores,
            base_ghz: 0.0,
            boost_ghz: None,
            f32_flops_per_cycle: 0.0,
            bf16_flops_per_cycle: None,
            bandwidth_gb_s: 0.0,
            memory_gib: None,
            second_level_kib: None,
            source: "the system".to_owned(),
            date: String::new(),
        }
    }
}

/// A cloud instance.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    /// The name as the cloud writes it.
    pub name: String,
    /// The name of the cloud.
    pub cloud: String,
    /// The catalogue name of its GPUs.
    pub gpu: String,
    /// Number of GPUs.
    pub gpus: u32,
    /// Number of virtual CPUs, if known.
    pub vcpus: Option<u32>,
    /// Memory, GiB, if known.
    pub ram_gib: Option<f64>,
    /// Included disk space, 10⁹ bytes.
    pub disk_gb: Option<f64>,
    /// The network to other instances, if known.
    pub network: Option<InstanceNetwork>,
    /// The region of the on-demand price.
    pub region: Option<String>,
    /// Price per hour on demand.
    pub on_demand_per_hour: Option<f64>,
    /// The region of the spot price, if it is another one.
    pub spot_region: Option<String>,
    /// Price per hour of a preemptible (spot) instance.
    pub spot_per_hour: Option<f64>,
    /// The currency of the prices: `USD`.
    pub currency: Option<String>,
    /// The source of the values.
    pub source: String,
    /// The date of the prices: `YYYY-MM` or `YYYY-MM-DD`.
    pub date: String,
}

/// The hourly price of an instance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HourlyPrice<'a> {
    /// The price.
    pub per_hour: f64,
    /// True if the instance is preemptible.
    pub is_spot: bool,
    /// Its region, if known.
    pub region: Option<&'a str>,
}

impl Instance {
    /// The spot or on-demand price; if it is unknown, the other one.
    #[must_use]
    pub fn price(&self, prefer_spot: bool) -> Option<HourlyPrice<'_>> {
        let region = self.region.as_deref();
        let on_demand =
            self.on_demand_per_hour.map(|per_hour| HourlyPrice { per_hour, is_spot: false, region });
        let spot_region = self.spot_region.as_deref().or(region);
        let spot =
            self.spot_per_hour.map(|per_hour| HourlyPrice { per_hour, is_spot: true, region: spot_region });
        if prefer_spot { spot.or(on_demand) } else { on_demand.or(spot) }
    }
}

/// The age of a price on the day `today`, in days since 1970; `None` if its date, `YYYY-MM` or `YYYY-MM-DD`,
/// is invalid. The prices of a month count from its first day.
#[must_use]
pub fn price_age_days(date: &str, today: u64) -> Option<u64> {
    Some(today.saturating_sub(parse_date(date)?))
}

/// The days since 1970 of a date as `YYYY-MM` or `YYYY-MM-DD`.
fn parse_date(date: &str) -> Option<u64> {
    let mut parts = date.split('-');
    let mut number = |length: usize| {
        let part = parts.next()?;
        (part.len() == length && part.bytes().all(|b| b.is_ascii_digit())).then(|| part.parse().ok())?
    };
    let (year, month) = (number(4)?, number(2)?);
    let day = if date.len() > 7 { number(2)? } else { 1 };
    parts.next().is_none().then(|| days(year, month, day))?
}

/// Maximum price per hour.
pub(super) const MAX_PRICE: f64 = 100_000.0;

/// Returns whether a text can be the name of a machine.
pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 64
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-._+".contains(c))
}

/// The content of a catalogue file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rows {
    #[serde(default)]
    pub gpu: Vec<Gpu>,
    #[serde(default)]
    pub cpu: Vec<Cpu>,
    #[serde(default)]
    pub instance: Vec<Instance>,
}

impl Rows {
    /// Validates all values.
    pub fn check(&self, file: &str) -> Result<()> {
        for gpu in &self.gpu {
            let row = Row { file, kind: "gpu", name: &gpu.name };
            row.texts(&gpu.source, &gpu.date)?;
            let plain = |name: &String| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
            if !gpu.skypilot.iter().chain(&gpu.skypilot_aliases).all(plain) {
                return row.refuse("names in SkyPilot consist of letters, digits and `-`".to_owned());
            }
            row.above("compute_capability", Some(gpu.compute_capability), 100.0)?;
            row.above("f32_tflops", Some(gpu.f32_tflops), 1e5)?;
            row.above("f16_tflops", gpu.f16_tflops, 1e5)?;
            row.above("f16_tensor_tflops", gpu.f16_tensor_tflops, 1e6)?;
            row.above("bf16_tensor_tflops", gpu.bf16_tensor_tflops, 1e6)?;
            row.above("tf32_tensor_tflops", gpu.tf32_tensor_tflops, 1e6)?;
            row.above("base_mhz", gpu.base_mhz, 1e5)?;
            row.above("boost_mhz", gpu.boost_mhz, 1e5)?;
            row.above("memory_gib", Some(gpu.memory_gib), 1e5)?;
            row.above("usable_mib", gpu.usable_mib, gpu.memory_gib * 1024.0)?;
            row.above("bandwidth_gb_s", Some(gpu.bandwidth_gb_s), 1e6)?;
            row.above("tdp_watts", gpu.tdp_watts, 1e5)?;
            row.above("multiprocessors", Some(f64::from(gpu.multiprocessors)), 1e5)?;
            if let Some(links) = &gpu.links {
                row.above("links.nvlink_gb_s", links.nvlink_gb_s, 1e6)?;
                row.above("links.pcie_gb_s", links.pcie_gb_s, 1e6)?;
                row.has_source("links.source", &links.source)?;
            }
        }
        for cpu in &self.cpu {
            cpu.check(file)?;
        }
        for instance in &self.instance {
            let row = Row { file, kind: "instance", name: &instance.name };
            row.texts(&instance.source, &instance.date)?;
            row.above("gpus", Some(f64::from(instance.gpus)), 1024.0)?;
            row.above("vcpus", instance.vcpus.map(f64::from), 1e5)?;
            row.above("ram_gib", instance.ram_gib, 1e6)?;
            row.above("disk_gb", instance.disk_gb, 1e9)?;
            if let Some(network) = &instance.network {
                row.above("network.gbit_s", Some(network.gbit_s), 1e6)?;
                row.has_source("network.source", &network.source)?;
            }
            row.not_negative("on_demand_per_hour", instance.on_demand_per_hour)?;
            row.not_negative("spot_per_hour", instance.spot_per_hour)?;
            let priced = instance.on_demand_per_hour.or(instance.spot_per_hour).is_some();
            if priced && instance.currency.is_none() {
                return row.refuse("a price needs a currency".to_owned());
            }
        }
        Ok(())
    }
}

/// A row that is being validated.
struct Row<'a> {
    file: &'a str,
    kind: &'a str,
    name: &'a str,
}

impl Row<'_> {
    fn refuse(&self, problem: String) -> Result<()> {
        let row = format!("{} `{}`", self.kind, self.name);
        Err(Error::Catalogue { file: self.file.to_owned(), row, problem })
    }

    fn texts(&self, source: &str, date: &str) -> Result<()> {
        if !is_name(self.name) || self.name.eq_ignore_ascii_case(super::THIS_MACHINE) {
            return self.refuse(
                "a name must consist of letters, digits, `-`, `.`, `_` and `+`, and must not be `here`"
                    .to_owned(),
            );
        }
        self.has_source("source", source)?;
        if parse_date(date).is_none() {
            return self.refuse(format!("date must be a month or day such as 2026-11, but is `{date}`"));
        }
        Ok(())
    }

    fn has_source(&self, key: &str, source: &str) -> Result<()> {
        match source.trim() {
            "" => self.refuse(format!("{key} is empty")),
            _ => Ok(()),
        }
    }

    fn above(&self, key: &str, value: Option<f64>, max: f64) -> Result<()> {
        match value {
            Some(value) if !(value > 0.0 && value <= max) => {
                self.refuse(format!("{key} must be above 0 and at most {max}, but is {value}"))
            }
            _ => Ok(()),
        }
    }

    fn not_negative(&self, key: &str, value: Option<f64>) -> Result<()> {
        match value {
            Some(value) if !(0.0..=MAX_PRICE).contains(&value) => {
                self.refuse(format!("{key} must be at least 0 and at most {MAX_PRICE}, but is {value}"))
            }
            _ => Ok(()),
        }
    }
}
