//! SHA-256 in the hexadecimal form in which checksums are published.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// SHA-256 of the concatenation of `parts`: 64 lower-case hexadecimal digits.
#[must_use]
pub fn sha256_hex<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
    }
    hex(&hasher.finalize())
}

/// Two lower-case hexadecimal digits a byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut hex, byte| {
        // Writing into a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 180-2, appendix B.1.
    #[test]
    fn known_answer() {
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256_hex([b"abc".as_slice()]), expected);
        assert_eq!(sha256_hex([b"a".as_slice(), b"", b"bc"]), expected);
    }
}
