//! The form of mixed labels.

/// Elements of a mixed sample's label: its class, another class, and the share of the other in units of 1 /
/// [`FULL_SHARE`].
pub const MIXED_LABEL_LEN: usize = 3;

/// The value of a full share: shares are integers, exact in every type.
pub const FULL_SHARE: i32 = 1 << 24;
