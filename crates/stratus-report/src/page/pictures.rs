//! Files of pictures in a page: embedded, or as addresses of a server.

use std::path::Path;

use stratus_run::RunDir;
use stratus_run::validation::{PictureFile, ValidationImages};

/// Maximum size of all pictures that a page embeds, in bytes of their files.
pub const MAX_EMBEDDED_BYTES: usize = 5 << 20;

/// The reason why a page does not show a file of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotShown {
    /// The file does not exist.
    Absent,
    /// The file is damaged or cannot be read.
    Damaged,
    /// The page would embed more than [`MAX_EMBEDDED_BYTES`].
    OverLimit,
}

/// The source of the pictures of a page.
pub(super) enum PictureSource {
    /// The page embeds them, up to `left` bytes more.
    Embedded { left: usize },
    /// A server has them, at addresses that begin with this text and end with the name of a file.
    Server { base: String },
}

impl Default for PictureSource {
    fn default() -> Self {
        Self::Embedded { left: MAX_EMBEDDED_BYTES }
    }
}

impl PictureSource {
    /// The address of a file, for an attribute.
    pub(super) fn address(
        &mut self,
        run: &Path,
        images: &ValidationImages,
        file: PictureFile,
    ) -> Result<String, NotShown> {
        match self {
            Self::Server { base } => Ok(format!("{base}{}", name(file))),
            Self::Embedded { left } => {
                // Training may have removed it since the report was made.
                let unreadable = |error: stratus_run::Error| match error.is_not_found() {
                    true => NotShown::Absent,
                    false => NotShown::Damaged,
                };
                let folder = RunDir::open(run).map_err(unreadable)?.validation();
                let bytes = images.read_pictures(&folder, file).map_err(unreadable)?;
                *left = left.checked_sub(bytes.len()).ok_or(NotShown::OverLimit)?;
                Ok(format!("data:image/png;base64,{}", base64(&bytes)))
            }
        }
    }
}

/// The name of a file in addresses and ids of a page: `samples`, or an epoch.
pub(super) fn name(file: PictureFile) -> String {
    match file {
        PictureFile::Samples => "samples".to_owned(),
        PictureFile::Epoch(epoch) => epoch.to_string(),
    }
}

/// The file of a name in an address.
#[must_use]
pub fn pictures_of_name(text: &str) -> Option<PictureFile> {
    match text {
        "samples" => Some(PictureFile::Samples),
        epoch => epoch.parse().ok().map(PictureFile::Epoch),
    }
}

/// Encodes bytes in base64 (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let is_padding = digit > group.len();
            let value = (bits >> (18 - 6 * digit) & 63) as usize;
            text.push(if is_padding { '=' } else { char::from(DIGITS[value]) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_the_examples_of_the_standard() {
        // RFC 4648, section 10.
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }

    #[test]
    fn names_of_files_survive_an_address() {
        for file in [PictureFile::Samples, PictureFile::Epoch(0), PictureFile::Epoch(u32::MAX)] {
            assert_eq!(pictures_of_name(&name(file)), Some(file));
        }
        for other in ["", "..", "../5", "5.png", "-1", "99999999999", "samples.png"] {
            assert_eq!(pictures_of_name(other), None, "{other}");
        }
    }
}
