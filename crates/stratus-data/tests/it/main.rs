//! Data sets, the loader and the stores behind them, through the crate's public interface.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod archives;
mod cifar;
mod coco;
mod common;
mod fetch;
mod fingerprint;
mod folder;
mod labels;
mod loader;
mod masks;
mod mnist;
mod order;
mod pairs;
mod reduced;
mod regions;
mod shards;
mod split;
mod streaming;
mod sync;
mod workers;
