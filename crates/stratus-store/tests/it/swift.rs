//! A real OpenStack Swift, which also speaks S3, on this machine: `scripts/store-servers.sh` starts it. `make
//! test-all` runs this.
//!
//! Credentials are environment variables, so what needs them runs in processes of its own: this program
//! again, with one test.

use std::env;
use std::fs;
use std::io::{self, Cursor, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::web::content;
use stratus_store::{Cache, RetryPolicy, Store, StoreError};
use stratus_testing::swift::{self, KEY, Node};

/// Set for a process of a test's own: the folder of the node, and the address of a store in it.
const NODE: &str = "STRATUS_STORE_TEST_NODE";
const ADDRESS: &str = "STRATUS_STORE_TEST_ADDRESS";

const TEST: &str = "swift::swift_and_s3_hold_files";

/// Runs the test in a process that has this key.
fn run(node: &Node, address: &str, key: &str) {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", TEST, "--include-ignored", "--nocapture"]);
    command.env(NODE, node.folder()).env(ADDRESS, address).envs(node.environment(key));
    assert!(command.status().unwrap().success(), "{address}");
}

/// The node's folder and the store, in a process of a test's own.
fn in_a_process_of_its_own() -> Option<(PathBuf, Store)> {
    let (node, address) = (env::var(NODE).ok()?, env::var(ADDRESS).ok()?);
    let retry_policy = RetryPolicy { give_up_after: Duration::from_secs(60), ..RetryPolicy::default() };
    Some((PathBuf::from(node), Store::open_with(&address, retry_policy).unwrap()))
}

#[test]
#[ignore = "needs OpenStack Swift: scripts/store-servers.sh install"]
fn swift_and_s3_hold_files() {
    if let Some((node, store)) = in_a_process_of_its_own() {
        return if env::var("ST_KEY").unwrap() == KEY { holds_files(&node, &store) } else { refuses(&store) };
    }
    if swift::is_left_out(TEST) {
        return;
    }
    let node = Node::start();
    node.create_container("data");
    node.create_container("bucket");
    run(&node, "swift://data/of/mine", KEY);
    run(&node, "s3://bucket/of/mine", KEY);
    run(&node, "swift://data", KEY);
    run(&node, "swift://data", "not-the-key");
    run(&node, "s3://bucket", "not-the-key");
}

/// A wrong key is final, and is not shown.
fn refuses(store: &Store) {
    let began = Instant::now();
    let mut byte = [0];
    let errors = [
        store.bytes("a").unwrap_err(),
        store.list("").unwrap_err(),
        store.read_at("a", 0, &mut byte).unwrap_err(),
        store.upload("a", &mut Cursor::new(b"x"), 1).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, StoreError::Refused { .. }), "{error}");
        let text = format!("{error} {error:?}");
        assert!(!text.contains("not-the-key") && !text.contains("ignature="), "{text}");
        let variable = if store.address().starts_with("s3") { "AWS_SECRET_ACCESS_KEY" } else { "ST_KEY" };
        assert!(text.contains(store.address()) && text.contains(variable), "{text}");
    }
    assert!(began.elapsed() < Duration::from_secs(10));
}

fn holds_files(node: &Path, store: &Store) {
    let small = content(5000);
    let paths: Vec<String> = (0..230).map(|number| format!("pages/{number:03}.bin")).collect();
    for path in &paths {
        store.upload(path, &mut Cursor::new(&small[..path.len()]), path.len() as u64).unwrap();
    }
    let listed = store.list("pages/").unwrap();
    assert!(listed.iter().map(|entry| &entry.path).eq(&paths), "{} of {}", listed.len(), paths.len());
    assert!(listed.iter().all(|entry| entry.bytes == 13));
    assert_eq!(store.list("pages/01").unwrap().len(), 10);
    assert_eq!(store.list("nothing/").unwrap(), []);

    for (path, bytes) in [("a b/ü+%.bin", small.as_slice()), ("empty", b"")] {
        store.upload(path, &mut Cursor::new(bytes), bytes.len() as u64).unwrap();
        assert_eq!(store.bytes(path).unwrap(), Some(bytes.len() as u64));
        assert_eq!(store.read(path, 5000).unwrap(), bytes);
    }
    assert!(store.list("a b/").unwrap().iter().any(|entry| entry.path == "a b/ü+%.bin"));
    assert_eq!(store.bytes("none").unwrap(), None);
    let mut part = [0; 1000];
    assert!(matches!(store.read_at("none", 0, &mut part), Err(StoreError::NotFound { .. })));
    store.read_at("a b/ü+%.bin", 3999, &mut part).unwrap();
    assert_eq!(part, small[3999..4999]);
    let error = store.read_at("a b/ü+%.bin", 4001, &mut part).unwrap_err();
    assert!(matches!(error, StoreError::TooShort { bytes: 5000, .. }), "{error}");
    let error = store.read_at("a b/ü+%.bin", 5000, &mut part).unwrap_err();
    assert!(matches!(error, StoreError::TooShort { bytes: 5000, .. }), "{error}");

    large_files(node, store);
    a_token_that_expired(node, store);
}

/// Files of several parts: up, in pieces, and down while the server is killed.
fn large_files(node: &Path, store: &Store) {
    let large = content(40_000_000);
    let size = large.len() as u64;
    let short = store.upload("large.tar", &mut Cursor::new(&large[1..]), size).unwrap_err();
    assert!(short.to_string().contains("only 39999999 bytes"), "{short}");
    assert_eq!(store.bytes("large.tar").unwrap(), None, "an upload that failed leaves nothing");
    store.upload("large.tar", &mut Cursor::new(&large), size).unwrap();
    assert_eq!(store.list("large").unwrap().iter().map(|entry| entry.bytes).collect::<Vec<_>>(), [size]);
    assert!(store.list("").unwrap().iter().all(|entry| !entry.path.contains("segments")));
    let mut part = vec![0; 100_000];
    // Across the border of two parts.
    store.read_at("large.tar", (16 << 20) - 50_000, &mut part).unwrap();
    assert!(part == large[(16 << 20) - 50_000..(16 << 20) + 50_000]);

    let mut sink = Killing { node, content: Vec::new(), restart: None };
    store.download("large.tar", &mut sink, &mut |_| {}).unwrap();
    sink.restart.expect("it was killed").join().unwrap();
    assert!(sink.content == large, "other bytes after the server was killed");

    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::new(folder.path(), 50_000_000).unwrap();
    let found = cache.fetch(store, "large.tar", Some(size), None).unwrap();
    assert!(fs::read(found.path()).unwrap() == large);
}

/// Kills the server in the middle of a download, and starts it again a while later.
struct Killing<'a> {
    node: &'a Path,
    content: Vec<u8>,
    restart: Option<thread::JoinHandle<()>>,
}

impl Write for Killing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.content.extend_from_slice(bytes);
        if self.content.len() > 4_000_000 && self.restart.is_none() {
            swift::kill(self.node, "proxy");
            let node = self.node.to_owned();
            self.restart = Some(thread::spawn(move || {
                thread::sleep(Duration::from_secs(2));
                swift::start(&node);
            }));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Tokens are in memcached: without it no earlier one is known any more.
fn a_token_that_expired(node: &Path, store: &Store) {
    swift::kill(node, "memcached");
    swift::start(node);
    assert_eq!(store.read("pages/000.bin", 100).unwrap().len(), 13);
}
