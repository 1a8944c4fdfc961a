//! The keys of the kind `sky`.

use super::NodeWorkers;
use super::section::TargetSection;
use super::slurm::MAX_WORKERS;
use crate::Result;
use toml::Value;

/// The keys of the kind.
pub(super) const KEYS: [&str; 12] = [
    "bucket",
    "infra",
    "gpus",
    "cpus",
    "memory",
    "disk",
    "instance",
    "image",
    "spot",
    "max_hourly_cost",
    "nodes",
    "workers_per_node",
];
/// The key of setup commands, which `slurm` has too.
pub(super) const SETUP: &str = "setup";
/// The mount point of a bucket on the machines.
pub(crate) const MOUNT: &str = "/stratus";
/// The services whose addresses both SkyPilot and `stratus-store` support.
const SERVICES: [&str; 2] = ["s3://", "gs://"];

/// The resources requested from a cloud. SkyPilot decides about unset values.
#[derive(Clone, Debug, PartialEq)]
pub struct SkySettings {
    /// The location of executable, data and runs: `s3://bucket/folder`, `gs://bucket/folder`, or a path of a
    /// folder shared by this machine and the cloud machines.
    pub bucket: String,
    /// `infra`: cloud, region, zone; `k8s/context`.
    pub infra: Option<String>,
    /// `accelerators`: `A100:1`.
    pub gpus: Option<String>,
    /// `cpus`: `8`, `8+`.
    pub cpus: Option<String>,
    /// `memory` in GB: `32`, `32+`.
    pub memory: Option<String>,
    /// `disk_size` in GB.
    pub disk_gb: Option<u64>,
    /// `instance_type`.
    pub instance: Option<String>,
    /// `image_id`.
    pub image: Option<String>,
    /// `use_spot`: preemptible machines.
    pub spot: bool,
    /// `max_hourly_cost`, in USD.
    pub max_hourly_cost: Option<f64>,
    /// Shell commands that run on a new machine before training.
    pub setup: String,
    /// The workers of a run; `None` means one process on one machine.
    pub workers: Option<NodeWorkers>,
}

impl SkySettings {
    /// Returns whether the bucket is a path instead of an address.
    #[must_use]
    pub fn is_path(&self) -> bool {
        self.bucket.starts_with('/')
    }

    /// The folder of launches on a machine.
    #[must_use]
    pub fn root(&self) -> String {
        if self.is_path() { self.bucket.clone() } else { MOUNT.to_owned() }
    }
}

/// The number of GPUs of a value of `gpus`, such as `A100:8`.
fn gpu_count(gpus: &str) -> Option<u64> {
    gpus.split_once(':').map_or(Some(1), |(_, count)| count.parse().ok())
}

/// Returns whether a character is allowed in values of a task file.
fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.:/@+*".contains(c)
}

impl TargetSection<'_> {
    pub(super) fn sky(&self) -> Result<SkySettings> {
        let amount = |c: char| c.is_ascii_digit() || ".+".contains(c);
        let bucket = self.string("bucket")?.ok_or_else(|| {
            self.error("`bucket` is missing: s3://bucket/folder or gs://bucket/folder, where runs are saved")
        })?;
        let is_address = SERVICES.iter().any(|service| {
            let name = bucket.strip_prefix(service).unwrap_or_default();
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
        });
        let is_path = bucket.starts_with('/') && bucket.len() > 1 && !bucket.chars().any(char::is_control);
        if !is_address && !is_path || bucket.split('/').any(|part| part == "..") {
            return Err(
                self.error("`bucket` must be s3://bucket/folder, gs://bucket/folder or an absolute path")
            );
        }
        let max_hourly_cost = match self.table.get("max_hourly_cost") {
            None => None,
            Some(Value::Float(cost)) if cost.is_finite() && *cost > 0.0 => Some(*cost),
            Some(Value::Integer(cost)) if *cost > 0 => Some(*cost as f64),
            Some(_) => return Err(self.error("`max_hourly_cost` must be a positive amount in USD")),
        };
        let spot = match self.table.get("spot") {
            None => false,
            Some(Value::Boolean(spot)) => *spot,
            Some(_) => return Err(self.error("`spot` must be true or false")),
        };
        let gpus = self.word("gpus", is_word)?;
        let workers = self.sky_workers(gpus.as_deref())?;
        Ok(SkySettings {
            bucket: bucket.trim_end_matches('/').to_owned(),
            infra: self.word("infra", is_word)?,
            gpus,
            cpus: self.word("cpus", amount)?,
            memory: self.word("memory", amount)?,
            disk_gb: self.number("disk", 1 << 20)?,
            instance: self.word("instance", is_word)?,
            image: self.word("image", is_word)?,
            spot,
            max_hourly_cost,
            setup: self.string(SETUP)?.unwrap_or_default(),
            workers,
        })
    }

    /// The workers on machines of a job: one per GPU unless `workers_per_node` is set. SkyPilot provides all
    /// machines of a job or none, so that their number is no range.
    fn sky_workers(&self, gpus: Option<&str>) -> Result<Option<NodeWorkers>> {
        let nodes = match self.table.get("nodes") {
            None => None,
            Some(Value::Integer(nodes)) => u64::try_from(*nodes).ok().or(Some(0)),
            Some(_) => Some(0),
        };
        if nodes.is_some_and(|nodes| !nodes.is_power_of_two() || nodes > MAX_WORKERS) {
            return Err(self.error("`nodes` must be a power of two like 2"));
        }
        let per_node = gpus.map_or(Some(1), gpu_count).filter(|gpus| gpus.is_power_of_two());
        let needs_count = nodes.is_some() && !self.table.contains_key("workers_per_node");
        if needs_count && per_node.is_none() {
            return Err(self.error(
                "`nodes` requires `workers_per_node`, since the number of `gpus` is not a power of two",
            ));
        }
        self.node_workers(nodes.map(|nodes| [nodes, nodes]), per_node.unwrap_or(1))
    }
}
