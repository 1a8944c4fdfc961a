//! The keys of the kind `slurm`.

use super::section::{SshSettings, TargetSection, is_option};
use crate::Result;

/// The keys of the kind, besides the `ssh` keys.
pub(super) const KEYS: [&str; 12] = [
    "partition",
    "account",
    "qos",
    "constraint",
    "gres",
    "cpus",
    "memory",
    "time",
    "signal_seconds",
    "concurrent",
    "options",
    "setup",
];
/// Options of `sbatch` that a launch sets.
const RESERVED_OPTIONS: [&str; 9] = [
    "--array",
    "--chdir",
    "--dependency",
    "--job-name",
    "--no-requeue",
    "--open-mode",
    "--output",
    "--parsable",
    "--wrap",
];
/// The resources requested from a Slurm cluster. The cluster decides about unset values.
#[derive(Clone, Debug, PartialEq)]
pub struct SlurmSettings {
    /// The host with `sbatch`; `None` means this machine.
    pub ssh: Option<SshSettings>,
    /// `--partition`, `--account`, `--qos`, `--constraint`, `--gres`, `--mem` and `--time`, as far as they
    /// are set.
    pub sbatch_options: Vec<(&'static str, String)>,
    /// `--cpus-per-task`.
    pub cpus: Option<u64>,
    /// The seconds before the time limit at which training saves a checkpoint and stops: `--signal`.
    pub signal_seconds: u64,
    /// The maximum number of repetitions that run at the same time.
    pub concurrent: Option<u64>,
    /// Other options of `sbatch`.
    pub options: Vec<String>,
    /// Shell commands that run before training, such as `module load cuda`.
    pub setup: String,
}

impl SlurmSettings {
    /// Returns whether GPUs are requested.
    #[must_use]
    pub fn has_gpu(&self) -> bool {
        self.sbatch_options.iter().any(|(option, value)| *option == "--gres" && value.starts_with("gpu"))
            || self.options.iter().any(|option| option.starts_with("--gpus"))
    }
}

impl TargetSection<'_> {
    pub(super) fn slurm(&self) -> Result<SlurmSettings> {
        let mut sbatch_options = Vec::new();
        for (key, option) in [
            ("partition", "--partition"),
            ("account", "--account"),
            ("qos", "--qos"),
            ("constraint", "--constraint"),
            ("gres", "--gres"),
            ("memory", "--mem"),
            ("time", "--time"),
        ] {
            let digits = |end: &'static str| move |c: char| c.is_ascii_digit() || end.contains(c);
            let value = match key {
                "memory" => self.word(key, digits("KMGT"))?,
                "time" => self.word(key, digits("-:"))?,
                _ => self.word(key, is_option)?,
            };
            sbatch_options.extend(value.map(|value| (option, value)));
        }
        let mut options = Vec::new();
        if let Some(value) = self.table.get("options") {
            let list = value.as_array().ok_or_else(|| self.error("`options` must be a list of strings"))?;
            for value in list {
                let option = value.as_str().unwrap_or_default();
                if !option.starts_with("--") || !option.chars().all(is_option) {
                    return Err(self.error(format!("`options`: {value} is not an option like --exclusive")));
                }
                let name = option.split('=').next().unwrap_or(option);
                // sbatch accepts abbreviated names.
                if RESERVED_OPTIONS.iter().any(|option| option.starts_with(name)) {
                    return Err(self.error(format!("`options`: {name} is set by stratus")));
                }
                options.push(option.to_owned());
            }
        }
        Ok(SlurmSettings {
            ssh: self.ssh()?,
            sbatch_options,
            cpus: self.number("cpus", 65536)?,
            signal_seconds: self.number("signal_seconds", 65535)?.unwrap_or(120),
            concurrent: self.number("concurrent", 1000)?,
            options,
            setup: self.string("setup")?.unwrap_or_default(),
        })
    }
}
