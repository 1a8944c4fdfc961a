use super::*;
use crate::schedule::tests::{ASYNCHRONOUS, FakeTrainer, HALVED, RANDOM, SWEEP, create, table, tpe};
use std::collections::HashMap;
use stratus_run::layout::CELLS;

/// Returns the folder of a completed sweep.
fn trained(text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    assert!(!create(folder.path(), text).train(&mut FakeTrainer::new(usize::MAX)).unwrap());
    folder
}

/// Opens a sweep and returns the rows that have lost their run.
fn reopen(folder: &Path) -> (Sweep, Vec<LostRun>) {
    let mut sweep = Sweep::open(folder).unwrap();
    let looked = Sweep::inspect(folder).unwrap().2;
    let lost = sweep.reopen_lost_rows().unwrap();
    // `inspect` returns the same, but moves nothing.
    let unmoved = |lost: &LostRun| LostRun { moved_to: None, ..lost.clone() };
    assert_eq!(looked, lost.iter().map(unmoved).collect::<Vec<_>>());
    (sweep, lost)
}

#[test]
fn only_removed_runs_are_trained_again() {
    for text in [SWEEP.to_owned(), format!("{SWEEP}{HALVED}")] {
        let folder = trained(&text);
        let whole = table(folder.path());
        assert!(reopen(folder.path()).1.is_empty());
        for removed in [&["5/2"][..], &["1/1", "3/2", "5/1"], &["1", "2", "3", "4", "5"], &[""]] {
            for removed in removed {
                fs::remove_dir_all(folder.path().join("runs").join(removed)).unwrap();
            }
            let gone = |row: &&Row| !folder.path().join(&row.run).exists();
            let (mut sweep, lost) = reopen(folder.path());
            assert!(lost.iter().all(|lost| lost.loss == Loss::Gone && lost.moved_to.is_none()));
            let waiting: Vec<&Row> =
                sweep.rows().iter().filter(|row| row.status == Status::Waiting).collect();
            assert_eq!(waiting.len(), lost.len());
            assert!(
                !lost.is_empty() && waiting.iter().all(|row| row.run.is_empty() && row.reason.is_empty())
            );
            let expected: Vec<PathBuf> = lost.iter().map(|lost| lost.run.clone()).collect();
            let mut trainer = FakeTrainer::new(usize::MAX);
            assert!(!sweep.train(&mut trainer).unwrap());
            let mut again: Vec<PathBuf> = trainer.trained.into_keys().collect();
            again.sort();
            assert_eq!(again, expected);
            assert_eq!(table(folder.path()), whole, "{removed:?}");
            assert_eq!(sweep.rows().iter().filter(gone).count(), 0);
        }
    }
}

/// Ranking it again among all cells could promote other cells than before.
#[test]
fn removed_runs_of_asynchronous_halving_are_not_ranked_again() {
    for text in [format!("{RANDOM}{ASYNCHRONOUS}"), format!("{}{ASYNCHRONOUS}", tpe())] {
        let text = text.replace("trials", "repetitions = 2\ntrials");
        let folder = trained(&text);
        let whole = table(folder.path());
        let runs = folder.path().join("runs");
        for removed in [&["1/1"][..], &["2", "3/2", "9"], &["1", "4", "5", "6", "7", "8", "11"], &[""]] {
            let epochs = |run: &Path| csv::read::<EpochRow>(&run.join(EPOCHS)).unwrap().len();
            let before: HashMap<PathBuf, usize> = Sweep::open(folder.path())
                .unwrap()
                .runs()
                .map(|(_, run)| (run.clone(), epochs(&run)))
                .collect();
            removed.iter().for_each(|removed| fs::remove_dir_all(runs.join(removed)).unwrap());
            let (sweep, lost) = reopen(folder.path());
            drop(sweep);
            // Killed after a few epochs, removed again in part, and resumed.
            let mut sweep = Sweep::open(folder.path()).unwrap();
            assert!(sweep.train(&mut FakeTrainer::new(1)).unwrap(), "{removed:?}");
            drop(sweep);
            let _ = fs::remove_dir_all(&lost[0].run);
            let (mut sweep, _) = reopen(folder.path());
            let mut trainer = FakeTrainer::new(usize::MAX);
            assert!(!sweep.train(&mut trainer).unwrap());
            assert_eq!(table(folder.path()), whole, "{removed:?}");
            let after: HashMap<PathBuf, usize> =
                sweep.runs().map(|(_, run)| (run.clone(), epochs(&run))).collect();
            assert_eq!(after, before, "{removed:?}");
            assert!(trainer.trained.keys().all(|run| lost.iter().any(|lost| lost.run == *run)));
        }
    }
}

#[test]
fn removed_run_of_a_paused_cell_is_trained_to_where_it_was() {
    let text = format!("{RANDOM}{ASYNCHRONOUS}");
    let whole = trained(&text);
    let folder = tempfile::tempdir().unwrap();
    assert!(create(folder.path(), &text).train(&mut FakeTrainer::new(9)).unwrap());
    let paused: Vec<PathBuf> = Sweep::open(folder.path())
        .unwrap()
        .runs()
        .filter_map(|(row, run)| row.reason.starts_with("paused after epoch ").then_some(run))
        .collect();
    assert!(paused.len() > 2, "{paused:?}");
    paused.iter().for_each(|run| fs::remove_dir_all(run).unwrap());
    let (mut sweep, lost) = reopen(folder.path());
    assert_eq!(lost.len(), paused.len());
    assert!(!sweep.train(&mut FakeTrainer::new(usize::MAX)).unwrap());
    assert_eq!(table(folder.path()), table(whole.path()));
}

#[test]
fn damaged_run_is_moved_aside_and_trained_again() {
    let folder = trained(SWEEP);
    let whole = table(folder.path());
    let run = folder.path().join("runs/2/1");
    let cut = |name: &str| {
        let text = fs::read_to_string(run.join(name)).unwrap();
        fs::write(run.join(name), text.lines().next().unwrap()).unwrap();
    };
    let remove = |name: &str| fs::remove_file(run.join(name)).unwrap();
    let write = |name: &str, text: &str| fs::write(run.join(name), text).unwrap();
    let damages: [(&dyn Fn(), &str); 7] = [
        (&|| remove(EXPERIMENT), "experiment.toml is missing"),
        (&|| write(EXPERIMENT, "name = \""), "experiment.toml is not valid TOML"),
        (&|| remove(EPOCHS), "epochs.csv"),
        (&|| cut(EPOCHS), "epochs.csv ends after epoch 0, summary.json after 6"),
        (&|| remove(ITERATIONS), "iterations.csv is missing"),
        (&|| remove(SUMMARY), "summary.json"),
        (&|| write(SUMMARY, "{\"status\": \"compl"), "summary.json"),
    ];
    for (number, (damage, expected)) in (1..).zip(damages) {
        damage();
        write("notes.txt", &number.to_string());
        let (mut sweep, lost) = reopen(folder.path());
        let [LostRun { loss: Loss::Damaged(why), moved_to: Some(place), .. }] = &lost[..] else {
            panic!("{expected}: {lost:?}")
        };
        assert!(why.contains(expected), "{why}");
        // The damaged run is kept, and no command takes it for a run of the sweep.
        assert_eq!(fs::read_to_string(place.join("notes.txt")).unwrap(), number.to_string());
        assert_eq!(RunDir::find(folder.path()).unwrap().len(), 9);
        let mut trainer = FakeTrainer::new(usize::MAX);
        assert!(!sweep.train(&mut trainer).unwrap());
        assert_eq!(trainer.trained.into_iter().collect::<Vec<_>>(), [(run.clone(), 6)]);
        assert_eq!(table(folder.path()), whole);
    }
}

#[test]
fn incomplete_run_with_a_checkpoint_is_resumed() {
    let folder = trained(SWEEP);
    let run = folder.path().join("runs/2/1");
    fs::create_dir_all(run.join(CHECKPOINTS).join("6")).unwrap();
    fs::remove_file(run.join(SUMMARY)).unwrap();
    let (mut sweep, lost) = reopen(folder.path());
    assert!(matches!(&lost[..], [LostRun { loss: Loss::Incomplete(_), moved_to: None, .. }]), "{lost:?}");
    assert!(!sweep.train(&mut FakeTrainer::new(usize::MAX)).unwrap());
    assert_eq!(sweep.rows()[2].status, Status::Completed);
    assert!(run.join(CHECKPOINTS).exists());
}

#[test]
fn failed_row_keeps_its_reason_without_a_run() {
    let folder = trained(SWEEP);
    let text = table(folder.path());
    let text =
        text.replace("1,1,completed,", "1,1,failed,diverged").replace("1,2,completed", "1,2,interrupted");
    fs::write(folder.path().join(CELLS), text).unwrap();
    fs::remove_dir_all(folder.path().join("runs/1")).unwrap();
    let (sweep, lost) = reopen(folder.path());
    assert_eq!(lost.len(), 2);
    let shown: Vec<_> =
        sweep.rows()[..2].iter().map(|row| (row.status, &row.reason[..], &row.run[..])).collect();
    assert_eq!(shown, [(Status::Failed, "diverged", ""), (Status::Waiting, "", "")]);
}

#[test]
fn rejects_a_file_in_the_place_of_a_run() {
    for place in ["runs", "runs/3", "runs/3/2"] {
        let folder = trained(SWEEP);
        let (whole, path) = (table(folder.path()), folder.path().join(place));
        fs::remove_dir_all(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        let mut sweep = Sweep::open(folder.path()).unwrap();
        let error = sweep.reopen_lost_rows().unwrap_err().to_string();
        assert!(error.contains(&format!("{}: is a file", path.display())), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        #[cfg(unix)]
        {
            fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink("/no/such/folder", &path).unwrap();
            let error = sweep.reopen_lost_rows().unwrap_err().to_string();
            assert!(error.contains("is a symbolic link to a missing folder"), "{error}");
        }
        assert_eq!(table(folder.path()), whole);
    }
}

#[test]
#[cfg(unix)]
fn run_is_found_through_a_symbolic_link() {
    let folder = trained(SWEEP);
    let elsewhere = tempfile::tempdir().unwrap();
    let run = folder.path().join("runs/1/1");
    fs::rename(&run, elsewhere.path().join("moved")).unwrap();
    std::os::unix::fs::symlink(elsewhere.path().join("moved"), &run).unwrap();
    assert!(reopen(folder.path()).1.is_empty());
}

#[test]
fn damaged_run_that_is_being_trained_is_not_moved() {
    let folder = trained(SWEEP);
    let run = folder.path().join("runs/1/1");
    fs::remove_file(run.join(SUMMARY)).unwrap();
    let lock = Lock::acquire(&run).unwrap();
    let mut sweep = Sweep::open(folder.path()).unwrap();
    assert!(sweep.reopen_lost_rows().is_err() && run.exists());
    drop(lock);
    assert_eq!(sweep.reopen_lost_rows().unwrap().len(), 1);
}
