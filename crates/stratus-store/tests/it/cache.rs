//! The cache of files of stores: one download each, whole or not there, within its bound.

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

fn cache(most: u64) -> (tempfile::TempDir, Cache) {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::new(&folder.path().join("cache"), most).unwrap();
    (folder, cache)
}

fn bytes_of(found: &CachedFile) -> Vec<u8> {
    let mut bytes = Vec::new();
    fs::File::open(found.path()).unwrap().read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len() as u64, found.bytes());
    bytes
}

/// Bytes of everything in the cache that is content.
fn sum(cache: &Cache) -> u64 {
    let files = fs::read_dir(cache.folder()).unwrap().map(|item| item.unwrap());
    let content = files.filter(|item| item.path().extension().is_none_or(|extension| extension != "about"));
    content.map(|item| item.metadata().unwrap().len()).sum()
}

#[test]
fn many_who_want_a_file_at_once_get_one_download() {
    let bytes = content(50_000);
    let server = Server::start(bytes.clone(), |_| Reply::Trickle(5000));
    let (_folder, cache) = cache(100_000);
    let (store, start) = (server.store(), Arc::new(Barrier::new(8)));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (cache, store, start) = (cache.clone(), store.clone(), Arc::clone(&start));
            thread::spawn(move || {
                start.wait();
                bytes_of(&cache.fetch(&store, "a.tar", Some(50_000), None).unwrap())
            })
        })
        .collect();
    for thread in threads {
        assert!(thread.join().unwrap() == bytes);
    }
    assert_eq!(server.gets(), 1);
    cache.fetch(&store, "a.tar", None, None).unwrap();
    assert_eq!(server.gets(), 1, "it is there");
    cache.fetch(&store, "b.tar", None, None).unwrap();
    assert_eq!(server.gets(), 2, "another file");
}

#[test]
fn what_was_not_used_for_the_longest_time_makes_room() {
    let server = Server::start(content(1000), |_| Reply::Serve);
    let (_folder, cache) = cache(3500);
    let store = server.store();
    let fetch = |path: &str| {
        let found = cache.fetch(&store, path, None, None).unwrap();
        // The times of use of two files must differ.
        thread::sleep(Duration::from_millis(20));
        found
    };
    let place = |path: &str| fetch(path).path().to_owned();
    let (a, b, c) = (place("a"), place("b"), place("c"));
    assert_eq!(place("a"), a);
    let held = fetch("c");
    let d = place("d");
    assert!(a.exists() && !b.exists() && c.exists() && d.exists());
    let (e, f) = (place("e"), place("f"));
    assert!(!a.exists() && !d.exists() && c.exists() && e.exists() && f.exists(), "c is held");
    assert_eq!(bytes_of(&held), content(1000));
    drop(held);
    let g = place("g");
    assert!(!c.exists() && g.exists());
    assert!(sum(&cache) <= 3500);
}

#[test]
fn files_that_do_not_fit_are_refused_with_a_reason() {
    let server = Server::start(content(1000), |_| Reply::Serve);
    let store = server.store();
    let (_folder, small) = cache(999);
    let error = small.fetch(&store, "a", None, None).unwrap_err();
    assert!(matches!(error, StoreError::CacheTooSmall { bytes: 1000, most: 999, .. }), "{error}");
    let (_folder, cache) = cache(2500);
    let held: Vec<_> = ["a", "b"].iter().map(|path| cache.fetch(&store, path, None, None).unwrap()).collect();
    let error = cache.fetch(&store, "c", None, None).unwrap_err();
    assert!(matches!(error, StoreError::CacheInUse { held: 2000, .. }), "{error}");
    // Somebody lets go while another waits.
    let waiting = {
        let (cache, store) = (cache.clone(), store.clone());
        thread::spawn(move || cache.fetch(&store, "c", None, None).map(|found| found.bytes()))
    };
    thread::sleep(Duration::from_millis(200));
    drop(held);
    assert_eq!(waiting.join().unwrap().unwrap(), 1000);
}

#[test]
fn two_files_that_fit_only_one_at_a_time_come_one_after_the_other() {
    let server = Server::start(content(1000), |_| Reply::Trickle(100));
    let (_folder, cache) = cache(1500);
    let start = Arc::new(Barrier::new(4));
    let threads: Vec<_> = ["a", "b", "c", "d"]
        .map(|path| {
            let (cache, store, start) = (cache.clone(), server.store(), Arc::clone(&start));
            thread::spawn(move || {
                start.wait();
                bytes_of(&cache.fetch(&store, path, None, None).unwrap()).len()
            })
        })
        .into();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), 1000);
    }
    assert!(sum(&cache) <= 1500);
}

#[test]
fn content_is_checked() {
    let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let server = Server::start(b"abc".to_vec(), |_| Reply::Serve);
    let (store, (_folder, cache)) = (server.store(), cache(100));
    assert_eq!(bytes_of(&cache.fetch(&store, "a", Some(3), Some(sha256)).unwrap()), b"abc");
    let error = cache.fetch(&store, "a", None, Some(&sha256.replace('b', "c"))).unwrap_err();
    assert!(error.to_string().contains("/a: its SHA-256 is ba78"), "{error}");
    let error = cache.fetch(&store, "a", Some(4), None).unwrap_err();
    assert!(error.to_string().contains("/a: it has 3 bytes, expected 4"), "{error}");
    let whole: Vec<_> = fs::read_dir(cache.folder()).unwrap().map(|item| item.unwrap().path()).collect();
    assert_eq!(whole.iter().filter(|path| path.extension().is_none() && !path.ends_with("lock")).count(), 1);
}

#[test]
fn an_interrupted_download_goes_on_and_a_damaged_copy_is_fetched_anew() {
    let bytes = content(100_000);
    // The first two connections break, and then nothing comes until patience is at its end.
    let server = Server::start(bytes.clone(), |asked| match (asked.method.as_str(), asked.earlier) {
        ("HEAD", _) => Reply::Serve,
        (_, 0..4) => Reply::Break(30_000),
        (_, 4..200) if asked.path.ends_with("?1") => Reply::Serve,
        _ => Reply::Status(403, "gone".to_owned()),
    });
    let (_folder, cache) = cache(200_000);
    assert!(cache.fetch(&server.store(), "a.tar", None, None).is_err());
    let begun = server.gets();
    let again = Store::open_with(&format!("{}?1", server.address), crate::web::brief()).unwrap();
    let found = cache.fetch(&again, "a.tar", None, None).unwrap();
    assert!(bytes_of(&found) == bytes);
    let resumed: Vec<_> =
        server.asked().into_iter().filter(|asked| asked.method == "GET").skip(begun).collect();
    assert_eq!(resumed.len(), 1);
    assert!(resumed[0].first.unwrap() >= 30_000, "{resumed:?}");

    let place = found.path().to_owned();
    drop(found);
    fs::OpenOptions::new().write(true).open(&place).unwrap().set_len(99_999).unwrap();
    assert!(bytes_of(&cache.fetch(&again, "a.tar", None, None).unwrap()) == bytes);
    fs::remove_file(place.with_extension("about")).unwrap();
    assert!(bytes_of(&cache.fetch(&again, "a.tar", None, None).unwrap()) == bytes);
    assert_eq!(server.gets(), begun + 3);
}

#[test]
fn a_part_of_another_version_is_not_continued() {
    let second = content(60_001)[1..].to_vec();
    let newer = second.clone();
    let server = Server::start(content(60_000), move |asked| match asked.earlier {
        0 => Reply::Serve,
        1 => Reply::Break(30_000),
        2 => Reply::Status(403, String::new()),
        3 => Reply::Status(403, String::new()),
        _ => Reply::Version("second", newer.clone()),
    });
    let (_folder, cache) = cache(100_000);
    assert!(cache.fetch(&server.store(), "a", None, None).is_err());
    assert!(bytes_of(&cache.fetch(&server.store(), "a", None, None).unwrap()) == second);
}

/// Set for a process that fetches: the server's address, and the cache's folder.
const FETCH: [&str; 2] = ["STRATUS_STORE_TEST_ADDRESS", "STRATUS_STORE_TEST_CACHE"];

/// This program again, for one test that sees that it is to fetch.
fn another_process(test: &str, server: &Server, cache: &Cache) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    // A test is named with its module: without it, none would run.
    let test = format!("cache::{test}");
    command.args(["--exact", &test]).env(FETCH[0], &server.address).env(FETCH[1], cache.folder());
    command.spawn().unwrap()
}

/// Whether this process is such a one; it has then done what it is for.
fn fetched_for_another() -> bool {
    let [Ok(address), Ok(folder)] = FETCH.map(env::var) else { return false };
    let cache = Cache::new(Path::new(&folder), 1_000_000).unwrap();
    let store = Store::open_with(&address, crate::web::brief()).unwrap();
    assert!(bytes_of(&cache.fetch(&store, "a.tar", None, None).unwrap()) == content(50_000));
    true
}

#[test]
fn processes_share_a_download() {
    if fetched_for_another() {
        return;
    }
    let server = Server::start(content(50_000), |_| Reply::Trickle(2000));
    let (_folder, cache) = cache(1_000_000);
    let others: Vec<_> =
        (0..3).map(|_| another_process("processes_share_a_download", &server, &cache)).collect();
    assert!(bytes_of(&cache.fetch(&server.store(), "a.tar", None, None).unwrap()) == content(50_000));
    for mut other in others {
        assert!(other.wait().unwrap().success());
    }
    assert_eq!(server.gets(), 1);
}

#[test]
fn a_killed_process_leaves_nothing_that_is_taken_for_whole() {
    if fetched_for_another() {
        return;
    }
    let server = Server::start(content(50_000), |asked| match asked.earlier {
        0..2 => Reply::Trickle(500),
        _ => Reply::Serve,
    });
    let (_folder, cache) = cache(1_000_000);
    let mut other =
        another_process("a_killed_process_leaves_nothing_that_is_taken_for_whole", &server, &cache);
    let began = Instant::now();
    while sum(&cache) < 5000 {
        assert!(began.elapsed() < Duration::from_secs(20), "nothing came");
        thread::sleep(Duration::from_millis(10));
    }
    other.kill().unwrap();
    other.wait().unwrap();
    let part = sum(&cache);
    assert!(part < 50_000, "it was too quick: {part}");
    assert!(bytes_of(&cache.fetch(&server.store(), "a.tar", None, None).unwrap()) == content(50_000));
    assert_eq!(server.asked().last().unwrap().first, Some(usize::try_from(part).unwrap()));
}
