//! Tests of transformations of trained networks.

mod fold;
mod prune;
