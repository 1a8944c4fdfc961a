//! The Gaussian error linear unit (Hendrycks, Gimpel: "Gaussian error linear units", 2016), exact, as by
//! default in PyTorch.

use super::activation::activation;

activation! {
    /// `y = x * P(z <= x)` for `z` of the standard normal distribution.
    Gelu, "gelu", 1
}
