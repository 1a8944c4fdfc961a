//! The mark of pictures that Stratus writes: a `Software` text with the checksum of the rest of the file. A
//! picture that was changed since has none: it is its owner's.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use stratus_base::checksum::sha256_hex;

/// Bytes before the mark: the signature, and the header's length, name, content and sum.
const HEAD: usize = 8 + 8 + 13 + 4;
/// The beginning of the mark's content (PNG, third edition, 11.3.3.2).
const TEXT: &[u8] = b"Software\0Stratus, SHA-256 of the rest ";
/// Bytes of a checksum in hexadecimal.
const SUM: usize = 64;
/// Bytes of the mark: length, name, content and sum.
const MARK: usize = 8 + TEXT.len() + SUM + 4;

/// A PNG file with the mark.
#[must_use]
pub fn marked(file: &[u8]) -> Vec<u8> {
    let Some((head, rest)) = file.split_at_checked(HEAD) else { return file.to_vec() };
    let content = [b"tEXt", TEXT, sha256_hex([head, rest]).as_bytes()].concat();
    let length = ((TEXT.len() + SUM) as u32).to_be_bytes();
    let mut sum = flate2::Crc::new();
    sum.update(&content);
    [head, &length, &content, &sum.sum().to_be_bytes(), rest].concat()
}

/// Whether a file is a picture with the mark, unchanged.
///
/// # Errors
///
/// Where it cannot be read.
pub fn is_marked(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let mut head = Vec::with_capacity(HEAD + MARK);
    file.by_ref().take((HEAD + MARK) as u64).read_to_end(&mut head)?;
    let sum =
        head.get(HEAD + 8..).and_then(|content| content.strip_prefix(TEXT)).and_then(|sum| sum.get(..SUM));
    let Some(sum) = sum.filter(|_| head.get(HEAD + 4..HEAD + 8) == Some(b"tEXt")) else { return Ok(false) };
    let mut rest = Vec::new();
    file.read_to_end(&mut rest)?;
    Ok(sha256_hex([&head[..HEAD], &rest]).as_bytes() == sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contact_sheet::{Picture, mask_to_png};
    use crate::decode::ImageDecoder;

    #[test]
    fn a_picture_is_known_until_it_is_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        let is = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            is_marked(&path).unwrap()
        };
        let mask = mask_to_png(&[0, 1, 2, 0, 1, 2], [2, 3], false).unwrap();
        let picture = Picture { pixels: vec![7; 18], height: 2, width: 3 }.to_png().unwrap();
        for file in [&mask, &picture] {
            assert!(is(file));
            let mut pixels = Vec::new();
            assert!(ImageDecoder::default().decode(file, &mut pixels).is_ok());
            // Any change, truncation or appended data.
            for at in 0..file.len() {
                let mut other = file.clone();
                other[at] ^= 1;
                // The mark's own length and sum are not what is summed.
                let own = (HEAD..HEAD + 4).contains(&at) || (HEAD + MARK - 4..HEAD + MARK).contains(&at);
                assert!(own || !is(&other), "{at}");
                assert!(!is(&file[..at]));
            }
            assert!(!is(&[&file[..], b"\0"].concat()));
        }
        assert!(!is(b""));
    }
}
