//! Tables of a run, and published figures.

use crate::scratch;
use stratus_report::report::PublishedTable;
use stratus_run::csv::{self, EpochRow, IterationRow, UsageRow};
use stratus_run::validation::{read_curves, read_points, write_curves, write_points};
use stratus_run::variants;

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
    if let Ok(variants) = variants::read(&path) {
        // All figures that are read can be shown, and survive.
        assert!(variants.iter().all(|row| row.ms_median.is_finite() && row.ms_p99.is_finite()));
        let written = scratch::file("variants.csv", b"");
        if variants::write(&written, &variants).is_ok() {
            assert_eq!(variants::read(&written).map(|again| again.len()).ok(), Some(variants.len()));
        }
    }
    let written = scratch::file("plots.csv", b"");
    if let Ok(points) = read_curves(&path) {
        write_curves(&written, 1, &points).expect("the folder can be written");
        assert_eq!(read_curves(&written).ok(), Some(points));
    }
    if let Ok(points) = read_points(&path) {
        write_points(&written, 1, &points).expect("the folder can be written");
        assert_eq!(read_points(&written).ok(), Some(points));
    }
    let _ = stratus_run::classes::read_labels(&path);
    let _ = stratus_run::classes::read_targets(&path);
    let _ = stratus_run::classes::read_names(&path);
    let _ = stratus_run::classes::is_confusion(&String::from_utf8_lossy(data));
}
