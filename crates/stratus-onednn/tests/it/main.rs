//! The oneDNN backend against the reference, and what its kernels must not do.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod guards;
mod layers;
mod oracle;
mod training;
