//! Windows of JPEG images, against whole ones and damaged files.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod damage;
mod library;
mod windows;
