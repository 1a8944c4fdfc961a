//! The words that keys with a choice accept.

use crate::value::choices;

choices! {
    /// The number format of activations and gradients. Weights, statistics and sums are f32 in any case.
    Precision {
        /// bf16 if the device has instructions for it, else f32.
        Auto = "auto",
        /// 32-bit floating point throughout.
        F32 = "f32",
        /// bfloat16 activations and gradients, f32 master weights.
        Bf16 = "bf16",
        /// float16 activations and gradients, f32 master weights, dynamic loss scaling. GPUs only.
        F16 = "f16",
    }
}

choices! {
    /// The summing of gradients over workers.
    ExchangeMode {
        /// Along one tree over the parts: results do not depend on the workers.
        Exact = "exact",
        /// By NCCL, which chooses the order for speed: results depend on the GPUs, how they are connected,
        /// and their number. GPUs only.
        Fast = "fast",
    }
}

choices! {
    /// The number format in which workers send gradients to each other.
    ExchangeType {
        /// As they are: results do not depend on the number of workers.
        F32 = "f32",
        /// Rounded to bf16, and added in f32: half of the bytes. Results depend on the number of workers.
        Bf16 = "bf16",
    }
}

choices! {
    /// The device that computes.
    Device {
        /// `gpu` if one can be used, else `cpu`.
        Auto = "auto",
        /// The CPU: oneDNN if it is found, else the reference backend with a warning.
        Cpu = "cpu",
        /// The first NVIDIA GPU; an error if none can be used.
        Gpu = "gpu",
        /// Alias of `gpu`.
        Cuda = "cuda",
        /// The CPU through oneDNN; an error if it is not found.
        Onednn = "onednn",
        /// The reference backend: slow, needs no library.
        Reference = "reference",
    }
}

choices! {
    /// The update rule of the weights.
    OptimiserName {
        /// Stochastic gradient descent with momentum and weight decay.
        Sgd = "sgd",
        /// Adam (Kingma and Ba, 2015).
        Adam = "adam",
        /// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
        AdamW = "adamw",
        /// Adagrad (Duchi, Hazan and Singer, 2011).
        Adagrad = "adagrad",
        /// Adadelta (Zeiler, 2012).
        Adadelta = "adadelta",
    }
}

choices! {
    /// The shape of the learning rate schedule.
    ScheduleName {
        /// Constant after the warm-up.
        Constant = "constant",
        /// Multiplied by `schedule.gamma` every `schedule.step_epochs` epochs.
        Step = "step",
        /// Falls along half a cosine to `schedule.final_learning_rate`.
        Cosine = "cosine",
        /// Falls to `schedule.final_learning_rate` as `(1 - iteration / iterations)^power` (DeepLab, Chen et
        /// al., 2017).
        Poly = "poly",
        /// Rises, then falls far below its initial value (Smith and Topin, 2018).
        OneCycle = "one_cycle",
    }
}

choices! {
    /// The fill of the pixels that a shift uncovers.
    Padding {
        /// Black.
        Zero = "zero",
        /// The image, mirrored at its edge.
        Reflect = "reflect",
    }
}

choices! {
    /// The handling of samples that cannot be decoded.
    OnBadSample {
        /// List them and refuse to train.
        Error = "error",
        /// Skip, count and list them in the summary.
        Skip = "skip",
    }
}

choices! {
    /// The decoding of JPEG files.
    Decode {
        /// At full size.
        Exact = "exact",
        /// At a half, a quarter or an eighth of the size, if that is enough.
        Fast = "fast",
    }
}

choices! {
    /// The weighting of classes in the training loss.
    ClassWeighting {
        /// Equal weights.
        None = "none",
        /// The median of all classes' frequencies divided by the class's own (Eigen and Fergus, 2015).
        MedianFrequency = "median_frequency",
        /// `1 / ln(1.1 + f)` with the class's fraction `f` of pixels or images (ERFNet, Romera et al., 2018).
        Logarithmic = "logarithmic",
    }
}

choices! {
    /// The training loss, which decides what the network predicts.
    LossFunction {
        /// Softmax and cross-entropy: one class of each image or pixel.
        CrossEntropy = "cross_entropy",
        /// Binary cross-entropy: labels of an image, each of which applies or does not; or whether a pixel is
        /// of the foreground.
        BinaryCrossEntropy = "binary_cross_entropy",
        /// The squared error of numbers.
        SquaredError = "squared_error",
        /// Squared for errors up to one standard deviation of the target, then linear (Huber, 1964).
        Huber = "huber",
    }
}

choices! {
    /// The weights of the images to which a label applies.
    PositiveWeighting {
        /// Equal weights.
        None = "none",
        /// By label, the number of images to which it does not apply divided by the number of the others.
        Auto = "auto",
    }
}
