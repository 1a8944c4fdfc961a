//! `machine.json`: the machine of a run; and the memory of this process.
//!
//! Probing never fails: values that cannot be read stay unknown. On Linux it reads `/proc`, `/sys` and
//! `/etc`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Result, atomic};

pub mod caches;
mod cgroup;
pub mod energy;
pub mod instruction_sets;
pub mod process;
pub mod survey;
use caches::Cache;

/// The content of `machine.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The host name.
    pub host: String,
    /// Operating system and version.
    pub os: String,
    /// The version of the kernel.
    pub kernel: String,
    /// The CPU.
    pub cpu: Cpu,
    /// Memory in bytes that this process may use.
    pub ram_bytes: Option<u64>,
    /// Accelerators.
    pub devices: Vec<Device>,
    /// Compute libraries, by name.
    pub libraries: BTreeMap<String, Library>,
    /// The identity of this machine.
    pub identity: Identity,
    /// Measured peaks, by name with unit: `fma_gflops`, `copy_gb_per_s`, `disk_read_mb_per_s`.
    pub peaks: BTreeMap<String, f64>,
}

/// A CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// The name of the model.
    pub model: String,
    /// The architecture: `x86_64`.
    pub architecture: String,
    /// Sockets.
    pub sockets: Option<u32>,
    /// Physical cores of the machine.
    pub cores: Option<u32>,
    /// Hardware threads of the machine.
    pub threads: Option<u32>,
    /// Hardware threads that this process may use.
    pub usable_threads: Option<u32>,
    /// Instruction-set extensions, named as by the kernel.
    pub features: Vec<String>,
    /// Caches of the first core, innermost first.
    pub caches: Vec<Cache>,
}

/// An accelerator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Kind of device: `cuda`.
    pub kind: String,
    /// The name of the model.
    pub name: String,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// The version of the driver.
    pub driver: Option<String>,
    /// The UUID of the device.
    pub uuid: Option<String>,
}

/// A library that was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Library {
    /// The version.
    pub version: String,
    /// The file that it was loaded from.
    pub path: String,
}

/// The identity of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The UUID of the board; if users may not read it, the installation id of the system.
    pub uuid: Option<String>,
    /// The MAC address of the first network card.
    pub mac: Option<String>,
}

impl Machine {
    /// Probes this machine.
    #[must_use]
    pub fn probe() -> Self {
        let host = host_name().unwrap_or_default();
        Self { host, ..Self::probe_under(Path::new("/")) }
    }

    /// Replaces `path`.
    pub fn write(&self, path: &Path) -> Result<()> {
        atomic::write_json(path, self)
    }

    /// Reads `path`.
    pub fn read(path: &Path) -> Result<Self> {
        atomic::read_json(path)
    }

    /// Probes the machine that the files under `root` describe; its name is not among them.
    fn probe_under(root: &Path) -> Self {
        let line = |path: &str| Some(fs::read_to_string(root.join(path)).ok()?.trim().to_string());
        let mut cpu = cpu(&line("proc/cpuinfo").unwrap_or_default());
        cpu.architecture = std::env::consts::ARCH.into();
        cpu.caches = caches::read(root, cpu.threads.map_or(1, |threads| threads as usize));
        cpu.usable_threads =
            std::thread::available_parallelism().ok().and_then(|n| u32::try_from(n.get()).ok());
        let installed = line("proc/meminfo").and_then(|text| kib_line_bytes(&text, "MemTotal:"));
        let allowed = cgroup::memory_limit(root);
        let os = line("etc/os-release").and_then(|text| {
            let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
            Some(name.trim_matches('"').to_string())
        });
        Self {
            host: String::new(),
            os: os.unwrap_or_else(|| std::env::consts::OS.into()),
            kernel: line("proc/sys/kernel/osrelease").unwrap_or_default(),
            cpu,
            ram_bytes: installed.into_iter().chain(allowed).min(),
            devices: nvidia(root),
            libraries: BTreeMap::new(),
            identity: Identity {
                uuid: line("sys/class/dmi/id/product_uuid")
                    .or_else(|| line("etc/machine-id"))
                    .filter(|id| !id.is_empty()),
                mac: mac(root),
            },
            peaks: BTreeMap::new(),
        }
    }
}

/// The name of this machine, as `uname -n` prints it; `None` if it has none.
#[must_use]
pub fn host_name() -> Option<String> {
    let name = rustix::system::uname().nodename().to_string_lossy().trim().to_owned();
    (!name.is_empty()).then_some(name)
}

/// The identity of this machine since it was booted, the same in all its containers; else its name. `None` if
/// it has neither.
#[must_use]
pub fn boot_identity() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    id.map(|id| id.trim().to_owned()).filter(|id| !id.is_empty()).or_else(host_name)
}

/// Peak resident set of this process so far, in bytes.
#[must_use]
pub fn peak_rss_bytes() -> Option<u64> {
    kib_line_bytes(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// Bytes of memory that this process can use now: free or reclaimable memory, at most the limit of its
/// control group.
#[must_use]
pub fn usable_memory_bytes() -> Option<u64> {
    let root = Path::new("/");
    let free = fs::read_to_string(root.join("proc/meminfo")).ok();
    let free = free.and_then(|text| kib_line_bytes(&text, "MemAvailable:"));
    free.into_iter().chain(cgroup::memory_limit(root)).min()
}

/// Bytes of memory that this process can allocate now: [`usable_memory_bytes`], at most what remains of its
/// address-space limit (`ulimit -v`).
#[must_use]
pub fn allocatable_memory_bytes() -> Option<u64> {
    usable_memory_bytes().into_iter().chain(remaining_address_space(Path::new("/"))).min()
}

/// Bytes that remain of the address-space limit of this process; `None` without a limit.
fn remaining_address_space(root: &Path) -> Option<u64> {
    let limits = fs::read_to_string(root.join("proc/self/limits")).ok()?;
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    let limit: u64 = limit.split_whitespace().next()?.parse().ok()?;
    let used = kib_line_bytes(&fs::read_to_string(root.join("proc/self/status")).ok()?, "VmSize:")?;
    Some(limit.saturating_sub(used))
}

/// The value of a line such as `MemTotal:  1024 kB`, in bytes.
fn kib_line_bytes(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

fn cpu(info: &str) -> Cpu {
    let mut cpu = Cpu::default();
    let (mut sockets, mut cores, mut threads) = (BTreeSet::new(), BTreeSet::new(), 0u32);
    let mut socket = "";
    for (key, value) in info.lines().filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        match key.trim() {
            "processor" => threads += 1,
            "physical id" => {
                socket = value;
                sockets.insert(value);
            }
            "core id" => {
                cores.insert((socket, value));
            }
            "model name" if cpu.model.is_empty() => cpu.model = value.into(),
            "flags" | "Features" if cpu.features.is_empty() => {
                cpu.features = value.split_whitespace().map(String::from).collect();
                cpu.features.sort_unstable();
            }
            _ => {}
        }
    }
    let count = |n: usize| u32::try_from(n).ok().filter(|&n| n > 0);
    cpu.sockets = count(sockets.len());
    cpu.cores = count(cores.len());
    cpu.threads = Some(threads).filter(|&n| n > 0);
    cpu
}

/// The MAC address of the first network card or, without one, of the first other interface.
fn mac(root: &Path) -> Option<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join("sys/class/net")).ok()?.flatten() {
        let folder = entry.path();
        let Ok(address) = fs::read_to_string(folder.join("address")) else { continue };
        let address = address.trim();
        if !address.is_empty() && address != "00:00:00:00:00:00" {
            found.push((!folder.join("device").exists(), entry.file_name(), address.to_string()));
        }
    }
    found.into_iter().min().map(|(_, _, address)| address)
}

/// NVIDIA devices, as listed by their driver.
fn nvidia(root: &Path) -> Vec<Device> {
    let driver = fs::read_to_string(root.join("proc/driver/nvidia/version")).ok().and_then(|text| {
        let version = |word: &&str| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit());
        text.split_whitespace().find(version).map(String::from)
    });
    let Ok(entries) = fs::read_dir(root.join("proc/driver/nvidia/gpus")) else { return Vec::new() };
    let mut folders: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    let device = |folder: &Path| {
        let text = fs::read_to_string(folder.join("information")).ok()?;
        let value = |key: &str| {
            let (_, value) =
                text.lines().filter_map(|line| line.split_once(':')).find(|(k, _)| k.trim() == key)?;
            Some(value.trim().to_string())
        };
        let (name, uuid) = (value("Model")?, value("GPU UUID"));
        Some(Device { kind: "cuda".into(), name, memory_bytes: None, driver: driver.clone(), uuid })
    };
    folders.iter().filter_map(|folder| device(folder)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_address_space_is_the_limit_minus_usage() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("proc/self");
        fs::create_dir_all(&own).unwrap();
        assert_eq!(remaining_address_space(root.path()), None);
        fs::write(own.join("status"), "Name:\tstratus\nVmSize:\t    1024 kB\n").unwrap();
        let limits = |limit: &str| {
            let text = format!(
                "Limit  Soft Limit  Hard Limit  Units\nMax address space  {limit}  unlimited  bytes\n"
            );
            fs::write(own.join("limits"), text).unwrap();
            remaining_address_space(root.path())
        };
        assert_eq!(limits("unlimited"), None);
        assert_eq!(limits("3584000000"), Some(3_584_000_000 - (1 << 20)));
        assert_eq!(limits("1000"), Some(0));
    }

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn probes_a_complete_machine() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let mut info = String::new();
        for (i, core) in [0, 1, 0, 1].iter().enumerate() {
            info += &format!(
                "processor\t: {i}\nmodel name\t: Chip 9\nphysical id\t: {}\ncore id\t: {core}\n",
                i / 2
            );
            info += "flags\t\t: sse avx2 avx512f\n\n";
        }
        put(root, "proc/cpuinfo", &info);
        put(root, "proc/meminfo", "MemTotal:  2048 kB\nMemFree: 1 kB\n");
        put(root, "sys/fs/cgroup/memory.max", "1048576\n");
        put(root, "etc/os-release", "NAME=x\nPRETTY_NAME=\"System 1\"\n");
        put(root, "etc/machine-id", "abc\n");
        put(root, "sys/class/net/lo/address", "00:00:00:00:00:00\n");
        put(root, "sys/class/net/bridge/address", "02:00:00:00:00:01\n");
        put(root, "sys/class/net/eth0/address", "52:00:00:00:00:02\n");
        put(root, "sys/class/net/eth0/device/vendor", "");
        put(root, "proc/driver/nvidia/version", "NVRM version: NVIDIA Kernel Module  550.54.15  Tue\n");
        put(root, "proc/driver/nvidia/gpus/0/information", "Model: \t NVIDIA X\nGPU UUID:\t GPU-1:2\n");
        let machine = Machine::probe_under(root);
        let cpu = &machine.cpu;
        assert_eq!(
            (cpu.model.as_str(), cpu.sockets, cpu.cores, cpu.threads),
            ("Chip 9", Some(2), Some(4), Some(4))
        );
        assert_eq!(cpu.features, ["avx2", "avx512f", "sse"]);
        assert_eq!((machine.ram_bytes, machine.os.as_str()), (Some(1 << 20), "System 1"));
        assert_eq!(machine.identity.mac.as_deref(), Some("52:00:00:00:00:02"));
        assert_eq!(machine.identity.uuid.as_deref(), Some("abc"));
        let device = &machine.devices[0];
        assert_eq!((device.name.as_str(), device.driver.as_deref()), ("NVIDIA X", Some("550.54.15")));
        assert_eq!(device.uuid.as_deref(), Some("GPU-1:2"));
        let path = root.join("machine.json");
        machine.write(&path).unwrap();
        assert_eq!(Machine::read(&path).unwrap(), machine);
    }

    #[test]
    fn unknown_machine_is_not_an_error() {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine::probe_under(root.path());
        assert_eq!((machine.ram_bytes, machine.cpu.cores), (None, None));
        assert_eq!(machine.os, std::env::consts::OS);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn peak_memory_of_this_process_is_known() {
        assert!(peak_rss_bytes().unwrap() > 100_000);
    }
}
