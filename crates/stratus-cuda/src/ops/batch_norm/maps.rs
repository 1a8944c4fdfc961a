//! The maps of a batch norm, and their division by launches.

use crate::ops::{KernelBuilder, Operand, UNSUPPORTED_PRECISION, int, long};
use crate::processor::{Argument, Launch, Shape, Source};
use stratus_engine::ops::{ChannelOffsets, FusedActivation, FusedPool};
use stratus_engine::{DType, Layout};

/// The maximum number of threads of a block; also in `batch_norm_common.cu`.
const THREADS: usize = 256;

/// The maximum number of threads of a block along the channels: with vectors of 16 bytes a warp then reads
/// 512 contiguous bytes.
const CHANNEL_THREADS: usize = 32;

/// The minimum number of rows of a thread, to amortise loading its channels' parameters.
const MIN_ROWS_PER_THREAD: usize = 4;

/// Blocks per multiprocessor of a pass over a map: far more than are resident, so that all multiprocessors
/// finish at about the same time.
const PASS_BLOCKS_PER_SM: usize = 16;

/// Blocks per multiprocessor of a sum: only the resident ones, because each has partial sums that must be
/// added.
const SUM_BLOCKS_PER_SM: usize = 2;

/// The threads of a block that adds partial sums: along the channels and along the partial sums.
const REDUCTION_THREADS: [u32; 2] = [32, 32];

/// The channels of a norm within a map, which may be a concatenation.
#[derive(Clone, Copy)]
struct MapView {
    dtype: DType,
    /// The norm's first channel.
    first: usize,
    /// Elements between two pixels: the map's channels.
    stride: usize,
    image: [usize; 4],
}

impl MapView {
    fn new(operand: &Operand, first: Option<usize>) -> Result<Self, String> {
        let dtype = operand.dtype();
        if !matches!(dtype, DType::F32 | DType::Bf16 | DType::F16) {
            return Err(UNSUPPORTED_PRECISION.to_owned());
        }
        if !operand.layout.same_bytes(&Layout::channels_last(&operand.value.shape)) {
            return Err(format!("`{}` is not channels last", operand.value.name));
        }
        let image = operand.image()?;
        Ok(Self { dtype, first: first.unwrap_or(0), stride: image[1], image })
    }

    fn pixels(&self) -> usize {
        self.image[0] * self.image[2] * self.image[3]
    }

    fn at(&self, position: usize) -> Argument {
        Argument::OperandOffset(position, self.first * self.dtype.bytes())
    }
}

/// The input and output of a norm. The gradient of each has the same layout.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Maps {
    pub channels: usize,
    x: MapView,
    y: MapView,
    vector: usize,
}

impl Maps {
    /// Creates the maps of a norm of `channels` channels; `parts` holds its first channels in larger maps.
    ///
    /// # Errors
    /// For f64, or if a map is not channels last.
    pub fn new(channels: usize, parts: ChannelOffsets, x: &Operand, y: &Operand) -> Result<Self, String> {
        let (x, y) = (MapView::new(x, parts.x)?, MapView::new(y, parts.y)?);
        let lengths = [channels, x.first, x.stride, y.first, y.stride];
        let widest = x.dtype.bytes().max(y.dtype.bytes());
        let fits = |vector: &usize| lengths.iter().all(|length| length.is_multiple_of(*vector));
        let vector = [8, 4, 2].into_iter().filter(|vector| vector * widest <= 16).find(fits).unwrap_or(1);
        Ok(Self { channels, x, y, vector })
    }

    /// The pixels of the input.
    pub fn pixels_of_x(&self) -> usize {
        self.x.pixels()
    }

    /// The pixels of the output.
    pub fn pixels_of_y(&self) -> usize {
        self.y.pixels()
    }

    /// The norm's first channel in the operand at a position, which has the layout and type of `x`.
    pub fn like_x(&self, position: usize) -> Argument {
        self.x.at(position)
    }

    /// The norm's first channel in the gradient of `x`, which has the layout of `x` and the type of the
    /// output.
    pub fn gradient_of_x(&self, position: usize) -> Argument {
        MapView { dtype: self.y.dtype, ..self.x }.at(position)
    }

    /// The norm's first channel in the operand at a position, which has the layout and type of `y`.
    pub fn like_y(&self, position: usize) -> Argument {
        self.y.at(position)
    }

    /// The number of channels.
    pub fn width(&self) -> Result<Argument, String> {
        int(self.channels)
    }

    /// Pixels, channels, and the strides of pixels in `x` and in `y`.
    pub fn extents(&self) -> Result<[Argument; 4], String> {
        Ok([long(self.pixels_of_x()), self.width()?, long(self.x.stride), long(self.y.stride)])
    }

    /// The number of pixels to divide among threads, the channels, and height and width of `x` and of `y`,
    /// for kernels with pooling.
    pub fn extents_of_pool(&self, rows: usize) -> Result<[Argument; 6], String> {
        let ([.., height, width], [.., out_height, out_width]) = (self.x.image, self.y.image);
        let mut extents = [Argument::Null; 6];
        let numbers = [rows, self.channels, height, width, out_height, out_width];
        for (extent, number) in extents.iter_mut().zip(numbers) {
            *extent = int(number)?;
        }
        Ok(extents)
    }

    /// A source file for these maps, with the activation that follows the norm.
    pub fn source(&self, file: &'static str, activation: FusedActivation) -> Source {
        let mut source = Source::new(file, self.y.dtype, self.vector)
            .with("RELU", u8::from(activation == FusedActivation::RELU));
        let (name, constants) = match activation {
            FusedActivation::Identity | FusedActivation::Relu { ceiling: None } => ("", [0.0; 2]),
            FusedActivation::Relu { ceiling: Some(ceiling) } => ("clipped_relu", [ceiling, 0.0]),
            FusedActivation::Activation(activation) => (activation.name(), activation.constants()),
        };
        if !name.is_empty() {
            source = source.with("ACTIVATION", name).with("DERIVATIVE", format!("{name}_derivative"));
            for (constant, value) in ["CONSTANT_A", "CONSTANT_B"].into_iter().zip(constants) {
                source = source.with(constant, format!("{value:?}f"));
            }
        }
        if self.x.dtype == self.y.dtype {
            return source;
        }
        source.with("X", crate::processor::type_name(self.x.dtype))
    }

    /// The source file with pooling for these maps.
    pub fn source_of_pool(&self, pool: FusedPool, activation: FusedActivation) -> Source {
        let pool = pool.pool();
        let inside = (0..2).all(|axis| {
            let reach = (self.y.image[2 + axis] - 1) * pool.stride[axis] + pool.kernel[axis];
            pool.padding[axis] == 0 && reach <= self.x.image[2 + axis]
        });
        self.source("batch_norm_pool", activation)
            .with("KERNEL_H", pool.kernel[0])
            .with("KERNEL_W", pool.kernel[1])
            .with("STRIDE_H", pool.stride[0])
            .with("STRIDE_W", pool.stride[1])
            .with("PADDING_H", pool.padding[0])
            .with("PADDING_W", pool.padding[1])
            .with("INSIDE", u8::from(inside))
    }

    /// The shape of a launch that makes one pass over `rows` pixels.
    pub fn pass(&self, rows: usize, builder: &KernelBuilder<'_>) -> Shape {
        self.shape(rows, PASS_BLOCKS_PER_SM, builder)
    }

    fn shape(&self, rows: usize, blocks_each: usize, builder: &KernelBuilder<'_>) -> Shape {
        let threads = self.channels / self.vector;
        // All blocks have the same number of threads.
        let along = threads.div_ceil(threads.div_ceil(CHANNEL_THREADS));
        let (columns, across) = (threads.div_ceil(along), THREADS / along);
        let target_blocks = (blocks_each * builder.processor.multiprocessors() as usize).div_ceil(columns);
        let needed = rows.div_ceil(across * MIN_ROWS_PER_THREAD);
        let grid = [columns as u32, target_blocks.min(needed).max(1) as u32, 1];
        Shape { grid, block: [along as u32, across as u32, 1], shared: 0 }
    }

    /// The launch that computes two sums over `rows` pixels per channel, with a partial sum per block, and
    /// the parameters of the launch that adds these.
    pub fn sums(
        &self,
        (source, name): (&Source, &str),
        rows: usize,
        mut arguments: Vec<Argument>,
        builder: &KernelBuilder<'_>,
    ) -> Result<(Launch, PartialSums), String> {
        let shape = self.shape(rows, SUM_BLOCKS_PER_SM, builder);
        arguments.push(Argument::Scratch(0));
        let launch = builder.launch(source, name, shape, arguments)?;
        let count = shape.grid[1] as usize;
        let bytes = count * 2 * self.channels * DType::F64.bytes();
        let columns = self.channels.div_ceil(REDUCTION_THREADS[0] as usize) as u32;
        let shape = Shape {
            grid: [columns, 1, 1],
            block: [REDUCTION_THREADS[0], REDUCTION_THREADS[1], 1],
            shared: 0,
        };
        Ok((
            launch,
            PartialSums { arguments: [Argument::Scratch(0), int(count)?, self.width()?], shape, bytes },
        ))
    }
}

/// The partial sums of the blocks of a launch: `[blocks, 2, channels]` in f64.
pub(in crate::ops) struct PartialSums {
    /// Their address, the number of blocks and of channels.
    pub arguments: [Argument; 3],
    /// The shape of the launch that adds them.
    pub shape: Shape,
    /// Their scratch in bytes.
    pub bytes: usize,
}
