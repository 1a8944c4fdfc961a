//! The rows of `usage.csv`.

use super::rows::{Field, Row, Task};
use stratus_base::Throttling;

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
    /// Mean power draw of the processor's packages since the previous row, including that of other programs.
    pub cpu_watts: Option<f64>,
    /// The clock of the device in MHz.
    pub gpu_mhz: Option<u64>,
    /// The temperature of the device in degrees Celsius.
    pub gpu_celsius: Option<u64>,
    /// The reasons for which the device's clock is lower than it could be.
    pub gpu_throttling: Option<Throttling>,
}

impl Row for UsageRow {
    const NEW_COLUMNS: &'static [&'static str] = &["cpu_watts", "gpu_mhz", "gpu_celsius", "gpu_throttling"];

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
        visit("cpu_watts", Field::OptionalFixed(&mut self.cpu_watts, 1));
        visit("gpu_mhz", Field::OptionalCount(&mut self.gpu_mhz));
        visit("gpu_celsius", Field::OptionalCount(&mut self.gpu_celsius));
        visit("gpu_throttling", Field::OptionalThrottling(&mut self.gpu_throttling));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csv::{CsvWriter, read};

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
        assert_eq!(line, "12.000,98.8,1073741824,,,0,,,,,,,\n");
        let fields: Vec<&str> = line.split(',').collect();
        let back = UsageRow::parse(Task::Classification, &fields).unwrap();
        assert_eq!(back, UsageRow { cpu_percent: Some(98.8), ..row });
        assert_eq!(UsageRow::parse(Task::Classification, &["1", "x"]), Err("cpu_percent"));
    }

    #[test]
    fn throttling_is_a_field_by_name() {
        for (heat, power, name) in
            [(false, false, "no"), (true, false, "heat"), (false, true, "power"), (true, true, "heat+power")]
        {
            let row = UsageRow {
                elapsed_s: 3.0,
                gpu_mhz: Some(1410),
                gpu_celsius: Some(88),
                gpu_throttling: Some(Throttling { heat, power }),
                ..UsageRow::default()
            };
            let mut line = Vec::new();
            row.write(Task::default(), &mut line);
            let line = String::from_utf8(line).unwrap();
            assert_eq!(line, format!("3.000,,,,,,,,,,1410,88,{name}\n"));
            let fields: Vec<&str> = line.trim_end().split(',').collect();
            assert_eq!(UsageRow::parse(Task::default(), &fields), Ok(row));
        }
        let parse = |end: &str| {
            let line = format!("3.000,,,,,,,,,,{end}");
            UsageRow::parse(Task::default(), &line.split(',').collect::<Vec<_>>())
        };
        assert_eq!(parse("1410,88,<script>"), Err("gpu_throttling"));
        assert_eq!(parse("1410,88,power+heat"), Err("gpu_throttling"));
        assert_eq!(parse("-1,88,no"), Err("gpu_mhz"));
        assert_eq!(parse("1410,99999999999999999999,no"), Err("gpu_celsius"));
        assert_eq!(parse("1410,88"), Err("gpu_throttling"));
    }

    /// A run of the version before is resumed: its file has no columns of the GPU's clock.
    #[test]
    fn file_without_clock_and_throttling_keeps_the_width_of_its_rows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("usage.csv");
        let columns = UsageRow::columns(Task::default());
        let (old, new) = columns.split_at(columns.len() - 3);
        assert_eq!(new, ["gpu_mhz", "gpu_celsius", "gpu_throttling"]);
        let text = format!("{}\n1.000,50.0,1000,,,,97.0,,300.0,9.0\n", old.join(","));
        std::fs::write(&path, &text).unwrap();
        let row = UsageRow {
            elapsed_s: 2.0,
            gpu_watts: Some(30.0),
            gpu_mhz: Some(1200),
            gpu_celsius: Some(90),
            gpu_throttling: Some(Throttling { heat: true, power: true }),
            ..UsageRow::default()
        };
        let mut writer = CsvWriter::open(&path, Task::default()).unwrap();
        writer.append(&row).unwrap();
        writer.sync().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{text}2.000,,,,,,,,30.0,\n"));
        let rows = read::<UsageRow>(&path).unwrap();
        assert_eq!(rows[0].gpu_watts, Some(300.0));
        assert_eq!(rows[1], UsageRow { gpu_mhz: None, gpu_celsius: None, gpu_throttling: None, ..row });
    }

    /// A run of an earlier version that is resumed: its file has no column of the packages' power.
    #[test]
    fn file_without_the_newest_column_is_read_and_continued() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("usage.csv");
        let header = "elapsed_s,cpu_percent,rss_bytes,disk_read_bytes,disk_write_bytes,net_bytes,gpu_percent,\
                      gpu_memory_bytes,gpu_watts\n";
        let text = format!("{header}1.000,50.0,1000,,,,,,\n");
        std::fs::write(&path, &text).unwrap();
        let first =
            UsageRow { elapsed_s: 1.0, cpu_percent: Some(50.0), rss_bytes: Some(1000), ..Default::default() };
        assert_eq!(read::<UsageRow>(&path).unwrap(), [first]);
        let second = UsageRow { elapsed_s: 2.0, gpu_watts: Some(30.0), cpu_watts: Some(9.0), ..first };
        let mut writer = CsvWriter::open(&path, Task::default()).unwrap();
        writer.append(&second).unwrap();
        writer.sync().unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            format!("{text}2.000,50.0,1000,,,,,,30.0\n"),
            "every row has the fields of the header"
        );
        assert_eq!(read::<UsageRow>(&path).unwrap(), [first, UsageRow { cpu_watts: None, ..second }]);
        // A file that starts again has the new header.
        writer.truncate_to(0).unwrap();
        writer.append(&second).unwrap();
        writer.sync().unwrap();
        assert_eq!(read::<UsageRow>(&path).unwrap(), [second]);
        // Other columns must exist.
        std::fs::write(&path, "elapsed_s,cpu_percent\n1.0,2.0\n").unwrap();
        let error = read::<UsageRow>(&path).unwrap_err().to_string();
        assert!(error.contains("no column rss_bytes"), "{error}");
    }
}
