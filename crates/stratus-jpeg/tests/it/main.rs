//! Decoding of windows compared with whole images, and damaged files.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod damage;
mod library;
mod windows;
