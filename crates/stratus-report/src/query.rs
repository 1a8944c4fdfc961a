//! Queries for runs: words, of which a run must match all.

use stratus_base::nearest;
use stratus_run::labels::RunLabels;
use stratus_run::summary::Status;

use crate::runs::RunListing;

/// The fields of a query, as in `tag:baseline`.
const FIELDS: [&str; 9] =
    ["tag", "name", "note", "commit", "branch", "status", "network", "data", "experiment"];

/// The statuses of a query, as in `status:failed`.
const STATUSES: [Status; 4] = [Status::Running, Status::Completed, Status::Interrupted, Status::Failed];

/// The minimum length of a beginning of a commit.
const MIN_COMMIT_DIGITS: usize = 4;

/// A query for runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunQuery {
    terms: Vec<Term>,
}

/// A word of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Term {
    /// A text in any field, ignoring case.
    Text(String),
    /// A text in one field, ignoring case.
    Field(&'static str, String),
    /// The value of a configuration key.
    Key(String, String),
}

/// A word of a query that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The query has no words.
    #[error("the query is empty")]
    Empty,
    /// A field has no text after its colon.
    #[error("`{0}:` has no text")]
    NoText(&'static str),
    /// No run has such a status.
    #[error("`{0}` is not a status: expected running, completed, interrupted or failed")]
    NoStatus(String),
    /// The beginning of a commit is too short.
    #[error("`{0}` is too short for a commit: expected at least {min} digits", min = MIN_COMMIT_DIGITS)]
    ShortCommit(String),
    /// The name of the field is misspelt.
    #[error("`{given}:` is not a field, did you mean `{field}:`?")]
    Misspelt {
        /// The name.
        given: String,
        /// The field.
        field: &'static str,
    },
}

impl RunQuery {
    /// Parses words: `FIELD:TEXT`, `KEY=VALUE`, or a text that any field may contain.
    ///
    /// # Errors
    /// If there is no word, a field is misspelt or empty, or no run can have its text.
    pub fn parse<W: AsRef<str>>(words: &[W]) -> Result<Self, QueryError> {
        let words = words.iter().map(|word| word.as_ref().trim()).filter(|word| !word.is_empty());
        let terms: Vec<Term> = words.map(Term::parse).collect::<Result<_, _>>()?;
        if terms.is_empty() { Err(QueryError::Empty) } else { Ok(Self { terms }) }
    }

    /// The configuration keys of the query.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().filter_map(|term| match term {
            Term::Key(key, _) => Some(key.as_str()),
            _ => None,
        })
    }

    /// Returns whether a run matches every word.
    #[must_use]
    pub fn matches(&self, run: &RunListing) -> bool {
        self.terms.iter().all(|term| term.matches(run))
    }
}

impl Term {
    fn parse(word: &str) -> Result<Self, QueryError> {
        if let Some((given, text)) = word.split_once(':')
            && given.chars().all(|c| c.is_ascii_alphabetic())
        {
            if let Some(field) = FIELDS.into_iter().find(|field| *field == given) {
                let text = text.trim().to_lowercase();
                return match field {
                    _ if text.is_empty() => Err(QueryError::NoText(field)),
                    "status" if STATUSES.iter().all(|status| status.name() != text) => {
                        Err(QueryError::NoStatus(text))
                    }
                    "commit" if text.len() < MIN_COMMIT_DIGITS => Err(QueryError::ShortCommit(text)),
                    _ => Ok(Self::Field(field, text)),
                };
            }
            let near =
                nearest(given, FIELDS).and_then(|near| FIELDS.into_iter().find(|field| *field == near));
            // A text such as an address has a colon too.
            if let Some(field) = near.filter(|_| !text.starts_with("//")) {
                return Err(QueryError::Misspelt { given: given.to_owned(), field });
            }
        }
        match word.split_once('=') {
            Some((key, value)) if key.contains('.') => {
                Ok(Self::Key(key.trim().to_owned(), value.trim().to_owned()))
            }
            _ => Ok(Self::Text(word.to_lowercase())),
        }
    }

    fn matches(&self, run: &RunListing) -> bool {
        match self {
            Self::Text(text) => {
                let is_in = |field| field_matches(run, field, text);
                contains(&run.path.display().to_string(), text) || FIELDS.into_iter().any(is_in)
            }
            Self::Field("tag", tag) => run.labels.tags.iter().any(|known| known.to_lowercase() == *tag),
            Self::Field(field, text) => field_matches(run, field, text),
            Self::Key(key, value) => run.has_setting(key, value),
        }
    }
}

/// Returns whether a field contains a text; for a commit, whether it begins with it.
fn field_matches(run: &RunListing, field: &str, text: &str) -> bool {
    let RunLabels { name, note, tags, git } = &run.labels;
    let is_in = |field: &Option<String>| field.as_deref().is_some_and(|field| contains(field, text));
    match field {
        "tag" => tags.iter().any(|tag| contains(tag, text)),
        "name" => is_in(name),
        "note" => is_in(note),
        "commit" => git.as_ref().is_some_and(|git| {
            text.len() >= MIN_COMMIT_DIGITS && git.commit.to_lowercase().starts_with(text)
        }),
        "branch" => git.as_ref().is_some_and(|git| is_in(&git.branch)),
        "status" => run.status.name() == text,
        "network" => contains(&run.network, text),
        "data" => contains(&run.data, text),
        _ => contains(&run.experiment, text),
    }
}

/// Returns whether `text`, in lower case, is part of a field.
fn contains(field: &str, text: &str) -> bool {
    field.to_lowercase().contains(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use stratus_run::RunDir;
    use stratus_run::git::GitCommit;

    fn listing() -> (tempfile::TempDir, RunListing) {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("digits/1");
        fs::create_dir_all(&path).unwrap();
        let text = "[experiment]\nname = \"digits\"\n[model]\nname = \"lenet\"\n[data]\nname = \"mnist\"\n\
                    [train]\nseed = 7\n[optimiser]\nlearning_rate = 0.1\n";
        fs::write(path.join("experiment.toml"), text).unwrap();
        let mut labels = RunLabels::default();
        labels.set_name("Wide net").unwrap();
        labels.set_note("see http://example.org").unwrap();
        labels.add_tag("baseline").unwrap();
        labels.add_tag("Ünï").unwrap();
        let commit = "abcdef".repeat(6) + "0123";
        labels.git = Some(GitCommit { commit, branch: Some("main".to_owned()), has_changes: None });
        labels.write(&RunDir::open(&path).unwrap().labels()).unwrap();
        let list = crate::runs::list(&[root.path()]).unwrap();
        let [line] = <[_; 1]>::try_from(list.runs).unwrap();
        (root, line)
    }

    #[test]
    fn run_matches_if_every_word_does() {
        let (_root, run) = listing();
        let matches = |words: &str| {
            let words: Vec<&str> = words.split(' ').collect();
            RunQuery::parse(&words).unwrap().matches(&run)
        };
        for words in [
            "wide",
            "WIDE net",
            "tag:baseline",
            "tag:Baseline",
            "tag:ünï",
            "base",
            "name:net",
            "commit:abcd",
            "abcdef",
            "branch:main",
            "status:interrupted",
            "network:lenet mnist",
            "digits/1",
            "train.seed=7",
            "optimiser.learning_rate=1e-1",
            "http://example.org",
            "data:mnist experiment:digits",
        ] {
            assert!(matches(words), "{words}");
        }
        for words in [
            "narrow",
            "wide narrow",
            "tag:base",
            "name:wider",
            "commit:bcde",
            "status:completed",
            "train.seed=8",
            "train.seed=",
            "no.key=1",
            "note:wide",
        ] {
            assert!(!matches(words), "{words}");
        }
    }

    #[test]
    fn misspelt_and_empty_fields_are_errors() {
        let parse = |words: &[&str]| RunQuery::parse(words).map(|_| ()).unwrap_err().to_string();
        assert_eq!(parse(&[]), "the query is empty");
        assert_eq!(parse(&[" "]), "the query is empty");
        assert_eq!(parse(&["tag:"]), "`tag:` has no text");
        assert_eq!(parse(&["tags:x"]), "`tags:` is not a field, did you mean `tag:`?");
        let status = "`complete` is not a status: expected running, completed, interrupted or failed";
        assert_eq!(parse(&["status:Complete"]), status);
        let commit = "`abc` is too short for a commit: expected at least 4 digits";
        assert_eq!(parse(&["commit:abc"]), commit);
        let query = RunQuery::parse(&["train.seed=1", "a=b"]).unwrap();
        assert_eq!(query.keys().collect::<Vec<_>>(), ["train.seed"]);
    }
}
