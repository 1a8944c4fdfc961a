//! Tests of the resizer.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod resize;
