//! The EXIF orientation (EXIF 2.3, section 4.6.4 A; TIFF 6.0, section 2).

use crate::geometry::Orientation;

const ORIENTATION: u16 = 0x0112;

/// The orientation in an EXIF block; upright if there is none or the block is damaged, because metadata
/// should not make a photograph unusable.
pub(super) fn orientation(exif: &[u8]) -> Orientation {
    Orientation::from_exif(value(exif).unwrap_or(1))
}

/// The value of the orientation tag. It should be a single SHORT, but cameras and programs also write
/// integers of other widths and counts, of which the first is used. If the tag occurs several times, the last
/// counts.
fn value(exif: &[u8]) -> Option<u16> {
    let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    let little = match exif.get(..4)? {
        [b'I', b'I', 42, 0] => true,
        [b'M', b'M', 0, 42] => false,
        _ => return None,
    };
    let number = |at: usize, width: usize| {
        let bytes = exif.get(at..at.checked_add(width)?)?;
        let add = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
        Some(if little { bytes.iter().rev().fold(0, add) } else { bytes.iter().fold(0, add) })
    };
    let directory = usize::try_from(number(4, 4)?).ok()?;
    let entries = usize::try_from(number(directory, 2)?).ok()?;
    (0..entries)
        .map_while(|entry| {
            let at = directory.checked_add(2 + entry * 12)?;
            // A truncated entry ends the directory.
            exif.get(at..at.checked_add(12)?)?;
            Some(at)
        })
        .filter(|&at| number(at, 2) == Some(u64::from(ORIENTATION)))
        .filter_map(|at| {
            let width = width_of(number(at + 2, 2)?)?;
            let bytes = number(at + 4, 4)?.checked_mul(width as u64)?;
            // Values of more than four bytes are stored at the offset in the entry.
            let offset = if bytes > 4 { usize::try_from(number(at + 8, 4)?).ok()? } else { at + 8 };
            // All values must be present, and at least one: else the entry is damaged.
            exif.get(offset..offset.checked_add(usize::try_from(bytes).ok()?)?)
                .filter(|all| !all.is_empty())?;
            u16::try_from(number(offset, width)?).ok()
        })
        .last()
}

/// The width in bytes of an integer type (TIFF 6.0, section 2; LONG8 as in BigTIFF).
fn width_of(kind: u64) -> Option<usize> {
    match kind {
        // BYTE, SBYTE, UNDEFINED.
        1 | 6 | 7 => Some(1),
        // SHORT, SSHORT.
        3 | 8 => Some(2),
        // LONG, SLONG.
        4 | 9 => Some(4),
        // LONG8, SLONG8.
        16 | 17 => Some(8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_both_byte_orders() {
        let little = b"II*\0\x08\0\0\0\x02\0\x0f\x01\x02\0\x01\0\0\0abcd\x12\x01\x03\0\x01\0\0\0\x06\0\0\0";
        let big = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0";
        assert_eq!(orientation(little), Orientation::from_exif(6));
        assert_eq!(orientation(big), Orientation::from_exif(8));
        for end in 0..little.len() - 4 {
            assert_eq!(orientation(&little[..end]), Orientation::default());
        }
    }

    /// An integer of any width, in both byte orders, in place or elsewhere.
    #[test]
    fn reads_integers_of_any_width() {
        for little in [true, false] {
            let number = |value: u64, width: usize| {
                let bytes = value.to_be_bytes()[8 - width..].to_vec();
                if little { bytes.into_iter().rev().collect() } else { bytes }
            };
            let file = |kind: u64, width: usize, count: u64| {
                let value = number(6, width);
                let many = value.iter().copied().cycle().take(width * count.clamp(1, 9) as usize).collect();
                let (inline, external): (Vec<u8>, Vec<u8>) =
                    if width as u64 * count.max(1) > 4 { (number(26, 4), many) } else { (many, Vec::new()) };
                let mut inline = inline;
                inline.resize(4, 0);
                let magic = if little { b"II*\0" } else { b"MM\0*" };
                let parts = [number(8, 4), number(1, 2), number(0x112, 2), number(kind, 2), number(count, 4)];
                [magic.to_vec(), parts.concat(), inline, number(0, 4), external].concat()
            };
            for (kind, width) in [(1, 1), (6, 1), (7, 1), (3, 2), (8, 2), (4, 4), (9, 4), (16, 8), (17, 8)] {
                for count in [0, 1, 2, 3, 9] {
                    let found = orientation(&file(kind, width, count));
                    let expected = if count == 0 { 1 } else { 6 };
                    assert_eq!(found, Orientation::from_exif(expected), "{kind} {count} {little}");
                }
            }
            // Text, fractions and floating point are no integers.
            for (kind, width) in [(2, 1), (5, 8), (10, 8), (11, 4), (12, 8), (99, 2)] {
                assert_eq!(orientation(&file(kind, width, 1)), Orientation::default(), "{kind}");
            }
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..80),
            big in any::<bool>(),
        ) {
            let _ = orientation(&bytes);
            let magic = if big { b"MM\0*" } else { b"II*\0" };
            bytes.splice(..0, magic.iter().copied());
            let _ = orientation(&bytes);
        }
    }
}
