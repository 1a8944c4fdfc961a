//! The cache of remote files: concurrency, eviction, verification and resumption.

use std::env;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crate::web::{Reply, Server, content};
use stratus_store::{Cache, CachedFile, Store, StoreError};

fn cache(max_bytes: u64) -> (tempfile::TempDir, Cache) {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::new(&folder.path().join("cache"), max_bytes).unwrap();
    (folder, cache)
}

fn read_cached(found: &CachedFile) -> Vec<u8> {
    let mut bytes = Vec::new();
    fs::File::open(found.path()).unwrap().read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len() as u64, found.bytes());
    bytes
}

/// The total size of the content in the cache.
fn content_bytes(cache: &Cache) -> u64 {
    let files = fs::read_dir(cache.folder()).unwrap().map(|item| item.unwrap());
    let content = files.filter(|item| item.path().extension().is_none_or(|extension| extension != "about"));
    content.map(|item| item.metadata().unwrap().len()).sum()
}

#[test]
fn concurrent_fetches_share_one_download() {
    let bytes = content(50_000);
    let server = Server::start(bytes.clone(), |_| Reply::Trickle(5000));
    let (_folder, cache) = cache(100_000);
    let (store, start) = (server.store(), Arc::new(Barrier::new(8)));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (cache, store, start) = (cache.clone(), store.clone(), Arc::clone(&start));
            thread::spawn(move || {
                start.wait();
                read_cached(&cache.fetch(&store, "a.tar", Some(50_000), None).unwrap())
            })
        })
        .collect();
    for thread in threads {
        assert!(thread.join().unwrap() == bytes);
    }
    assert_eq!(server.gets(), 1);
    cache.fetch(&store, "a.tar", None, None).unwrap();
    assert_eq!(server.gets(), 1, "already cached");
    cache.fetch(&store, "b.tar", None, None).unwrap();
    assert_eq!(server.gets(), 2, "another file");
}

#[test]
fn evicts_least_recently_used() {
    let server = Server::start(content(1000), |_| Reply::Serve);
    let (_folder, cache) = cache(3500);
    let store = server.store();
    let fetch = |path: &str| {
        let found = cache.fetch(&store, path, None, None).unwrap();
        // The times of use of two files must differ.
        thread::sleep(Duration::from_millis(20));
        found
    };
    let cached_path = |path: &str| fetch(path).path().to_owned();
    let (a, b, c) = (cached_path("a"), cached_path("b"), cached_path("c"));
    assert_eq!(cached_path("a"), a);
    let locked = fetch("c");
    let d = cached_path("d");
    assert!(a.exists() && !b.exists() && c.exists() && d.exists());
    let (e, f) = (cached_path("e"), cached_path("f"));
    assert!(!a.exists() && !d.exists() && c.exists() && e.exists() && f.exists(), "c is locked");
    assert_eq!(read_cached(&locked), content(1000));
    drop(locked);
    let g = cached_path("g");
    assert!(!c.exists() && g.exists());
    assert!(content_bytes(&cache) <= 3500);
}

#[test]
fn reports_why_a_file_does_not_fit() {
    let server = Server::start(content(1000), |_| Reply::Serve);
    let store = server.store();
    let (_folder, small) = cache(999);
    let error = small.fetch(&store, "a", None, None).unwrap_err();
    assert!(matches!(error, StoreError::CacheTooSmall { bytes: 1000, max: 999, .. }), "{error}");
    let (_folder, cache) = cache(2500);
    let locked: Vec<_> =
        ["a", "b"].iter().map(|path| cache.fetch(&store, path, None, None).unwrap()).collect();
    let error = cache.fetch(&store, "c", None, None).unwrap_err();
    assert!(matches!(error, StoreError::CacheInUse { in_use: 2000, .. }), "{error}");
    // The files are unlocked while another thread waits.
    let waiting = {
        let (cache, store) = (cache.clone(), store.clone());
        thread::spawn(move || cache.fetch(&store, "c", None, None).map(|found| found.bytes()))
    };
    thread::sleep(Duration::from_millis(200));
    drop(locked);
    assert_eq!(waiting.join().unwrap().unwrap(), 1000);
}

#[test]
fn concurrent_fetches_wait_for_room() {
    let server = Server::start(content(1000), |_| Reply::Trickle(100));
    let (_folder, cache) = cache(1500);
    let start = Arc::new(Barrier::new(4));
    let threads: Vec<_> = ["a", "b", "c", "d"]
        .map(|path| {
            let (cache, store, start) = (cache.clone(), server.store(), Arc::clone(&start));
            thread::spawn(move || {
                start.wait();
                read_cached(&cache.fetch(&store, path, None, None).unwrap()).len()
            })
        })
        .into();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), 1000);
    }
    assert!(content_bytes(&cache) <= 1500);
}

#[test]
fn never_exceeds_its_limit() {
    let server = Server::start(content(1000), |_| Reply::Serve);
    let (_folder, cache) = cache(3500);
    let fetchers: Vec<_> = (0..6)
        .map(|fetcher| {
            let (cache, store) = (cache.clone(), server.store());
            thread::spawn(move || {
                for file in 0..100 {
                    cache.fetch(&store, &format!("{fetcher}-{file}"), None, None).unwrap();
                }
            })
        })
        .collect();
    let mut max = 0;
    while !fetchers.iter().all(thread::JoinHandle::is_finished) {
        // The lock keeps the names, so that each file is counted once.
        let lock = fs::File::create(cache.folder().join("lock")).unwrap();
        lock.lock().unwrap();
        max = max.max(content_bytes(&cache));
    }
    for fetcher in fetchers {
        fetcher.join().unwrap();
    }
    assert!((1000..=3500).contains(&max), "{max}");
}

#[test]
fn verifies_size_and_checksum() {
    let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let server = Server::start(b"abc".to_vec(), |_| Reply::Serve);
    let (store, (_folder, cache)) = (server.store(), cache(100));
    assert_eq!(read_cached(&cache.fetch(&store, "a", Some(3), Some(sha256)).unwrap()), b"abc");
    let error = cache.fetch(&store, "a", None, Some(&sha256.replace('b', "c"))).unwrap_err();
    assert!(error.to_string().contains("/a: its SHA-256 is ba78"), "{error}");
    let error = cache.fetch(&store, "a", Some(4), None).unwrap_err();
    assert!(error.to_string().contains("/a: expected 4 bytes, found 3"), "{error}");
    let whole: Vec<_> = fs::read_dir(cache.folder()).unwrap().map(|item| item.unwrap().path()).collect();
    assert_eq!(whole.iter().filter(|path| path.extension().is_none() && !path.ends_with("lock")).count(), 1);
}

#[test]
fn resumes_downloads_and_refetches_damaged_copies() {
    let bytes = content(100_000);
    // The first connections break, then the server refuses all requests without the query string.
    let server = Server::start(bytes.clone(), |request| match (request.method.as_str(), request.earlier) {
        ("HEAD", _) => Reply::Serve,
        (_, 0..4) => Reply::Break(30_000),
        (_, 4..200) if request.path.ends_with("?1") => Reply::Serve,
        _ => Reply::Status(403, "gone".to_owned()),
    });
    let (_folder, cache) = cache(200_000);
    assert!(cache.fetch(&server.store(), "a.tar", None, None).is_err());
    let first_gets = server.gets();
    let again = Store::open_with_policy(&format!("{}?1", server.address), crate::web::brief()).unwrap();
    let found = cache.fetch(&again, "a.tar", None, None).unwrap();
    assert!(read_cached(&found) == bytes);
    let resumed: Vec<_> =
        server.requests().into_iter().filter(|request| request.method == "GET").skip(first_gets).collect();
    assert_eq!(resumed.len(), 1);
    assert!(resumed[0].first.unwrap() >= 30_000, "{resumed:?}");

    let path = found.path().to_owned();
    drop(found);
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(99_999).unwrap();
    assert!(read_cached(&cache.fetch(&again, "a.tar", None, None).unwrap()) == bytes);
    fs::remove_file(path.with_extension("about")).unwrap();
    assert!(read_cached(&cache.fetch(&again, "a.tar", None, None).unwrap()) == bytes);
    assert_eq!(server.gets(), first_gets + 3);
}

#[test]
fn does_not_resume_a_download_of_another_version() {
    let new_content = content(60_001)[1..].to_vec();
    let served = new_content.clone();
    let server = Server::start(content(60_000), move |request| match request.earlier {
        0 => Reply::Serve,
        1 => Reply::Break(30_000),
        2 => Reply::Status(403, String::new()),
        3 => Reply::Status(403, String::new()),
        _ => Reply::Version("second", served.clone()),
    });
    let (_folder, cache) = cache(100_000);
    assert!(cache.fetch(&server.store(), "a", None, None).is_err());
    assert!(read_cached(&cache.fetch(&server.store(), "a", None, None).unwrap()) == new_content);
}

/// Set for a process that fetches: the address of the server and the folder of the cache.
const FETCH: [&str; 2] = ["STRATUS_STORE_TEST_ADDRESS", "STRATUS_STORE_TEST_CACHE"];

/// Starts this program again for one test, which fetches in the new process.
fn another_process(test: &str, server: &Server, cache: &Cache) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    // The name of a test includes its module.
    let test = format!("cache::{test}");
    command.args(["--exact", &test]).env(FETCH[0], &server.address).env(FETCH[1], cache.folder());
    command.spawn().unwrap()
}

/// Fetches and returns true if [`another_process`] started this process.
fn fetched_in_child() -> bool {
    let [Ok(address), Ok(folder)] = FETCH.map(env::var) else { return false };
    let cache = Cache::new(Path::new(&folder), 1_000_000).unwrap();
    let store = Store::open_with_policy(&address, crate::web::brief()).unwrap();
    assert!(read_cached(&cache.fetch(&store, "a.tar", None, None).unwrap()) == content(50_000));
    true
}

#[test]
fn processes_share_a_download() {
    if fetched_in_child() {
        return;
    }
    let server = Server::start(content(50_000), |_| Reply::Trickle(2000));
    let (_folder, cache) = cache(1_000_000);
    let others: Vec<_> =
        (0..3).map(|_| another_process("processes_share_a_download", &server, &cache)).collect();
    assert!(read_cached(&cache.fetch(&server.store(), "a.tar", None, None).unwrap()) == content(50_000));
    for mut other in others {
        assert!(other.wait().unwrap().success());
    }
    assert_eq!(server.gets(), 1);
}

#[test]
fn resumes_the_download_of_a_killed_process() {
    if fetched_in_child() {
        return;
    }
    let server = Server::start(content(50_000), |request| match request.earlier {
        0..2 => Reply::Trickle(500),
        _ => Reply::Serve,
    });
    let (_folder, cache) = cache(1_000_000);
    let mut other = another_process("resumes_the_download_of_a_killed_process", &server, &cache);
    let began = Instant::now();
    while content_bytes(&cache) < 5000 {
        assert!(began.elapsed() < Duration::from_secs(20), "no download started");
        thread::sleep(Duration::from_millis(10));
    }
    other.kill().unwrap();
    other.wait().unwrap();
    let part = content_bytes(&cache);
    assert!(part < 50_000, "the download finished too early: {part}");
    assert!(read_cached(&cache.fetch(&server.store(), "a.tar", None, None).unwrap()) == content(50_000));
    assert_eq!(server.requests().last().unwrap().first, Some(usize::try_from(part).unwrap()));
}
