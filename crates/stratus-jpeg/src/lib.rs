//! JPEG by libjpeg-turbo, loaded at run time: no headers and no library are needed to build.
//!
//! A [`Decoder`] decodes a window of an image: rows below it are not read, rows above it and columns beside
//! it are entropy-decoded alone, without the transform and the colours. The window's pixels are bit for bit
//! those of the whole image. What [`find`] finds is libjpeg-turbo of any version since 1.5, with the binary
//! interface of libjpeg 6b (62), 7 or 8.

mod decoder;
mod ffi;
mod library;

pub use decoder::{Colours, DecodeError, Decoder, Header, Limits, Window};
pub use ffi::{Library, LoadError};
pub use library::{ENVIRONMENT, FILES, NotFound, candidates, find};
