//! The server through real HTTP requests, on generated runs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod actions;
mod common;
mod forecast;
mod guard;
mod launches;
mod live;
mod many;
mod pages;
mod sweeps;
