//! The action that a run permits, or the reason why it permits none.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use stratus_base::read_at_most;
use stratus_launch::{LaunchRecord, TARGETS_FILE, is_valid_id, record_file};
use stratus_run::RunDir;
use stratus_run::layout::{LAUNCHES, RUNS, SWEEP};
use stratus_run::machine::host_name;
use stratus_run::owner::{Owner, is_of_this_user};
use stratus_run::remote::RemoteRun;
use stratus_run::summary::Status;

/// A run of another host whose files changed within this time is taken to be training there: on some shared
/// disks, the lock of another host is not visible.
const MAX_SILENCE: Duration = Duration::from_secs(120);
/// Maximum length of `machine.json` that is read for the name of the host.
const MAX_MACHINE_BYTES: u64 = 1 << 20;

/// An action on a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Save a checkpoint and stop.
    Stop,
    /// Continue from the last checkpoint.
    Continue,
}

impl Kind {
    /// The words after “cannot” in messages.
    pub fn passive(self) -> &'static str {
        match self {
            Self::Stop => "be stopped",
            Self::Continue => "be continued",
        }
    }
}

/// The action that a run permits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Offer {
    /// The action; `None` if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// The launch that the run belongs to; all of its runs are stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launch: Option<String>,
    /// True if the run belongs to a sweep, which then trains its next run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_of_sweep: bool,
    /// The reason why there is none, where one would be expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}

/// The facts that decide about the actions of a run.
pub struct Facts<'a> {
    run: &'a RunDir,
    state: &'a str,
    remote: Result<Option<RemoteRun>, String>,
}

impl<'a> Facts<'a> {
    /// The facts of a run in a state.
    pub fn of(run: &'a RunDir, state: &'a str) -> Self {
        let remote = RemoteRun::read(&run.remote()).map_err(|error| error.to_string());
        Self { run, state, remote }
    }

    /// The action that the run permits.
    pub fn offer(&self) -> Offer {
        let is = |status: Status| self.state == status.name();
        if is(Status::Running) {
            self.stop()
        } else if is(Status::Interrupted) || is(Status::Failed) {
            self.continuation()
        } else {
            Offer::default()
        }
    }

    fn stop(&self) -> Offer {
        let is_of_sweep = sweep_of(self.run.path()).is_some();
        match &self.remote {
            Err(reason) => refused(reason.clone()),
            Ok(Some(remote)) if !is_valid_id(&remote.launch) => {
                refused("the name of its launch is not valid".to_owned())
            }
            Ok(Some(remote)) => {
                let launch = &remote.launch;
                match launch_folder(self.run.path(), launch) {
                    Some(_) => {
                        Offer { kind: Some(Kind::Stop), launch: Some(launch.clone()), ..Offer::default() }
                    }
                    None => {
                        refused(format!("it belongs to the launch {launch}, which you did not start here"))
                    }
                }
            }
            Ok(None) => match Owner::find(self.run.path()) {
                Ok(_) => Offer { kind: Some(Kind::Stop), is_of_sweep, ..Offer::default() },
                Err(error) => refused(match self.other_host() {
                    Some(host) => format!("it is trained on {host}: stop it there"),
                    None => error.to_string(),
                }),
            },
        }
    }

    fn continuation(&self) -> Offer {
        let path = self.run.path();
        match &self.remote {
            Err(reason) => return refused(reason.clone()),
            Ok(Some(remote)) => {
                let launch = stratus_base::printable(&remote.launch);
                return refused(format!(
                    "it belongs to a launch: `stratus launch resume {launch}` continues it"
                ));
            }
            Ok(None) => {}
        }
        if sweep_of(path).is_some() {
            return refused("it belongs to a sweep: `stratus sweep` with its folder continues it".to_owned());
        }
        // A process of this user would leave files in it that its owner cannot replace.
        if !is_of_this_user(path) {
            return refused("its directory belongs to another user".to_owned());
        }
        if let Some(host) = self.other_host().filter(|_| changed_within(self.run, MAX_SILENCE)) {
            return refused(format!("{host} wrote its files a moment ago, and may still train it"));
        }
        Offer { kind: Some(Kind::Continue), ..Offer::default() }
    }

    /// The host that started the run, if it is not this one.
    fn other_host(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct Machine {
            host: String,
        }
        let bytes = read_at_most(&self.run.machine(), MAX_MACHINE_BYTES).ok()?;
        let host = serde_json::from_slice::<Machine>(&bytes).ok()?.host;
        (!host.is_empty() && host != host_name()?).then(|| stratus_base::printable(&host))
    }
}

fn refused(reason: String) -> Offer {
    Offer { refusal: Some(reason), ..Offer::default() }
}

/// Returns whether a file that training appends to changed within a time.
fn changed_within(run: &RunDir, time: Duration) -> bool {
    let now = SystemTime::now();
    [run.log(), run.iterations(), run.epochs(), run.usage()].iter().any(|path| {
        let modified = std::fs::symlink_metadata(path).and_then(|facts| facts.modified());
        // A time in the future is that of a clock that runs ahead.
        modified.is_ok_and(|modified| now.duration_since(modified).unwrap_or_default() < time)
    })
}

/// The folder `runs` above a run.
fn runs_folder(run: &Path) -> Option<&Path> {
    run.ancestors().skip(1).find(|folder| folder.file_name().is_some_and(|name| name == RUNS))
}

/// The folder in which a run was started: that of the folder `runs`, if it is in one. Relative paths of its
/// configuration, and the files of targets, begin there.
pub fn working_folder(run: &Path) -> Option<&Path> {
    runs_folder(run).and_then(Path::parent)
}

/// The folder in which the launch of a run was started, by this user: commands of its targets run there.
pub fn launch_folder(run: &Path, launch: &str) -> Option<PathBuf> {
    let record = |folder: &Path| record_file(&folder.join(RUNS), launch);
    let folder = run.ancestors().skip(1).find(|folder| record(folder).is_file())?;
    let targets = folder.join(TARGETS_FILE);
    let is_own = is_of_this_user(&record(folder)) && (!targets.exists() || is_of_this_user(&targets));
    // A folder of another user could be a link to one of this user, whose launch it is not.
    let runs = folder.join(RUNS);
    let is_own = is_own && is_of_this_user(&runs) && is_of_this_user(&runs.join(LAUNCHES));
    is_own.then(|| folder.to_owned())
}

/// Checks that a launch has trained a run, which only claims it: stopping the launch stops all of its runs.
///
/// # Errors
/// The reason, if the record of the launch does not list the run.
pub fn check_launch(run: &Path, launch: &str) -> Result<(), String> {
    let Some(folder) = launch_folder(run, launch) else {
        return Err(format!("the launch {launch} is no longer here"));
    };
    let path = record_file(&folder.join(RUNS), launch);
    let record = LaunchRecord::read(&path).map_err(|error| error.to_string())?;
    let is_it = |listed: &PathBuf| {
        listed.file_name() == run.file_name()
            && folder.join(listed).canonicalize().is_ok_and(|listed| listed == run)
    };
    if record.id != launch || !record.runs.iter().any(is_it) {
        return Err(format!("the launch {launch} does not list this run"));
    }
    Ok(())
}

/// The sweep that a run belongs to: `SWEEP/runs/…/RUN`.
fn sweep_of(run: &Path) -> Option<&Path> {
    let sweep = runs_folder(run).and_then(Path::parent)?;
    sweep.join(SWEEP).is_file().then_some(sweep)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_started_above_their_folder() {
        let folder = |path: &'static str| working_folder(Path::new(path));
        assert_eq!(folder("/a/runs/digits/1"), Some(Path::new("/a")));
        assert_eq!(folder("/a/runs/b/runs/1/2"), Some(Path::new("/a/runs/b")));
        assert_eq!(folder("/a/b"), None);
    }
}
