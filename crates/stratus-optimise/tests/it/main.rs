//! Tests of transformations of trained networks.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fold;
mod prune;
