//! The prior of the coefficients.

use super::{TERM_COUNT, Term, Vector};
use serde::{Deserialize, Serialize};

/// The framework whose kernels are modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Framework {
    /// TensorFlow 2.5: cuDNN's convolutions and its own kernels, each launched by the process.
    Tensorflow,
    /// Stratus.
    Stratus,
}

impl Framework {
    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tensorflow => "tensorflow",
            Self::Stratus => "stratus",
        }
    }

    /// Means and standard deviations of the logarithms. `tensor` means that convolutions run on tensor cores
    /// or AMX, `gpu` that kernels are launched on a GPU.
    pub(crate) fn prior(self, gpu: bool, tensor: bool) -> (Vector, Vector) {
        let (mut log, mut deviation) = ([0.0; TERM_COUNT], [1.0; TERM_COUNT]);
        for term in Term::ALL {
            let (coefficient, sd) = match self {
                Self::Tensorflow => tensorflow(term),
                Self::Stratus => stratus(term, gpu, tensor),
            };
            log[term as usize] = coefficient.ln();
            deviation[term as usize] = sd;
        }
        (log, deviation)
    }
}

/// The coefficient of TensorFlow and the standard deviation of its logarithm.
///
/// - Minimal filtering by tiles of 4×4 needs 36 of 144 products (Lavin, Gray: "Fast algorithms for
///   convolutional neural networks", 2016), at about 60 % of the peak; its transforms read and write the
///   feature maps a few times.
/// - Depthwise convolutions: TensorFlow's take 1.4 times as long as dense ones on groups of channels (Qin et
///   al.: "Diagonalwise refactorization", 2018), about 8 times the time of their memory traffic.
/// - Matrix products reach most of the peak, memory-bound kernels most of the bandwidth.
fn tensorflow(term: Term) -> (f64, f64) {
    match term {
        Term::HostConstant => (1.5, 1.0),
        Term::HostLaunch => (2.0, 1.0),
        Term::Constant => (0.5, 1.0),
        Term::Launch => (1.0, 1.0),
        Term::FilteringArithmetic => (0.4, 0.5),
        Term::FilteringBytes => (4.0, 1.0),
        Term::ConvolutionArithmetic => (1.0, 0.5),
        Term::ConvolutionBytes => (2.0, 1.0),
        Term::FilteringRows | Term::FilteringColumns | Term::ConvolutionRows | Term::ConvolutionColumns => {
            (2.0, 1.0)
        }
        Term::FirstArithmetic => (1.2, 0.2),
        Term::FirstForwardBytes => (2.0, 0.7),
        Term::FirstWeightsBytes => (6.0, 1.5),
        Term::LinearArithmetic => (1.0, 0.5),
        Term::DepthwiseBytes => (8.0, 0.7),
        Term::NormBytes => (1.2, 1.0),
        Term::ElementwiseBytes => (1.2, 0.6),
        Term::BiasGradientBytes => (2.0, 1.0),
        Term::LinearBytes | Term::PoolBytes | Term::UpdateBytes => (1.2, 0.3),
    }
}

/// The coefficient of Stratus and the standard deviation of its logarithm.
///
/// Kernels are launched by a recorded graph (GPU) or a function call (CPU), so the host costs almost nothing.
/// On a CPU, a kernel starts and ends with a barrier of its threads, and tiled steps have their operands in
/// the caches.
fn stratus(term: Term, gpu: bool, tensor: bool) -> (f64, f64) {
    let bytes = if gpu { 1.2 } else { 0.8 };
    match term {
        Term::HostConstant | Term::HostLaunch => (0.02, 0.5),
        Term::Constant => (0.05, 1.0),
        Term::Launch => (if gpu { 0.5 } else { 2.0 }, 0.7),
        Term::FilteringArithmetic if gpu => (0.4, 0.5),
        Term::FilteringArithmetic => (0.8, 0.5),
        Term::FilteringBytes => (if gpu { 3.0 } else { 1.0 }, 0.7),
        Term::ConvolutionArithmetic | Term::LinearArithmetic => (if tensor { 1.7 } else { 1.2 }, 0.4),
        Term::FirstArithmetic => (if tensor { 4.0 } else { 1.5 }, 0.6),
        Term::FilteringRows | Term::FilteringColumns | Term::ConvolutionRows | Term::ConvolutionColumns => {
            (if gpu { 1.0 } else { 0.1 }, 1.0)
        }
        Term::DepthwiseBytes => (3.0, 0.7),
        Term::BiasGradientBytes => (1.5, 0.5),
        Term::FirstForwardBytes
        | Term::FirstWeightsBytes
        | Term::ConvolutionBytes
        | Term::LinearBytes
        | Term::NormBytes
        | Term::PoolBytes
        | Term::ElementwiseBytes
        | Term::UpdateBytes => (bytes, 0.4),
    }
}
