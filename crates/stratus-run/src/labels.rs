//! `labels.json`: the name, note and tags that a person gave a run, and the commit of the folder in which it
//! was started. Training writes the file once, before the first iteration; later changes do not need the
//! run's lock.

use std::path::Path;

use serde::{Deserialize, Serialize};
use stratus_base::text::is_printable;
use stratus_base::{printable, read_at_most};

use crate::git::GitCommit;
use crate::{Error, Result, atomic};

/// The maximum length of a name in characters.
pub const MAX_NAME_CHARS: usize = 100;
/// The maximum length of a note in characters.
pub const MAX_NOTE_CHARS: usize = 10_000;
/// The maximum length of a tag in characters.
pub const MAX_TAG_CHARS: usize = 50;
/// The maximum number of tags of a run.
pub const MAX_TAGS: usize = 100;
/// The maximum size of the file: more than the longest labels take with all characters escaped.
const MAX_LABELS_BYTES: u64 = 256 << 10;

/// The labels of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunLabels {
    /// A name for people. It is not that of the run directory, and several runs may have it.
    pub name: Option<String>,
    /// A text of any number of lines.
    pub note: Option<String>,
    /// The tags, in the order in which they were added.
    pub tags: Vec<String>,
    /// The commit of the folder in which the run was started; `None` outside of a repository.
    pub git: Option<GitCommit>,
}

/// A label that a run cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// The name is empty, too long or not one line.
    #[error(
        "`{}` is not a name for a run: use one line of 1 to {MAX_NAME_CHARS} characters",
        printable(.0)
    )]
    Name(String),
    /// The note is too long, or has control characters.
    #[error("the note must have at most {MAX_NOTE_CHARS} characters, and no control characters")]
    Note,
    /// The tag is empty, too long, or has other characters.
    #[error(
        "`{}` is not a tag: use 1 to {MAX_TAG_CHARS} letters, digits and -_.:/+@, the first one a letter or \
         digit",
        printable(.0)
    )]
    Tag(String),
    /// There are too many tags.
    #[error("a run has at most {MAX_TAGS} tags")]
    TagCount,
}

impl RunLabels {
    /// Reads the labels of a run; those of a run without the file are empty.
    ///
    /// # Errors
    /// If the file cannot be read, or does not have labels.
    pub fn read(path: &Path) -> Result<Self> {
        let damaged = |reason: String| Error::damaged(path, reason, "correct it, or remove it");
        if !path.exists() {
            return Ok(Self::default());
        }
        let bytes = read_at_most(path, MAX_LABELS_BYTES).map_err(Error::io("read", path))?;
        // Serde accepts a list in place of an object.
        if bytes.trim_ascii_start().first() != Some(&b'{') {
            return Err(damaged("not a JSON object".to_owned()));
        }
        let labels: Self =
            serde_json::from_slice(&bytes).map_err(|error| damaged(atomic::unexpected_json(&error)))?;
        labels.check().map_err(|error| damaged(error.to_string()))?;
        match &labels.git {
            Some(git) if !git.is_valid() => Err(damaged("`git` has no valid commit".to_owned())),
            _ => Ok(labels),
        }
    }

    /// Replaces the labels of a run.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        atomic::write_json(path, self)
    }

    /// Returns whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Sets the name, without the space around it; an empty text removes it.
    ///
    /// # Errors
    /// If the name is invalid.
    pub fn set_name(&mut self, name: &str) -> Result<(), LabelError> {
        let name = Some(name.trim()).filter(|name| !name.is_empty());
        name.map_or(Ok(()), check_name)?;
        self.name = name.map(str::to_owned);
        Ok(())
    }

    /// Sets the note, without the space around it; an empty text removes it.
    ///
    /// # Errors
    /// If the note is invalid.
    pub fn set_note(&mut self, note: &str) -> Result<(), LabelError> {
        let note = Some(note.trim()).filter(|note| !note.is_empty());
        note.map_or(Ok(()), check_note)?;
        self.note = note.map(str::to_owned);
        Ok(())
    }

    /// Adds a tag, if the run does not have it yet.
    ///
    /// # Errors
    /// If the tag is invalid, or there are too many.
    pub fn add_tag(&mut self, tag: &str) -> Result<(), LabelError> {
        let tag = tag.trim();
        check_tag(tag)?;
        if self.tags.iter().any(|known| known == tag) {
            return Ok(());
        }
        if self.tags.len() >= MAX_TAGS {
            return Err(LabelError::TagCount);
        }
        self.tags.push(tag.to_owned());
        Ok(())
    }

    /// Removes a tag; returns whether the run had it.
    pub fn remove_tag(&mut self, tag: &str) -> bool {
        let count = self.tags.len();
        self.tags.retain(|known| known != tag.trim());
        self.tags.len() < count
    }

    /// The note as one line of at most `max_chars` characters.
    #[must_use]
    pub fn note_line(&self, max_chars: usize) -> Option<String> {
        let words = self.note.as_ref()?.split_whitespace().collect::<Vec<_>>().join(" ");
        if words.chars().count() <= max_chars {
            return Some(words);
        }
        let start: String = words.chars().take(max_chars.saturating_sub(1)).collect();
        Some(start.trim_end().to_owned() + "…")
    }

    /// Checks labels that were read from a file.
    fn check(&self) -> Result<(), LabelError> {
        self.name.as_deref().map_or(Ok(()), check_name)?;
        self.note.as_deref().map_or(Ok(()), check_note)?;
        self.tags.iter().try_for_each(|tag| check_tag(tag))?;
        if self.tags.len() > MAX_TAGS { Err(LabelError::TagCount) } else { Ok(()) }
    }
}

fn check_name(name: &str) -> Result<(), LabelError> {
    let is_valid = (1..=MAX_NAME_CHARS).contains(&name.chars().count()) && name.chars().all(is_printable);
    if is_valid { Ok(()) } else { Err(LabelError::Name(name.to_owned())) }
}

fn check_note(note: &str) -> Result<(), LabelError> {
    let is_valid = |c: char| c == '\n' || c == '\t' || is_printable(c);
    let is_short = note.chars().count() <= MAX_NOTE_CHARS;
    if is_short && note.chars().all(is_valid) { Ok(()) } else { Err(LabelError::Note) }
}

fn check_tag(tag: &str) -> Result<(), LabelError> {
    let is_valid = |c: char| c.is_alphanumeric() || "-_.:/+@".contains(c);
    let starts = tag.starts_with(char::is_alphanumeric);
    let is_short = tag.chars().count() <= MAX_TAG_CHARS;
    if starts && is_short && tag.chars().all(is_valid) {
        Ok(())
    } else {
        Err(LabelError::Tag(tag.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_survive_a_round_trip_and_a_missing_file_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("labels.json");
        assert!(RunLabels::read(&path).unwrap().is_empty());
        let mut labels = RunLabels::default();
        labels.set_name(" wide network ").unwrap();
        labels.set_note("two\nlines with \"quotes\" and <b>").unwrap();
        for tag in ["baseline", "größe/2", "baseline", "v1.0"] {
            labels.add_tag(tag).unwrap();
        }
        labels.git =
            Some(GitCommit { commit: "0123456789".repeat(4), branch: None, has_changes: Some(true) });
        assert_eq!(labels.tags, ["baseline", "größe/2", "v1.0"]);
        assert_eq!(labels.name.as_deref(), Some("wide network"));
        labels.write(&path).unwrap();
        assert_eq!(RunLabels::read(&path).unwrap(), labels);
        assert!(labels.remove_tag("v1.0") && !labels.remove_tag("v1.0"));
        labels.set_note(" ").unwrap();
        labels.set_name("").unwrap();
        assert_eq!((labels.name, labels.note), (None, None));
        // A later version may write more keys.
        std::fs::write(&path, r#"{"name": "a", "colour": "red"}"#).unwrap();
        assert_eq!(RunLabels::read(&path).unwrap().name.as_deref(), Some("a"));
    }

    #[test]
    fn rejects_labels_that_cannot_be_shown() {
        let mut labels = RunLabels::default();
        for tag in ["", " ", "a b", "a,b", "<script>", "-a", "..", "a\n", "a\u{1b}[31m", &"x".repeat(51)] {
            let is_trimmed = tag.trim() != tag && !tag.trim().is_empty();
            assert_eq!(labels.add_tag(tag).is_ok(), is_trimmed, "{tag:?}");
        }
        for name in ["a\nb", "\u{1b}[31m", "a\u{202e}b", &"x".repeat(101)] {
            assert!(matches!(labels.set_name(name), Err(LabelError::Name(_))), "{name:?}");
        }
        assert_eq!(labels.set_note("\u{7}"), Err(LabelError::Note));
        assert_eq!(labels.set_note(&"ä".repeat(10_001)), Err(LabelError::Note));
        labels.set_note(&"ä".repeat(10_000)).unwrap();
        let message = labels.set_name("a\u{1b}b\n").unwrap_err().to_string();
        assert!(!message.contains('\u{1b}'), "{message}");
        let add = |labels: &mut RunLabels| (0..200).try_for_each(|n| labels.add_tag(&format!("t{n}")));
        assert_eq!(add(&mut labels), Err(LabelError::TagCount));
    }

    #[test]
    fn damaged_file_is_reported_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("labels.json");
        for text in [
            "",
            "{\"name\": \"a",
            "[]",
            "{\"name\": \"\\u001b[2J\"}",
            "{\"tags\": [\"a b\"]}",
            "{\"git\": {\"commit\": \"<script>\"}}",
        ] {
            std::fs::write(&path, text).unwrap();
            let error = RunLabels::read(&path).unwrap_err().to_string();
            assert!(error.contains("labels.json is damaged"), "{text}: {error}");
            assert!(!error.contains('\u{1b}'), "{error}");
        }
        std::fs::File::create(&path).unwrap().set_len(MAX_LABELS_BYTES + 1).unwrap();
        assert!(RunLabels::read(&path).unwrap_err().to_string().contains("larger than 256 KiB"));
    }

    #[test]
    fn note_is_shortened_to_a_line() {
        let mut labels = RunLabels::default();
        assert_eq!(labels.note_line(10), None);
        labels.set_note("one\ntwo  three").unwrap();
        assert_eq!(labels.note_line(13).as_deref(), Some("one two three"));
        assert_eq!(labels.note_line(9).as_deref(), Some("one two…"));
    }
}
