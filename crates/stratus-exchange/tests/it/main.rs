//! Workers on the reference backend, as threads of one process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod direct;
mod pipeline;
mod rounded;
mod stage_costs;
mod training;
