//! What the tests of the built program share: real processes on the real digits, each test in a folder of its
//! own.

pub mod photographs;
pub mod streets;
pub mod tiny;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;

/// What every training of these tests is told beside its epochs. 58 whole batches and a smaller one make an
/// epoch.
pub const SETTINGS: &[&str] = &["train.batch_size=1024", "checkpoint.every_seconds=0.05"];
/// Iterations of an epoch of [`SETTINGS`].
pub const PER_EPOCH: usize = 59;
pub const ITERATIONS_HEADER: &str =
    "epoch,iteration,loss,top1,top5,learning_rate,data_s,train_s,unattributed_s";
pub const EPOCHS_HEADER: &str =
    "epoch,train_loss,train_top1,val_loss,val_top1,val_top5,train_s,val_s,elapsed_s";

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A process that has ended.
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// It must not have panicked, however it ended.
    pub fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let ran = Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) };
        assert!(!ran.err.contains("panicked"), "{}", ran.err);
        ran
    }

    /// It must have ended with this exit code.
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}\n{}", self.out, self.err);
        self
    }
}

/// A folder for a test, with a cache of plans that nobody else writes to.
pub struct Place {
    pub folder: TempDir,
    /// Environment variables of what is run here.
    pub variables: Vec<(&'static str, OsString)>,
}

impl Place {
    /// An empty folder. Kernels were measured before: all trainings of [`SETTINGS`] have one plan.
    pub fn new() -> Self {
        let place = Self::bare();
        let cache = place.path("cache/plans");
        fs::create_dir_all(&cache).unwrap();
        for entry in fs::read_dir(measured().join("plans")).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), cache.join(entry.file_name())).unwrap();
        }
        place
    }

    /// An empty folder, and no kernels measured.
    pub fn bare() -> Self {
        Place { folder: tempfile::tempdir().unwrap(), variables: Vec::new() }
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The program, to be started in the folder.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program(&self.path("cache"));
        command.args(arguments).current_dir(self.folder.path());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs the program to its end.
    pub fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(self.command(arguments).output().unwrap())
    }

    /// Trains `epochs` epochs of [`SETTINGS`] in the new run directory `out`.
    pub fn train(&self, out: &str, epochs: u32, more: &[&str]) -> Ran {
        let arguments = training(out, epochs, more);
        self.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

/// The arguments that start a training of [`SETTINGS`].
pub fn training(out: &str, epochs: u32, more: &[&str]) -> Vec<String> {
    let data = format!("data.path={}", root().join("data/mnist").display());
    let epochs = format!("train.epochs={epochs}");
    let mut arguments = ["train", "digits", "--out", out].map(str::to_owned).to_vec();
    for setting in SETTINGS.iter().chain(&[data.as_str(), epochs.as_str()]) {
        arguments.extend(["--set".to_owned(), (*setting).to_owned()]);
    }
    arguments.extend(more.iter().map(|&argument| argument.to_owned()));
    arguments
}

fn program(cache: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stratus"));
    command
        .env("STRATUS_CACHE", cache)
        .env_remove("COLUMNS")
        .env_remove("CLICOLOR_FORCE")
        .stdin(Stdio::null());
    // Several tests run at a time: threads that wait for others must not hold the cores.
    command.env("OMP_WAIT_POLICY", "passive");
    // The build folder need not lie in the checkout, where `make deps` puts the libraries.
    for (name, library) in [
        ("STRATUS_ONEDNN", ".deps/onednn/lib"),
        ("STRATUS_LIBJPEG", ".deps/libjpeg/lib"),
        ("STRATUS_MPI", ".deps/mpich/lib"),
    ] {
        let library = root().join(library);
        if std::env::var_os(name).is_none() && library.is_dir() {
            command.env(name, library);
        }
    }
    command
}

/// The folder of the plans of [`SETTINGS`], measured where they are not known yet. It stays from one test run
/// to the next.
fn measured() -> &'static Path {
    static MEASURED: OnceLock<PathBuf> = OnceLock::new();
    MEASURED.get_or_init(|| {
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plans-of-tests");
        fs::create_dir_all(cache.join("plans")).unwrap();
        let mut command = program(&cache);
        command.args(["plan", "digits", "--dump", "plan"]);
        command.arg("--set").arg(format!("data.path={}", root().join("data/mnist").display()));
        command.args(SETTINGS.iter().flat_map(|setting| ["--set", setting]));
        Ran::of(command.output().unwrap()).expect(0);
        cache
    })
}

/// The summary of a run.
pub fn summary(run: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(run.join("summary.json")).unwrap()).unwrap()
}

/// The rows of a CSV file without what depends on the clock: columns in seconds. A last line without its end
/// is left out.
pub fn rows(path: &Path, header: &str) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::trim_end);
    let Some(first) = lines.next() else { return Vec::new() };
    assert_eq!(first, header);
    let columns: Vec<&str> = header.split(',').collect();
    lines
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            assert_eq!(fields.len(), columns.len(), "{line}");
            let kept = columns.iter().zip(fields).filter(|(column, _)| !column.ends_with("_s"));
            kept.map(|(_, field)| field).collect::<Vec<_>>().join(",")
        })
        .collect()
}

/// A number of a run's last epoch, from a column of `epochs.csv`.
pub fn last_epoch(run: &Path, column: &str) -> f64 {
    let text = fs::read_to_string(run.join("epochs.csv")).unwrap();
    let mut lines = text.lines();
    let position = lines.next().unwrap().split(',').position(|name| name == column).unwrap();
    lines.next_back().unwrap().split(',').nth(position).unwrap().parse().unwrap()
}

/// What must not depend on interruptions.
#[derive(Clone, Debug, PartialEq)]
pub struct Result {
    pub weights: String,
    pub iterations: Vec<String>,
    pub epochs: Vec<String>,
}

impl Result {
    /// Of a run that is complete.
    pub fn of(run: &Path) -> Self {
        let summary = summary(run);
        assert_eq!(summary["status"], "completed", "{summary}");
        Result {
            weights: summary["weights_sha256"].as_str().unwrap().to_owned(),
            iterations: rows(&run.join("iterations.csv"), ITERATIONS_HEADER),
            epochs: rows(&run.join("epochs.csv"), EPOCHS_HEADER),
        }
    }
}

/// SplitMix64: which moments and processes of a test are chosen. When they come is up to the machine.
pub struct Draw(pub u64);

impl Draw {
    /// A number from 0 to below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
