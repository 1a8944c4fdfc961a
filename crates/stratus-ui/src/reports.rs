//! The reports of opened runs, kept until the files of the run change.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use stratus_report::report::{Problem, RunReport};

use crate::index::{Entry, ItemId, check_files};
use crate::series::LiveSeries;
use std::path::{Path, PathBuf};

/// Maximum number of reports, each of at most about a megabyte.
const MAX_REPORTS: usize = 64;
/// Maximum number of runs whose curves are kept to be appended to.
const MAX_SERIES: usize = 64;
/// A report of a run that is training is read again after this multiple of the time that reading it took, so
/// that an open page takes a small part of one processor.
const MIN_AGE_FACTOR: u32 = 10;

/// The report of a run.
#[derive(Debug)]
pub struct CachedReport {
    /// The report; `None` if the run cannot be read.
    pub run: Option<RunReport>,
    /// Missing data.
    pub problems: Vec<Problem>,
    /// The revision of its files.
    pub content: u64,
    read_at: Instant,
    cost: Duration,
}

/// The reports and curves of opened runs.
#[derive(Debug, Default)]
pub struct Reports {
    reports: Mutex<Recent<Arc<CachedReport>>>,
    /// Reports with only what comparisons need, which are read in a tenth of the time.
    compared: Mutex<Recent<Arc<CachedReport>>>,
    series: Mutex<Recent<Arc<Mutex<LiveSeries>>>>,
}

/// Values of the runs that were used last.
#[derive(Debug)]
struct Recent<T> {
    values: HashMap<ItemId, (u64, T)>,
    uses: u64,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self { values: HashMap::new(), uses: 0 }
    }
}

impl<T: Clone> Recent<T> {
    fn get(&mut self, id: &ItemId) -> Option<T> {
        self.uses += 1;
        let (used, value) = self.values.get_mut(id)?;
        *used = self.uses;
        Some(value.clone())
    }

    /// Adds a value; that of the run that was not used for the longest time is dropped.
    fn insert(&mut self, id: &ItemId, value: T, limit: usize) {
        self.uses += 1;
        self.values.insert(id.clone(), (self.uses, value));
        if self.values.len() > limit {
            let oldest = self.values.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(oldest) = oldest.map(|(id, _)| id.clone()) {
                self.values.remove(&oldest);
            }
        }
    }
}

impl Reports {
    /// The report of a run: the kept one, if its files are the same or it is young, else it is read.
    ///
    /// # Errors
    /// The reason, if the run has a file that must not be opened.
    pub fn report(&self, entry: &Entry, roots: &[PathBuf]) -> Result<Arc<CachedReport>, String> {
        let read = |path: &Path, label| RunReport::read(path, label, None, None);
        kept_or_read(&self.reports, entry, roots, read)
    }

    /// The parts of a run that a comparison needs, as [`Reports::report`].
    ///
    /// # Errors
    /// As those of [`Reports::report`].
    pub fn compared(&self, entry: &Entry, roots: &[PathBuf]) -> Result<Arc<CachedReport>, String> {
        kept_or_read(&self.compared, entry, roots, RunReport::read_for_comparison)
    }

    /// The curves of a run over its iterations, to be refreshed and read by `use_it`.
    ///
    /// # Errors
    /// The reason, if the file of iterations cannot be read.
    pub fn with_series<T>(
        &self,
        entry: &Entry,
        roots: &[PathBuf],
        use_it: impl FnOnce(&LiveSeries) -> T,
    ) -> Result<T, String> {
        check_files(&entry.path, roots)?;
        let series = {
            let mut kept = self.series.lock().unwrap_or_else(PoisonError::into_inner);
            kept.get(&entry.row.id).unwrap_or_else(|| {
                let new = Arc::default();
                kept.insert(&entry.row.id, Arc::clone(&new), MAX_SERIES);
                new
            })
        };
        let mut series = series.lock().unwrap_or_else(PoisonError::into_inner);
        let path = entry.path.join(stratus_run::layout::ITERATIONS);
        if path.exists() {
            series.refresh(&path)?;
        }
        Ok(use_it(&series))
    }
}

/// A report of `reports`, if the files of the run are the same or it is young; else what `read` returns for
/// its path and label.
fn kept_or_read(
    reports: &Mutex<Recent<Arc<CachedReport>>>,
    entry: &Entry,
    roots: &[PathBuf],
    read: impl FnOnce(&Path, String) -> (Option<RunReport>, Vec<Problem>),
) -> Result<Arc<CachedReport>, String> {
    let id = &entry.row.id;
    let lock = || reports.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(kept) = lock().get(id) {
        let is_young = kept.read_at.elapsed() < MIN_AGE_FACTOR * kept.cost;
        let is_same_state = kept.run.as_ref().is_some_and(|run| run.record.status.name() == entry.row.state);
        if kept.content == entry.content || is_young && is_same_state {
            return Ok(kept);
        }
    }
    check_files(&entry.path, roots)?;
    let read_at = Instant::now();
    let (run, problems) = read(&entry.path, entry.row.label.clone());
    let cost = read_at.elapsed();
    let report = Arc::new(CachedReport { run, problems, content: entry.content, read_at, cost });
    lock().insert(id, Arc::clone(&report), MAX_REPORTS);
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_that_was_not_used_for_the_longest_time_is_dropped() {
        let id = |text: &str| ItemId::parse(&text.repeat(16)).unwrap();
        let mut recent = Recent::default();
        for (text, value) in [("a", 1), ("b", 2)] {
            recent.insert(&id(text), value, 2);
        }
        assert_eq!(recent.get(&id("a")), Some(1));
        recent.insert(&id("c"), 3, 2);
        assert_eq!(
            (recent.get(&id("a")), recent.get(&id("b")), recent.get(&id("c"))),
            (Some(1), None, Some(3))
        );
    }
}
