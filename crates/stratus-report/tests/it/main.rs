//! Reports of run directories.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod page;
mod report;
