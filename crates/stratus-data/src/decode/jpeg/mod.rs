//! JPEG: by libjpeg-turbo where it is found, which decodes only the requested window; else by zune-jpeg, a
//! decoder in Rust, which can skip the rows below the window.
//!
//! The library is chosen once per process: their pixels differ by rounding, and a run should use one of them
//! throughout.

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

/// The value of [`stratus_jpeg::ENVIRONMENT`] that disables libjpeg-turbo.
const NONE: &str = "none";

impl JpegLibrary {
    /// libjpeg-turbo if found (see [`stratus_jpeg::candidates`]), else zune-jpeg; searched once per process.
    /// [`stratus_jpeg::ENVIRONMENT`] set to `none` selects zune-jpeg.
    #[must_use]
    pub fn of_process() -> &'static Self {
        static LIBRARY: OnceLock<JpegLibrary> = OnceLock::new();
        LIBRARY.get_or_init(|| Self::find().unwrap_or(Self::Zune))
    }

    /// Looks for libjpeg-turbo.
    ///
    /// # Errors
    ///
    /// Why it was not found, so that zune-jpeg decodes.
    pub fn find() -> Result<Self, String> {
        if std::env::var_os(stratus_jpeg::ENVIRONMENT).is_some_and(|value| value == NONE) {
            return Err(format!("{} is `{NONE}`", stratus_jpeg::ENVIRONMENT));
        }
        stratus_jpeg::find().map(Self::Turbo).map_err(|error| error.to_string())
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Turbo(_) => "libjpeg-turbo",
            Self::Zune => "zune-jpeg",
        }
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> &str {
        match self {
            Self::Turbo(library) => library.version().unwrap_or("of a version that it does not say"),
            Self::Zune => "0.5",
        }
    }

    /// Its file, where it is one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Turbo(library) => Some(library.path()),
            Self::Zune => None,
        }
    }
}

/// Name and version, as runs record them.
impl fmt::Display for JpegLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.version())
    }
}

/// One thread's decoder.
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
        let orientation = orientation_of_whole(file)?;
        match self {
            Self::Turbo(decoder) => {
                turbo::decode(decoder, file, orientation, pixels, &|image| Region::of(image.shape))
            }
            Self::Zune => {
                let clean = without_stray_bytes(file);
                zune::decode(clean.as_deref().unwrap_or(file), orientation, pixels)
            }
        }
    }

    /// Decodes at least the region that `wanted` returns; `file` may be modified temporarily.
    pub(super) fn decode_region(
        &mut self,
        file: &mut [u8],
        pixels: &mut Vec<u8>,
        wanted: &dyn Fn(&Decoded) -> Region,
    ) -> Result<Decoded, String> {
        let orientation = orientation_of_whole(file)?;
        match self {
            Self::Turbo(decoder) => turbo::decode(decoder, file, orientation, pixels, wanted),
            Self::Zune => match without_stray_bytes(file) {
                Some(mut clean) => zune::decode_rows(&mut clean, orientation, pixels, wanted),
                None => zune::decode_rows(file, orientation, pixels, wanted),
            },
        }
    }
}

/// The orientation of a file, which must have an end marker: decoders that read only the first rows, or fill
/// in missing data, do not check that.
fn orientation_of_whole(file: &[u8]) -> Result<Orientation, String> {
    if !ends(file, file, file.len()) {
        return Err("the file ends before the image does".to_owned());
    }
    let exif = segments(file)
        .find_map(|(marker, _, content)| content.strip_prefix(b"Exif\0\0").filter(|_| marker == APP1));
    Ok(exif.map(exif::orientation).unwrap_or_default())
}

/// The segments before the entropy-coded data, up to SOS of the first scan: marker, the offset of its 0xff,
/// and what of the payload is there (ITU-T T.81, annex B). As libjpeg does (`next_marker` in `jdmarker.c`),
/// bytes between segments that are no marker are passed over: cameras and other programs leave some.
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
                // A zero makes the 0xff before it one of the bytes that are passed over.
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

/// The same file without the bytes between the segments of its header, where there are any: for a decoder
/// that refuses them.
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

/// Whether `tail`, the end of a file of `bytes` bytes, has the end marker EOI after the start of the first
/// scan, which must be in `head`. An embedded thumbnail has an EOI too.
pub(super) fn ends(head: &[u8], tail: &[u8], bytes: usize) -> bool {
    let Some(scan) = first_scan(head) else { return false };
    let behind = tail.get((scan + tail.len()).saturating_sub(bytes)..).unwrap_or_default();
    behind.windows(2).rev().any(|pair| pair == [0xff, 0xd9])
}
