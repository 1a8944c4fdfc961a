//! The rows of a table, checked and in compact form.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;

use super::cells::{NOT_A_VALUE, Value, path_of, text_of, value_of};
use super::columns::{ColumnError, Columns, PATH_COLUMN};
use super::lists::Lists;
use super::names::Names;
use super::source::{Cell, Problem, Row, TableFile, printable};
use crate::dataset::TargetKind;
use crate::datasets::entry::TableOptions;
use crate::datasets::split::Split;
use crate::datasets::target_rows::{TargetRows, TargetRowsBuilder};
use crate::error::DataError;

/// The maximum number of labels in a column with a separator.
const MAX_LABELS: usize = 1 << 16;
/// The maximum number of different targets, 4 GiB.
const MAX_VALUES: usize = 1 << 30;
/// The maximum number of different targets of small files, and those per byte of larger ones.
const MAX_SMALL_VALUES: usize = 1 << 24;
const MAX_VALUES_PER_BYTE: usize = 256;

/// All rows of a table.
#[derive(Debug)]
pub(super) struct TableRows {
    /// The paths of the images.
    pub paths: Names,
    pub targets: TargetRows,
    /// The names of the labels or numbers.
    pub names: Vec<String>,
    pub kind: TargetKind,
    /// The published split of each row.
    pub splits: Option<Vec<Split>>,
    /// The group of each row, and the names of the groups.
    pub groups: Option<(Vec<u32>, Vec<String>)>,
    /// The number of rows that repeat an earlier one.
    pub repeated: usize,
}

impl TableRows {
    /// Reads a table.
    ///
    /// # Errors
    ///
    /// [`DataError::InvalidOption`], [`DataError::Unreadable`], or [`DataError::Invalid`] with the line and
    /// the column.
    pub(super) fn read(path: &Path, options: &TableOptions) -> Result<Self, DataError> {
        let invalid = |problem| DataError::Invalid { path: path.to_owned(), problem };
        let mut file = TableFile::open(path, PATH_COLUMN)?;
        let columns = Columns::new(file.columns(), options).map_err(|error| match error {
            ColumnError::Option { key, problem } => DataError::InvalidOption { key, problem },
            ColumnError::File(problem) => invalid(problem),
        })?;
        let names = columns.targets.iter().map(|&column| file.columns()[column].clone()).collect();
        let bytes = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let max_values = bytes.saturating_mul(MAX_VALUES_PER_BYTE).clamp(MAX_SMALL_VALUES, MAX_VALUES);
        let wanted = columns.all();
        let mut builder = RowsBuilder::new(columns, names, options.kind, max_values);
        builder.row_noun = file.row_noun();
        let read = file.read(&wanted, &mut |number, row| builder.add(number, row));
        let finished = read.and_then(|()| builder.finish());
        finished.map_err(|problem| invalid(file.describe(problem)))
    }

    /// The number of rows.
    pub(super) fn len(&self) -> usize {
        self.paths.len()
    }
}

/// The labels of rows, in a column with a separator.
#[derive(Debug, Default)]
struct LabelLists {
    names: Vec<String>,
    known: HashMap<String, u32>,
    /// The labels of each row, ascending.
    rows: Lists<u32>,
}

impl LabelLists {
    /// Adds the labels of a row; none if the text is empty.
    fn push(&mut self, text: &str, separator: char) -> Result<(), String> {
        for name in text.split(separator).map(str::trim).filter(|name| !name.is_empty()) {
            let label = match self.known.get(name) {
                Some(&label) => label,
                None => {
                    let label = self.names.len() as u32;
                    if self.names.len() == MAX_LABELS {
                        return Err(format!(
                            "more than {MAX_LABELS} different labels; is `{separator}` the separator?"
                        ));
                    }
                    self.names.push(name.to_owned());
                    self.known.insert(name.to_owned(), label);
                    label
                }
            };
            self.rows.push(label);
        }
        self.rows.sort_and_merge(|kept, next| kept == next);
        self.rows.finish();
        Ok(())
    }
}

/// Finds paths by their hashes.
#[derive(Default)]
struct KnownPaths {
    /// A row of each hash. Paths of equal hashes, of which there are practically none, are not found again.
    rows: HashMap<u64, u32>,
    hasher: RandomState,
}

impl KnownPaths {
    /// The row of a path; `None` if it will be added to `paths` as the next.
    fn find_or_add(&mut self, path: &str, paths: &Names) -> Option<usize> {
        let next = paths.len() as u32;
        let known = *self.rows.entry(self.hasher.hash_one(path)).or_insert(next);
        (known < next && paths.get(known as usize) == path).then_some(known as usize)
    }
}

/// Collects the rows of a table.
struct RowsBuilder {
    columns: Columns,
    /// The names of the targets.
    names: Vec<String>,
    /// The noun for the place of a row.
    row_noun: &'static str,
    kinds: CellKinds,
    rows: TableRows,
    lists: LabelLists,
    values: TargetRowsBuilder,
    /// The targets of the current row.
    row: Vec<f32>,
    known: KnownPaths,
    group_ids: HashMap<String, u32>,
    /// The line of each row.
    lines: Vec<u32>,
}

impl RowsBuilder {
    fn new(columns: Columns, names: Vec<String>, kind: Option<TargetKind>, max_values: usize) -> Self {
        let rows = TableRows {
            paths: Names::default(),
            targets: TargetRows::default(),
            names: Vec::new(),
            kind: TargetKind::Labels,
            splits: columns.split.map(|_| Vec::new()),
            groups: columns.group.map(|_| (Vec::new(), Vec::new())),
            repeated: 0,
        };
        let mut values = TargetRowsBuilder::new(columns.targets.len(), max_values);
        if kind == Some(TargetKind::Numbers) {
            values.store_all();
        }
        Self {
            columns,
            names,
            row_noun: "row",
            kinds: CellKinds { required: kind, first_word: None, first_number: None },
            rows,
            lists: LabelLists::default(),
            values,
            row: Vec::new(),
            known: KnownPaths::default(),
            group_ids: HashMap::new(),
            lines: Vec::new(),
        }
    }

    /// Adds a row, or counts it if it repeats an earlier one.
    fn add(&mut self, line: u64, row: &dyn Row) -> Result<(), Problem> {
        let at = |column: usize| move |text| Problem { row: Some(line), column: Some(column), text };
        let path_column = self.columns.path;
        let path = path_of(row.cell(path_column)).map_err(at(path_column))?;
        let split = match self.columns.split {
            Some(column) => Some(split_of(row.cell(column)).map_err(at(column))?),
            None => None,
        };
        let group = match self.columns.group {
            Some(column) => Some(self.group_of(row.cell(column)).map_err(at(column))?),
            None => None,
        };
        self.read_targets(line, row)?;
        if let Some(known) = self.known.find_or_add(&path, &self.rows.paths) {
            let conflict = self.conflict_with(known, split, group);
            if self.columns.separator.is_some() {
                self.lists.rows.pop();
            }
            if let Some(difference) = conflict {
                let first = self.lines.get(known).copied().unwrap_or_default();
                let (path, word) = (printable(&path), self.row_noun);
                let text = format!("`{path}` is in {word} {first} too, with {difference}");
                return Err(at(path_column)(text));
            }
            self.rows.repeated += 1;
            return Ok(());
        }
        let too_many = || at(path_column)("more than 4,294,967,294 rows, or 4 GiB of paths".to_owned());
        self.rows.paths.push(&path).map_err(|_| too_many())?;
        self.lines.push(u32::try_from(line).unwrap_or(u32::MAX));
        if let (Some(splits), Some(split)) = (&mut self.rows.splits, split) {
            splits.push(split);
        }
        if let (Some((groups, _)), Some(group)) = (&mut self.rows.groups, group) {
            groups.push(group);
        }
        if self.columns.separator.is_none() {
            let limit = self.values.max_values();
            self.values.push(&self.row).map_err(|_| too_many_targets(Some(line), limit))?;
        }
        Ok(())
    }

    /// Reads the targets of a row into `row`, or adds its labels.
    fn read_targets(&mut self, line: u64, row: &dyn Row) -> Result<(), Problem> {
        self.row.clear();
        for &column in &self.columns.targets {
            let at = |text| Problem { row: Some(line), column: Some(column), text };
            let cell = row.cell(column);
            if let Some(separator) = self.columns.separator {
                let Cell::Text(text) = cell else {
                    return Err(at("has numbers; expected names of labels".to_owned()));
                };
                self.lists.push(text, separator).map_err(at)?;
                continue;
            }
            let value = value_of(cell).map_err(|mut problem| {
                let has_word = matches!(cell, Cell::Text(text) if text.contains(char::is_alphabetic));
                if has_word && self.columns.targets.len() == 1 && problem.starts_with(NOT_A_VALUE) {
                    problem.push_str("; for a column of label names set data.label_separator");
                }
                at(problem)
            })?;
            if self.kinds.add(value, cell, (line, column), self.row_noun)? {
                self.values.store_all();
            }
            self.row.push(value.number);
        }
        Ok(())
    }

    /// The group of a row. Every row must have one.
    fn group_of(&mut self, cell: Cell<'_>) -> Result<u32, String> {
        let Some((_, names)) = &mut self.rows.groups else { return Ok(0) };
        let name = text_of(cell).ok_or("the group is empty; write one for every image")?;
        let next = u32::try_from(names.len()).map_err(|_| "too many groups")?;
        Ok(*self.group_ids.entry(name).or_insert_with_key(|name| {
            names.push(name.clone());
            next
        }))
    }

    /// The difference between the current row and an earlier one of the same path.
    fn conflict_with(&self, known: usize, split: Option<Split>, group: Option<u32>) -> Option<&'static str> {
        let equals_targets = if self.columns.separator.is_some() {
            self.lists.rows.get(known) == self.lists.rows.get(self.lists.rows.len() - 1)
        } else {
            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
            self.values.row(known).iter().zip(&self.row).all(same)
        };
        let has_other_split =
            self.rows.splits.as_ref().is_some_and(|splits| splits.get(known).copied() != split);
        let groups = self.rows.groups.as_ref();
        let has_other_group = groups.is_some_and(|(groups, _)| groups.get(known).copied() != group);
        match (equals_targets, has_other_split, has_other_group) {
            (false, ..) => Some("other labels or numbers"),
            (_, true, _) => Some("another split"),
            (_, _, true) => Some("another group"),
            _ => None,
        }
    }

    fn finish(mut self) -> Result<TableRows, Problem> {
        match self.rows.len() {
            0 => return Err(Problem::whole("has no rows; expected one per image".to_owned())),
            1 => {
                return Err(Problem::whole(
                    "has only one row; expected one per image, at least two".to_owned(),
                ));
            }
            _ => {}
        }
        self.known = KnownPaths::default();
        self.rows.kind = if self.kinds.are_labels() { TargetKind::Labels } else { TargetKind::Numbers };
        if self.columns.separator.is_some() {
            self.rows.kind = TargetKind::Labels;
            (self.rows.names, self.rows.targets) = self.lists.into_targets(self.values)?;
        } else {
            (self.rows.names, self.rows.targets) = (self.names, self.values.finish());
            let width = self.rows.names.len();
            let mut present = vec![false; width];
            for index in 0..self.rows.len() {
                for (present, value) in present.iter_mut().zip(self.rows.targets.row(index)) {
                    *present |= !value.is_nan();
                }
            }
            if let Some(target) = present.iter().position(|present| !present) {
                let column = self.columns.targets.get(target).copied();
                let text = "all cells are empty; remove the column, or list the others in data.columns";
                return Err(Problem { row: None, column, text: text.to_owned() });
            }
        }
        self.rows.paths.shrink();
        Ok(self.rows)
    }
}

impl LabelLists {
    /// The names of the labels, sorted, and the targets of the rows.
    fn into_targets(self, values: TargetRowsBuilder) -> Result<(Vec<String>, TargetRows), Problem> {
        drop(values);
        if self.names.is_empty() {
            let problem = "has no labels: the cells of the column are empty";
            return Err(Problem::whole(problem.to_owned()));
        }
        let mut order: Vec<u32> = (0..self.names.len() as u32).collect();
        order.sort_unstable_by_key(|&label| &self.names[label as usize]);
        let mut position = vec![0u32; order.len()];
        for (at, &label) in order.iter().enumerate() {
            position[label as usize] = at as u32;
        }
        let max_values = self.rows.elements().saturating_mul(MAX_VALUES_PER_BYTE);
        let max_values = max_values.clamp(MAX_SMALL_VALUES, MAX_VALUES);
        let mut targets = TargetRowsBuilder::new(order.len(), max_values);
        let mut row = vec![0.0; order.len()];
        for labels in self.rows.iter() {
            let set = |row: &mut [f32], value| {
                for &label in labels {
                    row[position[label as usize] as usize] = value;
                }
            };
            set(&mut row, 1.0);
            targets.push(&row).map_err(|_| too_many_targets(None, max_values))?;
            set(&mut row, 0.0);
        }
        let names = order.iter().map(|&label| self.names[label as usize].clone()).collect();
        Ok((names, targets.finish()))
    }
}

/// The problem of a table whose different rows have more than `limit` labels or numbers.
fn too_many_targets(row: Option<u64>, limit: usize) -> Problem {
    let text = format!(
        "the different rows have more than {limit} labels or numbers in all; select columns with data.columns"
    );
    Problem { row, column: None, text }
}

/// The split of a row.
fn split_of(cell: Cell<'_>) -> Result<Split, String> {
    let text = text_of(cell).unwrap_or_default();
    match text.to_ascii_lowercase().as_str() {
        "train" | "training" => Ok(Split::Train),
        "val" | "valid" | "validation" => Ok(Split::Validation),
        "test" => Ok(Split::Test),
        _ => Err(format!("unknown split `{}`; available: train, validation, test", printable(&text))),
    }
}

/// The kinds of the cells so far: labels, numbers, or either.
#[derive(Debug)]
struct CellKinds {
    required: Option<TargetKind>,
    /// The first cell that is only a label, and the first one that is only a number: line, column, and text.
    first_word: Option<(u64, usize, String)>,
    first_number: Option<(u64, String)>,
}

impl CellKinds {
    /// Adds a cell. Returns whether it is the first that is only a number.
    fn add(
        &mut self,
        value: Value,
        cell: Cell<'_>,
        (line, column): (u64, usize),
        row_noun: &str,
    ) -> Result<bool, Problem> {
        let text = || match cell {
            Cell::Text(text) => printable(text.trim()),
            Cell::Number(number) => number.to_string(),
        };
        let at = |text| Problem { row: Some(line), column: Some(column), text };
        match self.required {
            Some(TargetKind::Labels) if !value.is_label() => {
                let text = text();
                return Err(at(format!(
                    "expected a label (0, 1, true, false, yes, no or empty), found `{text}`"
                )));
            }
            Some(TargetKind::Numbers) if value.is_word => {
                return Err(at(format!("expected a number, found `{}`", text())));
            }
            _ => {}
        }
        if value.is_word && self.first_word.is_none() {
            self.first_word = Some((line, column, text()));
        }
        let is_first_number = !value.is_label() && self.first_number.is_none();
        if is_first_number {
            self.first_number = Some((line, text()));
        }
        match (&self.first_word, &self.first_number) {
            (Some((line, column, word)), Some((other, number))) => {
                let text = format!(
                    "expected a number, found `{word}`: {row_noun} {other} has the number `{number}`"
                );
                Err(Problem { row: Some(*line), column: Some(*column), text })
            }
            _ => Ok(is_first_number),
        }
    }

    fn are_labels(&self) -> bool {
        match self.required {
            Some(kind) => kind == TargetKind::Labels,
            None => self.first_number.is_none(),
        }
    }
}
