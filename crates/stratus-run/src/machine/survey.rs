//! A survey of this machine: the content of `machine.json`, instruction sets, free memory.
//!
//! On Linux, the survey is read from `/proc` and `/sys`; elsewhere, unknown fields stay empty.

use super::energy::{EnergyAccess, PackageEnergyMeter};
use super::{Library, Machine, instruction_sets};
use serde::Serialize;
use std::fs;
use std::path::Path;

/// A survey of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MachineSurvey {
    /// The content of a run's `machine.json`.
    #[serde(flatten)]
    pub machine: Machine,
    /// Instruction sets that matter for kernels, weakest first.
    pub instruction_sets: Vec<&'static str>,
    /// Bytes of memory that are free or can be freed.
    pub ram_available_bytes: Option<u64>,
    /// The reason if this process may not use all hardware threads.
    pub threads_limited_by: Option<String>,
    /// The access to the energy counters of the processor; `None` if they were not looked for.
    pub cpu_energy: Option<EnergyAccess>,
}

/// A library that Stratus looked for at run time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LibraryReport {
    /// The name of the library.
    pub name: String,
    /// The version, if the library was found.
    pub version: Option<String>,
    /// The file, if the library was found.
    pub path: Option<String>,
    /// Details: threading, or the package to install if the library was not found.
    pub note: Option<String>,
}

impl MachineSurvey {
    /// Surveys this machine.
    #[must_use]
    pub fn probe() -> Self {
        let cpu_energy = Some(PackageEnergyMeter::open().access());
        Self { cpu_energy, ..Self::new(Machine::probe(), Path::new("/")) }
    }

    /// Completes `machine` from the files under `root`.
    fn new(machine: Machine, root: &Path) -> Self {
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
        MachineSurvey {
            threads_limited_by: thread_limit_reason(
                machine.cpu.usable_threads,
                machine.cpu.threads,
                allowed_cpus(&status),
            ),
            instruction_sets: instruction_sets::names(&machine.cpu.features),
            ram_available_bytes: meminfo_bytes(&meminfo, "MemAvailable"),
            machine,
            cpu_energy: None,
        }
    }

    /// The number of threads that this process may use at once.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.machine.cpu.usable_threads.map_or(1, |threads| threads as usize).max(1)
    }

    /// The bytes of memory that can be used now.
    #[must_use]
    pub fn usable_memory(&self) -> Option<u64> {
        [self.machine.ram_bytes, self.ram_available_bytes].into_iter().flatten().min()
    }

    /// Adds the libraries that were found.
    pub fn add_libraries(&mut self, reports: &[LibraryReport]) {
        for report in reports {
            if let (Some(version), Some(path)) = (&report.version, &report.path) {
                let library = Library { version: version.clone(), path: path.clone() };
                self.machine.libraries.insert(report.name.clone(), library);
            }
        }
    }
}

/// The number of CPUs that this process may run on, from `/proc/self/status`.
fn allowed_cpus(status: &str) -> Option<u32> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    list.trim().split(',').try_fold(0u32, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// The reason if fewer threads are usable than the machine has.
fn thread_limit_reason(usable: Option<u32>, threads: Option<u32>, allowed: Option<u32>) -> Option<String> {
    let (usable, threads) = (usable?, threads?);
    if usable >= threads {
        return None;
    }
    Some(match allowed {
        Some(allowed) if usable < allowed => "by the cgroup CPU quota (cpu.max)".to_owned(),
        Some(_) => "by CPU affinity (taskset, batch system)".to_owned(),
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
    fn reads_available_memory_from_meminfo() {
        let text = "MemTotal:       24684092 kB\nMemFree: 1 kB\nMemAvailable:   23949500 kB\n";
        assert_eq!(meminfo_bytes(text, "MemAvailable"), Some(23_949_500 * 1024));
        assert_eq!(meminfo_bytes(text, "Mem"), None);
        assert_eq!(meminfo_bytes("MemTotal: lots kB", "MemTotal"), None);
    }

    #[test]
    fn explains_why_fewer_threads_are_usable() {
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
        assert_eq!(thread_limit_reason(Some(4), Some(4), Some(4)), None);
        assert_eq!(thread_limit_reason(None, Some(4), Some(4)), None);
        assert!(thread_limit_reason(Some(1), Some(4), Some(1)).unwrap().contains("affinity"));
        assert!(thread_limit_reason(Some(2), Some(64), Some(64)).unwrap().contains("cpu.max"));
        assert_eq!(thread_limit_reason(Some(1), Some(4), None).unwrap(), "by the system");
    }

    #[test]
    fn survey_of_an_unknown_machine_is_empty() {
        let nowhere = tempfile::tempdir().unwrap();
        let survey = MachineSurvey::new(Machine::default(), nowhere.path());
        assert_eq!((survey.threads(), survey.usable_memory()), (1, None));
        assert_eq!(survey, MachineSurvey::default());
    }

    #[test]
    fn only_libraries_that_were_found_are_added() {
        let report = |name: &str, version: Option<&str>| LibraryReport {
            name: name.into(),
            version: version.map(Into::into),
            path: version.map(|_| "/lib".into()),
            note: None,
        };
        let mut survey = MachineSurvey::default();
        survey.add_libraries(&[report("onednn", Some("3.2")), report("cudnn", None)]);
        assert_eq!(survey.machine.libraries.keys().collect::<Vec<_>>(), ["onednn"]);
    }
}
