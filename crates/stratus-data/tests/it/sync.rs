//! Image folders downloaded from a store: only missing files of the selected classes.

use std::fs;
use std::path::Path;

use stratus_data::store::Store;
use stratus_data::sync::{SyncOptions, SyncReport, class_list, sync};

fn source(root: &Path) {
    for (path, content) in [
        ("train/ant/1.jpg", "ant one"),
        ("train/ant/2.jpg", "ant two, longer"),
        ("train/ant/3.jpg", "ant three"),
        ("train/bee/1.jpg", "bee"),
        ("train/cat/1.jpg", "cat"),
        ("val/ant/9.jpg", "ant nine"),
        ("val/cat/9.jpg", "cat nine"),
        ("train/ant/.hidden", "no image"),
        ("train/README", "no class"),
        ("train/ant/deep/er.jpg", "no image of a class"),
        ("other/ant/1.jpg", "no split"),
    ] {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

/// The files below a folder except the lock, sorted.
fn files(root: &Path) -> Vec<String> {
    let store = Store::open(root.to_str().unwrap()).unwrap();
    store.list("").unwrap().into_iter().map(|file| file.path).filter(|path| path != ".sync.lock").collect()
}

fn bring(from: &Path, to: &Path, options: &SyncOptions) -> Result<SyncReport, String> {
    let store = Store::open(from.to_str().unwrap()).unwrap();
    let mut last = ([0, 0], [0, 0]);
    let synced = sync(&store, to, options, &mut |done, all| last = (done, all));
    if let Ok(SyncReport { downloaded: files, bytes, .. }) = synced {
        assert_eq!(last, ([files as u64, bytes], if files == 0 { [0, 0] } else { [files as u64, bytes] }));
    }
    synced.map_err(|error| error.to_string().replace(&from.display().to_string(), "SRC"))
}

#[test]
fn downloads_only_missing_files() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    source(from.path());
    let to = to.path().join("images");
    let all = SyncOptions::default();
    assert_eq!(bring(from.path(), &to, &all), Ok(SyncReport { downloaded: 7, bytes: 53, kept: 0 }));
    let images = [
        "train/ant/1.jpg",
        "train/ant/2.jpg",
        "train/ant/3.jpg",
        "train/bee/1.jpg",
        "train/cat/1.jpg",
        "val/ant/9.jpg",
        "val/cat/9.jpg",
    ];
    assert_eq!(files(&to), images);
    assert_eq!(fs::read_to_string(to.join("train/ant/2.jpg")).unwrap(), "ant two, longer");
    assert_eq!(bring(from.path(), &to, &all), Ok(SyncReport { downloaded: 0, bytes: 0, kept: 7 }));
    // A truncated file, a missing file, and a foreign file.
    fs::write(to.join("train/ant/2.jpg"), "ant").unwrap();
    fs::remove_file(to.join("val/cat/9.jpg")).unwrap();
    fs::write(to.join("train/ant/own.jpg"), "own").unwrap();
    assert_eq!(bring(from.path(), &to, &all), Ok(SyncReport { downloaded: 2, bytes: 23, kept: 5 }));
    assert_eq!(fs::read_to_string(to.join("train/ant/2.jpg")).unwrap(), "ant two, longer");
    assert!(to.join("train/ant/own.jpg").exists());
}

#[test]
fn limits_classes_and_images() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    source(from.path());
    let list = from.path().join("classes.txt");
    fs::write(&list, "cat\n\n ant \n").unwrap();
    let classes = Some(class_list(&list).unwrap());
    let options = SyncOptions { classes, images_per_class: Some(2) };
    assert_eq!(bring(from.path(), to.path(), &options).unwrap().downloaded, 5);
    assert_eq!(
        files(to.path()),
        ["train/ant/1.jpg", "train/ant/2.jpg", "train/cat/1.jpg", "val/ant/9.jpg", "val/cat/9.jpg"]
    );
    fs::write(&list, "\n").unwrap();
    assert!(class_list(&list).unwrap_err().to_string().ends_with("no class names; expected one per line"));
}

#[test]
fn reports_unknown_classes_and_unreadable_stores() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let empty = bring(from.path(), to.path(), &SyncOptions::default()).unwrap_err();
    assert_eq!(
        empty,
        "SRC: no images at SRC/train/<class>/<image>, where those to copy are expected; the folder is empty"
    );
    // Classes without a folder of their split.
    fs::create_dir_all(from.path().join("dog")).unwrap();
    fs::write(from.path().join("dog/1.jpg"), "dog").unwrap();
    fs::write(from.path().join("notes\u{1b}.txt"), "").unwrap();
    for classes in [None, Some(vec!["dog".to_owned()])] {
        let flat = SyncOptions { classes, ..SyncOptions::default() };
        let error = bring(from.path(), to.path(), &flat).unwrap_err();
        assert!(error.ends_with("are expected; found dog/, notes\\u{1b}.txt"), "{error}");
    }
    let names = class_list(Path::new("cat,dog")).unwrap_err().to_string();
    assert_eq!(names, "cat,dog: no such file; data.classes names a text file with one class per line");
    source(from.path());
    for (class, message) in
        [("cta", "SRC: unknown class `cta`, did you mean `cat`?"), ("zebra", "SRC: unknown class `zebra`")]
    {
        let options =
            SyncOptions { classes: Some(vec!["ant".to_owned(), class.to_owned()]), ..SyncOptions::default() };
        assert_eq!(bring(from.path(), to.path(), &options).unwrap_err(), message);
    }
    let escaping = SyncOptions { classes: Some(vec!["../val/ant".to_owned()]), ..SyncOptions::default() };
    assert!(bring(from.path(), to.path(), &escaping).is_err());
    assert!(files(to.path()).is_empty());
    let lock = fs::File::create(to.path().join(".sync.lock")).unwrap();
    lock.lock().unwrap();
    let busy = bring(from.path(), to.path(), &SyncOptions::default()).unwrap_err();
    assert!(busy.contains("another process"), "{busy}");
}
