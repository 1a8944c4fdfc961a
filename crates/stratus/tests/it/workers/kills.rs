//! Whichever worker is lost, and when: all end, and the run goes on with another number of them to the same
//! bits. Real processes, really killed.
//!
//! `STRATUS_KILLS=20 cargo test -p stratus --test it workers::kills` kills twenty times; without it,
//! [`KILLS`] times.

use super::{PARTS, has_mpi, train};
use crate::common::{Draw, ITERATIONS_HEADER, PER_EPOCH, Place, Ran, Result, rows, training};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Workers killed where `STRATUS_KILLS` does not say how many, and the most: each costs seconds.
const KILLS: u64 = 2;
const MOST_KILLS: u64 = 20;
/// So many of them at most hit one run.
const KILLS_PER_RUN: u64 = 5;
/// Every so many, the worker is not killed but stopped: it stands still.
const STOPPED_EVERY: u64 = 7;
const EPOCHS: u32 = 2;
const ITERATIONS: u64 = EPOCHS as u64 * PER_EPOCH as u64;
/// After this long without what is waited for, a test has failed.
const PATIENCE: Duration = Duration::from_secs(300);
/// All have ended so soon after one is lost.
const ENDED: Duration = Duration::from_secs(30);
/// With how many workers a run begins, and goes on each time that it was ended. Numbers of which none is 1,
/// as there is nobody else then.
const WORKERS: [usize; 3] = [4, 2, 4];

/// Iterations that are written down.
pub(super) fn iterations(run: &Path) -> u64 {
    let written = fs::read_to_string(run.join("iterations.csv")).unwrap_or_default();
    written.lines().count().saturating_sub(1) as u64
}

pub(super) fn signal(pid: u32, name: &str) {
    // One that has just ended gets none.
    let _ = Command::new("kill").args(["-s", name, &pid.to_string()]).stderr(Stdio::null()).status().unwrap();
}

/// Whether a process is there and has not ended.
fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// The processes that compute, below the one that started them.
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

/// A worker's number, as its launcher has told it.
pub(super) fn rank_of(pid: u32) -> Option<usize> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let variables = environment.split(|&byte| byte == 0).filter_map(|one| std::str::from_utf8(one).ok());
    variables.filter_map(|one| one.split_once('=')).find_map(|(name, value)| match name {
        "PMI_RANK" | "OMPI_COMM_WORLD_RANK" => value.parse().ok(),
        _ => None,
    })
}

/// Begins or continues a run with so many workers.
fn begin(place: &Place, name: &str, workers: usize) -> Child {
    let workers = workers.to_string();
    let mut arguments = match place.path(name).join("experiment.toml").is_file() {
        true => vec!["train".to_owned(), name.to_owned()],
        false => training(name, EPOCHS, &PARTS),
    };
    if workers != "1" {
        arguments.extend(["--workers".to_owned(), workers]);
    }
    let mut command = place.command(&[]);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for what holds; false where the process has ended before.
pub(super) fn wait_until(child: &mut Child, mut holds: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !holds() {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        assert!(begun.elapsed() < PATIENCE, "nothing happens");
        sleep(Duration::from_millis(5));
    }
    true
}

/// Ends a worker of the run while it begins or is under way; `None` where the run has come to its end before
/// that.
fn lose_one(place: &Place, name: &str, workers: usize, draw: &mut Draw, stopped: bool) -> Option<()> {
    let run = place.path(name);
    let at = iterations(&run);
    let mut child = begin(place, name, workers);
    let launcher = child.id();
    let chosen = draw.below(workers as u64) as usize;
    let going = match draw.below(4) {
        // While workers find each other, or prepare.
        0 if !stopped => {
            let going = wait_until(&mut child, || workers_of(launcher).len() == workers);
            sleep(Duration::from_millis(draw.below(1500)));
            going
        }
        _ => {
            let target = at + 1 + draw.below((ITERATIONS.saturating_sub(at) / 3).max(1));
            let going = wait_until(&mut child, || iterations(&run) >= target);
            sleep(Duration::from_micros(draw.below(60_000)));
            going
        }
    };
    let all = workers_of(launcher);
    let worker = all.iter().copied().find(|&pid| rank_of(pid) == Some(chosen));
    let (true, Some(worker)) = (going, worker) else {
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        return None;
    };
    signal(worker, if stopped { "STOP" } else { "KILL" });
    let lost = Instant::now();
    let ran = Ran::of(child.wait_with_output().unwrap());
    while all.iter().any(|&pid| lives(pid)) {
        assert!(lost.elapsed() < ENDED, "{:?} of {all:?} live", all.iter().filter(|&&pid| lives(pid)));
        sleep(Duration::from_millis(10));
    }
    assert!(lost.elapsed() < ENDED, "{:?}", lost.elapsed());
    eprintln!(
        "worker {chosen} of {workers} {}, iteration {}: exit code {:?} after {:.1} s; {}",
        if stopped { "stopped" } else { "killed" },
        iterations(&run),
        ran.code,
        lost.elapsed().as_secs_f64(),
        ran.err.lines().rev().find(|line| line.contains("on this machine")).unwrap_or_default()
    );
    if ran.code == Some(0) {
        // It had done its part.
        return None;
    }
    assert_eq!(ran.code, Some(75), "{}", ran.err);
    let how =
        if stopped { "has had no heartbeat for 20 s after iteration" } else { "was killed after iteration" };
    assert!(ran.err.contains(how), "{}", ran.err);
    assert!(ran.err.contains("continue the run with the same or another number of workers"), "{}", ran.err);
    Some(())
}

#[test]
fn whichever_worker_is_lost_all_end_and_the_run_goes_on() {
    if !has_mpi() {
        return;
    }
    let kills = std::env::var("STRATUS_KILLS").map_or(KILLS, |count| count.parse().unwrap()).min(MOST_KILLS);
    let place = Place::new();
    train(&place, "alone", EPOCHS, &[]).expect(0);
    let alone = Result::of(&place.path("alone"));
    let (mut draw, mut lost, mut stopped) = (Draw(3), 0, 0);
    for number in 1.. {
        if lost >= kills {
            break;
        }
        assert!(number <= 5 + kills, "too few kills come in time");
        let (name, first) = (format!("run{number}"), lost);
        let run = place.path(&name);
        for leg in 0.. {
            let stops = (lost + 1).is_multiple_of(STOPPED_EVERY);
            let wanted = lost < kills && lost < first + KILLS_PER_RUN;
            let workers = WORKERS[leg % WORKERS.len()];
            if !wanted || lose_one(&place, &name, workers, &mut draw, stops).is_none() {
                break;
            }
            (lost, stopped) = (lost + 1, stopped + u64::from(stops));
            // Nothing that an uninterrupted run would not have written.
            let written = run.join("iterations.csv");
            let written = if written.exists() { rows(&written, ITERATIONS_HEADER) } else { Vec::new() };
            assert_eq!(written, alone.iterations[..written.len()]);
            if leg % 2 == 1 && run.join("experiment.toml").is_file() {
                // One process takes it further, for a while.
                let at = iterations(&run);
                let mut child = begin(&place, &name, 1);
                if wait_until(&mut child, || iterations(&run) > at) {
                    signal(child.id(), "TERM");
                }
                let ran = Ran::of(child.wait_with_output().unwrap());
                assert!(matches!(ran.code, Some(0 | 75)), "{}", ran.err);
            }
        }
        let ended = Ran::of(begin(&place, &name, 2).wait_with_output().unwrap());
        ended.expect(0);
        assert!(Result::of(&run) == alone, "{name}");
    }
    eprintln!(
        "{lost} workers lost, {stopped} of them by standing still: the same weights and rows each time"
    );
}
