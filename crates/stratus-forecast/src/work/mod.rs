//! The work of a training step: its kernels with their arithmetic, memory traffic and, for convolutions,
//! matrix products. It depends only on the network, not on the machine.

pub mod layers;
pub mod program;
pub mod training;

/// The kind of a kernel; kinds differ in the fraction of peak rates that they reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelKind {
    /// A dense convolution that is suited to minimal filtering (Winograd) or a transform: 3×3, or 5×5 and
    /// larger, with stride 1.
    Filtering,
    /// Any other convolution with more than four channels: a matrix product.
    Convolution,
    /// Forward pass of a convolution with at most four channels: images.
    FirstForward,
    /// Weight gradient of such a convolution.
    FirstWeights,
    /// A depthwise convolution.
    Depthwise,
    /// A fully connected layer.
    Linear,
    /// Batch normalisation and other normalisations.
    Norm,
    /// Pooling, resizing.
    Pool,
    /// Reading and writing each element once.
    Elementwise,
    /// The sum of the gradient of a feature map over samples and pixels.
    BiasGradient,
    /// The optimiser.
    Update,
}

impl KernelKind {
    /// The name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Filtering => "filtering",
            Self::Convolution => "convolution",
            Self::FirstForward => "first_forward",
            Self::FirstWeights => "first_weights",
            Self::Depthwise => "depthwise",
            Self::Linear => "linear",
            Self::Norm => "norm",
            Self::Pool => "pool",
            Self::Elementwise => "elementwise",
            Self::BiasGradient => "bias_gradient",
            Self::Update => "update",
        }
    }
}

/// The matrix product `[rows, depth] × [depth, columns]` that is equivalent to a convolution.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MatrixProduct {
    /// Rows; in a forward pass, samples × pixels of the output.
    pub rows: f64,
    /// Columns; in a forward pass, channels of the output.
    pub columns: f64,
    /// Depth; in a forward pass, channels of the input × taps.
    pub depth: f64,
    /// True if it is a weight gradient, whose depth includes the batch.
    pub of_weights: bool,
    /// The ratio of the size of the feature map padded to 4×4 tiles to its own size; at least 1.
    pub padding: f64,
}

/// One kernel of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// The names of its layers.
    pub layer: String,
    /// The name of the kernel.
    pub name: String,
    /// The kind of kernel.
    pub kind: KernelKind,
    /// Nominal floating-point operations; a multiply-add counts as two.
    pub flops: f64,
    /// Bytes of operands that are read and written.
    pub bytes: f64,
    /// The equivalent matrix product of a convolution.
    pub product: Option<MatrixProduct>,
    /// Number of launches.
    pub launches: f64,
    /// The features of its size; zeros if only its layer is known.
    pub features: KernelFeatures,
}

/// The number of features of a kernel.
pub const FEATURE_COUNT: usize = 9;

/// Binary logarithms: of samples, channels and pixels of the first and of the last operand; half of those of
/// operations and of bytes; of tiles.
pub type KernelFeatures = [f64; FEATURE_COUNT];

/// The work of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    /// The kernels, in order.
    pub kernels: Vec<Kernel>,
}

impl Work {
    /// Total floating-point operations.
    #[must_use]
    pub fn flops(&self) -> f64 {
        self.kernels.iter().map(|kernel| kernel.flops).sum()
    }

    /// Total bytes that are read and written.
    #[must_use]
    pub fn bytes(&self) -> f64 {
        self.kernels.iter().map(|kernel| kernel.bytes).sum()
    }

    /// Total number of kernel launches.
    #[must_use]
    pub fn launches(&self) -> f64 {
        self.kernels.iter().map(|kernel| kernel.launches).sum()
    }
}

/// The extents of the forward pass of a convolution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ConvExtents {
    pub batch: f64,
    pub input: [f64; 3],
    pub output: [f64; 3],
    pub kernel: [f64; 2],
    pub stride: f64,
    pub groups: f64,
    pub dilated: bool,
}

/// One of the three kernels of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    Forward,
    BackwardData,
    BackwardWeights,
}

impl ConvExtents {
    pub fn flops(&self) -> f64 {
        let [channels, ..] = self.input;
        let [outputs, height, width] = self.output;
        2.0 * self.batch * outputs * height * width * self.taps() * channels / self.groups
    }

    pub fn kind(&self, pass: Pass) -> KernelKind {
        let [channels, ..] = self.input;
        let [height, width] = self.kernel;
        let dense = self.stride == 1.0 && self.groups == 1.0 && !self.dilated;
        match pass {
            _ if self.groups > 1.0 && self.groups == channels => KernelKind::Depthwise,
            Pass::BackwardWeights if channels <= 4.0 => KernelKind::FirstWeights,
            _ if channels <= 4.0 => KernelKind::FirstForward,
            _ if dense && (height == 3.0 && width == 3.0 || height >= 5.0 && width >= 5.0) => {
                KernelKind::Filtering
            }
            _ => KernelKind::Convolution,
        }
    }

    pub fn product(&self, pass: Pass) -> MatrixProduct {
        let ([channels, in_height, in_width], [outputs, height, width]) = (self.input, self.output);
        let (channels, outputs) = (channels / self.groups, outputs / self.groups);
        let written = self.batch * height * width;
        let read = self.batch * in_height * in_width;
        let (map, rows, columns, depth) = match pass {
            Pass::Forward => ([height, width], written, outputs, channels * self.taps()),
            // In strided convolutions, only a part of the taps contributes to each pixel.
            Pass::BackwardData => {
                ([in_height, in_width], read, channels, outputs * self.taps() * written / read.max(1.0))
            }
            Pass::BackwardWeights => ([height, width], channels * self.taps(), outputs, written),
        };
        let tiles = |extent: f64| (extent / 4.0).ceil() * 4.0;
        let padding = tiles(map[0]) * tiles(map[1]) / (map[0] * map[1]).max(1.0);
        MatrixProduct { rows, columns, depth, of_weights: pass == Pass::BackwardWeights, padding }
    }

    fn taps(&self) -> f64 {
        self.kernel[0] * self.kernel[1]
    }
}
