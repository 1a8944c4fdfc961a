//! The GPUs of a run, one per worker: their use, and how long heat or power throttled them.

use std::path::Path;

use serde::Serialize;
use stratus_base::Mean;
use stratus_base::text::{duration, shell_path};
use stratus_run::RunDir;
use stratus_run::csv::{CsvReader, UsageRow};
use stratus_run::machine::Machine;

use crate::Result;

/// Minimum percent of the samples in which a GPU was throttled for a suggestion.
const MIN_SHARE_PERCENT: f64 = 5.0;
/// Minimum number of these samples, one per second: fewer say nothing about a run.
const MIN_SAMPLES: u64 = 10;
/// Maximum number of GPUs with a suggestion of their own.
const MAX_LINES: usize = 3;
/// Maximum seconds between two samples; a run that was suspended was not throttled meanwhile.
const MAX_SAMPLE_S: f64 = 2.0;
/// The remedy against heat.
const COOLING: &str = "improve its cooling (airflow, dust, the temperature of the room)";
/// The remedy against a limit of power.
const POWER_LIMIT: &str = "raise its power limit as root with `nvidia-smi -pl WATTS`, if `nvidia-smi -q -d \
                           POWER` shows that it can be higher, and check its power supply";

/// The use of a GPU in the samples of `usage.csv`. Values that the system does not provide are `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GpuUse {
    /// The worker that computed on it; `None` for a run without other workers.
    pub worker: Option<u64>,
    /// Mean busy time, in percent.
    pub busy_percent: Option<f64>,
    /// Peak memory in use, including that of other programs.
    pub peak_memory_bytes: Option<u64>,
    /// Mean power draw.
    pub watts: Option<f64>,
    /// Mean clock in MHz.
    pub mhz: Option<f64>,
    /// The highest clock in MHz.
    pub max_mhz: Option<u64>,
    /// The highest temperature in degrees Celsius.
    pub max_celsius: Option<u64>,
    /// How long it was throttled; `None` if that is unknown.
    pub throttled: Option<ThrottledTime>,
}

/// How long heat or power throttled a GPU. Percentages are those of the samples in which it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ThrottledTime {
    /// The number of samples in which it was throttled.
    pub samples: u64,
    /// Their seconds.
    pub seconds: f64,
    /// Their percentage.
    pub percent: f64,
    /// The percentage of samples in which heat throttled it.
    pub heat_percent: f64,
    /// The percentage of samples in which power throttled it.
    pub power_percent: f64,
    /// The mean clock in MHz while it was throttled.
    pub mhz: Option<f64>,
}

/// The sums over the samples of one GPU.
#[derive(Debug, Default)]
pub(super) struct GpuSums {
    busy_percent: Mean,
    watts: Mean,
    mhz: Mean,
    throttled_mhz: Mean,
    peak_memory_bytes: Option<u64>,
    max_mhz: Option<u64>,
    max_celsius: Option<u64>,
    /// The number of samples in which it is known whether the GPU was throttled.
    known: u64,
    /// The numbers of samples in which it was: for any reason, by heat, by power.
    throttled: [u64; 3],
    throttled_s: f64,
    /// The time of the last sample.
    elapsed_s: f64,
}

impl GpuSums {
    /// Adds a sample.
    pub fn add(&mut self, row: &UsageRow) {
        let seconds = row.elapsed_s - self.elapsed_s;
        self.elapsed_s = row.elapsed_s;
        let mhz = row.gpu_mhz.map(|mhz| mhz as f64);
        self.busy_percent.add(row.gpu_percent);
        self.watts.add(row.gpu_watts);
        self.mhz.add(mhz);
        self.peak_memory_bytes = self.peak_memory_bytes.max(row.gpu_memory_bytes);
        self.max_mhz = self.max_mhz.max(row.gpu_mhz);
        self.max_celsius = self.max_celsius.max(row.gpu_celsius);
        let Some(throttling) = row.gpu_throttling else { return };
        self.known += 1;
        let reasons = [throttling.is_throttled(), throttling.heat, throttling.power];
        for (count, is_throttled) in self.throttled.iter_mut().zip(reasons) {
            *count += u64::from(is_throttled);
        }
        if throttling.is_throttled() {
            self.throttled_mhz.add(mhz);
            self.throttled_s += if seconds.is_finite() { seconds.clamp(0.0, MAX_SAMPLE_S) } else { 0.0 };
        }
    }

    /// The use of the GPU of `worker`; `None` if nothing of a GPU is known.
    pub fn finish(&self, worker: Option<u64>) -> Option<GpuUse> {
        let percent = |count: u64| 100.0 * count as f64 / self.known as f64;
        let [samples, heat, power] = self.throttled;
        let gpu = GpuUse {
            worker: None,
            busy_percent: self.busy_percent.mean(),
            peak_memory_bytes: self.peak_memory_bytes,
            watts: self.watts.mean(),
            mhz: self.mhz.mean(),
            max_mhz: self.max_mhz,
            max_celsius: self.max_celsius,
            throttled: (self.known > 0).then(|| ThrottledTime {
                samples,
                seconds: self.throttled_s,
                percent: percent(samples),
                heat_percent: percent(heat),
                power_percent: percent(power),
                mhz: self.throttled_mhz.mean(),
            }),
        };
        (gpu != GpuUse::default()).then_some(GpuUse { worker, ..gpu })
    }
}

/// The GPUs of a run, by worker. What cannot be read is passed to `missing`, with the reason.
pub fn read_gpus(run: &RunDir, missing: &mut dyn FnMut(&str, String)) -> Vec<GpuUse> {
    let first = read_sums(run).unwrap_or_else(|error| {
        missing("utilisation of the machine", error.to_string());
        GpuSums::default()
    });
    with_workers(&first, run, missing)
}

/// The GPU of the first worker with these sums, and those of the others, which have folders of their own.
pub(super) fn with_workers(
    first: &GpuSums,
    run: &RunDir,
    missing: &mut dyn FnMut(&str, String),
) -> Vec<GpuUse> {
    let others = run.workers();
    let first = first.finish((!others.is_empty()).then_some(0));
    let mut gpus: Vec<GpuUse> = first.into_iter().collect();
    for (worker, folder) in others {
        match read_sums(&folder) {
            Ok(sums) => gpus.extend(sums.finish(Some(worker))),
            Err(error) => missing(&format!("utilisation of worker {worker}"), error.to_string()),
        }
    }
    gpus
}

/// The sums over the samples of a run or a worker; nothing without the file.
fn read_sums(folder: &RunDir) -> Result<GpuSums> {
    let mut sums = GpuSums::default();
    let path = folder.usage();
    if path.exists() {
        for row in CsvReader::<UsageRow>::open(&path)? {
            sums.add(&row?);
        }
    }
    Ok(sums)
}

/// A suggestion for a GPU that was throttled.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuSuggestion {
    /// The maximum gain in percent of the time.
    pub gain_percent: f64,
    /// The sentence.
    pub line: String,
}

/// Suggestions for GPUs that were throttled for more than a small share of the time, the most promising
/// first. `machine` is that of the first worker, and `run` the run directory.
#[must_use]
pub fn gpu_suggestions(gpus: &[GpuUse], machine: Option<&Machine>, run: &Path) -> Vec<GpuSuggestion> {
    let mut found: Vec<GpuSuggestion> =
        gpus.iter().filter_map(|gpu| suggestion(gpu, machine.filter(|_| is_first(gpu)))).collect();
    found.sort_by(|a, b| b.gain_percent.total_cmp(&a.gain_percent));
    let rest = found.split_off(found.len().min(MAX_LINES));
    if let Some(best) = rest.first() {
        let others = match rest.len() {
            1 => "The GPU of another worker was".to_owned(),
            count => format!("The GPUs of {count} other workers were"),
        };
        found.push(GpuSuggestion {
            gain_percent: best.gain_percent,
            line: format!("{others} throttled too: `stratus report {}` lists them.", shell_path(run)),
        });
    }
    found
}

/// Returns whether a GPU is that of the first worker, whose machine is recorded.
fn is_first(gpu: &GpuUse) -> bool {
    gpu.worker.is_none_or(|worker| worker == 0)
}

fn suggestion(gpu: &GpuUse, machine: Option<&Machine>) -> Option<GpuSuggestion> {
    let throttled = gpu
        .throttled
        .filter(|throttled| throttled.percent >= MIN_SHARE_PERCENT && throttled.samples >= MIN_SAMPLES)?;
    let ThrottledTime { seconds, percent, heat_percent, power_percent, mhz, .. } = throttled;
    // A reason for a few of the samples is not worth a remedy.
    let matters = |share: f64| share >= MIN_SHARE_PERCENT || 2.0 * share >= percent;
    let (reasons, parts, remedy) = match (matters(heat_percent), matters(power_percent)) {
        (true, false) => ("heat", String::new(), COOLING.to_owned()),
        (false, _) => ("power", String::new(), POWER_LIMIT.to_owned()),
        (true, true) => (
            "heat and power",
            format!(" (heat {heat_percent:.0} %, power {power_percent:.0} %)"),
            format!("{COOLING}; {POWER_LIMIT}"),
        ),
    };
    let clocks = mhz.zip(gpu.max_mhz);
    let clock = clocks.map_or(String::new(), |(mhz, highest)| match mhz.round() < highest as f64 {
        true => format!(", at {mhz:.0} MHz on average instead of up to {highest} MHz"),
        false => format!(", at {highest} MHz"),
    });
    let worker = gpu.worker.map_or(String::new(), |worker| format!(" of worker {worker}"));
    let name = machine.and_then(device_name).map_or(String::new(), |name| format!(" ({name})"));
    let slowdown = clocks.map_or(1.0, |(mhz, highest)| 1.0 - mhz / (highest as f64).max(1.0));
    Some(GpuSuggestion {
        gain_percent: percent * slowdown.max(0.0),
        line: format!(
            "The GPU{worker}{name} was throttled by {reasons} for {}, {percent:.0} % of the \
             time{parts}{clock}: {remedy}.",
            duration(seconds)
        ),
    })
}

/// The name of a machine's devices, if they have only one: the one that was used is not recorded.
fn device_name(machine: &Machine) -> Option<&str> {
    let (first, others) = machine.devices.split_first()?;
    let name = first.name.as_str();
    (!name.is_empty() && others.iter().all(|other| other.name == name)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_base::Throttling;
    use stratus_run::csv::{CsvWriter, Task};
    use stratus_run::machine::Device;

    fn row(elapsed_s: f64, reasons: &str, mhz: u64) -> UsageRow {
        UsageRow {
            elapsed_s,
            gpu_percent: Some(90.0),
            gpu_mhz: Some(mhz),
            gpu_celsius: Some(80),
            gpu_throttling: reasons.parse::<Throttling>().ok(),
            ..UsageRow::default()
        }
    }

    /// Samples of a GPU, one per second: reasons, clock and number.
    fn samples(parts: &[(&str, u64, u64)]) -> Vec<UsageRow> {
        let each = parts.iter().flat_map(|&(reasons, mhz, count)| (0..count).map(move |_| (reasons, mhz)));
        each.enumerate().map(|(second, (reasons, mhz))| row(1.0 + second as f64, reasons, mhz)).collect()
    }

    fn gpu(worker: Option<u64>, parts: &[(&str, u64, u64)]) -> GpuUse {
        let mut sums = GpuSums::default();
        samples(parts).iter().for_each(|row| sums.add(row));
        sums.finish(worker).unwrap()
    }

    fn write(folder: &RunDir, rows: &[UsageRow]) {
        let mut writer = CsvWriter::open(&folder.usage(), Task::default()).unwrap();
        rows.iter().for_each(|row| writer.append(row).unwrap());
        writer.flush().unwrap();
    }

    fn lines(gpus: &[GpuUse], machine: Option<&Machine>) -> Vec<String> {
        let run = Path::new("runs/digits/1");
        gpu_suggestions(gpus, machine, run).into_iter().map(|suggestion| suggestion.line).collect()
    }

    #[test]
    fn sums_are_those_of_the_samples() {
        let found =
            gpu(None, &[("no", 1980, 60), ("heat", 1400, 30), ("heat+power", 1100, 10), ("", 500, 1)]);
        let throttled = found.throttled.unwrap();
        assert_eq!((throttled.samples, throttled.percent), (40, 40.0));
        assert_eq!((throttled.heat_percent, throttled.power_percent), (40.0, 10.0));
        assert_eq!((throttled.seconds, throttled.mhz), (40.0, Some((30.0 * 1400.0 + 11_000.0) / 40.0)));
        assert_eq!(
            (found.max_mhz, found.max_celsius, found.busy_percent),
            (Some(1980), Some(80), Some(90.0))
        );
        // A file of an earlier version has no clock, and a CPU no GPU.
        let mut sums = GpuSums::default();
        sums.add(&UsageRow { elapsed_s: 1.0, gpu_watts: Some(300.0), ..UsageRow::default() });
        let old = sums.finish(None).unwrap();
        assert_eq!((old.watts, old.throttled, old.mhz, old.busy_percent), (Some(300.0), None, None, None));
        let mut sums = GpuSums::default();
        sums.add(&UsageRow { elapsed_s: 1.0, cpu_percent: Some(50.0), ..UsageRow::default() });
        assert_eq!(sums.finish(Some(1)), None);
    }

    #[test]
    fn pauses_and_invalid_times_are_not_time_throttled() {
        let mut sums = GpuSums::default();
        for elapsed_s in [1.0, 2.0, 3000.0, f64::NAN, f64::INFINITY, -1e300, 1.0] {
            sums.add(&row(elapsed_s, "power", u64::MAX));
        }
        let found = sums.finish(None).unwrap();
        let throttled = found.throttled.unwrap();
        assert!((2.0..=14.0).contains(&throttled.seconds), "{throttled:?}");
        assert_eq!(throttled.samples, 7);
    }

    #[test]
    fn suggestion_names_gpu_reason_time_and_clock() {
        let device = |name: &str| Device { name: name.to_owned(), ..Device::default() };
        let machine = Machine { devices: vec![device("NVIDIA X"), device("NVIDIA X")], ..Machine::default() };
        let hot = [gpu(None, &[("no", 1980, 600), ("heat", 1400, 400)])];
        assert_eq!(
            lines(&hot, Some(&machine)),
            ["The GPU (NVIDIA X) was throttled by heat for 6 min 40 s, 40 % of the time, at 1400 MHz on \
              average instead of up to 1980 MHz: improve its cooling (airflow, dust, the temperature of the \
              room)."]
        );
        // The devices differ, and which one was used is not recorded.
        let machine = Machine { devices: vec![device("NVIDIA X"), device("NVIDIA Y")], ..machine };
        assert!(lines(&hot, Some(&machine))[0].starts_with("The GPU was throttled by heat for"));
        let capped = [gpu(Some(3), &[("no", 1980, 80), ("power", 1700, 20)])];
        let found = lines(&capped, Some(&machine));
        assert!(
            found[0].starts_with("The GPU of worker 3 was throttled by power for 20 s, 20 % of"),
            "{found:?}"
        );
        assert!(found[0].contains("nvidia-smi -pl WATTS") && !found[0].contains("cooling"), "{found:?}");
        let both = [gpu(None, &[("no", 1980, 50), ("power", 1700, 20), ("heat", 900, 30)])];
        let found = lines(&both, None);
        assert!(found[0].contains("by heat and power for 50 s, 50 % of the time (heat 30 %, power 20 %)"));
        // The whole time, always at the same clock.
        let found = lines(&[gpu(None, &[("power", 1700, 100)])], None);
        assert!(found[0].contains("for 1 min 40 s, 100 % of the time, at 1700 MHz: raise"), "{found:?}");
        // A second of heat is no reason to improve the cooling.
        let found = lines(&[gpu(None, &[("power", 1700, 99), ("heat", 900, 1)])], None);
        assert!(found[0].contains("by power for") && !found[0].contains("cooling"), "{found:?}");
    }

    #[test]
    fn gpus_that_were_hardly_throttled_have_no_suggestion() {
        assert!(lines(&[gpu(None, &[("no", 1980, 960), ("heat", 1400, 40)])], None).is_empty(), "4 %");
        assert!(lines(&[gpu(None, &[("heat", 1400, 9)])], None).is_empty(), "nine seconds");
        assert!(lines(&[gpu(None, &[("", 1400, 900)])], None).is_empty(), "unknown");
        assert!(lines(&[], None).is_empty());
    }

    #[test]
    fn worst_gpus_are_first_and_the_others_counted() {
        let slow = |worker: u64, mhz: u64| gpu(Some(worker), &[("no", 2000, 50), ("heat", mhz, 50)]);
        let all: Vec<GpuUse> = (0..6).map(|worker| slow(worker, 1900 - 100 * worker)).collect();
        let found = lines(&all, None);
        assert_eq!(found.len(), 4);
        assert!(found[0].contains("worker 5 ") && found[2].contains("worker 3 "), "{found:?}");
        assert!(found[3].starts_with(
            "The GPUs of 3 other workers were throttled too: `stratus report runs/digits/1` lists"
        ));
        assert!(lines(&all[..4], None)[3].starts_with("The GPU of another worker was throttled too"));
    }

    #[test]
    fn each_worker_has_its_gpu() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "digits").unwrap();
        run.prepare().unwrap();
        let mut problems = Vec::new();
        assert_eq!(read_gpus(&run, &mut |what, _| problems.push(what.to_owned())), []);
        write(&run, &samples(&[("no", 1980, 20)]));
        let found = read_gpus(&run, &mut |what, _| problems.push(what.to_owned()));
        assert_eq!(found.iter().map(|gpu| gpu.worker).collect::<Vec<_>>(), [None]);
        write(&run.worker(1).unwrap(), &samples(&[("power", 1700, 20)]));
        // A worker that computes on a CPU, and one whose file is damaged.
        let on_cpu = UsageRow { elapsed_s: 1.0, cpu_percent: Some(50.0), ..UsageRow::default() };
        write(&run.worker(2).unwrap(), &[on_cpu]);
        std::fs::write(run.worker(10).unwrap().usage(), "elapsed_s,<script>\n1,2\n").unwrap();
        let found = read_gpus(&run, &mut |what, _| problems.push(what.to_owned()));
        assert_eq!(found.iter().map(|gpu| gpu.worker).collect::<Vec<_>>(), [Some(0), Some(1)]);
        assert_eq!(found[1].throttled.unwrap().power_percent, 100.0);
        assert_eq!(problems, ["utilisation of worker 10"]);
    }
}
