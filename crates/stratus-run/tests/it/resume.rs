//! A killed and resumed run ends with the same files as an uninterrupted run.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stratus_run::checkpoint::{Checkpoints, Retention, State, TensorRef, Tensors, Values};
use stratus_run::csv::{self, CsvWriter, IterationRow, Task};
use stratus_run::layout::{ITERATIONS, LOCK, LOG, TIMELINE, TIMELINE_RECORDS};
use stratus_run::log::Log;
use stratus_run::summary::{Status, Summary};
use stratus_run::timeline::{Phase, Program, Purpose, Slot, TimelineWriter};
use stratus_run::{RunDir, atomic};

const ITERATION_COUNT: u64 = 23;
const CHECKPOINT_EVERY: u64 = 5;

fn program() -> Program {
    let slot = Slot {
        layers: vec!["fc".into()],
        kind: "linear".into(),
        phase: Phase::Forward,
        device: "cpu".into(),
    };
    Program { name: "train".into(), purpose: Purpose::Train, batch_size: 1, slots: vec![slot] }
}

/// Simulates training with a weight that every iteration changes. Exits abruptly before iteration `die_at` is
/// saved.
fn train(path: &Path, die_at: Option<u64>) {
    let run = RunDir::open(path).unwrap();
    let _lock = run.lock().unwrap();
    run.prepare().unwrap();
    let mut log = Log::open(&run.log()).unwrap();
    let checkpoints = Checkpoints::new(run.checkpoints());
    let recovery = checkpoints.load_latest().unwrap();
    for damage in &recovery.skipped {
        log.write(&format!("{}: {}", damage.path.display(), damage.reason)).unwrap();
    }
    let (mut weight, state) = match recovery.checkpoint {
        Some(checkpoint) => {
            let Values::F32(values) = &checkpoint.weights[0].values else { panic!("not f32") };
            (values[0], checkpoint.state)
        }
        None => (0.5, State::default()),
    };
    let position = |name: &str| state.positions.get(name).copied().unwrap_or(0);
    let mut rows =
        CsvWriter::resume_at(&run.iterations(), Task::Classification, position(ITERATIONS)).unwrap();
    let mut timeline = TimelineWriter::resume_at(&run.timeline(), position(TIMELINE)).unwrap();
    let id = timeline.register(&program()).unwrap();
    for iteration in state.iteration + 1..=ITERATION_COUNT {
        weight = 3.7 * weight * (1.0 - weight);
        let row = IterationRow { epoch: 1, iteration, loss: f64::from(weight), ..Default::default() };
        rows.append(&row).unwrap();
        timeline.append(id, 1, iteration, 1000, &[iteration]).unwrap();
        if iteration % 2 == 0 {
            rows.flush().unwrap();
            timeline.flush().unwrap();
        }
        if die_at == Some(iteration) {
            // No destructor runs: buffered data is lost, partial writes stay.
            std::process::exit(9);
        }
        if iteration % CHECKPOINT_EVERY == 0 || iteration == ITERATION_COUNT {
            rows.sync().unwrap();
            timeline.sync().unwrap();
            let positions = BTreeMap::from([
                (ITERATIONS.to_string(), rows.position()),
                (TIMELINE.to_string(), timeline.position()),
            ]);
            let state = State { epoch: 1, iteration, positions, ..Default::default() };
            let values = [weight];
            let weights = [TensorRef::f32("fc.weight", &[1], &values)];
            let tensors = Tensors { weights: weights.to_vec(), ..Tensors::default() };
            checkpoints.save(&state, &tensors, &Retention::default()).unwrap();
        }
    }
    Summary { status: Status::Completed, iterations: ITERATION_COUNT, ..Default::default() }
        .write(&run.summary())
        .unwrap();
}

/// The process that is killed in the tests below; not a test of its own.
#[test]
fn child() {
    let Ok(run) = std::env::var("STRATUS_TEST_RUN") else { return };
    train(Path::new(&run), std::env::var("STRATUS_TEST_DIE_AT").unwrap().parse().ok());
}

fn spawn(run: &RunDir, die_at: Option<u64>) -> Option<i32> {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "resume::child"])
        .env("STRATUS_TEST_RUN", run.path())
        .env("STRATUS_TEST_DIE_AT", die_at.map(|i| i.to_string()).unwrap_or_default())
        .stdout(Stdio::null())
        .status();
    status.unwrap().code()
}

fn new_run(root: &Path) -> RunDir {
    let run = RunDir::create(root, "x").unwrap();
    atomic::write(&run.experiment(), b"").unwrap();
    run
}

/// All files except those with times or process ids, by path in the run.
fn content(run: &RunDir) -> BTreeMap<PathBuf, Vec<u8>> {
    fn walk(folder: &Path, root: &Path, out: &mut BTreeMap<PathBuf, Vec<u8>>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_path_buf();
            if path.is_dir() {
                walk(&path, root, out);
            } else if ![LOG, LOCK].iter().any(|&skipped| name == Path::new(skipped)) {
                out.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    let mut out = BTreeMap::new();
    walk(run.path(), run.path(), &mut out);
    out
}

#[test]
fn killed_run_resumes_bit_identical() {
    let root = tempfile::tempdir().unwrap();
    let whole = new_run(root.path());
    assert_eq!(spawn(&whole, None), Some(0));
    let expected = content(&whole);
    assert_eq!(csv::read::<IterationRow>(&whole.iterations()).unwrap().len() as u64, ITERATION_COUNT);
    assert_eq!(Summary::read(&whole.summary()).unwrap().status, Status::Completed);
    for die_at in [1, 2, 5, 6, 12, 20, 23] {
        let run = new_run(root.path());
        assert_eq!(spawn(&run, Some(die_at)), Some(9));
        // The kernel may have written part of a record too.
        for path in [run.iterations(), run.timeline().join(TIMELINE_RECORDS)] {
            fs::OpenOptions::new().append(true).open(path).unwrap().write_all(b"1,9").unwrap();
        }
        csv::read::<IterationRow>(&run.iterations()).unwrap();
        assert_eq!(spawn(&run, Some(die_at + 7)), Some(if die_at + 7 <= ITERATION_COUNT { 9 } else { 0 }));
        assert_eq!(spawn(&run, None), Some(0));
        assert!(content(&run) == expected, "died at {die_at}");
    }
}

#[test]
fn resumes_from_the_checkpoint_before_a_damaged_one() {
    let root = tempfile::tempdir().unwrap();
    let whole = new_run(root.path());
    assert_eq!(spawn(&whole, None), Some(0));
    let run = new_run(root.path());
    assert_eq!(spawn(&run, Some(17)), Some(9));
    let damaged = run.checkpoints().join("0000000015/weights.safetensors");
    fs::write(&damaged, b"nonsense").unwrap();
    assert_eq!(spawn(&run, None), Some(0));
    assert!(content(&run) == content(&whole));
    let log = fs::read_to_string(run.log()).unwrap();
    assert!(log.contains("0000000015: weights.safetensors: it has 8 bytes instead of"), "{log}");
}
