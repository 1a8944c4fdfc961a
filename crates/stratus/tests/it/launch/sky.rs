//! Launches through SkyPilot. Its machines are folders of this one, by a stand-in of its command; that its
//! own parser takes the task files, `scripts/check-sky.sh` shows.

use super::{ended, instead, launch, near, status, text};
use crate::common::{Place, Result, root};
use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The target `cloud`, whose bucket is a folder, and the stand-in's folder.
fn cloud(place: &mut Place) -> PathBuf {
    let folder = place.path("sky");
    fs::create_dir(&folder).unwrap();
    let stand_in = root().join("crates/stratus/tests/it/launch/sky.py");
    instead(place, "sky", &format!("exec python3 '{}' \"$@\"", stand_in.display()));
    place.variables.push(("SKY_STAND_IN", folder.clone().into()));
    let threads = std::env::var("OMP_NUM_THREADS")
        .unwrap_or_else(|_| std::thread::available_parallelism().unwrap().to_string());
    let target = format!(
        "[cloud]\nkind = \"sky\"\nbucket = {:?}\nspot = true\nfolder = \"~/own disk\"\n[cloud.environment]\n\
         STRATUS_CACHE = {:?}\nOMP_WAIT_POLICY = \"passive\"\nOMP_NUM_THREADS = \"{threads}\"\n",
        place.path("bucket"),
        place.path("cache")
    );
    fs::write(place.path("targets.toml"), target).unwrap();
    folder
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(300), "{what}");
        sleep(Duration::from_millis(50));
    }
}

/// How often a run was kept.
fn kept(place: &Place, id: &str, repetition: usize) -> u64 {
    let list = |place_of: usize| place.path(&format!("bucket/jobs/{id}/{repetition}/run.{place_of}.list"));
    let count = |path| fs::read_to_string(path).ok()?.lines().next()?.parse().ok();
    (0..2).filter_map(|place_of| count(list(place_of))).max().unwrap_or(0)
}

#[test]
fn a_machine_that_is_taken_away_costs_what_came_after_its_last_checkpoint() {
    let mut place = Place::new();
    let sky = cloud(&mut place);
    let launched = launch(&place, "cloud", 3, &["--repetitions", "2"]);
    let id = text(&launched, "id").to_owned();
    assert!(launched["sent_files"].as_u64().unwrap() >= 6, "{launched}");
    let refused = place.run(&["launch", "resume", &id]).expect(1).err;
    assert!(refused.contains("is being trained already, by "), "{refused}");
    until("a checkpoint is kept", || kept(&place, &id, 2) > 0);
    fs::write(sky.join("2.take"), "").unwrap();
    until("it is gone", || !sky.join("machine-2-0").exists());
    // What there is can be looked at while it goes on.
    place.run(&["launch", "fetch"]).expect(0);
    place.run(&["collect", "runs/digits/2"]).expect(0);
    assert_eq!(ended(&place), ["completed"; 2]);
    place.run(&["launch", "fetch"]).expect(0);
    for repetition in 1..=2 {
        let run = place.path(&format!("runs/digits/{repetition}"));
        let seed = 6 + repetition;
        assert_eq!(Result::of(&run), near(&place, &format!("near{seed}"), 3, seed), "{repetition}");
    }
    let said = place.run(&["launch", "logs", "--repetition", "2"]).expect(0).out;
    assert!(said.contains("goes on from what was kept") && said.contains("epoch"), "{said}");
    let again = launch(&place, "cloud", 1, &[]);
    assert_eq!((again["sent_files"].as_u64(), again["sent_bytes"].as_u64()), (Some(0), Some(0)));
    assert_eq!(ended(&place), ["completed"]);
}

#[test]
fn what_is_stopped_in_a_cloud_keeps_its_checkpoint_and_goes_on_with_it() {
    let mut place = Place::new();
    let sky = cloud(&mut place);
    let launched = launch(&place, "cloud", 5, &[]);
    let id = text(&launched, "id").to_owned();
    until("a checkpoint is kept", || kept(&place, &id, 1) > 0);
    place.run(&["launch", "stop"]).expect(0);
    assert_eq!(ended(&place), ["interrupted"]);
    let state = status(&place)["state"].take();
    assert_eq!(text(&state["repetitions"][0], "queue"), "SUCCEEDED", "it is not started again: {state}");
    place.run(&["launch", "resume"]).expect(0);
    assert_eq!(ended(&place), ["completed"]);
    assert!(sky.join("machine-2-0").exists());
    place.run(&["launch", "fetch"]).expect(0);
    assert_eq!(Result::of(&place.path("runs/digits/1")), near(&place, "near", 5, 7));
    // A bucket whose newest copy is damaged: the one before it counts, and here too.
    let path = place.path(&format!("bucket/jobs/{id}/1"));
    let newest = kept(&place, &id, 1) % 2;
    fs::write(path.join(format!("run.{newest}/summary.json")), "{}").unwrap();
    fs::remove_dir_all(place.path("runs/digits/1")).unwrap();
    let said = place.run(&["launch", "fetch", "--json"]).expect(0).out;
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said[0]["changing"], 1, "{said}");
}

#[test]
fn the_task_file_says_what_the_target_asks_for() {
    let place = Place::bare();
    let target = "[cloud]\nkind = \"sky\"\nbucket = \"s3://lab/stratus/\"\ninfra = \"aws/us-east-1\"\n\
                  gpus = \"A100:1\"\ncpus = \"8+\"\nmemory = \"32+\"\ndisk = 100\nspot = true\n\
                  max_hourly_cost = 1.5\nimage = \"ami-1\"\nsetup = \"nvidia-smi\\ntrue\"\n";
    fs::write(place.path("targets.toml"), target).unwrap();
    let data = format!("data.path={}", root().join("data/mnist").display());
    let dry = place.run(&["launch", "cloud", "digits", "--dry-run", "--set", &data]).expect(0).out;
    assert!(dry.starts_with("cloud: SkyPilot, aws/us-east-1, s3://lab/stratus, in "), "{dry}");
    let (before, task) = dry.split_once("/1.yaml:\n").unwrap();
    let id = before.rsplit('/').next().unwrap();
    let (task, script) = task.split_once("\njobs/").unwrap();
    insta::assert_snapshot!("launch_sky", task.replace(id, "ID"));
    assert!(script.contains("\nroot='/stratus'\nn=1\nsubmitted=1\nfolder=\"$HOME\"'/.stratus'\npause=10\n"));
    assert!(script.contains("\nprogram='/stratus/program/"), "{script}");
    let no_sky = place.run(&["launch", "cloud", "digits", "--set", &data]);
    assert!(no_sky.expect(1).err.contains("there is no command `sky`"));
}
