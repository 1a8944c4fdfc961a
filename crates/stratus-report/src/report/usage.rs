//! How the machine was used while a run trained, in a bounded number of points.

use serde::Serialize;
use stratus_run::RunDir;
use stratus_run::csv::{CsvReader, UsageRow};

use super::curves::{Curve, Means, POINTS};
use crate::Result;

/// How the machine was used over the time of a run; points are means over equal stretches of samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct UsageCurves {
    /// Seconds since the start of the run at the end of each point's stretch.
    pub elapsed_s: Vec<f64>,
    /// The run's share of the processors that it may use, in percent of their time.
    pub cpu_percent: Curve,
    /// The run's resident memory.
    pub rss_bytes: Curve,
    /// 10⁶ bytes a second that disks read for the run.
    pub disk_read_mb_per_s: Curve,
    /// 10⁶ bytes a second that disks wrote for the run.
    pub disk_write_mb_per_s: Curve,
    /// 10⁶ bytes a second that the machine received and sent.
    pub net_mb_per_s: Curve,
    /// The time in which the device was busy, in percent.
    pub gpu_percent: Curve,
    /// The device's memory in use.
    pub gpu_memory_bytes: Curve,
    /// The power that the device drew.
    pub gpu_watts: Curve,
}

impl UsageCurves {
    /// Reads a run's `usage.csv`; none where the run has none, or no row yet.
    pub(super) fn of(run: &RunDir) -> Result<Option<Self>> {
        let path = run.usage();
        if !path.exists() {
            return Ok(None);
        }
        let mut means = Means::new(8, POINTS);
        let mut before = 0.0;
        for row in CsvReader::<UsageRow>::open(&path)? {
            let row = row?;
            let seconds = row.elapsed_s - before;
            before = row.elapsed_s;
            let number = |value: Option<f64>| value.unwrap_or(f64::NAN);
            let bytes = |value: Option<u64>| value.map_or(f64::NAN, |bytes| bytes as f64);
            // A row's bytes are those of a second; the run may have stood still before it.
            let rate = |value: Option<u64>| bytes(value) / 1e6 / seconds.clamp(0.5, 2.0);
            let milliseconds = (1e3 * row.elapsed_s).max(0.0) as u64;
            means.push(
                milliseconds,
                &[
                    number(row.cpu_percent),
                    bytes(row.rss_bytes),
                    rate(row.disk_read_bytes),
                    rate(row.disk_write_bytes),
                    rate(row.net_bytes),
                    number(row.gpu_percent),
                    bytes(row.gpu_memory_bytes),
                    number(row.gpu_watts),
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
            gpu_percent: next(),
            gpu_memory_bytes: next(),
            gpu_watts: next(),
        }))
    }
}
