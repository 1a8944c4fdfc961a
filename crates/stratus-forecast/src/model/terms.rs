//! The terms of the time model: seconds at peak rates, by kind of kernel.

use super::{Bottleneck, Vector};
use crate::work::{Kernel, KernelKind, Work};

/// A part of the time of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// Host: one millisecond per step.
    HostConstant,
    /// Host: ten microseconds per kernel.
    HostLaunch,
    /// One millisecond per step.
    Constant,
    /// 5000 cycles per kernel.
    Launch,
    /// Arithmetic of [`KernelKind::Filtering`], with feature maps padded to tiles.
    FilteringArithmetic,
    /// Memory traffic of the same kernels.
    FilteringBytes,
    /// Cost of 256 extra rows: small products underuse the machine.
    FilteringRows,
    /// Cost of 32 extra columns: products are computed in blocks of columns.
    FilteringColumns,
    /// Arithmetic of [`KernelKind::Convolution`].
    ConvolutionArithmetic,
    /// Memory traffic of other convolutions.
    ConvolutionBytes,
    /// Cost of 256 extra rows of other convolutions.
    ConvolutionRows,
    /// Cost of 32 extra columns of other convolutions.
    ConvolutionColumns,
    /// Arithmetic of first convolutions.
    FirstArithmetic,
    /// Memory traffic of forward kernels of first convolutions.
    FirstForwardBytes,
    /// Memory traffic of weight gradients of first convolutions.
    FirstWeightsBytes,
    /// Arithmetic of fully connected layers.
    LinearArithmetic,
    /// Memory traffic of fully connected layers.
    LinearBytes,
    /// Memory traffic of depthwise convolutions.
    DepthwiseBytes,
    /// Memory traffic of normalisation.
    NormBytes,
    /// Memory traffic of pooling.
    PoolBytes,
    /// Memory traffic of elementwise kernels.
    ElementwiseBytes,
    /// Memory traffic of bias gradients.
    BiasGradientBytes,
    /// Memory traffic of updates.
    UpdateBytes,
}

/// The number of terms.
pub const TERM_COUNT: usize = 23;

impl Term {
    /// All terms, in order.
    pub const ALL: [Self; TERM_COUNT] = [
        Self::HostConstant,
        Self::HostLaunch,
        Self::Constant,
        Self::Launch,
        Self::FilteringArithmetic,
        Self::FilteringBytes,
        Self::FilteringRows,
        Self::FilteringColumns,
        Self::ConvolutionArithmetic,
        Self::ConvolutionBytes,
        Self::ConvolutionRows,
        Self::ConvolutionColumns,
        Self::FirstArithmetic,
        Self::FirstForwardBytes,
        Self::FirstWeightsBytes,
        Self::LinearArithmetic,
        Self::LinearBytes,
        Self::DepthwiseBytes,
        Self::NormBytes,
        Self::PoolBytes,
        Self::ElementwiseBytes,
        Self::BiasGradientBytes,
        Self::UpdateBytes,
    ];

    /// The name in profiles.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::HostConstant => "host_constant",
            Self::HostLaunch => "host_launch",
            Self::Constant => "constant",
            Self::Launch => "launch",
            Self::FilteringArithmetic => "filtering_arithmetic",
            Self::FilteringBytes => "filtering_bytes",
            Self::FilteringRows => "filtering_rows",
            Self::FilteringColumns => "filtering_columns",
            Self::ConvolutionArithmetic => "convolution_arithmetic",
            Self::ConvolutionBytes => "convolution_bytes",
            Self::ConvolutionRows => "convolution_rows",
            Self::ConvolutionColumns => "convolution_columns",
            Self::FirstArithmetic => "first_arithmetic",
            Self::FirstForwardBytes => "first_forward_bytes",
            Self::FirstWeightsBytes => "first_weights_bytes",
            Self::LinearArithmetic => "linear_arithmetic",
            Self::LinearBytes => "linear_bytes",
            Self::DepthwiseBytes => "depthwise_bytes",
            Self::NormBytes => "norm_bytes",
            Self::PoolBytes => "pool_bytes",
            Self::ElementwiseBytes => "elementwise_bytes",
            Self::BiasGradientBytes => "bias_gradient_bytes",
            Self::UpdateBytes => "update_bytes",
        }
    }

    /// Returns whether it is time of the host instead of the device.
    #[must_use]
    pub fn is_host(self) -> bool {
        matches!(self, Self::HostConstant | Self::HostLaunch)
    }

    pub(super) fn bottleneck(self) -> Bottleneck {
        match self {
            Self::HostConstant | Self::HostLaunch | Self::Constant | Self::Launch => Bottleneck::Launch,
            Self::FilteringArithmetic
            | Self::FilteringRows
            | Self::FilteringColumns
            | Self::ConvolutionArithmetic
            | Self::ConvolutionRows
            | Self::ConvolutionColumns
            | Self::FirstArithmetic
            | Self::LinearArithmetic => Bottleneck::Arithmetic,
            _ => Bottleneck::Memory,
        }
    }
}

/// The peak rates of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// FLOP/s in the number format of convolutions.
    pub arithmetic: f64,
    /// Memory bandwidth, bytes/s.
    pub bandwidth: f64,
    /// Clock, cycles/s.
    pub clock: f64,
}

/// Seconds of each term at peak rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms(pub Vector);

/// Extra rows and columns of products.
const EXTRA_ROWS: f64 = 256.0;
const EXTRA_COLUMNS: f64 = 32.0;

impl Terms {
    /// The terms of a step.
    #[must_use]
    pub fn for_step(work: &Work, peaks: &Peaks) -> Self {
        let mut terms = Self([0.0; TERM_COUNT]);
        terms.add(Term::HostConstant, 1e-3);
        terms.add(Term::Constant, 1e-3);
        for kernel in &work.kernels {
            terms.add_kernel(kernel, peaks);
        }
        terms
    }

    /// The terms of a single kernel, without the constant costs of a step.
    #[must_use]
    pub fn for_kernel(kernel: &Kernel, peaks: &Peaks) -> Self {
        let mut terms = Self([0.0; TERM_COUNT]);
        terms.add_kernel(kernel, peaks);
        terms
    }

    fn add(&mut self, term: Term, seconds: f64) {
        self.0[term as usize] += seconds;
    }

    fn add_kernel(&mut self, kernel: &Kernel, peaks: &Peaks) {
        let arithmetic = |flops: f64| flops / peaks.arithmetic;
        let bytes = kernel.bytes / peaks.bandwidth;
        self.add(Term::HostLaunch, 1e-5 * kernel.launches);
        self.add(Term::Launch, 5e3 / peaks.clock * kernel.launches);
        let product = kernel.product.unwrap_or_default();
        let rows = arithmetic(
            2.0 * EXTRA_ROWS
                * product.columns
                * if product.of_weights { product.rows } else { product.depth },
        );
        let columns = arithmetic(2.0 * EXTRA_COLUMNS * product.rows * product.depth);
        match kernel.kind {
            KernelKind::Filtering => {
                let padding = product.padding.max(1.0);
                self.add(Term::FilteringArithmetic, arithmetic(kernel.flops * padding));
                self.add(Term::FilteringBytes, bytes);
                self.add(Term::FilteringRows, rows);
                self.add(Term::FilteringColumns, columns);
            }
            KernelKind::Convolution => {
                self.add(Term::ConvolutionArithmetic, arithmetic(kernel.flops));
                self.add(Term::ConvolutionBytes, bytes);
                self.add(Term::ConvolutionRows, rows);
                self.add(Term::ConvolutionColumns, columns);
            }
            KernelKind::FirstForward | KernelKind::FirstWeights => {
                self.add(Term::FirstArithmetic, arithmetic(kernel.flops));
                let of_weights = kernel.kind == KernelKind::FirstWeights;
                self.add(if of_weights { Term::FirstWeightsBytes } else { Term::FirstForwardBytes }, bytes);
            }
            KernelKind::Linear => {
                self.add(Term::LinearArithmetic, arithmetic(kernel.flops));
                self.add(Term::LinearBytes, bytes);
            }
            KernelKind::Depthwise => self.add(Term::DepthwiseBytes, bytes),
            KernelKind::Norm => self.add(Term::NormBytes, bytes),
            KernelKind::Pool => self.add(Term::PoolBytes, bytes),
            KernelKind::Elementwise => self.add(Term::ElementwiseBytes, bytes),
            KernelKind::BiasGradient => self.add(Term::BiasGradientBytes, bytes),
            KernelKind::Update => self.add(Term::UpdateBytes, bytes),
        }
    }
}

pub(super) fn dot(a: &Vector, b: &Vector) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_in_declaration_order() {
        for (position, term) in Term::ALL.into_iter().enumerate() {
            assert_eq!(term as usize, position, "{}", term.name());
        }
    }
}
