//! If any worker is lost, all workers exit, and the run resumes bit-identical with another number of workers.
//! Real processes are killed.
//!
//! `STRATUS_KILLS=20 cargo test -p stratus --test it workers::kills` kills twenty times, instead of [`KILLS`]
//! times.

use super::{PARTS, has_mpi, train};
use crate::common::{
    CommandOutput, ITERATIONS_HEADER, PER_EPOCH, RunResult, SplitMix64, TestDir, rows, train_arguments,
};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The number of failures of a kind if `STRATUS_KILLS` is not set, and its maximum: each takes seconds.
const KILLS: u64 = 3;
const MAX_KILLS: u64 = 20;
/// The maximum number of kills per run.
const KILLS_PER_RUN: u64 = 5;
/// One in this many kills suspends the worker instead.
const STOPPED_EVERY: u64 = 7;
const EPOCHS: u32 = 2;
const ITERATIONS: u64 = EPOCHS as u64 * PER_EPOCH as u64;
/// The time limit of a wait.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The time within which all workers exit after one is lost.
pub(super) const EXIT_TIMEOUT: Duration = Duration::from_secs(30);
/// The number of workers of the first start and of each resume. It is never 1, since losing a worker must
/// leave others.
const WORKERS: [usize; 3] = [4, 2, 4];

/// The number of failures of a kind.
pub(super) fn failures() -> u64 {
    std::env::var("STRATUS_KILLS").map_or(KILLS, |count| count.parse().unwrap()).min(MAX_KILLS)
}

/// Prints the median and the longest of the times from failures to the ends of all workers.
pub(super) fn print_times(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let (median, longest) = (times[times.len() / 2].as_secs_f64(), times[times.len() - 1].as_secs_f64());
    eprintln!("{} × {what}: all ended after {median:.1} s (median), {longest:.1} s (longest)", times.len());
}

/// The number of recorded iterations.
pub(super) fn iterations(run: &Path) -> u64 {
    let written = fs::read_to_string(run.join("iterations.csv")).unwrap_or_default();
    written.lines().count().saturating_sub(1) as u64
}

pub(super) fn signal(pid: u32, name: &str) {
    // The process may have just exited.
    let _ = Command::new("kill").args(["-s", name, &pid.to_string()]).stderr(Stdio::null()).status().unwrap();
}

/// Returns whether a process is running.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// The worker processes among the descendants of a process.
pub(super) fn workers_of(ancestor: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32, String)> = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid: u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let (name, rest) = stat.rsplit_once(')')?;
            let parent = rest.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent, name.split_once('(')?.1.to_owned()))
        })
        .collect();
    let mut known = vec![ancestor];
    loop {
        let below = parents.iter().filter(|(pid, parent, _)| known.contains(parent) && !known.contains(pid));
        let below: Vec<u32> = below.map(|(pid, ..)| *pid).collect();
        if below.is_empty() {
            break;
        }
        known.extend(below);
    }
    let computes = |pid: &u32| {
        parents.iter().any(|(found, _, name)| found == pid && name == "stratus") && *pid != ancestor
    };
    known.into_iter().filter(computes).collect()
}

/// The rank of a worker, from the environment that its launcher set.
pub(super) fn rank_of(pid: u32) -> Option<usize> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let variables = environment.split(|&byte| byte == 0).filter_map(|one| std::str::from_utf8(one).ok());
    variables.filter_map(|one| one.split_once('=')).find_map(|(name, value)| match name {
        "PMI_RANK" | "OMPI_COMM_WORLD_RANK" => value.parse().ok(),
        _ => None,
    })
}

/// Starts or resumes a run with `workers` workers.
fn start(dir: &TestDir, name: &str, workers: usize) -> Child {
    let workers = workers.to_string();
    let mut arguments = match dir.path(name).join("experiment.toml").is_file() {
        true => vec!["train".to_owned(), name.to_owned()],
        false => train_arguments(name, EPOCHS, &PARTS),
    };
    if workers != "1" {
        arguments.extend(["--workers".to_owned(), workers]);
    }
    let mut command = dir.command(&[]);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until a condition holds; false if the process has exited before.
pub(super) fn wait_until(child: &mut Child, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        assert!(start.elapsed() < TIMEOUT, "timed out");
        sleep(Duration::from_millis(5));
    }
    true
}

/// Kills or suspends a worker during startup or training, and returns the time until all have ended; `None`
/// if the run completed before.
fn lose_worker(
    dir: &TestDir,
    name: &str,
    workers: usize,
    random: &mut SplitMix64,
    stopped: bool,
) -> Option<Duration> {
    let run = dir.path(name);
    let at = iterations(&run);
    let mut child = start(dir, name, workers);
    let launcher = child.id();
    let chosen = random.next_below(workers as u64) as usize;
    let going = match random.next_below(4) {
        // While workers connect or prepare.
        0 if !stopped => {
            let going = wait_until(&mut child, || workers_of(launcher).len() == workers);
            sleep(Duration::from_millis(random.next_below(1500)));
            going
        }
        _ => {
            let target = at + 1 + random.next_below((ITERATIONS.saturating_sub(at) / 3).max(1));
            let going = wait_until(&mut child, || iterations(&run) >= target);
            sleep(Duration::from_micros(random.next_below(60_000)));
            going
        }
    };
    let all = workers_of(launcher);
    let worker = all.iter().copied().find(|&pid| rank_of(pid) == Some(chosen));
    let (true, Some(worker)) = (going, worker) else {
        let ran = CommandOutput::new(child.wait_with_output().unwrap());
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        return None;
    };
    // The system closes it first: the launching process notices the end before `mpiexec` ends the others.
    let first = fs::read_link(format!("/proc/{worker}/fd/0")).unwrap();
    assert!(first.to_string_lossy().starts_with("socket:"), "{}", first.display());
    signal(worker, if stopped { "STOP" } else { "KILL" });
    let lost = Instant::now();
    let ran = CommandOutput::new(child.wait_with_output().unwrap());
    while all.iter().any(|&pid| is_alive(pid)) {
        assert!(
            lost.elapsed() < EXIT_TIMEOUT,
            "{:?} of {all:?} are alive",
            all.iter().filter(|&&pid| is_alive(pid))
        );
        sleep(Duration::from_millis(10));
    }
    let ended = lost.elapsed();
    assert!(ended < EXIT_TIMEOUT, "{ended:?}");
    eprintln!(
        "worker {chosen} of {workers} {}, iteration {}: exit code {:?} after {:.1} s; {}",
        if stopped { "stopped" } else { "killed" },
        iterations(&run),
        ran.code,
        ended.as_secs_f64(),
        ran.err.lines().rev().find(|line| line.contains("on this machine")).unwrap_or_default()
    );
    if ran.code == Some(0) {
        // The worker had finished.
        return None;
    }
    assert_eq!(ran.code, Some(75), "{}", ran.err);
    let how =
        if stopped { "has had no heartbeat for 20 s after iteration" } else { "was killed after iteration" };
    let named = format!("worker {chosen} on this machine {how}");
    assert!(ran.err.contains(&named), "{named}: {}", ran.err);
    assert!(ran.err.contains("with the same or another number of workers"), "{}", ran.err);
    Some(ended)
}

#[test]
fn lost_worker_ends_all_and_the_run_resumes() {
    if !has_mpi() {
        return;
    }
    let (kills, mut times) = (failures(), [Vec::new(), Vec::new()]);
    let dir = TestDir::new();
    train(&dir, "alone", EPOCHS, &[]).expect(0);
    let alone = RunResult::read(&dir.path("alone"));
    let (mut random, mut lost, mut stopped) = (SplitMix64(3), 0, 0);
    for number in 1.. {
        if lost >= kills {
            break;
        }
        assert!(number <= 5 + kills, "too few kills hit a running process");
        let (name, first) = (format!("run{number}"), lost);
        let run = dir.path(&name);
        for leg in 0.. {
            let stops = (lost + 1).is_multiple_of(STOPPED_EVERY);
            let wanted = lost < kills && lost < first + KILLS_PER_RUN;
            let workers = WORKERS[leg % WORKERS.len()];
            let ended = wanted.then(|| lose_worker(&dir, &name, workers, &mut random, stops)).flatten();
            let Some(ended) = ended else { break };
            times[usize::from(stops)].push(ended);
            (lost, stopped) = (lost + 1, stopped + u64::from(stops));
            // The run contains only what an uninterrupted one would have written.
            let written = run.join("iterations.csv");
            let written = if written.exists() { rows(&written, ITERATIONS_HEADER) } else { Vec::new() };
            assert_eq!(written, alone.iterations[..written.len()]);
            if leg % 2 == 1 && run.join("experiment.toml").is_file() {
                // A single process trains for a while.
                let at = iterations(&run);
                let mut child = start(&dir, &name, 1);
                if wait_until(&mut child, || iterations(&run) > at) {
                    signal(child.id(), "TERM");
                }
                let ran = CommandOutput::new(child.wait_with_output().unwrap());
                assert!(matches!(ran.code, Some(0 | 75)), "{}", ran.err);
            }
        }
        let ended = CommandOutput::new(start(&dir, &name, 2).wait_with_output().unwrap());
        ended.expect(0);
        assert!(RunResult::read(&run) == alone, "{name}");
    }
    for (what, times) in ["a killed worker", "a suspended worker"].into_iter().zip(times) {
        if !times.is_empty() {
            print_times(what, times);
        }
    }
    eprintln!(
        "{lost} workers lost, {stopped} of them by standing still: the same weights and rows each time"
    );
}
