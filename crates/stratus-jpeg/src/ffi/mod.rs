//! The C interface of libjpeg-turbo, loaded at run time.
//!
//! `raw` declares the used part of the interface, `session` decodes a file, `library` loads the library. The
//! library reports an error by calling a function that must not return. Ours unwinds the frames of the
//! library, which own nothing that the destruction of the object does not free, and each call catches the
//! panic. All unsafe code of this crate is in this module.
#![allow(unsafe_code)] // Calls into libjpeg; each block states why it is sound.

#[cfg(panic = "abort")]
compile_error!("errors of the library are caught as panics: build with panic = \"unwind\"");

mod library;
mod raw;
mod session;

pub use library::Library;
pub use raw::LoadError;
pub(crate) use session::{ColourSpace, Decompressor};
