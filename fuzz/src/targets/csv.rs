//! Tables of a run, and published figures.

use crate::scratch;
use stratus_report::report::PublishedTable;
use stratus_run::csv::{self, EpochRow, IterationRow, UsageRow};

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target {
    name: "csv",
    run,
    seeds: seeds::csv,
    dictionary: &["nan", "inf", "-0", "1e999", "class,name"],
    max_bytes: 65536,
};

fn run(data: &[u8]) {
    let path = scratch::file("table.csv", data);
    let _ = csv::read::<IterationRow>(&path);
    let _ = csv::read::<EpochRow>(&path);
    let _ = csv::read::<UsageRow>(&path);
    let _ = PublishedTable::read(&path);
    let _ = stratus_run::classes::read_names(&path);
    let _ = stratus_run::classes::is_confusion(&String::from_utf8_lossy(data));
}
