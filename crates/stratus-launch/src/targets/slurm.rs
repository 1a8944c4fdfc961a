//! The keys of the kind `slurm`.

use super::{Section, SshSettings, is_option};
use crate::Result;

/// The keys of the kind, beside those of `ssh`.
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
/// Options of `sbatch` that a launch gives itself.
const OWN_OPTIONS: [&str; 9] = [
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
/// What a cluster of Slurm is asked for. What is not said, it decides itself.
#[derive(Clone, Debug, PartialEq)]
pub struct SlurmSettings {
    /// The machine where `sbatch` is; none: here.
    pub ssh: Option<SshSettings>,
    /// `--partition`, `--account`, `--qos`, `--constraint`, `--gres`, `--mem` and `--time`, each where it is
    /// given.
    pub asked: Vec<(&'static str, String)>,
    /// `--cpus-per-task`.
    pub cpus: Option<u64>,
    /// How many seconds before its end a repetition is asked for a checkpoint: `--signal`.
    pub signal_seconds: u64,
    /// How many repetitions are trained at a time, at most.
    pub concurrent: Option<u64>,
    /// Other options of `sbatch`.
    pub options: Vec<String>,
    /// Lines of shell that run before the training, such as `module load cuda`.
    pub setup: String,
}

impl SlurmSettings {
    /// Whether GPUs are asked for.
    #[must_use]
    pub fn has_gpu(&self) -> bool {
        self.asked.iter().any(|(option, value)| *option == "--gres" && value.starts_with("gpu"))
            || self.options.iter().any(|option| option.starts_with("--gpus"))
    }
}

impl Section<'_> {
    pub(super) fn slurm(&self) -> Result<SlurmSettings> {
        let mut asked = Vec::new();
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
            asked.extend(value.map(|value| (option, value)));
        }
        let mut options = Vec::new();
        if let Some(value) = self.table.get("options") {
            let list = value.as_array().ok_or_else(|| self.wrong("`options` is a list of texts"))?;
            for value in list {
                let option = value.as_str().unwrap_or_default();
                if !option.starts_with("--") || !option.chars().all(is_option) {
                    return Err(self.wrong(format!("`options`: {value} is no option, like --exclusive")));
                }
                let name = option.split('=').next().unwrap_or(option);
                // What sbatch takes for one of them: it knows shortened names.
                if OWN_OPTIONS.iter().any(|own| own.starts_with(name)) {
                    return Err(self.wrong(format!("`options`: {name} is what a launch says itself")));
                }
                options.push(option.to_owned());
            }
        }
        Ok(SlurmSettings {
            ssh: self.ssh()?,
            asked,
            cpus: self.number("cpus", 65536)?,
            signal_seconds: self.number("signal_seconds", 65535)?.unwrap_or(120),
            concurrent: self.number("concurrent", 1000)?,
            options,
            setup: self.text("setup")?.unwrap_or_default(),
        })
    }
}
