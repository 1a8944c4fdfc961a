//! The sigmoid-weighted linear unit (Elfwing, Uchibe, Doya: "Sigmoid-weighted linear units for neural network
//! function approximation in reinforcement learning", 2017), also called swish.

use super::activation::activation;

activation! {
    /// `y = x / (1 + exp(-x))`.
    Silu, "silu", 1
}
