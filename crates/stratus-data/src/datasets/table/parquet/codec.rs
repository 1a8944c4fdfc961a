//! The compression of pages.

use std::io::Read;

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

/// Pages may be larger than [`MAX_RATIO`] times their compressed size up to this many bytes.
const MAX_SMALL_PAGE_BYTES: u64 = 16 << 20;
/// The maximum size of larger pages, in units of their compressed size.
const MAX_RATIO: u64 = 256;

/// Unpacks a page of `length` bytes into `out`.
pub(super) fn unpack(codec: u64, packed: &[u8], length: u64, out: &mut Vec<u8>) -> Result<(), String> {
    out.clear();
    if length > MAX_SMALL_PAGE_BYTES && length / MAX_RATIO > packed.len() as u64 {
        return Err(format!("a page of {} bytes would be unpacked to {length}", packed.len()));
    }
    let read = |reader: &mut dyn Read, out: &mut Vec<u8>| {
        reader.take(length + 1).read_to_end(out).map(drop).map_err(|error| error.to_string())
    };
    let unpacked = match codec {
        0 => {
            out.extend_from_slice(packed);
            Ok(())
        }
        1 => unpack_snappy(packed, length, out),
        2 => read(&mut MultiGzDecoder::new(packed), out),
        6 => StreamingDecoder::new(packed)
            .map_err(|error| error.to_string())
            .and_then(|mut reader| read(&mut reader, out)),
        other => {
            let name = ["LZO", "Brotli", "LZ4"].get(other.saturating_sub(3) as usize).copied();
            return Err(format!(
                "is compressed by {}; write it with snappy, gzip, zstd or no compression",
                name.unwrap_or("LZ4 or an unknown method")
            ));
        }
    };
    unpacked.map_err(|problem| format!("a page cannot be unpacked: {problem}"))?;
    if out.len() as u64 != length {
        return Err(format!("a page has {} bytes, expected {length}", out.len()));
    }
    Ok(())
}

/// Unpacks Snappy's raw format: <https://github.com/google/snappy/blob/main/format_description.txt>.
fn unpack_snappy(packed: &[u8], length: u64, out: &mut Vec<u8>) -> Result<(), String> {
    let damaged = || "damaged Snappy data".to_owned();
    let head = packed.iter().position(|byte| byte & 0x80 == 0).filter(|at| *at < 5).ok_or_else(damaged)?;
    let stored = packed[..=head].iter().rev().fold(0u64, |all, byte| all << 7 | u64::from(byte & 0x7f));
    if stored != length {
        return Err(damaged());
    }
    let mut rest = &packed[head + 1..];
    while let Some((&tag, tail)) = rest.split_first() {
        let bits = usize::from(tag >> 2);
        // The number of bytes that belong to the tag.
        let extra = match (tag & 3, bits) {
            (0, 0..=59) => 0,
            (0, _) => bits - 59,
            (1, _) => 1,
            (2, _) => 2,
            _ => 4,
        };
        let (number, after) = tail.split_at_checked(extra).ok_or_else(damaged)?;
        let number = number.iter().rev().fold(0usize, |all, &byte| all << 8 | usize::from(byte));
        rest = after;
        let (count, distance) = match tag & 3 {
            0 => (1 + if extra == 0 { bits } else { number }, None),
            1 => (4 + (bits & 7), Some((bits >> 3) << 8 | number)),
            _ => (1 + bits, Some(number)),
        };
        if (out.len() + count) as u64 > length {
            return Err(damaged());
        }
        match distance {
            None => {
                let (literal, after) = rest.split_at_checked(count).ok_or_else(damaged)?;
                out.extend_from_slice(literal);
                rest = after;
            }
            Some(distance) => {
                let from = out.len().checked_sub(distance).filter(|_| distance > 0).ok_or_else(damaged)?;
                if distance >= count {
                    out.extend_from_within(from..from + count);
                } else {
                    // The copy repeats its own beginning.
                    (from..from + count).for_each(|at| out.push(out[at]));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacks_snappy_copies_of_every_kind() {
        // "abcd", a copy of 6 bytes at distance 4 (one byte), of 5 at 10 (two bytes), of 3 at 1 (four bytes).
        let packed = [
            18,
            3 << 2,
            b'a',
            b'b',
            b'c',
            b'd',
            (6 - 4) << 2 | 1,
            4,
            (5 - 1) << 2 | 2,
            10,
            0,
            (3 - 1) << 2 | 3,
            1,
            0,
            0,
            0,
        ];
        let mut out = Vec::new();
        unpack(1, &packed, 18, &mut out).unwrap();
        assert_eq!(out, b"abcdabcdababcdaaaa");
        for end in 0..packed.len() {
            assert!(unpack(1, &packed[..end], 18, &mut out).is_err(), "{end}");
        }
        assert!(unpack(1, &[3, 1, 1, 1], 3, &mut out).is_err(), "a copy before the beginning");
    }

    #[test]
    fn refuses_pages_out_of_proportion_and_unknown_codecs() {
        let mut out = Vec::new();
        let problem = unpack(6, &[0; 10], 1 << 40, &mut out).unwrap_err();
        assert_eq!(problem, "a page of 10 bytes would be unpacked to 1099511627776");
        let problem = unpack(4, &[0; 10], 20, &mut out).unwrap_err();
        assert_eq!(problem, "is compressed by Brotli; write it with snappy, gzip, zstd or no compression");
        assert_eq!(unpack(0, &[0; 10], 20, &mut out).unwrap_err(), "a page has 10 bytes, expected 20");
    }
}
