//! The columns of a table and their roles.

use stratus_base::{did_you_mean, nearest};

use super::source::printable;
use crate::dataset::TargetKind;
use crate::datasets::entry::TableOptions;

/// The column of the images' paths.
pub(super) const PATH_COLUMN: &str = "path";
/// The column of the published split.
pub(super) const SPLIT_COLUMN: &str = "split";
/// The beginning of the names of columns in which pandas stores its index.
const PANDAS_INDEX: &str = "__index_level_";
/// The maximum number of columns in a message.
const MAX_LISTED_COLUMNS: usize = 20;

/// The columns that are read, by their indices in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Columns {
    pub path: usize,
    pub split: Option<usize>,
    pub group: Option<usize>,
    /// The columns of labels or numbers; a single one with a separator.
    pub targets: Vec<usize>,
    /// The separator of the names in the column of labels.
    pub separator: Option<char>,
}

impl Columns {
    /// The roles of the columns named `names`.
    ///
    /// # Errors
    ///
    /// A [`ColumnError`].
    pub(super) fn new(names: &[String], options: &TableOptions) -> Result<Self, ColumnError> {
        let position = |name: &str| names.iter().position(|known| known == name);
        let unknown = |name: &str| {
            let hint = did_you_mean(nearest(name, names.iter().map(String::as_str)));
            format!("no column `{}`{hint}; the columns are {}", printable(name), listed(names))
        };
        let option = |key, problem| Err(ColumnError::Option { key, problem });
        let twice = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name));
        let path = position(PATH_COLUMN).ok_or_else(|| ColumnError::File(unknown(PATH_COLUMN)))?;
        let split = position(SPLIT_COLUMN);
        let group = match &options.group_by {
            Some(name) => match position(name) {
                Some(group) => Some(group),
                None => return option("data.group_by", unknown(name)),
            },
            None => None,
        };
        let mut targets = Vec::new();
        for name in &options.columns {
            match position(name) {
                Some(column) if column == path => {
                    return option("data.columns", format!("`{name}` is the column of paths"));
                }
                Some(column) if Some(column) == split => {
                    return option("data.columns", format!("`{name}` is the column of splits"));
                }
                Some(column) if targets.contains(&column) => {
                    return option("data.columns", format!("`{name}` is listed twice"));
                }
                Some(column) => targets.push(column),
                None => return option("data.columns", unknown(name)),
            }
        }
        if options.columns.is_empty() {
            let is_target = |&column: &usize| {
                column != path
                    && Some(column) != split
                    && Some(column) != group
                    && !names[column].starts_with(PANDAS_INDEX)
            };
            targets = (0..names.len()).filter(is_target).collect();
        }
        let used = |name: &&String| {
            let column = position(name);
            column.is_some_and(|column| {
                column == path || Some(column) == split || Some(column) == group || targets.contains(&column)
            })
        };
        if let Some(name) = twice.map(|(_, name)| name).filter(used) {
            return Err(ColumnError::File(format!("has two columns `{}`", printable(name))));
        }
        if targets.is_empty() {
            let problem = format!("no column of labels or numbers; the columns are {}", listed(names));
            return Err(ColumnError::File(problem));
        }
        if options.separator.is_some() && targets.len() != 1 {
            let problem = format!("needs one column of labels, found {}; set data.columns", targets.len());
            return option("data.label_separator", problem);
        }
        if options.separator.is_some() && options.kind == Some(TargetKind::Numbers) {
            return option("data.label_separator", "is set, but the loss needs numbers".to_owned());
        }
        Ok(Self { path, split, group, targets, separator: options.separator })
    }

    /// The columns to read.
    pub(super) fn all(&self) -> Vec<usize> {
        let mut all = vec![self.path];
        all.extend(self.split.iter().chain(&self.group).chain(&self.targets));
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// A problem of the columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ColumnError {
    /// Of a key.
    Option { key: &'static str, problem: String },
    /// Of the file.
    File(String),
}

fn listed(names: &[String]) -> String {
    let some: Vec<String> = names.iter().take(MAX_LISTED_COLUMNS).map(|name| printable(name)).collect();
    let more = if names.len() > some.len() { ", …" } else { "" };
    format!("`{}`{more}", some.join("`, `"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(names: &[&str], options: &TableOptions) -> Result<Columns, ColumnError> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        Columns::new(&names, options)
    }

    #[test]
    fn other_columns_are_targets() {
        let options = TableOptions { group_by: Some("patient".to_owned()), ..TableOptions::default() };
        let names = ["a", "split", "path", "patient", "b", "__index_level_0__"];
        let found = columns(&names, &options).unwrap();
        let expected =
            Columns { path: 2, split: Some(1), group: Some(3), targets: vec![0, 4], separator: None };
        assert_eq!(found, expected);
        assert_eq!(found.all(), [0, 1, 2, 3, 4]);
        let options =
            TableOptions { columns: vec!["b".to_owned(), "a".to_owned()], ..TableOptions::default() };
        assert_eq!(columns(&names, &options).unwrap().targets, [4, 0]);
    }

    #[test]
    fn rejects_columns_that_are_missing_or_have_another_role() {
        let named = |columns: &[&str]| TableOptions {
            columns: columns.iter().map(|&name| name.to_owned()).collect(),
            ..TableOptions::default()
        };
        let grouped =
            |name: &str| TableOptions { group_by: Some(name.to_owned()), ..TableOptions::default() };
        let separated = TableOptions { separator: Some('|'), ..TableOptions::default() };
        for (names, options, expected) in [
            (
                &["Path", "a"][..],
                named(&[]),
                "no column `path`, did you mean `Path`?; the columns are `Path`, `a`",
            ),
            (&["path"], named(&[]), "no column of labels or numbers; the columns are `path`"),
            (&["path", "a", "a"], named(&[]), "has two columns `a`"),
            (
                &["path", "scratch"],
                named(&["scratsh"]),
                "data.columns: no column `scratsh`, did you mean `scratch`?; the columns are `path`, \
                 `scratch`",
            ),
            (&["path", "a"], named(&["path"]), "data.columns: `path` is the column of paths"),
            (&["path", "a"], named(&["a", "a"]), "data.columns: `a` is listed twice"),
            (
                &["path", "a"],
                grouped("b"),
                "data.group_by: no column `b`, did you mean `a`?; the columns are `path`, `a`",
            ),
            (
                &["path", "a", "b"],
                separated,
                "data.label_separator: needs one column of labels, found 2; set data.columns",
            ),
        ] {
            let found = match columns(names, &options).unwrap_err() {
                ColumnError::Option { key, problem } => format!("{key}: {problem}"),
                ColumnError::File(problem) => problem,
            };
            assert_eq!(found, expected);
        }
    }
}
