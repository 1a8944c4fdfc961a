//! Damaged files, for readers of untrusted files.

use proptest::prelude::*;
use proptest::sample::Index;

/// The file with one byte replaced: every byte in turn, by several values.
pub fn each_byte(whole: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    (0..whole.len()).flat_map(move |at| {
        [0, 0xff, whole[at] ^ 0x80, whole[at].wrapping_add(1)].into_iter().map(move |value| {
            let mut damaged = whole.to_vec();
            damaged[at] = value;
            damaged
        })
    })
}

/// One of the files, with several bytes replaced by random values.
pub fn several_bytes(files: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<Index>(), any::<u8>()), 1..12);
    (prop::sample::select(files), changes).prop_map(|(mut damaged, changes)| {
        for (at, value) in changes {
            let at = at.index(damaged.len());
            damaged[at] = value;
        }
        damaged
    })
}

/// One of the files, with a piece moved or duplicated.
pub fn moved_piece(files: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let places = (any::<Index>(), any::<Index>(), 1..300usize, any::<bool>());
    (prop::sample::select(files), places).prop_map(|(mut damaged, (from, to, length, remove))| {
        let start = from.index(damaged.len());
        let end = (start + length).min(damaged.len());
        let piece = if remove { damaged.drain(start..end).collect() } else { damaged[start..end].to_vec() };
        let at = to.index(damaged.len() + 1);
        damaged.splice(at..at, piece);
        damaged
    })
}
