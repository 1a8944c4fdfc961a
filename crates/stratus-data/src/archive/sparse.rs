//! Sparse files: an archive stores the ranges between the holes consecutively, and a map of their offsets in
//! the file.

use std::io;

use serde::{Deserialize, Serialize};

use super::header::{ReadAt, parse_number};

/// The maximum length of a map's text, in bytes.
pub(super) const MAX_MAP_BYTES: u64 = 1 << 20;

/// The bytes that any sparse image file may have.
const MAX_BYTES_OF_ANY_FILE: u64 = 16 << 20;
/// The maximum number of bytes of a larger sparse image file for each stored byte.
const MAX_BYTES_PER_STORED_BYTE: u64 = 64;

/// A stored range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Piece {
    /// The offset in the file.
    pub at: u64,
    /// The offset in the archive.
    pub offset: u64,
    /// The length in bytes.
    pub bytes: u64,
}

/// The stored ranges of a file, ascending. The bytes between them are zero.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SparseMap(Box<[Piece]>);

impl SparseMap {
    /// Creates the map of a file of `bytes` bytes whose ranges `[offset, length]` are stored consecutively at
    /// `offset`, in `stored` bytes.
    ///
    /// # Errors
    ///
    /// If ranges overlap or exceed the file, or their length differs from `stored`.
    pub(super) fn new(ranges: &[[u64; 2]], bytes: u64, offset: u64, stored: u64) -> Result<Self, String> {
        let mut pieces = Vec::with_capacity(ranges.len());
        let (mut end, mut done) = (0, 0u64);
        for &[at, length] in ranges {
            let range_end = at.checked_add(length).filter(|&end| end <= bytes);
            let (Some(range_end), true) = (range_end, at >= end) else {
                return Err(format!("the map has {length} bytes at {at} in a file of {bytes} bytes"));
            };
            end = range_end;
            // Some programs mark the end of the file by an empty range.
            if length > 0 {
                pieces.push(Piece { at, offset: offset.saturating_add(done), bytes: length });
            }
            done = done.saturating_add(length);
        }
        if done != stored {
            return Err(format!("the map has {done} bytes, but the archive {stored}"));
        }
        Ok(Self(pieces.into()))
    }

    /// Returns whether the ranges ascend within a file of `bytes` bytes and an archive of `length` bytes.
    pub(crate) fn is_within(&self, bytes: u64, length: u64) -> bool {
        let mut end = 0;
        self.0.iter().all(|piece| {
            let begins = piece.at >= end;
            end = piece.at.saturating_add(piece.bytes);
            begins && end <= bytes && piece.offset.checked_add(piece.bytes).is_some_and(|end| end <= length)
        })
    }

    /// Reads at an offset of the file.
    pub(crate) fn read_at(&self, archive: ReadAt<'_>, at: u64, out: &mut [u8]) -> io::Result<()> {
        out.fill(0);
        let end = at.saturating_add(out.len() as u64);
        let first = self.0.partition_point(|piece| piece.at + piece.bytes <= at);
        for piece in self.0[first..].iter().take_while(|piece| piece.at < end) {
            let (from, to) = (piece.at.max(at), (piece.at + piece.bytes).min(end));
            let part = &mut out[(from - at) as usize..(to - at) as usize];
            archive(piece.offset + (from - piece.at), part)?;
        }
        Ok(())
    }

    /// Checks that a file of `bytes` bytes, which is read whole, is in proportion to what is stored of it: a
    /// hole of any length takes a few bytes.
    ///
    /// # Errors
    /// Both lengths.
    pub(crate) fn check_proportion(&self, bytes: u64) -> Result<(), String> {
        let stored: u64 = self.0.iter().map(|piece| piece.bytes).fold(0, u64::saturating_add);
        if bytes <= MAX_BYTES_OF_ANY_FILE.max(stored.saturating_mul(MAX_BYTES_PER_STORED_BYTE)) {
            return Ok(());
        }
        Err(format!("the sparse file has {bytes} bytes, but the archive contains only {stored} of them"))
    }

    /// Memory in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        size_of_val(&*self.0) as u64
    }
}

/// Appends the ranges of the table in an old GNU header: offset and length in 12 bytes each, up to the first
/// empty one.
pub(super) fn parse_sparse_table(table: &[u8], ranges: &mut Vec<[u64; 2]>) -> Result<(), String> {
    for entry in table.chunks_exact(24) {
        if entry[0] == 0 {
            break;
        }
        match (parse_number(&entry[..12]), parse_number(&entry[12..])) {
            (Some(at), Some(bytes)) => ranges.push([at, bytes]),
            _ => return Err("invalid map".to_owned()),
        }
    }
    Ok(())
}

/// Groups a list of numbers into ranges.
pub(super) fn to_ranges(numbers: &[u64]) -> Result<Vec<[u64; 2]>, String> {
    let (pairs, rest) = numbers.as_chunks();
    if rest.is_empty() { Ok(pairs.to_vec()) } else { Err("invalid map".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_zeros_in_holes_and_ranges_at_their_offsets() {
        let map = SparseMap::new(&[[2, 3], [8, 2], [12, 0]], 12, 100, 5).unwrap();
        let archive: Vec<u8> = (0..=255).collect();
        let mut read_at = |offset: u64, out: &mut [u8]| {
            out.copy_from_slice(&archive[offset as usize..offset as usize + out.len()]);
            Ok(())
        };
        let whole = [0, 0, 100, 101, 102, 0, 0, 0, 103, 104, 0, 0];
        for from in 0..12 {
            for to in from..=12 {
                let mut out = vec![9; to - from];
                map.read_at(&mut read_at, from as u64, &mut out).unwrap();
                assert_eq!(out, whole[from..to], "{from}..{to}");
            }
        }
        assert!(map.is_within(12, 105) && !map.is_within(12, 104) && !map.is_within(9, 105));
    }

    #[test]
    fn refuses_holes_out_of_proportion_to_what_is_stored() {
        let map = SparseMap::new(&[[0, 1 << 20]], 1 << 30, 0, 1 << 20).unwrap();
        assert_eq!(map.check_proportion(64 << 20), Ok(()));
        assert!(map.check_proportion((64 << 20) + 1).is_err());
        let empty = SparseMap::new(&[], 16 << 20, 0, 0).unwrap();
        assert_eq!(empty.check_proportion(16 << 20), Ok(()));
    }

    #[test]
    fn rejects_inconsistent_sparse_maps() {
        for (ranges, bytes, stored) in [
            (&[[2, 3], [4, 1]][..], 12, 4),
            (&[[8, 2], [2, 3]], 12, 5),
            (&[[0, 13]], 12, 13),
            (&[[u64::MAX, 2]], 12, 2),
            (&[[0, 4]], 12, 5),
            (&[[0, 6]], 12, 5),
        ] {
            assert!(SparseMap::new(ranges, bytes, 0, stored).is_err(), "{ranges:?}");
        }
    }
}
