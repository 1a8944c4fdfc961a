//! Named tensors in memory, and the writing of safetensors files.
//! <https://github.com/huggingface/safetensors#format>

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};

use serde_json::json;

/// A named tensor that owns its values, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The name: `layer1.0.conv1.weight`.
    pub name: String,
    /// The extents, outermost first; empty for a single value.
    pub shape: Vec<usize>,
    /// The values.
    pub values: Values,
}

/// The values of a [`Tensor`].
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// 32-bit floating point.
    F32(Vec<f32>),
    /// 64-bit integers.
    I64(Vec<i64>),
}

/// A named tensor that borrows its values, row-major.
#[derive(Clone, Copy, Debug)]
pub struct TensorRef<'a> {
    /// The name: `layer1.0.conv1.weight`.
    pub name: &'a str,
    /// The extents, outermost first; empty for a single value.
    pub shape: &'a [usize],
    /// The values.
    pub values: ValuesRef<'a>,
}

/// The values of a [`TensorRef`].
#[derive(Clone, Copy, Debug)]
pub enum ValuesRef<'a> {
    /// 32-bit floating point.
    F32(&'a [f32]),
    /// 32-bit floating point, in another form: converted while they are written, without a full copy.
    External(&'a dyn ExternalValues),
    /// 64-bit integers.
    I64(&'a [i64]),
}

/// 32-bit floating point values in another form, such as device memory.
pub trait ExternalValues: fmt::Debug {
    /// How many there are.
    fn count(&self) -> usize;

    /// Copies out as many as `out` holds, from `first` on, in row-major order; no more are asked for than
    /// there are.
    ///
    /// # Errors
    /// Where they cannot be had any more.
    fn read(&self, first: usize, out: &mut [f32]) -> io::Result<()>;
}

impl Tensor {
    /// The same tensor, borrowed.
    #[must_use]
    pub fn as_ref(&self) -> TensorRef<'_> {
        let values = match &self.values {
            Values::F32(values) => ValuesRef::F32(values),
            Values::I64(values) => ValuesRef::I64(values),
        };
        TensorRef { name: &self.name, shape: &self.shape, values }
    }
}

impl<'a> TensorRef<'a> {
    /// A tensor of 32-bit floating point values.
    #[must_use]
    pub fn f32(name: &'a str, shape: &'a [usize], values: &'a [f32]) -> Self {
        Self { name, shape, values: ValuesRef::F32(values) }
    }

    /// A tensor of 64-bit integers.
    #[must_use]
    pub fn i64(name: &'a str, shape: &'a [usize], values: &'a [i64]) -> Self {
        Self { name, shape, values: ValuesRef::I64(values) }
    }
}

impl ValuesRef<'_> {
    /// The name of the type in safetensors files: `F32`, `I64`.
    #[must_use]
    pub fn dtype(&self) -> &'static str {
        match self {
            Self::F32(_) | Self::External(_) => "F32",
            Self::I64(_) => "I64",
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::External(values) => values.count(),
            Self::I64(values) => values.len(),
        }
    }

    /// How many bytes they are.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::F32(values) => size_of_val(*values),
            Self::External(values) => values.count() * size_of::<f32>(),
            Self::I64(values) => size_of_val(*values),
        }
    }

    /// Hands the little-endian bytes to `sink`, in pieces.
    ///
    /// # Errors
    /// The first that `sink` gives, or where values cannot be had.
    pub fn for_each_piece<E: From<io::Error>>(
        &self,
        mut sink: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::F32(values) => pieces(values, f32::to_le_bytes, sink),
            Self::External(values) => {
                let mut buffer = [0.0; 1 << 12];
                let count = values.count();
                (0..count).step_by(buffer.len()).try_for_each(|first| {
                    let part = &mut buffer[..(count - first).min(1 << 12)];
                    values.read(first, part)?;
                    pieces(part, f32::to_le_bytes, &mut sink)
                })
            }
            Self::I64(values) => pieces(values, i64::to_le_bytes, sink),
        }
    }
}

fn pieces<T: Copy, const N: usize, E>(
    values: &[T],
    bytes: impl Fn(T) -> [u8; N],
    mut sink: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut buffer = [0; 1 << 14];
    for chunk in values.chunks(buffer.len() / N) {
        for (out, &value) in buffer.chunks_exact_mut(N).zip(chunk) {
            out.copy_from_slice(&bytes(value));
        }
        sink(&buffer[..chunk.len() * N])?;
    }
    Ok(())
}

/// Writes tensors in the safetensors format, streaming: nothing of their size is held in memory.
///
/// `metadata` is the file's `__metadata__`; `format` is set to `pt` where it is not given, as readers of
/// PyTorch ask for it.
///
/// # Errors
/// What `out` gives. Names that repeat, or a shape that does not give the number of values, are
/// [`io::ErrorKind::InvalidInput`].
pub fn write_safetensors(
    out: &mut dyn Write,
    tensors: &[TensorRef<'_>],
    metadata: &BTreeMap<String, String>,
) -> io::Result<()> {
    let refuse = |reason: String| Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    // Larger types first, so that every tensor is aligned to its type.
    let mut order: Vec<&TensorRef<'_>> = tensors.iter().collect();
    order.sort_by_key(|tensor| (!matches!(tensor.values, ValuesRef::I64(_)), tensor.name));
    let mut metadata = metadata.clone();
    metadata.entry("format".to_owned()).or_insert_with(|| "pt".to_owned());
    let mut header = BTreeMap::from([("__metadata__", json!(metadata))]);
    let mut end = 0;
    for tensor in &order {
        let TensorRef { name, shape, values } = tensor;
        let count = shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
        if count != Some(values.len()) {
            return refuse(format!("the tensor {name} has {} values for the shape {shape:?}", values.len()));
        }
        let start = end;
        end += values.bytes();
        let entry = json!({"dtype": values.dtype(), "shape": shape, "data_offsets": [start, end]});
        if header.insert(name, entry).is_some() {
            return refuse(format!("the name {name} is taken already"));
        }
    }
    let mut header = serde_json::to_vec(&header).map_err(io::Error::other)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    order.iter().try_for_each(|tensor| tensor.values.for_each_piece(|piece| out.write_all(piece)))
}
