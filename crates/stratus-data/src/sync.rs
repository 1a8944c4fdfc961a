//! Downloading an image folder, or some of its classes, from a store: only missing files.
//!
//! The layout is that of the data set `folder`: `train/<class>/<image>`, `val/<class>/<image>`. Existing
//! files of the same length as in the store are kept. Files have a temporary name until they are complete.
//! Nothing is deleted.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use stratus_base::{did_you_mean, nearest, printable};
use stratus_store::{Entry, Store};

use crate::datasets::files::{is_hidden, read_class_list};
use crate::error::DataError;

/// The folders that hold classes.
const SPLITS: [&str; 4] = ["train", "val", "validation", "test"];
/// The number of parallel downloads: small files mostly wait for responses.
const PARALLEL_DOWNLOADS: usize = 4;
/// The maximum number of names in a folder that are read for a message.
const MAX_READ_NAMES: usize = 1000;
/// The maximum number of names that a message shows.
const MAX_SHOWN_NAMES: usize = 5;

/// Options for downloading.
#[derive(Clone, Debug, Default)]
pub struct SyncOptions {
    /// The classes to download; `None` downloads all.
    pub classes: Option<Vec<String>>,
    /// The maximum number of training images per class, the first by name; `None` downloads all.
    pub images_per_class: Option<usize>,
}

/// The result of downloading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// The number of downloaded files.
    pub downloaded: usize,
    /// The number of downloaded bytes.
    pub bytes: u64,
    /// The number of existing files that were kept.
    pub kept: usize,
}

/// Reads the class names of a list file, one per line.
///
/// # Errors
///
/// [`DataError`]: an unreadable or empty file.
pub fn class_list(path: &Path) -> Result<Vec<String>, DataError> {
    let text = read_class_list(path)?;
    let classes: Vec<String> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    if classes.is_empty() {
        let problem = "no class names; expected one per line".to_owned();
        return Err(DataError::Invalid { path: path.to_owned(), problem });
    }
    Ok(classes)
}

/// Downloads missing files from `store` to the folder `target`. `progress` receives the files and bytes
/// downloaded so far, and the totals to download.
///
/// # Errors
///
/// [`DataError`]: an unreadable store, an unknown class, another layout, or a file that cannot be written.
/// Files downloaded before the error stay.
pub fn sync(
    store: &Store,
    target: &Path,
    options: &SyncOptions,
    progress: &mut dyn FnMut([u64; 2], [u64; 2]),
) -> Result<SyncReport, DataError> {
    let files = select_files(store, options)?;
    let _lock = lock(target)?;
    let is_missing =
        |entry: &Entry| !fs::metadata(target.join(&entry.path)).is_ok_and(|file| file.len() == entry.bytes);
    let (missing, existing): (Vec<Entry>, Vec<Entry>) = files.into_iter().partition(is_missing);
    let bytes = missing.iter().map(|entry| entry.bytes).sum();
    let all = [missing.len() as u64, bytes];
    let (next, stop, failure) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(None));
    let (sender, downloaded) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..PARALLEL_DOWNLOADS.min(missing.len()) {
            let sender = sender.clone();
            scope.spawn(|| {
                let sender = sender;
                while !stop.load(Ordering::Relaxed) {
                    let Some(entry) = missing.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                    if let Err(error) = download(store, target, entry) {
                        stop.store(true, Ordering::Relaxed);
                        failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    } else if sender.send(entry.bytes).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut done = [0, 0];
        while let Ok(bytes) = downloaded.recv() {
            done = [done[0] + 1, done[1] + bytes];
            progress(done, all);
        }
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(SyncReport { downloaded: missing.len(), bytes, kept: existing.len() }),
    }
}

/// The files of the selected classes, sorted by path.
fn select_files(store: &Store, options: &SyncOptions) -> Result<Vec<Entry>, DataError> {
    let mut files = Vec::new();
    match &options.classes {
        Some(classes) => {
            for (split, class) in
                SPLITS.iter().flat_map(|split| classes.iter().map(move |class| (split, class)))
            {
                files.extend(store.list(&format!("{split}/{class}/"))?);
            }
        }
        None => {
            for split in SPLITS {
                files.extend(store.list(&format!("{split}/"))?);
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files.dedup_by(|a, b| a.path == b.path);
    files.retain(|file| split_class_name(file).is_some());
    for class in options.classes.iter().flatten() {
        if !files.iter().any(|file| {
            split_class_name(file).is_some_and(|[split, found, _]| split == SPLITS[0] && found == class)
        }) {
            return Err(unknown_class(store, class)?);
        }
    }
    if files.is_empty() {
        return Err(no_classes(store));
    }
    if let Some(max) = options.images_per_class {
        let mut class_count = (String::new(), 0);
        files.retain(|file| {
            let Some([split, class, _]) = split_class_name(file) else { return false };
            if split != SPLITS[0] {
                return true;
            }
            if class_count.0 != class {
                class_count = (class.to_owned(), 0);
            }
            class_count.1 += 1;
            class_count.1 <= max
        });
    }
    Ok(files)
}

/// Split, class and name of a visible file in the layout.
fn split_class_name(file: &Entry) -> Option<[&str; 3]> {
    let mut parts = file.path.split('/');
    let found = [parts.next()?, parts.next()?, parts.next()?];
    (parts.next().is_none() && found.iter().all(|part| !part.is_empty() && !is_hidden(part))).then_some(found)
}

/// Locks the folder for this process.
fn lock(target: &Path) -> Result<File, DataError> {
    let path = target.join(".sync.lock");
    let io_error = |cause| DataError::Unwritable { path: path.clone(), cause };
    fs::create_dir_all(target).map_err(io_error)?;
    let file = File::create(&path).map_err(io_error)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(io_error(io::Error::other(
            "another process is downloading to this folder; wait until it is finished",
        ))),
        Err(TryLockError::Error(cause)) => Err(io_error(cause)),
    }
}

fn unknown_class(store: &Store, class: &str) -> Result<DataError, DataError> {
    let listed = store.list(&format!("{}/", SPLITS[0]))?;
    let known: BTreeSet<&str> =
        listed.iter().filter_map(|file| split_class_name(file).map(|[_, class, _]| class)).collect();
    if known.is_empty() {
        return Ok(no_classes(store));
    }
    let hint = did_you_mean(nearest(class, known.iter().copied()));
    Ok(DataError::UnknownClass { origin: store.address().to_owned(), class: class.to_owned(), hint })
}

/// The error for a store without images in the layout. It names what a local folder contains; listing a
/// remote store may take minutes.
fn no_classes(store: &Store) -> DataError {
    let address = store.address().trim_end_matches('/');
    let found = store.local_root().map_or(String::new(), |root| {
        let names = fs::read_dir(root).into_iter().flatten().take(MAX_READ_NAMES).flatten().map(|entry| {
            let slash = if entry.path().is_dir() { "/" } else { "" };
            format!("{}{slash}", printable(&entry.file_name().to_string_lossy()))
        });
        let mut names: Vec<String> = names.filter(|name| !is_hidden(name)).collect();
        names.sort_unstable();
        match names.len() {
            0 => "; the folder is empty".to_owned(),
            count => {
                let more = if count > MAX_SHOWN_NAMES { ", …" } else { "" };
                names.truncate(MAX_SHOWN_NAMES);
                format!("; found {}{more}", names.join(", "))
            }
        }
    });
    let problem =
        format!("no images at {address}/train/<class>/<image>, where those to copy are expected{found}");
    DataError::Invalid { path: address.into(), problem }
}

fn download(store: &Store, target: &Path, entry: &Entry) -> Result<(), DataError> {
    let path = target.join(&entry.path);
    let io_error = |path: &Path| {
        let path = path.to_owned();
        move |cause: io::Error| DataError::Unwritable { path, cause }
    };
    let folder = path.parent().unwrap_or(target);
    fs::create_dir_all(folder).map_err(io_error(folder))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Hidden, so that it is not mistaken for an image.
    let part = path.with_file_name(format!(".{name}.part"));
    let file = File::create(&part).map_err(io_error(&part))?;
    let mut out = BufWriter::new(file);
    let outcome = store
        .download(&entry.path, &mut out, &mut |_| ())
        .map_err(DataError::from)
        .and_then(|_| out.into_inner().map_err(|error| io_error(&part)(error.into_error())))
        .and_then(|_| fs::rename(&part, &path).map_err(io_error(&path)));
    if outcome.is_err() {
        // Best effort: the next download starts over.
        let _ = fs::remove_file(&part);
    }
    outcome
}
