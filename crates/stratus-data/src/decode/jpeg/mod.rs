//! JPEG decoding: by libjpeg-turbo if available, which decodes only the requested window; else by zune-jpeg,
//! a decoder in Rust, which can skip the rows below the window.
//!
//! The library is chosen once per process: the pixels of both differ by rounding, and a run should use one of
//! them throughout.

mod turbo;
mod zune;

use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

use super::{Decoded, exif};
use crate::transform::frame::{Orientation, Region};

/// The library that decodes JPEG.
#[derive(Clone, Debug)]
pub enum JpegLibrary {
    /// libjpeg-turbo.
    Turbo(stratus_jpeg::Library),
    /// The zune-jpeg crate.
    Zune,
}

/// The value of [`stratus_jpeg::LIBRARY_VARIABLE`] that disables libjpeg-turbo.
const NONE: &str = "none";

impl JpegLibrary {
    /// libjpeg-turbo if found (see [`stratus_jpeg::candidates`]), else zune-jpeg; searched once per process.
    /// [`stratus_jpeg::LIBRARY_VARIABLE`] set to `none` selects zune-jpeg.
    #[must_use]
    pub fn for_process() -> &'static Self {
        static LIBRARY: OnceLock<JpegLibrary> = OnceLock::new();
        LIBRARY.get_or_init(|| Self::find().unwrap_or(Self::Zune))
    }

    /// Searches for libjpeg-turbo.
    ///
    /// # Errors
    ///
    /// If libjpeg-turbo was not found: the reason for using zune-jpeg.
    pub fn find() -> Result<Self, String> {
        if std::env::var_os(stratus_jpeg::LIBRARY_VARIABLE).is_some_and(|value| value == NONE) {
            return Err(format!("{} is `{NONE}`", stratus_jpeg::LIBRARY_VARIABLE));
        }
        stratus_jpeg::find().map(Self::Turbo).map_err(|error| error.to_string())
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Turbo(_) => "libjpeg-turbo",
            Self::Zune => "zune-jpeg",
        }
    }

    /// The version.
    #[must_use]
    pub fn version(&self) -> &str {
        match self {
            Self::Turbo(library) => library.version().unwrap_or("of unknown version"),
            Self::Zune => "0.5",
        }
    }

    /// The file of a shared library.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Turbo(library) => Some(library.path()),
            Self::Zune => None,
        }
    }
}

/// Name and version, as recorded by runs.
impl fmt::Display for JpegLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.version())
    }
}

/// The decoder of one thread.
#[derive(Clone, Debug)]
pub(super) enum Decoder {
    Turbo(turbo::Decoder),
    Zune,
}

impl Decoder {
    pub(super) fn new(library: &JpegLibrary) -> Self {
        match library {
            JpegLibrary::Turbo(library) => Self::Turbo(turbo::decoder(library)),
            JpegLibrary::Zune => Self::Zune,
        }
    }

    /// Reads the header: height and width.
    pub(super) fn header(&mut self, file: &[u8]) -> Result<[usize; 2], String> {
        match self {
            Self::Turbo(decoder) => turbo::header(decoder, file),
            Self::Zune => zune::header(without_stray_bytes(file).as_deref().unwrap_or(file)),
        }
    }

    pub(super) fn decode(&mut self, file: &[u8], pixels: &mut Vec<u8>) -> Result<Decoded, String> {
        let orientation = read_orientation(file)?;
        match self {
            Self::Turbo(decoder) => {
                turbo::decode(decoder, file, orientation, pixels, &|image| Region::whole(image.shape))
            }
            Self::Zune => {
                let clean = without_stray_bytes(file);
                zune::decode(clean.as_deref().unwrap_or(file), orientation, pixels)
            }
        }
    }

    /// Decodes at least the region that `region` returns; `file` may be modified temporarily.
    pub(super) fn decode_region(
        &mut self,
        file: &mut [u8],
        pixels: &mut Vec<u8>,
        region: &dyn Fn(&Decoded) -> Region,
    ) -> Result<Decoded, String> {
        let orientation = read_orientation(file)?;
        match self {
            Self::Turbo(decoder) => turbo::decode(decoder, file, orientation, pixels, region),
            Self::Zune => match without_stray_bytes(file) {
                Some(mut clean) => zune::decode_rows(&mut clean, orientation, pixels, region),
                None => zune::decode_rows(file, orientation, pixels, region),
            },
        }
    }
}

/// Reads the orientation of a file, which must have an end marker: decoders that read only the first rows, or
/// fill in missing data, do not check that.
fn read_orientation(file: &[u8]) -> Result<Orientation, String> {
    if !has_end_marker(file, file, file.len()) {
        return Err("the file ends before the image does".to_owned());
    }
    let exif = segments(file)
        .find_map(|(marker, _, content)| content.strip_prefix(b"Exif\0\0").filter(|_| marker == APP1));
    Ok(exif.map(exif::orientation).unwrap_or_default())
}

/// The segments before the entropy-coded data, up to SOS of the first scan: marker, the offset of its 0xff,
/// and the available payload (ITU-T T.81, annex B). Like in libjpeg (`next_marker` in `jdmarker.c`), bytes
/// between segments are skipped: some cameras and programs write them.
fn segments(file: &[u8]) -> impl Iterator<Item = (u8, usize, &[u8])> {
    let mut at = 2;
    std::iter::from_fn(move || {
        loop {
            at += file.get(at..)?.iter().position(|&byte| byte == 0xff)?;
            // Any number of fill bytes 0xff may precede a marker.
            at += file[at..].iter().position(|&byte| byte != 0xff)?;
            let (begin, marker) = (at - 1, file[at]);
            at += 1;
            match marker {
                // After a zero, the 0xff before it is one of the skipped bytes.
                0 | TEM | RST0..=RST7 => continue,
                EOI => return None,
                _ => {}
            }
            let length = file.get(at..at + 2)?;
            let length = usize::from(u16::from_be_bytes([length[0], length[1]])).max(2);
            let content = &file[at + 2..];
            let content = &content[..content.len().min(length - 2)];
            // The first scan's header is the last segment.
            at = if marker == SOS { file.len() } else { at + length };
            return Some((marker, begin, content));
        }
    })
}

/// A copy of the file without stray bytes between its header segments, if there are any, for a decoder that
/// rejects them.
fn without_stray_bytes(file: &[u8]) -> Option<Vec<u8>> {
    let (mut clean, mut end, mut stray) = (vec![0xff, SOI], 2, false);
    for (marker, begin, content) in segments(file) {
        stray |= begin != end;
        end = begin + 4 + content.len();
        if marker == SOS {
            clean.extend_from_slice(&file[begin..]);
            return stray.then_some(clean);
        }
        clean.extend_from_slice(&file[begin..end]);
    }
    None
}

/// Markers without a segment.
const TEM: u8 = 0x01;
const RST0: u8 = 0xd0;
const RST7: u8 = 0xd7;
const SOI: u8 = 0xd8;
const EOI: u8 = 0xd9;

/// Start of scan.
const SOS: u8 = 0xda;
/// The application segment of EXIF.
const APP1: u8 = 0xe1;

/// The offset of the first scan.
fn first_scan(file: &[u8]) -> Option<usize> {
    segments(file).find(|(marker, ..)| *marker == SOS).map(|(_, begin, _)| begin)
}

/// Returns whether `tail`, the end of a file of `bytes` bytes, has the end marker EOI after the start of the
/// first scan, which must be in `head`. An embedded thumbnail has an EOI too.
pub(super) fn has_end_marker(head: &[u8], tail: &[u8], bytes: usize) -> bool {
    let Some(scan) = first_scan(head) else { return false };
    let after_scan = tail.get((scan + tail.len()).saturating_sub(bytes)..).unwrap_or_default();
    after_scan.windows(2).rev().any(|pair| pair == [0xff, 0xd9])
}
