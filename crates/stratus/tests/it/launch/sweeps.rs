//! Sweeps that are trained elsewhere, and several workers there.

use super::{ended, launch, target, text};
use crate::common::{Place, Result, root};
use crate::workers::has_mpi;
use std::fs;

#[test]
fn a_sweep_is_trained_there_and_compared_here() {
    let place = Place::new();
    target(&place, "here", "kind = \"local\"", "there");
    let sweep = format!(
        "[model]\nname = \"digits\"\n\n[data]\npath = {:?}\n\n[train]\nepochs = 1\nbatch_size = 1024\n\
         seed = 7\n\n[checkpoint]\nevery_seconds = 0.05\n\n[sweep]\nrepetitions = 2\n\n[sweep.keys]\n\
         \"optimiser.learning_rate\" = [0.05, 0.1]\n",
        root().join("data/mnist")
    );
    fs::write(place.path("rates.toml"), sweep).unwrap();
    for (arguments, problem) in [
        (&["launch", "here", "rates.toml", "--repetitions", "2"][..], "--repetitions is for an experiment"),
        (&["launch", "here", "rates.toml", "--set", "train.epoch=1"], "train.epochs"),
    ] {
        let said = place.run(arguments).expect(2).err;
        assert!(said.contains(problem), "{said}");
    }
    assert!(!place.path("sweeps").exists());
    let launched = place.run(&["launch", "here", "rates.toml", "--json"]).expect(0).out;
    let launched: serde_json::Value = serde_json::from_str(&launched).unwrap();
    assert_eq!(launched["sweep"], "sweeps/rates");
    assert_eq!(launched["runs"].as_array().unwrap().len(), 4);
    assert_eq!(launched["runs"][3], "sweeps/rates/runs/2/2");
    let twice = place.run(&["launch", "here", "rates.toml"]).expect(2).err;
    assert!(twice.contains("there is a sweep already"), "{twice}");
    assert_eq!(ended(&place), ["completed"; 4]);
    place.run(&["launch", "fetch"]).expect(0);
    place.run(&["sweep", "sweeps/rates"]).expect(0);
    let cells = fs::read_to_string(place.path("sweeps/rates/cells.csv")).unwrap();
    assert_eq!(cells.matches(",completed,").count(), 4, "{cells}");
    // The second repetition at the second rate.
    place.train("near", 1, &["--set", "train.seed=8", "--set", "optimiser.learning_rate=0.1"]).expect(0);
    assert_eq!(Result::of(&place.path("sweeps/rates/runs/2/2")), Result::of(&place.path("near")));
}

#[test]
fn several_workers_there_give_the_bits_of_one_here() {
    if !has_mpi() {
        return;
    }
    let place = Place::new();
    target(&place, "here", "kind = \"local\"", "there");
    let more = ["--workers", "2", "--set", "train.parts=2", "--set", "train.threads=1"];
    let launched = launch(&place, "here", 1, &more);
    assert_eq!(ended(&place), ["completed"]);
    place.run(&["launch", "fetch"]).expect(0);
    let log = place.path(&format!("there/jobs/{}/1/log.txt", text(&launched, "id")));
    assert!(fs::read_to_string(log).unwrap().contains("worker"), "several workers train it");
    let alone = ["--set", "train.seed=7", "--set", "train.parts=2", "--set", "train.threads=1"];
    place.train("near", 1, &alone).expect(0);
    assert_eq!(Result::of(&place.path("runs/digits/1")), Result::of(&place.path("near")));

    let cloud = "[cloud]\nkind = \"sky\"\nbucket = \"s3://lab\"\n";
    fs::write(place.path("targets.toml"), cloud).unwrap();
    let data = format!("data.path={}", root().join("data/mnist").display());
    let said = place.run(&["launch", "cloud", "digits", "--workers", "2", "--dry-run", "--set", &data]);
    assert!(said.expect(2).err.contains("several workers in a cloud are not supported"));
}
