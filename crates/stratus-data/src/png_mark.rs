//! The mark of images that Stratus writes: a `Software` text with the checksum of the rest of the file. An
//! image that was edited has no valid mark: it belongs to the user.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use stratus_base::checksum::sha256_hex;

/// Bytes before the mark: the signature, and the header chunk's length, name, content and checksum.
const HEAD_BYTES: usize = 8 + 8 + 13 + 4;
/// The beginning of the mark's content (PNG, third edition, 11.3.3.2).
const MARK_TEXT: &[u8] = b"Software\0Stratus, SHA-256 of the rest ";
/// Length of a checksum in hexadecimal.
const CHECKSUM_DIGITS: usize = 64;
/// Bytes of the mark chunk: length, name, content and checksum.
const MARK_BYTES: usize = 8 + MARK_TEXT.len() + CHECKSUM_DIGITS + 4;

/// Adds the mark to a PNG file.
#[must_use]
pub fn add_mark(file: &[u8]) -> Vec<u8> {
    let Some((head, rest)) = file.split_at_checked(HEAD_BYTES) else { return file.to_vec() };
    let content = [b"tEXt", MARK_TEXT, sha256_hex([head, rest]).as_bytes()].concat();
    let length = ((MARK_TEXT.len() + CHECKSUM_DIGITS) as u32).to_be_bytes();
    let mut sum = flate2::Crc::new();
    sum.update(&content);
    [head, &length, &content, &sum.sum().to_be_bytes(), rest].concat()
}

/// Returns whether a file is an unchanged image with the mark.
///
/// # Errors
///
/// If the file cannot be read.
pub fn is_marked(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let mut head = Vec::with_capacity(HEAD_BYTES + MARK_BYTES);
    file.by_ref().take((HEAD_BYTES + MARK_BYTES) as u64).read_to_end(&mut head)?;
    let sum = head
        .get(HEAD_BYTES + 8..)
        .and_then(|content| content.strip_prefix(MARK_TEXT))
        .and_then(|sum| sum.get(..CHECKSUM_DIGITS));
    let Some(sum) = sum.filter(|_| head.get(HEAD_BYTES + 4..HEAD_BYTES + 8) == Some(b"tEXt")) else {
        return Ok(false);
    };
    let mut rest = Vec::new();
    file.read_to_end(&mut rest)?;
    Ok(sha256_hex([&head[..HEAD_BYTES], &rest]).as_bytes() == sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contact_sheet::{ClassPalette, RgbImage, mask_to_png};
    use crate::decode::ImageDecoder;

    #[test]
    fn recognises_marked_files_until_they_are_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        let marked = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            is_marked(&path).unwrap()
        };
        let mask = mask_to_png(&[0, 1, 2, 0, 1, 2], [2, 3], Some(&ClassPalette::default())).unwrap();
        let picture = RgbImage { pixels: vec![7; 18], height: 2, width: 3 }.to_png().unwrap();
        for file in [&mask, &picture] {
            assert!(marked(file));
            let mut pixels = Vec::new();
            assert!(ImageDecoder::default().decode(file, &mut pixels).is_ok());
            // Any change, truncation or appended data.
            for at in 0..file.len() {
                let mut other = file.clone();
                other[at] ^= 1;
                // The mark's own length and checksum are not covered.
                let is_uncovered = (HEAD_BYTES..HEAD_BYTES + 4).contains(&at)
                    || (HEAD_BYTES + MARK_BYTES - 4..HEAD_BYTES + MARK_BYTES).contains(&at);
                assert!(is_uncovered || !marked(&other), "{at}");
                assert!(!marked(&file[..at]));
            }
            assert!(!marked(&[&file[..], b"\0"].concat()));
        }
        assert!(!marked(b""));
    }
}
