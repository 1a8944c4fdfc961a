//! The queue of SkyPilot's managed jobs, from `sky jobs queue --output json`.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use stratus_base::printable;

/// Jobs by name; the latest job of each name.
pub(super) struct JobQueue(BTreeMap<String, QueuedJob>);

/// The queue's entry of a job.
pub(super) struct QueuedJob {
    number: i64,
    status: String,
    reason: String,
}

impl JobQueue {
    /// Parses the output; `None` if it is not a list.
    pub(super) fn parse(text: &str) -> Option<Self> {
        // Messages of SkyPilot's server may precede the list.
        let list = text.lines().position(|line| line.trim_start().starts_with('['))?;
        let list: String = text.lines().skip(list).flat_map(|line| [line, "\n"]).collect();
        let list: Vec<Value> = serde_json::from_str(&list).ok()?;
        let mut all: BTreeMap<String, QueuedJob> = BTreeMap::new();
        for job in list {
            let word = |key: &str| job[key].as_str().map(printable);
            let (Some(name), Some(status), Some(number)) =
                (word("job_name"), word("status"), job["job_id"].as_i64())
            else {
                continue;
            };
            if all.get(&name).is_none_or(|other| other.number < number) {
                all.insert(
                    name,
                    QueuedJob { number, status, reason: word("failure_reason").unwrap_or_default() },
                );
            }
        }
        Some(Self(all))
    }

    pub(super) fn get(&self, name: &str) -> Option<&QueuedJob> {
        self.0.get(name)
    }
}

impl QueuedJob {
    /// Returns whether the job is running on a machine.
    pub(super) fn is_running(&self) -> bool {
        matches!(self.status.as_str(), "RUNNING" | "WINDING_DOWN" | "CANCELLING")
    }

    /// Returns whether the job is running or will run.
    pub(super) fn is_live(&self) -> bool {
        self.is_running()
            || matches!(self.status.as_str(), "PENDING" | "SUBMITTED" | "STARTING" | "RECOVERING")
    }

    pub(super) fn failed(&self) -> bool {
        self.status.starts_with("FAILED")
    }
}

impl fmt::Display for QueuedJob {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, reason, .. } = self;
        if reason.is_empty() {
            write!(formatter, "{status}")
        } else {
            write!(formatter, "{status}: {reason}")
        }
    }
}
