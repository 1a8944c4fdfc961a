//! Tests of reports on run directories.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod diff;
mod figures;
mod page;
mod published;
mod report;
mod validation;
