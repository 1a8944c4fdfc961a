//! What several tests share.

/// The tiles of the kernel that makes gradients of weights on tensor cores.
pub const TILES: [&str; 8] =
    ["128x256", "128x128", "64x256", "64x192", "64x192:cached", "128x64", "64x64", "32x64"];
