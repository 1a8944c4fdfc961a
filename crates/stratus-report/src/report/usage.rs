//! Utilisation of the machine during a run, with a bounded number of points.

use serde::Serialize;
use stratus_run::RunDir;
use stratus_run::csv::{CsvReader, UsageRow};

use super::curves::{BucketedMeans, Curve, MAX_POINTS};
use super::gpus::{self, GpuSums, GpuUse};
use crate::Result;

/// Utilisation of the machine over the time of a run; points are means over equal buckets of samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct UsageCurves {
    /// Seconds from the start of the run to the end of each bucket.
    pub elapsed_s: Vec<f64>,
    /// CPU time of the run, in percent of the time of all CPUs that it may use.
    pub cpu_percent: Curve,
    /// Resident memory of the run.
    pub rss_bytes: Curve,
    /// Read rate of disks for the run, 10⁶ bytes/s.
    pub disk_read_mb_per_s: Curve,
    /// Write rate of disks for the run, 10⁶ bytes/s.
    pub disk_write_mb_per_s: Curve,
    /// Network rate of the machine, received and sent, 10⁶ bytes/s.
    pub net_mb_per_s: Curve,
    /// Power draw of the processor's packages.
    pub cpu_watts: Curve,
    /// The GPU of the run, or of its first worker.
    #[serde(flatten)]
    pub gpu: GpuCurves,
    /// The use of the GPUs of all workers.
    pub gpus: Vec<GpuUse>,
}

/// Utilisation of a GPU over the time of a run, at the times of [`UsageCurves`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GpuCurves {
    /// Busy time, in percent.
    #[serde(rename = "gpu_percent")]
    pub busy_percent: Curve,
    /// Memory in use.
    #[serde(rename = "gpu_memory_bytes")]
    pub memory_bytes: Curve,
    /// Power draw.
    #[serde(rename = "gpu_watts")]
    pub watts: Curve,
    /// Clock in MHz.
    #[serde(rename = "gpu_mhz")]
    pub mhz: Curve,
    /// Temperature in degrees Celsius.
    #[serde(rename = "gpu_celsius")]
    pub celsius: Curve,
    /// The time in which heat throttled it, in percent.
    #[serde(rename = "gpu_heat_percent")]
    pub heat_percent: Curve,
    /// The time in which power throttled it, in percent.
    #[serde(rename = "gpu_power_percent")]
    pub power_percent: Curve,
}

impl UsageCurves {
    /// Reads `usage.csv` of a run; `None` if it is missing or has no row yet. Files of other workers that
    /// cannot be read are passed to `missing`, with the reason.
    pub(super) fn read(run: &RunDir, missing: &mut dyn FnMut(&str, String)) -> Result<Option<Self>> {
        let path = run.usage();
        if !path.exists() {
            return Ok(None);
        }
        let mut means = BucketedMeans::new(13, MAX_POINTS);
        let (mut before, mut gpu) = (0.0, GpuSums::default());
        for row in CsvReader::<UsageRow>::open(&path)? {
            let row = row?;
            let seconds = row.elapsed_s - before;
            before = row.elapsed_s;
            gpu.add(&row);
            let number = |value: Option<f64>| value.unwrap_or(f64::NAN);
            let count = |value: Option<u64>| value.map_or(f64::NAN, |count| count as f64);
            // A row counts the bytes of about one second, even after the run was suspended.
            let rate = |value: Option<u64>| count(value) / 1e6 / seconds.clamp(0.5, 2.0);
            let percent = |is_throttled: Option<bool>| {
                number(is_throttled.map(|is_throttled| if is_throttled { 100.0 } else { 0.0 }))
            };
            let milliseconds = (1e3 * row.elapsed_s).max(0.0) as u64;
            means.push(
                milliseconds,
                &[
                    number(row.cpu_percent),
                    count(row.rss_bytes),
                    rate(row.disk_read_bytes),
                    rate(row.disk_write_bytes),
                    rate(row.net_bytes),
                    number(row.cpu_watts),
                    number(row.gpu_percent),
                    count(row.gpu_memory_bytes),
                    number(row.gpu_watts),
                    count(row.gpu_mhz),
                    count(row.gpu_celsius),
                    percent(row.gpu_throttling.map(|throttling| throttling.heat)),
                    percent(row.gpu_throttling.map(|throttling| throttling.power)),
                ],
            );
        }
        let (ends, columns) = means.finish();
        if ends.is_empty() {
            return Ok(None);
        }
        let mut columns = columns.into_iter();
        let mut next = || columns.next().unwrap_or_default();
        Ok(Some(Self {
            elapsed_s: ends.iter().map(|end| *end as f64 / 1e3).collect(),
            cpu_percent: next(),
            rss_bytes: next(),
            disk_read_mb_per_s: next(),
            disk_write_mb_per_s: next(),
            net_mb_per_s: next(),
            cpu_watts: next(),
            gpu: GpuCurves {
                busy_percent: next(),
                memory_bytes: next(),
                watts: next(),
                mhz: next(),
                celsius: next(),
                heat_percent: next(),
                power_percent: next(),
            },
            gpus: gpus::with_workers(&gpu, run, missing),
        }))
    }
}
