//! The queue of SkyPilot's managed jobs, as `sky jobs queue --output json` says.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use stratus_base::printable;

/// Jobs by their names. Of several of one name the last counts.
pub(super) struct Queue(BTreeMap<String, Queued>);

/// How SkyPilot has a job.
pub(super) struct Queued {
    number: i64,
    status: String,
    reason: String,
}

impl Queue {
    /// None where the text is no list.
    pub(super) fn parse(text: &str) -> Option<Self> {
        // Words of its server may come first.
        let list = text.lines().position(|line| line.trim_start().starts_with('['))?;
        let list: String = text.lines().skip(list).flat_map(|line| [line, "\n"]).collect();
        let list: Vec<Value> = serde_json::from_str(&list).ok()?;
        let mut all: BTreeMap<String, Queued> = BTreeMap::new();
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
                    Queued { number, status, reason: word("failure_reason").unwrap_or_default() },
                );
            }
        }
        Some(Self(all))
    }

    pub(super) fn get(&self, name: &str) -> Option<&Queued> {
        self.0.get(name)
    }
}

impl Queued {
    /// Whether it has a machine that trains.
    pub(super) fn runs(&self) -> bool {
        matches!(self.status.as_str(), "RUNNING" | "WINDING_DOWN" | "CANCELLING")
    }

    /// Whether it runs, or will.
    pub(super) fn is_live(&self) -> bool {
        self.runs() || matches!(self.status.as_str(), "PENDING" | "SUBMITTED" | "STARTING" | "RECOVERING")
    }

    pub(super) fn failed(&self) -> bool {
        self.status.starts_with("FAILED")
    }
}

impl fmt::Display for Queued {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, reason, .. } = self;
        if reason.is_empty() {
            write!(formatter, "{status}")
        } else {
            write!(formatter, "{status}: {reason}")
        }
    }
}
