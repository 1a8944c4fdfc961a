//! JPEG decoding by libjpeg-turbo, loaded at run time: building needs neither headers nor the library.
//!
//! A [`Decoder`] decodes a window of an image. Rows below the window are not read. Rows above it and columns
//! beside it are only entropy-decoded, without inverse transform and colour conversion. The pixels of the
//! window equal those of the whole image bit for bit. An image may be reduced on the way ([`Reduction`]), by
//! transforming fewer frequencies: its pixels are then about the means of squares. [`find`] accepts
//! libjpeg-turbo 1.5 or newer, with the binary interface of libjpeg 6b (62), 7 or 8.

mod decoder;
mod ffi;
mod library;

pub use decoder::{Colours, DecodeError, Decoder, Header, Limits, Reduction, Window};
pub use ffi::{Library, LoadError};
pub use library::{ENVIRONMENT, FILES, NotFound, candidates, find};
