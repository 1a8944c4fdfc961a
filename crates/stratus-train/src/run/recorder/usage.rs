//! Samples how the machine is used while a run trains: a thread adds a row to `usage.csv` once a second.

use super::energy::SharedEnergyMeter;
use crate::TrainError;
use crate::run::run_time::RunTime;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use stratus_base::Mean;
use stratus_run::RunDir;
use stratus_run::csv::{CsvWriter, Task, UsageRow};
use stratus_run::machine::process::{ProcessCounts, ProcessMeter};
use stratus_run::summary::Usage;
use stratus_threads::{UsageMeter, thread_time};

/// Time between two samples.
const SAMPLE_PERIOD: Duration = Duration::from_secs(1);

/// Samples the machine's usage until it is dropped.
#[derive(Debug)]
pub(super) struct UsageSampler {
    shared: Arc<Shared>,
    /// `None` if the system did not start a thread: there are no samples then.
    thread: Option<JoinHandle<()>>,
    /// CPU usage since the start of sampling.
    cpu: UsageMeter,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug)]
struct State {
    rows: CsvWriter<UsageRow>,
    is_stopped: bool,
    /// The error of writing a row, after which sampling stops.
    failed: Option<stratus_run::Error>,
    totals: Totals,
}

/// The totals over the rows of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Totals {
    busy_percent: Mean,
    watts: Mean,
    device_bytes: Option<u64>,
    rss_bytes: Option<u64>,
    disk_read_bytes: Option<u64>,
    disk_write_bytes: Option<u64>,
    net_bytes: Option<u64>,
    /// The CPU time of the sampling thread.
    sampling: Option<Duration>,
}

impl Totals {
    fn add(&mut self, row: &UsageRow) {
        let max = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).max();
        let sum = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).reduce(u64::saturating_add);
        self.busy_percent.add(row.gpu_percent);
        self.watts.add(row.gpu_watts);
        self.device_bytes = max(self.device_bytes, row.gpu_memory_bytes);
        self.rss_bytes = max(self.rss_bytes, row.rss_bytes);
        self.disk_read_bytes = sum(self.disk_read_bytes, row.disk_read_bytes);
        self.disk_write_bytes = sum(self.disk_write_bytes, row.disk_write_bytes);
        self.net_bytes = sum(self.net_bytes, row.net_bytes);
        self.sampling = thread_time();
    }
}

impl UsageSampler {
    /// Starts sampling, in a file that is truncated to `position`.
    pub fn start(
        run: &RunDir,
        position: u64,
        time: RunTime,
        energy: SharedEnergyMeter,
    ) -> Result<Self, TrainError> {
        let mut rows = CsvWriter::open(&run.usage(), Task::default())?;
        // A missing or shortened file loses its rows, but does not prevent resuming.
        rows.truncate_to(position.min(rows.position()))?;
        let state = State { rows, is_stopped: false, failed: None, totals: Totals::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), wake: Condvar::new() });
        let samples = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("usage".to_owned())
            .spawn(move || samples.sample(&mut Meters::new(time, energy)))
            .ok();
        Ok(Self { shared, thread, cpu: UsageMeter::from_now() })
    }

    /// Syncs all rows to the disk; returns the file's length.
    pub fn sync(&self) -> Result<u64, TrainError> {
        let mut state = self.shared.lock();
        if let Some(error) = state.failed.take() {
            return Err(error.into());
        }
        state.rows.sync()?;
        Ok(state.rows.position())
    }

    /// The usage so far.
    pub fn usage(&self) -> Usage {
        let totals = self.shared.lock().totals;
        let cpu = self.cpu.usage();
        let process_time = self.cpu.own_time().map(|time| time.as_secs_f64()).filter(|time| *time > 0.0);
        Usage {
            cpu_percent_mean: cpu.map(|usage| usage.own_percent),
            stolen_percent: cpu.map(|usage| usage.others_percent),
            gpu_percent_mean: totals.busy_percent.mean(),
            gpu_memory_peak_bytes: totals.device_bytes,
            gpu_watts_mean: totals.watts.mean(),
            rss_peak_bytes: totals.rss_bytes,
            disk_read_bytes: totals.disk_read_bytes,
            disk_write_bytes: totals.disk_write_bytes,
            net_bytes: totals.net_bytes,
            sampling_percent: totals
                .sampling
                .zip(process_time)
                .map(|(time, process_time)| 100.0 * time.as_secs_f64() / process_time),
        }
    }
}

impl Drop for UsageSampler {
    fn drop(&mut self) {
        self.shared.lock().is_stopped = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has no more rows to write.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sample(&self, meters: &mut Meters) {
        loop {
            let waited = self.wake.wait_timeout_while(self.lock(), SAMPLE_PERIOD, |state| !state.is_stopped);
            let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.is_stopped || state.failed.is_some() {
                return;
            }
            drop(state);
            // Measured without the lock, so that a checkpoint does not wait for it.
            let row = meters.row();
            let mut state = self.lock();
            if state.is_stopped {
                return;
            }
            state.totals.add(&row);
            if let Err(error) = state.rows.append(&row).and_then(|()| state.rows.flush()) {
                state.failed = Some(error);
                return;
            }
        }
    }
}

/// The meters that are read once a second.
struct Meters {
    time: RunTime,
    cpu: UsageMeter,
    process: ProcessMeter,
    before: ProcessCounts,
    energy: SharedEnergyMeter,
    /// The seconds of the run at the last row, and the joules of the processor's packages up to then.
    last: (f64, Option<f64>),
}

impl Meters {
    fn new(time: RunTime, energy: SharedEnergyMeter) -> Self {
        let mut process = ProcessMeter::open();
        let before = process.counts();
        let last = (time.elapsed_s(), energy.lock().read().cpu_joules);
        Self { time, cpu: UsageMeter::from_now(), process, before, energy, last }
    }

    /// The usage since the last call.
    fn row(&mut self) -> UsageRow {
        let cpu = self.cpu.usage();
        self.cpu = UsageMeter::from_now();
        let (counts, before) = (self.process.counts(), self.before);
        self.before = counts;
        let since = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        let (device, energy) = self.energy.lock().sample();
        let now = (self.time.elapsed_s(), energy.cpu_joules);
        let last = std::mem::replace(&mut self.last, now);
        let (seconds, joules) = (now.0 - last.0, now.1.zip(last.1).map(|(now, last)| now - last));
        UsageRow {
            elapsed_s: now.0,
            cpu_percent: cpu.map(|usage| usage.own_percent),
            rss_bytes: counts.rss_bytes,
            disk_read_bytes: since(counts.disk_read_bytes, before.disk_read_bytes),
            disk_write_bytes: since(counts.disk_write_bytes, before.disk_write_bytes),
            net_bytes: since(counts.net_bytes, before.net_bytes),
            gpu_percent: device.busy_percent,
            gpu_memory_bytes: device.memory_bytes,
            gpu_watts: device.watts,
            cpu_watts: joules.filter(|_| seconds > 0.0).map(|joules| joules / seconds),
            gpu_mhz: device.mhz.map(u64::from),
            gpu_celsius: device.celsius.map(u64::from),
            gpu_throttling: device.throttling,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use stratus_base::Throttling;
    use stratus_engine::device::{DeviceMeter, DeviceUsage};
    use stratus_run::csv;
    use stratus_run::machine::energy::PackageEnergyMeter;

    struct Busy(f64);

    impl DeviceMeter for Busy {
        fn usage(&mut self) -> DeviceUsage {
            self.0 += 10.0;
            DeviceUsage {
                busy_percent: Some(self.0),
                memory_bytes: Some(1000),
                mhz: Some(1400),
                celsius: Some(83),
                throttling: Some(Throttling { heat: true, power: false }),
                ..DeviceUsage::default()
            }
        }

        fn joules(&mut self) -> Option<f64> {
            Some(self.0)
        }
    }

    /// The energy of a busy device, and of packages whose counters are in a folder.
    fn energy(powercap: &std::path::Path) -> SharedEnergyMeter {
        SharedEnergyMeter::new(PackageEnergyMeter::under(powercap), Some(Box::new(Busy(0.0))))
    }

    fn time(previous_s: f64) -> RunTime {
        RunTime { started: Instant::now(), previous_s }
    }

    fn run(root: &std::path::Path) -> RunDir {
        RunDir::create(root, "digits").unwrap()
    }

    #[test]
    fn rows_are_differences_and_totals_sum_them_up() {
        let root = tempfile::tempdir().unwrap();
        let mut meters = Meters::new(time(100.0), energy(root.path()));
        let mut totals = Totals::default();
        let rows: Vec<UsageRow> = (0..3).map(|_| meters.row()).collect();
        rows.iter().for_each(|row| totals.add(row));
        assert!(rows.iter().all(|row| row.elapsed_s >= 100.0 && row.cpu_percent.is_none()), "{rows:?}");
        assert_eq!((totals.busy_percent.mean(), totals.device_bytes), (Some(20.0), Some(1000)));
        assert_eq!(totals.watts.mean(), None, "a value without samples is not zero");
        let clock = (rows[0].gpu_mhz, rows[0].gpu_celsius, rows[0].gpu_throttling);
        let heat = Throttling { heat: true, power: false };
        assert_eq!(clock, (Some(1400), Some(83), Some(heat)));
        if cfg!(target_os = "linux") {
            assert_eq!(totals.rss_bytes, rows.iter().filter_map(|row| row.rss_bytes).max());
            assert_eq!(totals.net_bytes, Some(rows.iter().filter_map(|row| row.net_bytes).sum()));
        }
    }

    #[test]
    fn power_of_packages_is_the_mean_since_the_last_row() {
        let root = tempfile::tempdir().unwrap();
        let zone = root.path().join("intel-rapl:0");
        std::fs::create_dir(&zone).unwrap();
        let put = |name: &str, text: &str| std::fs::write(zone.join(name), text).unwrap();
        put("name", "package-0");
        put("max_energy_range_uj", "1000000000");
        put("energy_uj", "500000000");
        let energy = energy(root.path());
        let mut meters = Meters::new(time(0.0), energy.clone());
        std::thread::sleep(Duration::from_millis(20));
        put("energy_uj", "502000000");
        // A checkpoint reads the counter too.
        assert_eq!(energy.lock().read().cpu_joules, Some(2.0));
        let row = meters.row();
        let watts = row.cpu_watts.unwrap();
        assert!((watts * row.elapsed_s - 2.0).abs() < 0.5 && watts < 100.0, "{row:?}");
        assert_eq!(meters.row().cpu_watts, Some(0.0));
    }

    /// A run of an earlier version is resumed: its rows keep the columns of their header.
    #[test]
    fn file_of_an_earlier_version_is_continued_with_its_columns() {
        let root = tempfile::tempdir().unwrap();
        let run = run(root.path());
        let header = "elapsed_s,cpu_percent,rss_bytes,disk_read_bytes,disk_write_bytes,net_bytes,gpu_percent,\
                      gpu_memory_bytes,gpu_watts,cpu_watts";
        let text = format!("{header}\n1.000,50.0,1000,,,,97.0,,300.0,9.0\n");
        let start = || {
            let length = std::fs::metadata(run.usage()).map_or(0, |file| file.len());
            UsageSampler::start(&run, length, time(1.0), energy(root.path())).unwrap()
        };
        let await_line = |number: usize| loop {
            let text = std::fs::read_to_string(run.usage()).unwrap();
            if let Some(line) = text.lines().nth(number) {
                return (line.to_owned(), text.ends_with('\n'));
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        std::fs::write(run.usage(), &text).unwrap();
        let sampler = start();
        await_line(2);
        drop(sampler);
        let (line, is_whole) = await_line(2);
        assert!(is_whole && line.split(',').count() == header.split(',').count(), "{line}");
        assert!(line.contains(",10.0,1000,,"), "busy time and memory of the device: {line}");
        assert!(std::fs::read_to_string(run.usage()).unwrap().starts_with(&text));
        // A run that starts again has the columns of this version.
        std::fs::remove_file(run.usage()).unwrap();
        let sampler = start();
        await_line(1);
        drop(sampler);
        let (line, is_whole) = await_line(1);
        assert!(is_whole && line.ends_with(",1400,83,heat"), "{line}");
    }

    #[test]
    fn samples_are_written_during_the_run_and_truncated_on_resume() {
        let root = tempfile::tempdir().unwrap();
        let run = run(root.path());
        let start = |position| UsageSampler::start(&run, position, time(0.0), energy(root.path())).unwrap();
        let await_rows = |count: usize| loop {
            let rows = csv::read::<UsageRow>(&run.usage()).unwrap();
            if rows.len() >= count {
                return rows;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let sampler = start(0);
        assert_eq!(await_rows(1)[0].gpu_percent, Some(10.0));
        let position = sampler.sync().unwrap();
        await_rows(2);
        let usage = sampler.usage();
        assert!(usage.gpu_percent_mean >= Some(10.0) && usage.gpu_memory_peak_bytes == Some(1000));
        if cfg!(target_os = "linux") {
            assert!(usage.sampling_percent.is_some() && usage.rss_peak_bytes > Some(0), "{usage:?}");
        }
        drop(sampler);
        // The second row is newer than the checkpoint, and the torn one belongs to no row.
        let mut text = std::fs::read_to_string(run.usage()).unwrap();
        text.push_str("9.0,1");
        std::fs::write(run.usage(), text).unwrap();
        drop(start(position));
        assert_eq!(csv::read::<UsageRow>(&run.usage()).unwrap().len(), 1);
        std::fs::remove_file(run.usage()).unwrap();
        drop(start(position));
        assert_eq!(csv::read::<UsageRow>(&run.usage()).unwrap().len(), 0);
    }
}
