//! Files between images that are no images, such as notes. They are ignored, with a warning.

use std::fmt;

/// The maximum number of files in a warning.
const MAX_EXAMPLES: usize = 5;

/// The files in the folders of images that are images neither by their names nor by their contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IgnoredFiles {
    count: usize,
    examples: Vec<String>,
}

impl IgnoredFiles {
    /// Adds a file. Of many files only the first names are kept.
    pub(crate) fn add(&mut self, name: impl FnOnce() -> String) {
        self.count += 1;
        if self.examples.len() < MAX_EXAMPLES {
            self.examples.push(name());
        }
    }

    /// Adds the files of another part of the data set, unless they are the same: parts may be of one folder.
    pub fn extend(&mut self, other: &Self) {
        if self == other {
            return;
        }
        self.count += other.count;
        let missing = MAX_EXAMPLES - self.examples.len();
        self.examples.extend(other.examples.iter().take(missing).cloned());
    }

    /// Their number.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The names of the first files.
    #[must_use]
    pub fn examples(&self) -> &[String] {
        &self.examples
    }

    /// The text of a warning; `None` if there are no such files.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        (!self.is_empty()).then(|| self.to_string())
    }

    /// Memory in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.examples.iter().map(|name| size_of::<String>() + name.capacity()).sum::<usize>() as u64
    }
}

/// Displayed as `ignoring 2 files that are not images: set/cat/notes.txt, set/dog/notes.txt`. Control
/// characters in names are escaped.
impl fmt::Display for IgnoredFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (plural, verb) = if self.count == 1 { ("", "is") } else { ("s", "are") };
        let none = if self.count == 1 { "no image" } else { "not images" };
        write!(f, "ignoring {} file{plural} that {verb} {none}: ", self.count)?;
        for (at, name) in self.examples.iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            let escape = |letter: char| {
                if letter.is_control() { letter.escape_default().to_string() } else { letter.to_string() }
            };
            write!(f, "{separator}{}", name.chars().map(escape).collect::<String>())?;
        }
        if self.count > self.examples.len() { f.write_str(", …") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[&str]) -> IgnoredFiles {
        let mut files = IgnoredFiles::default();
        names.iter().for_each(|name| files.add(|| (*name).to_owned()));
        files
    }

    #[test]
    fn names_the_first_files_and_counts_all() {
        assert_eq!(files(&[]).warning(), None);
        let one = files(&["a/notes\n\u{1b}[2J.txt"]).warning();
        assert_eq!(one.as_deref(), Some("ignoring 1 file that is no image: a/notes\\n\\u{1b}[2J.txt"));
        let mut many = files(&["1", "2", "3"]);
        many.extend(&files(&["4", "5", "6", "7", "8", "9"]));
        many.extend(&many.clone());
        assert_eq!(many.to_string(), "ignoring 9 files that are not images: 1, 2, 3, 4, 5, …");
    }
}
