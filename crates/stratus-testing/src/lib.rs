//! What the tests of several crates share: an allocator that watches, ways to damage a file, JPEG files, a
//! store of objects.

pub mod allocator;
pub mod damage;
pub mod jpeg;
pub mod swift;
