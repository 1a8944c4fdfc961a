//! The idx format of MNIST: a magic number, dimensions, then elements in row-major order; gzipped or not.
//!
//! Magic: two zero bytes, the element type, the number of dimensions; then each dimension as a big-endian
//! u32. (Y. LeCun, C. Cortes, C. Burges: "The MNIST database of handwritten digits", section "File formats".)
//!
//! Files are not trusted: sizes are checked before memory is reserved, reservations are bounded by the
//! possible content, and arbitrary bytes give a value or an error, never a panic.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use stratus_base::checksum::sha256_hex;
use thiserror::Error;

/// The maximum size of a file, packed or unpacked: 4 GiB.
pub const MAX_BYTES: u64 = 4 << 30;

/// The maximum expansion of DEFLATE (RFC 1951: 258 bytes from 2 bits, minus the block overhead).
const MAX_EXPANSION: u64 = 1032;
/// The bytes that any gzipped file may be unpacked to.
const MAX_UNPACKED_BYTES_OF_ANY_FILE: u64 = 192 << 20;
/// The maximum ratio of a longer gzipped file. Images of handwriting have ratios of about 5.
const MAX_UNPACKED_RATIO: u64 = 64;

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

/// The format that a file must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedFormat {
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
    /// SHA-256 of the unpacked file, in hexadecimal. The header is a function of type and dimensions, so it
    /// is not stored.
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

/// An error of reading an idx file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum IdxError {
    /// The file cannot be read.
    #[error("{}: cannot read: {cause}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// The file does not begin like an idx file.
    #[error(
        "{}: not an idx file: begins with bytes {found:02x?}, expected 00 00 and an element type; check the \
         path",
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
        "{}: holds {found}, expected {expected}; check that images and labels are not swapped",
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
        "{}: has {found} dimensions, expected {expected}; check that images and labels are not swapped",
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
    /// The file or its declared content is too large.
    #[error(
        "{}: {subject} {dimensions:?} × {element_bytes} bytes, but the maximum is {} GiB; the file is \
         damaged",
        .path.display(), MAX_BYTES >> 30
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The beginning of the message: the file or its header, and a verb.
        subject: &'static str,
        /// The declared dimensions, or the length of the file.
        dimensions: Vec<u64>,
        /// Bytes of an element.
        element_bytes: usize,
    },
    /// The declared content is out of proportion to the gzipped file.
    #[error(
        "{}: the header declares {declared} bytes, but {found} bytes of gzip may be unpacked to {} MiB, or \
         to {MAX_UNPACKED_RATIO} times their number; if the file is genuine, unpack it with gunzip",
        .path.display(), MAX_UNPACKED_BYTES_OF_ANY_FILE >> 20
    )]
    Disproportionate {
        /// The file.
        path: PathBuf,
        /// The declared length.
        declared: u64,
        /// The length of the gzipped file.
        found: u64,
    },
    /// The file ends early.
    #[error("{}: truncated: {found} bytes unpacked, expected {expected}; fetch it again", .path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The expected length including the header; 4 if the header itself is truncated.
        expected: u64,
        /// The unpacked length.
        found: u64,
    },
    /// The file continues after its last element.
    #[error("{}: longer than the {expected} bytes that its header declares; fetch it again", .path.display())]
    TrailingBytes {
        /// The file.
        path: PathBuf,
        /// The expected length including the header.
        expected: u64,
    },
    /// The gzip stream is damaged.
    #[error("{}: the gzip data is damaged: {cause}; fetch it again", .path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// There is not enough memory.
    #[error(
        "{}: cannot allocate {bytes} bytes to unpack it; free some memory",
        .path.display()
    )]
    Memory {
        /// The file.
        path: PathBuf,
        /// The requested bytes.
        bytes: u64,
    },
}

/// Reads an idx file, gzipped or not, by its first bytes.
///
/// # Errors
///
/// [`IdxError`]: an unreadable file, or an error of [`parse`].
pub fn read(path: &Path, expected: ExpectedFormat) -> Result<Idx, IdxError> {
    let unreadable = |cause| IdxError::Read { path: path.to_owned(), cause };
    let metadata = fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(unreadable(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
    }
    if metadata.len() > MAX_BYTES {
        let (path, subject) = (path.to_owned(), "the file has");
        return Err(IdxError::TooLarge { path, subject, dimensions: vec![metadata.len()], element_bytes: 1 });
    }
    parse(&fs::read(path).map_err(unreadable)?, path, expected)
}

/// Parses the bytes of an idx file, gzipped or not. `path` is used in errors.
///
/// # Errors
///
/// [`IdxError`]: not an idx file, another type or number of dimensions, too large, shorter or longer than
/// declared, or damaged gzip data.
pub fn parse(bytes: &[u8], path: &Path, expected: ExpectedFormat) -> Result<Idx, IdxError> {
    let file_bytes = bytes.len() as u64;
    if bytes.starts_with(&GZIP_MAGIC) {
        let bound = file_bytes.saturating_mul(MAX_EXPANSION);
        let allowed = MAX_UNPACKED_BYTES_OF_ANY_FILE.max(file_bytes.saturating_mul(MAX_UNPACKED_RATIO));
        Parser { source: MultiGzDecoder::new(bytes), path, taken: 0, file_bytes, bound, allowed }
            .parse(expected)
    } else {
        let (bound, allowed) = (file_bytes, MAX_BYTES);
        Parser { source: bytes, path, taken: 0, file_bytes, bound, allowed }.parse(expected)
    }
}

struct Parser<'a, R> {
    source: R,
    path: &'a Path,
    /// Bytes read from `source`.
    taken: u64,
    /// The length of the file, gzipped or not.
    file_bytes: u64,
    /// The maximum number of bytes in `source`.
    bound: u64,
    /// The maximum number of bytes that the header may declare.
    allowed: u64,
}

impl<R: Read> Parser<'_, R> {
    fn parse(mut self, expected: ExpectedFormat) -> Result<Idx, IdxError> {
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
            let (path, subject, element_bytes) = (path.to_owned(), "the header declares", element.bytes());
            return Err(IdxError::TooLarge { path, subject, dimensions: declared, element_bytes });
        };
        if data_bytes > self.allowed {
            return Err(self.disproportionate(header_bytes, data_bytes));
        }
        let data = self.take(header_bytes, data_bytes)?;
        let dimensions = declared.into_iter().map(|dimension| dimension as usize).collect();
        Ok(Idx { element, dimensions, data })
    }

    /// Fills `buffer` from a file of at least `expected` bytes.
    fn fill(&mut self, buffer: &mut [u8], expected: u64) -> Result<(), IdxError> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.source.read(&mut buffer[filled..]) {
                Ok(0) => return Err(self.truncated(expected)),
                Ok(count) => {
                    filled += count;
                    self.taken += count as u64;
                }
                Err(cause) => return Err(self.read_error(cause, expected)),
            }
        }
        Ok(())
    }

    /// Reads the elements, after which the file must end. Reading the end of a gzip stream also checks its
    /// CRC.
    fn take(&mut self, header_bytes: u64, data_bytes: u64) -> Result<Vec<u8>, IdxError> {
        let expected = header_bytes + data_bytes;
        let mut data = Vec::new();
        // Reserves at most what the source can hold: a longer declaration means a truncated file, and reading
        // it finds its length.
        let reserved = data_bytes.min(self.bound);
        let memory = |bytes| IdxError::Memory { path: self.path.to_owned(), bytes };
        data.try_reserve_exact(usize::try_from(reserved).map_err(|_| memory(reserved))?)
            .map_err(|_| memory(reserved))?;
        let outcome = self.source.by_ref().take(data_bytes).read_to_end(&mut data);
        self.taken += data.len() as u64;
        match outcome {
            Ok(_) if (data.len() as u64) < data_bytes => return Err(self.truncated(expected)),
            Ok(_) => {}
            Err(cause) => return Err(self.read_error(cause, expected)),
        }
        match self.source.read(&mut [0]) {
            Ok(0) => Ok(data),
            Ok(_) => Err(IdxError::TrailingBytes { path: self.path.to_owned(), expected }),
            Err(cause) => Err(IdxError::Corrupt { path: self.path.to_owned(), cause }),
        }
    }

    /// The error of content that exceeds the limit: the end of a file before the limit is the true cause.
    fn disproportionate(mut self, header_bytes: u64, data_bytes: u64) -> IdxError {
        let mut block = vec![0; 1 << 16];
        let mut remaining = self.allowed as usize;
        while remaining > 0 {
            let count = remaining.min(block.len());
            if let Err(error) = self.fill(&mut block[..count], header_bytes + data_bytes) {
                return error;
            }
            remaining -= count;
        }
        let (path, found) = (self.path.to_owned(), self.file_bytes);
        IdxError::Disproportionate { path, declared: data_bytes, found }
    }

    fn truncated(&self, expected: u64) -> IdxError {
        IdxError::Truncated { path: self.path.to_owned(), expected, found: self.taken }
    }

    fn read_error(&self, cause: io::Error, expected: u64) -> IdxError {
        if cause.kind() == io::ErrorKind::UnexpectedEof {
            self.truncated(expected)
        } else {
            IdxError::Corrupt { path: self.path.to_owned(), cause }
        }
    }
}

#[cfg(test)]
mod tests;
