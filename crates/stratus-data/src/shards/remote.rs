//! Remote shards: fetched into a bounded cache before they are needed, and read from there.
//!
//! Two threads prefetch the shards that [`announce`](RemoteShards::announce) receives, in its order: first
//! those that batches in progress read, then the next ones, up to one window, as far as the cache has room. A
//! reader of a missing shard waits for it. Copies in use are locked against eviction. The samples do not
//! depend on the state of the cache.

use std::collections::HashSet;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use stratus_store::{Cache, CachedFile, Store, StoreError};

use super::index::Shard;
use crate::datasets::split::Split;
use crate::error::DataError;

/// The number of prefetching threads: two overlap latency and transfer.
const PREFETCH_THREADS: usize = 2;

/// The maximum number of locked copies, unless more are in use.
const MAX_LOCKED_COPIES: usize = 64;

/// The local copy of a shard. Readers share its file position, so one reads at a time.
#[derive(Debug)]
pub(super) struct LocalCopy(Mutex<CachedFile>);

impl LocalCopy {
    pub(super) fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let copy = lock(&self.0);
        let mut file = copy.file();
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(out)
    }
}

/// The shards of a split, in a store. Dropping it ends prefetching after the current shard.
#[derive(Debug)]
pub(super) struct RemoteShards {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: Store,
    cache: Cache,
    shards: Arc<[Shard]>,
    /// The maximum size of the copies of this split, in bytes.
    max_bytes: u64,
    /// The maximum number of shards that are read at a time.
    window: usize,
    state: Mutex<State>,
    /// Signalled when shards were announced, fetched or failed, and at the end.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    now: Vec<u32>,
    next: Vec<u32>,
    /// Locked copies, the most recently used last.
    locked: Vec<(u32, Arc<LocalCopy>)>,
    /// Shards of `next` that are fetched but not locked: the cache may evict them.
    ready: HashSet<u32>,
    /// Shards that are being fetched.
    in_flight: HashSet<u32>,
    /// Failures, for readers that wait for a shard that another thread fetches.
    failed: Vec<(u32, Arc<StoreError>)>,
    ended: bool,
}

impl RemoteShards {
    /// Opens the shards of a split with a cache of at most `cache_bytes`. While training, `window` of them
    /// are read at a time.
    ///
    /// The training split gets three quarters of the cache, the others the rest: neither blocks the other.
    ///
    /// # Errors
    ///
    /// [`DataError::InvalidOption`] if the cache cannot hold the shards that are read at a time.
    pub(super) fn new(
        store: Store,
        cache: Cache,
        cache_bytes: u64,
        shards: Arc<[Shard]>,
        split: Split,
        window: usize,
    ) -> Result<Self, DataError> {
        let (together, quarters) = if split == Split::Train { (window, 3) } else { (1, 1) };
        let mut sizes: Vec<u64> = shards.iter().map(|shard| shard.bytes).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let max_bytes = cache_bytes / 4 * quarters;
        let in_flight_bytes = PREFETCH_THREADS as u64 * sizes.first().copied().unwrap_or_default();
        let needed = sizes.iter().take(together).sum::<u64>() + in_flight_bytes;
        if needed > max_bytes {
            let together = together.min(sizes.len());
            let problem = format!(
                "is {} MiB, {quarters}/4 of it for {split}; {together} open shards and the prefetched ones \
                 need {} MiB: set at least {}, or lower data.shuffle_shards",
                cache_bytes >> 20,
                needed.div_ceil(1 << 20),
                (needed * 4).div_ceil(quarters << 20),
            );
            return Err(DataError::InvalidOption { key: "data.cache_mib", problem });
        }
        let shared = Arc::new(Shared {
            store,
            cache,
            shards,
            max_bytes,
            window: together,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        for number in 0..PREFETCH_THREADS {
            let shared = Arc::clone(&shared);
            let spawned =
                thread::Builder::new().name(format!("shards-{number}")).spawn(move || shared.fetch_ahead());
            // If a thread cannot be started, readers fetch shards themselves.
            drop(spawned);
        }
        Ok(Self { shared })
    }

    /// The store of the shards.
    pub(super) fn store(&self) -> &Store {
        &self.shared.store
    }

    /// Announces the shards that are read now, and the next ones.
    pub(super) fn announce(&self, now: &[u32], next: &[u32]) {
        let mut state = lock(&self.shared.state);
        let following = self.shared.window.max(PREFETCH_THREADS);
        let ahead = next.iter().filter(|shard| !now.contains(shard)).take(following);
        state.next.clear();
        state.next.extend(ahead);
        state.now.clear();
        state.now.extend(now);
        let State { now, next, locked, ready, .. } = &mut *state;
        locked.retain(|(shard, _)| now.contains(shard));
        ready.retain(|shard| next.contains(shard));
        self.shared.changed.notify_all();
    }

    /// The copy of a shard, if it is locked.
    pub(super) fn locked(&self, shard: usize) -> Option<Arc<LocalCopy>> {
        let state = lock(&self.shared.state);
        state.locked.iter().find(|(locked, _)| *locked as usize == shard).map(|(_, copy)| Arc::clone(copy))
    }

    /// The copy of a shard; fetches it, or waits while it is being fetched.
    ///
    /// # Errors
    ///
    /// [`DataError::Store`].
    pub(super) fn copy(&self, shard: usize) -> Result<Arc<LocalCopy>, DataError> {
        let number = shard as u32;
        let shared = &self.shared;
        let mut state = lock(&shared.state);
        let mut waited = false;
        loop {
            if let Some(copy) = state.use_locked(number) {
                return Ok(copy);
            }
            if waited && let Some((_, cause)) = state.failed.iter().find(|(failed, _)| *failed == number) {
                return Err(DataError::Store { cause: Arc::clone(cause) });
            }
            if state.in_flight.contains(&number) {
                waited = true;
                state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let (mut state, outcome) = shared.fetch(state, number);
            if let Ok(copy) = &outcome {
                state.lock_copy(number, copy);
            }
            return outcome.map_err(|cause| DataError::Store { cause });
        }
    }
}

impl Drop for RemoteShards {
    fn drop(&mut self) {
        lock(&self.shared.state).ended = true;
        self.shared.changed.notify_all();
    }
}

impl State {
    fn lock_copy(&mut self, shard: u32, copy: &Arc<LocalCopy>) {
        if self.locked.iter().all(|(locked, _)| *locked != shard) {
            self.locked.push((shard, Arc::clone(copy)));
        }
    }

    /// A locked copy, which becomes the most recently used one.
    fn use_locked(&mut self, shard: u32) -> Option<Arc<LocalCopy>> {
        let at = self.locked.iter().position(|(locked, _)| *locked == shard)?;
        let entry = self.locked.remove(at);
        let copy = Arc::clone(&entry.1);
        self.locked.push(entry);
        Some(copy)
    }
}

impl Shared {
    /// The loop of a prefetching thread.
    fn fetch_ahead(&self) {
        let mut state = lock(&self.state);
        while !state.ended {
            match self.next_to_fetch(&state) {
                Some(shard) => state = self.fetch(state, shard).0,
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// The shard to fetch next: the first missing one in use, else the first missing one of `next`, as long
    /// as all before it also fit.
    fn next_to_fetch(&self, state: &State) -> Option<u32> {
        let is_missing = |shard: &u32| {
            !state.in_flight.contains(shard)
                && !state.ready.contains(shard)
                && state.locked.iter().all(|(locked, _)| locked != shard)
                // Its reader retries and reports the error.
                && state.failed.iter().all(|(failed, _)| failed != shard)
        };
        if let Some(&shard) = state.now.iter().find(|shard| is_missing(shard)) {
            // If not all fit, those that a reader waits for have priority: the reader fetches them itself.
            let has_room = self.locked_bytes(state) + self.shard_bytes(shard) <= self.max_bytes;
            return has_room.then_some(shard);
        }
        let mut bytes: u64 = state.now.iter().map(|&shard| self.shard_bytes(shard)).sum();
        for &shard in &state.next {
            bytes += self.shard_bytes(shard);
            if bytes > self.max_bytes {
                return None;
            }
            if is_missing(&shard) {
                return Some(shard);
            }
        }
        None
    }

    fn shard_bytes(&self, shard: u32) -> u64 {
        self.shards.get(shard as usize).map_or(0, |shard| shard.bytes)
    }

    /// Fetches a shard that no other thread is fetching; locks its copy if it is in use.
    fn fetch<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        number: u32,
    ) -> (MutexGuard<'a, State>, Result<Arc<LocalCopy>, Arc<StoreError>>) {
        let shard = &self.shards[number as usize];
        state.in_flight.insert(number);
        state.failed.retain(|(failed, _)| *failed != number);
        self.unlock_until_fits(&mut state);
        drop(state);
        let fetched = self.cache.fetch(&self.store, &shard.name, Some(shard.bytes), Some(&shard.sha256));
        let mut state = lock(&self.state);
        state.in_flight.remove(&number);
        let outcome = match fetched {
            Ok(file) => {
                let copy = Arc::new(LocalCopy(Mutex::new(file)));
                if state.now.contains(&number) {
                    state.lock_copy(number, &copy);
                } else if state.next.contains(&number) {
                    state.ready.insert(number);
                }
                Ok(copy)
            }
            Err(cause) => {
                let cause = Arc::new(cause);
                state.failed.push((number, Arc::clone(&cause)));
                Err(cause)
            }
        };
        self.changed.notify_all();
        (state, outcome)
    }

    /// Bytes of the copies that are locked or being fetched.
    fn locked_bytes(&self, state: &State) -> u64 {
        let locked = state.locked.iter().map(|(shard, _)| shard);
        locked.chain(&state.in_flight).map(|&shard| self.shard_bytes(shard)).sum()
    }

    /// Unlocks copies until those being fetched have room: unused ones first, then the least recently used.
    fn unlock_until_fits(&self, state: &mut State) {
        let max_copies = MAX_LOCKED_COPIES.max(state.now.len());
        while !state.locked.is_empty()
            && (self.locked_bytes(state) > self.max_bytes || state.locked.len() >= max_copies)
        {
            let unused = state.locked.iter().position(|(shard, _)| !state.now.contains(shard));
            state.locked.remove(unused.unwrap_or(0));
        }
    }
}

/// Ignores poisoning: every change of the state is a single step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
