//! Run directories that a run continues.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod resume;
