//! A program outside a checkout: its libraries and data are those of its prefix.

use crate::common::{CommandOutput, SETTINGS, TestDir, digits, root};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// A prefix with the program in `bin`.
struct Installation {
    dir: TestDir,
}

impl Installation {
    fn new() -> Self {
        let dir = TestDir::without_kernel_cache();
        let (program, installed) = (Path::new(env!("CARGO_BIN_EXE_stratus")), dir.path("prefix/bin/stratus"));
        for folder in ["prefix/bin", "prefix/lib/stratus", "prefix/share/stratus", "working", "cache/data"] {
            fs::create_dir_all(dir.path(folder)).unwrap();
        }
        if fs::hard_link(program, &installed).is_err() {
            fs::copy(program, &installed).unwrap();
        }
        Self { dir }
    }

    /// Runs the program in an empty working folder, without the variables that name libraries.
    fn run(&self, arguments: &[&str]) -> CommandOutput {
        let mut command = Command::new(self.dir.path("prefix/bin/stratus"));
        command.env_clear().env("OMP_WAIT_POLICY", "passive").env("STRATUS_CACHE", self.dir.path("cache"));
        CommandOutput::new(command.args(arguments).current_dir(self.dir.path("working")).output().unwrap())
    }

    fn train(&self, more: &[&str]) -> CommandOutput {
        let settings = SETTINGS.iter().flat_map(|setting| ["--set", setting]).collect::<Vec<_>>();
        self.run(&[&["train", "digits", "--set", "train.epochs=1"], &settings[..], more].concat())
    }
}

#[test]
fn libraries_and_data_of_the_prefix_are_used() {
    let library = root().join(".deps/onednn/lib/libdnnl.so.3");
    if !library.is_file() {
        eprintln!("SKIPPED: `make deps` installs oneDNN only on x86-64 Linux");
        return;
    }
    let installed = Installation::new();
    fs::copy(library, installed.dir.path("prefix/lib/stratus/libdnnl.so.3")).unwrap();
    symlink(digits(), installed.dir.path("prefix/share/stratus/mnist")).unwrap();
    let doctor = installed.run(&["doctor", "--no-measure"]).expect(0).out;
    assert!(doctor.replace(['\n', ' '], "").contains("prefix/lib/stratus/libdnnl.so.3"), "{doctor}");

    installed.train(&["--out", "run"]).expect(0);
    let experiment = fs::read_to_string(installed.dir.path("working/run/experiment.toml")).unwrap();
    assert!(experiment.contains("prefix/share/stratus/mnist\""), "{experiment}");
}

#[test]
fn data_set_of_the_cache_folder_is_used_unless_the_working_folder_has_one() {
    let installed = Installation::new();
    symlink(digits(), installed.dir.path("cache/data/mnist")).unwrap();
    let plan = || installed.run(&["plan", "digits", "--set", "data.verify=false", "--json"]);
    assert!(!plan().expect(0).out.is_empty());
    fs::create_dir_all(installed.dir.path("working/data/mnist")).unwrap();
    let error = plan().expect(1).err;
    assert!(error.contains("data/mnist: ") && !error.contains("cache"), "{error}");
}

#[test]
fn missing_libraries_are_reported_with_their_folders_and_a_command() {
    let installed = Installation::new();
    symlink(digits(), installed.dir.path("cache/data/mnist")).unwrap();
    // A library in the working folder must not be loaded: others may write there.
    fs::create_dir_all(installed.dir.path("working/.deps/onednn/lib")).unwrap();
    fs::write(installed.dir.path("working/.deps/onednn/lib/libdnnl.so.3"), "").unwrap();
    let prefix = installed.dir.path("prefix").canonicalize().unwrap();
    let doctor = installed.run(&["doctor", "--no-measure", "--json"]).expect(0).out;
    let doctor: serde_json::Value = serde_json::from_str(&doctor).unwrap();
    let onednn = &doctor["looked_for"][0];
    if !onednn["path"].is_null() {
        eprintln!("SKIPPED: this system has oneDNN");
        return;
    }
    let note = onednn["note"].as_str().unwrap();
    for folder in ["bin", "lib/stratus", "lib"] {
        assert!(note.contains(&prefix.join(folder).display().to_string()), "{note}");
    }
    assert!(!note.contains("working"), "{note}");
    assert!(note.ends_with(&format!("; run `make deps PREFIX={}`", prefix.display())), "{note}");
}
