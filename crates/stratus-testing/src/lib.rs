//! What the tests of several crates share: an allocator that watches, ways to damage a file, JPEG files.

pub mod allocator;
pub mod damage;
pub mod jpeg;
