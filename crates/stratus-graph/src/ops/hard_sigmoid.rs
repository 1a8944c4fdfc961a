//! The piecewise-linear sigmoid (Howard et al.: "Searching for MobileNetV3", 2019).

use super::activation::activation;

activation! {
    /// `y = min(max(x + 3, 0), 6) / 6`.
    HardSigmoid, "hard_sigmoid", 1
}
