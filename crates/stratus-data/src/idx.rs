//! The idx format of MNIST: a magic number, dimensions, then elements in row-major order; gzipped or not.
//!
//! Magic: two zero bytes, the element type, the number of dimensions; then each dimension as a big-endian
//! u32. (Y. LeCun, C. Cortes, C. Burges: "The MNIST database of handwritten digits", section "File formats".)
//!
//! A file is trusted in nothing: sizes are checked before memory is reserved, what is reserved is bounded by
//! what the file could possibly hold, and any bytes at all give a value or an error, never a panic.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use stratus_base::checksum::sha256_hex;
use thiserror::Error;

/// Files larger than this, packed or unpacked, are refused: 4 GiB.
pub const MAX_BYTES: u64 = 4 << 30;

/// DEFLATE cannot expand its input further than this (RFC 1951: 258 bytes from 2 bits, less the block's
/// overhead).
const MAX_EXPANSION: u64 = 1032;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum IdxElement {
    /// Unsigned bytes.
    U8 = 0x08,
    /// Signed bytes.
    I8 = 0x09,
    /// 16-bit integers, big-endian.
    I16 = 0x0B,
    /// 32-bit integers, big-endian.
    I32 = 0x0C,
    /// 32-bit floating point, big-endian.
    F32 = 0x0D,
    /// 64-bit floating point, big-endian.
    F64 = 0x0E,
}

impl IdxElement {
    const ALL: [Self; 6] = [Self::U8, Self::I8, Self::I16, Self::I32, Self::F32, Self::F64];

    /// Bytes of one element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::I16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::F64 => 8,
        }
    }
}

impl fmt::Display for IdxElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::U8 => "unsigned bytes",
            Self::I8 => "signed bytes",
            Self::I16 => "16-bit integers",
            Self::I32 => "32-bit integers",
            Self::F32 => "32-bit floats",
            Self::F64 => "64-bit floats",
        };
        write!(f, "{name} (0x{:02x})", *self as u8)
    }
}

/// What a file must hold to be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// The element type.
    pub element: IdxElement,
    /// The number of dimensions, at most 255.
    pub dimensions: u8,
}

/// The content of an idx file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idx {
    /// The element type.
    pub element: IdxElement,
    /// The dimensions, outermost first.
    pub dimensions: Vec<usize>,
    /// The elements in row-major order, big-endian as in the file: the product of the dimensions × the bytes
    /// of an element.
    pub data: Vec<u8>,
}

impl Idx {
    /// SHA-256 of the file, unpacked, in hexadecimal. The header is a function of type and dimensions, so it
    /// need not be kept.
    #[must_use]
    pub fn sha256(&self) -> String {
        sha256_hex([header(self.element, &self.dimensions).as_slice(), &self.data])
    }
}

fn header(element: IdxElement, dimensions: &[usize]) -> Vec<u8> {
    let mut bytes = vec![0, 0, element as u8, dimensions.len() as u8];
    bytes.extend(dimensions.iter().flat_map(|&d| (d as u32).to_be_bytes()));
    bytes
}

/// An idx file is not what it should be.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum IdxError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {cause}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// The first bytes are not those of an idx file.
    #[error(
        "{}: not an idx file: it begins with bytes {found:02x?}, expected 00 00 and an element type; check \
         the path",
        .path.display()
    )]
    Magic {
        /// The file.
        path: PathBuf,
        /// The first four bytes.
        found: [u8; 4],
    },
    /// The elements have another type.
    #[error(
        "{}: holds {found}, expected {expected}; check that images and labels are not exchanged",
        .path.display()
    )]
    Element {
        /// The file.
        path: PathBuf,
        /// The type expected.
        expected: IdxElement,
        /// The type found.
        found: IdxElement,
    },
    /// The number of dimensions differs.
    #[error(
        "{}: has {found} dimensions, expected {expected}; check that images and labels are not exchanged",
        .path.display()
    )]
    Dimensions {
        /// The file.
        path: PathBuf,
        /// The number expected.
        expected: u8,
        /// The number found.
        found: u8,
    },
    /// The header declares more than is accepted.
    #[error(
        "{}: {what} {dimensions:?} × {element_bytes} bytes, more than the {} GiB that are accepted; the file \
         is damaged",
        .path.display(), MAX_BYTES >> 30
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// What is too large.
        what: &'static str,
        /// The dimensions declared, or the file's length.
        dimensions: Vec<u64>,
        /// Bytes of an element.
        element_bytes: usize,
    },
    /// The file ends early.
    #[error("{}: truncated: {found} bytes unpacked, expected {expected}; fetch it again", .path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes the header calls for, its own included; 4 where the header itself is cut.
        expected: u64,
        /// Bytes there, unpacked.
        found: u64,
    },
    /// The file goes on after its last element.
    #[error("{}: goes on after the {expected} bytes its header declares; fetch it again", .path.display())]
    TrailingBytes {
        /// The file.
        path: PathBuf,
        /// Bytes the header calls for, its own included.
        expected: u64,
    },
    /// The gzip stream is damaged.
    #[error("{}: the gzip data is damaged: {cause}; fetch it again", .path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What the decoder says.
        cause: io::Error,
    },
    /// There is not enough memory.
    #[error(
        "{}: {bytes} bytes of memory are needed to unpack it and are not available; free some",
        .path.display()
    )]
    Memory {
        /// The file.
        path: PathBuf,
        /// Bytes asked for.
        bytes: u64,
    },
}

/// Reads an idx file, gzipped or not (its first bytes decide, not its name).
///
/// # Errors
///
/// [`IdxError`]: unreadable, or anything [`parse`] refuses.
pub fn read(path: &Path, expected: Expectation) -> Result<Idx, IdxError> {
    let unreadable = |cause| IdxError::Read { path: path.to_owned(), cause };
    let about = fs::metadata(path).map_err(unreadable)?;
    if !about.is_file() {
        return Err(unreadable(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
    }
    if about.len() > MAX_BYTES {
        let (path, what) = (path.to_owned(), "the file has");
        return Err(IdxError::TooLarge { path, what, dimensions: vec![about.len()], element_bytes: 1 });
    }
    parse(&fs::read(path).map_err(unreadable)?, path, expected)
}

/// Parses the bytes of an idx file, gzipped or not. `path` is what errors call it.
///
/// # Errors
///
/// [`IdxError`]: not idx, not of the type and number of dimensions expected, too large, shorter or longer
/// than declared, damaged gzip.
pub fn parse(bytes: &[u8], path: &Path, expected: Expectation) -> Result<Idx, IdxError> {
    if bytes.starts_with(&GZIP_MAGIC) {
        let bound = (bytes.len() as u64).saturating_mul(MAX_EXPANSION);
        Parser { source: MultiGzDecoder::new(bytes), path, taken: 0, bound }.parse(expected)
    } else {
        Parser { source: bytes, path, taken: 0, bound: bytes.len() as u64 }.parse(expected)
    }
}

struct Parser<'a, R> {
    source: R,
    path: &'a Path,
    /// Bytes taken from `source`.
    taken: u64,
    /// Bytes `source` cannot exceed.
    bound: u64,
}

impl<R: Read> Parser<'_, R> {
    fn parse(mut self, expected: Expectation) -> Result<Idx, IdxError> {
        let path = self.path;
        let mut magic = [0; 4];
        self.fill(&mut magic, 4)?;
        let element = IdxElement::ALL.into_iter().find(|&element| element as u8 == magic[2]);
        let (Some(element), [0, 0, _, dimensions]) = (element, magic) else {
            return Err(IdxError::Magic { path: path.to_owned(), found: magic });
        };
        if element != expected.element {
            return Err(IdxError::Element {
                path: path.to_owned(),
                expected: expected.element,
                found: element,
            });
        }
        if dimensions != expected.dimensions {
            let (path, expected) = (path.to_owned(), expected.dimensions);
            return Err(IdxError::Dimensions { path, expected, found: dimensions });
        }
        let header_bytes = 4 + 4 * u64::from(dimensions);
        let mut declared = Vec::with_capacity(usize::from(dimensions));
        for _ in 0..dimensions {
            let mut dimension = [0; 4];
            self.fill(&mut dimension, header_bytes)?;
            declared.push(u64::from(u32::from_be_bytes(dimension)));
        }
        let data_bytes = declared
            .iter()
            .try_fold(element.bytes() as u64, |product, &dimension| product.checked_mul(dimension))
            .filter(|&product| product <= MAX_BYTES);
        let Some(data_bytes) = data_bytes else {
            let (path, what, element_bytes) = (path.to_owned(), "the header declares", element.bytes());
            return Err(IdxError::TooLarge { path, what, dimensions: declared, element_bytes });
        };
        let data = self.take(header_bytes, data_bytes)?;
        let dimensions = declared.into_iter().map(|dimension| dimension as usize).collect();
        Ok(Idx { element, dimensions, data })
    }

    /// Fills `buffer`, which belongs to a file of at least `expected` bytes.
    fn fill(&mut self, buffer: &mut [u8], expected: u64) -> Result<(), IdxError> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.source.read(&mut buffer[filled..]) {
                Ok(0) => return Err(self.truncated(expected)),
                Ok(count) => {
                    filled += count;
                    self.taken += count as u64;
                }
                Err(cause) => return Err(self.failed(cause, expected)),
            }
        }
        Ok(())
    }

    /// The elements, which must be all that is left. Reading the end of a gzip stream also checks its CRC.
    fn take(&mut self, header_bytes: u64, data_bytes: u64) -> Result<Vec<u8>, IdxError> {
        let expected = header_bytes + data_bytes;
        let mut data = Vec::new();
        // What the source cannot hold is not reserved: the file is truncated, and reading it finds out how
        // far it goes.
        let reserved = data_bytes.min(self.bound);
        let memory = |bytes| IdxError::Memory { path: self.path.to_owned(), bytes };
        data.try_reserve_exact(usize::try_from(reserved).map_err(|_| memory(reserved))?)
            .map_err(|_| memory(reserved))?;
        let outcome = self.source.by_ref().take(data_bytes).read_to_end(&mut data);
        self.taken += data.len() as u64;
        match outcome {
            Ok(_) if (data.len() as u64) < data_bytes => return Err(self.truncated(expected)),
            Ok(_) => {}
            Err(cause) => return Err(self.failed(cause, expected)),
        }
        match self.source.read(&mut [0]) {
            Ok(0) => Ok(data),
            Ok(_) => Err(IdxError::TrailingBytes { path: self.path.to_owned(), expected }),
            Err(cause) => Err(IdxError::Corrupt { path: self.path.to_owned(), cause }),
        }
    }

    fn truncated(&self, expected: u64) -> IdxError {
        IdxError::Truncated { path: self.path.to_owned(), expected, found: self.taken }
    }

    fn failed(&self, cause: io::Error, expected: u64) -> IdxError {
        if cause.kind() == io::ErrorKind::UnexpectedEof {
            self.truncated(expected)
        } else {
            IdxError::Corrupt { path: self.path.to_owned(), cause }
        }
    }
}

#[cfg(test)]
mod tests;
