//! Helpers of the tests of the built program: real processes on the real digits, each test in a separate
//! folder.

pub mod photographs;
pub mod streets;
pub mod tiny;

use flate2::read::GzDecoder;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use stratus_data::datasets;
use stratus_experiment::Experiment;
use stratus_graph::zoo;
use tempfile::TempDir;

/// The settings of all training runs of these tests except for the number of epochs. An epoch has 58 full
/// batches and a smaller one.
pub const SETTINGS: &[&str] = &["train.batch_size=256", "data.verify=false", "checkpoint.every_seconds=0.05"];
/// The number of iterations per epoch with [`SETTINGS`].
pub const PER_EPOCH: usize = 59;
pub const ITERATIONS_HEADER: &str =
    "epoch,iteration,loss,top1,top5,learning_rate,data_s,train_s,unattributed_s";
pub const EPOCHS_HEADER: &str =
    "epoch,train_loss,train_top1,val_loss,val_top1,val_top5,train_s,val_s,elapsed_s";

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A folder with every fourth image of MNIST, on which a quarter of the batch size gives the same number of
/// iterations per epoch in a quarter of the time. It is kept between test runs.
pub fn digits() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("digits");
        if folder.is_dir() {
            return folder;
        }
        let written = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for entry in fs::read_dir(root().join("data/mnist")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let Some(name) = name.strip_suffix(".gz") else { continue };
            let mut idx = Vec::new();
            GzDecoder::new(fs::File::open(&path).unwrap()).read_to_end(&mut idx).unwrap();
            fs::write(written.path().join(name), every_fourth(&idx)).unwrap();
        }
        // Another test program may have created the folder first.
        if fs::rename(written.path(), &folder).is_err() {
            assert!(folder.is_dir());
        }
        folder
    })
}

/// Keeps every fourth item of an IDX file, whose format is: two zeros, a type, the number of dimensions, the
/// dimensions as big-endian `u32`, the items.
fn every_fourth(idx: &[u8]) -> Vec<u8> {
    let dimension = |at: usize| u32::from_be_bytes(idx[4 + 4 * at..8 + 4 * at].try_into().unwrap());
    let dimensions = usize::from(idx[3]);
    let item = (1..dimensions).map(|at| dimension(at) as usize).product();
    let (header, items) = idx.split_at(4 + 4 * dimensions);
    let kept = items.chunks_exact(item).step_by(4).flatten();
    let count = (dimension(0) / 4).to_be_bytes();
    header[..4].iter().chain(&count).chain(&header[8..]).chain(kept).copied().collect()
}

/// The exit code and the output of a process.
pub struct CommandOutput {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl CommandOutput {
    /// Asserts that the process did not panic.
    pub fn new(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let ran =
            CommandOutput { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) };
        assert!(!ran.err.contains("panicked"), "{}", ran.err);
        ran
    }

    /// Asserts the exit code.
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}\n{}", self.out, self.err);
        self
    }
}

/// The folder of a test, with a separate cache of plans.
pub struct TestDir {
    pub folder: TempDir,
    /// Environment variables of processes started here.
    pub variables: Vec<(&'static str, OsString)>,
}

impl TestDir {
    /// An empty folder with a shared cache of timed kernels: all runs with [`SETTINGS`] have the same plan.
    pub fn new() -> Self {
        let dir = Self::without_kernel_cache();
        let cache = dir.path("cache/plans");
        fs::create_dir_all(&cache).unwrap();
        for entry in fs::read_dir(shared_kernel_cache().join("plans")).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), cache.join(entry.file_name())).unwrap();
        }
        dir
    }

    /// An empty folder without a cache of timed kernels.
    pub fn without_kernel_cache() -> Self {
        TestDir { folder: tempfile::tempdir().unwrap(), variables: Vec::new() }
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The command of the program, to be run in the folder.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program(&self.path("cache"));
        command.args(arguments).current_dir(self.folder.path());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs the program to its end.
    pub fn run(&self, arguments: &[&str]) -> CommandOutput {
        CommandOutput::new(self.command(arguments).output().unwrap())
    }

    /// A folder with `run`, which was trained for an epoch.
    pub fn trained() -> Self {
        let dir = Self::new();
        dir.train("run", 1, &[]).expect(0);
        dir
    }

    /// Trains `epochs` epochs with [`SETTINGS`] into the new run directory `out`.
    pub fn train(&self, out: &str, epochs: u32, more: &[&str]) -> CommandOutput {
        let arguments = train_arguments(out, epochs, more);
        self.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

/// Returns whether the CPU kernels compute in a precision; prints it if not.
pub fn has_precision(precision: &str) -> bool {
    let key = format!("train.precision={precision}");
    let arguments = ["plan", "digits", "--set", &key, "--set", "train.device=auto"];
    let is_supported = !TestDir::new().run(&arguments).err.contains("is not supported");
    if !is_supported {
        eprintln!("SKIPPED: {key}, which the kernels of this processor do not support");
    }
    is_supported
}

/// A JSON document that a command printed.
pub fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

/// The arguments that train with [`SETTINGS`].
pub fn train_arguments(out: &str, epochs: u32, more: &[&str]) -> Vec<String> {
    let data = format!("data.path={}", digits().display());
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
    // Several tests run at the same time, so waiting threads must not occupy the cores.
    command.env("OMP_WAIT_POLICY", "passive");
    // `make deps` puts the libraries into the checkout, which need not contain the build folder.
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

/// The folder of the plans of [`SETTINGS`], timed if they are missing. It is kept between test runs.
fn shared_kernel_cache() -> &'static Path {
    static CACHE: OnceLock<PathBuf> = OnceLock::new();
    CACHE.get_or_init(|| {
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plans-of-tests");
        fs::create_dir_all(cache.join("plans")).unwrap();
        let mut command = program(&cache);
        command.args(["plan", "digits", "--dump", "plan"]);
        command.arg("--set").arg(format!("data.path={}", digits().display()));
        command.args(SETTINGS.iter().flat_map(|setting| ["--set", setting]));
        CommandOutput::new(command.output().unwrap()).expect(0);
        cache
    })
}

/// The summary of a run.
pub fn summary(run: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(run.join("summary.json")).unwrap()).unwrap()
}

/// The rows of a CSV file without columns in seconds. An incomplete last line is skipped.
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

/// The value of a column of `epochs.csv` for the last epoch.
pub fn last_epoch(run: &Path, column: &str) -> f64 {
    let text = fs::read_to_string(run.join("epochs.csv")).unwrap();
    let mut lines = text.lines();
    let position = lines.next().unwrap().split(',').position(|name| name == column).unwrap();
    lines.next_back().unwrap().split(',').nth(position).unwrap().parse().unwrap()
}

/// The files of `validation/` of a run, by name.
pub fn validation_files(run: &Path) -> BTreeMap<String, Vec<u8>> {
    let read = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
    };
    fs::read_dir(run.join("validation")).unwrap().map(read).collect()
}

/// The parts of a run that must not depend on interruptions.
#[derive(Clone, Debug, PartialEq)]
pub struct RunResult {
    pub weights: String,
    pub iterations: Vec<String>,
    pub epochs: Vec<String>,
}

impl RunResult {
    /// Reads a completed run.
    pub fn read(run: &Path) -> Self {
        let summary = summary(run);
        assert_eq!(summary["status"], "completed", "{summary}");
        RunResult {
            weights: summary["weights_sha256"].as_str().unwrap().to_owned(),
            iterations: rows(&run.join("iterations.csv"), ITERATIONS_HEADER),
            epochs: rows(&run.join("epochs.csv"), EPOCHS_HEADER),
        }
    }
}

/// Replaces the lists of all experiments, networks and data sets in a message, so that a new one does not
/// change the snapshots of errors.
pub fn without_registries(message: &str) -> String {
    let experiments = Experiment::builtin_names().collect::<Vec<_>>().join(", ");
    let networks = zoo::NETWORKS.iter().map(|network| network.name).collect::<Vec<_>>().join(", ");
    let data_sets = datasets::REGISTRY.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ");
    message
        .replace(&experiments, "[all experiments]")
        .replace(&networks, "[all networks]")
        .replace(&data_sets, "[all data sets]")
}

/// A SplitMix64 generator, which chooses the times and processes of faults.
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// The next number below `bound`.
    pub fn next_below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
