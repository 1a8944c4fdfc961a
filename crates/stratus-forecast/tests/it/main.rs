//! Tests of the public interface.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod forecast;
mod table;
