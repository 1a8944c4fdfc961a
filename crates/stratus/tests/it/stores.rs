//! Packing into an object store and training from it while its server is killed: a real OpenStack Swift with
//! an S3 interface on this machine (`scripts/store-servers.sh`). `make test-all` runs this.

#![cfg(unix)]

use crate::common::{CommandOutput, TestDir, summary};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};
use stratus_testing::swift::{self, KEY, SwiftServer};

/// The program with the credentials of the server.
fn command(node: &SwiftServer, dir: &TestDir, arguments: &[&str]) -> Command {
    let mut command = dir.command(arguments);
    command.envs(node.environment(KEY));
    command
}

/// The number of complete files in a cache.
fn complete_copies(cache: &Path) -> usize {
    let Ok(entries) = fs::read_dir(cache) else { return 0 };
    entries.filter(|entry| entry.as_ref().unwrap().file_name().len() == 32).count()
}

/// Returns whether any file of a folder contains the text.
fn contains_text(folder: &Path, text: &str) -> bool {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).any(|path| {
        if path.is_dir() {
            return contains_text(&path, text);
        }
        fs::read(&path).unwrap().windows(text.len()).any(|window| window == text.as_bytes())
    })
}

#[test]
#[ignore = "needs OpenStack Swift: scripts/store-servers.sh install"]
fn store_outage_does_not_change_the_trained_bits() {
    if swift::is_skipped("training from a store") {
        return;
    }
    let node = SwiftServer::start();
    node.create_container("bucket");
    let dir = TestDir::without_kernel_cache();
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
        CommandOutput::new(command(&node, &dir, &[source.as_slice(), &sizes].concat()).output().unwrap())
    };
    pack("folder").expect(0);
    pack("s3://bucket/some/where").expect(0);
    let rejected = pack("s3://bucket/some/where").expect(1);
    assert!(
        rejected.err.contains("s3://bucket/some/where: already contains an `index.json`"),
        "{}",
        rejected.err
    );
    // The rejected upload leaves no files.
    assert_eq!(fs::read_dir(dir.path("cache/data")).map_or(0, Iterator::count), 0);

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
        let mut command = command(&node, &dir, &arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    CommandOutput::new(train("folder", "near").wait_with_output().unwrap()).expect(0);
    let far = train("s3://bucket/some/where", "far");
    let start = Instant::now();
    while complete_copies(&dir.path("cache/data")) < 3 {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing is fetched");
        thread::sleep(Duration::from_millis(2));
    }
    swift::kill(node.folder(), "proxy");
    thread::sleep(Duration::from_millis(1500));
    swift::start(node.folder());
    CommandOutput::new(far.wait_with_output().unwrap()).expect(0);
    let weights = |run: &str| summary(&dir.path(run))["weights_sha256"].as_str().unwrap().to_owned();
    assert_eq!(weights("near"), weights("far"));
    let cached: u64 = fs::read_dir(dir.path("cache/data"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert!(cached <= (16 << 20) + (64 << 10), "{cached}");
    // No file contains the key.
    assert!(
        !contains_text(&dir.path("far"), KEY) && contains_text(&dir.path("far"), "s3://bucket/some/where")
    );
}
