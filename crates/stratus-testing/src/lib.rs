//! Test utilities of several crates: a counting allocator, damaged files, synthetic JPEG files, an object
//! store, samples of test matrices.

pub mod allocator;
pub mod damage;
pub mod jpeg;
pub mod sample;
pub mod swift;
