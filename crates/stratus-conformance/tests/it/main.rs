//! Tests of the suite itself.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod faults;
