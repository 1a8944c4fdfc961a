//! The order of samples in groups: windows of groups, every sample once, independent of workers and resuming.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use stratus_data::datasets::Groups;
use stratus_data::{
    BatchBuffer, DataError, Dataset, LastBatch, Loader, LoaderConfig, Normalisation, Order, Orientation,
    PixelOrder, Position, Sample, Scratch,
};

/// Groups of 3, 5, 3, 5, … samples that record announcements and reject reads that were not announced.
struct Grouped {
    firsts: Vec<u32>,
    len: usize,
    window: usize,
    /// The announcements: the groups being read, and the next ones.
    announced: Mutex<Vec<(Vec<u32>, Vec<u32>)>>,
}

impl Grouped {
    fn new(groups: usize, window: usize) -> Self {
        let mut firsts = Vec::new();
        let mut len = 0;
        for group in 0..groups {
            firsts.push(len);
            len += 3 + 2 * (group as u32 % 2);
        }
        Self { firsts, len: len as usize, window, announced: Mutex::new(Vec::new()) }
    }

    fn group_of(&self, sample: u32) -> u32 {
        self.firsts.partition_point(|&first| first <= sample) as u32 - 1
    }

    fn samples(&self, group: u32) -> Range<u32> {
        let end = self.firsts.get(group as usize + 1).copied().unwrap_or(self.len as u32);
        self.firsts[group as usize]..end
    }
}

impl Dataset for Grouped {
    fn name(&self) -> &str {
        "grouped"
    }
    fn len(&self) -> usize {
        self.len
    }
    fn classes(&self) -> usize {
        2
    }
    fn sample_shape(&self) -> Option<[usize; 3]> {
        Some([1, 1, 2])
    }
    fn label(&self, index: usize) -> Result<u32, DataError> {
        Ok(index as u32 % 2)
    }
    fn groups(&self) -> Option<Groups<'_>> {
        Some(Groups { starts: &self.firsts, window: self.window })
    }
    fn announce_groups(&self, now: &[u32], next: &[u32]) {
        self.announced.lock().unwrap().push((now.to_vec(), next.to_vec()));
    }
    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        let group = self.group_of(index as u32);
        let announced = self.announced.lock().unwrap();
        assert!(
            announced.last().unwrap().0.contains(&group),
            "group {group} was not announced: {announced:?}"
        );
        drop(announced);
        scratch.decoded = vec![index as u8, (index >> 8) as u8];
        Ok(Sample {
            pixels: &scratch.decoded,
            shape: [1, 1, 2],
            dct_scaled: None,
            order: PixelOrder::Planes,
            orientation: Orientation::default(),
            label: self.label(index)?,
            mask: None,
        })
    }
    fn normalisation(&self) -> Normalisation {
        Normalisation::unit(1)
    }
    fn resident_bytes(&self) -> u64 {
        0
    }
}

fn config(batch_size: usize) -> LoaderConfig {
    LoaderConfig { seed: 5, last: LastBatch::Keep, epochs: Some(3), ..LoaderConfig::new(batch_size) }
}

fn batches(set: &Arc<Grouped>, config: LoaderConfig) -> Vec<BatchBuffer> {
    let mut loader = Loader::new(Arc::<Grouped>::clone(set) as Arc<dyn Dataset>, config).unwrap();
    let mut batches = Vec::new();
    while let Some(buffer) = loader.next().unwrap() {
        batches.push(buffer.clone());
        loader.recycle(buffer);
    }
    batches
}

fn epochs(batches: &[BatchBuffer]) -> [Vec<u32>; 3] {
    let indices_of = |epoch| {
        batches.iter().filter(|batch| batch.epoch == epoch).flat_map(|batch| batch.indices.clone()).collect()
    };
    [indices_of(0), indices_of(1), indices_of(2)]
}

#[test]
fn visits_every_sample_once_window_by_window() {
    for (groups, window) in [(11, 3), (12, 4), (5, 100), (7, 1)] {
        let set = Arc::new(Grouped::new(groups, window));
        let epochs = epochs(&batches(&set, config(7)));
        for (epoch, order) in epochs.iter().enumerate() {
            assert_eq!(order.iter().collect::<HashSet<_>>().len(), set.len);
            // Each window contains all samples of its groups; the first epoch begins with small windows.
            let (mut start, mut seen) = (0, HashSet::new());
            while start < order.len() {
                let is_growing = epoch == 0 && window < groups;
                let window = if is_growing { window.min(seen.len().max(1)) } else { window };
                let mut groups_of_window = HashSet::new();
                let mut end = start;
                while end < order.len()
                    && (groups_of_window.len() < window
                        || groups_of_window.contains(&set.group_of(order[end])))
                {
                    groups_of_window.insert(set.group_of(order[end]));
                    end += 1;
                }
                let all: usize = groups_of_window.iter().map(|&group| set.samples(group).len()).sum();
                assert_eq!(end - start, all);
                assert!(groups_of_window.len() == window || end == order.len());
                assert!(groups_of_window.iter().all(|&group| seen.insert(group)));
                start = end;
            }
        }
        assert_ne!(epochs[0], epochs[1]);
        assert_ne!(epochs[1], epochs[2]);
    }
}

#[test]
fn shuffles_groups_and_samples_within_windows() {
    let set = Arc::new(Grouped::new(40, 8));
    let epochs = epochs(&batches(&set, config(16)));
    let changes =
        |order: &[u32]| order.windows(2).filter(|two| set.group_of(two[0]) != set.group_of(two[1])).count();
    // Neighbours in a window of eight groups rarely belong to the same group.
    assert!(changes(&epochs[1]) > set.len * 3 / 4);
    // The first windows of a run have one, one, two and four groups.
    assert!(changes(&epochs[0]) > set.len * 5 / 8 && changes(&epochs[0]) < changes(&epochs[1]));
    let firsts: HashSet<Vec<u32>> = epochs
        .iter()
        .map(|order| {
            let mut groups: Vec<u32> = order[..32].iter().map(|&sample| set.group_of(sample)).collect();
            groups.sort_unstable();
            groups.dedup();
            groups
        })
        .collect();
    assert_eq!(firsts.len(), 3);
}

#[test]
fn order_does_not_depend_on_workers_or_resuming() {
    let set = Arc::new(Grouped::new(11, 3));
    let whole = batches(&set, config(6));
    for workers in [2, 4] {
        let other = batches(&set, LoaderConfig { workers, slots: workers + 2, ..config(6) });
        assert_eq!(whole.len(), other.len());
        for (a, b) in whole.iter().zip(&other) {
            assert_eq!(
                (a.epoch, a.index, &a.indices, &*a.images),
                (b.epoch, b.index, &b.indices, &*b.images)
            );
        }
    }
    for (done, from) in whole.iter().enumerate() {
        let start = Position { epoch: from.epoch, batch: from.index };
        // A resumed loader reads nothing of finished windows.
        let resumed = Arc::new(Grouped::new(11, 3));
        let rest = batches(&resumed, LoaderConfig { start, ..config(6) });
        assert_eq!(rest.len(), whole.len() - done);
        assert!(
            rest.iter().zip(&whole[done..]).all(|(a, b)| a.indices == b.indices && *a.images == *b.images)
        );
        let announced = resumed.announced.lock().unwrap();
        let first: HashSet<u32> = announced[0].0.iter().copied().collect();
        let of_first: HashSet<u32> = from.indices.iter().map(|&sample| set.group_of(sample)).collect();
        assert!(of_first.is_subset(&first) && first.len() <= 6, "{first:?} for {of_first:?}");
    }
}

#[test]
fn announces_groups_in_reading_order() {
    let set = Arc::new(Grouped::new(10, 2));
    let epochs = epochs(&batches(&set, config(4)));
    let mut visited: Vec<Vec<u32>> = Vec::new();
    for order in &epochs {
        let mut groups: Vec<u32> = Vec::new();
        for &sample in order {
            if !groups.contains(&set.group_of(sample)) {
                groups.push(set.group_of(sample));
            }
        }
        visited.push(groups);
    }
    let announced = set.announced.lock().unwrap();
    // The first two windows of one group each, then those of this epoch and the next, in window order.
    let sorted = |groups: &[u32]| {
        let mut pairs: Vec<Vec<u32>> = groups.chunks(2).map(<[u32]>::to_vec).collect();
        pairs.iter_mut().for_each(|pair| pair.sort_unstable());
        pairs
    };
    let all: Vec<u32> = visited[0].iter().chain(&visited[1]).copied().collect();
    assert_eq!((&announced[0].0[..], announced[0].1[0]), (&all[..1], all[1]));
    assert_eq!(sorted(&announced[0].1[1..]), sorted(&all[2..]));
    // Three slots of four samples span at most three windows of six to ten samples.
    assert!(announced.iter().all(|(now, _)| now.len() <= 6), "{announced:?}");
    assert!(announced.len() >= 14);
}

#[test]
fn announces_sequential_order_group_by_group() {
    let set = Arc::new(Grouped::new(6, 3));
    let order = LoaderConfig { order: Order::Sequential, epochs: Some(1), ..config(5) };
    let batches = batches(&set, order);
    let indices: Vec<u32> = batches.iter().flat_map(|batch| batch.indices.clone()).collect();
    assert!(indices.into_iter().eq(0..set.len as u32));
    let announced = set.announced.lock().unwrap();
    assert_eq!(announced[0].0[0], 0);
    // There is no next epoch.
    assert_eq!(announced.iter().map(|(_, next)| next.len()).min(), Some(0));
    let newest: Vec<u32> = announced.iter().map(|(now, _)| *now.last().unwrap()).collect();
    assert!(newest.is_sorted() && newest.last() == Some(&5));
}
