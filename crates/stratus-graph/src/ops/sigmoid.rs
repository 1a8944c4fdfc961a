//! The logistic sigmoid.

use super::activation::activation;

activation! {
    /// `y = 1 / (1 + exp(-x))`.
    Sigmoid, "sigmoid", 1
}
