//! How the maps of a norm lie, and how their work is shared out.

use crate::ops::{Maker, Operand, PRECISIONS, int, long};
use crate::processor::{Argument, Launch, Shape, Source};
use stratus_engine::ops::{FusedPool, Parts};
use stratus_engine::{DType, Layout};

/// The most threads of a block; `batch_norm_common.cu` knows it too.
const THREADS: usize = 256;

/// Threads of a block along the channels, at most: with vectors of 16 bytes a warp then reads 512 bytes in a row.
const ALONG_CHANNELS: usize = 32;

/// Rows that a thread has at least, where there are so many blocks that they could have less: what belongs to its channels must be worth reading.
const LEAST_ROWS: usize = 4;

/// Blocks for each multiprocessor where a map is gone through once. Few run at the same time: what remains at the end is small.
const BLOCKS_OF_PASSES: usize = 16;

/// Blocks for each multiprocessor where sums are taken: as many as run at the same time. Each has sums that must be added up.
const BLOCKS_OF_SUMS: usize = 2;

/// Channels and shares that a block of the second launch of a sum takes at a time.
const SETTLING: [u32; 2] = [32, 32];

/// Where the channels of a norm are in a map.
#[derive(Clone, Copy)]
struct Place {
    dtype: DType,
    /// The first channel.
    first: usize,
    /// Elements from a pixel to the next.
    stride: usize,
    image: [usize; 4],
}

impl Place {
    fn of(operand: &Operand, first: Option<usize>) -> Result<Self, String> {
        let dtype = operand.dtype();
        if !matches!(dtype, DType::F32 | DType::Bf16 | DType::F16) {
            return Err(PRECISIONS.to_owned());
        }
        if !operand.layout.same_bytes(&Layout::channels_last(&operand.value.shape)) {
            return Err(format!("the channels of `{}` do not lie last", operand.value.name));
        }
        let image = operand.image()?;
        Ok(Self { dtype, first: first.unwrap_or(0), stride: image[1], image })
    }

    fn pixels(&self) -> usize {
        self.image[0] * self.image[2] * self.image[3]
    }

    fn at(&self, position: usize) -> Argument {
        Argument::Inside(position, self.first * self.dtype.bytes())
    }
}

/// The map that is normalised, with its gradient that lies alike, and the result, with its gradient.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Maps {
    pub channels: usize,
    x: Place,
    y: Place,
    vector: usize,
}

impl Maps {
    /// Those of a norm of so many channels.
    pub fn new(channels: usize, parts: Parts, x: &Operand, y: &Operand) -> Result<Self, String> {
        let (x, y) = (Place::of(x, parts.x)?, Place::of(y, parts.y)?);
        let lengths = [channels, x.first, x.stride, y.first, y.stride];
        let widest = x.dtype.bytes().max(y.dtype.bytes());
        let fits = |vector: &usize| lengths.iter().all(|length| length.is_multiple_of(*vector));
        let vector = [8, 4, 2].into_iter().filter(|vector| vector * widest <= 16).find(fits).unwrap_or(1);
        Ok(Self { channels, x, y, vector })
    }

    /// Pixels of the map that is normalised.
    pub fn pixels_of_x(&self) -> usize {
        self.x.pixels()
    }

    /// Pixels of the result.
    pub fn pixels_of_y(&self) -> usize {
        self.y.pixels()
    }

    /// The norm's first channel in the operand at a position, which lies as `x` does.
    pub fn like_x(&self, position: usize) -> Argument {
        self.x.at(position)
    }

    /// The norm's first channel in the gradient of `x`: it lies as that does and has the type of the result.
    pub fn gradient_of_x(&self, position: usize) -> Argument {
        Place { dtype: self.y.dtype, ..self.x }.at(position)
    }

    /// The same as of `x`, where it lies as `y` does.
    pub fn like_y(&self, position: usize) -> Argument {
        self.y.at(position)
    }

    /// The number of channels.
    pub fn width(&self) -> Result<Argument, String> {
        int(self.channels)
    }

    /// Pixels, channels, and how far pixels lie apart in `x` and in `y`.
    pub fn extents(&self) -> Result<[Argument; 4], String> {
        Ok([long(self.pixels_of_x()), self.width()?, long(self.x.stride), long(self.y.stride)])
    }

    /// Pixels that threads share out, channels, and height and width of `x` and of `y`, for kernels with pooling.
    pub fn extents_of_pool(&self, rows: usize) -> Result<[Argument; 6], String> {
        let ([.., height, width], [.., out_height, out_width]) = (self.x.image, self.y.image);
        let mut extents = [Argument::Null; 6];
        let numbers = [rows, self.channels, height, width, out_height, out_width];
        for (extent, number) in extents.iter_mut().zip(numbers) {
            *extent = int(number)?;
        }
        Ok(extents)
    }

    /// A file for these maps.
    pub fn source(&self, file: &'static str, relu: bool) -> Source {
        let source = Source::of(file, self.y.dtype, self.vector).with("RELU", u8::from(relu));
        if self.x.dtype == self.y.dtype {
            return source;
        }
        source.with("X", crate::processor::type_name(self.x.dtype))
    }

    /// The file with pooling for these maps.
    pub fn source_of_pool(&self, pool: FusedPool, relu: bool) -> Source {
        let pool = pool.pool();
        let inside = (0..2).all(|axis| {
            let reach = (self.y.image[2 + axis] - 1) * pool.stride[axis] + pool.kernel[axis];
            pool.padding[axis] == 0 && reach <= self.x.image[2 + axis]
        });
        self.source("batch_norm_pool", relu)
            .with("KERNEL_H", pool.kernel[0])
            .with("KERNEL_W", pool.kernel[1])
            .with("STRIDE_H", pool.stride[0])
            .with("STRIDE_W", pool.stride[1])
            .with("PADDING_H", pool.padding[0])
            .with("PADDING_W", pool.padding[1])
            .with("INSIDE", u8::from(inside))
    }

    /// The shape of a launch that goes through `rows` once.
    pub fn pass(&self, rows: usize, maker: &Maker<'_>) -> Shape {
        self.shape(rows, BLOCKS_OF_PASSES, maker)
    }

    fn shape(&self, rows: usize, blocks_each: usize, maker: &Maker<'_>) -> Shape {
        let threads = self.channels / self.vector;
        // As many in every block.
        let along = threads.div_ceil(threads.div_ceil(ALONG_CHANNELS));
        let (columns, across) = (threads.div_ceil(along), THREADS / along);
        let wanted = (blocks_each * maker.processor.multiprocessors() as usize).div_ceil(columns);
        let needed = rows.div_ceil(across * LEAST_ROWS);
        let grid = [columns as u32, wanted.min(needed).max(1) as u32, 1];
        Shape { grid, block: [along as u32, across as u32, 1], shared: 0 }
    }

    /// A launch that takes two sums over `rows` for each channel, and what another needs that adds up the shares of its blocks.
    pub fn sums(
        &self,
        (source, name): (&Source, &str),
        rows: usize,
        mut arguments: Vec<Argument>,
        maker: &Maker<'_>,
    ) -> Result<(Launch, Shares), String> {
        let shape = self.shape(rows, BLOCKS_OF_SUMS, maker);
        arguments.push(Argument::Scratch(0));
        let launch = maker.launch(source, name, shape, arguments)?;
        let count = shape.grid[1] as usize;
        let bytes = count * 2 * self.channels * DType::F64.bytes();
        let columns = self.channels.div_ceil(SETTLING[0] as usize) as u32;
        let shape = Shape { grid: [columns, 1, 1], block: [SETTLING[0], SETTLING[1], 1], shared: 0 };
        Ok((launch, Shares { arguments: [Argument::Scratch(0), int(count)?, self.width()?], shape, bytes }))
    }
}

/// The sums that the blocks of a launch took.
pub(in crate::ops) struct Shares {
    /// Where they are, how many, of how many channels.
    pub arguments: [Argument; 3],
    /// The shape of the launch that adds them up.
    pub shape: Shape,
    /// Bytes of scratch that they take.
    pub bytes: usize,
}
