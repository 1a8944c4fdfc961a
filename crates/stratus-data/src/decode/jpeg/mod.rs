//! JPEG decoding: by libjpeg-turbo if available, which decodes only the requested window; else by zune-jpeg,
//! a decoder in Rust, which can skip the rows below the window.
//!
//! The library is chosen once per process: the pixels of both differ by rounding, and a run should use one of
//! them throughout.

mod segments;
mod turbo;
mod zune;

use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

use stratus_base::library::LibraryNotFound;

pub(super) use self::segments::has_end_marker;
use self::segments::{Frame, count_scans, exif_segment, without_stray_bytes};
use super::exif;
use super::image::{Decoded, check_length, pixel_bytes};
use crate::geometry::{Orientation, Region};

/// The library that decodes JPEG.
#[derive(Clone, Debug)]
pub enum JpegLibrary {
    /// libjpeg-turbo.
    Turbo(stratus_jpeg::Library),
    /// The zune-jpeg crate.
    Zune,
}

/// The maximum number of scans of a file whose scans refine each other: each may go through the whole image
/// and take a few bytes. Encoders write up to 15; zune-jpeg has the same limit.
const MAX_SCANS: usize = 100;

impl JpegLibrary {
    /// libjpeg-turbo if found (see [`stratus_jpeg::candidates`]), else zune-jpeg; searched once per process.
    /// [`stratus_jpeg::LIBRARY_VARIABLE`] set to `none` selects zune-jpeg.
    #[must_use]
    pub fn for_process() -> &'static Self {
        Self::search_once().as_ref().unwrap_or(&Self::Zune)
    }

    /// Checks that [`stratus_jpeg::LIBRARY_VARIABLE`], if set, names a usable library.
    ///
    /// # Errors
    ///
    /// [`LibraryNotFound::Named`].
    pub fn check_named() -> Result<(), LibraryNotFound> {
        match Self::search_once() {
            Err(error) if error.is_named() => Err(error.clone()),
            _ => Ok(()),
        }
    }

    fn search_once() -> &'static Result<Self, LibraryNotFound> {
        static LIBRARY: OnceLock<Result<JpegLibrary, LibraryNotFound>> = OnceLock::new();
        LIBRARY.get_or_init(Self::find)
    }

    /// Searches for libjpeg-turbo.
    ///
    /// # Errors
    ///
    /// If libjpeg-turbo was not found: the reason for using zune-jpeg.
    pub fn find() -> Result<Self, LibraryNotFound> {
        stratus_jpeg::find().map(Self::Turbo)
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

    /// Reads the header of a file of `file_bytes` bytes, of which `head` is the beginning: height and width.
    pub(super) fn header(&mut self, head: &[u8], file_bytes: usize) -> Result<[usize; 2], String> {
        check_demand(head, file_bytes)?;
        match self {
            Self::Turbo(decoder) => turbo::header(decoder, head),
            Self::Zune => zune::header(without_stray_bytes(head).as_deref().unwrap_or(head)),
        }
    }

    pub(super) fn decode(&mut self, file: &[u8], pixels: &mut Vec<u8>) -> Result<Decoded, String> {
        let orientation = check(file)?;
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
        let orientation = check(file)?;
        match self {
            Self::Turbo(decoder) => turbo::decode(decoder, file, orientation, pixels, region),
            Self::Zune => match without_stray_bytes(file) {
                Some(mut clean) => zune::decode_rows(&mut clean, orientation, pixels, region),
                None => zune::decode_rows(file, orientation, pixels, region),
            },
        }
    }
}

/// Checks a whole file before it is decoded, and returns its orientation. The file must have an end marker:
/// decoders that read only the first rows, or fill in missing data, do not check that.
fn check(file: &[u8]) -> Result<Orientation, String> {
    if !has_end_marker(file, file, file.len()) {
        return Err("the file ends before the image does".to_owned());
    }
    let frame = check_demand(file, file.len())?;
    if frame.coefficient_bytes > 0 && count_scans(file) > MAX_SCANS {
        return Err(format!("the JPEG has more than {MAX_SCANS} scans"));
    }
    Ok(exif_segment(file).map(exif::orientation).unwrap_or_default())
}

/// Checks that a file of `file_bytes` bytes can contain its image, and is long enough for the memory that
/// decoding takes.
fn check_demand(head: &[u8], file_bytes: usize) -> Result<Frame, String> {
    let frame = Frame::read(head).ok_or("the JPEG has no valid frame before its first scan")?;
    let Frame { size, channels, min_bytes, coefficient_bytes } = frame;
    check_length(size, min_bytes, file_bytes)?;
    pixel_bytes(size, channels, coefficient_bytes, file_bytes)?;
    Ok(frame)
}
