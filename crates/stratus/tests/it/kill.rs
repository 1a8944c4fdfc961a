//! Whatever ends a run, it continues, and ends with the same bits as if nothing had happened. Real processes,
//! really killed.
//!
//! `STRATUS_KILLS=100 cargo test --release -p stratus --test it kill` kills a hundred times; without it,
//! [`KILLS`] times.

#![cfg(unix)]

use crate::common::{Draw, ITERATIONS_HEADER, PER_EPOCH, Place, Ran, Result, rows, summary, training};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Kills where `STRATUS_KILLS` does not say how many.
const KILLS: u64 = 10;
/// So many of them at most hit one run.
const KILLS_PER_RUN: u64 = 10;
const EPOCHS: u32 = 2;
const ITERATIONS: u64 = EPOCHS as u64 * PER_EPOCH as u64;
/// After this long without what is waited for, a test has failed.
const PATIENCE: Duration = Duration::from_secs(300);

/// A training without any interruption.
fn uninterrupted() -> &'static Result {
    static RESULT: OnceLock<Result> = OnceLock::new();
    RESULT.get_or_init(|| {
        let place = Place::new();
        place.train("run", EPOCHS, &[]).expect(0);
        let result = Result::of(&place.path("run"));
        assert_eq!(result.iterations.len() as u64, ITERATIONS);
        let numbers =
            result.iterations.iter().map(|row| row.split(',').nth(1).unwrap().parse::<u64>().unwrap());
        assert!(numbers.eq(1..=ITERATIONS));
        assert_eq!(result.epochs.len() as u64, u64::from(EPOCHS));
        result
    })
}

/// A training under way.
struct Training {
    child: Child,
    run: PathBuf,
    /// What it says.
    said: PathBuf,
}

impl Training {
    /// Starts the run `name`, or continues it where it is one.
    fn begin(place: &Place, name: &str) -> Self {
        Self::begin_with(place, name, &[])
    }

    /// The same with further settings for a new run.
    fn begin_with(place: &Place, name: &str, more: &[&str]) -> Self {
        let run = place.path(name);
        let arguments = if run.join("experiment.toml").is_file() {
            vec!["train".to_owned(), name.to_owned()]
        } else {
            training(name, EPOCHS, more)
        };
        let said = place.path(&format!("{name}.said"));
        let mut command = place.command(&[]);
        command.args(arguments).stdout(Stdio::null()).stderr(File::create(&said).unwrap());
        Training { child: command.spawn().unwrap(), run, said }
    }

    fn said(&self) -> String {
        let said = fs::read_to_string(&self.said).unwrap();
        assert!(!said.contains("panicked"), "{said}");
        said
    }

    /// Waits until something holds; false where the process ended before, which it may only do at the end of
    /// training.
    fn wait_until(&mut self, mut holds: impl FnMut(&Path) -> bool) -> bool {
        let begun = Instant::now();
        while !holds(&self.run) {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(status.success(), "{status}: {}", self.said());
                return false;
            }
            assert!(begun.elapsed() < PATIENCE, "nothing happens: {}", self.said());
            std::thread::yield_now();
        }
        true
    }

    /// Kills it; false where it had come to its end by itself.
    fn kill(mut self) -> bool {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success() || status.code().is_none(), "{status}: {}", self.said());
        self.said();
        !status.success()
    }

    /// Sends a signal that asks it to stop, and waits for its end.
    fn signal(mut self, name: &str) -> (ExitStatus, String) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let status = self.child.wait().unwrap();
        (status, self.said())
    }

    /// Stops it with SIGTERM after `count` further checkpoints.
    fn stop_after_checkpoints(mut self, count: usize) -> String {
        let mut seen = newest(&self.run);
        for _ in 0..count {
            assert!(self.wait_until(|run| newest(run) > seen), "it ended too early: {}", self.said());
            seen = newest(&self.run);
        }
        let (status, said) = self.signal("TERM");
        assert_eq!(status.code(), Some(75), "{said}");
        said
    }
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The iterations that have a checkpoint, ascending.
fn checkpoints(run: &Path) -> Vec<u64> {
    entries(&run.join("checkpoints")).iter().filter_map(|name| name.parse().ok()).collect()
}

/// The iteration of the newest checkpoint; 0 without any.
fn newest(run: &Path) -> u64 {
    checkpoints(run).last().copied().unwrap_or(0)
}

fn checkpoint(run: &Path, iteration: u64) -> PathBuf {
    run.join(format!("checkpoints/{iteration:010}"))
}

/// Checkpoints that are being written, or were when their writer was killed.
fn half_written(run: &Path) -> Vec<String> {
    entries(&run.join("checkpoints")).into_iter().filter(|name| name.ends_with(".tmp")).collect()
}

/// What was seen in all runs together.
#[derive(Default)]
struct Seen {
    kills: u64,
    /// Kills that left a checkpoint half written.
    torn: u64,
    /// Kills between the first and the last iteration of an epoch.
    within_epochs: u64,
    /// The weights after an iteration, which must always be the same.
    weights: BTreeMap<u64, String>,
}

impl Seen {
    /// What a killed run left: nothing that an uninterrupted one would not have written.
    fn check(&mut self, run: &Path) {
        self.kills += 1;
        self.torn += u64::from(!half_written(run).is_empty());
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

/// Begins a run, kills it `kills` times on its way (fewer where it comes to its end before), and lets it end.
fn kill_through(place: &Place, name: &str, kills: u64, draw: &mut Draw, seen: &mut Seen) {
    let run = place.path(name);
    for left in (1..=kills).rev() {
        let at = newest(&run);
        let mut training = Training::begin(place, name);
        // While it starts, somewhere on its way, or while it writes a checkpoint.
        let under_way = match draw.below(4) {
            0 => {
                sleep(Duration::from_millis(draw.below(600)));
                true
            }
            moment => {
                let target = at + 1 + draw.below((2 * ITERATIONS.saturating_sub(at) / (left + 1)).max(1));
                let mut going = training.wait_until(|run| newest(run) >= target);
                if moment == 1 {
                    going = going && training.wait_until(|run| !half_written(run).is_empty());
                } else {
                    sleep(Duration::from_micros(draw.below(60_000)));
                }
                going
            }
        };
        if !under_way || !training.kill() {
            break;
        }
        seen.check(&run);
    }
    let mut training = Training::begin(place, name);
    assert!(!training.wait_until(|_| false));
    assert_eq!(Result::of(&run), *uninterrupted());
    assert_eq!(half_written(&run), Vec::<String>::new());
    // The timeline too holds every iteration once.
    let layers = place.run(&["collect", name, "--layers", "--json"]).expect(0);
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
fn killed_again_and_again_a_run_ends_with_the_same_bits() {
    let kills = std::env::var("STRATUS_KILLS").map_or(KILLS, |count| count.parse().unwrap());
    let place = Place::new();
    let (mut draw, mut seen) = (Draw(2), Seen::default());
    for number in 1.. {
        let wanted = kills.saturating_sub(seen.kills).max(u64::from(seen.torn == 0));
        if wanted == 0 {
            break;
        }
        assert!(number <= 20 + kills, "too few kills come in time");
        kill_through(&place, &format!("run{number}"), wanted.min(KILLS_PER_RUN), &mut draw, &mut seen);
    }
    eprintln!(
        "{} kills, {} within an epoch, {} while a checkpoint was written",
        seen.kills, seen.within_epochs, seen.torn
    );
    assert!(seen.within_epochs > 0 && seen.torn > 0);
}

/// In f16 the scale of the loss, and how long it has been that, are part of what a run is continued from.
/// Here it is too large at first.
#[test]
fn in_f16_the_scale_of_the_loss_is_continued_too() {
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
    let place = Place::new();
    place.train("whole", EPOCHS, settings).expect(0);
    let mut training = Training::begin_with(&place, "killed", settings);
    assert!(training.wait_until(|run| newest(run) > 0), "{}", training.said());
    assert!(training.kill());
    let scale =
        checkpoint(&place.path("killed"), newest(&place.path("killed"))).join("optimizer.safetensors");
    assert!(fs::read(scale).unwrap().windows(12).any(|name| name == b"\"loss_scale\""));
    place.run(&["train", "killed"]).expect(0);
    let [whole, killed] = ["whole", "killed"].map(|name| Result::of(&place.path(name)));
    assert_eq!(whole, killed);
    let [whole, killed] = ["whole", "killed"].map(|name| summary(&place.path(name))["loss_scale"].clone());
    assert_eq!(whole, killed);
    assert!(whole["scale"].as_f64().unwrap() >= 1.0, "{whole}");
}

/// Averaged weights, the norm that gradients are clipped to and the best checkpoint are continued too.
#[test]
fn killed_with_a_whole_recipe_a_run_ends_with_the_same_bits() {
    const SETTINGS: [&str; 5] = [
        "train.ema_decay=0.9",
        "train.clip_norm=1",
        "checkpoint.keep_best=val_top1",
        "schedule.name=poly",
        "schedule.warmup_epochs=0.5",
    ];
    let settings = SETTINGS.map(|setting| ["--set", setting]);
    let settings = settings.as_flattened();
    let place = Place::new();
    place.train("whole", EPOCHS, settings).expect(0);
    let run = place.path("killed");
    let mut draw = Draw(7);
    for _ in 0..3 {
        let target = newest(&run) + 1 + draw.below(ITERATIONS / 4);
        let mut training = Training::begin_with(&place, "killed", settings);
        // Somewhere on its way, or while it writes a checkpoint.
        let going = training.wait_until(|run| newest(run) >= target);
        if !going || !training.wait_until(|run| !half_written(run).is_empty()) || !training.kill() {
            break;
        }
    }
    place.run(&["train", "killed"]).expect(0);
    let whole = place.path("whole");
    assert_eq!(Result::of(&run), Result::of(&whole));
    assert_eq!(summary(&run)["best"], summary(&whole)["best"]);
    let best = summary(&run)["best"]["iteration"].as_u64().unwrap();
    for iteration in [best, ITERATIONS] {
        let [killed, whole] = [&run, &whole]
            .map(|run| fs::read(checkpoint(run, iteration).join("averaged.safetensors")).unwrap());
        assert!(killed == whole, "the averages after iteration {iteration}");
    }
}

#[test]
fn asked_to_stop_a_run_saves_its_state_and_continues() {
    let place = Place::new();
    let run = place.path("run");
    let mut training = Training::begin(&place, "run");
    assert!(training.wait_until(|run| newest(run) > 0));

    // It can be read by others, and written by none.
    let pid = training.child.id();
    let refused = place.run(&["train", "run"]).expect(1);
    assert_eq!(
        refused.err,
        format!(
            "error: run is in use by another process (pid {pid}); wait for it to end or stop it, \
             or start a new run\n"
        )
    );
    place.run(&["collect", "run"]).expect(0);

    for signal in ["TERM", "INT"] {
        let (status, said) = training.signal(signal);
        assert_eq!(status.code(), Some(75), "{said}");
        assert!(said.ends_with("hint: continue it with `stratus train run`\n"), "{said}");
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
        training = Training::begin(&place, "run");
        assert!(training.wait_until(|run| newest(run) > done));
    }
    assert!(!training.wait_until(|_| false));
    assert_eq!(Result::of(&run), *uninterrupted());
    assert_eq!(summary(&run)["resumed"], 2);

    // What is complete stays as it is.
    let files = ["iterations.csv", "epochs.csv", "summary.json", "plan.json", "experiment.toml"];
    let contents = || files.map(|file| fs::read(run.join(file)).unwrap());
    let before = contents();
    let again = place.run(&["train", "run"]).expect(0);
    assert!(again.err.contains("run is complete: nothing is left to train"), "{}", again.err);
    assert!(again.out.contains(&uninterrupted().weights));
    assert_eq!(contents(), before);
    let again = place.run(&["train", "run", "--json"]).expect(0);
    let report: serde_json::Value = serde_json::from_str(&again.out).unwrap();
    assert_eq!(report["summary"], summary(&run));

    // Its configuration stays too.
    let refused = place.run(&["train", "run", "--set", "train.epochs=3"]).expect(2);
    assert!(
        refused.err.starts_with("error: --set cannot be given to a run that is continued\n"),
        "{}",
        refused.err
    );
    place.run(&["train", "run", "--out", "other"]).expect(2);
    assert_eq!(contents(), before);
    assert!(!place.path("other").exists());
}

/// Marks the checkpoints that are there before a training begins again: its own may have the same iterations.
const OF_BEFORE: &str = "of-before";

#[test]
fn damaged_checkpoints_are_passed_over() {
    let place = Place::new();
    let run = place.path("run");
    Training::begin(&place, "run").stop_after_checkpoints(2);

    // Every one of them: training begins again.
    let all = checkpoints(&run);
    assert_eq!(all.len(), 2);
    flip_a_bit(&checkpoint(&run, all[1]).join("weights.safetensors"));
    fs::remove_file(checkpoint(&run, all[0]).join("manifest.json")).unwrap();
    for &iteration in &all {
        fs::write(checkpoint(&run, iteration).join(OF_BEFORE), "").unwrap();
    }
    let said = Training::begin(&place, "run").stop_after_checkpoints_of_a_new_start();
    for (iteration, reason) in
        [(all[1], "weights.safetensors: its SHA-256 is not the recorded one"), (all[0], "manifest.json")]
    {
        let warning =
            format!("warning: checkpoint run/checkpoints/{iteration:010} is damaged and left aside: ");
        let line = said.lines().find(|line| line.starts_with(&warning));
        assert!(line.is_some_and(|line| line.contains(reason)), "{said}");
    }
    assert!(
        said.contains(
            "warning: run: no checkpoint can be used: training starts over at the first iteration\n"
        ),
        "{said}"
    );

    // The newest: the one before it is taken.
    let all = checkpoints(&run);
    assert_eq!(all.len(), 2);
    let optimizer = checkpoint(&run, all[1]).join("optimizer.safetensors");
    let length = fs::metadata(&optimizer).unwrap().len();
    File::options().write(true).open(&optimizer).unwrap().set_len(length / 2).unwrap();
    let ran = place.run(&["train", "run"]).expect(0);
    let warning = format!(
        "warning: checkpoint run/checkpoints/{:010} is damaged and left aside: optimizer.safetensors: \
         it has {} bytes instead of {length}\n",
        all[1],
        length / 2
    );
    assert!(ran.err.contains(&warning), "{}", ran.err);
    assert!(ran.err.contains(&format!("run: continued after iteration {}\n", all[0])), "{}", ran.err);
    assert!(fs::read_to_string(run.join("log.txt")).unwrap().contains("is damaged and left aside"));
    assert_eq!(Result::of(&run), *uninterrupted());
}

impl Training {
    /// Stops a training that began again, when its own checkpoints have replaced those of before.
    fn stop_after_checkpoints_of_a_new_start(mut self) -> String {
        let replaced = |run: &Path| {
            let all = checkpoints(run);
            // In this order: one of before that is removed in between is gone when it is looked for, and one
            // that is gone never comes back.
            let is_its_own = |folder: PathBuf| !folder.join(OF_BEFORE).exists() && folder.exists();
            all.len() == 2 && all.iter().all(|&iteration| is_its_own(checkpoint(run, iteration)))
        };
        assert!(self.wait_until(replaced), "{}", self.said());
        let (status, said) = self.signal("TERM");
        assert_eq!(status.code(), Some(75), "{said}");
        said
    }
}

fn flip_a_bit(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// A limit on the size of files stands for a full disk: it needs no rights, and takes the same way through
/// the program. That a disk without space is called by its name is tested with `/dev/full`, where the system
/// has it.
#[test]
fn where_nothing_can_be_written_nothing_is_lost() {
    let place = Place::new();
    let run = place.path("run");
    Training::begin(&place, "run").stop_after_checkpoints(2);
    let saved = checkpoints(&run);

    let limited = |script: &str| {
        let program = place.command(&["train", "run"]);
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(script).arg("sh").arg(program.get_program()).args(program.get_args());
        for (key, value) in program.get_envs() {
            match value {
                Some(value) => shell.env(key, value),
                None => shell.env_remove(key),
            };
        }
        Ran::of(shell.current_dir(place.folder.path()).stdin(Stdio::null()).output().unwrap())
    };
    // 30 or 60 KB, as the shell counts: less than the weights have. The signal that comes with the limit
    // would be a kill.
    let ran = limited("trap '' XFSZ; ulimit -f 60; exec \"$@\"").expect(1);
    assert!(ran.err.contains("error: cannot write run/checkpoints/."), "{}", ran.err);
    let remedy = "the file-size limit was reached: raise it (ulimit -f), then continue the run\n";
    assert!(ran.err.ends_with(remedy), "{}", ran.err);
    assert_eq!(checkpoints(&run), saved);
    assert_eq!(half_written(&run), Vec::<String>::new());
    assert_eq!(summary(&run)["status"], "failed");

    if cfg!(target_os = "linux") {
        let log = run.join("log.txt");
        fs::rename(&log, run.join("log.kept")).unwrap();
        std::os::unix::fs::symlink("/dev/full", &log).unwrap();
        let ran = place.run(&["train", "run"]).expect(1);
        assert_eq!(
            ran.err,
            "error: cannot write run/log.txt: No space left on device (os error 28); \
             free space on this file system, \
             then continue the run: what was saved before is intact\n"
        );
        fs::rename(run.join("log.kept"), &log).unwrap();
    }
    place.run(&["train", "run"]).expect(0);
    assert_eq!(Result::of(&run), *uninterrupted());
}
