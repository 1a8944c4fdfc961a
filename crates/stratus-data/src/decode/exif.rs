//! The EXIF orientation (EXIF 2.3, section 4.6.4 A; TIFF 6.0, section 2).

use crate::transform::frame::Orientation;

const ORIENTATION: u16 = 0x0112;
const SHORT: u16 = 3;

/// The orientation in an EXIF block; upright where there is none or the block is damaged: metadata should not
/// make a photograph unusable.
pub(super) fn orientation(exif: &[u8]) -> Orientation {
    Orientation::from_exif(value(exif).unwrap_or(1))
}

fn value(exif: &[u8]) -> Option<u16> {
    let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    let little = match exif.get(..4)? {
        [b'I', b'I', 42, 0] => true,
        [b'M', b'M', 0, 42] => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = exif.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let long = |at: usize| {
        let bytes = exif.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) } as usize)
    };
    let directory = long(4)?;
    let entries = usize::from(short(directory)?);
    (0..entries)
        .map_while(|entry| directory.checked_add(2 + entry * 12))
        .find(|&at| short(at) == Some(ORIENTATION) && at.checked_add(2).and_then(short) == Some(SHORT))
        .and_then(|at| short(at.checked_add(8)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_byte_orders_are_read() {
        let little = b"II*\0\x08\0\0\0\x02\0\x0f\x01\x02\0\x01\0\0\0abcd\x12\x01\x03\0\x01\0\0\0\x06\0\0\0";
        let big = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0";
        assert_eq!(orientation(little), Orientation::from_exif(6));
        assert_eq!(orientation(big), Orientation::from_exif(8));
        for end in 0..little.len() - 4 {
            assert_eq!(orientation(&little[..end]), Orientation::default());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..80), big in any::<bool>()) {
            let _ = orientation(&bytes);
            let magic = if big { b"MM\0*" } else { b"II*\0" };
            bytes.splice(..0, magic.iter().copied());
            let _ = orientation(&bytes);
        }
    }
}
