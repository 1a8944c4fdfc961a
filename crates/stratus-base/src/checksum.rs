//! SHA-256 in hexadecimal form, and CRC-32C.

use std::fmt::Write;
use std::io::{self, Read};

use sha2::{Digest, Sha256};

/// Encodes bytes as two lower-case hexadecimal digits each.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing into a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The SHA-256 of the concatenation of `parts`, as 64 lower-case hexadecimal digits.
#[must_use]
pub fn sha256_hex<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
    }
    hex(&hasher.finalize())
}

/// Reads `source` to its end. Returns the length in bytes, and the SHA-256 as 64 lower-case hexadecimal
/// digits.
///
/// # Errors
/// If `source` cannot be read.
pub fn sha256_of_reader(mut source: impl Read) -> io::Result<(u64, String)> {
    let (mut hasher, mut block, mut length) = (Sha256::new(), vec![0; 1 << 16], 0);
    loop {
        match source.read(&mut block) {
            Ok(0) => return Ok((length, hex(&hasher.finalize()))),
            Ok(count) => {
                hasher.update(&block[..count]);
                length += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The CRC-32C (Castagnoli's polynomial, RFC 3720, appendix B.4), computed byte by byte, for short records.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = crc32c_table();
    !bytes.iter().fold(!0, |crc, byte| TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8))
}

/// The CRC of each byte value, reflected.
const fn crc32c_table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, appendix B.4, and the check value of the catalogue of CRCs.
    #[test]
    fn crc32c_matches_published_values() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&rising), 0x46dd_794e);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
    }

    /// FIPS 180-2, appendix B.1.
    #[test]
    fn sha256_matches_the_published_value() {
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256_hex([b"abc".as_slice()]), expected);
        assert_eq!(sha256_hex([b"a".as_slice(), b"", b"bc"]), expected);
        assert_eq!(sha256_of_reader(b"abc".as_slice()).unwrap(), (3, expected.to_owned()));
    }
}
