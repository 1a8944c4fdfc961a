//! The rectified linear unit.

use super::activation::activation;

activation! {
    /// `y = max(x, 0)`.
    Relu, "relu", 1
}
