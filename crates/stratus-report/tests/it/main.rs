//! Tests of reports on run directories.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod diff;
mod figures;
mod gpus;
mod layers;
mod network;
mod optimised;
mod page;
mod published;
mod report;
mod targets;
mod validation;
