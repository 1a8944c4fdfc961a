//! Whatever happens to hosts, connections and disks while a launch is followed, it ends as runs here do.
//!
//! `STRATUS_FAULTS=20 cargo test --release -p stratus --test it faults -- --ignored` lets twenty faults
//! happen; without it, [`FAULTS`] do.

use super::hosts::{Host, folder, hosts, kill};
use super::{is_left_out, launch, near, status, text};
use crate::common::{Draw, Place, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Faults where `STRATUS_FAULTS` does not say how many.
const FAULTS: usize = 6;
const REPETITIONS: usize = 3;
/// Long enough for faults to hit it, also where much else runs.
const EPOCHS: u32 = 12;
/// After this long a test has failed.
const PATIENCE: Duration = Duration::from_secs(1500);

/// A small disk of its own in a folder; root alone can have one.
struct Disk(PathBuf);

impl Disk {
    fn new(folder: PathBuf) -> Self {
        fs::create_dir_all(&folder).unwrap();
        let made =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=768m", "tmpfs"]).arg(&folder).status();
        assert!(made.unwrap().success(), "these tests fill a disk: they mount one, as root");
        Self(folder)
    }

    /// Fills it, but for a few bytes.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut file = fs::File::create(&path).unwrap();
        // That there is no room for more is what is wanted.
        let _ = std::io::copy(&mut std::io::repeat(7), &mut file);
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Follows the launch, in a process that can be killed.
fn follow(place: &Place) -> Child {
    let mut command = place.command(&["launch", "fetch", "-f"]);
    let said = fs::File::options().create(true).append(true).open(place.path("followed")).unwrap();
    command.stdin(Stdio::null()).stdout(said.try_clone().unwrap()).stderr(said).spawn().unwrap()
}

/// The folders in which a launch may be trained.
fn folders(place: &Place, id: &str, all: &[Host]) -> Vec<PathBuf> {
    all.iter().map(|host| folder(place, id, host.name)).filter(|folder| folder.exists()).collect()
}

/// Lets one thing go wrong, and returns what.
fn fault(
    draw: &mut Draw,
    place: &Place,
    id: &str,
    all: &mut [Host],
    disk: &Disk,
    follower: &mut Child,
) -> String {
    match draw.below(5) {
        0 => {
            let at = draw.below(all.len() as u64) as usize;
            all[at].cut();
            sleep(Duration::from_millis(draw.below(4000)));
            all[at].start();
            format!("{} was out of reach, and its server was started again", all[at].name)
        }
        1 => {
            let folders = folders(place, id, all);
            let at = draw.below(folders.len().max(1) as u64) as usize;
            folders.get(at).into_iter().for_each(|job| kill(job));
            format!("what trained on a host was killed ({at})")
        }
        2 => {
            let filler = disk.fill();
            sleep(Duration::from_millis(1000 + draw.below(3000)));
            fs::remove_file(filler).unwrap();
            "the disk there was full".to_owned()
        }
        3 => {
            // One that ended by itself cannot be killed.
            let _ = follower.kill();
            follower.wait().unwrap();
            *follower = follow(place);
            "who followed was killed, and another follows".to_owned()
        }
        _ => {
            // Both at once: a host loses its processes and its connection.
            let at = draw.below(all.len() as u64) as usize;
            all[at].cut();
            kill(&folder(place, id, all[at].name));
            sleep(Duration::from_millis(draw.below(2000)));
            all[at].start();
            format!("{} was restarted", all[at].name)
        }
    }
}

fn trained(path: &Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

#[test]
#[ignore = "needs sshd and a disk to fill: scripts/store-servers.sh install, as root"]
fn whatever_happens_all_runs_end_as_here() {
    if is_left_out("launching with faults") {
        return;
    }
    let faults = std::env::var("STRATUS_FAULTS").map_or(FAULTS, |count| count.parse().unwrap());
    let mut draw = Draw(faults as u64);
    let place = Place::new();
    let disk = Disk::new(place.path("there"));
    let mut all = hosts(&place, &["a", "b"], "lost_after_seconds = 600");
    let (mut happened, mut launches) = (0, Vec::new());
    let began = Instant::now();
    // As many launches as it takes.
    while happened < faults {
        let launched = launch(&place, "lab", EPOCHS, &["--repetitions", &REPETITIONS.to_string()]);
        let id = text(&launched, "id").to_owned();
        launches.push(launched["runs"].clone());
        let mut follower = follow(&place);
        loop {
            assert!(began.elapsed() < PATIENCE, "{}", fs::read_to_string(place.path("followed")).unwrap());
            if happened < faults {
                sleep(Duration::from_millis(500 + draw.below(2500)));
                let what = fault(&mut draw, &place, &id, &mut all, &disk, &mut follower);
                happened += 1;
                println!("{happened}: {what}");
            }
            if follower.try_wait().unwrap().is_none() && happened < faults {
                continue;
            }
            follower.wait().unwrap();
            let state = status(&place)["state"].take();
            let repetitions = state["repetitions"].as_array().unwrap().clone();
            if repetitions.iter().all(|one| one["status"] == "completed") {
                break;
            }
            // A full disk is what somebody has to look at; then it goes on.
            let resumed = place.run(&["launch", "resume"]);
            assert!(
                resumed.code == Some(0) || resumed.err.contains("is being trained already"),
                "{}",
                resumed.err
            );
            follower = follow(&place);
        }
        place.run(&["launch", "fetch"]).expect(0);
    }
    for runs in launches {
        for (seed, run) in (7..).zip(runs.as_array().unwrap()) {
            let run = place.path(run.as_str().unwrap());
            let here = format!("near{seed}");
            let here = if place.path(&here).exists() {
                Result::of(&place.path(&here))
            } else {
                near(&place, &here, EPOCHS, seed)
            };
            assert_eq!(Result::of(&run), here, "{}", run.display());
            assert_eq!(trained(&run.join("iterations.csv")), here.iterations.len() + 1);
        }
    }
    println!("{happened} faults, and every run has the bits of one here");
}
