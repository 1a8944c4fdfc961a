//! libjpeg's C interface as libjpeg-turbo has it, loaded at run time.
//!
//! `raw` declares what is used of it, `session` the decoding of one file. The library tells of an error by
//! calling a function that must not return: ours unwinds the library's frames, which own nothing that the
//! object's destruction does not give back, and is caught around each call. Everything unsafe about the
//! library is in this module.
#![allow(unsafe_code)] // The one room for calls into libjpeg; each block says why it is sound.

#[cfg(panic = "abort")]
compile_error!("the library's errors are panics that are caught: build with panic = \"unwind\"");

mod raw;
mod session;

pub use raw::{Library, LoadError};
pub(crate) use session::{ColourSpace, DecoderMemory, Session};
