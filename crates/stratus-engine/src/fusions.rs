//! The settings of the fusion pass, which each backend chooses.

/// The minimum size of a map for horizontal fusion of its convolutions: a smaller map stays in the last-level
/// cache from one reader to the next.
pub const MIN_HORIZONTAL_FUSION_BYTES: usize = 8 << 20;

/// The fusions that pay on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fusions {
    /// The minimum size of a map for horizontal fusion of its convolutions.
    pub min_horizontal_bytes: usize,
    /// True if the first convolution is fused into a stem, which recomputes its output instead of storing it:
    /// see [`crate::ops::Stem`].
    pub stem: bool,
    /// True if a convolution in inference computes the sum and the activation that follow it: see
    /// [`crate::ops::Conv2dInference`].
    pub inference: bool,
}

impl Default for Fusions {
    fn default() -> Self {
        Self { min_horizontal_bytes: MIN_HORIZONTAL_FUSION_BYTES, stem: true, inference: true }
    }
}
