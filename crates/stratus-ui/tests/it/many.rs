//! A thousand runs: scans read what changed, and only that.

use std::fs;

use crate::common::{MadeRun, Running, append_epoch, make};
use stratus_run::RunDir;
use stratus_ui::Index;

const RUNS: usize = 1000;

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
