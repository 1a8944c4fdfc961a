//! The rows of a catalogue file, and what they are checked for.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// A GPU.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// As on the command line: lower case with dashes.
    pub name: String,
    /// The vendor's name.
    pub title: String,
    /// What SkyPilot calls it.
    pub skypilot: Option<String>,
    /// `kepler`, `maxwell`, `pascal`, `volta`, `turing`, `ampere`, `ada`, `hopper` or what comes later.
    pub architecture: String,
    /// CUDA compute capability.
    pub compute_capability: f64,
    /// f32 outside of tensor cores at the boost clock, 10¹² FLOP/s.
    pub f32_tflops: f64,
    /// f16 outside of tensor cores, where it is faster than f32.
    pub f16_tflops: Option<f64>,
    /// f16 on tensor cores, dense, summed in f32.
    pub f16_tensor_tflops: Option<f64>,
    /// bf16 on tensor cores, dense.
    pub bf16_tensor_tflops: Option<f64>,
    /// TF32 on tensor cores, dense.
    pub tf32_tensor_tflops: Option<f64>,
    /// MHz that are promised under any load.
    pub base_mhz: Option<f64>,
    /// MHz that the peaks are stated for.
    pub boost_mhz: Option<f64>,
    /// GiB of memory.
    pub memory_gib: f64,
    /// MiB of it that the driver leaves to programs, where known.
    pub usable_mib: Option<f64>,
    /// 10⁹ bytes a second.
    pub bandwidth_gb_s: f64,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Where the figures stand.
    pub source: String,
    /// When: `YYYY-MM`.
    pub date: String,
}

impl Gpu {
    /// Bytes of memory that programs can have: as known, or 94 % of the whole.
    #[must_use]
    pub fn usable_bytes(&self) -> u64 {
        let mib = self.usable_mib.unwrap_or(self.memory_gib * 1024.0 * 0.94);
        (mib * 1_048_576.0) as u64
    }
}

/// A processor: one socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// As on the command line.
    pub name: String,
    /// The vendor's name.
    pub title: String,
    /// Parts of the model's name as the system gives it, each of which tells it.
    #[serde(default)]
    pub models: Vec<String>,
    /// Cores.
    pub cores: usize,
    /// GHz that are promised.
    pub base_ghz: f64,
    /// GHz of one core.
    pub boost_ghz: Option<f64>,
    /// f32 operations of a core in a cycle, a multiply-add being two.
    pub f32_flops_per_cycle: f64,
    /// The same of bf16, where it has instructions for it.
    pub bf16_flops_per_cycle: Option<f64>,
    /// 10⁹ bytes a second.
    pub bandwidth_gb_s: f64,
    /// GiB of memory, where it is known.
    pub memory_gib: Option<f64>,
    /// KiB of each core's second-level cache, where it is known.
    pub second_level_kib: Option<usize>,
    /// Where the figures stand.
    pub source: String,
    /// When: `YYYY-MM`.
    pub date: String,
}

impl Cpu {
    /// Checks every figure.
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
            return row.refuse("a part of `models` is empty: it would be every processor's".to_owned());
        }
        Ok(())
    }

    /// One that the catalogue does not have: the system tells its name and cores, and no figures of a data
    /// sheet, which are 0.
    #[must_use]
    pub fn unknown(model: &str, cores: usize) -> Self {
        Self {
            name: super::HERE.to_owned(),
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

/// A cloud's machine.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    /// As the cloud writes it.
    pub name: String,
    /// The cloud.
    pub cloud: String,
    /// Its GPUs, by the catalogue's name.
    pub gpu: String,
    /// How many.
    pub gpus: u32,
    /// Virtual processors.
    pub vcpus: u32,
    /// GiB of memory.
    pub ram_gib: f64,
    /// 10⁹ bytes of disk that come with it.
    pub disk_gb: Option<f64>,
    /// On demand, an hour.
    pub on_demand_per_hour: Option<f64>,
    /// Where it may be taken away, an hour.
    pub spot_per_hour: Option<f64>,
    /// Of the prices: `USD`.
    pub currency: Option<String>,
    /// Where the figures stand.
    pub source: String,
    /// When: `YYYY-MM`.
    pub date: String,
}

/// A file.
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
    /// Checks every figure.
    pub fn check(&self, file: &str) -> Result<()> {
        for gpu in &self.gpu {
            let row = Row { file, kind: "gpu", name: &gpu.name };
            row.texts(&gpu.source, &gpu.date)?;
            let plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
            if !gpu.skypilot.as_deref().is_none_or(plain) {
                return row.refuse("skypilot is a name of letters, digits and `-`".to_owned());
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
            row.above("multiprocessors", Some(f64::from(gpu.multiprocessors)), 1e5)?;
        }
        for cpu in &self.cpu {
            cpu.check(file)?;
        }
        for instance in &self.instance {
            let row = Row { file, kind: "instance", name: &instance.name };
            row.texts(&instance.source, &instance.date)?;
            row.above("gpus", Some(f64::from(instance.gpus)), 1024.0)?;
            row.above("vcpus", Some(f64::from(instance.vcpus)), 1e5)?;
            row.above("ram_gib", Some(instance.ram_gib), 1e6)?;
            row.above("disk_gb", instance.disk_gb, 1e9)?;
            row.not_negative("on_demand_per_hour", instance.on_demand_per_hour)?;
            row.not_negative("spot_per_hour", instance.spot_per_hour)?;
            let priced = instance.on_demand_per_hour.or(instance.spot_per_hour).is_some();
            if priced && instance.currency.is_none() {
                return row.refuse("it has a price and no currency".to_owned());
            }
        }
        Ok(())
    }
}

/// A row that is being checked.
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
        let name_is_plain = !self.name.is_empty()
            && self.name.len() <= 64
            && self.name.chars().all(|c| c.is_ascii_alphanumeric() || "-._+".contains(c));
        if !name_is_plain || self.name.eq_ignore_ascii_case(super::HERE) {
            return self
                .refuse("a name is of letters, digits, `-`, `.`, `_` and `+`, and not `here`".to_owned());
        }
        if source.trim().is_empty() {
            return self.refuse("source is empty".to_owned());
        }
        let is_month = |date: &str| {
            let (year, month) = date.split_once('-')?;
            let digits =
                |text: &str, length| text.len() == length && text.bytes().all(|b| b.is_ascii_digit());
            (digits(year, 4) && digits(month, 2) && (1..=12).contains(&month.parse::<u8>().ok()?))
                .then_some(())
        };
        match is_month(date) {
            Some(()) => Ok(()),
            None => self.refuse(format!("date is `{date}`; it is a month, like 2026-11")),
        }
    }

    fn above(&self, key: &str, value: Option<f64>, most: f64) -> Result<()> {
        match value {
            Some(value) if !(value > 0.0 && value <= most) => {
                self.refuse(format!("{key} is {value}; it is above 0 and at most {most}"))
            }
            _ => Ok(()),
        }
    }

    fn not_negative(&self, key: &str, value: Option<f64>) -> Result<()> {
        const MOST: f64 = 100_000.0;
        match value {
            Some(value) if !(0.0..=MOST).contains(&value) => {
                self.refuse(format!("{key} is {value}; it is at least 0 and at most {MOST}"))
            }
            _ => Ok(()),
        }
    }
}
