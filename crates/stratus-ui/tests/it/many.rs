//! A thousand runs: scans read what changed, and only that.

use std::fs;

use crate::common::{MadeRun, Running, append_epoch, make};
use stratus_run::RunDir;
use stratus_ui::Index;

const RUNS: usize = 1000;

/// A table of any length is read in parts, and the row says so.
#[test]
fn a_huge_table_of_epochs_delays_no_scan() {
    const PART_BYTES: u64 = 4 << 20;
    let root = tempfile::tempdir().unwrap();
    let huge = make(root.path(), &MadeRun { path: "a/huge", epochs: 2, ..MadeRun::default() });
    make(root.path(), &MadeRun { path: "b/small", epochs: 3, ..MadeRun::default() });
    let table = huge.join("epochs.csv");
    let text = fs::read_to_string(&table).unwrap();
    let last = text.lines().last().unwrap().to_owned() + "\n";
    let repeated = usize::try_from(2 * PART_BYTES).unwrap() / last.len() + 1;
    fs::write(&table, text + &last.repeat(repeated)).unwrap();
    let index = Index::new(vec![root.path().to_owned()]);
    let scan = || {
        let before = index.read_count().bytes();
        index.scan();
        let changes = index.changes_since(None);
        let problems: Vec<String> =
            changes.changed.iter().map(|run| run.row.problem.clone().unwrap_or_default()).collect();
        let epochs: Vec<u32> = changes.changed.iter().map(|run| run.row.progress.epochs).collect();
        (index.read_count().bytes() - before, problems, epochs)
    };
    for part in [4, 8] {
        let (bytes, problems, epochs) = scan();
        assert!(bytes < PART_BYTES + 100_000, "{bytes} bytes in one scan");
        // Whole rows are read.
        let expected = format!("epochs.csv is read in parts: {part}.0 MiB of 8.0 MiB so far");
        assert_eq!(problems, [expected, String::new()]);
        assert_eq!(epochs, [2, 3]);
    }
    let (_, problems, _) = scan();
    assert_eq!(problems, ["", ""], "all is read");
    assert_eq!(scan().0, 0, "nothing changed");
}

#[test]
fn a_thousand_runs_are_read_once_and_then_only_what_is_appended() {
    let root = tempfile::tempdir().unwrap();
    let first = make(root.path(), &MadeRun { path: "many/1", epochs: 1, ..MadeRun::default() });
    for number in 2..=RUNS {
        let path = root.path().join(format!("many/{number}"));
        fs::create_dir_all(&path).unwrap();
        for file in ["experiment.toml", "summary.json", "epochs.csv", "iterations.csv", "log.txt"] {
            fs::copy(first.join(file), path.join(file)).unwrap();
        }
    }
    let index = Index::new(vec![root.path().to_owned()]);
    index.scan();
    let count = index.read_count();
    let (files, bytes) = (count.files(), count.bytes());
    assert_eq!(files, 5 * RUNS as u64, "each of the small files once");
    assert!(bytes < 10_000 * RUNS as u64, "{bytes} bytes");
    index.scan();
    assert_eq!((count.files(), count.bytes()), (files, bytes), "nothing changed");
    append_epoch(&RunDir::open(&first).unwrap(), 2);
    index.scan();
    let (files_after, bytes_after) = (count.files() - files, count.bytes() - bytes);
    assert_eq!(files_after, 1, "the file that changed");
    assert!(bytes_after < 200, "{bytes_after} bytes");
    let server = Running::start(root.path());
    let list = server.get("/api/runs");
    assert!(list.body.len() < 1000 * RUNS, "{} bytes", list.body.len());
    assert_eq!(server.json("/api/runs")["runs"].as_array().unwrap().len(), RUNS);
}
