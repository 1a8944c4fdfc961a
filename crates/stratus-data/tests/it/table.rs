//! Tables of labels and numbers: CSV and Parquet files, their splits, and their errors.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stratus_data::datasets::SyntheticOptions;
use stratus_data::datasets::class_targets::LabelsOfClasses;
use stratus_data::datasets::selection::SelectedSamples;
use stratus_data::datasets::table::looks_like_table;
use stratus_data::stats::{self, LabelPair};
use stratus_data::{
    Dataset, LastBatch, Loader, LoaderConfig, Mix, OpenOptions, Order, Scratch, Split, SplitMethod,
    TableOptions, TargetKind, TargetScale, open,
};

use crate::common::{open_error, write_picture};

/// The folder of a Parquet file of this test.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/table").join(name)
}

fn unverified() -> OpenOptions {
    OpenOptions { verify: false, ..OpenOptions::default() }
}

fn seeded(seed: u64) -> OpenOptions {
    OpenOptions { split_method: SplitMethod::Seeded(seed), ..unverified() }
}

fn write_table(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("labels.csv");
    fs::write(&path, text).unwrap();
    path
}

fn opened(path: &Path, split: Split, options: &OpenOptions) -> Box<dyn Dataset> {
    open("table", path, split, options).unwrap()
}

/// The error of the training split of a table of this text.
fn error_of(text: &[u8], options: &OpenOptions) -> String {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("labels.csv"), text).unwrap();
    open_error("table", folder.path(), Split::Train, options)
}

/// The names of the samples without their folder, and their targets as text.
fn content(set: &dyn Dataset) -> Vec<(String, String)> {
    let name = |index| set.sample_name(index).rsplit('/').next().unwrap().to_owned();
    let targets = |index| {
        let targets = set.targets(index).unwrap().iter().map(f32::to_string);
        targets.collect::<Vec<_>>().join(" ")
    };
    (0..set.len()).map(|index| (name(index), targets(index))).collect()
}

fn names(set: &dyn Dataset) -> Vec<String> {
    content(set).into_iter().map(|(name, _)| name).collect()
}

#[test]
fn reads_labels_missing_cells_and_splits() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..4 {
        write_picture(&folder.path().join(format!("images/{number}.png")), [4, 5], number);
    }
    let path = write_table(
        folder.path(),
        "split,path,scratch,dent\ntrain,images/0.png,1,no\ntrain,images/1.png,,true\n\
         val,./images/2.png,0,yes\nTest,images\\3.png,False,1\n",
    );
    let options = OpenOptions::default();
    for root in [folder.path(), &path] {
        let train = opened(root, Split::Train, &options);
        assert_eq!((train.name(), train.len(), train.classes()), ("table", 2, 2));
        assert_eq!(train.target_kind(), Some(TargetKind::Labels));
        assert_eq!([train.class_name(0), train.class_name(1)], ["scratch", "dent"]);
        let expected = [("0.png", "1 0"), ("1.png", "NaN 1")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(content(train.as_ref()), expected);
        assert_eq!(names(opened(root, Split::Validation, &options).as_ref()), ["2.png"]);
        assert_eq!(names(opened(root, Split::Test, &options).as_ref()), ["3.png"]);
        let mut scratch = Scratch::default();
        let sample = train.read(1, &mut scratch).unwrap();
        assert_eq!(
            (sample.shape, sample.label, sample.mask),
            ([3, 4, 5], stratus_data::datasets::IGNORED, None)
        );
        assert_eq!(sample.pixels[0], 1);
        assert!(train.targets(2).is_err() && train.read(2, &mut Scratch::default()).is_err());
    }
    assert!(looks_like_table(folder.path()) && looks_like_table(&path));
    assert!(!looks_like_table(&folder.path().join("images")));
}

#[test]
fn numbers_words_and_separated_names_give_the_kind() {
    let folder = tempfile::tempdir().unwrap();
    let all = |text: &str, table: TableOptions| {
        let path = write_table(folder.path(), text);
        let options = OpenOptions { table, split_method: SplitMethod::Unsplit, ..unverified() };
        opened(&path, Split::Train, &options)
    };
    let numbers = all("path,age\na.png,1\nb.png,0\nc.png,-2.5\n", TableOptions::default());
    assert_eq!(numbers.target_kind(), Some(TargetKind::Numbers));
    assert_eq!(numbers.targets(2).unwrap(), [-2.5]);
    let labels = all("path,age\na.png,1\nb.png,0.0\n", TableOptions::default());
    assert_eq!(labels.target_kind(), Some(TargetKind::Labels));
    let as_numbers = TableOptions { kind: Some(TargetKind::Numbers), ..TableOptions::default() };
    assert_eq!(all("path,age\na.png,1\nb.png,0\n", as_numbers).target_kind(), Some(TargetKind::Numbers));
    let separated = TableOptions { separator: Some('|'), ..TableOptions::default() };
    let tags = all("path,tags\na.png,sea | sun\nb.png,\nc.png,sun|ice|sun\nd.png,sea|sun\n", separated);
    assert_eq!(tags.target_kind(), Some(TargetKind::Labels));
    assert_eq!((0..3).map(|label| tags.class_name(label)).collect::<Vec<_>>(), ["ice", "sea", "sun"]);
    let targets: Vec<String> = content(tags.as_ref()).into_iter().map(|(_, targets)| targets).collect();
    assert_eq!(targets, ["0 1 1", "0 0 0", "1 0 1", "0 1 1"]);
    let pair = |labels, samples| LabelPair { labels, samples };
    assert_eq!(stats::frequent_pairs(tags.as_ref(), 5), [pair([1, 2], 2), pair([0, 2], 1)]);
    assert_eq!(stats::frequent_pairs(tags.as_ref(), 1), [pair([1, 2], 2)]);
    let some = TableOptions { columns: vec!["b".to_owned(), "a".to_owned()], ..TableOptions::default() };
    let chosen = all("a,path,b,c\n1,x.png,2,cat\n3,y.png,4,dog\n", some);
    assert_eq!(chosen.targets(1).unwrap(), [4.0, 3.0]);
}

#[test]
fn statistics_are_those_of_the_present_targets() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_table(folder.path(), "path,a,b\n1.png,2,7\n2.png,4,\n3.png,,7\n4.png,-3,7\n");
    let options = OpenOptions { split_method: SplitMethod::Unsplit, ..unverified() };
    let [a, b] = stats::target_statistics(opened(&path, Split::Train, &options).as_ref())[..] else {
        panic!("two numbers")
    };
    assert_eq!((a.count, a.missing, a.positives), (3, 1, 2));
    assert_eq!((a.mean, a.min, a.max), (1.0, -3.0, 4.0));
    // (1 + 9 + 16) / 3.
    assert!((a.deviation - (26.0f64 / 3.0).sqrt()).abs() < 1e-12);
    assert_eq!((b.count, b.mean, b.deviation), (3, 7.0, 0.0));
}

#[test]
fn repeated_rows_are_ignored_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_table(folder.path(), "path,a\n1.png,1\n2.png,\n./1.png,yes\n2.png,\n");
    let options = OpenOptions { split_method: SplitMethod::Unsplit, ..unverified() };
    let set = opened(&path, Split::Train, &options);
    assert_eq!(names(set.as_ref()), ["1.png", "2.png"]);
    assert_eq!(set.warnings(), [format!("{}: ignored 2 repeated rows", path.display())]);
    let tags =
        OpenOptions { table: TableOptions { separator: Some(';'), ..TableOptions::default() }, ..options };
    let path = write_table(folder.path(), "path,a\n1.png,b;a\n2.png,\n1.png,a;b\n");
    assert_eq!(names(opened(&path, Split::Train, &tags).as_ref()), ["1.png", "2.png"]);
    fs::write(&path, "path,a\n1.png,b;a\n2.png,\n1.png,a\n").unwrap();
    assert_eq!(
        open_error("table", folder.path(), Split::Train, &tags),
        "ROOT/labels.csv: line 4, column `path`: `1.png` is in line 2 too, with other labels or numbers"
    );
}

#[test]
fn errors_name_line_and_column() {
    let table = |kind| OpenOptions {
        table: TableOptions { kind, ..TableOptions::default() },
        split_method: SplitMethod::Unsplit,
        ..unverified()
    };
    let (any, labels) = (table(None), table(Some(TargetKind::Labels)));
    let numbers = table(Some(TargetKind::Numbers));
    for (text, options, expected) in [
        (
            "path,a\n1.png,1\n2.png,cat\n",
            &any,
            "line 3, column `a`: expected a number, or a label (0, 1, true, false, yes, no), found `cat`; \
             for a column of label names set data.label_separator",
        ),
        (
            "path,a,b\n1.png,1,yes\n2.png,2,no\n",
            &any,
            "line 2, column `b`: expected a number, found `yes`: line 3 has the number `2`",
        ),
        (
            "path,a\n1.png,1\n2.png,inf\n",
            &any,
            "line 3, column `a`: `inf` is infinite; leave the cell empty if the number is missing",
        ),
        (
            "path,a\n1.png,1e39\n2.png,1\n",
            &numbers,
            "line 2, column `a`: `1e39` is infinite; leave the cell empty if the number is missing",
        ),
        (
            "path,a\n1.png,1\n2.png,0.5\n",
            &labels,
            "line 3, column `a`: expected a label (0, 1, true, false, yes, no or empty), found `0.5`",
        ),
        ("path,a\n1.png,1\n2.png,no\n", &numbers, "line 3, column `a`: expected a number, found `no`"),
        (
            "path,a,b\n1.png,1,\n2.png,0,\n",
            &any,
            "column `b`: all cells are empty; remove the column, or list the others in data.columns",
        ),
        ("path,a\n1.png,1\n", &any, "has only one row; expected one per image, at least two"),
        ("path,a\n", &any, "has no rows; expected one per image"),
        ("", &any, "is empty; expected a row with the names of the columns"),
        ("file,a\n1.png,1\n", &any, "no column `path`; the columns are `file`, `a`"),
        ("paths,a\n1.png,1\n", &any, "no column `path`, did you mean `paths`?; the columns are `paths`, `a`"),
        ("path,a,a\n1.png,1,1\n", &any, "has two columns `a`"),
        ("path\n1.png\n", &any, "no column of labels or numbers; the columns are `path`"),
        (
            "path,a\n1.png,1\n../2.png,1\n",
            &any,
            "line 3, column `path`: path `../2.png` is outside the data set folder",
        ),
        (
            "path,a\n/etc/1.png,1\n2.png,1\n",
            &any,
            "line 2, column `path`: path `/etc/1.png` is absolute; it must be relative to the folder of the \
             table",
        ),
        ("path,a\n,1\n2.png,1\n", &any, "line 2, column `path`: the path is empty"),
        (
            "path,a\n1.png,1\n1.png,0\n",
            &any,
            "line 3, column `path`: `1.png` is in line 2 too, with other labels or numbers",
        ),
        (
            "path,split,a\n1.png,train,1\n1.png,val,1\n",
            &any,
            "line 3, column `path`: `1.png` is in line 2 too, with another split",
        ),
        (
            "path,split,a\n1.png,trian,1\n2.png,val,1\n",
            &any,
            "line 2, column `split`: unknown split `trian`; available: train, validation, test",
        ),
        (
            "path,split,a\n1.png,val,1\n2.png,val,1\n",
            &any,
            "no row has the split `train`; add some, or remove the column `split`",
        ),
        (
            "path;a\n1.png;1,5\n2.png;2\n",
            &any,
            "line 2, column `a`: expected a number, or a label (0, 1, true, false, yes, no), found `1,5`",
        ),
    ] {
        assert_eq!(error_of(text.as_bytes(), options), format!("ROOT/labels.csv: {expected}"), "{text}");
    }
    let message = error_of(b"path,a\n1.png,\"1\n", &any);
    assert_eq!(message, "ROOT/labels.csv: line 2, column `a`: has a quote that is never closed");
    let folder = tempfile::tempdir().unwrap();
    let message = open_error("table", folder.path(), Split::Train, &any);
    assert_eq!(message, "ROOT: no `labels.csv` or `labels.parquet`; pass the CSV or Parquet file");
    for name in ["labels.csv", "labels.parquet"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    let message = open_error("table", folder.path(), Split::Train, &any);
    assert_eq!(message, "ROOT: found `labels.csv` and `labels.parquet`; pass one of them");
}

#[test]
fn options_are_checked() {
    let table = |table: TableOptions| OpenOptions { table, ..seeded(0) };
    let text = b"path,scratch,tags\n1.png,1,a\n2.png,0,b\n";
    let columns = TableOptions { columns: vec!["scratsh".to_owned()], ..TableOptions::default() };
    assert_eq!(
        error_of(text, &table(columns)),
        "data.columns: no column `scratsh`, did you mean `scratch`?; the columns are `path`, `scratch`, \
         `tags`"
    );
    let group = TableOptions { group_by: Some("tag".to_owned()), ..TableOptions::default() };
    assert_eq!(
        error_of(text, &table(group)),
        "data.group_by: no column `tag`, did you mean `tags`?; the columns are `path`, `scratch`, `tags`"
    );
    let separated = TableOptions { separator: Some('|'), ..TableOptions::default() };
    assert_eq!(
        error_of(text, &table(separated)),
        "data.label_separator: needs one column of labels, found 2; set data.columns"
    );
    let classes = OpenOptions { class_list: Some(PathBuf::from("classes.txt")), ..seeded(0) };
    assert_eq!(
        error_of(text, &classes),
        "data.classes: a table has labels or numbers, not classes; select columns with data.columns"
    );
    let message = error_of(b"path,a\n1.png,1\n2.png,0\n", &unverified());
    assert_eq!(
        message,
        "ROOT/labels.csv: no column `split`; add `--set data.split_seed=0` to split the rows into 60 % \
         training, 20 % validation and 20 % test images, or add a column `split` with train, validation or \
         test"
    );
}

#[test]
fn missing_and_damaged_files_are_damaged_samples() {
    let folder = tempfile::tempdir().unwrap();
    write_picture(&folder.path().join("1.png"), [4, 4], 1);
    fs::write(folder.path().join("2.png"), "no image").unwrap();
    write_table(folder.path(), "path,a\n1.png,1\n2.png,0\n3.png,0\n");
    let options = OpenOptions { split_method: SplitMethod::Unsplit, ..OpenOptions::default() };
    let message = open_error("table", folder.path(), Split::Train, &options);
    assert!(
        message.starts_with("`table`: damaged samples in the train split (2):\n  ROOT/2.png: "),
        "{message}"
    );
    let skipping = OpenOptions { skip_damaged: true, ..options };
    let set = opened(folder.path(), Split::Train, &skipping);
    assert_eq!(set.damaged().iter().map(|(index, _)| *index).collect::<Vec<_>>(), [1, 2]);
    let found = stats::compute_stats(set.as_ref(), 2).unwrap();
    assert_eq!((found.samples_per_class, found.damaged.len()), (vec![1], 2));
}

#[test]
fn lists_select_rows_by_their_paths() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_table(folder.path(), "path,a\nx/1.png,1\nx/2.png,0\nx/3.png,1\nx/4.png,0\n");
    let lists = ["train", "val"].map(|name| folder.path().join(format!("{name}.txt")));
    fs::write(&lists[0], "x/3.png\n\n./x/1.png\n").unwrap();
    fs::write(&lists[1], "x/2.png\n").unwrap();
    let options = OpenOptions { split_method: SplitMethod::Lists(lists.to_vec()), ..unverified() };
    assert_eq!(names(opened(&path, Split::Train, &options).as_ref()), ["1.png", "3.png"]);
    assert_eq!(names(opened(&path, Split::Test, &options).as_ref()), ["2.png"]);
    for (text, expected) in [
        ("x/9.png\n", "ROOT/train.txt: line 1: `x/9.png` is not in the table"),
        ("x/1.png\nx/1.png\n", "ROOT/train.txt: 1 duplicate images"),
    ] {
        fs::write(&lists[0], text).unwrap();
        assert_eq!(open_error("table", folder.path(), Split::Train, &options), expected);
    }
}

const SPLITS: [Split; 3] = [Split::Train, Split::Validation, Split::Test];

/// A table of 1,000 rows: the label `common` in a half, `rare` in 15, `single` in one.
fn stratified_rows() -> Vec<String> {
    let row = |index: usize| {
        let [common, rare, single] = [index.is_multiple_of(2), index % 66 == 7, index == 500].map(u8::from);
        format!("{index:04}.png,{common},{rare},{single}\n")
    };
    (0..1000).map(row).collect()
}

#[test]
fn seeded_splits_keep_the_frequencies_of_rare_labels() {
    let folder = tempfile::tempdir().unwrap();
    let rows = stratified_rows();
    let header = "path,common,rare,single\n";
    let path = write_table(folder.path(), &format!("{header}{}", rows.concat()));
    let rare: usize = (0..1000).filter(|index| index % 66 == 7).count();
    assert_eq!(rare, 16);
    for seed in 0..4 {
        let parts = SPLITS.map(|split| opened(&path, split, &seeded(seed)));
        assert_eq!(parts.each_ref().map(|part| part.len()), [600, 200, 200]);
        let all: BTreeSet<String> = parts.iter().flat_map(|part| names(part.as_ref())).collect();
        assert_eq!(all.len(), 1000);
        let positives = parts.each_ref().map(|part| {
            stats::target_statistics(part.as_ref()).iter().map(|label| label.positives).collect::<Vec<_>>()
        });
        let of = |label: usize| positives.each_ref().map(|part| part[label]);
        assert_eq!(of(0), [300, 100, 100]);
        assert!(of(1)[0] >= 9 && of(1)[1] >= 3 && of(1)[2] >= 3, "{positives:?}");
        assert_eq!(of(2), [1, 0, 0]);
    }
    // The split depends on the names and the seed only.
    let before = names(opened(&path, Split::Validation, &seeded(3)).as_ref());
    let mut reversed = rows;
    reversed.reverse();
    write_table(folder.path(), &format!("{header}{}", reversed.concat()));
    let mut after = names(opened(&path, Split::Validation, &seeded(3)).as_ref());
    after.reverse();
    assert_eq!(after, before);
    assert_ne!(names(opened(&path, Split::Validation, &seeded(4)).as_ref()), after);
}

#[test]
fn seeded_splits_keep_groups_together() {
    let folder = tempfile::tempdir().unwrap();
    for kind in [TargetKind::Labels, TargetKind::Numbers] {
        let row = |index: usize| format!("{index:04}.png,p{},{}\n", index * index % 97, index % 2);
        let text: String = (0..1000).map(row).collect();
        let path = write_table(folder.path(), &format!("path,patient,a\n{text}"));
        let table = TableOptions {
            group_by: Some("patient".to_owned()),
            kind: Some(kind),
            ..TableOptions::default()
        };
        let options = OpenOptions { table, ..seeded(1) };
        let parts = SPLITS.map(|split| opened(&path, split, &options));
        let lengths = parts.each_ref().map(|part| part.len());
        assert_eq!(lengths.iter().sum::<usize>(), 1000);
        for (length, expected) in lengths.into_iter().zip([600usize, 200, 200]) {
            assert!(length.abs_diff(expected) <= 20, "{lengths:?}");
        }
        let groups = parts.each_ref().map(|part| {
            let number = |name: String| name[..4].parse::<usize>().unwrap();
            names(part.as_ref()).into_iter().map(|name| number(name).pow(2) % 97).collect::<BTreeSet<_>>()
        });
        for (first, second) in [(0, 1), (0, 2), (1, 2)] {
            assert!(groups[first].is_disjoint(&groups[second]), "{kind:?}");
        }
    }
}

#[test]
fn numbers_are_split_like_other_data() {
    let folder = tempfile::tempdir().unwrap();
    let text: String = (0..50).map(|index| format!("{index:04}.png,{index}\n")).collect();
    let path = write_table(folder.path(), &format!("path,a\n{text}"));
    let parts = SPLITS.map(|split| opened(&path, split, &seeded(0)));
    assert_eq!(parts.each_ref().map(|part| part.len()), [30, 10, 10]);
    let small = write_table(folder.path(), "path,a\n1.png,1\n2.png,2\n");
    let message = open("table", &small, Split::Validation, &seeded(0)).map(drop).unwrap_err().to_string();
    assert!(message.contains("too few rows (2) to split: the validation split would be empty"), "{message}");
    // A split that the table has is kept: only its training rows are divided.
    let rows: String = (0..20)
        .map(|index| format!("{index:02}.png,{},{index}\n", if index < 10 { "train" } else { "test" }))
        .collect();
    let path = write_table(folder.path(), &format!("path,split,a\n{rows}"));
    assert_eq!(opened(&path, Split::Train, &seeded(0)).len(), 6);
    assert!(names(opened(&path, Split::Test, &seeded(0)).as_ref()).iter().all(|name| name.as_str() < "10"));
}

#[test]
fn labels_of_other_splits_occur_in_training() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_table(
        folder.path(),
        "path,split,a,b,c\n1.png,train,1,0,\n2.png,train,0,0,1\n3.png,val,1,1,1\n4.png,test,1,0,0\n",
    );
    let message = open("table", &path, Split::Validation, &unverified()).map(drop).unwrap_err().to_string();
    let expected = "labels that occur in the validation split, but never in the training split (1): `b`; \
                    move images, or select columns with data.columns";
    assert_eq!(message, format!("{}: {expected}", path.display()));
    assert_eq!(opened(&path, Split::Test, &unverified()).len(), 1);
    fs::write(&path, "path,split,a\n1.png,train,\n2.png,val,2\n").unwrap();
    let message = open("table", &path, Split::Validation, &unverified()).map(drop).unwrap_err().to_string();
    assert!(message.contains("numbers that occur in the validation split, but never"), "{message}");
}

#[test]
fn loader_writes_scaled_targets() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..3 {
        write_picture(&folder.path().join(format!("{number}.png")), [4, 4], number);
    }
    write_table(folder.path(), "path,a,b\n0.png,1,10\n1.png,,20\n2.png,3,40\n");
    let options = OpenOptions { split_method: SplitMethod::Unsplit, ..OpenOptions::default() };
    let set: Arc<dyn Dataset> = Arc::from(opened(folder.path(), Split::Train, &options));
    let scales: Arc<[TargetScale]> =
        Arc::from([TargetScale { mean: 1.0, deviation: 2.0 }, TargetScale { mean: 20.0, deviation: 10.0 }]);
    let config = LoaderConfig {
        order: Order::Sequential,
        shape: Some([3, 4, 4]),
        target_scales: Some(Arc::clone(&scales)),
        epochs: Some(1),
        ..LoaderConfig::new(3)
    };
    let mut loader = Loader::new(Arc::clone(&set), config.clone()).unwrap();
    assert_eq!(loader.label_len(), 2);
    let batch = loader.next().unwrap().unwrap();
    let found: Vec<String> = batch.targets().iter().map(f32::to_string).collect();
    assert_eq!(found, ["0", "-1", "NaN", "0", "1", "2"]);
    let wrong = LoaderConfig { target_scales: Some(scales[..1].into()), ..config };
    let message = Loader::new(set, wrong).unwrap_err().to_string();
    assert_eq!(message, "target_scales: are 1, but `table` has 2 targets");
}

#[test]
fn parquet_files_equal_the_csv_file() {
    let all = |name: &str| {
        let options = OpenOptions {
            table: TableOptions { group_by: Some("patient".to_owned()), ..TableOptions::default() },
            split_method: SplitMethod::Seeded(5),
            ..unverified()
        };
        let parts = SPLITS.map(|split| opened(&fixture(name), split, &options));
        let columns: Vec<String> = (0..parts[0].classes()).map(|class| parts[0].class_name(class)).collect();
        (columns, parts.map(|part| content(part.as_ref())))
    };
    let expected = all("plain.csv");
    assert_eq!(expected.0, ["depth", "count", "good", "big", "worn"]);
    assert_eq!(expected.1.iter().map(Vec::len).sum::<usize>(), 300);
    for name in ["none", "snappy", "gzip", "zstd", "plain", "version_2", "groups", "polars_like"] {
        let found = all(&format!("{name}.parquet"));
        assert!(found == expected, "{name} differs from the CSV file");
    }
}

#[test]
fn parquet_files_beyond_the_reader_are_rejected() {
    let options = OpenOptions { split_method: SplitMethod::Unsplit, ..unverified() };
    for (name, expected) in [
        ("list", "column `tags`: has lists or structures; expected one text or number per row"),
        ("date", "column `day`: has decimals, dates or times; expected text or numbers"),
        (
            "brotli",
            "row 1, column `path`: is compressed by Brotli; write it with snappy, gzip, zstd or no \
             compression",
        ),
        (
            "delta",
            "row 1, column `path`: has values in DELTA_BYTE_ARRAY; write it with plain or dictionary \
             encoding, or as CSV",
        ),
    ] {
        let path = fixture(&format!("{name}.parquet"));
        let message = open("table", &path, Split::Train, &options).map(drop).unwrap_err().to_string();
        assert_eq!(message, format!("{}: {expected}", path.display()));
    }
}

/// No damage makes the reader panic, or read other values without notice where the file has checksums of its
/// structure.
#[test]
fn damaged_parquet_files_do_not_panic() {
    let folder = tempfile::tempdir().unwrap();
    let options = OpenOptions { split_method: SplitMethod::Unsplit, ..unverified() };
    let path = folder.path().join("labels.parquet");
    for name in ["none", "snappy", "zstd", "version_2"] {
        let intact = fs::read(fixture(&format!("{name}.parquet"))).unwrap();
        let step = (intact.len() / 400).max(1);
        for at in (4..intact.len()).step_by(step) {
            for change in [0x01, 0x80, 0xff] {
                let mut damaged = intact.clone();
                damaged[at] ^= change;
                fs::write(&path, &damaged).unwrap();
                let _ = open("table", &path, Split::Train, &options);
            }
            fs::write(&path, &intact[..at]).unwrap();
            let error = open("table", &path, Split::Train, &options).map(drop).unwrap_err().to_string();
            assert!(error.contains("damaged Parquet file"), "{error}");
        }
    }
}

#[test]
fn loader_writes_and_mixes_labels_of_classes() {
    let synthetic = SyntheticOptions { images: 10, classes: 3, ..SyntheticOptions::default() };
    let options = OpenOptions { shape: [1, 4, 4], synthetic, ..OpenOptions::default() };
    let plain: Arc<dyn Dataset> =
        Arc::from(open("synthetic", Path::new(""), Split::Train, &options).unwrap());
    let set: Arc<dyn Dataset> = Arc::new(LabelsOfClasses::new(plain));
    let config = LoaderConfig { last: LastBatch::Keep, epochs: Some(1), workers: 3, ..LoaderConfig::new(4) };
    let mut loader = Loader::new(Arc::clone(&set), config.clone()).unwrap();
    let mut samples = 0;
    while let Some(batch) = loader.next().unwrap() {
        assert_eq!(batch.targets().len(), 12);
        for (row, targets) in batch.targets().chunks(3).enumerate() {
            match batch.indices.get(row) {
                Some(&index) => assert_eq!(targets, set.targets(index as usize).unwrap()),
                None => assert!(targets.iter().all(|target| target.is_nan())),
            }
            samples += usize::from(row < batch.samples);
        }
        loader.recycle(batch);
    }
    assert_eq!(samples, 10);
    let mixed = LoaderConfig { mix: Mix { mixup: 1.0, ..Mix::default() }, ..config };
    let mut loader = Loader::new(Arc::clone(&set), mixed).unwrap();
    assert_eq!(loader.label_len(), 3);
    let batch = loader.next().unwrap().unwrap();
    let rows: Vec<&[f32]> = batch.targets().chunks(3).collect();
    assert!(rows.iter().all(|row| (row.iter().sum::<f32>() - 1.0).abs() < 1e-5), "{rows:?}");
    assert!(rows.iter().any(|row| row.iter().any(|target| *target > 0.0 && *target < 1.0)), "{rows:?}");

    let some = SelectedSamples::new(Arc::clone(&set), vec![7, 2]);
    assert_eq!(some.target_kind(), Some(TargetKind::Labels));
    assert_eq!(some.targets(0).unwrap(), set.targets(7).unwrap());
    assert!(some.targets(2).is_err());
}
