//! The 512-byte header of an entry, and the records of the pax format.

use std::io;

/// The block size of tar archives.
pub(crate) const BLOCK: u64 = 512;
/// The maximum length of a path.
pub(super) const MAX_PATH_BYTES: usize = 4096;

/// A header. Its fields have the same offsets in the formats v7, ustar, pax and GNU.
pub(super) struct Header(pub [u8; BLOCK as usize]);

impl Header {
    pub(super) fn new() -> Self {
        Self([0; BLOCK as usize])
    }

    pub(super) fn is_zero(&self) -> bool {
        self.0.iter().all(|&byte| byte == 0)
    }

    /// Returns whether the checksum is valid. Some old programs sum signed bytes.
    pub(super) fn is_valid(&self) -> bool {
        let Some(stored) = parse_number(&self.0[148..156]) else { return false };
        let bytes = self.0.iter().enumerate();
        let bytes = bytes.map(|(at, &byte)| if (148..156).contains(&at) { b' ' } else { byte });
        let (mut unsigned, mut signed) = (0, 0);
        for byte in bytes {
            unsigned += i64::from(byte);
            signed += i64::from(byte.cast_signed());
        }
        i64::try_from(stored).is_ok_and(|stored| stored == unsigned || stored == signed)
    }

    pub(super) fn kind(&self) -> u8 {
        self.0[156]
    }

    /// The number of content bytes after the header.
    pub(super) fn size(&self) -> Option<u64> {
        parse_number(&self.0[124..136])
    }

    pub(super) fn link(&self) -> &[u8] {
        text(&self.0[157..257])
    }

    /// The path: the name after the prefix, if the format has one. The formats of GNU and star have other
    /// fields at its offset.
    pub(super) fn path(&self) -> Vec<u8> {
        let name = text(&self.0[..100]);
        let prefix = match &self.0[257..265] {
            b"ustar\0\x30\x30" if &self.0[508..512] == b"tar\0" => text(&self.0[345..476]),
            magic if magic.starts_with(b"ustar\0") => text(&self.0[345..500]),
            _ => b"",
        };
        if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
    }
}

/// The bytes before the first zero.
pub(super) fn text(field: &[u8]) -> &[u8] {
    field.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Parses a numeric field: octal digits, or base 256 if the highest bit is set. An empty field is 0.
pub(super) fn parse_number(field: &[u8]) -> Option<u64> {
    match field {
        [first, rest @ ..] if first & 0x80 != 0 => {
            // The bit after the marker is the sign.
            let begin = Some(u64::from(first & 0x7f)).filter(|_| first & 0x40 == 0);
            let append = |number: u64, &byte: &u8| Some(number.checked_mul(256)? + u64::from(byte));
            begin.and_then(|begin| rest.iter().try_fold(begin, append))
        }
        _ => {
            let digits = text(field).trim_ascii();
            let append = |number: u64, &digit: &u8| {
                let digit = (b'0'..=b'7').contains(&digit).then(|| u64::from(digit - b'0'))?;
                Some(number.checked_mul(8)? + digit)
            };
            digits.iter().try_fold(0, append)
        }
    }
}

/// Splits off the first pax record, `LENGTH KEY=VALUE\n`: key, value, and remaining records. Values may
/// contain any byte.
pub(super) fn split_record(records: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let digits = records.iter().position(|&byte| byte == b' ')?;
    let length: usize = std::str::from_utf8(&records[..digits]).ok()?.parse().ok()?;
    let (record, rest) = records.split_at_checked(length)?;
    let record = record.get(digits + 1..)?.strip_suffix(b"\n")?;
    let key = record.iter().position(|&byte| byte == b'=')?;
    Some((&record[..key], &record[key + 1..], rest))
}

/// Normalises a path: without `.`, doubled or leading slashes; empty for the destination folder itself.
///
/// # Errors
///
/// If the path contains `..`, which programs refuse to unpack, or is too long.
pub(super) fn normalised_path(path: &[u8]) -> Result<Vec<u8>, String> {
    let mut normalised = Vec::with_capacity(path.len());
    for part in path.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => continue,
            b".." => {
                return Err(format!(
                    "archive member `{}` is outside the destination folder; pack again without `..` in \
                     names",
                    display_name(path)
                ));
            }
            _ => {}
        }
        if !normalised.is_empty() {
            normalised.push(b'/');
        }
        normalised.extend_from_slice(part);
    }
    if normalised.len() > MAX_PATH_BYTES {
        return Err(format!("an archive member's name is longer than {MAX_PATH_BYTES} bytes"));
    }
    Ok(normalised)
}

/// Formats a name for messages: truncated, without control characters.
pub(super) fn display_name(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(&name[..name.len().min(MAX_PATH_BYTES)]);
    // Control characters would be interpreted by a terminal.
    name.chars()
        .map(|letter| if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter })
        .collect()
}

/// Reads at an offset of an archive, filling the buffer.
pub(crate) type ReadAt<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_numbers_in_both_bases() {
        assert_eq!(parse_number(b"00000000017\0"), Some(15));
        assert_eq!(parse_number(b"    17 \0    "), Some(15));
        assert_eq!(parse_number(b"777777777777"), Some((1 << 36) - 1));
        assert_eq!(parse_number(b"\0\0\0\0"), Some(0));
        assert_eq!(parse_number(b"\x80\0\0\0\0\0\0\x02\0\0\0\x01"), Some((1 << 33) + 1));
        assert_eq!(parse_number(b"\x80\0\0\x01\0\0\0\0\0\0\0\0"), None);
        assert_eq!(parse_number(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe"), None);
        assert_eq!(parse_number(b"0000009\0"), None);
        assert_eq!(parse_number(b"-0000001\0"), None);
    }

    #[test]
    fn reads_pax_records_by_their_lengths() {
        let records = b"12 path=a\nb\n8 path=\n";
        let (key, value, rest) = split_record(records).unwrap();
        assert_eq!((key, value), (&b"path"[..], &b"a\nb"[..]));
        assert_eq!(split_record(rest), Some((&b"path"[..], &b""[..], &b""[..])));
        for invalid in
            [&b"13 path=a\nb\n"[..], b"12 path=a.bc", b"x path=\n", b"1 =\n", b"6 path", b"99 a=b\n"]
        {
            assert_eq!(split_record(invalid), None, "{invalid:?}");
        }
    }

    #[test]
    fn normalises_member_paths() {
        for (path, normalised) in [
            ("./train//cat/./0.png", "train/cat/0.png"),
            ("/train/cat/", "train/cat"),
            ("./", ""),
            ("..a/b..", "..a/b.."),
            ("a\\b.png", "a\\b.png"),
        ] {
            assert_eq!(normalised_path(path.as_bytes()).unwrap(), normalised.as_bytes(), "{path}");
        }
        for path in ["..", "../a.png", "a/../b.png", "/.."] {
            assert!(normalised_path(path.as_bytes()).unwrap_err().contains(&format!("`{path}`")), "{path}");
        }
        assert!(normalised_path(&[b'a'; MAX_PATH_BYTES + 1]).is_err());
    }
}
