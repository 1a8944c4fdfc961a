//! The keys of the kind `slurm`.

use super::section::{SshSettings, TargetSection, is_option};
use crate::Result;
use toml::Value;

/// The keys of the kind, besides the `ssh` keys.
pub(super) const KEYS: [&str; 16] = [
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
    "nodes",
    "workers_per_node",
    "gpus_per_node",
    "mpi",
];
/// The maximum number of workers of a run.
pub(super) const MAX_WORKERS: u64 = 1024;
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
/// Options of `sbatch` that a launch sets if a run has workers on nodes.
const WORKER_OPTIONS: [&str; 3] = ["--nodes", "--ntasks", "--ntasks-per-node"];

/// The workers of a run on nodes of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeWorkers {
    /// The minimum and the maximum number of nodes.
    pub nodes: [u64; 2],
    /// The number of workers of each node.
    pub per_node: u64,
    /// `--mpi` of `srun`; `None` means that it follows from the MPI library. Only for Slurm.
    pub mpi: Option<String>,
}

impl NodeWorkers {
    /// The number of workers on the maximum number of nodes.
    #[must_use]
    pub fn max_workers(&self) -> u64 {
        self.nodes[1] * self.per_node
    }
}

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
    /// The workers of a run; `None` means that each repetition is one task on one node.
    pub workers: Option<NodeWorkers>,
}

impl SlurmSettings {
    /// Returns whether GPUs are requested.
    #[must_use]
    pub fn has_gpu(&self) -> bool {
        let is_gpu = |(option, value): &(&str, String)| {
            *option == "--gpus-per-node" || *option == "--gres" && value.starts_with("gpu")
        };
        self.sbatch_options.iter().any(is_gpu)
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
        let gpus = match self.table.get("gpus_per_node") {
            Some(Value::Integer(_)) => self.number("gpus_per_node", 1024)?.map(|gpus| gpus.to_string()),
            _ => self.word("gpus_per_node", is_option)?,
        };
        sbatch_options.extend(gpus.map(|gpus| ("--gpus-per-node", gpus)));
        let workers = self.slurm_workers()?;
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
                let of_workers = WORKER_OPTIONS.iter().filter(|_| workers.is_some());
                if RESERVED_OPTIONS.iter().chain(of_workers).any(|option| option.starts_with(name)) {
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
            workers,
        })
    }

    /// The workers on nodes; `None` if neither key is set.
    fn slurm_workers(&self) -> Result<Option<NodeWorkers>> {
        let mpi = self.word("mpi", |c| c.is_ascii_alphanumeric() || "_-.".contains(c))?;
        match (self.node_workers(self.nodes()?, 1)?, mpi) {
            (None, Some(_)) => Err(self.error("`mpi` requires `nodes` or `workers_per_node`")),
            (workers, mpi) => Ok(workers.map(|workers| NodeWorkers { mpi, ..workers })),
        }
    }

    /// The workers on a number of nodes, with `default_per_node` workers on each; `None` if neither `nodes`
    /// nor `workers_per_node` is set.
    pub(super) fn node_workers(
        &self,
        nodes: Option<[u64; 2]>,
        default_per_node: u64,
    ) -> Result<Option<NodeWorkers>> {
        let per_node = self.number("workers_per_node", 1024)?;
        if nodes.is_none() && per_node.is_none() {
            return Ok(None);
        }
        let per_node = per_node.unwrap_or(default_per_node);
        let workers = NodeWorkers { nodes: nodes.unwrap_or([1, 1]), per_node, mpi: None };
        if !workers.per_node.is_power_of_two() {
            return Err(self.error("`workers_per_node` must be a power of two"));
        }
        if workers.max_workers() > MAX_WORKERS {
            return Err(self.error(format!(
                "{} nodes with {} workers each have more than {MAX_WORKERS} workers",
                workers.nodes[1], workers.per_node
            )));
        }
        Ok(Some(workers))
    }

    /// The minimum and the maximum number of nodes: `2`, `"2"` or `"1-2"`.
    fn nodes(&self) -> Result<Option<[u64; 2]>> {
        let text = match self.table.get("nodes") {
            None => return Ok(None),
            Some(Value::Integer(nodes)) => nodes.to_string(),
            Some(Value::String(nodes)) => nodes.clone(),
            Some(_) => String::new(),
        };
        let (min, max) = text.split_once('-').unwrap_or((&text, &text));
        let parse = |nodes: &str| {
            let nodes = Some(nodes).filter(|nodes| nodes.bytes().all(|c| c.is_ascii_digit()))?.parse().ok();
            nodes.filter(|nodes| (1..=MAX_WORKERS).contains(nodes))
        };
        match (parse(min), parse(max)) {
            (Some(min), Some(max)) if min <= max && max.is_power_of_two() => Ok(Some([min, max])),
            _ => {
                Err(self
                    .error("`nodes` must be a power of two like 2, or a range that ends in one like \"1-2\""))
            }
        }
    }
}
