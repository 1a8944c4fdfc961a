//! A job: a folder on a target, in which repetitions are trained one after the other. Its record stays here.

use crate::shell::clean;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use stratus_base::text::quoted;
use stratus_base::{did_you_mean, nearest, printable};

/// The script that trains the repetitions.
const SCRIPT: &str = include_str!("scripts/launch.sh");
/// The folder of records, beside the runs. Searches for runs pass over hidden folders.
const RECORDS: &str = ".launches";

/// What a target is given to train.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its name, the launch's.
    pub id: String,
    /// The program there.
    pub program: String,
    /// Environment variables of the training.
    pub environment: BTreeMap<String, String>,
    /// The experiment file of each repetition.
    pub experiments: Vec<String>,
}

impl Job {
    /// The script that runs there.
    #[must_use]
    pub fn script(&self) -> String {
        let mut text = "#!/bin/sh\n".to_owned();
        for (name, value) in &self.environment {
            text.push_str(&format!("export {name}={}\n", quoted(value)));
        }
        let numbers: Vec<String> = (1..=self.experiments.len()).map(|number| number.to_string()).collect();
        text.push_str(&format!("program={}\nrepetitions='{}'\n", quoted(&self.program), numbers.join(" ")));
        text.push_str(SCRIPT);
        text
    }

    /// Its files: the script, and the experiment of each repetition.
    #[must_use]
    pub fn files(&self) -> Vec<(String, String)> {
        let mut files = vec![("launch.sh".to_owned(), self.script())];
        for (number, text) in (1..).zip(&self.experiments) {
            let number: usize = number;
            files.push((format!("{number}/experiment.toml"), text.clone()));
        }
        files
    }
}

/// What was launched where.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Record {
    /// The launch's name.
    pub id: String,
    /// The target's name.
    pub target: String,
    /// The target's folder.
    pub root: String,
    /// When it was launched, in seconds since 1970.
    pub launched: u64,
    /// The program there.
    pub program: String,
    /// Environment variables of the training.
    pub environment: BTreeMap<String, String>,
    /// Where each repetition's run arrives.
    pub runs: Vec<PathBuf>,
    /// The experiment file of each repetition, as it was sent.
    pub experiments: Vec<String>,
}

impl Record {
    /// The job that starts it again.
    #[must_use]
    pub fn job(&self) -> Job {
        let Self { id, program, environment, experiments, .. } = self.clone();
        Job { id, program, environment, experiments }
    }

    /// Keeps it beside the runs.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn write(&self, runs: &Path) -> Result<()> {
        let folder = runs.join(RECORDS);
        fs::create_dir_all(&folder).map_err(Error::file("make", &folder))?;
        let path = folder.join(format!("{}.toml", self.id));
        let text = toml::to_string(self)
            .map_err(|error| Error::usage(format!("the launch cannot be recorded: {error}"), ""))?;
        let temporary = folder.join(format!(".{}.tmp", self.id));
        fs::write(&temporary, text).map_err(Error::file("write", &temporary))?;
        fs::rename(&temporary, &path).map_err(Error::file("write", &path))
    }

    /// Every record beside the runs, the last launched last.
    ///
    /// # Errors
    /// Where one cannot be read.
    pub fn all(runs: &Path) -> Result<Vec<Self>> {
        let folder = runs.join(RECORDS);
        let Ok(entries) = fs::read_dir(&folder) else { return Ok(Vec::new()) };
        let mut records = Vec::new();
        for entry in entries {
            let path = entry.map_err(Error::file("read", &folder))?.path();
            let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            if hidden || path.extension().is_none_or(|ending| ending != "toml") {
                continue;
            }
            let text = fs::read_to_string(&path).map_err(Error::file("read", &path))?;
            let record: Self = toml::from_str(&text).map_err(|error| {
                let problem = format!("{} is no record of a launch: {}", path.display(), error.message());
                Error::usage(problem, "remove the file, if nobody needs what it launched")
            })?;
            if !is_name(&record.id) {
                return Err(Error::usage(format!("{}: `id` is no name", path.display()), ""));
            }
            records.push(record);
        }
        records.sort_by(|a, b| (a.launched, &a.id).cmp(&(b.launched, &b.id)));
        Ok(records)
    }

    /// The record of a name, of a run that it brings, or the last one.
    ///
    /// # Errors
    /// Where there is none.
    pub fn find(runs: &Path, id: Option<&str>) -> Result<Self> {
        let records = Self::all(runs)?;
        let Some(id) = id else {
            let none =
                || Error::usage("nothing was launched from here", "`stratus launch TARGET EXPERIMENT`");
            return records.last().cloned().ok_or_else(none);
        };
        let path = Path::new(id);
        let is_it = |record: &&Self| record.id == id || record.runs.iter().any(|run| run == path);
        if let Some(record) = records.iter().find(is_it) {
            return Ok(record.clone());
        }
        let near = did_you_mean(nearest(id, records.iter().map(|record| record.id.as_str())));
        Err(Error::usage(format!("no launch is named `{id}`{near}"), "`stratus launch list` names them"))
    }
}

/// Whether a text can name a launch: a folder there, a file here.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() < 200
        && !text.starts_with(['.', '-'])
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// How a repetition stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Not begun.
    Waiting,
    /// It is trained.
    Running,
    /// Trained to its end.
    Completed,
    /// Stopped, or whatever trained it is gone: it can be resumed.
    Interrupted,
    /// It failed.
    Failed,
}

impl Status {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Interrupted => "interrupted",
            Self::Failed => "failed",
        }
    }
}

/// A repetition, as its target tells.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Repetition {
    /// Counted from 1.
    pub repetition: usize,
    /// How it stands.
    pub status: Status,
    /// The exit code of its training, once that ended.
    pub exit: Option<i32>,
    /// Epochs that are done.
    pub epochs: Option<u64>,
    /// The last line that was said.
    pub last: String,
}

/// A launch, as its target tells.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct State {
    /// Whether something trains it.
    pub alive: bool,
    /// Who has it, or had it last: the machine, the process.
    pub owner: String,
    /// The age of its heart's last beat, in seconds by the target's clock.
    pub heartbeat_s: Option<u64>,
    /// Its repetitions.
    pub repetitions: Vec<Repetition>,
}

impl State {
    /// Of what the target's script says.
    pub(crate) fn parse(text: &str) -> Self {
        let mut state =
            Self { alive: false, owner: String::new(), heartbeat_s: None, repetitions: Vec::new() };
        let mut begun = Vec::new();
        for line in text.lines() {
            let Some((key, value)) = line.split_once('=') else { continue };
            let last = state.repetitions.last_mut();
            match (key, last) {
                ("alive", _) => state.alive = value == "1",
                ("owner", _) => state.owner = owner(value),
                ("heartbeat_s", _) => state.heartbeat_s = value.parse().ok(),
                ("repetition", _) => {
                    state.repetitions.push(Repetition {
                        repetition: state.repetitions.len() + 1,
                        status: Status::Waiting,
                        exit: None,
                        epochs: None,
                        last: String::new(),
                    });
                    begun.push(false);
                }
                ("exit", Some(last)) => last.exit = value.trim().parse().ok(),
                ("epochs", Some(last)) => last.epochs = value.trim().parse().ok(),
                ("last", Some(last)) => last.last = printable(clean(value).trim()),
                ("begun", Some(_)) => begun.iter_mut().last().into_iter().for_each(|begun| *begun = true),
                _ => {}
            }
        }
        // Repetitions are trained in turn: the one without an end is the one that is trained.
        let mut free = state.alive;
        for (repetition, begun) in state.repetitions.iter_mut().zip(begun) {
            repetition.status = match (repetition.exit, begun) {
                (Some(0), _) => Status::Completed,
                (Some(75), _) => Status::Interrupted,
                (Some(_), _) => Status::Failed,
                (None, true) if std::mem::take(&mut free) => Status::Running,
                (None, true) => Status::Interrupted,
                (None, false) => Status::Waiting,
            };
        }
        state
    }
}

/// Who has a job, as its file says: a token, the machine, the process, since when.
pub(crate) fn owner(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        [_, host, process, ..] => printable(&format!("{host}, process {process}")),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Job, Record, State, Status};
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    #[test]
    fn a_state_is_what_the_script_says_and_nothing_else_of_it() {
        let text = "alive=1\nowner=t box 12 99\nheartbeat_s=3\nrepetition=1\nexit=0\nbegun=1\nepochs=4\n\
                    last=ok\n\
                    repetition=2\nbegun=1\nlast=\u{1b}[2Jepoch\nrepetition=3\nlast=\n";
        let state = State::parse(text);
        assert_eq!((state.owner.as_str(), state.heartbeat_s), ("box, process 12", Some(3)));
        let statuses: Vec<Status> = state.repetitions.iter().map(|one| one.status).collect();
        assert_eq!(statuses, [Status::Completed, Status::Running, Status::Waiting]);
        assert!(!state.repetitions[1].last.contains('\u{1b}'));
        let dead = State::parse(&text.replace("alive=1", "alive=0"));
        assert_eq!(dead.repetitions[1].status, Status::Interrupted);
    }

    #[test]
    fn records_are_found_by_name_by_run_and_the_last_without() {
        let runs = tempfile::tempdir().unwrap();
        let record = |id: &str, launched| Record {
            id: id.to_owned(),
            target: "lab".to_owned(),
            root: "/x".to_owned(),
            launched,
            program: "/x/p".to_owned(),
            environment: BTreeMap::from([("A".to_owned(), "b c".to_owned())]),
            runs: vec![PathBuf::from(format!("runs/{id}/1"))],
            experiments: vec!["[model]\nname = \"digits\"\n".to_owned()],
        };
        assert!(Record::find(runs.path(), None).is_err());
        for (id, launched) in [("b-1", 1), ("a-2", 2)] {
            record(id, launched).write(runs.path()).unwrap();
        }
        assert_eq!(Record::find(runs.path(), None).unwrap(), record("a-2", 2));
        assert_eq!(Record::find(runs.path(), Some("runs/b-1/1")).unwrap().id, "b-1");
        let error = Record::find(runs.path(), Some("b-2")).unwrap_err().to_string();
        assert!(error.contains("did you mean"), "{error}");
    }

    #[test]
    fn a_script_quotes_what_it_is_given() {
        let job = Job {
            id: "a".to_owned(),
            program: "/it's/p".to_owned(),
            environment: BTreeMap::from([("A".to_owned(), "$(x)".to_owned())]),
            experiments: vec![String::new(); 2],
        };
        let script = job.script();
        assert!(script.contains("export A='$(x)'\nprogram='/it'\\''s/p'\nrepetitions='1 2'\n"), "{script}");
    }
}
