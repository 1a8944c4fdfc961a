//! The runs in the folders, in memory: a small record of each, renewed once a second.
//!
//! One thread scans: it finds runs, compares lengths and modification times of their files, and reads what
//! was appended. It polls, since network file systems do not report changes. Requests see the rows of the
//! last scan; every change has a revision, so that a page asks for what is new.

mod facts;
mod find;
mod record;
mod row;
mod scanned;

pub use facts::price_in;
pub use find::{ItemId, check_files, stamp};
pub use record::ReadCount;
pub use row::{Entry, RunFigures, RunRow};
pub use scanned::ScannedItem;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use serde::Serialize;
use tokio::sync::watch;

use crate::actions::Actions;
use record::Record;

/// Maximum number of removed runs that are remembered for pages.
const MAX_REMOVED: usize = 4096;

/// A key of the configuration, for the choice of columns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Key {
    /// The key, such as `train.batch_size`.
    pub name: String,
    /// True if its values differ between runs.
    pub differs: bool,
}

/// A folder, or one below it, that is not shown, or not completely.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FolderProblem {
    /// The folder.
    pub folder: String,
    /// The reason.
    pub reason: String,
}

/// The runs as the last scan saw them.
#[derive(Debug, Default)]
struct State {
    revision: u64,
    entries: HashMap<ItemId, Entry>,
    /// Runs that were removed, with the revision of that.
    removed: VecDeque<(u64, ItemId)>,
    /// The revision up to which removed runs are forgotten.
    forgotten: u64,
    keys: Arc<Vec<Key>>,
    roots: Arc<Vec<PathBuf>>,
    problems: Arc<Vec<FolderProblem>>,
    items: ScannedItems,
}

/// The sweeps and the launches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScannedItems {
    /// The sweeps, in the order of folders and names.
    pub sweeps: Arc<Vec<ScannedItem>>,
    /// The launches, in the order of folders and names.
    pub launches: Arc<Vec<ScannedItem>>,
}

/// The changes after a revision.
#[derive(Debug)]
pub struct Changes {
    /// The revision now.
    pub revision: u64,
    /// Changed and new runs, in the order of the table.
    pub changed: Vec<Entry>,
    /// Removed runs.
    pub removed: Vec<ItemId>,
    /// True if all is sent, since the revision is from another server or too old.
    pub is_all: bool,
}

/// The index of the runs in folders.
#[derive(Debug)]
pub struct Index {
    folders: Vec<PathBuf>,
    actions: Arc<Actions>,
    records: Mutex<HashMap<ItemId, Record>>,
    state: RwLock<State>,
    changes: watch::Sender<u64>,
    count: ReadCount,
}

impl Index {
    /// An index of folders, which are not read yet.
    #[must_use]
    pub fn new(folders: Vec<PathBuf>) -> Self {
        Self::with_actions(folders, Arc::default())
    }

    /// An index whose rows tell which action a run permits.
    pub(crate) fn with_actions(folders: Vec<PathBuf>, actions: Arc<Actions>) -> Self {
        Self {
            folders,
            actions,
            records: Mutex::default(),
            state: RwLock::default(),
            changes: watch::Sender::new(0),
            count: ReadCount::default(),
        }
    }

    /// Files opened and bytes read by scans.
    #[must_use]
    pub fn read_count(&self) -> &ReadCount {
        &self.count
    }

    /// Finds the runs, and reads what changed since the last scan.
    pub fn scan(&self) {
        let mut found = find::find(&self.folders);
        let mut records = self.records();
        let mut scan = Scan::default();
        for run in found.runs {
            let id = run.id.clone();
            if !records.contains_key(&id) {
                let folder = run.path.display().to_string();
                match Record::new(run) {
                    Ok(record) => _ = records.insert(id.clone(), record),
                    Err(reason) => {
                        found.problems.push((folder, reason));
                        continue;
                    }
                }
            }
            if let Some(record) = records.get_mut(&id) {
                if let Some(change) = record.refresh(&found.roots, &self.count, &self.actions) {
                    scan.changes.insert(id.clone(), change);
                }
                scan.order.push(id);
            }
        }
        let present: HashSet<&ItemId> = scan.order.iter().collect();
        records.retain(|id, _| present.contains(id));
        let problems = found.problems.into_iter().map(|(folder, reason)| FolderProblem { folder, reason });
        scan.problems = problems.collect();
        let sweeps = found.sweeps.into_iter().map(|sweep| ScannedItem::of_sweep(sweep, &found.roots));
        let launches = found.launches.into_iter().map(|launch| ScannedItem::of_launch(launch, &found.roots));
        scan.items =
            ScannedItems { sweeps: Arc::new(sweeps.collect()), launches: Arc::new(launches.collect()) };
        scan.roots = found.roots;
        self.publish(scan, &records);
    }

    /// Makes the result of a scan visible.
    fn publish(&self, scan: Scan, records: &HashMap<ItemId, Record>) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let present: HashSet<&ItemId> = scan.order.iter().collect();
        let removed: Vec<ItemId> = state.entries.keys().filter(|id| !present.contains(id)).cloned().collect();
        let is_same = scan.changes.is_empty()
            && removed.is_empty()
            && *state.problems == scan.problems
            && state.items == scan.items;
        state.roots = Arc::new(scan.roots);
        // The first scan always counts: requests wait for it.
        if is_same && state.revision > 0 {
            return;
        }
        state.revision += 1;
        let revision = state.revision;
        let mut has_new_settings = !removed.is_empty();
        for id in removed {
            state.entries.remove(&id);
            state.removed.push_back((revision, id));
        }
        while state.removed.len() > MAX_REMOVED {
            state.forgotten = state.removed.pop_front().map_or(state.forgotten, |(revision, _)| revision);
        }
        for (id, change) in scan.changes {
            let Some(record) = records.get(&id) else { continue };
            let settings = record.settings().cloned();
            let before = state.entries.get(&id);
            let content = before.filter(|_| !change.is_content).map_or(revision, |entry| entry.content);
            has_new_settings |= before.is_none_or(|entry| entry.settings != settings);
            let path = record.path().to_owned();
            let entry = Entry { row: change.row, settings, path, revision, content, position: 0 };
            state.entries.insert(id, entry);
        }
        for (position, id) in scan.order.iter().enumerate() {
            if let Some(entry) = state.entries.get_mut(id) {
                entry.position = position;
            }
        }
        if has_new_settings {
            state.keys = Arc::new(keys_of(&state.entries));
        }
        state.problems = Arc::new(scan.problems);
        state.items = scan.items;
        drop(state);
        self.changes.send_replace(revision);
    }

    /// Waits for the end of the first scan.
    pub async fn first_scan(&self) {
        // It fails only if the index is dropped.
        let _ = self.subscribe().wait_for(|revision| *revision > 0).await;
    }

    /// Notifies of every new revision.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The changes after a revision; everything if it is `None`, of a later time, or too old.
    pub fn changes_since(&self, revision: Option<u64>) -> Changes {
        let state = self.state();
        let since = revision.filter(|since| (state.forgotten..=state.revision).contains(since));
        let is_new = |entry: &&Entry| since.is_none_or(|since| entry.revision > since);
        let mut changed: Vec<Entry> = state.entries.values().filter(is_new).cloned().collect();
        changed.sort_unstable_by_key(|entry| entry.position);
        let removed = state
            .removed
            .iter()
            .filter(|(at, id)| since.is_some_and(|since| *at > since) && !state.entries.contains_key(id));
        let removed = removed.map(|(_, id)| id.clone()).collect();
        Changes { revision: state.revision, changed, removed, is_all: since.is_none() }
    }

    /// A run; `None` if it is not in the folders.
    pub fn entry(&self, id: &ItemId) -> Option<Entry> {
        self.state().entries.get(id).cloned()
    }

    /// The keys of all configurations.
    pub fn keys(&self) -> Arc<Vec<Key>> {
        Arc::clone(&self.state().keys)
    }

    /// The revision of the last change.
    pub fn revision(&self) -> u64 {
        self.state().revision
    }

    /// The sweeps and the launches.
    pub fn items(&self) -> ScannedItems {
        self.state().items.clone()
    }

    /// Folders that are not shown, or not completely.
    pub fn problems(&self) -> Arc<Vec<FolderProblem>> {
        Arc::clone(&self.state().problems)
    }

    /// The folders without links; only files in them are opened.
    pub fn roots(&self) -> Arc<Vec<PathBuf>> {
        Arc::clone(&self.state().roots)
    }

    /// The actions on runs.
    pub(crate) fn actions(&self) -> &Actions {
        &self.actions
    }

    /// The given folders.
    pub fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    fn state(&self) -> std::sync::RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn records(&self) -> MutexGuard<'_, HashMap<ItemId, Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The result of a scan.
#[derive(Debug, Default)]
struct Scan {
    order: Vec<ItemId>,
    changes: HashMap<ItemId, record::Change>,
    roots: Vec<PathBuf>,
    problems: Vec<FolderProblem>,
    items: ScannedItems,
}

/// The keys of the configurations; those with different values first, each group by name.
fn keys_of(entries: &HashMap<ItemId, Entry>) -> Vec<Key> {
    let mut seen: BTreeMap<&str, (&str, usize, bool)> = BTreeMap::new();
    let all = || entries.values().filter_map(|entry| entry.settings.as_deref());
    for settings in all() {
        for (key, value) in settings {
            let (first, count, differs) = seen.entry(key).or_insert((value, 0, false));
            *count += 1;
            *differs |= *first != value.as_str();
        }
    }
    let runs = all().count();
    let mut keys: Vec<Key> = seen
        .into_iter()
        .map(|(name, (_, count, differs))| Key { name: name.to_owned(), differs: differs || count < runs })
        .collect();
    keys.sort_by_key(|key| !key.differs);
    keys
}
