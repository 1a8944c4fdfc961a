//! Shards that lie elsewhere: fetched into a bounded cache before they are needed, and read there.
//!
//! Two threads fetch what [`expect`](Remote::expect) announced, in its order: first the shards that batches
//! are being made of, then as many behind them as a window holds, where the cache has room. Whoever reads a
//! sample whose shard is not there yet waits for it. Copies that batches are being made of are held, so that
//! the cache does not give them up; the samples are the same whatever the cache did.

use std::collections::HashSet;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use stratus_store::{Cache, CachedFile, Store, StoreError};

use super::index::Shard;
use crate::datasets::Split;
use crate::error::DataError;

/// Threads that fetch ahead: while one waits for an answer, the other has one.
const FETCHERS: usize = 2;

/// Copies that are held at most, but for those of shards that are read now.
const MOST_HELD: usize = 64;

/// A copy of a shard. The position is that of the file, so one reads at a time.
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

/// A split's shards in a store. Dropping it ends the fetching, after the shard that is on its way.
#[derive(Debug)]
pub(super) struct Remote {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: Store,
    cache: Cache,
    shards: Arc<[Shard]>,
    /// Bytes that this split's copies may take.
    most_bytes: u64,
    /// Shards that are read among each other at most.
    window: usize,
    state: Mutex<State>,
    /// Signalled when something is expected, was fetched or could not be, and at the end.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    now: Vec<u32>,
    next: Vec<u32>,
    /// Copies that the cache must keep, the last used at the end.
    held: Vec<(u32, Arc<LocalCopy>)>,
    /// Of `next`, those that were fetched; the cache may give them up.
    ready: HashSet<u32>,
    /// Being fetched.
    under_way: HashSet<u32>,
    /// What went wrong for those that wait for a shard that another fetched.
    failed: Vec<(u32, Arc<StoreError>)>,
    ended: bool,
}

impl Remote {
    /// The shards of a split, in a cache of at most `cache_bytes`. While training, `window` of them are read
    /// among each other.
    ///
    /// What is trained on gets three quarters of the cache, what is measured on the rest: neither can keep
    /// the other waiting.
    ///
    /// # Errors
    ///
    /// [`DataError::Option`] where that cannot hold the shards that are read at a time.
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
        let most_bytes = cache_bytes / 4 * quarters;
        let on_their_way = FETCHERS as u64 * sizes.first().copied().unwrap_or_default();
        let needed = sizes.iter().take(together).sum::<u64>() + on_their_way;
        if needed > most_bytes {
            let together = together.min(sizes.len());
            let problem = format!(
                "is {}, of which copies of {split} shards may take {quarters}/4; {together} that are read at \
                 a time and those on their way need {} MiB: set at least {}, or lower data.shuffle_shards",
                cache_bytes >> 20,
                needed.div_ceil(1 << 20),
                (needed * 4).div_ceil(quarters << 20),
            );
            return Err(DataError::Option { key: "data.cache_mib", problem });
        }
        let shared = Arc::new(Shared {
            store,
            cache,
            shards,
            most_bytes,
            window: together,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        for number in 0..FETCHERS {
            let shared = Arc::clone(&shared);
            let spawned =
                thread::Builder::new().name(format!("shards-{number}")).spawn(move || shared.fetch_ahead());
            // Without it whoever reads fetches.
            drop(spawned);
        }
        Ok(Self { shared })
    }

    /// Where the shards are.
    pub(super) fn store(&self) -> &Store {
        &self.shared.store
    }

    /// Says which shards are read now, and which next.
    pub(super) fn expect(&self, now: &[u32], next: &[u32]) {
        let mut state = lock(&self.shared.state);
        let following = self.shared.window.max(FETCHERS);
        let ahead = next.iter().filter(|shard| !now.contains(shard)).take(following);
        state.next.clear();
        state.next.extend(ahead);
        state.now.clear();
        state.now.extend(now);
        let State { now, next, held, ready, .. } = &mut *state;
        held.retain(|(shard, _)| now.contains(shard));
        ready.retain(|shard| next.contains(shard));
        self.shared.changed.notify_all();
    }

    /// A shard's copy, where it is there already.
    pub(super) fn held(&self, shard: usize) -> Option<Arc<LocalCopy>> {
        let state = lock(&self.shared.state);
        state.held.iter().find(|(held, _)| *held as usize == shard).map(|(_, copy)| Arc::clone(copy))
    }

    /// A shard's copy. Where it is on its way, it is waited for.
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
            if let Some(copy) = state.use_held(number) {
                return Ok(copy);
            }
            if waited && let Some((_, cause)) = state.failed.iter().find(|(failed, _)| *failed == number) {
                return Err(DataError::Store { cause: Arc::clone(cause) });
            }
            if state.under_way.contains(&number) {
                waited = true;
                state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let (mut state, outcome) = shared.fetch(state, number);
            if let Ok(copy) = &outcome {
                state.hold(number, copy);
            }
            return outcome.map_err(|cause| DataError::Store { cause });
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        lock(&self.shared.state).ended = true;
        self.shared.changed.notify_all();
    }
}

impl State {
    fn hold(&mut self, shard: u32, copy: &Arc<LocalCopy>) {
        if self.held.iter().all(|(held, _)| *held != shard) {
            self.held.push((shard, Arc::clone(copy)));
        }
    }

    /// A held copy, which is now the last used.
    fn use_held(&mut self, shard: u32) -> Option<Arc<LocalCopy>> {
        let at = self.held.iter().position(|(held, _)| *held == shard)?;
        let entry = self.held.remove(at);
        let copy = Arc::clone(&entry.1);
        self.held.push(entry);
        Some(copy)
    }
}

impl Shared {
    /// A fetching thread's life.
    fn fetch_ahead(&self) {
        let mut state = lock(&self.state);
        while !state.ended {
            match self.choose(&state) {
                Some(shard) => state = self.fetch(state, shard).0,
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// The shard to fetch next: the first that is read now, or of those behind them the first, where there is
    /// room for it too.
    fn choose(&self, state: &State) -> Option<u32> {
        let is_missing = |shard: &u32| {
            !state.under_way.contains(shard)
                && !state.ready.contains(shard)
                && state.held.iter().all(|(held, _)| held != shard)
                // Who reads it will hear why.
                && state.failed.iter().all(|(failed, _)| failed != shard)
        };
        if let Some(&shard) = state.now.iter().find(|shard| is_missing(shard)) {
            // Where not all of them have room, those that somebody waits for come first, and he fetches them.
            let has_room = self.taken(state) + self.bytes(shard) <= self.most_bytes;
            return has_room.then_some(shard);
        }
        let mut bytes: u64 = state.now.iter().map(|&shard| self.bytes(shard)).sum();
        for &shard in &state.next {
            bytes += self.bytes(shard);
            if bytes > self.most_bytes {
                return None;
            }
            if is_missing(&shard) {
                return Some(shard);
            }
        }
        None
    }

    fn bytes(&self, shard: u32) -> u64 {
        self.shards.get(shard as usize).map_or(0, |shard| shard.bytes)
    }

    /// Fetches a shard, which nobody else is fetching; holds its copy where it is read now.
    fn fetch<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        number: u32,
    ) -> (MutexGuard<'a, State>, Result<Arc<LocalCopy>, Arc<StoreError>>) {
        let shard = &self.shards[number as usize];
        state.under_way.insert(number);
        state.failed.retain(|(failed, _)| *failed != number);
        self.let_go(&mut state);
        drop(state);
        let fetched = self.cache.fetch(&self.store, &shard.name, Some(shard.bytes), Some(&shard.sha256));
        let mut state = lock(&self.state);
        state.under_way.remove(&number);
        let outcome = match fetched {
            Ok(file) => {
                let copy = Arc::new(LocalCopy(Mutex::new(file)));
                if state.now.contains(&number) {
                    state.hold(number, &copy);
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

    /// Bytes of the copies that are held or under way.
    fn taken(&self, state: &State) -> u64 {
        let held = state.held.iter().map(|(shard, _)| shard);
        held.chain(&state.under_way).map(|&shard| self.bytes(shard)).sum()
    }

    /// Lets go of copies until there is room for those under way: first of what nobody reads now, then of
    /// what was used longest ago.
    fn let_go(&self, state: &mut State) {
        let most = MOST_HELD.max(state.now.len());
        while !state.held.is_empty() && (self.taken(state) > self.most_bytes || state.held.len() >= most) {
            let unexpected = state.held.iter().position(|(shard, _)| !state.now.contains(shard));
            state.held.remove(unexpected.unwrap_or(0));
        }
    }
}

/// A poisoned lock is taken all the same: the state is changed in single steps, so it is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
