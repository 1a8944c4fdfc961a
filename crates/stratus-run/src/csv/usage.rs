//! The rows of `usage.csv`.

use super::rows::{Field, Row, Task};

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

impl Row for UsageRow {
    fn visit(&mut self, _: Task, visit: &mut dyn FnMut(&'static str, Field<'_>)) {
        visit("elapsed_s", Field::Fixed(&mut self.elapsed_s, 3));
        visit("cpu_percent", Field::OptionalFixed(&mut self.cpu_percent, 1));
        visit("rss_bytes", Field::OptionalCount(&mut self.rss_bytes));
        visit("disk_read_bytes", Field::OptionalCount(&mut self.disk_read_bytes));
        visit("disk_write_bytes", Field::OptionalCount(&mut self.disk_write_bytes));
        visit("net_bytes", Field::OptionalCount(&mut self.net_bytes));
        visit("gpu_percent", Field::OptionalFixed(&mut self.gpu_percent, 1));
        visit("gpu_memory_bytes", Field::OptionalCount(&mut self.gpu_memory_bytes));
        visit("gpu_watts", Field::OptionalFixed(&mut self.gpu_watts, 1));
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
        row.write(Task::Segmentation, &mut line);
        let line = String::from_utf8(line).unwrap();
        assert_eq!(line, "12.000,98.8,1073741824,,,0,,,\n");
        let fields: Vec<&str> = line.split(',').collect();
        let back = UsageRow::parse(Task::Classification, &fields).unwrap();
        assert_eq!(back, UsageRow { cpu_percent: Some(98.8), ..row });
        assert_eq!(UsageRow::parse(Task::Classification, &["1", "x"]), Err("cpu_percent"));
    }
}
