//! The oneDNN backend against the reference, and guarantees of its kernels.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod guards;
mod inference;
mod layers;
mod networks;
mod oracle;
mod quantised;
mod training;
