//! The keys of the kind `sky`.

use super::section::TargetSection;
use crate::Result;
use toml::Value;

/// The keys of the kind.
pub(super) const KEYS: [&str; 10] =
    ["bucket", "infra", "gpus", "cpus", "memory", "disk", "instance", "image", "spot", "max_hourly_cost"];
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
        Ok(SkySettings {
            bucket: bucket.trim_end_matches('/').to_owned(),
            infra: self.word("infra", is_word)?,
            gpus: self.word("gpus", is_word)?,
            cpus: self.word("cpus", amount)?,
            memory: self.word("memory", amount)?,
            disk_gb: self.number("disk", 1 << 20)?,
            instance: self.word("instance", is_word)?,
            image: self.word("image", is_word)?,
            spot,
            max_hourly_cost,
            setup: self.string(SETUP)?.unwrap_or_default(),
        })
    }
}
