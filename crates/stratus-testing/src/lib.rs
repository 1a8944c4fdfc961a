//! What the tests of several crates share: an allocator that watches, and ways to damage a file.

pub mod allocator;
pub mod damage;
