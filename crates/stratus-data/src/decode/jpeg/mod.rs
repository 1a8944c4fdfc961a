//! JPEG: by libjpeg-turbo where one is found, which decodes the window that is wanted and no more; else by
//! zune-jpeg, a decoder without C, of which the rows below the window can be left out.
//!
//! Which of them decodes is one choice for the whole process: their pixels differ by rounding, and a run's
//! should come from one.

mod turbo;
mod zune;

use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

use super::{Decoded, exif};
use crate::transform::frame::{Orientation, Region};

/// What decodes JPEG files.
#[derive(Clone, Debug)]
pub enum JpegLibrary {
    /// libjpeg-turbo.
    Turbo(stratus_jpeg::Library),
    /// The zune-jpeg crate.
    Zune,
}

/// What [`stratus_jpeg::ENVIRONMENT`] says where libjpeg-turbo is not to be used.
const NONE: &str = "none";

impl JpegLibrary {
    /// libjpeg-turbo where one is found, by [`stratus_jpeg::candidates`]; looked for once in a process.
    /// [`stratus_jpeg::ENVIRONMENT`] set to `none` asks for zune-jpeg.
    #[must_use]
    pub fn of_process() -> &'static Self {
        static LIBRARY: OnceLock<JpegLibrary> = OnceLock::new();
        LIBRARY.get_or_init(|| Self::find().unwrap_or(Self::Zune))
    }

    /// Looks for libjpeg-turbo.
    ///
    /// # Errors
    ///
    /// Why there is none: then zune-jpeg decodes.
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
            Self::Zune => zune::header(file),
        }
    }

    pub(super) fn decode(&mut self, file: &[u8], pixels: &mut Vec<u8>) -> Result<Decoded, String> {
        let orientation = orientation_of_whole(file)?;
        match self {
            Self::Turbo(decoder) => {
                turbo::decode(decoder, file, orientation, pixels, &|image| Region::of(image.shape))
            }
            Self::Zune => zune::decode(file, orientation, pixels),
        }
    }

    /// Decodes at least the region that `wanted` asks for; `file` may be changed for a while.
    pub(super) fn decode_region(
        &mut self,
        file: &mut [u8],
        pixels: &mut Vec<u8>,
        wanted: &dyn Fn(&Decoded) -> Region,
    ) -> Result<Decoded, String> {
        let orientation = orientation_of_whole(file)?;
        match self {
            Self::Turbo(decoder) => turbo::decode(decoder, file, orientation, pixels, wanted),
            Self::Zune => zune::decode_rows(file, orientation, pixels, wanted),
        }
    }
}

/// How the image of a file is to be turned, which must have an end: a decoder that sees its first rows alone,
/// or makes up what is missing, does not notice.
fn orientation_of_whole(file: &[u8]) -> Result<Orientation, String> {
    if !ends(file, file, file.len()) {
        return Err("the file ends before the image does".to_owned());
    }
    let exif = segments(file)
        .find_map(|(marker, _, content)| content.strip_prefix(b"Exif\0\0").filter(|_| marker == APP1));
    Ok(exif.map(exif::orientation).unwrap_or_default())
}

/// The segments before the entropy-coded data, up to the first scan's, SOS: marker, and what follows the
/// length (ITU-T T.81, annex B).
fn segments(file: &[u8]) -> impl Iterator<Item = (u8, usize, &[u8])> {
    let mut at = 2;
    std::iter::from_fn(move || {
        loop {
            let begin = at;
            match *file.get(at..at + 4)? {
                // Any number of bytes 0xff may stand before a marker.
                [0xff, 0xff, ..] => at += 1,
                [0xff, marker, high, low] => {
                    let length = usize::from(u16::from_be_bytes([high, low]));
                    // Behind the first scan's header are no segments.
                    at = if marker == SOS { file.len() } else { begin + 2 + length };
                    return Some((
                        marker,
                        begin,
                        file.get(begin + 4..begin + 2 + length).unwrap_or_default(),
                    ));
                }
                _ => return None,
            }
        }
    })
}

/// Start of scan.
const SOS: u8 = 0xda;
/// The application segment that EXIF stands in.
const APP1: u8 = 0xe1;

/// Where the first scan begins.
fn first_scan(file: &[u8]) -> Option<usize> {
    segments(file).find(|(marker, ..)| *marker == SOS).map(|(_, begin, _)| begin)
}

/// Whether the mark of the end, EOI, stands in the `tail` of a file of `bytes` and behind the beginning of
/// its first scan, which must be in its `head`. A thumbnail in front of it has such a mark too.
pub(super) fn ends(head: &[u8], tail: &[u8], bytes: usize) -> bool {
    let Some(scan) = first_scan(head) else { return false };
    let behind = tail.get((scan + tail.len()).saturating_sub(bytes)..).unwrap_or_default();
    behind.windows(2).rev().any(|pair| pair == [0xff, 0xd9])
}
