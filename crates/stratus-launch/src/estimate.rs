//! The estimate of a launch: the time, price and memory of all its runs on a target.

use crate::{Resources, TargetKind, TargetSettings};
use stratus_base::text::{bytes, duration};

/// The forecast of one run, in plain numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct RunForecast {
    /// The name of the machine.
    pub machine: String,
    /// Seconds of a step.
    pub step_s: f64,
    /// Seconds of the run: lower bound, expected, upper bound; `None` if unknown.
    pub seconds: [Option<f64>; 3],
    /// The price, expected and upper bound.
    pub price: Option<[f64; 2]>,
    /// The currency of the price.
    pub currency: Option<String>,
    /// Bytes on the device.
    pub device_bytes: u64,
    /// True if it fits in the memory of the device, and of the host if that is known.
    pub fits: Option<bool>,
    /// Remaining bytes of memory on the device; negative if memory is missing.
    pub spare_bytes: Option<i64>,
    /// The largest batch that fits in the memory of the device.
    pub largest_batch: Option<u64>,
    /// Loader threads, which need a CPU each if the device is a GPU.
    pub loader_threads: u64,
    /// The resources to request, except CPUs.
    pub requested: Resources,
}

/// The estimate of a launch.
#[derive(Clone, Debug)]
pub struct LaunchEstimate<'a> {
    settings: &'a TargetSettings,
    /// A forecast per experiment.
    rows: &'a [RunForecast],
    /// The number of runs of each experiment.
    repetitions: u64,
}

impl<'a> LaunchEstimate<'a> {
    /// The estimate of a launch of experiments with these forecasts, each with `repetitions` runs.
    #[must_use]
    pub fn new(settings: &'a TargetSettings, rows: &'a [RunForecast], repetitions: u64) -> Self {
        Self { settings, rows, repetitions }
    }

    fn runs(&self) -> u64 {
        self.rows.len() as u64 * self.repetitions
    }

    /// The number of runs that are trained at the same time.
    fn concurrent_runs(&self) -> u64 {
        let runs = self.runs();
        match &self.settings.kind {
            // A queue runs them in parallel.
            TargetKind::Slurm(_) | TargetKind::Sky(_) => runs,
            TargetKind::Hosts(hosts) => (hosts.hosts.len() as u64).clamp(1, runs),
            TargetKind::Local | TargetKind::Ssh(_) => 1,
        }
    }

    /// Seconds of all runs: lower bound, expected, upper bound; `None` if the number of steps is unknown.
    fn seconds(&self) -> Option<[f64; 3]> {
        Some([self.total_seconds(0)?, self.total_seconds(1)?, self.total_seconds(2)?])
    }

    /// A bound of the seconds of all runs.
    fn total_seconds(&self, bound: usize) -> Option<f64> {
        let times = self.rows.iter().map(|row| row.seconds[bound]).collect::<Option<Vec<f64>>>()?;
        let longest = times.iter().copied().fold(0.0, f64::max);
        let mean = times.iter().sum::<f64>() / times.len().max(1) as f64;
        // Runs are trained in rounds of concurrent runs.
        let rounds = self.runs().div_ceil(self.concurrent_runs().max(1));
        Some(if rounds == 1 { longest } else { (mean * rounds as f64).max(longest) })
    }

    /// The price of all runs, expected and upper bound, and its currency.
    fn price(&self) -> Option<([f64; 2], &str)> {
        let prices = self.rows.iter().map(|row| row.price).collect::<Option<Vec<[f64; 2]>>>()?;
        let currency = self.rows.first()?.currency.as_deref()?;
        let repetitions = self.repetitions as f64;
        let sum =
            |bound: usize| prices.iter().map(|price| price[bound] * repetitions).fold(0.0, |a, b| a + b);
        Some(([sum(0), sum(1)], currency))
    }

    /// The expected seconds of a repetition; `None` for several experiments, whose runs take different times.
    #[must_use]
    pub fn expected_s(&self) -> Option<f64> {
        if let [row] = self.rows { row.seconds[1] } else { None }
    }

    /// The resources to request for a repetition of any experiment.
    #[must_use]
    pub fn resources(&self) -> Resources {
        let on_gpu = match &self.settings.kind {
            TargetKind::Slurm(slurm) => slurm.has_gpu(),
            TargetKind::Sky(sky) => sky.gpus.is_some(),
            TargetKind::Local | TargetKind::Ssh(_) | TargetKind::Hosts(_) => false,
        };
        self.rows.iter().fold(Resources::default(), |resources, row| Resources {
            seconds: resources.seconds.max(row.requested.seconds),
            memory_bytes: resources.memory_bytes.max(row.requested.memory_bytes),
            // With a GPU, one CPU runs the program and the others decode images. Without, the number of CPUs
            // is left to the cluster.
            cpus: resources.cpus.max(on_gpu.then_some(row.loader_threads + 1)),
        })
    }

    /// The estimate in one line.
    #[must_use]
    pub fn describe(&self) -> String {
        let name = self.rows.first().map_or("", |row| row.machine.as_str());
        let mut text = format!("{}: forecast for {name}:", self.settings.name);
        match (self.seconds(), self.rows) {
            (Some([low, expected, high]), _) => {
                text += &format!(" {} ({} to {})", duration(expected), duration(low), duration(high));
            }
            (None, [row]) => {
                text += &format!(" {} per step (number of steps unknown)", duration(row.step_s));
            }
            (None, _) => text += " (number of steps unknown)",
        }
        let up_to = if self.rows.len() > 1 { "up to " } else { "" };
        let device_bytes = self.rows.iter().map(|row| row.device_bytes).max().unwrap_or(0);
        text += &format!(", {up_to}{} of the device's memory", bytes(device_bytes));
        if let Some(([price, high], currency)) = self.price() {
            text += &format!(", {price:.2} {currency} (up to {high:.2})");
        }
        let runs = self.runs();
        if runs > 1 {
            let how = match self.concurrent_runs() {
                1 => "one after the other".to_owned(),
                count if count == runs => "at the same time".to_owned(),
                count => format!("{count} at a time"),
            };
            let unit = if self.rows.len() > 1 { "runs" } else { "repetitions" };
            text += &format!("; {runs} {unit}, {how}");
        }
        text
    }

    /// The reason that the launch cannot fit; `None` if it may fit. `left_s` is the remaining time of the
    /// lease in seconds.
    #[must_use]
    pub fn shortage(&self, left_s: Option<f64>) -> Option<String> {
        if let Some(row) = self.rows.iter().find(|row| row.fits == Some(false)) {
            let missing = row.spare_bytes.filter(|spare| *spare < 0).map_or(String::new(), |spare| {
                format!(", {} more than available", bytes(spare.unsigned_abs()))
            });
            let largest = row.largest_batch.filter(|batch| *batch > 0);
            let largest = largest.map_or(String::new(), |batch| format!("; the largest batch is {batch}"));
            let needed = bytes(row.device_bytes);
            return Some(format!(
                "does not fit the memory of {}: needs {needed}{missing}{largest}",
                row.machine
            ));
        }
        let [low, ..] = self.seconds()?;
        let left = left_s.filter(|left| low > *left)?;
        Some(format!("needs at least {}, and --until leaves {}", duration(low), duration(left)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostsSettings, SshSettings};
    use std::collections::BTreeMap;

    fn target(kind: TargetKind) -> TargetSettings {
        TargetSettings {
            name: "lab".to_owned(),
            kind,
            folder: "~/.stratus".to_owned(),
            environment: BTreeMap::new(),
            machine: Some("v100".to_owned()),
            notify: None,
            release: None,
        }
    }

    fn forecast(seconds: [f64; 3]) -> RunForecast {
        RunForecast {
            machine: "v100".to_owned(),
            step_s: 0.1,
            seconds: seconds.map(Some),
            price: Some([2.0, 3.0]),
            currency: Some("USD".to_owned()),
            device_bytes: 1 << 30,
            fits: Some(true),
            spare_bytes: Some(1 << 30),
            largest_batch: Some(64),
            loader_threads: 3,
            requested: Resources { seconds: Some(900), memory_bytes: Some(1 << 30), cpus: None },
        }
    }

    #[test]
    fn runs_beyond_the_number_of_hosts_are_trained_in_rounds() {
        let host = |host: &str| SshSettings { host: host.to_owned(), user: None, port: None, config: None };
        let hosts = HostsSettings { hosts: vec![host("a"), host("b")], lost_after_s: 300 };
        let settings = target(TargetKind::Hosts(hosts));
        let rows = [forecast([60.0, 120.0, 180.0])];
        let estimate = LaunchEstimate::new(&settings, &rows, 3);
        assert_eq!(
            estimate.describe(),
            "lab: forecast for v100: 4 min 00 s (2 min 00 s to 6 min 00 s), 1 GiB of the device's memory, \
             6.00 USD (up to 9.00); 3 repetitions, 2 at a time"
        );
        assert_eq!(estimate.expected_s(), Some(120.0));
        assert_eq!(estimate.resources(), rows[0].requested);
        assert_eq!(estimate.shortage(Some(121.0)), None);
        let shortage = estimate.shortage(Some(100.0)).unwrap();
        assert_eq!(shortage, "needs at least 2 min 00 s, and --until leaves 1 min 40 s");
    }

    #[test]
    fn launch_without_memory_or_known_length_says_so() {
        let settings = target(TargetKind::Local);
        let short = RunForecast {
            seconds: [None; 3],
            price: None,
            fits: Some(false),
            spare_bytes: Some(-(1 << 20)),
            ..forecast([1.0; 3])
        };
        let rows = [short, forecast([1.0; 3])];
        let estimate = LaunchEstimate::new(&settings, &rows, 1);
        assert_eq!(
            estimate.describe(),
            "lab: forecast for v100: (number of steps unknown), up to 1 GiB of the device's memory; 2 runs, \
             one after the other"
        );
        assert_eq!(
            estimate.shortage(None).unwrap(),
            "does not fit the memory of v100: needs 1 GiB, 1 MiB more than available; the largest batch is 64"
        );
        assert_eq!(estimate.expected_s(), None);
    }
}
