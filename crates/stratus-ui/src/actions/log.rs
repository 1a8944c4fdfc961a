//! The actions that are under way, and how the last ones ended, in memory.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use stratus_run::summary::Status;

use super::Kind;
use crate::index::ItemId;

/// Maximum number of runs whose last action is remembered.
const MAX_ACTIONS: usize = 1000;

/// How far an action is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// It is under way.
    Pending,
    /// It is done.
    Done,
    /// It failed.
    Failed,
}

/// The progress of the last action on a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// How far it is.
    pub stage: Stage,
    /// The progress in words.
    pub text: String,
}

/// An action on a run.
#[derive(Debug)]
struct Action {
    kind: Kind,
    progress: Progress,
    /// The state of the run that the progress is about.
    state: &'static str,
    /// The time at which the run's lock was last acquired: with another one, another process trains it.
    lock: Option<i128>,
    /// The order of actions.
    number: u64,
}

/// The last action on each run.
#[derive(Debug, Default)]
pub struct ActionLog {
    actions: Mutex<HashMap<ItemId, Action>>,
}

impl ActionLog {
    fn actions(&self) -> MutexGuard<'_, HashMap<ItemId, Action>> {
        self.actions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that an action begins.
    ///
    /// # Errors
    /// If one is under way.
    pub fn begin(
        &self,
        id: &ItemId,
        kind: Kind,
        state: &'static str,
        lock: Option<i128>,
    ) -> Result<Progress, String> {
        let mut actions = self.actions();
        if let Some(action) = actions.get(id).filter(|action| action.progress.stage == Stage::Pending) {
            return Err(format!("already {}", action.progress.text.trim_end_matches('…')));
        }
        let text = match kind {
            Kind::Stop => "stopping…",
            Kind::Continue => "continuing…",
        };
        let progress = Progress { stage: Stage::Pending, text: text.to_owned() };
        let number = actions.values().map(|action| action.number + 1).max().unwrap_or(0);
        let action = Action { kind, progress: progress.clone(), state, lock, number };
        actions.insert(id.clone(), action);
        if actions.len() > MAX_ACTIONS {
            let oldest = actions.iter().min_by_key(|(_, action)| action.number).map(|(id, _)| id.clone());
            oldest.map(|oldest| actions.remove(&oldest));
        }
        Ok(progress)
    }

    /// Forgets the action on a run.
    pub fn forget(&self, id: &ItemId) {
        self.actions().remove(id);
    }

    /// Records the result of an action's process, unless the run's state has already ended the action.
    pub fn end(&self, id: &ItemId, ended: Result<String, String>) {
        let mut actions = self.actions();
        let Some(action) = actions.get_mut(id).filter(|action| action.progress.stage == Stage::Pending)
        else {
            return;
        };
        action.progress = match ended {
            Ok(text) => Progress { stage: Stage::Done, text },
            Err(text) => Progress { stage: Stage::Failed, text },
        };
    }

    /// The progress of the last action on a run that is in `state` now.
    pub fn progress(&self, id: &ItemId, state: &'static str, lock: Option<i128>) -> Option<Progress> {
        let mut actions = self.actions();
        let action = actions.get_mut(id)?;
        let is_same_process = action.lock == lock;
        if action.state == state && (is_same_process || action.kind == Kind::Continue) {
            return Some(action.progress.clone());
        }
        let is = |status: Status| state == status.name();
        let done = |text: &str| Some(Progress { stage: Stage::Done, text: text.to_owned() });
        let next = match (action.kind, action.progress.stage) {
            (Kind::Stop, Stage::Pending) if is(Status::Interrupted) => done("stopped"),
            (Kind::Stop, Stage::Pending) if is(Status::Completed) => done("completed before it stopped"),
            (Kind::Stop, Stage::Pending) if is(Status::Failed) => {
                Some(Progress { stage: Stage::Failed, text: "failed before it stopped".to_owned() })
            }
            (Kind::Continue, Stage::Pending) if is(Status::Running) => done("continued"),
            // The result of an earlier action is no longer news.
            _ => None,
        };
        match next.clone() {
            Some(progress) => (action.progress, action.state, action.lock) = (progress, state, lock),
            None => _ = actions.remove(id),
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> ItemId {
        ItemId::parse("0123456789abcdef").unwrap()
    }

    fn text(log: &ActionLog, state: &'static str, lock: i128) -> Option<String> {
        log.progress(&id(), state, Some(lock)).map(|progress| progress.text)
    }

    #[test]
    fn a_stop_ends_with_the_state_of_the_run() {
        for (state, said) in [
            ("interrupted", "stopped"),
            ("completed", "completed before it stopped"),
            ("failed", "failed before it stopped"),
        ] {
            let log = ActionLog::default();
            log.begin(&id(), Kind::Stop, "running", Some(1)).unwrap();
            assert_eq!(text(&log, "running", 1).as_deref(), Some("stopping…"));
            assert_eq!(log.begin(&id(), Kind::Stop, "running", Some(1)), Err("already stopping".to_owned()));
            assert_eq!(text(&log, state, 1).as_deref(), Some(said));
            assert_eq!(text(&log, state, 1).as_deref(), Some(said), "it remains");
            assert_eq!(text(&log, "running", 2), None, "until the run changes");
            assert_eq!(text(&log, state, 2), None);
        }
    }

    #[test]
    fn a_run_that_another_process_continued_meanwhile_is_not_stopping() {
        let log = ActionLog::default();
        log.begin(&id(), Kind::Stop, "running", Some(1)).unwrap();
        assert_eq!(text(&log, "running", 2), None);
    }

    #[test]
    fn a_continuation_runs_or_fails() {
        let log = ActionLog::default();
        log.begin(&id(), Kind::Continue, "interrupted", Some(1)).unwrap();
        assert_eq!(text(&log, "interrupted", 2).as_deref(), Some("continuing…"), "it has the lock only");
        assert_eq!(text(&log, "running", 2).as_deref(), Some("continued"));
        assert_eq!(text(&log, "interrupted", 2), None);
        log.begin(&id(), Kind::Continue, "interrupted", Some(2)).unwrap();
        log.end(&id(), Err("no such data".to_owned()));
        let failed = log.progress(&id(), "interrupted", Some(3)).unwrap();
        assert_eq!((failed.stage, failed.text.as_str()), (Stage::Failed, "no such data"));
        log.begin(&id(), Kind::Continue, "interrupted", Some(3)).unwrap();
        log.forget(&id());
        assert_eq!(text(&log, "interrupted", 3), None);
    }
}
