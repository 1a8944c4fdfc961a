//! The crate by its public items.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod forecast;
mod table;
