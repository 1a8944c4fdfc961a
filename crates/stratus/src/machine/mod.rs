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
        Survey {
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
