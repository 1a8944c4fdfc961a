//! Local folders as stores.

use std::fs;
use std::io::{self, Cursor, Read};

use stratus_store::{Cache, Entry, Store, StoreError, is_address};

fn store() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path().to_str().unwrap()).unwrap();
    (folder, store)
}

fn put(store: &Store, path: &str, content: &[u8]) {
    store.upload(path, &mut Cursor::new(content), content.len() as u64).unwrap();
}

#[test]
fn opens_a_folder_by_path_and_by_address() {
    let (folder, store) = store();
    put(&store, "a.bin", b"content");
    let address = format!("file://{}", folder.path().display());
    assert!(is_address(&address));
    assert!(!is_address("data/train") && !is_address("c:\\data") && !is_address("gopher://host/x"));
    let again = Store::open(&address).unwrap();
    assert_eq!(again.local_root(), Some(folder.path()));
    assert_eq!(again.read("a.bin", 100).unwrap(), b"content");
    assert_eq!(format!("{again:?}"), format!("Store({:?})", folder.path()));

    let missing = Store::open("/nowhere/at/all").unwrap_err();
    assert!(missing.to_string().starts_with("/nowhere/at/all: cannot be read"), "{missing}");
    let file = folder.path().join("a.bin");
    assert!(Store::open(file.to_str().unwrap()).unwrap_err().to_string().contains("not a folder"));
}

#[test]
fn lists_files_with_a_prefix_sorted() {
    let (folder, store) = store();
    for path in ["b.tar", "train/1.tar", "train/sub/2.tar", "train-more/3.tar", ".hidden"] {
        put(&store, path, b"12345");
    }
    // The temporary file of a killed writer is not listed.
    fs::write(folder.path().join("train/.stratus-1-0.part"), "half").unwrap();
    let paths = |prefix: &str| {
        let list = store.list(prefix).unwrap();
        assert!(list.iter().all(|entry| entry.bytes == 5));
        list.into_iter().map(|entry| entry.path).collect::<Vec<_>>()
    };
    assert_eq!(paths(""), [".hidden", "b.tar", "train-more/3.tar", "train/1.tar", "train/sub/2.tar"]);
    assert_eq!(paths("train/"), ["train/1.tar", "train/sub/2.tar"]);
    assert_eq!(paths("train"), ["train-more/3.tar", "train/1.tar", "train/sub/2.tar"]);
    assert_eq!(paths("train/s"), ["train/sub/2.tar"]);
    assert_eq!(paths("nothing/here"), Vec::<String>::new());
    assert_eq!(store.list("b").unwrap(), [Entry { path: "b.tar".to_owned(), bytes: 5 }]);
}

#[test]
fn reads_whole_files_and_ranges() {
    let (_folder, store) = store();
    let content: Vec<u8> = (0..700_000_u32).map(|i| (i % 251) as u8).collect();
    put(&store, "shards/0.tar", &content);
    assert_eq!(store.size("shards/0.tar").unwrap(), Some(700_000));
    assert_eq!(store.size("shards/1.tar").unwrap(), None);
    assert_eq!(store.size("shards").unwrap(), None);
    assert_eq!(store.size("shards/0.tar/within").unwrap(), None);
    assert_eq!(store.read("shards/0.tar", 700_000).unwrap(), content);
    let error = store.read("shards/0.tar", 699_999).unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { bytes: 700_000, max: 699_999, .. }), "{error}");

    let mut part = vec![0; 1000];
    store.read_at("shards/0.tar", 699_000, &mut part).unwrap();
    assert_eq!(part, content[699_000..]);
    let error = store.read_at("shards/0.tar", 699_001, &mut part).unwrap_err();
    assert!(
        matches!(error, StoreError::TooShort { offset: 699_001, end: 700_001, bytes: 700_000, .. }),
        "{error}"
    );
    assert!(matches!(store.read_at("shards/0.tar", u64::MAX, &mut part), Err(StoreError::TooShort { .. })));
    assert!(matches!(store.read_at("none", 0, &mut part), Err(StoreError::NotFound { .. })));
    assert!(matches!(store.read("none", 1), Err(StoreError::NotFound { .. })));

    let (mut copy, mut progress) = (Vec::new(), Vec::new());
    assert_eq!(store.download("shards/0.tar", &mut copy, &mut |done| progress.push(done)).unwrap(), 700_000);
    assert_eq!(copy, content);
    assert!(progress.is_sorted() && progress.last() == Some(&700_000));
}

/// A source that fails after its content.
struct Failing<'a>(&'a [u8]);

impl Read for Failing<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() { Err(io::Error::other("the source broke")) } else { self.0.read(out) }
    }
}

#[test]
fn replaces_files_atomically() {
    let (folder, store) = store();
    put(&store, "a/b.bin", b"first");
    put(&store, "a/b.bin", b"second");
    let few = store.upload("a/b.bin", &mut Cursor::new(b"xyz"), 4).unwrap_err();
    assert!(few.to_string().contains("expected 4 bytes from the source, found 3"), "{few}");
    let many = store.upload("a/b.bin", &mut Cursor::new(b"xyz"), 2).unwrap_err();
    assert!(many.to_string().contains("expected 2 bytes from the source, found more"), "{many}");
    let broken = store.upload("a/b.bin", &mut Failing(b"xyz"), 4).unwrap_err();
    assert!(broken.to_string().contains("the source broke"), "{broken}");
    assert_eq!(store.read("a/b.bin", 100).unwrap(), b"second");
    let left: Vec<_> =
        fs::read_dir(folder.path().join("a")).unwrap().map(|item| item.unwrap().file_name()).collect();
    assert_eq!(left, ["b.bin"]);
}

#[test]
fn rejects_paths_outside_the_store() {
    let (folder, _) = store();
    fs::create_dir(folder.path().join("inside")).unwrap();
    fs::write(folder.path().join("secret"), "secret").unwrap();
    let store = Store::open(folder.path().join("inside").to_str().unwrap()).unwrap();
    let absolute = folder.path().join("secret");
    for path in ["../secret", "a/../../secret", absolute.to_str().unwrap(), "..\\secret", "a\0", "", "."] {
        let refused = |result: Result<(), StoreError>| {
            let error = result.unwrap_err();
            assert!(matches!(error, StoreError::Path { .. }), "{path:?}: {error}");
        };
        refused(store.size(path).map(drop));
        refused(store.read(path, 100).map(drop));
        refused(store.read_at(path, 0, &mut [0]));
        refused(store.download(path, &mut Vec::new(), &mut |_| {}).map(drop));
        refused(store.upload(path, &mut Cursor::new(b"x"), 1));
        if !path.is_empty() {
            refused(store.list(path).map(drop));
        }
        let cache = Cache::new(&folder.path().join("cache"), 1000).unwrap();
        refused(cache.fetch(&store, path, None, None).map(drop));
    }
}

#[test]
fn cache_checks_local_files_without_copying() {
    let (folder, store) = store();
    put(&store, "a.bin", b"abc");
    let cache = Cache::new(&folder.path().join("cache"), 1).unwrap();
    let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let found = cache.fetch(&store, "a.bin", Some(3), Some(&sha256.to_uppercase())).unwrap();
    assert_eq!((found.path(), found.bytes()), (folder.path().join("a.bin").as_path(), 3));
    let mut text = String::new();
    found.file().read_to_string(&mut text).unwrap();
    assert_eq!(text, "abc");
    assert!(
        cache
            .fetch(&store, "a.bin", Some(4), None)
            .unwrap_err()
            .to_string()
            .contains("expected 4 bytes, found 3")
    );
    let other = cache.fetch(&store, "a.bin", None, Some(&sha256.replace('b', "c"))).unwrap_err();
    assert!(other.to_string().contains("its SHA-256 is ba78"), "{other}");
    assert_eq!(fs::read_dir(cache.folder()).unwrap().count(), 0);
}
