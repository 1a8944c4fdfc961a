//! The work of a training step: its kernels with their operations, bytes and the matrix product that each
//! convolution comes to. It follows from the network alone; machines come later.

pub mod layers;
pub mod program;
pub mod training;

/// What kind of kernel it is: kinds differ in how much of a machine's peaks they reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A dense convolution that minimal filtering (Winograd) or a transform suits: 3×3, or 5×5 and larger,
    /// of stride 1.
    Filtering,
    /// Any other convolution of more than four channels: a matrix product.
    Convolution,
    /// Forward convolution of at most four channels: images.
    FirstForward,
    /// Gradient of the weights of such a convolution.
    FirstWeights,
    /// A depthwise convolution: each channel by itself.
    Depthwise,
    /// A fully connected layer.
    Linear,
    /// Batch norm and other norms.
    Norm,
    /// Pooling, resizing.
    Pool,
    /// What reads and writes each element once.
    Elementwise,
    /// The sum of a map's gradient over samples and pixels.
    BiasGradient,
    /// The optimiser.
    Update,
}

impl Kind {
    /// Its name in tables.
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

/// The matrix product `[rows, depth] × [depth, columns]` that a convolution is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Product {
    /// Of a forward pass: samples × pixels of the output.
    pub rows: f64,
    /// Of a forward pass: channels of the output.
    pub columns: f64,
    /// Of a forward pass: channels of the input × taps.
    pub depth: f64,
    /// Whether it is a gradient of weights, whose depth goes over the batch.
    pub of_weights: bool,
    /// By how much a map that is rounded up to tiles of 4×4 pixels is larger than the map; 1 where it fits.
    pub padding: f64,
}

/// One kernel of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// The layers that it computes.
    pub layer: String,
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// Floating-point operations by definition, a multiply-add being two.
    pub flops: f64,
    /// Bytes of the operands that it reads and writes.
    pub bytes: f64,
    /// For convolutions.
    pub product: Option<Product>,
    /// How often it is started.
    pub launches: f64,
    /// Its sizes; zeros where only its layer is known.
    pub sizes: Sizes,
}

/// How many numbers say how large a kernel is.
pub const SIZES: usize = 9;

/// Binary logarithms of: samples, channels and pixels of its first and of its last operand, a half that of
/// its operations and of its bytes, tiles.
pub type Sizes = [f64; SIZES];

/// What a step does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    /// In order.
    pub kernels: Vec<Kernel>,
}

impl Work {
    /// Floating-point operations of a step.
    #[must_use]
    pub fn flops(&self) -> f64 {
        self.kernels.iter().map(|kernel| kernel.flops).sum()
    }

    /// Bytes that a step reads and writes.
    #[must_use]
    pub fn bytes(&self) -> f64 {
        self.kernels.iter().map(|kernel| kernel.bytes).sum()
    }

    /// Kernels that are started.
    #[must_use]
    pub fn launches(&self) -> f64 {
        self.kernels.iter().map(|kernel| kernel.launches).sum()
    }
}

/// A convolution's extents, of a forward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Extents {
    pub batch: f64,
    pub input: [f64; 3],
    pub output: [f64; 3],
    pub kernel: [f64; 2],
    pub stride: f64,
    pub groups: f64,
    pub dilated: bool,
}

/// Which of a convolution's three kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    Forward,
    BackwardData,
    BackwardWeights,
}

impl Extents {
    pub fn flops(&self) -> f64 {
        let [channels, ..] = self.input;
        let [outputs, height, width] = self.output;
        2.0 * self.batch * outputs * height * width * self.taps() * channels / self.groups
    }

    pub fn kind(&self, pass: Pass) -> Kind {
        let [channels, ..] = self.input;
        let [height, width] = self.kernel;
        let dense = self.stride == 1.0 && self.groups == 1.0 && !self.dilated;
        match pass {
            _ if self.groups > 1.0 && self.groups == channels => Kind::Depthwise,
            Pass::BackwardWeights if channels <= 4.0 => Kind::FirstWeights,
            _ if channels <= 4.0 => Kind::FirstForward,
            _ if dense && (height == 3.0 && width == 3.0 || height >= 5.0 && width >= 5.0) => Kind::Filtering,
            _ => Kind::Convolution,
        }
    }

    pub fn product(&self, pass: Pass) -> Product {
        let ([channels, in_height, in_width], [outputs, height, width]) = (self.input, self.output);
        let (channels, outputs) = (channels / self.groups, outputs / self.groups);
        let made = self.batch * height * width;
        let read = self.batch * in_height * in_width;
        let (map, rows, columns, depth) = match pass {
            Pass::Forward => ([height, width], made, outputs, channels * self.taps()),
            // Of strided convolutions only a part of the taps meets each pixel.
            Pass::BackwardData => {
                ([in_height, in_width], read, channels, outputs * self.taps() * made / read.max(1.0))
            }
            Pass::BackwardWeights => ([height, width], channels * self.taps(), outputs, made),
        };
        let tiles = |extent: f64| (extent / 4.0).ceil() * 4.0;
        let padding = tiles(map[0]) * tiles(map[1]) / (map[0] * map[1]).max(1.0);
        Product { rows, columns, depth, of_weights: pass == Pass::BackwardWeights, padding }
    }

    fn taps(&self) -> f64 {
        self.kernel[0] * self.kernel[1]
    }
}
