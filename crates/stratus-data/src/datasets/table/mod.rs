//! Tables of images with labels or numbers: a CSV or Parquet file with a column `path`, relative to its
//! folder, and a column for each label or number, or one column with the names of the labels.
//!
//! Cells of labels are 0, 1, true, false, yes, no, or empty if the label is unknown. A column `split` holds
//! the published split. Only paths and targets are in memory; images are read by the loader's threads.
//! Samples are in the order of the table.

mod cells;
mod columns;
mod csv;
mod lists;
mod names;
mod parquet;
mod rows;
mod source;
mod split;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use self::columns::PATH_COLUMN;
use self::names::Names;
use self::rows::TableRows;
use self::source::{Cell, TableFile, printable};
use super::files;
use super::target_rows::TargetRows;
use crate::dataset::{
    Dataset, FileDetail, IGNORED, MAX_LISTED_SAMPLES, RegionRequest, Sample, Scratch, StoredFile, TargetKind,
    reject_damaged,
};
use crate::datasets::entry::{DatasetEntry, OpenOptions};
use crate::datasets::split::{Split, SplitMethod};
use crate::error::DataError;
use crate::parallel;
use crate::transform::pixels::Normalisation;

const NAME: &str = "table";

/// The names of a table in a folder of images.
const FILE_NAMES: [&str; 2] = ["labels.csv", "labels.parquet"];

/// The registry entry.
pub static ENTRY: DatasetEntry = DatasetEntry {
    name: NAME,
    summary: "your own images with labels or numbers: a CSV or Parquet file with a column `path`",
    open: |root, split, options| Ok(Box::new(Table::open(root, split, options)?)),
    files: &[],
    mirrors: &[],
};

/// Returns whether a path is a CSV or Parquet file with a column `path`, or a folder that has one named
/// `labels.csv` or `labels.parquet`.
#[must_use]
pub fn looks_like_table(root: &Path) -> bool {
    let has_paths = |file: &Path| {
        let extension = file.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let is_named = ["csv", "tsv", "parquet"].iter().any(|known| extension.eq_ignore_ascii_case(known));
        let opened = is_named.then(|| TableFile::open(file, PATH_COLUMN).ok()).flatten();
        opened.is_some_and(|table| table.columns().iter().any(|column| column == PATH_COLUMN))
    };
    if root.is_file() { has_paths(root) } else { FILE_NAMES.iter().any(|name| has_paths(&root.join(name))) }
}

/// One split of a table.
#[derive(Debug)]
pub struct Table {
    /// The folder of the table.
    root: PathBuf,
    paths: Names,
    targets: TargetRows,
    /// The names of the targets.
    names: Vec<String>,
    kind: TargetKind,
    damaged: Vec<(u32, String)>,
    warnings: Vec<String>,
    /// True if a label that is not named does not apply, since cells list all labels.
    has_all_labels: bool,
}

impl Table {
    /// Opens a split of the table `root`, or of the one in the folder `root`. Checks the beginning and end of
    /// every image, unless `options.verify` is off.
    ///
    /// # Errors
    ///
    /// [`DataError`]: an invalid table, with line and column; a label or number that the training split does
    /// not have; an empty split; damaged images, with their number and the first few.
    pub fn open(root: &Path, split: Split, options: &OpenOptions) -> Result<Self, DataError> {
        let unused = [
            ("data.classes", options.class_list.is_some()),
            ("data.images_per_class", options.images_per_class.is_some()),
        ];
        if let Some((key, _)) = unused.into_iter().find(|(_, is_set)| *is_set) {
            let problem = "a table has labels or numbers, not classes; select columns with data.columns";
            return Err(DataError::InvalidOption { key, problem: problem.to_owned() });
        }
        let file = table_file(root)?;
        let rows = TableRows::read(&file, &options.table)?;
        let [samples, training] = samples_of(&file, &rows, [split, Split::Train], options)?;
        if samples.is_empty() {
            return Err(DataError::TooFewRows { path: file, split, rows: rows.len() });
        }
        // A table may have images of a test only, for a network that was trained on another one.
        if split != Split::Train && !training.is_empty() {
            require_in_training(&file, &rows, &training, &samples, split)?;
        }
        let mut warnings = Vec::new();
        if rows.repeated > 0 {
            let plural = if rows.repeated == 1 { "" } else { "s" };
            warnings.push(format!("{}: ignored {} repeated row{plural}", file.display(), rows.repeated));
        }
        if let (SplitMethod::Seeded(_), Some(splits)) = (&options.split_method, &rows.splits) {
            let unused = splits.iter().filter(|split| **split != Split::Train).count();
            if unused > 0 {
                warnings.push(format!(
                    "{}: data.split_seed divides the rows of the split `train`; {unused} of other splits are \
                     not used",
                    file.display()
                ));
            }
        }
        let mut set = Self {
            has_all_labels: options.table.separator.is_some(),
            root: file.parent().unwrap_or(Path::new("")).to_owned(),
            paths: rows.paths.select(&samples),
            targets: rows.targets.select(&samples),
            names: rows.names,
            kind: rows.kind,
            damaged: Vec::new(),
            warnings,
        };
        if options.verify {
            set.damaged = parallel::collect_problems(set.len(), |scratch, index| set.probe(index, scratch));
        }
        if !options.skip_damaged {
            reject_damaged(&set, split)?;
        }
        Ok(set)
    }

    /// Checks the beginning and end of an image.
    fn probe(&self, index: usize, scratch: &mut Scratch) -> Result<(), String> {
        let Scratch { encoded, decoded, path, images, .. } = scratch;
        files::set_path(path, &self.root, self.paths.get(index));
        files::probe(path, images, encoded, decoded).map(drop)
    }

    fn check_index(&self, index: usize) -> Result<(), DataError> {
        if index < self.len() {
            return Ok(());
        }
        Err(DataError::SampleOutOfRange { dataset: NAME.to_owned(), index, len: self.len() })
    }

    /// Reads an image, or only the region that `region` returns.
    fn read_sample<'a>(
        &self,
        index: usize,
        scratch: &'a mut Scratch,
        region: Option<RegionRequest<'_>>,
    ) -> Result<Sample<'a>, DataError> {
        self.check_index(index)?;
        files::set_path(&mut scratch.path, &self.root, self.paths.get(index));
        let sample = files::decode_sample(scratch, region, |_, _, _| Ok(IGNORED))
            .map_err(|problem| DataError::BadSample { sample: self.sample_name(index), problem })?;
        Ok(Sample { mask: None, ..sample })
    }
}

/// The table file of a root.
fn table_file(root: &Path) -> Result<PathBuf, DataError> {
    let metadata =
        std::fs::metadata(root).map_err(|cause| DataError::Unreadable { path: root.to_owned(), cause })?;
    if !metadata.is_dir() {
        return Ok(root.to_owned());
    }
    let found: Vec<PathBuf> =
        FILE_NAMES.iter().map(|name| root.join(name)).filter(|path| path.exists()).collect();
    let invalid = |problem: String| Err(DataError::Invalid { path: root.to_owned(), problem });
    match &found[..] {
        [file] => Ok(file.clone()),
        [] => invalid(format!("no `{}`; pass the CSV or Parquet file", FILE_NAMES.join("` or `"))),
        _ => invalid(format!("found `{}`; pass one of them", FILE_NAMES.join("` and `"))),
    }
}

/// The rows of two splits, ascending.
fn samples_of(
    file: &Path,
    rows: &TableRows,
    wanted: [Split; 2],
    options: &OpenOptions,
) -> Result<[Vec<u32>; 2], DataError> {
    let all = || 0..rows.len() as u32;
    let published = |splits: &[Split], wanted: Split| -> Vec<u32> {
        all().filter(|&row| splits.get(row as usize) == Some(&wanted)).collect()
    };
    match (&options.split_method, &rows.splits) {
        (SplitMethod::Unsplit, None) => Ok([all().collect(), all().collect()]),
        (SplitMethod::Lists(_), _) => {
            let listed = |split| match options.split_method.list_of(split) {
                Some(list) => listed_split(rows, list),
                None => Ok(Vec::new()),
            };
            Ok([listed(wanted[0])?, listed(wanted[1])?])
        }
        (SplitMethod::Seeded(seed), splits) => {
            let samples = match splits {
                Some(splits) => published(splits, Split::Train),
                None => all().collect(),
            };
            Ok(split::seeded_splits(rows, &samples, *seed, wanted))
        }
        (SplitMethod::Published, None) => Err(DataError::MissingSplits {
            root: file.to_owned(),
            found: "no column `split`".to_owned(),
            divided: "the rows",
            remedy: "add a column `split` with train, validation or test",
        }),
        (SplitMethod::Published | SplitMethod::Unsplit, Some(splits)) => {
            let published = |split| {
                // A table with two splits uses the second for validation and test.
                let other = match split {
                    Split::Train => Split::Train,
                    Split::Validation => Split::Test,
                    Split::Test => Split::Validation,
                };
                let own = published(splits, split);
                if own.is_empty() { published(splits, other) } else { own }
            };
            let samples = published(wanted[0]);
            if samples.is_empty() {
                let problem =
                    format!("no row has the split `{}`; add some, or remove the column `split`", wanted[0]);
                return Err(DataError::Invalid { path: file.to_owned(), problem });
            }
            Ok([samples, published(wanted[1])])
        }
    }
}

/// The rows that a list file names by their paths, ascending.
fn listed_split(rows: &TableRows, list: &Path) -> Result<Vec<u32>, DataError> {
    let text = files::read_list(list)?;
    let known: HashMap<&str, u32> = (0..rows.len()).map(|row| (rows.paths.get(row), row as u32)).collect();
    let invalid = |problem| DataError::Invalid { path: list.to_owned(), problem };
    let mut samples = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let path = cells::path_of(Cell::Text(line))
            .map_err(|problem| invalid(format!("line {}: {problem}", number + 1)))?;
        let row = known.get(path.as_ref()).ok_or_else(|| {
            invalid(format!("line {}: `{}` is not in the table", number + 1, printable(line)))
        })?;
        samples.push(*row);
    }
    let count = samples.len();
    samples.sort_unstable();
    samples.dedup();
    if samples.len() < count {
        return Err(invalid(format!("{} duplicate images", count - samples.len())));
    }
    Ok(samples)
}

/// Checks that every label of a split, and every number, occurs in the training split.
fn require_in_training(
    file: &Path,
    rows: &TableRows,
    training: &[u32],
    samples: &[u32],
    split: Split,
) -> Result<(), DataError> {
    let occurring = |samples: &[u32]| {
        let mut occurring = vec![false; rows.names.len()];
        for &sample in samples {
            for (occurs, target) in occurring.iter_mut().zip(rows.targets.row(sample as usize)) {
                *occurs |= match rows.kind {
                    TargetKind::Labels => *target > 0.5,
                    TargetKind::Numbers => !target.is_nan(),
                };
            }
        }
        occurring
    };
    let (in_training, in_split) = (occurring(training), occurring(samples));
    let missing: Vec<String> = in_training
        .iter()
        .zip(&in_split)
        .zip(&rows.names)
        .filter(|((training, split), _)| **split && !**training)
        .map(|(_, name)| printable(name))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let listed = &missing[..missing.len().min(MAX_LISTED_SAMPLES)];
    let more = if missing.len() > listed.len() { ", …" } else { "" };
    let kind = match rows.kind {
        TargetKind::Labels => "labels",
        TargetKind::Numbers => "numbers",
    };
    let problem = format!(
        "{kind} that occur in the {split} split, but never in the training split ({}): `{}`{more}; move \
         images, or select columns with data.columns",
        missing.len(),
        listed.join("`, `")
    );
    Err(DataError::Invalid { path: file.to_owned(), problem })
}

impl Dataset for Table {
    fn name(&self) -> &str {
        NAME
    }

    fn len(&self) -> usize {
        self.paths.len()
    }

    fn classes(&self) -> usize {
        self.names.len()
    }

    fn class_name(&self, class: usize) -> String {
        self.names.get(class).cloned().unwrap_or_else(|| class.to_string())
    }

    fn sample_shape(&self) -> Option<[usize; 3]> {
        None
    }

    fn sample_name(&self, index: usize) -> String {
        if index < self.len() {
            self.root.join(self.paths.get(index)).display().to_string()
        } else {
            format!("sample {index}")
        }
    }

    fn label(&self, index: usize) -> Result<u32, DataError> {
        self.check_index(index).map(|()| IGNORED)
    }

    fn target_kind(&self) -> Option<TargetKind> {
        Some(self.kind)
    }

    fn target_of_other_labels(&self) -> f32 {
        if self.has_all_labels { 0.0 } else { f32::NAN }
    }

    fn targets(&self, index: usize) -> Result<&[f32], DataError> {
        self.check_index(index)?;
        Ok(self.targets.row(index))
    }

    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        self.read_sample(index, scratch, None)
    }

    fn read_region<'a>(
        &'a self,
        index: usize,
        scratch: &'a mut Scratch,
        region: RegionRequest<'_>,
    ) -> Result<Sample<'a>, DataError> {
        self.read_sample(index, scratch, Some(region))
    }

    fn encoded<'a>(&self, index: usize, scratch: &'a mut Scratch) -> Result<Option<&'a [u8]>, DataError> {
        self.check_index(index)?;
        files::set_path(&mut scratch.path, &self.root, self.paths.get(index));
        files::read_encoded(scratch)
            .map_err(|problem| DataError::BadSample { sample: self.sample_name(index), problem })
    }

    fn stored_files(
        &self,
        index: usize,
        scratch: &mut Scratch,
        detail: FileDetail,
        report: &mut dyn FnMut(StoredFile<'_>),
    ) {
        if index < self.len() {
            files::report(&self.root, self.paths.get(index), scratch, detail, report);
        }
    }

    fn damaged(&self) -> &[(u32, String)] {
        &self.damaged
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    fn normalisation(&self) -> Normalisation {
        Normalisation::imagenet()
    }

    fn resident_bytes(&self) -> u64 {
        self.paths.memory_bytes() + self.targets.memory_bytes()
    }
}
