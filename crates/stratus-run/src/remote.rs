//! `remote.json`: the machine that trains a run, if it is another one. The file is in the local copy of a run
//! that `stratus launch` fetches, and tells when the copy was last up to date.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use stratus_base::{printable, read_at_most};

use crate::summary::Status;
use crate::{Error, Result, atomic};

/// The maximum size of the file, which has a few short texts.
const MAX_REMOTE_BYTES: u64 = 64 << 10;

/// The place where a run is trained, and its state there when its files were last fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteRun {
    /// The name of the launch.
    pub launch: String,
    /// The name of the target.
    pub target: String,
    /// The kind of the target, with its host or its store.
    pub machine: String,
    /// The host that trains the run, if it is known.
    pub host: Option<String>,
    /// The status there: `waiting`, `running`, `completed`, `interrupted`, `failed`, or `unknown` if the
    /// target could not tell.
    pub status: String,
    /// The time of the last fetch, in seconds since 1970.
    pub fetched: u64,
}

impl RemoteRun {
    /// Reads the file; `None` for a run that is trained here.
    ///
    /// # Errors
    /// If the file cannot be read, or has another content.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        if !path.exists() {
            return Ok(None);
        }
        let bytes = read_at_most(path, MAX_REMOTE_BYTES).map_err(Error::io("read", path))?;
        let remote = serde_json::from_slice(&bytes).map_err(|error| {
            Error::damaged(path, atomic::unexpected_json(&error), "fetch the run again, or remove it")
        })?;
        Ok(Some(remote))
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        atomic::write_json(path, self)
    }

    /// The status of the run when it was last fetched, for a run whose summary says that it is running. With
    /// an unknown status it may still be running, and counts as such.
    #[must_use]
    pub fn run_status(&self) -> Status {
        match self.status.as_str() {
            "running" | "unknown" => Status::Running,
            "completed" => Status::Completed,
            "failed" => Status::Failed,
            _ => Status::Interrupted,
        }
    }

    /// The target, and the host if it has another name: `lab (node7)`.
    #[must_use]
    pub fn place(&self) -> String {
        let target = printable(&self.target);
        match self.host.as_deref().map(printable) {
            Some(host) if host != target => format!("{target} ({host})"),
            _ => target,
        }
    }

    /// The target with its host or store: `lab (node7), ssh lab.example.org`.
    #[must_use]
    pub fn description(&self) -> String {
        format!("{}, {}", self.place(), printable(&self.machine))
    }

    /// The seconds since the last fetch.
    #[must_use]
    pub fn age_s(&self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        now.saturating_sub(self.fetched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_a_round_trip_and_a_missing_file_is_a_local_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("remote.json");
        assert_eq!(RemoteRun::read(&path).unwrap(), None);
        let remote = RemoteRun {
            launch: "digits-1".to_owned(),
            target: "lab".to_owned(),
            machine: "ssh lab.example.org".to_owned(),
            host: Some("node\u{1b}7".to_owned()),
            status: "running".to_owned(),
            fetched: 1,
        };
        remote.write(&path).unwrap();
        assert_eq!(RemoteRun::read(&path).unwrap().as_ref(), Some(&remote));
        assert_eq!(remote.place(), "lab (node\\u{1b}7)");
        assert_eq!(remote.description(), "lab (node\\u{1b}7), ssh lab.example.org");
        assert_eq!(RemoteRun { host: Some("lab".to_owned()), ..remote.clone() }.place(), "lab");
        assert_eq!(remote.run_status(), Status::Running);
        let with = |status: &str| RemoteRun { status: status.to_owned(), ..remote.clone() }.run_status();
        assert_eq!((with("waiting"), with("unknown")), (Status::Interrupted, Status::Running));
        std::fs::write(&path, "{\"launch\": \"d").unwrap();
        let error = RemoteRun::read(&path).unwrap_err().to_string();
        assert!(error.contains("remote.json is damaged"), "{error}");
    }
}
