//! Packing into a store of objects and training from it, while its server is killed: a real OpenStack Swift,
//! which speaks S3, on this machine (`scripts/store-servers.sh`). `make test-all` runs this.

#![cfg(unix)]

use crate::common::{Place, Ran, summary};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};
use stratus_testing::swift::{self, KEY, Node};

/// The program, with what it takes to get to the node.
fn command(node: &Node, place: &Place, arguments: &[&str]) -> Command {
    let mut command = place.command(arguments);
    command.envs(node.environment(KEY));
    command
}

/// Copies that are whole, in the folder of a cache.
fn copies(cache: &Path) -> usize {
    let Ok(entries) = fs::read_dir(cache) else { return 0 };
    entries.filter(|entry| entry.as_ref().unwrap().file_name().len() == 32).count()
}

/// Whether a file below a folder holds the text.
fn holds(folder: &Path, text: &str) -> bool {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).any(|path| {
        if path.is_dir() {
            return holds(&path, text);
        }
        fs::read(&path).unwrap().windows(text.len()).any(|window| window == text.as_bytes())
    })
}

#[test]
#[ignore = "needs OpenStack Swift: scripts/store-servers.sh install"]
fn training_from_a_store_survives_its_server_and_ends_as_from_a_folder() {
    if swift::is_left_out("training from a store") {
        return;
    }
    let node = Node::start();
    node.create_container("bucket");
    let place = Place::bare();
    let pack = |to: &str| {
        let source = ["data", "shard", "nowhere", to, "--name", "synthetic", "--shard-mib", "1"];
        let sizes = [
            "--set",
            "data.shape=[3, 64, 64]",
            "--set",
            "data.synthetic.images=2000",
            "--set",
            "data.synthetic.validation_images=100",
        ];
        Ran::of(command(&node, &place, &[source.as_slice(), &sizes].concat()).output().unwrap())
    };
    pack("folder").expect(0);
    pack("s3://bucket/some/where").expect(0);
    let refused = pack("s3://bucket/some/where").expect(1);
    assert!(refused.err.contains("s3://bucket/some/where: there is an `index.json`"), "{}", refused.err);
    // Nothing of what was sent stays behind.
    assert_eq!(fs::read_dir(place.path("cache/data")).map_or(0, Iterator::count), 0);

    let train = |path: &str, out: &str| {
        let path = format!("data.path={path}");
        let settings = [
            "data.name=shards",
            &path,
            "data.shape=[3, 12, 12]",
            "data.shuffle_shards=1",
            "data.cache_mib=16",
            "data.workers=2",
            "train.device=reference",
            "train.batch_size=50",
            "train.epochs=3",
            "model.width=4",
        ];
        let mut arguments = vec!["train".to_owned(), "digits".to_owned(), "--out".to_owned(), out.to_owned()];
        arguments.extend(settings.iter().flat_map(|setting| ["--set".to_owned(), (*setting).to_owned()]));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut command = command(&node, &place, &arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    Ran::of(train("folder", "near").wait_with_output().unwrap()).expect(0);
    let far = train("s3://bucket/some/where", "far");
    let began = Instant::now();
    while copies(&place.path("cache/data")) < 3 {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing is fetched");
        thread::sleep(Duration::from_millis(2));
    }
    swift::kill(node.folder(), "proxy");
    thread::sleep(Duration::from_millis(1500));
    swift::start(node.folder());
    Ran::of(far.wait_with_output().unwrap()).expect(0);
    let weights = |run: &str| summary(&place.path(run))["weights_sha256"].as_str().unwrap().to_owned();
    assert_eq!(weights("near"), weights("far"));
    let cached: u64 = fs::read_dir(place.path("cache/data"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert!(cached <= (16 << 20) + (64 << 10), "{cached}");
    // The key is nowhere, in what was written and said.
    assert!(!holds(&place.path("far"), KEY) && holds(&place.path("far"), "s3://bucket/some/where"));
}
