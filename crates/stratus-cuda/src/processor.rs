//! What runs kernels: a GPU, or in tests the emulation of one.

use std::fmt::Display;
use std::sync::Arc;
use stratus_engine::{DType, Tile, backend::Operands, backend::StepKernel};

/// A kernel that was compiled. It is valid as long as the [`Processor`] that compiled it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Function(pub(crate) usize);

/// The compute capability from which on blocks copy to shared memory beside what they compute, and warps multiply matrices of 16 by 16 elements: without
/// either, most of our convolutions are none.
pub(crate) const AMPERE: u32 = 80;

/// The compute capability of the GPUs whose tensor cores take factors from shared memory by `wgmma`, and of no others.
pub(crate) const HOPPER: u32 = 90;

/// A file of CUDA C and what it is compiled for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Its name: a file of `source/` without its ending.
    pub file: &'static str,
    /// What is defined before it: names and values.
    pub definitions: Vec<(&'static str, String)>,
}

impl Source {
    /// A file for elements of a type: `T` is the type, `VECTOR` how many of them a thread takes at a time.
    #[must_use]
    pub fn of(file: &'static str, dtype: DType, vector: usize) -> Self {
        let definitions = vec![("T", type_name(dtype).to_owned()), ("VECTOR", vector.to_string())];
        Self { file, definitions }
    }

    /// The same with another definition.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Display) -> Self {
        self.definitions.push((name, format!("{value}")));
        self
    }

    /// What it is compiled for, where the GPU's compute capability is this one, as 90 for 9.0.
    #[must_use]
    pub fn architecture(&self, capability: u32) -> String {
        // What only one GPU has is left out for the others unless it is asked for.
        let own = if capability == HOPPER && crate::source::is_for_hopper(self.file) { "a" } else { "" };
        format!("sm_{capability}{own}")
    }

    /// The whole text, definitions and common part included.
    #[must_use]
    pub fn text(&self) -> String {
        let defined = self.definitions.iter().map(|(name, value)| format!("#define {name} {value}\n"));
        let common = crate::source::text("common").unwrap_or_default();
        let own = crate::source::text(self.file).unwrap_or_default();
        format!("{common}{}{own}", defined.collect::<String>())
    }
}

/// What a type is called in our CUDA C.
#[must_use]
pub(crate) fn type_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::Bf16 => "bf16",
        DType::F16 => "f16",
        DType::F64 => "double",
        DType::U8 => "unsigned char",
        DType::I32 => "int",
    }
}

/// Blocks and threads of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of shared memory that are asked for at the launch.
    pub shared: u32,
}

/// Bytes of shared memory that a launch may ask for without further ado.
const SHARED_OF_ALL: u32 = 48 << 10;

/// Compiles kernels and launches them, in the order in which it is told to.
pub trait Processor: Send + Sync {
    /// Compiles a file, unless that was done before, and finds a kernel of it.
    ///
    /// # Errors
    /// What the compiler said.
    fn function(&self, source: &Source, name: &str) -> Result<Function, String>;

    /// Lets a kernel be launched with more shared memory than every GPU has for a block.
    ///
    /// # Errors
    /// What the driver said.
    fn allow_shared(&self, _function: Function, _bytes: u32) -> Result<(), String> {
        Ok(())
    }

    /// Launches a kernel. Each of `arguments` is a parameter in the first bytes of its word.
    ///
    /// # Errors
    /// What the driver said.
    fn launch(&self, function: Function, shape: Shape, arguments: &mut [u64]) -> Result<(), String>;

    /// What kernels are compiled for, as 90 for compute capability 9.0.
    fn capability(&self) -> u32;

    /// How many blocks run at the same time at least: kernels that share out work make about that many or a multiple.
    fn multiprocessors(&self) -> u32;
}

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// The address of an operand.
    Operand(usize),
    /// The address of an operand, so many bytes on.
    Inside(usize, usize),
    /// The address of the scratch, so many bytes on.
    Scratch(usize),
    /// No address.
    Null,
    /// `int`.
    Int(i32),
    /// `long long`.
    Long(i64),
    /// `float`.
    Float(f32),
    /// `double`.
    Double(f64),
    /// `int`: 1 for the first tile of a micro-batch, else 0.
    IsFirstTile,
    /// `int`: 1 for the last tile of a micro-batch, else 0.
    IsLastTile,
    /// `int`: 1 where nothing of the whole batch was run before, else 0.
    IsFirstOfAll,
    /// `long long`: the tile's place in the whole batch, times this many.
    PlaceInBatch(i64),
    /// `int`: the number of micro-batches.
    MicroBatches,
    /// `int`: the number of tiles of a micro-batch.
    Tiles,
}

impl Argument {
    /// Its word for operands that lie where they do.
    pub(crate) fn word(self, operands: &Operands<'_>, scratch: usize) -> u64 {
        let tile: Tile = operands.tile();
        let flag = |is: bool| u64::from(is);
        match self {
            Self::Operand(position) => operands.address(position),
            Self::Inside(position, bytes) => operands.address(position) + bytes as u64,
            Self::Scratch(bytes) => operands.address(scratch) + bytes as u64,
            Self::Null => 0,
            Self::Int(value) => u64::from(value as u32),
            Self::Long(value) => value as u64,
            Self::Float(value) => u64::from(value.to_bits()),
            Self::Double(value) => value.to_bits(),
            Self::IsFirstTile => flag(tile.is_first()),
            Self::IsLastTile => flag(tile.is_last()),
            Self::IsFirstOfAll => flag(tile.is_first_of_all()),
            Self::PlaceInBatch(times) => (tile.in_batch() as i64 * times) as u64,
            Self::MicroBatches => tile.micro_batches as u64,
            Self::Tiles => tile.count as u64,
        }
    }
}

/// A kernel with its parameters.
pub struct Launch {
    processor: Arc<dyn Processor>,
    function: Function,
    shape: Shape,
    arguments: Vec<Argument>,
    words: Vec<u64>,
}

impl Launch {
    /// A launch of a kernel of a source.
    ///
    /// # Errors
    /// What the compiler said.
    pub fn new(
        processor: &Arc<dyn Processor>,
        source: &Source,
        name: &str,
        shape: Shape,
        arguments: Vec<Argument>,
    ) -> Result<Self, String> {
        let function = processor.function(source, name)?;
        if shape.shared > SHARED_OF_ALL {
            processor.allow_shared(function, shape.shared)?;
        }
        let words = vec![0; arguments.len()];
        Ok(Self { processor: Arc::clone(processor), function, shape, arguments, words })
    }

    /// Enqueues it; `scratch` is the position of the scratch among the operands.
    ///
    /// # Errors
    /// What the driver said.
    pub fn run(&mut self, operands: &Operands<'_>, scratch: usize) -> Result<(), String> {
        for (word, argument) in self.words.iter_mut().zip(&self.arguments) {
            *word = argument.word(operands, scratch);
        }
        self.processor.launch(self.function, self.shape, &mut self.words)
    }
}

/// Something that a step enqueues.
pub trait Call: Send {
    /// Enqueues it.
    ///
    /// # Errors
    /// What the library said.
    fn enqueue(&mut self, operands: &Operands<'_>, scratch: usize) -> Result<(), String>;
}

impl Call for Launch {
    fn enqueue(&mut self, operands: &Operands<'_>, scratch: usize) -> Result<(), String> {
        self.run(operands, scratch)
    }
}

/// What another step is made of, on operands of this one.
pub(crate) struct Elsewhere {
    pub call: Box<dyn Call>,
    /// What the other step's operands are here, in their order.
    pub operands: Vec<Argument>,
}

impl Call for Elsewhere {
    fn enqueue(&mut self, operands: &Operands<'_>, scratch: usize) -> Result<(), String> {
        let mut there = Operands::new(operands.tile());
        for (position, argument) in self.operands.iter().enumerate() {
            there.set_address(position, argument.word(operands, scratch));
        }
        self.call.enqueue(&there, self.operands.len())
    }
}

/// What a step is made of: calls in order, and the scratch that they share.
pub struct Made {
    /// What it is called in plans.
    pub implementation: String,
    /// Enqueued one after the other.
    pub calls: Vec<Box<dyn Call>>,
    /// Bytes of scratch.
    pub scratch_bytes: usize,
}

impl Made {
    /// Kernels of our own.
    #[must_use]
    pub fn of(implementation: &str, launches: Vec<Launch>, scratch_bytes: usize) -> Self {
        let calls = launches.into_iter().map(|launch| Box::new(launch) as Box<dyn Call>).collect();
        Self { implementation: format!("stratus:{implementation}"), calls, scratch_bytes }
    }
}

/// A step as the session runs it.
pub(crate) struct CudaStep {
    pub(crate) calls: Vec<Box<dyn Call>>,
    /// The position of the scratch: behind the operands.
    pub(crate) scratch: usize,
}

impl StepKernel for CudaStep {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        self.calls.iter_mut().try_for_each(|call| call.enqueue(operands, self.scratch))
    }
}
