//! Test utilities of several crates: a counting allocator, damaged files, synthetic JPEG and PNG files, an
//! object store, generated tables of pages, samples of test matrices.

pub mod allocator;
pub mod damage;
pub mod jpeg;
pub mod page;
pub mod png;
pub mod sample;
pub mod swift;
