//! Tests of data sets, the loader and remote stores through the public interface of the crate.

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
mod table;
mod workers;
mod zip;
