//! Kernels, launches and steps, and the [`Processor`] that runs them: a GPU, or in tests an emulated one.

use crate::timestamps::TimestampSlots;
use std::fmt::Display;
use std::sync::Arc;
use stratus_engine::{DType, Tile, backend::Operands};

/// A compiled kernel, valid as long as the [`Processor`] that compiled it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Function(pub(crate) usize);

/// Compute capability 8.0, which introduced asynchronous copies to shared memory (`cp.async`) and bf16 on
/// tensor cores. Most native convolutions need both.
pub(crate) const AMPERE: u32 = 80;

/// Compute capability 9.0, the only one with `wgmma`: tensor cores that read factors from shared memory.
pub(crate) const HOPPER: u32 = 90;

/// A file of CUDA C with macro definitions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// The name of a file of `source/`, without its extension.
    pub file: &'static str,
    /// The text of that file, if [`crate::source::text`] does not have it.
    pub file_text: Option<&'static str>,
    /// Macros defined before its text: names and values.
    pub definitions: Vec<(&'static str, String)>,
}

impl Source {
    /// A source for elements of type `T`, of which a thread loads `VECTOR` at once.
    #[must_use]
    pub fn new(file: &'static str, dtype: DType, vector: usize) -> Self {
        let definitions = vec![("T", type_name(dtype).to_owned()), ("VECTOR", vector.to_string())];
        Self { file, file_text: None, definitions }
    }

    /// [`new`](Self::new) with the text of a file that needs no other file.
    #[must_use]
    pub fn of_text(file: &'static str, text: &'static str, dtype: DType, vector: usize) -> Self {
        Self { file_text: Some(text), ..Self::new(file, dtype, vector) }
    }

    /// The text of its file, with the files that it includes.
    #[must_use]
    pub fn body(&self) -> &'static str {
        self.file_text.or_else(|| crate::source::text(self.file)).unwrap_or_default()
    }

    /// Adds a definition.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Display) -> Self {
        self.definitions.push((name, format!("{value}")));
        self
    }

    /// NVRTC's target for a compute capability (90 for 9.0): `sm_90`, or `sm_90a` for a file with
    /// instructions specific to that GPU.
    #[must_use]
    pub fn architecture(&self, capability: u32) -> String {
        let suffix = if capability == HOPPER && crate::source::is_for_hopper(self.file) { "a" } else { "" };
        format!("sm_{capability}{suffix}")
    }

    /// The whole text: `common.cu`, the definitions, the file.
    #[must_use]
    pub fn text(&self) -> String {
        let defined = self.definitions.iter().map(|(name, value)| format!("#define {name} {value}\n"));
        let common = crate::source::text("common").unwrap_or_default();
        format!("{common}{}{}", defined.collect::<String>(), self.body())
    }
}

/// A type's name in CUDA C, as `common.cu` defines it.
#[must_use]
pub(crate) fn type_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::Bf16 => "bf16",
        DType::F16 => "f16",
        DType::F64 => "double",
        DType::U8 => "unsigned char",
        DType::I8 => "signed char",
        DType::I32 => "int",
    }
}

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
}

/// The maximum dynamic shared memory of a kernel without [`Processor::allow_shared`], in bytes.
const DEFAULT_SHARED_BYTES: u32 = 48 << 10;

/// The last parameters of every kernel: the addresses of its timestamps.
const TIMESTAMP_PARAM_COUNT: usize = 2;

/// The kernels launched: files of `source/` without extension, and names.
#[cfg(feature = "emulation")]
pub type Launched = std::collections::BTreeSet<(&'static str, String)>;

/// Compiles kernels and launches them in the order of the calls.
pub trait Processor: Send + Sync {
    /// Compiles a file, unless already compiled, and looks up one of its kernels.
    ///
    /// # Errors
    /// The compiler's error messages.
    fn function(&self, source: &Source, name: &str) -> Result<Function, String>;

    /// Compiles sources in parallel, unless already compiled. Errors are reported when the source is
    /// requested.
    fn precompile(&self, _sources: Vec<Source>) {}

    /// Allows a kernel more than 48 KiB of dynamic shared memory: `bytes` per block.
    ///
    /// # Errors
    /// The driver's error message.
    fn allow_shared(&self, _function: Function, _bytes: u32) -> Result<(), String> {
        Ok(())
    }

    /// Launches a kernel. Each of `arguments` is a word that holds a parameter in its first bytes.
    ///
    /// # Errors
    /// The driver's error message.
    fn launch(&self, function: Function, shape: Shape, arguments: &mut [u64]) -> Result<(), String>;

    /// The addresses for kernels' timestamps.
    fn timestamps(&self) -> &TimestampSlots;

    /// The kernels launched so far; only an emulation records them.
    #[cfg(feature = "emulation")]
    fn launched(&self) -> Launched {
        Default::default()
    }

    /// Returns the implementation that this processor runs in place of another; by default the same.
    fn adapt(&self, implementation: Implementation) -> Implementation {
        implementation
    }

    /// The compute capability that kernels are compiled for, as 90 for 9.0.
    fn capability(&self) -> u32;

    /// The number of multiprocessors of the GPU. Launches have about as many blocks, or a multiple.
    fn multiprocessors(&self) -> u32;
}

/// A parameter of a kernel. Addresses and tiles are known only when the step runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// The address of an operand.
    Operand(usize),
    /// The address of an operand plus this many bytes.
    OperandOffset(usize, usize),
    /// The address of the scratch plus this many bytes.
    Scratch(usize),
    /// A null pointer.
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
    /// `int`: 1 for the first tile of the first micro-batch, else 0.
    IsFirstOfAll,
    /// `long long`: the number of tiles before this one in the whole batch, times this number.
    BatchOffset(i64),
    /// `int`: the index of this micro-batch among a worker's micro-batches.
    MicroBatch(usize),
    /// `int`: the number of tiles of a micro-batch.
    Tiles,
}

impl Argument {
    /// The value for operands at these addresses; `scratch` is the position of the scratch among them.
    pub(crate) fn word(self, operands: &Operands<'_>, scratch: usize) -> u64 {
        let tile: Tile = operands.tile();
        let flag = |is: bool| u64::from(is);
        match self {
            Self::Operand(position) => operands.address(position),
            Self::OperandOffset(position, bytes) => operands.address(position) + bytes as u64,
            Self::Scratch(bytes) => operands.address(scratch) + bytes as u64,
            Self::Null => 0,
            Self::Int(value) => u64::from(value as u32),
            Self::Long(value) => value as u64,
            Self::Float(value) => u64::from(value.to_bits()),
            Self::Double(value) => value.to_bits(),
            Self::IsFirstTile => flag(tile.is_first()),
            Self::IsLastTile => flag(tile.is_last()),
            Self::IsFirstOfAll => flag(tile.starts_sums()),
            Self::BatchOffset(times) => (tile.global_position() as i64 * times) as u64,
            Self::MicroBatch(count) => (tile.micro_batch % count.max(1)) as u64,
            Self::Tiles => tile.count as u64,
        }
    }
}

/// A launch of a kernel: its shape and its parameters.
pub struct Launch {
    processor: Arc<dyn Processor>,
    function: Function,
    shape: Shape,
    arguments: Vec<Argument>,
    words: Vec<u64>,
}

impl Launch {
    /// Compiles the kernel `name` of a source and returns its launch.
    ///
    /// # Errors
    /// The compiler's error messages.
    pub fn new(
        processor: &Arc<dyn Processor>,
        source: &Source,
        name: &str,
        shape: Shape,
        arguments: Vec<Argument>,
    ) -> Result<Self, String> {
        let function = processor.function(source, name)?;
        if shape.shared > DEFAULT_SHARED_BYTES {
            processor.allow_shared(function, shape.shared)?;
        }
        let words = vec![0; arguments.len() + TIMESTAMP_PARAM_COUNT];
        Ok(Self { processor: Arc::clone(processor), function, shape, arguments, words })
    }

    /// Enqueues it; `scratch` is the position of the scratch among the operands.
    ///
    /// # Errors
    /// The driver's error message.
    pub fn run(&mut self, operands: &Operands<'_>, scratch: usize) -> Result<(), String> {
        for (word, argument) in self.words.iter_mut().zip(&self.arguments) {
            *word = argument.word(operands, scratch);
        }
        if let Some((_, timed)) = self.words.split_last_chunk_mut::<TIMESTAMP_PARAM_COUNT>() {
            *timed = self.processor.timestamps().kernel_addresses();
        }
        self.processor.launch(self.function, self.shape, &mut self.words)
    }
}

/// Work that a step enqueues: a launch, or a library call.
pub trait Call: Send {
    /// Returns whether it is a launch of a native kernel, which records its own timestamps.
    fn is_native(&self) -> bool {
        false
    }

    /// Enqueues it; `scratch` is the position of the scratch among the operands.
    ///
    /// # Errors
    /// The error message of the driver or of the called library.
    fn enqueue(&mut self, operands: &Operands<'_>, scratch: usize) -> Result<(), String>;
}

impl Call for Launch {
    fn is_native(&self) -> bool {
        true
    }

    fn enqueue(&mut self, operands: &Operands<'_>, scratch: usize) -> Result<(), String> {
        self.run(operands, scratch)
    }
}

/// A call of another step, on operands of this one.
pub(crate) struct NestedCall {
    pub call: Box<dyn Call>,
    /// The other step's operands in its order, as arguments of this one.
    pub operands: Vec<Argument>,
}

impl Call for NestedCall {
    fn is_native(&self) -> bool {
        self.call.is_native()
    }

    fn enqueue(&mut self, operands: &Operands<'_>, scratch: usize) -> Result<(), String> {
        let mut nested = Operands::new(operands.tile());
        for (position, argument) in self.operands.iter().enumerate() {
            nested.set_address(position, argument.word(operands, scratch));
        }
        self.call.enqueue(&nested, self.operands.len())
    }
}

/// An implementation of a step: calls in order, and the scratch that they share.
pub struct Implementation {
    /// The name in plans: `cublas`, cuDNN's name of a configuration, or `stratus:…` for native kernels.
    pub name: String,
    /// The calls, enqueued in order.
    pub calls: Vec<Box<dyn Call>>,
    /// The scratch in bytes.
    pub scratch_bytes: usize,
}

impl Implementation {
    /// An implementation by native kernels; `name` follows `stratus:` in plans.
    #[must_use]
    pub fn native(name: &str, launches: Vec<Launch>, scratch_bytes: usize) -> Self {
        let calls = launches.into_iter().map(|launch| Box::new(launch) as Box<dyn Call>).collect();
        Self { name: format!("stratus:{name}"), calls, scratch_bytes }
    }
}
