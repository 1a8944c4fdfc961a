//! Tables of labels and numbers, CSV or Parquet by their first bytes.

use crate::scratch;
use stratus_data::{OpenOptions, Split, SplitMethod, TableOptions};

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target {
    name: "table",
    run,
    seeds: seeds::table,
    dictionary: &[
        "path", "split", "train", "val", "true", "no", "1e39", "nan", "\"\"", ";", "|", "PAR1", "\\x15\\x04",
    ],
    max_bytes: 65536,
};

fn run(data: &[u8]) {
    scratch::file("table/labels.csv", data);
    let root = scratch::folder().join("table");
    let separated = TableOptions { separator: Some('|'), ..TableOptions::default() };
    let grouped = TableOptions { group_by: Some("patient".to_owned()), ..TableOptions::default() };
    for (table, split_method) in [
        (TableOptions::default(), SplitMethod::Unsplit),
        (separated, SplitMethod::Seeded(1)),
        (grouped, SplitMethod::Seeded(2)),
    ] {
        let options = OpenOptions { table, split_method, verify: false, ..OpenOptions::default() };
        for split in [Split::Train, Split::Validation] {
            let Ok(set) = stratus_data::open("table", &root, split, &options) else { continue };
            for index in 0..set.len() {
                let targets = set.targets(index).unwrap_or_default();
                assert_eq!(targets.len(), set.classes(), "targets of sample {index}");
                assert!(targets.iter().all(|target| !target.is_infinite()), "an infinite target");
                let name = set.sample_name(index);
                assert!(!name.split('/').any(|part| part == ".."), "{name} leaves the folder");
            }
        }
    }
}
