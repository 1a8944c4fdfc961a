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
    /// The dimensions, outermost first; empty for a scalar.
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
    /// The dimensions, outermost first; empty for a scalar.
    pub shape: &'a [usize],
    /// The values.
    pub values: ValuesRef<'a>,
}

/// The values of a [`TensorRef`].
#[derive(Clone, Copy, Debug)]
pub enum ValuesRef<'a> {
    /// 32-bit floating point.
    F32(&'a [f32]),
    /// 32-bit floating point in another form, converted while it is written, without a full copy.
    External(&'a dyn ExternalValues),
    /// 64-bit integers.
    I64(&'a [i64]),
}

/// 32-bit floating point values in another form, such as device memory.
pub trait ExternalValues: fmt::Debug {
    /// The number of values.
    fn count(&self) -> usize;

    /// Fills `out` with the values from index `first`, in row-major order. The range is never out of bounds.
    ///
    /// # Errors
    /// If the values are no longer available.
    fn read(&self, first: usize, out: &mut [f32]) -> io::Result<()>;
}

impl Tensor {
    /// Borrows the tensor.
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
    /// Creates a tensor of 32-bit floating point values.
    #[must_use]
    pub fn f32(name: &'a str, shape: &'a [usize], values: &'a [f32]) -> Self {
        Self { name, shape, values: ValuesRef::F32(values) }
    }

    /// Creates a tensor of 64-bit integers.
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

    /// The size of the values in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::F32(values) => size_of_val(*values),
            Self::External(values) => values.count() * size_of::<f32>(),
            Self::I64(values) => size_of_val(*values),
        }
    }

    /// Passes the little-endian bytes to `sink` in chunks.
    ///
    /// # Errors
    /// If `sink` fails, or values are no longer available.
    pub fn for_each_chunk<E: From<io::Error>>(
        &self,
        mut sink: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::F32(values) => chunks(values, f32::to_le_bytes, sink),
            Self::External(values) => {
                let mut buffer = [0.0; 1 << 12];
                let count = values.count();
                (0..count).step_by(buffer.len()).try_for_each(|first| {
                    let part = &mut buffer[..(count - first).min(1 << 12)];
                    values.read(first, part)?;
                    chunks(part, f32::to_le_bytes, &mut sink)
                })
            }
            Self::I64(values) => chunks(values, i64::to_le_bytes, sink),
        }
    }
}

fn chunks<T: Copy, const N: usize, E>(
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

/// Writes tensors in the safetensors format, streaming their values.
///
/// `metadata` is the `__metadata__` of the file. Its `format` defaults to `pt`, which PyTorch requires.
///
/// # Errors
/// If `out` fails. Duplicate names and shapes that do not fit the number of values are
/// [`io::ErrorKind::InvalidInput`].
pub fn write_safetensors(
    out: &mut dyn Write,
    tensors: &[TensorRef<'_>],
    metadata: &BTreeMap<String, String>,
) -> io::Result<()> {
    let invalid = |reason: String| Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    // Larger types come first, so that every tensor is aligned to its type.
    let mut order: Vec<&TensorRef<'_>> = tensors.iter().collect();
    order.sort_by_key(|tensor| (!matches!(tensor.values, ValuesRef::I64(_)), tensor.name));
    let mut metadata = metadata.clone();
    metadata.entry("format".to_owned()).or_insert_with(|| "pt".to_owned());
    let mut header = BTreeMap::from([("__metadata__", json!(metadata))]);
    let mut end = 0;
    for tensor in &order {
        let TensorRef { name, shape, values } = tensor;
        let count = shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
        if count != Some(values.len()) {
            return invalid(format!("tensor {name} has {} values for the shape {shape:?}", values.len()));
        }
        let start = end;
        end += values.bytes();
        let entry = json!({"dtype": values.dtype(), "shape": shape, "data_offsets": [start, end]});
        if header.insert(name, entry).is_some() {
            return invalid(format!("duplicate tensor name {name}"));
        }
    }
    let mut header = serde_json::to_vec(&header).map_err(io::Error::other)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    order.iter().try_for_each(|tensor| tensor.values.for_each_chunk(|chunk| out.write_all(chunk)))
}
