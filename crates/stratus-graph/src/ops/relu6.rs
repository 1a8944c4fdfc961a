//! ReLU with a ceiling (Krizhevsky: "Convolutional deep belief networks on CIFAR-10", 2010), as in
//! MobileNetV2.

use super::activation::activation;

activation! {
    /// `y = min(max(x, 0), 6)`.
    Relu6, "relu6", 2
}

impl Relu6 {
    /// The largest output.
    pub const CEILING: f32 = 6.0;
}
