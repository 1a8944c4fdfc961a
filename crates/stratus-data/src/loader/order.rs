//! The order in which epochs visit the samples, and what of it a data set is told.
//!
//! A data set whose samples lie in groups (see [`Groups`]) is not shuffled as a whole: its groups are, and then the samples of so many
//! consecutive groups among each other, a window. All is a function of (seed, epoch, groups, window). The data set hears which
//! groups the batches that are being filled come from, and which come next.

use std::collections::VecDeque;
use std::ops::Range;

use stratus_random::{Purpose, Stream};

use super::{LoaderConfig, Order};
use crate::datasets::{Dataset, Groups};

/// The order of the epoch that batches are given out of.
pub(super) struct Visits {
    kind: Order,
    seed: u64,
    /// Batches that may be being filled at a time, the newest included.
    slots: u64,
    /// The epoch before which visiting ends.
    end: u32,
    epoch: Option<u32>,
    /// The permutation of the samples; empty where they come as stored.
    order: Vec<u32>,
    /// The order of the groups, empty without groups, and behind which sample of the epoch each window ends.
    groups: Vec<u32>,
    ends: Vec<usize>,
    /// The windows that batches being filled come from: in which epoch, which, and the last batch that does.
    filling: VecDeque<(u32, usize, u64)>,
    /// The groups of these windows.
    now: Vec<u32>,
    /// Those behind them.
    next: Vec<u32>,
}

impl Visits {
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
            ends: Vec::new(),
            filling: VecDeque::new(),
            now: Vec::new(),
            next: Vec::new(),
        }
    }

    /// Appends the samples of batch `sequence`, which are those at `places` of the epoch, to `indices`.
    pub(super) fn visit(
        &mut self,
        dataset: &dyn Dataset,
        sequence: u64,
        epoch: u32,
        places: Range<usize>,
        indices: &mut Vec<u32>,
    ) {
        let groups = dataset.groups();
        if self.epoch != Some(epoch) {
            self.begin(epoch, dataset.len(), groups);
        }
        if let Some(groups) = groups {
            self.announce(dataset, groups, sequence, epoch, &places);
        }
        match self.kind {
            Order::Sequential => indices.extend(places.map(|index| index as u32)),
            Order::Shuffled => indices.extend_from_slice(&self.order[places]),
        }
    }

    /// Makes the order of an epoch.
    fn begin(&mut self, epoch: u32, len: usize, groups: Option<Groups<'_>>) {
        self.epoch = Some(epoch);
        self.order.clear();
        self.ends.clear();
        let Some(groups) = groups else {
            if self.kind == Order::Shuffled {
                self.order.extend(0..len as u32);
                Stream::new(self.seed, Purpose::Shuffle, u64::from(epoch), 0).shuffle(&mut self.order);
            }
            return;
        };
        permute(&mut self.groups, groups, self.kind, self.seed, epoch);
        let samples = |group: u32| {
            let end = groups.firsts.get(group as usize + 1).copied().unwrap_or(len as u32);
            groups.firsts[group as usize]..end
        };
        let mut end = 0;
        for (window, together) in self.groups.chunks(width(groups, self.kind)).enumerate() {
            end += together.iter().map(|&group| samples(group).len()).sum::<usize>();
            self.ends.push(end);
            if self.kind == Order::Shuffled {
                let first = self.order.len();
                together.iter().for_each(|&group| self.order.extend(samples(group)));
                let mut stream =
                    Stream::new(self.seed, Purpose::Shuffle, u64::from(epoch), FIRST_WINDOW + window as u32);
                stream.shuffle(&mut self.order[first..]);
            }
        }
    }

    /// Tells the data set which groups batches come from, where that has changed.
    fn announce(
        &mut self,
        dataset: &dyn Dataset,
        groups: Groups<'_>,
        sequence: u64,
        epoch: u32,
        places: &Range<usize>,
    ) {
        let mut changed = false;
        let first = self.ends.partition_point(|&end| end <= places.start);
        let last = self.ends.partition_point(|&end| end < places.end);
        for window in first..=last {
            match self.filling.iter_mut().find(|known| (known.0, known.1) == (epoch, window)) {
                Some((_, _, newest)) => *newest = sequence,
                None => {
                    self.filling.push_back((epoch, window, sequence));
                    changed = true;
                    let width = width(groups, self.kind);
                    self.now.extend(self.groups.iter().skip(window * width).take(width));
                }
            }
        }
        // That a buffer was free for this batch means that an older one has been delivered.
        while self.filling.front().is_some_and(|(_, _, newest)| newest + self.slots <= sequence) {
            self.filling.pop_front();
            changed = true;
        }
        if !changed {
            return;
        }
        let width = width(groups, self.kind);
        // Windows are as wide as each other, but for the last of an epoch.
        let width_of = |window: usize| width.min(self.groups.len() - window * width);
        let held: usize = self.filling.iter().map(|&(_, window, _)| width_of(window)).sum();
        self.now.drain(..self.now.len() - held);
        let newest = self.filling.back().map_or(0, |&(_, window, _)| window);
        self.next.clear();
        self.next.extend(self.groups.iter().skip((newest + 1) * width));
        if let Some(following) = epoch.checked_add(1).filter(|&following| following < self.end) {
            let mut order = Vec::new();
            permute(&mut order, groups, self.kind, self.seed, following);
            self.next.extend(order);
        }
        dataset.expect(&self.now, &self.next);
    }

    /// Bytes of memory.
    pub(super) fn bytes(dataset: &dyn Dataset, kind: Order) -> u64 {
        let samples = if kind == Order::Shuffled { dataset.len() } else { 0 };
        let groups = dataset.groups().map_or(0, |groups| groups.firsts.len());
        // Each group in this epoch's order, and in what is told of this and the next.
        (4 * samples + 16 * groups) as u64
    }
}

/// The number of the stream that shuffles an epoch's first window; 0 shuffles samples that lie in no groups, 1 groups.
const FIRST_WINDOW: u32 = 2;

/// Groups of a window; as they are stored they are visited one at a time.
fn width(groups: Groups<'_>, kind: Order) -> usize {
    if kind == Order::Shuffled { groups.window.max(1) } else { 1 }
}

/// The order of the groups in an epoch.
fn permute(order: &mut Vec<u32>, groups: Groups<'_>, kind: Order, seed: u64, epoch: u32) {
    order.clear();
    order.extend(0..groups.firsts.len() as u32);
    if kind == Order::Shuffled {
        Stream::new(seed, Purpose::Shuffle, u64::from(epoch), 1).shuffle(order);
    }
}
