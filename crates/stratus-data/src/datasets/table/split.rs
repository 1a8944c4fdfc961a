//! Splits of tables by a seed.
//!
//! Labels are stratified as by K. Sechidis, G. Tsoumakas and I. Vlahavas: "On the stratification of
//! multi-label data", 2011: the samples of the label with the fewest samples left go one by one to the split
//! with the largest demand for this label. Here the samples of a group count as one with all their labels,
//! and ties depend on the names and the seed only.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use sha2::{Digest, Sha256};
use stratus_random::{Purpose, Stream};

use super::lists::Lists;
use super::rows::TableRows;
use crate::dataset::TargetKind;
use crate::datasets::split::{self, Split};

/// The splits and their shares in fifths, the preferred one first.
const SHARES: [(Split, i64); 3] = [(Split::Train, 3), (Split::Validation, 1), (Split::Test, 1)];

/// The samples of two splits among `samples`, ascending.
pub(super) fn seeded_splits(
    rows: &TableRows,
    samples: &[u32],
    seed: u64,
    wanted: [Split; 2],
) -> [Vec<u32>; 2] {
    if rows.kind == TargetKind::Numbers && rows.groups.is_none() {
        return wanted.map(|split| {
            let names = samples.iter().map(|&sample| Cow::Borrowed(rows.paths.get(sample as usize)));
            let part = split::seeded_split(seed, split, names);
            part.into_iter().map(|at| samples[at as usize]).collect()
        });
    }
    let units = units(rows, samples, seed);
    let labels = if rows.kind == TargetKind::Labels { rows.names.len() } else { 0 };
    let assigned = assign(&units, &label_ranks(rows, seed, labels));
    wanted.map(|split| {
        let is_wanted = |assigned: u8| SHARES[usize::from(assigned)].0 == split;
        let units = units.samples.iter().zip(&assigned).filter(|(_, assigned)| is_wanted(**assigned));
        let mut part: Vec<u32> = units.flat_map(|(samples, _)| samples).copied().collect();
        part.sort_unstable();
        part
    })
}

/// Samples that stay together.
struct Units {
    /// The samples of each unit.
    samples: Lists<u32>,
    /// The labels of these samples and their numbers, by label.
    labels: Lists<(u32, u32)>,
}

/// A random number that depends on a name and the seed.
fn rank_of(seed: u64, name: &str) -> [u32; 4] {
    let digest = Sha256::digest(name.as_bytes());
    let number = digest.iter().take(8).fold(0u64, |all, &byte| all << 8 | u64::from(byte));
    Stream::new(seed, Purpose::Split, number, 0).block(0)
}

/// The samples or groups in the order in which they are assigned: large groups first, then at random.
fn units(rows: &TableRows, samples: &[u32], seed: u64) -> Units {
    let mut units = Units { samples: Lists::default(), labels: Lists::default() };
    match &rows.groups {
        Some((groups, names)) => {
            let mut members: Vec<(u32, Vec<u32>)> =
                (0..).map(|group| (group, Vec::new())).take(names.len()).collect();
            samples.iter().for_each(|&sample| members[groups[sample as usize] as usize].1.push(sample));
            members.retain(|(_, members)| !members.is_empty());
            members.sort_by_cached_key(|(group, members)| {
                (Reverse(members.len()), rank_of(seed, &names[*group as usize]))
            });
            members.iter().for_each(|(_, members)| units.push(rows, members));
        }
        None => {
            let mut order = samples.to_vec();
            order.sort_by_cached_key(|&sample| rank_of(seed, rows.paths.get(sample as usize)));
            order.iter().for_each(|&sample| units.push(rows, &[sample]));
        }
    }
    units
}

impl Units {
    /// Adds a unit.
    fn push(&mut self, rows: &TableRows, samples: &[u32]) {
        for &sample in samples {
            self.samples.push(sample);
            if rows.kind != TargetKind::Labels {
                continue;
            }
            for (label, target) in (0..).zip(rows.targets.row(sample as usize)) {
                if *target > 0.5 {
                    self.labels.push((label, 1));
                }
            }
        }
        self.labels.sort_and_merge(|kept, next| {
            let is_same = kept.0 == next.0;
            kept.1 += if is_same { next.1 } else { 0 };
            is_same
        });
        self.samples.finish();
        self.labels.finish();
    }
}

/// The order of labels with equal numbers of samples.
fn label_ranks(rows: &TableRows, seed: u64, labels: usize) -> Vec<[u32; 4]> {
    rows.names.iter().take(labels).map(|name| rank_of(seed, name)).collect()
}

/// The index in [`SHARES`] of each unit's split.
fn assign(units: &Units, label_ranks: &[[u32; 4]]) -> Vec<u8> {
    const UNASSIGNED: u8 = u8::MAX;
    let labels = label_ranks.len();
    let mut assigned = vec![UNASSIGNED; units.samples.len()];
    // The remaining demand of each split, in fifths of a sample: for each label, and for all samples.
    let mut of_label = vec![[0i64; SHARES.len()]; labels];
    let mut of_all = [0i64; SHARES.len()];
    let mut left = vec![0u64; labels];
    let mut with_label: Vec<Vec<u32>> = vec![Vec::new(); labels];
    for (at, unit_labels) in units.labels.iter().enumerate() {
        for &(label, count) in unit_labels {
            left[label as usize] += u64::from(count);
            with_label[label as usize].push(at as u32);
        }
    }
    for (split, (_, share)) in SHARES.iter().enumerate() {
        of_all[split] = share * units.samples.elements() as i64;
        for (demand, left) in of_label.iter_mut().zip(&left) {
            demand[split] = share * *left as i64;
        }
    }
    let mut place = |at: usize, label: Option<usize>, left: &mut [u64], assigned: &mut [u8]| {
        let demand = |split: &usize| {
            let of_label = label.map_or(0, |label| of_label[label][*split]);
            // The first of equal splits is the last maximum of the reversed order.
            (of_label, of_all[*split])
        };
        let chosen = (0..SHARES.len()).rev().max_by_key(demand).unwrap_or_default();
        assigned[at] = chosen as u8;
        of_all[chosen] -= 5 * units.samples.get(at).len() as i64;
        for &(label, count) in units.labels.get(at) {
            of_label[label as usize][chosen] -= 5 * i64::from(count);
            left[label as usize] -= u64::from(count);
        }
    };
    let entry = |label: usize, left: &[u64]| Reverse((left[label], label_ranks[label], label));
    let mut queue: BinaryHeap<_> = (0..labels).map(|label| entry(label, &left)).collect();
    let mut is_changed = vec![false; labels];
    while let Some(Reverse((count, _, label))) = queue.pop() {
        // Outdated entries are dropped: a new one was added when the number changed.
        if count != left[label] || count == 0 {
            continue;
        }
        is_changed.fill(false);
        for &at in &with_label[label] {
            if assigned[at as usize] == UNASSIGNED {
                place(at as usize, Some(label), &mut left, &mut assigned);
                for (label, _) in units.labels.get(at as usize) {
                    is_changed[*label as usize] = true;
                }
            }
        }
        queue.extend((0..labels).filter(|&label| is_changed[label]).map(|label| entry(label, &left)));
    }
    for at in 0..assigned.len() {
        if assigned[at] == UNASSIGNED {
            place(at, None, &mut left, &mut assigned);
        }
    }
    assigned
}
