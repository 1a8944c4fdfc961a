//! SiLU with the piecewise-linear sigmoid (Howard et al.: "Searching for MobileNetV3", 2019).

use super::activation::activation;

activation! {
    /// `y = x min(max(x + 3, 0), 6) / 6`.
    HardSwish, "hard_swish", 1
}
