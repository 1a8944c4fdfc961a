//! Shared by the tests of several crates: a counting allocator, damaged files, synthetic JPEG files, an
//! object store.

pub mod allocator;
pub mod damage;
pub mod jpeg;
pub mod swift;
