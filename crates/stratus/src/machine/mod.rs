//! What this machine is, beyond what stands in a run's `machine.json`: named instruction sets, free memory,
//! measured peaks.
//!
//! On Linux the facts come from `/proc` and `/sys`; elsewhere what cannot be known stays empty.

pub mod cpu;
pub mod peaks;

use serde::Serialize;
use std::fs;
use std::path::Path;
use stratus_run::machine::{Library, Machine};

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Survey {
    /// As in a run's `machine.json`.
    #[serde(flatten)]
    pub machine: Machine,
    /// Instruction sets that kernels care about, weakest first.
    pub instruction_sets: Vec<&'static str>,
    /// Bytes of memory that are free or can be freed.
    pub ram_available_bytes: Option<u64>,
    /// Why this process may not use all of the processor's threads, where it may not.
    pub threads_limited_by: Option<String>,
}

/// A library that Stratus looked for at run time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LibraryReport {
    /// What it is called.
    pub name: String,
    /// Its version, where it was found.
    pub version: Option<String>,
    /// Where it was found.
    pub path: Option<String>,
    /// What else to know: threading, or what to install where it was not found.
    pub note: Option<String>,
}

impl Survey {
    /// Looks at this machine.
    pub fn of_this_machine() -> Self {
        Self::new(Machine::probe(), Path::new("/"))
    }

    /// Completes `machine` from the files under `root`.
    fn new(machine: Machine, root: &Path) -> Self {
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
        Survey {
            threads_limited_by: limit(machine.cpu.usable_threads, machine.cpu.threads, allowed_cpus(&status)),
            instruction_sets: cpu::instruction_sets(&machine.cpu.features),
            ram_available_bytes: meminfo_bytes(&meminfo, "MemAvailable"),
            machine,
        }
    }

    /// Threads that this process may use at once.
    pub fn threads(&self) -> usize {
        self.machine.cpu.usable_threads.map_or(1, |threads| threads as usize).max(1)
    }

    /// Bytes of memory that can be used now.
    pub fn usable_memory(&self) -> Option<u64> {
        [self.machine.ram_bytes, self.ram_available_bytes].into_iter().flatten().min()
    }

    /// Enters the libraries that were found.
    pub fn add_libraries(&mut self, reports: &[LibraryReport]) {
        for report in reports {
            if let (Some(version), Some(path)) = (&report.version, &report.path) {
                let library = Library { version: version.clone(), path: path.clone() };
                self.machine.libraries.insert(report.name.clone(), library);
            }
        }
    }

    /// Enters what was measured.
    pub fn add_peaks(&mut self, peaks: &peaks::Peaks) {
        let bandwidth = peaks.memory_gb_per_second.map(|rate| ("triad_gb_per_s".to_owned(), rate));
        let compute = peaks.compute.iter().map(|compute| (compute.name.clone(), compute.gflops));
        self.machine.peaks.extend(bandwidth.into_iter().chain(compute));
    }
}

/// Processors that the system lets this process run on, of `/proc/self/status`.
fn allowed_cpus(status: &str) -> Option<u32> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    list.trim().split(',').try_fold(0u32, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// What limits the threads that can be used, where there are more.
fn limit(usable: Option<u32>, threads: Option<u32>, allowed: Option<u32>) -> Option<String> {
    let (usable, threads) = (usable?, threads?);
    if usable >= threads {
        return None;
    }
    Some(match allowed {
        Some(allowed) if usable < allowed => {
            "by the share of processors of its control group (cpu.max: containers, batch systems)".to_owned()
        }
        Some(_) => "by the processors that it may run on (affinity: taskset, batch systems)".to_owned(),
        None => "by the system".to_owned(),
    })
}

fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_read() {
        let text = "MemTotal:       24684092 kB\nMemFree: 1 kB\nMemAvailable:   23949500 kB\n";
        assert_eq!(meminfo_bytes(text, "MemAvailable"), Some(23_949_500 * 1024));
        assert_eq!(meminfo_bytes(text, "Mem"), None);
        assert_eq!(meminfo_bytes("MemTotal: lots kB", "MemTotal"), None);
    }

    #[test]
    fn what_limits_the_threads_is_told() {
        let status = |list: &str| format!("Name:\tstratus\nCpus_allowed_list:\t{list}\nMems_allowed:\t1\n");
        for (list, expected) in [
            ("0", Some(1)),
            ("0-3", Some(4)),
            ("0-1,4,8-11", Some(7)),
            ("3-1", None),
            ("0-4294967295", None),
            ("", None),
            ("all", None),
        ] {
            assert_eq!(allowed_cpus(&status(list)), expected, "{list:?}");
        }
        assert_eq!(allowed_cpus("Name:\tstratus\n"), None);
        assert_eq!(limit(Some(4), Some(4), Some(4)), None);
        assert_eq!(limit(None, Some(4), Some(4)), None);
        assert!(limit(Some(1), Some(4), Some(1)).unwrap().contains("affinity"));
        assert!(limit(Some(2), Some(64), Some(64)).unwrap().contains("cpu.max"));
        assert_eq!(limit(Some(1), Some(4), None).unwrap(), "by the system");
    }

    #[test]
    fn a_machine_that_tells_nothing_is_still_a_machine() {
        let nowhere = tempfile::tempdir().unwrap();
        let survey = Survey::new(Machine::default(), nowhere.path());
        assert_eq!((survey.threads(), survey.usable_memory()), (1, None));
        assert_eq!(survey, Survey::default());
    }

    #[test]
    fn what_was_found_is_entered() {
        let report = |name: &str, version: Option<&str>| LibraryReport {
            name: name.into(),
            version: version.map(Into::into),
            path: version.map(|_| "/lib".into()),
            note: None,
        };
        let mut survey = Survey::default();
        survey.add_libraries(&[report("onednn", Some("3.2")), report("cudnn", None)]);
        assert_eq!(survey.machine.libraries.keys().collect::<Vec<_>>(), ["onednn"]);
    }
}
