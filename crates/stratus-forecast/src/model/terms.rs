//! The terms of the time model: seconds at full peaks, by kind of kernel.

use super::Vector;
use crate::work::{Kernel, Kind, Work};

/// A part of a step's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// Host: a millisecond a step.
    HostConstant,
    /// Host: ten microseconds a kernel.
    HostLaunch,
    /// A millisecond a step.
    Constant,
    /// 5000 cycles a kernel.
    Launch,
    /// Operations of [`Kind::Filtering`], over maps padded to tiles.
    FilteringArithmetic,
    /// Their bytes.
    FilteringBytes,
    /// 256 more rows of their products: too few rows do not fill a machine.
    FilteringRows,
    /// 32 more columns: products are made in blocks of columns.
    FilteringColumns,
    /// As above, of [`Kind::Convolution`].
    ConvolutionArithmetic,
    /// Bytes.
    ConvolutionBytes,
    /// Rows.
    ConvolutionRows,
    /// Columns.
    ConvolutionColumns,
    /// Operations of first convolutions.
    FirstArithmetic,
    /// Bytes of their forward kernels.
    FirstForwardBytes,
    /// Bytes of the gradients of their weights.
    FirstWeightsBytes,
    /// Operations of fully connected layers.
    LinearArithmetic,
    /// Their bytes.
    LinearBytes,
    /// Bytes of depthwise convolutions.
    DepthwiseBytes,
    /// Bytes of norms.
    NormBytes,
    /// Bytes of pooling.
    PoolBytes,
    /// Bytes of elementwise kernels.
    ElementwiseBytes,
    /// Bytes of gradients of biases.
    BiasGradientBytes,
    /// Bytes of updates.
    UpdateBytes,
}

/// How many there are.
pub const COUNT: usize = 23;

/// What limits a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    Arithmetic,
    Memory,
    Launch,
}

impl Term {
    /// All, in order.
    pub const ALL: [Self; COUNT] = [
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

    /// Its name in profiles.
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

    /// Whether the process takes the time, and not the device.
    #[must_use]
    pub fn is_host(self) -> bool {
        matches!(self, Self::HostConstant | Self::HostLaunch)
    }

    pub(super) fn limit(self) -> Limit {
        match self {
            Self::HostConstant | Self::HostLaunch | Self::Constant | Self::Launch => Limit::Launch,
            Self::FilteringArithmetic
            | Self::FilteringRows
            | Self::FilteringColumns
            | Self::ConvolutionArithmetic
            | Self::ConvolutionRows
            | Self::ConvolutionColumns
            | Self::FirstArithmetic
            | Self::LinearArithmetic => Limit::Arithmetic,
            _ => Limit::Memory,
        }
    }
}

/// A machine's peaks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// Operations a second, in the number format of convolutions.
    pub arithmetic: f64,
    /// Bytes a second.
    pub bandwidth: f64,
    /// Cycles a second.
    pub clock: f64,
}

/// Seconds of each term before its coefficient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms(pub Vector);

/// Rows and columns by which products are larger.
const ROWS: f64 = 256.0;
const COLUMNS: f64 = 32.0;

impl Terms {
    /// The terms of a step.
    #[must_use]
    pub fn of(work: &Work, peaks: &Peaks) -> Self {
        let mut terms = Self([0.0; COUNT]);
        terms.add(Term::HostConstant, 1e-3);
        terms.add(Term::Constant, 1e-3);
        for kernel in &work.kernels {
            terms.add_kernel(kernel, peaks);
        }
        terms
    }

    /// The terms of one kernel, without what a step costs once.
    #[must_use]
    pub fn of_kernel(kernel: &Kernel, peaks: &Peaks) -> Self {
        let mut terms = Self([0.0; COUNT]);
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
            2.0 * ROWS * product.columns * if product.of_weights { product.rows } else { product.depth },
        );
        let columns = arithmetic(2.0 * COLUMNS * product.rows * product.depth);
        match kernel.kind {
            Kind::Filtering => {
                let padding = product.padding.max(1.0);
                self.add(Term::FilteringArithmetic, arithmetic(kernel.flops * padding));
                self.add(Term::FilteringBytes, bytes);
                self.add(Term::FilteringRows, rows);
                self.add(Term::FilteringColumns, columns);
            }
            Kind::Convolution => {
                self.add(Term::ConvolutionArithmetic, arithmetic(kernel.flops));
                self.add(Term::ConvolutionBytes, bytes);
                self.add(Term::ConvolutionRows, rows);
                self.add(Term::ConvolutionColumns, columns);
            }
            Kind::FirstForward | Kind::FirstWeights => {
                self.add(Term::FirstArithmetic, arithmetic(kernel.flops));
                let of_weights = kernel.kind == Kind::FirstWeights;
                self.add(if of_weights { Term::FirstWeightsBytes } else { Term::FirstForwardBytes }, bytes);
            }
            Kind::Linear => {
                self.add(Term::LinearArithmetic, arithmetic(kernel.flops));
                self.add(Term::LinearBytes, bytes);
            }
            Kind::Depthwise => self.add(Term::DepthwiseBytes, bytes),
            Kind::Norm => self.add(Term::NormBytes, bytes),
            Kind::Pool => self.add(Term::PoolBytes, bytes),
            Kind::Elementwise => self.add(Term::ElementwiseBytes, bytes),
            Kind::BiasGradient => self.add(Term::BiasGradientBytes, bytes),
            Kind::Update => self.add(Term::UpdateBytes, bytes),
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
    fn terms_stand_in_their_order() {
        for (position, term) in Term::ALL.into_iter().enumerate() {
            assert_eq!(term as usize, position, "{}", term.name());
        }
    }
}
