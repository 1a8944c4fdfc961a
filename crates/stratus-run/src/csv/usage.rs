//! The rows of `usage.csv`.

use std::io::Write;

use super::rows::{Fields, Row, Task};

/// A row of `usage.csv`: utilisation of the machine since the previous row. Values that the system does not
/// provide are empty.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UsageRow {
    /// Seconds since the start of the run, including those before a resume.
    pub elapsed_s: f64,
    /// CPU time of the run, in percent of the time of all CPUs that it may use.
    pub cpu_percent: Option<f64>,
    /// Resident memory of the run.
    pub rss_bytes: Option<u64>,
    /// Bytes read from disks for the run.
    pub disk_read_bytes: Option<u64>,
    /// Bytes written to disks for the run.
    pub disk_write_bytes: Option<u64>,
    /// Bytes that the machine received and sent, without the loopback interface.
    pub net_bytes: Option<u64>,
    /// Busy time of the compute device, in percent.
    pub gpu_percent: Option<f64>,
    /// Memory in use on the device, including that of other programs.
    pub gpu_memory_bytes: Option<u64>,
    /// Power draw of the device.
    pub gpu_watts: Option<f64>,
}

/// A number with one decimal; empty for `None`.
struct OneDecimal(Option<f64>);

impl std::fmt::Display for OneDecimal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |value| write!(f, "{value:.1}"))
    }
}

/// A count; empty for `None`.
struct OptionalCount(Option<u64>);

impl std::fmt::Display for OptionalCount {
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
        let [cpu, gpu, watts] = [self.cpu_percent, self.gpu_percent, self.gpu_watts].map(OneDecimal);
        let [rss, read, written] =
            [self.rss_bytes, self.disk_read_bytes, self.disk_write_bytes].map(OptionalCount);
        let [net, memory] = [self.net_bytes, self.gpu_memory_bytes].map(OptionalCount);
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
    fn unknown_values_are_empty_fields() {
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
