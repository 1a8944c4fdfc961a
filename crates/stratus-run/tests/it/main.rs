//! Tests of resuming in run directories.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod resume;
