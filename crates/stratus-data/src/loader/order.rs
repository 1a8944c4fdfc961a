//! The order of samples in an epoch, and announcements of it to the data set.
//!
//! Data sets with groups such as shards (see [`Groups`]) are shuffled in two steps: the groups, then the
//! samples within each window of consecutive groups. The order is a function of (seed, epoch, groups,
//! window). The data set is notified of the groups that batches in progress read, and of the next ones.
//!
//! ```text
//!   groups, shuffled:  [ 4 7 ][ 0 2 ][ 6 1 ] …     samples are shuffled within each [window]
//! ```
//!
//! All groups of a window must be available before its first batch; those of the next window are fetched
//! meanwhile. To start a run quickly, the first epoch begins with small windows that double in size. If one
//! window holds all groups, all samples are shuffled together.

use std::collections::VecDeque;
use std::ops::Range;

use stratus_random::{Purpose, Stream};

use super::config::{LoaderConfig, Order};
use crate::dataset::{Dataset, Groups};

/// The order of the current epoch.
pub(super) struct EpochOrder {
    kind: Order,
    seed: u64,
    /// The maximum number of batches in progress, including the newest.
    slots: u64,
    /// The epoch after the last.
    end: u32,
    epoch: Option<u32>,
    /// The permutation of the samples; empty for sequential order.
    order: Vec<u32>,
    /// The order of the groups; empty without groups.
    groups: Vec<u32>,
    /// The ends of the windows; empty without groups.
    windows: Vec<ShuffleWindowEnd>,
    /// The windows of the batches in progress.
    filling: VecDeque<ActiveShuffleWindow>,
    /// The groups of these windows.
    now: Vec<u32>,
    /// The groups after them.
    next: Vec<u32>,
}

/// The end of a window in the epoch: the numbers of groups and samples before it.
#[derive(Clone, Copy, Debug)]
struct ShuffleWindowEnd {
    groups: usize,
    samples: usize,
}

/// A window that is read by batches in progress.
struct ActiveShuffleWindow {
    epoch: u32,
    window: usize,
    /// The number of its groups.
    groups: usize,
    /// The newest batch that reads it.
    newest: u64,
}

impl EpochOrder {
    pub(super) fn new(dataset: &dyn Dataset, config: &LoaderConfig) -> Self {
        let samples = if config.order == Order::Shuffled { dataset.len() } else { 0 };
        Self {
            kind: config.order,
            seed: config.seed,
            slots: config.slots as u64,
            end: config.epochs.unwrap_or(u32::MAX),
            epoch: None,
            order: Vec::with_capacity(samples),
            groups: Vec::new(),
            windows: Vec::new(),
            filling: VecDeque::new(),
            now: Vec::new(),
            next: Vec::new(),
        }
    }

    /// Appends the samples of batch `sequence`, which are at `positions` of the epoch, to `indices`.
    pub(super) fn append_indices(
        &mut self,
        dataset: &dyn Dataset,
        sequence: u64,
        epoch: u32,
        positions: Range<usize>,
        indices: &mut Vec<u32>,
    ) {
        let groups = dataset.groups();
        if self.epoch != Some(epoch) {
            self.begin(epoch, dataset.len(), groups);
        }
        if let Some(groups) = groups {
            self.announce(dataset, groups, sequence, epoch, &positions);
        }
        match self.kind {
            Order::Sequential => indices.extend(positions.map(|index| index as u32)),
            Order::Shuffled => indices.extend_from_slice(&self.order[positions]),
        }
    }

    /// Computes the order of an epoch.
    fn begin(&mut self, epoch: u32, len: usize, groups: Option<Groups<'_>>) {
        self.epoch = Some(epoch);
        self.order.clear();
        self.windows.clear();
        let Some(groups) = groups else {
            if self.kind == Order::Shuffled {
                self.order.extend(0..len as u32);
                Stream::new(self.seed, Purpose::Shuffle, u64::from(epoch), 0).shuffle(&mut self.order);
            }
            return;
        };
        group_order(&mut self.groups, groups, self.kind, self.seed, epoch);
        let samples = |group: u32| {
            let end = groups.starts.get(group as usize + 1).copied().unwrap_or(len as u32);
            groups.starts[group as usize]..end
        };
        let mut end = ShuffleWindowEnd { groups: 0, samples: 0 };
        while end.groups < self.groups.len() {
            let begin = end;
            end.groups =
                self.groups.len().min(begin.groups + window_width(groups, self.kind, epoch, begin.groups));
            let together = &self.groups[begin.groups..end.groups];
            end.samples += together.iter().map(|&group| samples(group).len()).sum::<usize>();
            if self.kind == Order::Shuffled {
                together.iter().for_each(|&group| self.order.extend(samples(group)));
                let number = FIRST_WINDOW_STREAM + self.windows.len() as u32;
                let mut stream = Stream::new(self.seed, Purpose::Shuffle, u64::from(epoch), number);
                stream.shuffle(&mut self.order[begin.samples..]);
            }
            self.windows.push(end);
        }
    }

    /// Notifies the data set of the groups that batches read, if they changed.
    fn announce(
        &mut self,
        dataset: &dyn Dataset,
        groups: Groups<'_>,
        sequence: u64,
        epoch: u32,
        positions: &Range<usize>,
    ) {
        let mut changed = false;
        let first = self.windows.partition_point(|window| window.samples <= positions.start);
        let last = self.windows.partition_point(|window| window.samples < positions.end);
        for window in first..=last {
            match self.filling.iter_mut().find(|known| (known.epoch, known.window) == (epoch, window)) {
                Some(known) => known.newest = sequence,
                None => {
                    let begin = window.checked_sub(1).map_or(0, |before| self.windows[before].groups);
                    let together = &self.groups[begin..self.windows[window].groups];
                    self.now.extend(together);
                    self.filling.push_back(ActiveShuffleWindow {
                        epoch,
                        window,
                        groups: together.len(),
                        newest: sequence,
                    });
                    changed = true;
                }
            }
        }
        // A buffer was free for this batch, so an older batch has been delivered.
        while self.filling.front().is_some_and(|window| window.newest + self.slots <= sequence) {
            self.filling.pop_front();
            changed = true;
        }
        if !changed {
            return;
        }
        let active: usize = self.filling.iter().map(|window| window.groups).sum();
        self.now.drain(..self.now.len() - active);
        let visited = self.windows.get(last).map_or(self.groups.len(), |window| window.groups);
        self.next.clear();
        self.next.extend(&self.groups[visited..]);
        if let Some(following) = epoch.checked_add(1).filter(|&following| following < self.end) {
            let mut order = Vec::new();
            group_order(&mut order, groups, self.kind, self.seed, following);
            self.next.extend(order);
        }
        dataset.announce_groups(&self.now, &self.next);
    }

    /// The memory of the order, in bytes.
    pub(super) fn memory_bytes(dataset: &dyn Dataset, kind: Order) -> u64 {
        let samples = if kind == Order::Shuffled { dataset.len() } else { 0 };
        let groups = dataset.groups().map_or(0, |groups| groups.starts.len());
        // Per group: its position in the order, in both announcements, and possibly a window.
        (4 * samples + (16 + size_of::<ShuffleWindowEnd>()) * groups) as u64
    }
}

/// The random stream of the first window; stream 0 shuffles samples without groups, stream 1 groups.
const FIRST_WINDOW_STREAM: u32 = 2;

/// The number of groups in the window after `before` groups. Sequential order reads one group at a time.
fn window_width(groups: Groups<'_>, kind: Order, epoch: u32, before: usize) -> usize {
    let max_width = groups.window.max(1);
    match kind {
        Order::Sequential => 1,
        Order::Shuffled if epoch == 0 && max_width < groups.starts.len() => max_width.min(before.max(1)),
        Order::Shuffled => max_width,
    }
}

/// The order of the groups in an epoch.
fn group_order(order: &mut Vec<u32>, groups: Groups<'_>, kind: Order, seed: u64, epoch: u32) {
    order.clear();
    order.extend(0..groups.starts.len() as u32);
    if kind == Order::Shuffled {
        Stream::new(seed, Purpose::Shuffle, u64::from(epoch), 1).shuffle(order);
    }
}
