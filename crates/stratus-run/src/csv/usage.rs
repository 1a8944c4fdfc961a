//! The rows of `usage.csv`.

use std::io::Write;

use super::rows::{Fields, Row, Task};

/// A row of `usage.csv`: how the machine was used since the row before. What the system does not say is
/// empty.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UsageRow {
    /// Seconds since the start of the run, those before a resume included.
    pub elapsed_s: f64,
    /// The run's share of the processors that it may use, in percent of their time.
    pub cpu_percent: Option<f64>,
    /// The run's resident memory.
    pub rss_bytes: Option<u64>,
    /// What disks read for the run.
    pub disk_read_bytes: Option<u64>,
    /// What disks wrote for the run.
    pub disk_write_bytes: Option<u64>,
    /// What the machine received and sent, its loopback left out.
    pub net_bytes: Option<u64>,
    /// The time in which the device that computes was busy, in percent.
    pub gpu_percent: Option<f64>,
    /// The device's memory in use, other programs' included.
    pub gpu_memory_bytes: Option<u64>,
    /// The power that it draws.
    pub gpu_watts: Option<f64>,
}

/// A number with a decimal, or nothing.
struct Tenths(Option<f64>);

impl std::fmt::Display for Tenths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |value| write!(f, "{value:.1}"))
    }
}

/// A count, or nothing.
struct Count(Option<u64>);

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |value| write!(f, "{value}"))
    }
}

impl Row for UsageRow {
    fn columns(_: Task) -> &'static [&'static str] {
        &[
            "elapsed_s",
            "cpu_percent",
            "rss_bytes",
            "disk_read_bytes",
            "disk_write_bytes",
            "net_bytes",
            "gpu_percent",
            "gpu_memory_bytes",
            "gpu_watts",
        ]
    }

    fn write(&self, _: Task, out: &mut impl Write) -> std::io::Result<()> {
        let [cpu, gpu, watts] = [self.cpu_percent, self.gpu_percent, self.gpu_watts].map(Tenths);
        let [rss, read, written] = [self.rss_bytes, self.disk_read_bytes, self.disk_write_bytes].map(Count);
        let [net, memory] = [self.net_bytes, self.gpu_memory_bytes].map(Count);
        write!(out, "{:.3},{cpu},{rss},{read},{written},{net},{gpu},{memory},{watts}", self.elapsed_s)
    }

    fn parse(task: Task, fields: &[&str]) -> Result<Self, &'static str> {
        let mut fields = Fields::new(Self::columns(task), fields);
        Ok(Self {
            elapsed_s: fields.value()?,
            cpu_percent: fields.optional()?,
            rss_bytes: fields.optional()?,
            disk_read_bytes: fields.optional()?,
            disk_write_bytes: fields.optional()?,
            net_bytes: fields.optional()?,
            gpu_percent: fields.optional()?,
            gpu_memory_bytes: fields.optional()?,
            gpu_watts: fields.optional()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_stays_empty() {
        let row = UsageRow {
            elapsed_s: 12.0,
            cpu_percent: Some(98.76),
            rss_bytes: Some(1 << 30),
            net_bytes: Some(0),
            ..UsageRow::default()
        };
        let mut line = Vec::new();
        row.write(Task::Segmentation, &mut line).unwrap();
        let line = String::from_utf8(line).unwrap();
        assert_eq!(line, "12.000,98.8,1073741824,,,0,,,");
        let fields: Vec<&str> = line.split(',').collect();
        let back = UsageRow::parse(Task::Classification, &fields).unwrap();
        assert_eq!(back, UsageRow { cpu_percent: Some(98.8), ..row });
        assert_eq!(UsageRow::parse(Task::Classification, &["1", "x"]), Err("cpu_percent"));
    }
}
