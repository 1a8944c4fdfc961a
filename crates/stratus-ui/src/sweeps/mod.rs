//! The sweeps in the folders: their files, read again when they change, and the documents of their pages.

mod document;

pub use document::{SweepDocument, SweepLine};

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use stratus_run::csv;
use stratus_run::layout::EPOCHS;
use stratus_sweep::{SweepResults, SweepSnapshot};

use crate::index::{Entry, Index, ItemId, ScannedItem, stamp};

/// The results of a sweep that is being trained are computed again after this multiple of the time that it
/// took, so that an open page takes a small part of one processor.
const MIN_AGE_FACTOR: u32 = 10;

/// A sweep that was read.
#[derive(Debug)]
pub struct ReadSweep {
    /// The files, or the reason why they cannot be read.
    pub snapshot: Arc<Result<SweepSnapshot, String>>,
    /// The runs of the rows that are in the folders, in the order of the rows.
    pub runs: Vec<Option<Entry>>,
    /// The results of the cells.
    pub results: Arc<SweepResults>,
    /// The version of the files and of the runs: if it differs, something has changed.
    pub version: String,
}

/// A sweep as it was last read.
#[derive(Debug)]
struct SweepCache {
    item: ScannedItem,
    snapshot: Arc<Result<SweepSnapshot, String>>,
    /// The ids of the runs of the rows.
    ids: Arc<Vec<ItemId>>,
    results: Arc<SweepResults>,
    /// The revision of the runs' files that the results were computed from.
    content: Option<u64>,
    computed_at: Instant,
    cost: Duration,
    /// The revision of the folders when the files were read.
    read_at: u64,
}

/// The sweeps that pages have asked for.
#[derive(Debug, Default)]
pub struct Sweeps {
    kept: Mutex<HashMap<ItemId, Arc<Mutex<SweepCache>>>>,
}

impl Sweeps {
    /// A sweep as its files are now. What did not change is not read again.
    pub fn read(&self, index: &Index, item: &ScannedItem) -> ReadSweep {
        let kept = self.keep(index, item);
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.item != *item {
            *kept = SweepCache::read(index, item);
        }
        let runs: Vec<Option<Entry>> = kept.ids.iter().map(|id| index.entry(id)).collect();
        let content = runs.iter().flatten().map(|entry| entry.content).max().unwrap_or(0);
        let is_young = kept.computed_at.elapsed() < MIN_AGE_FACTOR * kept.cost;
        if kept.content.is_none() || kept.content != Some(content) && !is_young {
            kept.compute(&index.roots());
            kept.content = Some(content);
        }
        let revision = runs.iter().flatten().map(|entry| entry.revision).max().unwrap_or(0);
        let known = runs.iter().flatten().count();
        let version = format!("{}-{revision}-{known}-{}", kept.read_at, kept.content.unwrap_or(0));
        ReadSweep { snapshot: Arc::clone(&kept.snapshot), runs, results: Arc::clone(&kept.results), version }
    }

    /// The cache of a sweep. Sweeps that are no longer in the folders are forgotten.
    fn keep(&self, index: &Index, item: &ScannedItem) -> Arc<Mutex<SweepCache>> {
        let mut all = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = all.get(item.id()) {
            return Arc::clone(kept);
        }
        let items = index.items();
        all.retain(|id, _| items.sweeps.iter().any(|item| item.id() == id));
        let kept = Arc::new(Mutex::new(SweepCache::read(index, item)));
        all.insert(item.id().clone(), Arc::clone(&kept));
        kept
    }
}

impl SweepCache {
    fn read(index: &Index, item: &ScannedItem) -> Self {
        let snapshot = match &item.refused {
            Some(reason) => Err(reason.clone()),
            None => SweepSnapshot::read(item.path()).map_err(|error| error.to_string()),
        };
        let id = |snapshot: &SweepSnapshot, row| ItemId::of(&snapshot.run_path(row));
        let ids = snapshot.iter().flat_map(|found| found.rows.iter().map(move |row| id(found, row)));
        let ids = Arc::new(ids.collect());
        Self {
            item: item.clone(),
            snapshot: Arc::new(snapshot),
            ids,
            results: Arc::default(),
            content: None,
            computed_at: Instant::now(),
            cost: Duration::ZERO,
            read_at: index.revision(),
        }
    }

    /// Computes the results from the epochs of the runs.
    fn compute(&mut self, roots: &[PathBuf]) {
        self.computed_at = Instant::now();
        self.results = match self.snapshot.as_ref() {
            Ok(snapshot) => Arc::new(snapshot.results(|run| {
                let path = run.join(EPOCHS);
                // Neither paths of the table nor links that lead out of the folders are opened.
                let folder = run.canonicalize();
                let is_inside = folder.is_ok_and(|run| roots.iter().any(|root| run.starts_with(root)));
                let may_be_read = is_inside && matches!(stamp(&path, roots), Ok(Some(_)));
                if may_be_read { csv::read(&path).unwrap_or_default() } else { Vec::new() }
            })),
            Err(_) => Arc::default(),
        };
        self.cost = self.computed_at.elapsed();
    }
}
