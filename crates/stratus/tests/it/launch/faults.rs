//! Launches to which anything may happen: all runs end, with the bits that they would have had.

use super::hosts::{Host, folder, hosts, kill};
use super::{is_left_out, launch, near, text};
use crate::common::{Place, Result};
use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// Numbers that are the same every time: SplitMix64.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

fn follow(place: &Place) -> Child {
    let mut command = place.command(&["launch", "fetch", "-f"]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Does one of what may happen, and says what.
fn fault(
    place: &Place,
    id: &str,
    all: &mut [Host],
    child: &mut Child,
    numbers: &mut Numbers,
) -> &'static str {
    let at = numbers.below(all.len() as u64) as usize;
    let job = folder(place, id, all[at].name);
    match numbers.below(5) {
        0 => {
            all[at].throw_out();
            "the connection is cut"
        }
        1 => {
            kill(&job);
            "all that trains is killed"
        }
        2 => {
            let trained = fs::read_to_string(job.join("pid")).unwrap_or_default();
            if !trained.trim().is_empty() {
                let mut command = Command::new("kill");
                // It may just have ended.
                let _ = command.args(["-9", trained.trim()]).stderr(Stdio::null()).status();
            }
            "the training is killed"
        }
        3 => {
            all[at].cut();
            sleep(Duration::from_millis(500 + numbers.below(6000)));
            all[at].start();
            "the server is gone for a while"
        }
        _ => {
            child.kill().unwrap();
            child.wait().unwrap();
            *child = follow(place);
            "the fetch is killed"
        }
    }
}

#[test]
#[ignore = "takes minutes, and needs sshd: scripts/store-servers.sh install"]
fn whatever_happens_all_runs_end_with_the_same_bits() {
    const EPOCHS: u32 = 8;
    if is_left_out("random faults of launches") {
        return;
    }
    let faults = std::env::var("STRATUS_FAULTS").map_or(20, |count| count.parse().unwrap());
    let place = Place::new();
    let mut all = hosts(&place, &["a", "b"], "lost_after_seconds = 2");
    let launched = launch(&place, "lab", EPOCHS, &["--repetitions", "4"]);
    let id = text(&launched, "id").to_owned();
    let mut numbers = Numbers(7);
    let mut child = follow(&place);
    let mut happened = Vec::new();
    for _ in 0..faults {
        sleep(Duration::from_millis(300 + numbers.below(2500)));
        happened.push(fault(&place, &id, &mut all, &mut child, &mut numbers));
        if child.try_wait().unwrap().is_some() {
            child = follow(&place);
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let said = place.run(&["launch", "fetch", "-f"]).expect(0).err;
    for repetition in 1..=4 {
        let run = place.path(&format!("runs/digits/{repetition}"));
        let seed = 6 + repetition;
        // Every row once, and the weights: nothing was done twice, nothing was lost.
        let here = near(&place, &format!("near{seed}"), EPOCHS, seed);
        assert_eq!(Result::of(&run), here, "repetition {repetition}: {happened:?}\n{said}");
    }
}
