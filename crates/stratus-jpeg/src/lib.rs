//! JPEG decoding by libjpeg-turbo, loaded at run time: building needs neither headers nor the library.
//!
//! A [`Decoder`] decodes a window of an image. Rows below the window are not read. Rows above it and columns
//! to its sides are only entropy-decoded, without inverse transform and colour conversion. The pixels of the
//! window are bit-identical to those of the whole image. An image can be decoded at a smaller scale
//! ([`DctScale`]) by transforming fewer DCT coefficients. [`find`] accepts libjpeg-turbo 1.5 or newer, with
//! the binary interface of libjpeg 6b (62), 7 or 8.

mod decoder;
mod ffi;
mod library;

pub use decoder::{DctScale, DecodeError, Decoder, Header, Limits, PixelFormat, Window};
pub use ffi::{Library, LoadError};
pub use library::{LIBRARY_FILES, LIBRARY_VARIABLE, LibraryNotFound, candidates, check_named, find};
