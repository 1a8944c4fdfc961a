//! The hosts are folders of this machine, and a shell script in place of the program writes the runs.

#![cfg(target_os = "linux")]

use super::SearchAdvance;
use crate::hosts::{Host, HostsTarget};
use crate::local::LocalShell;
use crate::target::{ShellTarget, Target};
use crate::{Error, Job, LaunchRecord, RepetitionStatus, SearchRecord, UploadedPaths};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use stratus_run::csv::{self, CsvWriter, EpochRow, Task};
use stratus_run::layout::{CELLS, EPOCHS, SUMMARY};
use stratus_run::summary::{Status as RunStatus, Summary};
use stratus_sweep::{Definition, Status, Sweep};

const SEARCH: &str = "[model]\nname = \"digits\"\n[train]\nepochs = 4\n[sweep]\nsearch = \"tpe\"\n\
     trials = 12\nobjective = \"val_top1\"\n[sweep.keys]\n\"model.width\" = { uniform = [1, 90] }\n\
     [sweep.halving]\nepochs = 1\nfactor = 2\nmetric = \"val_top1\"\nasynchronous = true\n";
/// The number of epochs of [`SEARCH`].
const EPOCH_COUNT: u32 = 4;

/// A launch of a search, followed here.
struct Launch {
    root: PathBuf,
    target: Box<dyn Target>,
    record: LaunchRecord,
}

fn shell_target(root: &Path, name: &str) -> ShellTarget {
    let shell = Box::new(LocalShell { name: name.to_owned() });
    ShellTarget { shell, folder: root.display().to_string() }
}

/// Writes the program and its tables. A wider network has a better metric; one of width 90 or more fails.
fn write_program(root: &Path) {
    for width in 1..=90 {
        let mut writer =
            CsvWriter::<EpochRow>::open(&root.join(format!("rows-{width}.csv")), Task::Classification)
                .unwrap();
        for epoch in 1..=EPOCH_COUNT {
            let accuracy = f64::from(width) / 100.0 + f64::from(epoch) / 1e3;
            writer.append(&EpochRow { epoch, val_accuracy: Some(accuracy), ..EpochRow::default() }).unwrap();
        }
        writer.sync().unwrap();
    }
    for status in [RunStatus::Completed, RunStatus::Interrupted] {
        let summary = Summary { status, epochs: EPOCH_COUNT, ..Summary::default() };
        summary.write(&root.join(format!("{}.json", status.name()))).unwrap();
    }
    let script = format!(
        "#!/bin/sh\nshift\ncase $1 in\n  *.toml) from=$1 run=$3; shift 3 ;;\n  *) from= run=$1; shift ;;\n\
         esac\nuntil={EPOCH_COUNT}\n[ \"$1\" = --until-epoch ] && until=$2\nmkdir -p \"$run/checkpoints/1\"\n\
         : > \"$run/checkpoints/1/weights\"\n: > \"$run/iterations.csv\"\n\
         [ -n \"$from\" ] && cp \"$from\" \"$run/experiment.toml\"\n\
         width=$(sed -n 's/^width = //p' \"$run/experiment.toml\")\n\
         [ \"$width\" -ge 88 ] && {{ echo 'error: the loss is NaN'; exit 1; }}\n\
         [ -e '{0}/pause' ] && sleep 60\n\
         echo \"$width to $until\" >> '{0}/trained'\n\
         head -n $((until + 1)) '{0}/rows-'\"$width.csv\" > \"$run/epochs.csv\"\n\
         status=interrupted\n[ \"$until\" = {EPOCH_COUNT} ] && status=completed\n\
         cp '{0}/'\"$status.json\" \"$run/summary.json\"\n",
        root.display()
    );
    let path = root.join("program.sh");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
}

impl Launch {
    /// Starts a launch on hosts, or, without their names, on one machine.
    fn start(root: &Path, text: &str, hosts: &[&str]) -> Self {
        write_program(root);
        let target: Box<dyn Target> = if hosts.is_empty() {
            Box::new(shell_target(root, "here"))
        } else {
            let host = |name: &&str| Host { name: (*name).to_owned(), target: shell_target(root, name) };
            Box::new(HostsTarget {
                name: "lab".to_owned(),
                hosts: hosts.iter().map(host).collect(),
                lost_after: Duration::from_secs(300),
                unreachable_since: std::sync::Mutex::default(),
            })
        };
        let path = Path::new("sweep.toml");
        let definition = Definition::parse::<&str, &str>(text, path, &[]).unwrap();
        let text = definition.with_command(text, path).unwrap();
        let sweep = root.join("sweeps/widths");
        drop(Sweep::create(&sweep, definition, &text).unwrap());
        let search =
            SearchRecord { sweep, until_epochs: Vec::new(), uploaded_paths: UploadedPaths::default() };
        let record = LaunchRecord {
            root: root.display().to_string(),
            program: root.join("program.sh").display().to_string(),
            prepared_hosts: hosts.iter().map(ToString::to_string).collect(),
            id: "x-1".to_owned(),
            target: "lab".to_owned(),
            search: Some(search),
            ..LaunchRecord::default()
        };
        fs::create_dir_all(root.join("jobs")).unwrap();
        let mut launch = Self { root: root.to_owned(), target, record };
        launch.record.advance(None, launch.target.slots(), true, &|_| ()).unwrap();
        launch.save();
        launch.target.submit(&launch.record.root, &launch.job()).unwrap();
        launch
    }

    fn save(&self) {
        self.record.write(&self.root.join("runs")).unwrap();
    }

    /// Forgets everything but the files.
    fn restart(&mut self) {
        self.record = LaunchRecord::find(&self.root.join("runs"), None).unwrap();
    }

    fn job(&self) -> Job {
        Job { selected: Some(self.record.repetitions_in_progress().unwrap()), ..self.record.job(None) }
    }

    /// Fetches what has ended, and starts the next steps. Returns the change, and whether anything runs.
    fn pass(&mut self) -> (SearchAdvance, bool) {
        let state = self.target.state(&self.record).unwrap();
        for (number, run) in (1..).zip(&self.record.runs) {
            let one = &state.repetitions[number - 1];
            if self.record.done.contains(&number) || one.status == RepetitionStatus::Waiting {
                continue;
            }
            let fetched = self.target.fetch(&self.record, number, run).unwrap();
            if one.status == RepetitionStatus::Completed && fetched.changing == 0 {
                self.record.done.push(number);
            }
        }
        let slots = self.target.slots();
        let advance = self.record.advance(Some(&state), slots, !state.stopped, &|_| ()).unwrap();
        self.save();
        let (job, folder) = (self.job(), self.root.join("runs"));
        self.target.reschedule(&mut self.record, &job, false, &mut |record| record.write(&folder)).unwrap();
        (advance, state.is_running)
    }

    /// Follows the launch to its end; `disturb` is called after every pass with its number.
    fn follow(&mut self, mut disturb: impl FnMut(&mut Self, usize)) {
        let start = Instant::now();
        for number in 1.. {
            let (advance, is_running) = self.pass();
            if advance.is_over && !is_running {
                return;
            }
            disturb(self, number);
            assert!(start.elapsed() < Duration::from_secs(240), "{}", self.table());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn table(&self) -> String {
        fs::read_to_string(self.root.join("sweeps/widths").join(CELLS)).unwrap()
    }

    /// The trainings so far: the width and the goal of each.
    fn trained(&self) -> Vec<String> {
        let text = fs::read_to_string(self.root.join("trained")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Checks a search that has ended.
    fn check_end(&self) {
        let (definition, rows, lost) = Sweep::inspect(&self.root.join("sweeps/widths")).unwrap();
        assert_eq!(definition.cells.len(), definition.final_cells());
        assert!(lost.is_empty(), "{lost:?}");
        assert!(rows.iter().all(|row| row.status.is_settled()), "{}", self.table());
        assert!(rows.iter().any(|row| row.status == Status::Completed), "{}", self.table());
        assert!(!self.record.has_open_rows().unwrap());
        for (row, run) in rows.iter().map(|row| (row, self.root.join("sweeps/widths").join(&row.run))) {
            let width = definition.cells[row.cell - 1].experiment.model.width.unwrap();
            assert_eq!(row.status == Status::Failed, width >= 88, "{}", self.table());
            if row.status != Status::Failed {
                let epochs = csv::read::<EpochRow>(&run.join(EPOCHS)).unwrap();
                let last = epochs.last().unwrap();
                assert_eq!(last.val_accuracy, Some(width as f64 / 100.0 + f64::from(last.epoch) / 1e3));
                assert!(run.join(SUMMARY).is_file());
            }
        }
    }
}

#[test]
fn search_on_one_machine_is_that_of_a_killed_one() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut quiet = Launch::start(folders[0].path(), SEARCH, &[]);
    quiet.follow(|_, _| ());
    quiet.check_end();
    let mut killed = Launch::start(folders[1].path(), SEARCH, &[]);
    killed.follow(|launch, number| {
        if number % 2 == 0 {
            launch.restart();
        }
    });
    killed.check_end();
    assert_eq!(killed.table(), quiet.table());
    assert_eq!(killed.trained(), quiet.trained(), "nothing is trained twice");
    let mut trained = quiet.trained();
    let steps = trained.len();
    trained.sort();
    trained.dedup();
    assert_eq!(trained.len(), steps);
    assert!(trained.iter().any(|step| step.ends_with("to 1")), "{trained:?}");
    assert!(trained.iter().any(|step| step.ends_with("to 4")), "{trained:?}");
    // A later pass changes nothing.
    let table = quiet.table();
    assert!(quiet.pass().0.is_over);
    assert_eq!(quiet.table(), table);
}

#[test]
fn cells_of_a_lost_host_are_trained_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let mut launch = Launch::start(folder.path(), SEARCH, &["a", "b", "c"]);
    let hosts: Vec<String> = launch.record.host_by_repetition.clone();
    assert_eq!(hosts, ["a", "b", "c"]);
    launch.follow(|launch, number| {
        if number % 3 == 0 {
            launch.restart();
        }
        // The disk of a host is lost, with every run on it.
        if number % 5 == 0 {
            let host = ["a", "b", "c"][number % 3];
            let _ = fs::remove_dir_all(launch.root.join(format!("jobs/x-1.{host}")));
        }
    });
    launch.check_end();
}

#[test]
fn cells_that_are_compared_together_are_queued_together() {
    let folder = tempfile::tempdir().unwrap();
    let text = SEARCH.replace("tpe", "random").replace("asynchronous = true\n", "");
    let mut launch = Launch::start(folder.path(), &text, &["a", "b"]);
    assert_eq!(launch.record.runs.len(), 12);
    let on = |host: &str| launch.record.host_by_repetition.iter().filter(|name| *name == host).count();
    assert_eq!((on("a"), on("b")), (6, 6));
    launch.follow(|_, _| ());
    launch.check_end();
    let rows = Sweep::inspect(&launch.root.join("sweeps/widths")).unwrap().1;
    let failed = rows.iter().filter(|row| row.status == Status::Failed).count();
    let goals = |goal: &str| launch.trained().iter().filter(|step| step.ends_with(goal)).count();
    assert_eq!(goals("to 1"), 12 - failed);
    assert_eq!(goals("to 2"), (12 - failed).div_ceil(2));
}

#[test]
fn tpe_without_halving_queues_the_cells_that_follow_from_the_seed() {
    let folder = tempfile::tempdir().unwrap();
    let text = SEARCH.split("[sweep.halving]").next().unwrap();
    let mut launch = Launch::start(folder.path(), text, &["a", "b"]);
    assert_eq!(launch.record.runs.len(), 10);
    launch.follow(|_, _| ());
    launch.check_end();
    assert_eq!(launch.record.goals(), ["end"; 12]);
}

#[test]
fn stopped_search_starts_nothing_and_failed_cells_are_retried() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("pause"), "").unwrap();
    let mut launch = Launch::start(folder.path(), SEARCH, &[]);
    let start = Instant::now();
    while !launch.target.stop(&launch.record).unwrap() {
        assert!(start.elapsed() < Duration::from_secs(600), "nothing runs");
    }
    fs::remove_file(folder.path().join("pause")).unwrap();
    while launch.target.state(&launch.record).unwrap().is_running {
        assert!(start.elapsed() < Duration::from_secs(600), "it does not stop");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (advance, _) = launch.pass();
    assert!(advance.started.is_empty() && !advance.is_over);
    assert_eq!(launch.record.runs.len(), 1);
    // As `stratus launch resume`.
    let (sweep, search) = (folder.path().join("sweeps/widths"), launch.record.search.clone());
    let mut opened = Sweep::open(&sweep).unwrap();
    opened.record_outcome(0, stratus_sweep::RowOutcome::Failed("diverged".to_owned()), None).unwrap();
    drop(opened);
    launch.record.retry_failed().unwrap();
    assert_eq!(Sweep::inspect(&sweep).unwrap().1[0].status, Status::Running);
    assert_eq!(launch.record.repetitions_in_progress().unwrap(), [1]);
    assert_eq!(launch.record.search, search);
    launch.target.submit(&launch.record.root, &launch.job()).unwrap();
    launch.follow(|_, _| ());
    launch.check_end();
}

#[test]
fn edited_record_and_missing_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let weights = folder.path().join("weights.safetensors");
    fs::write(&weights, "").unwrap();
    let text = SEARCH.replace(
        "name = \"digits\"",
        &format!("name = \"digits\"\nweights = {:?}", weights.display().to_string()),
    );
    let path = Path::new("sweep.toml");
    let definition = Definition::parse::<&str, &str>(&text, path, &[]).unwrap();
    let sweep = folder.path().join("sweep");
    drop(Sweep::create(&sweep, definition.clone(), &definition.with_command(&text, path).unwrap()).unwrap());
    let search = SearchRecord { sweep: sweep.clone(), ..SearchRecord::default() };
    let record = LaunchRecord { search: Some(search), ..LaunchRecord::default() };
    let error = record.clone().advance(None, 1, true, &|_| ()).unwrap_err();
    assert!(error.to_string().contains("weights.safetensors was not uploaded"), "{error}");
    // More runs than goals, and runs outside of the sweep.
    let runs = vec![sweep.join("runs/1/1"), PathBuf::from("elsewhere")];
    let mut edited = LaunchRecord { runs, experiments: vec![String::new(); 2], ..record.clone() };
    let advance = edited.advance(None, 1, true, &|_| ()).unwrap();
    assert!(advance.started.is_empty() && !advance.is_over);
    assert_eq!(edited.goals(), ["end", "end"]);
    let gone = SearchRecord { sweep: folder.path().join("none"), ..SearchRecord::default() };
    let mut gone = LaunchRecord { search: Some(gone), ..record };
    assert!(matches!(gone.advance(None, 1, true, &|_| ()), Err(Error::Sweep(_))));
    assert!(gone.has_open_rows().is_err());
}
