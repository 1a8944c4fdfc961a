//! Damaged files, for tests of readers of untrusted files.

use crate::sample::sample;
use proptest::prelude::*;
use proptest::sample::Index;

/// Replaces every byte of a file in turn by four values, or by one of the four in `make test`.
pub fn each_byte(whole: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    (0..whole.len()).flat_map(move |at| {
        let values = [0, 0xff, whole[at] ^ 0x80, whole[at].wrapping_add(1)];
        sample(values, values.len(), at).map(move |value| {
            let mut damaged = whole.to_vec();
            damaged[at] = value;
            damaged
        })
    })
}

/// A strategy that replaces several bytes of one of the files by random values.
pub fn replaced_bytes(files: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<Index>(), any::<u8>()), 1..12);
    (prop::sample::select(files), changes).prop_map(|(mut damaged, changes)| {
        for (at, value) in changes {
            let at = at.index(damaged.len());
            damaged[at] = value;
        }
        damaged
    })
}

/// A strategy that moves or duplicates a piece of one of the files.
pub fn with_moved_piece(files: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let positions = (any::<Index>(), any::<Index>(), 1..300usize, any::<bool>());
    (prop::sample::select(files), positions).prop_map(|(mut damaged, (from, to, length, remove))| {
        let start = from.index(damaged.len());
        let end = (start + length).min(damaged.len());
        let piece = if remove { damaged.drain(start..end).collect() } else { damaged[start..end].to_vec() };
        let at = to.index(damaged.len() + 1);
        damaged.splice(at..at, piece);
        damaged
    })
}
