//! The energy of the processor's packages, as counted by RAPL (Intel and AMD) and exported by Linux.
//!
//! Source: Linux, Documentation/power/powercap/powercap.rst. A folder `intel-rapl:N` of `/sys/class/powercap`
//! is a power zone; `name` is `package-N` for a package, and `energy_uj` counts its microjoules up to
//! `max_energy_range_uj`. Cores and memory are zones within a package (`intel-rapl:N:M`). Since
//! CVE-2020-8694, only root may read the counters.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use serde::Serialize;

use super::process::content;

/// The folder of power zones.
const POWERCAP: &str = "/sys/class/powercap";
/// Maximum number of bytes of a counter's text.
const MAX_COUNTER_BYTES: usize = 32;

/// Access to the energy counters of the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EnergyAccess {
    /// All packages can be read.
    Readable,
    /// There are counters, but this user may not read them.
    Denied,
    /// The system has no counters, as in most virtual machines and containers.
    Absent,
}

/// Reads the energy of all packages of this machine, which includes that of other programs. Reading does not
/// allocate.
#[derive(Debug)]
pub struct PackageEnergyMeter {
    packages: Vec<Package>,
    access: EnergyAccess,
    microjoules: u64,
}

/// The counter of a package.
#[derive(Debug)]
struct Package {
    counter: File,
    /// The value after which the counter restarts at 0.
    max: u64,
    before: u64,
}

impl PackageEnergyMeter {
    /// Opens the counters of this machine.
    #[must_use]
    pub fn open() -> Self {
        Self::under(Path::new(POWERCAP))
    }

    /// Opens the counters of the power zones in a folder.
    #[must_use]
    pub fn under(folder: &Path) -> Self {
        let mut packages = Vec::new();
        let mut access = EnergyAccess::Absent;
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let zone = entry.path();
            // A processor may be listed again as `intel-rapl-mmio:0`, with the same energy.
            let is_package = entry.file_name().to_str().is_some_and(is_top_level_zone)
                && fs::read_to_string(zone.join("name")).is_ok_and(|name| name.starts_with("package"));
            if !is_package {
                continue;
            }
            match Package::open(&zone) {
                Ok(package) => packages.push(package),
                Err(_) => access = EnergyAccess::Denied,
            }
        }
        if access == EnergyAccess::Denied {
            // The energy of some packages would be mistaken for that of all.
            packages.clear();
        } else if !packages.is_empty() {
            access = EnergyAccess::Readable;
        }
        Self { packages, access, microjoules: 0 }
    }

    /// The access to the counters.
    #[must_use]
    pub fn access(&self) -> EnergyAccess {
        self.access
    }

    /// Joules of all packages since the meter was opened; `None` if the counters cannot be read. It must be
    /// called within `max_energy_range_uj` of the last call, typically several minutes.
    pub fn joules(&mut self) -> Option<f64> {
        if self.access != EnergyAccess::Readable {
            return None;
        }
        for package in &mut self.packages {
            // If a reading fails, the next one has its energy too.
            self.microjoules = self.microjoules.saturating_add(package.microjoules().unwrap_or(0));
        }
        Some(self.microjoules as f64 * 1e-6)
    }
}

impl Package {
    fn open(zone: &Path) -> io::Result<Self> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let max = fs::read_to_string(zone.join("max_energy_range_uj"))?;
        let max = max.trim().parse().map_err(|_| invalid())?;
        let mut counter = File::open(zone.join("energy_uj"))?;
        let before = read(&mut counter).ok_or_else(invalid)?;
        Ok(Self { counter, max, before })
    }

    /// Microjoules since the last call.
    fn microjoules(&mut self) -> Option<u64> {
        let now = read(&mut self.counter)?;
        let before = std::mem::replace(&mut self.before, now);
        Some(if now >= before { now - before } else { self.max.saturating_sub(before).saturating_add(now) })
    }
}

/// Returns whether the name is that of a zone which is in no other: `intel-rapl:0`.
fn is_top_level_zone(name: &str) -> bool {
    name.strip_prefix("intel-rapl:").is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

fn read(counter: &mut File) -> Option<u64> {
    let mut text = [0; MAX_COUNTER_BYTES];
    let text = content(Some(counter), &mut text)?;
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Powercap(tempfile::TempDir);

    impl Powercap {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn zone(&self, folder: &str, name: &str, microjoules: u64) -> &Self {
            let zone = self.0.path().join(folder);
            fs::create_dir_all(&zone).unwrap();
            fs::write(zone.join("name"), format!("{name}\n")).unwrap();
            fs::write(zone.join("max_energy_range_uj"), "1000000000\n").unwrap();
            self.put(folder, microjoules)
        }

        fn put(&self, folder: &str, microjoules: u64) -> &Self {
            fs::write(self.0.path().join(folder).join("energy_uj"), format!("{microjoules}\n")).unwrap();
            self
        }

        fn meter(&self) -> PackageEnergyMeter {
            PackageEnergyMeter::under(self.0.path())
        }
    }

    #[test]
    fn energy_is_summed_over_packages_and_not_over_their_parts() {
        let root = Powercap::new();
        root.zone("intel-rapl:0", "package-0", 5_000_000).zone("intel-rapl:1", "package-1", 7_000_000);
        // Parts of a package, the package again, the whole system, and the driver.
        root.zone("intel-rapl:0:0", "core", 0).zone("intel-rapl-mmio:0", "package-0", 0);
        root.zone("intel-rapl:2", "psys", 0);
        fs::create_dir(root.0.path().join("intel-rapl")).unwrap();
        let mut meter = root.meter();
        assert_eq!((meter.access(), meter.joules()), (EnergyAccess::Readable, Some(0.0)));
        for zone in ["intel-rapl:0:0", "intel-rapl-mmio:0", "intel-rapl:2"] {
            root.put(zone, 9_000_000);
        }
        root.put("intel-rapl:0", 6_500_000).put("intel-rapl:1", 7_250_000);
        assert_eq!(meter.joules(), Some(1.75));
        assert_eq!(meter.joules(), Some(1.75), "the counters have not changed");
    }

    #[test]
    fn counter_restarts_after_its_maximum() {
        let root = Powercap::new();
        let mut meter = root.zone("intel-rapl:0", "package-0", 999_000_000).meter();
        root.put("intel-rapl:0", 2_000_000);
        assert_eq!(meter.joules(), Some(3.0));
        root.put("intel-rapl:0", 1_000_000);
        assert_eq!(meter.joules(), Some(3.0 + 999.0));
    }

    #[test]
    fn failed_reading_is_made_up_by_the_next_one() {
        let root = Powercap::new();
        let mut meter = root.zone("intel-rapl:0", "package-0", 0).meter();
        fs::write(root.0.path().join("intel-rapl:0/energy_uj"), "none\n").unwrap();
        assert_eq!(meter.joules(), Some(0.0));
        root.put("intel-rapl:0", 4_000_000);
        assert_eq!(meter.joules(), Some(4.0));
    }

    #[test]
    fn energy_is_unknown_unless_every_package_can_be_read() {
        let root = Powercap::new();
        let mut absent = root.meter();
        assert_eq!((absent.access(), absent.joules()), (EnergyAccess::Absent, None));
        let mut absent = PackageEnergyMeter::under(&root.0.path().join("none"));
        assert_eq!((absent.access(), absent.joules()), (EnergyAccess::Absent, None));
        root.zone("intel-rapl:0", "package-0", 0).zone("intel-rapl:1", "package-1", 0);
        // Root may read every file, so that permissions cannot be tested.
        fs::remove_file(root.0.path().join("intel-rapl:1/energy_uj")).unwrap();
        let mut denied = root.meter();
        assert_eq!((denied.access(), denied.joules()), (EnergyAccess::Denied, None));
    }
}
