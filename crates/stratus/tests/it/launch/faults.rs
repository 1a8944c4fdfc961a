//! Random faults of hosts, connections and disks do not change the result of a followed launch.
//!
//! `STRATUS_FAULTS=20 cargo test --release -p stratus --test it faults -- --ignored` injects twenty faults,
//! instead of [`FAULTS`].

use super::hosts::{Host, folder, hosts, kill_training};
use super::{launch, should_skip, status, text, train_locally};
use crate::common::{RunResult, SplitMix64, TestDir};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The number of faults if `STRATUS_FAULTS` is not set.
const FAULTS: usize = 6;
const REPETITIONS: usize = 3;
/// Long enough for faults to hit a running training process, also on a busy machine.
const EPOCHS: u32 = 12;
/// The time limit of the test.
const TIMEOUT: Duration = Duration::from_secs(1500);

/// A small disk mounted at a folder, which needs root.
struct Disk(PathBuf);

impl Disk {
    fn new(folder: PathBuf) -> Self {
        fs::create_dir_all(&folder).unwrap();
        let status =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=768m", "tmpfs"]).arg(&folder).status();
        assert!(status.unwrap().success(), "this test mounts a disk, which needs root");
        Self(folder)
    }

    /// Fills the disk except for a few bytes.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut file = fs::File::create(&path).unwrap();
        // The copy fails when the disk is full.
        let _ = std::io::copy(&mut std::io::repeat(7), &mut file);
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Starts a process that follows the launch.
fn follow(dir: &TestDir) -> Child {
    let mut command = dir.command(&["launch", "fetch", "-f"]);
    let message = fs::File::options().create(true).append(true).open(dir.path("followed")).unwrap();
    command.stdin(Stdio::null()).stdout(message.try_clone().unwrap()).stderr(message).spawn().unwrap()
}

/// The existing job folders of a launch.
fn folders(dir: &TestDir, id: &str, all: &[Host]) -> Vec<PathBuf> {
    all.iter().map(|host| folder(dir, id, host.name)).filter(|folder| folder.exists()).collect()
}

/// Injects one random fault and returns its description.
fn fault(
    random: &mut SplitMix64,
    dir: &TestDir,
    id: &str,
    all: &mut [Host],
    disk: &Disk,
    follower: &mut Child,
) -> String {
    match random.next_below(5) {
        0 => {
            let at = random.next_below(all.len() as u64) as usize;
            all[at].cut();
            sleep(Duration::from_millis(random.next_below(4000)));
            all[at].start();
            format!("{} was unreachable, and its server was restarted", all[at].name)
        }
        1 => {
            let folders = folders(dir, id, all);
            let at = random.next_below(folders.len().max(1) as u64) as usize;
            folders.get(at).into_iter().for_each(|job| kill_training(job));
            format!("the training process of a host was killed ({at})")
        }
        2 => {
            let filler = disk.fill();
            sleep(Duration::from_millis(1000 + random.next_below(3000)));
            fs::remove_file(filler).unwrap();
            "the disk of the target was full".to_owned()
        }
        3 => {
            // The follower may have exited by itself.
            let _ = follower.kill();
            follower.wait().unwrap();
            *follower = follow(dir);
            "the follower was killed and restarted".to_owned()
        }
        _ => {
            // The host loses its processes and its connection.
            let at = random.next_below(all.len() as u64) as usize;
            all[at].cut();
            kill_training(&folder(dir, id, all[at].name));
            sleep(Duration::from_millis(random.next_below(2000)));
            all[at].start();
            format!("{} was restarted", all[at].name)
        }
    }
}

fn row_count(path: &Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

#[test]
#[ignore = "needs sshd and a disk to fill: scripts/store-servers.sh install, as root"]
fn runs_survive_faults_bit_identical() {
    if should_skip("launching with faults") {
        return;
    }
    let faults = std::env::var("STRATUS_FAULTS").map_or(FAULTS, |count| count.parse().unwrap());
    let mut random = SplitMix64(faults as u64);
    let dir = TestDir::new();
    let disk = Disk::new(dir.path("there"));
    let mut all = hosts(&dir, &["a", "b"], "lost_after_seconds = 600");
    let (mut happened, mut launches) = (0, Vec::new());
    let start = Instant::now();
    // Repeats launches until all faults have happened.
    while happened < faults {
        let launched = launch(&dir, "lab", EPOCHS, &["--repetitions", &REPETITIONS.to_string()]);
        let id = text(&launched, "id").to_owned();
        launches.push(launched["runs"].clone());
        let mut follower = follow(&dir);
        loop {
            assert!(start.elapsed() < TIMEOUT, "{}", fs::read_to_string(dir.path("followed")).unwrap());
            if happened < faults {
                sleep(Duration::from_millis(500 + random.next_below(2500)));
                let what = fault(&mut random, &dir, &id, &mut all, &disk, &mut follower);
                happened += 1;
                println!("{happened}: {what}");
            }
            if follower.try_wait().unwrap().is_none() && happened < faults {
                continue;
            }
            follower.wait().unwrap();
            let state = status(&dir)["state"].take();
            let repetitions = state["repetitions"].as_array().unwrap().clone();
            if repetitions.iter().all(|one| one["status"] == "completed") {
                break;
            }
            // A full disk stops the launch, and `resume` continues it.
            let resumed = dir.run(&["launch", "resume"]);
            assert!(
                resumed.code == Some(0) || resumed.err.contains("is already running on"),
                "{}",
                resumed.err
            );
            follower = follow(&dir);
        }
        dir.run(&["launch", "fetch"]).expect(0);
    }
    for runs in launches {
        for (seed, run) in (7..).zip(runs.as_array().unwrap()) {
            let run = dir.path(run.as_str().unwrap());
            let here = format!("near{seed}");
            let here = if dir.path(&here).exists() {
                RunResult::read(&dir.path(&here))
            } else {
                train_locally(&dir, &here, EPOCHS, seed)
            };
            assert_eq!(RunResult::read(&run), here, "{}", run.display());
            assert_eq!(row_count(&run.join("iterations.csv")), here.iterations.len() + 1);
        }
    }
    println!("{happened} faults, and every run is bit-identical to a local one");
}
