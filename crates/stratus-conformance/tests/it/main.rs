//! The suite's own tests.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod faults;
