//! Reports of run directories.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod against;
mod diff;
mod figures;
mod page;
mod report;
