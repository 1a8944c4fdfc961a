//! The keys of the kind `sky`.

use super::Section;
use crate::Result;
use toml::Value;

/// The keys of the kind.
pub(super) const KEYS: [&str; 10] =
    ["bucket", "infra", "gpus", "cpus", "memory", "disk", "instance", "image", "spot", "max_hourly_cost"];
/// The key of lines of shell, which `slurm` has too.
pub(super) const SETUP: &str = "setup";
/// Where machines mount a bucket.
pub(crate) const MOUNT: &str = "/stratus";
/// The services whose addresses both SkyPilot and stores of this program know.
const SERVICES: [&str; 2] = ["s3://", "gs://"];

/// What machines of a cloud are asked for. What is not said, SkyPilot decides itself.
#[derive(Clone, Debug, PartialEq)]
pub struct SkySettings {
    /// Where program, data and runs are kept: `s3://bucket/folder`, `gs://bucket/folder`, or a path that is
    /// one folder here and on the machines.
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
    /// `use_spot`: machines that may be taken away.
    pub spot: bool,
    /// `max_hourly_cost`, in USD.
    pub max_hourly_cost: Option<f64>,
    /// Lines of shell that run on a new machine before the training.
    pub setup: String,
}

impl SkySettings {
    /// Whether the bucket is a path, and not behind an address.
    #[must_use]
    pub fn is_path(&self) -> bool {
        self.bucket.starts_with('/')
    }

    /// The folder of launches, as a machine sees it.
    #[must_use]
    pub fn root(&self) -> String {
        if self.is_path() { self.bucket.clone() } else { MOUNT.to_owned() }
    }
}

/// Characters of words that go into a task file.
fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.:/@+*".contains(c)
}

impl Section<'_> {
    pub(super) fn sky(&self) -> Result<SkySettings> {
        let amount = |c: char| c.is_ascii_digit() || ".+".contains(c);
        let bucket = self.text("bucket")?.ok_or_else(|| {
            self.wrong("`bucket` is missing: where runs are kept, s3://bucket/folder or gs://bucket/folder")
        })?;
        let is_address = SERVICES.iter().any(|service| {
            let name = bucket.strip_prefix(service).unwrap_or_default();
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
        });
        let is_path = bucket.starts_with('/') && bucket.len() > 1 && !bucket.chars().any(char::is_control);
        if !is_address && !is_path || bucket.split('/').any(|part| part == "..") {
            return Err(
                self.wrong("`bucket` is s3://bucket/folder, gs://bucket/folder or a path from the root")
            );
        }
        let max_hourly_cost = match self.table.get("max_hourly_cost") {
            None => None,
            Some(Value::Float(cost)) if cost.is_finite() && *cost > 0.0 => Some(*cost),
            Some(Value::Integer(cost)) if *cost > 0 => Some(*cost as f64),
            Some(_) => return Err(self.wrong("`max_hourly_cost` is an amount of USD above 0")),
        };
        let spot = match self.table.get("spot") {
            None => false,
            Some(Value::Boolean(spot)) => *spot,
            Some(_) => return Err(self.wrong("`spot` is true or false")),
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
            setup: self.text(SETUP)?.unwrap_or_default(),
        })
    }
}
