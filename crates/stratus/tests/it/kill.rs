//! Interrupted runs resume bit-identical. Real processes are killed.
//!
//! `STRATUS_KILLS=100 cargo test --release -p stratus --test it kill` kills a hundred times, instead of
//! [`KILLS`] times.

#![cfg(unix)]

use crate::common::{
    CommandOutput, ITERATIONS_HEADER, PER_EPOCH, RunResult, SplitMix64, TestDir, rows, summary,
    train_arguments,
};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};
use stratus::signals::ignores_hangup;

/// The number of kills if `STRATUS_KILLS` is not set.
const KILLS: u64 = 10;
/// The maximum number of kills per run.
const KILLS_PER_RUN: u64 = 10;
const EPOCHS: u32 = 4;
const ITERATIONS: u64 = EPOCHS as u64 * PER_EPOCH as u64;
/// The time limit of a wait.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The result of an uninterrupted run.
fn uninterrupted() -> &'static RunResult {
    static RESULT: OnceLock<RunResult> = OnceLock::new();
    RESULT.get_or_init(|| {
        let dir = TestDir::new();
        dir.train("run", EPOCHS, &[]).expect(0);
        let result = RunResult::read(&dir.path("run"));
        assert_eq!(result.iterations.len() as u64, ITERATIONS);
        let numbers =
            result.iterations.iter().map(|row| row.split(',').nth(1).unwrap().parse::<u64>().unwrap());
        assert!(numbers.eq(1..=ITERATIONS));
        assert_eq!(result.epochs.len() as u64, u64::from(EPOCHS));
        result
    })
}

/// A running training process.
struct TrainingProcess {
    child: Child,
    run: PathBuf,
    /// The file of its standard error.
    log_path: PathBuf,
}

impl TrainingProcess {
    /// Starts or resumes the run `name`.
    fn start(dir: &TestDir, name: &str) -> Self {
        Self::start_with(dir, name, &[])
    }

    /// Starts the run with further settings, or resumes it.
    fn start_with(dir: &TestDir, name: &str, more: &[&str]) -> Self {
        let run = dir.path(name);
        let arguments = if run.join("experiment.toml").is_file() {
            vec!["train".to_owned(), name.to_owned()]
        } else {
            train_arguments(name, EPOCHS, more)
        };
        let log_path = dir.path(&format!("{name}.log"));
        let mut command = dir.command(&[]);
        command.args(arguments).stdout(Stdio::null()).stderr(File::create(&log_path).unwrap());
        TrainingProcess { child: command.spawn().unwrap(), run, log_path }
    }

    fn log_text(&self) -> String {
        let text = fs::read_to_string(&self.log_path).unwrap();
        assert!(!text.contains("panicked"), "{text}");
        text
    }

    /// Waits until a condition holds; false if training completed before.
    fn wait_until(&mut self, mut condition: impl FnMut(&Path) -> bool) -> bool {
        let start = Instant::now();
        while !condition(&self.run) {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(status.success(), "{status}: {}", self.log_text());
                return false;
            }
            assert!(start.elapsed() < TIMEOUT, "timed out: {}", self.log_text());
            std::thread::yield_now();
        }
        true
    }

    /// Kills the process; false if it had already exited.
    fn kill(mut self) -> bool {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success() || status.code().is_none(), "{status}: {}", self.log_text());
        self.log_text();
        !status.success()
    }

    /// Sends a signal and waits for the exit.
    fn signal(mut self, name: &str) -> (ExitStatus, String) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let status = self.child.wait().unwrap();
        (status, self.log_text())
    }

    /// Stops the process with SIGTERM after `count` further checkpoints.
    fn stop_after_checkpoints(mut self, count: usize) -> String {
        let mut seen = newest(&self.run);
        for _ in 0..count {
            assert!(self.wait_until(|run| newest(run) > seen), "it exited too early: {}", self.log_text());
            seen = newest(&self.run);
        }
        let (status, log) = self.signal("TERM");
        assert_eq!(status.code(), Some(75), "{log}");
        log
    }
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The iterations with a checkpoint, ascending.
fn checkpoints(run: &Path) -> Vec<u64> {
    entries(&run.join("checkpoints")).iter().filter_map(|name| name.parse().ok()).collect()
}

/// The iteration of the newest checkpoint; 0 if there is none.
fn newest(run: &Path) -> u64 {
    checkpoints(run).last().copied().unwrap_or(0)
}

fn checkpoint(run: &Path, iteration: u64) -> PathBuf {
    run.join(format!("checkpoints/{iteration:010}"))
}

/// Incomplete checkpoints.
fn incomplete_checkpoints(run: &Path) -> Vec<String> {
    entries(&run.join("checkpoints")).into_iter().filter(|name| name.ends_with(".tmp")).collect()
}

/// The kinds of kills that occurred, over all runs.
#[derive(Default)]
struct KillCoverage {
    kills: u64,
    /// Kills that left an incomplete checkpoint.
    incomplete: u64,
    /// Kills within an epoch.
    within_epochs: u64,
    /// The hash of the weights after each iteration, which must always be the same.
    weights: BTreeMap<u64, String>,
}

impl KillCoverage {
    /// Checks that a killed run contains only what an uninterrupted one would have written.
    fn check(&mut self, run: &Path) {
        self.kills += 1;
        self.incomplete += u64::from(!incomplete_checkpoints(run).is_empty());
        let written = run.join("iterations.csv");
        let written = if written.exists() { rows(&written, ITERATIONS_HEADER) } else { Vec::new() };
        assert_eq!(written, uninterrupted().iterations[..written.len()]);
        for iteration in checkpoints(run) {
            let state = fs::read(checkpoint(run, iteration).join("state.json")).unwrap();
            let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
            let weights = state["weights_sha256"].as_str().unwrap().to_owned();
            let known = self.weights.entry(iteration).or_insert_with(|| weights.clone());
            assert_eq!(*known, weights, "the weights after iteration {iteration}");
        }
        self.within_epochs += u64::from(!newest(run).is_multiple_of(PER_EPOCH as u64));
    }
}

/// Starts a run, kills it up to `kills` times and trains it to its end.
fn kill_through(dir: &TestDir, name: &str, kills: u64, random: &mut SplitMix64, seen: &mut KillCoverage) {
    let run = dir.path(name);
    for left in (1..=kills).rev() {
        let at = newest(&run);
        let mut training = TrainingProcess::start(dir, name);
        // During startup, during training, or while a checkpoint is written.
        let under_way = match random.next_below(4) {
            0 => {
                sleep(Duration::from_millis(random.next_below(600)));
                true
            }
            moment => {
                let target =
                    at + 1 + random.next_below((2 * ITERATIONS.saturating_sub(at) / (left + 1)).max(1));
                let mut going = training.wait_until(|run| newest(run) >= target);
                if moment == 1 {
                    going = going && training.wait_until(|run| !incomplete_checkpoints(run).is_empty());
                } else {
                    sleep(Duration::from_micros(random.next_below(60_000)));
                }
                going
            }
        };
        if !under_way || !training.kill() {
            break;
        }
        seen.check(&run);
    }
    let mut training = TrainingProcess::start(dir, name);
    assert!(!training.wait_until(|_| false));
    assert_eq!(RunResult::read(&run), *uninterrupted());
    assert_eq!(incomplete_checkpoints(&run), Vec::<String>::new());
    // The timeline has every iteration once.
    let layers = dir.run(&["collect", name, "--layers", "--json"]).expect(0);
    let collected: serde_json::Value = serde_json::from_str(&layers.out).unwrap();
    let accounting = &collected[0]["accounting"];
    let counted = accounting["iterations"].as_u64().unwrap() + accounting["skipped"].as_u64().unwrap();
    assert_eq!((counted, &accounting["torn_bytes"]), (ITERATIONS, &serde_json::json!(0)));
    let mut of_layers: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for line in fs::read_to_string(run.join("layers.csv")).unwrap().lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        of_layers.entry(fields[2].to_owned()).or_default().push(fields[1].parse().unwrap());
    }
    assert!(!of_layers.is_empty());
    for (layer, iterations) in of_layers {
        assert!(iterations.into_iter().eq(1..=ITERATIONS), "{layer}");
    }
}

#[test]
fn killed_run_resumes_bit_identical() {
    let kills = std::env::var("STRATUS_KILLS").map_or(KILLS, |count| count.parse().unwrap());
    let dir = TestDir::new();
    let (mut random, mut seen) = (SplitMix64(2), KillCoverage::default());
    for number in 1.. {
        let wanted = kills.saturating_sub(seen.kills).max(u64::from(seen.incomplete == 0));
        if wanted == 0 {
            break;
        }
        assert!(number <= 20 + kills, "too few kills hit a running process");
        kill_through(&dir, &format!("run{number}"), wanted.min(KILLS_PER_RUN), &mut random, &mut seen);
    }
    eprintln!(
        "{} kills, {} within an epoch, {} while a checkpoint was written",
        seen.kills, seen.within_epochs, seen.incomplete
    );
    assert!(seen.within_epochs > 0 && seen.incomplete > 0);
}

/// In f16, checkpoints contain the loss scale and its age. Here, the initial scale is too large.
#[test]
fn killed_f16_run_restores_its_loss_scale() {
    const SETTINGS: [&str; 7] = [
        "train.device=reference",
        "train.precision=f16",
        "model.width=2",
        "data.name=synthetic",
        "data.synthetic.images=1024",
        "data.synthetic.validation_images=16",
        "train.batch_size=16",
    ];
    let settings = SETTINGS.map(|setting| ["--set", setting]);
    let settings = settings.as_flattened();
    let dir = TestDir::new();
    dir.train("whole", EPOCHS, settings).expect(0);
    let mut training = TrainingProcess::start_with(&dir, "killed", settings);
    assert!(training.wait_until(|run| newest(run) > 0), "{}", training.log_text());
    assert!(training.kill());
    let scale = checkpoint(&dir.path("killed"), newest(&dir.path("killed"))).join("optimizer.safetensors");
    assert!(fs::read(scale).unwrap().windows(12).any(|name| name == b"\"loss_scale\""));
    dir.run(&["train", "killed"]).expect(0);
    let [whole, killed] = ["whole", "killed"].map(|name| RunResult::read(&dir.path(name)));
    assert_eq!(whole, killed);
    let [whole, killed] = ["whole", "killed"].map(|name| summary(&dir.path(name))["loss_scale"].clone());
    assert_eq!(whole, killed);
    assert!(whole["scale"].as_f64().unwrap() >= 1.0, "{whole}");
}

/// Covers averaged weights, gradient clipping and the best checkpoint.
#[test]
fn killed_run_with_full_recipe_resumes_bit_identical() {
    const SETTINGS: [&str; 5] = [
        "train.ema_decay=0.9",
        "train.clip_norm=1",
        "checkpoint.keep_best=val_top1",
        "schedule.name=poly",
        "schedule.warmup_epochs=0.5",
    ];
    let settings = SETTINGS.map(|setting| ["--set", setting]);
    let settings = settings.as_flattened();
    let dir = TestDir::new();
    dir.train("whole", EPOCHS, settings).expect(0);
    let run = dir.path("killed");
    let mut random = SplitMix64(7);
    for _ in 0..3 {
        let target = newest(&run) + 1 + random.next_below(ITERATIONS / 4);
        let mut training = TrainingProcess::start_with(&dir, "killed", settings);
        // During training, or while a checkpoint is written.
        let going = training.wait_until(|run| newest(run) >= target);
        if !going || !training.wait_until(|run| !incomplete_checkpoints(run).is_empty()) || !training.kill() {
            break;
        }
    }
    dir.run(&["train", "killed"]).expect(0);
    let whole = dir.path("whole");
    assert_eq!(RunResult::read(&run), RunResult::read(&whole));
    assert_eq!(summary(&run)["best"], summary(&whole)["best"]);
    let best = summary(&run)["best"]["iteration"].as_u64().unwrap();
    for iteration in [best, ITERATIONS] {
        let [killed, whole] = [&run, &whole]
            .map(|run| fs::read(checkpoint(run, iteration).join("averaged.safetensors")).unwrap());
        assert!(killed == whole, "the averages after iteration {iteration}");
    }
}

#[test]
fn terminated_run_saves_a_checkpoint_and_resumes() {
    let dir = TestDir::new();
    let run = dir.path("run");
    let mut training = TrainingProcess::start(&dir, "run");
    assert!(training.wait_until(|run| newest(run) > 0));

    // Other users may read the run, but not write it.
    let pid = training.child.id();
    let rejected = dir.run(&["train", "run"]).expect(1);
    assert_eq!(
        rejected.err,
        format!(
            "error: run is in use by another process (pid {pid}); wait for it or stop it, \
             or start a new run\n"
        )
    );
    dir.run(&["collect", "run"]).expect(0);

    let mut signals = vec!["TERM", "INT"];
    if ignores_hangup() {
        eprintln!("SKIPPED: SIGHUP is ignored here, as under nohup");
    } else {
        signals.push("HUP");
    }
    for signal in &signals {
        let (status, log) = training.signal(signal);
        assert_eq!(status.code(), Some(75), "{log}");
        assert!(log.ends_with("hint: resume with `stratus train run`\n"), "{log}");
        let (summary, done) = (summary(&run), newest(&run));
        assert_eq!(
            (summary["status"].as_str(), summary["iterations"].as_u64()),
            (Some("interrupted"), Some(done))
        );
        assert!(0 < done && done < ITERATIONS);
        assert_eq!(
            rows(&run.join("iterations.csv"), ITERATIONS_HEADER),
            uninterrupted().iterations[..done as usize]
        );
        training = TrainingProcess::start(&dir, "run");
        assert!(training.wait_until(|run| newest(run) > done));
    }
    assert!(!training.wait_until(|_| false));
    assert_eq!(RunResult::read(&run), *uninterrupted());
    assert_eq!(summary(&run)["resumed"], signals.len());

    // A completed run stays as it is.
    let files = ["iterations.csv", "epochs.csv", "summary.json", "plan.json", "experiment.toml"];
    let contents = || files.map(|file| fs::read(run.join(file)).unwrap());
    let before = contents();
    let again = dir.run(&["train", "run"]).expect(0);
    assert!(again.err.contains("run is complete: nothing is left to train"), "{}", again.err);
    assert!(again.out.contains(&uninterrupted().weights));
    assert_eq!(contents(), before);
    let again = dir.run(&["train", "run", "--json"]).expect(0);
    let report: serde_json::Value = serde_json::from_str(&again.out).unwrap();
    assert_eq!(report["summary"], summary(&run));

    // The configuration stays too.
    let rejected = dir.run(&["train", "run", "--set", "train.epochs=3"]).expect(2);
    assert!(rejected.err.starts_with("error: --set cannot be used when resuming\n"), "{}", rejected.err);
    dir.run(&["train", "run", "--out", "other"]).expect(2);
    assert_eq!(contents(), before);
    assert!(!dir.path("other").exists());
}

/// Marks the existing checkpoints, since a new start may write checkpoints of the same iterations.
const EARLIER_MARKER: &str = "of-before";

#[test]
fn damaged_checkpoints_are_skipped() {
    let dir = TestDir::new();
    let run = dir.path("run");
    TrainingProcess::start(&dir, "run").stop_after_checkpoints(2);

    // All checkpoints are damaged: training starts again.
    let all = checkpoints(&run);
    assert_eq!(all.len(), 2);
    flip_a_bit(&checkpoint(&run, all[1]).join("weights.safetensors"));
    fs::remove_file(checkpoint(&run, all[0]).join("manifest.json")).unwrap();
    for &iteration in &all {
        fs::write(checkpoint(&run, iteration).join(EARLIER_MARKER), "").unwrap();
    }
    let log = TrainingProcess::start(&dir, "run").stop_after_checkpoints_of_a_new_start();
    for (iteration, reason) in
        [(all[1], "weights.safetensors: its SHA-256 does not match the manifest"), (all[0], "manifest.json")]
    {
        let warning = format!("warning: skipping damaged checkpoint run/checkpoints/{iteration:010}: ");
        let line = log.lines().find(|line| line.starts_with(&warning));
        assert!(line.is_some_and(|line| line.contains(reason)), "{log}");
    }
    assert!(log.contains("warning: run: no usable checkpoint: restarting at the first iteration\n"), "{log}");

    // The newest checkpoint is damaged: the previous one is used.
    let all = checkpoints(&run);
    assert_eq!(all.len(), 2);
    let optimizer = checkpoint(&run, all[1]).join("optimizer.safetensors");
    let length = fs::metadata(&optimizer).unwrap().len();
    File::options().write(true).open(&optimizer).unwrap().set_len(length / 2).unwrap();
    let ran = dir.run(&["train", "run"]).expect(0);
    let warning = format!(
        "warning: skipping damaged checkpoint run/checkpoints/{:010}: optimizer.safetensors: \
         it has {} bytes instead of {length}\n",
        all[1],
        length / 2
    );
    assert!(ran.err.contains(&warning), "{}", ran.err);
    assert!(ran.err.contains(&format!("run: resumed after iteration {}\n", all[0])), "{}", ran.err);
    assert!(fs::read_to_string(run.join("log.txt")).unwrap().contains("skipping damaged checkpoint"));
    assert_eq!(RunResult::read(&run), *uninterrupted());
}

impl TrainingProcess {
    /// Stops a process that started again once its checkpoints have replaced the earlier ones.
    fn stop_after_checkpoints_of_a_new_start(mut self) -> String {
        let replaced = |run: &Path| {
            let all = checkpoints(run);
            // The order matters: an earlier checkpoint that is removed in between is found missing, and never
            // reappears.
            let is_its_own = |folder: PathBuf| !folder.join(EARLIER_MARKER).exists() && folder.exists();
            all.len() == 2 && all.iter().all(|&iteration| is_its_own(checkpoint(run, iteration)))
        };
        assert!(self.wait_until(replaced), "{}", self.log_text());
        let (status, log) = self.signal("TERM");
        assert_eq!(status.code(), Some(75), "{log}");
        log
    }
}

fn flip_a_bit(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// A limit on file sizes simulates a full disk without special rights. The message of a full disk is tested
/// with `/dev/full`, if the system has it.
#[test]
fn full_disk_loses_no_checkpoint() {
    let dir = TestDir::new();
    let run = dir.path("run");
    TrainingProcess::start(&dir, "run").stop_after_checkpoints(2);
    let saved = checkpoints(&run);

    let limited = |script: &str| {
        let program = dir.command(&["train", "run"]);
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(script).arg("sh").arg(program.get_program()).args(program.get_args());
        for (key, value) in program.get_envs() {
            match value {
                Some(value) => shell.env(key, value),
                None => shell.env_remove(key),
            };
        }
        CommandOutput::new(shell.current_dir(dir.folder.path()).stdin(Stdio::null()).output().unwrap())
    };
    // 30 or 60 KB, depending on the shell: less than the weights. The signal of the limit is ignored because
    // it would kill the process.
    let ran = limited("trap '' XFSZ; ulimit -f 60; exec \"$@\"").expect(1);
    assert!(ran.err.contains("error: cannot write run/checkpoints/."), "{}", ran.err);
    let remedy = "the file-size limit was reached: raise it (ulimit -f) and try again\n";
    assert!(ran.err.ends_with(remedy), "{}", ran.err);
    assert_eq!(checkpoints(&run), saved);
    assert_eq!(incomplete_checkpoints(&run), Vec::<String>::new());
    assert_eq!(summary(&run)["status"], "failed");

    if cfg!(target_os = "linux") {
        let log = run.join("log.txt");
        fs::rename(&log, run.join("log.kept")).unwrap();
        std::os::unix::fs::symlink("/dev/full", &log).unwrap();
        let ran = dir.run(&["train", "run"]).expect(1);
        assert_eq!(
            ran.err,
            "error: cannot write run/log.txt: No space left on device (os error 28); \
             free space on this file system and try again: a run resumes from its last checkpoint\n"
        );
        fs::rename(run.join("log.kept"), &log).unwrap();
    }
    dir.run(&["train", "run"]).expect(0);
    assert_eq!(RunResult::read(&run), *uninterrupted());
}
