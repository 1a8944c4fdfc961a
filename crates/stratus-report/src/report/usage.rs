//! Utilisation of the machine during a run, with a bounded number of points.

use serde::Serialize;
use stratus_run::RunDir;
use stratus_run::csv::{CsvReader, UsageRow};

use super::curves::{BucketedMeans, Curve, MAX_POINTS};
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
    /// Busy time of the device, in percent.
    pub gpu_percent: Curve,
    /// Memory in use on the device.
    pub gpu_memory_bytes: Curve,
    /// Power draw of the device.
    pub gpu_watts: Curve,
    /// Power draw of the processor's packages.
    pub cpu_watts: Curve,
}

impl UsageCurves {
    /// Reads `usage.csv` of a run; `None` if it is missing or has no row yet.
    pub(super) fn read(run: &RunDir) -> Result<Option<Self>> {
        let path = run.usage();
        if !path.exists() {
            return Ok(None);
        }
        let mut means = BucketedMeans::new(9, MAX_POINTS);
        let mut before = 0.0;
        for row in CsvReader::<UsageRow>::open(&path)? {
            let row = row?;
            let seconds = row.elapsed_s - before;
            before = row.elapsed_s;
            let number = |value: Option<f64>| value.unwrap_or(f64::NAN);
            let bytes = |value: Option<u64>| value.map_or(f64::NAN, |bytes| bytes as f64);
            // A row counts the bytes of about one second, even after the run was suspended.
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
                    number(row.cpu_watts),
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
            cpu_watts: next(),
        }))
    }
}
