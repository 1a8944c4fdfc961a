//! A local OpenStack Swift server, which also supports S3, started by `scripts/store-servers.sh`. `make
//! test-all` runs this test.
//!
//! Credentials are environment variables, so the client runs in other processes, which are this program
//! again.

use std::env;
use std::fs;
use std::io::{self, Cursor, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::web::content;
use stratus_store::{Cache, RetryPolicy, Store, StoreError};
use stratus_testing::swift::{self, KEY, SwiftServer};

/// Set for a process started by the test: the folder of the server, and the address of a store on it.
const NODE: &str = "STRATUS_STORE_TEST_NODE";
const ADDRESS: &str = "STRATUS_STORE_TEST_ADDRESS";

const TEST: &str = "swift::swift_and_s3_store_files";

/// Runs the test in another process with a key.
fn run(node: &SwiftServer, address: &str, key: &str) {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", TEST, "--include-ignored", "--nocapture"]);
    command.env(NODE, node.folder()).env(ADDRESS, address).envs(node.environment(key));
    assert!(command.status().unwrap().success(), "{address}");
}

/// The folder of the server and the store, if this process was started by the test.
fn child_arguments() -> Option<(PathBuf, Store)> {
    let (node, address) = (env::var(NODE).ok()?, env::var(ADDRESS).ok()?);
    let retry_policy = RetryPolicy { give_up_after: Duration::from_secs(60), ..RetryPolicy::default() };
    Some((PathBuf::from(node), Store::open_with_policy(&address, retry_policy).unwrap()))
}

#[test]
#[ignore = "needs OpenStack Swift: scripts/store-servers.sh install"]
fn swift_and_s3_store_files() {
    if let Some((node, store)) = child_arguments() {
        return if env::var("ST_KEY").unwrap() == KEY {
            check_files(&node, &store);
        } else {
            check_refusal(&store);
        };
    }
    if swift::is_skipped(TEST) {
        return;
    }
    let node = SwiftServer::start();
    node.create_container("data");
    node.create_container("bucket");
    run(&node, "swift://data/of/mine", KEY);
    run(&node, "s3://bucket/of/mine", KEY);
    run(&node, "swift://data", KEY);
    run(&node, "swift://data", "not-the-key");
    run(&node, "s3://bucket", "not-the-key");
}

/// Checks that a wrong key is a redacted, permanent error.
fn check_refusal(store: &Store) {
    let began = Instant::now();
    let mut byte = [0];
    let errors = [
        store.size("a").unwrap_err(),
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

fn check_files(node: &Path, store: &Store) {
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
        assert_eq!(store.size(path).unwrap(), Some(bytes.len() as u64));
        assert_eq!(store.read(path, 5000).unwrap(), bytes);
    }
    assert!(store.list("a b/").unwrap().iter().any(|entry| entry.path == "a b/ü+%.bin"));
    assert_eq!(store.size("none").unwrap(), None);
    let mut part = [0; 1000];
    assert!(matches!(store.read_at("none", 0, &mut part), Err(StoreError::NotFound { .. })));
    store.read_at("a b/ü+%.bin", 3999, &mut part).unwrap();
    assert_eq!(part, small[3999..4999]);
    let error = store.read_at("a b/ü+%.bin", 4001, &mut part).unwrap_err();
    assert!(matches!(error, StoreError::TooShort { bytes: 5000, .. }), "{error}");
    let error = store.read_at("a b/ü+%.bin", 5000, &mut part).unwrap_err();
    assert!(matches!(error, StoreError::TooShort { bytes: 5000, .. }), "{error}");

    check_large_files(node, store);
    check_expired_token(node, store);
}

/// Checks files of several parts: upload, ranges, and a download while the server is killed.
fn check_large_files(node: &Path, store: &Store) {
    let large = content(40_000_000);
    let size = large.len() as u64;
    let short = store.upload("large.tar", &mut Cursor::new(&large[1..]), size).unwrap_err();
    assert!(short.to_string().contains("found 39999999"), "{short}");
    assert_eq!(store.size("large.tar").unwrap(), None, "a failed upload leaves no file");
    store.upload("large.tar", &mut Cursor::new(&large), size).unwrap();
    assert_eq!(store.list("large").unwrap().iter().map(|entry| entry.bytes).collect::<Vec<_>>(), [size]);
    assert!(store.list("").unwrap().iter().all(|entry| !entry.path.contains("segments")));
    let mut part = vec![0; 100_000];
    // The range crosses the boundary of two parts.
    store.read_at("large.tar", (16 << 20) - 50_000, &mut part).unwrap();
    assert!(part == large[(16 << 20) - 50_000..(16 << 20) + 50_000]);

    let mut sink = KillingSink { node, content: Vec::new(), restart: None };
    store.download("large.tar", &mut sink, &mut |_| {}).unwrap();
    sink.restart.expect("the server was killed").join().unwrap();
    assert!(sink.content == large, "other bytes after the server was killed");

    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::new(folder.path(), 50_000_000).unwrap();
    let found = cache.fetch(store, "large.tar", Some(size), None).unwrap();
    assert!(fs::read(found.path()).unwrap() == large);
}

/// Kills the server during a download, and restarts it later.
struct KillingSink<'a> {
    node: &'a Path,
    content: Vec<u8>,
    restart: Option<thread::JoinHandle<()>>,
}

impl Write for KillingSink<'_> {
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

/// Restarts memcached, which invalidates all tokens.
fn check_expired_token(node: &Path, store: &Store) {
    swift::kill(node, "memcached");
    swift::start(node);
    assert_eq!(store.read("pages/000.bin", 100).unwrap().len(), 13);
}
