//! Bringing an image folder, or some of its classes, from a store to this machine: only what is missing.
//!
//! The layout is that of the data set `folder`: `train/<class>/<image>`, `val/<class>/<image>`. A file that
//! is there with the length that the store tells is kept; a file on its way has another name until it is
//! whole. Nothing is removed.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use stratus_base::{did_you_mean, nearest};
use stratus_store::{Entry, Store};

use crate::datasets::{is_hidden, read_list};
use crate::error::DataError;

/// The folders that hold classes.
const SPLITS: [&str; 4] = ["train", "val", "validation", "test"];
/// Files under way at once: small ones wait for answers most of the time.
const AT_ONCE: usize = 4;

/// What is brought.
#[derive(Clone, Debug, Default)]
pub struct SyncOptions {
    /// The classes to bring; without them all.
    pub classes: Option<Vec<String>>,
    /// The most training images of a class, the first by name; without it all.
    pub images_per_class: Option<usize>,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    /// Files that were brought.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Files that were there.
    pub kept: usize,
}

/// The classes that a file names, one a line.
///
/// # Errors
///
/// [`DataError`]: the file cannot be read, or names no class.
pub fn class_list(path: &Path) -> Result<Vec<String>, DataError> {
    let text = read_list(path)?;
    let classes: Vec<String> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    if classes.is_empty() {
        let problem = "names no class; write one a line".to_owned();
        return Err(DataError::Damaged { path: path.to_owned(), problem });
    }
    Ok(classes)
}

/// Brings what is missing from `store` to the folder `target`. `progress` is told files and bytes brought so
/// far, and how many of each are missing in all.
///
/// # Errors
///
/// [`DataError`]: the store cannot be read; there is no such class, or nothing of the layout; a file cannot
/// be written. What was brought until then stays.
pub fn sync(
    store: &Store,
    target: &Path,
    options: &SyncOptions,
    progress: &mut dyn FnMut([u64; 2], [u64; 2]),
) -> Result<Synced, DataError> {
    let wanted = wanted(store, options)?;
    let _lock = lock(target)?;
    let is_missing =
        |entry: &Entry| !fs::metadata(target.join(&entry.path)).is_ok_and(|file| file.len() == entry.bytes);
    let (missing, there): (Vec<Entry>, Vec<Entry>) = wanted.into_iter().partition(is_missing);
    let bytes = missing.iter().map(|entry| entry.bytes).sum();
    let all = [missing.len() as u64, bytes];
    let (next, stop, failure) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(None));
    let (sender, brought) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(missing.len()) {
            let sender = sender.clone();
            scope.spawn(|| {
                let sender = sender;
                while !stop.load(Ordering::Relaxed) {
                    let Some(entry) = missing.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                    if let Err(error) = bring(store, target, entry) {
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
        while let Ok(bytes) = brought.recv() {
            done = [done[0] + 1, done[1] + bytes];
            progress(done, all);
        }
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(Synced { files: missing.len(), bytes, kept: there.len() }),
    }
}

/// The files of the wanted classes, in the order of their paths.
fn wanted(store: &Store, options: &SyncOptions) -> Result<Vec<Entry>, DataError> {
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
    files.retain(|file| parts(file).is_some());
    for class in options.classes.iter().flatten() {
        if !files
            .iter()
            .any(|file| parts(file).is_some_and(|[split, of, _]| split == SPLITS[0] && of == class))
        {
            return Err(no_such_class(store, class)?);
        }
    }
    if files.is_empty() {
        return Err(DataError::Empty { origin: format!("{}/train/<class>/<image>", store.address()) });
    }
    if let Some(most) = options.images_per_class {
        let mut of_class = (String::new(), 0);
        files.retain(|file| {
            let Some([split, class, _]) = parts(file) else { return false };
            if split != SPLITS[0] {
                return true;
            }
            if of_class.0 != class {
                of_class = (class.to_owned(), 0);
            }
            of_class.1 += 1;
            of_class.1 <= most
        });
    }
    Ok(files)
}

/// Split, class and name of a file that lies as images do, and is not hidden.
fn parts(file: &Entry) -> Option<[&str; 3]> {
    let mut parts = file.path.split('/');
    let found = [parts.next()?, parts.next()?, parts.next()?];
    (parts.next().is_none() && found.iter().all(|part| !part.is_empty() && !is_hidden(part))).then_some(found)
}

/// Holds the folder for this process.
fn lock(target: &Path) -> Result<File, DataError> {
    let path = target.join(".sync.lock");
    let failed = |cause| DataError::Unwritable { path: path.clone(), cause };
    fs::create_dir_all(target).map_err(failed)?;
    let file = File::create(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(failed(io::Error::other(
            "another process is bringing files to this folder; wait for it to end",
        ))),
        Err(TryLockError::Error(cause)) => Err(failed(cause)),
    }
}

fn no_such_class(store: &Store, class: &str) -> Result<DataError, DataError> {
    let listed = store.list(&format!("{}/", SPLITS[0]))?;
    let known: BTreeSet<&str> =
        listed.iter().filter_map(|file| parts(file).map(|[_, class, _]| class)).collect();
    let hint = did_you_mean(nearest(class, known.iter().copied()));
    Ok(DataError::NoSuchClass { origin: store.address().to_owned(), class: class.to_owned(), hint })
}

fn bring(store: &Store, target: &Path, entry: &Entry) -> Result<(), DataError> {
    let path = target.join(&entry.path);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |cause: io::Error| DataError::Unwritable { path, cause }
    };
    let folder = path.parent().unwrap_or(target);
    fs::create_dir_all(folder).map_err(failed(folder))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Hidden, so that nothing takes it for an image.
    let part = path.with_file_name(format!(".{name}.part"));
    let file = File::create(&part).map_err(failed(&part))?;
    let mut out = BufWriter::new(file);
    let outcome = store
        .download(&entry.path, &mut out, &mut |_| ())
        .map_err(DataError::from)
        .and_then(|_| out.into_inner().map_err(|error| failed(&part)(error.into_error())))
        .and_then(|_| fs::rename(&part, &path).map_err(failed(&path)));
    if outcome.is_err() {
        // Best effort: it is begun anew the next time.
        let _ = fs::remove_file(&part);
    }
    outcome
}
