//! safetensors: a length, a JSON header, the values. <https://github.com/huggingface/safetensors#format>

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::path::Path;

use ::safetensors::tensor::Metadata;
use ::safetensors::{Dtype as Kind, SafeTensorError, View, serialize_to_file};

use crate::error::{Parsed, Problem, Result, printable};
use crate::file::{Contents, Format};
use crate::source::Source;
use crate::{Dtype, NamedTensor};

/// The longest header that is read: enough for 100,000 tensors.
const HEADER_LIMIT: u64 = 32 << 20;

pub(crate) fn read(source: &Source) -> Parsed<Contents> {
    let length = source.read(0, 8)?;
    let length = length.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
    if length > HEADER_LIMIT {
        return Err(Problem::Limit { what: "bytes in the header", limit: HEADER_LIMIT as usize });
    }
    let header = source.read(8, length)?;
    let header: Metadata = serde_json::from_slice(&header)
        .map_err(|e| Problem::damaged(format!("the header is not valid ({e})")))?;
    let start = 8 + length;
    let end = start + header.data_len() as u64;
    if end != source.len() {
        return Err(Problem::damaged(format!("its header tells of {end} bytes and it has {}", source.len())));
    }
    let mut tensors = Vec::new();
    for name in header.offset_keys() {
        let Some(info) = header.info(&name) else { continue };
        tensors.push(NamedTensor {
            shape: info.shape.clone(),
            dtype: dtype(info.dtype),
            offset: start + info.data_offsets.0 as u64,
            strides: None,
            name,
        });
    }
    let metadata = header.metadata().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
    Ok(Contents { format: Format::Safetensors, tensors, metadata, unwrapped: None, parallel: false })
}

fn dtype(kind: Kind) -> Dtype {
    match kind {
        Kind::F64 => Dtype::F64,
        Kind::F32 => Dtype::F32,
        Kind::F16 => Dtype::F16,
        Kind::BF16 => Dtype::Bf16,
        Kind::I64 => Dtype::I64,
        Kind::I32 => Dtype::I32,
        Kind::I16 => Dtype::I16,
        Kind::I8 => Dtype::I8,
        Kind::U8 => Dtype::U8,
        Kind::BOOL => Dtype::Bool,
        _ => Dtype::Other,
    }
}

/// A tensor to be written: a name, a shape and values that it borrows, row-major.
#[derive(Clone, Copy, Debug)]
pub struct TensorRef<'a> {
    name: &'a str,
    shape: &'a [usize],
    values: Values<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Values<'a> {
    F32(&'a [f32]),
    I64(&'a [i64]),
}

impl<'a> TensorRef<'a> {
    /// A tensor of 32-bit floating point values.
    #[must_use]
    pub fn f32(name: &'a str, shape: &'a [usize], values: &'a [f32]) -> Self {
        Self { name, shape, values: Values::F32(values) }
    }

    /// A tensor of 64-bit integers: `num_batches_tracked`.
    #[must_use]
    pub fn i64(name: &'a str, shape: &'a [usize], values: &'a [i64]) -> Self {
        Self { name, shape, values: Values::I64(values) }
    }

    fn len(&self) -> usize {
        match self.values {
            Values::F32(values) => values.len(),
            Values::I64(values) => values.len(),
        }
    }
}

impl View for TensorRef<'_> {
    fn dtype(&self) -> Kind {
        match self.values {
            Values::F32(_) => Kind::F32,
            Values::I64(_) => Kind::I64,
        }
    }

    fn shape(&self) -> &[usize] {
        self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        // One tensor at a time is held twice, which keeps the byte order right everywhere.
        Cow::Owned(match self.values {
            Values::F32(values) => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Values::I64(values) => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        })
    }

    fn data_len(&self) -> usize {
        match self.values {
            Values::F32(values) => size_of_val(values),
            Values::I64(values) => size_of_val(values),
        }
    }
}

/// Writes tensors as a safetensors file: beside `path` first, then renamed over it.
///
/// Names are the caller's and should be torchvision's. `metadata` is the file's `__metadata__`; `format` is set to `pt`
/// where it is not given, as readers of PyTorch ask for it.
pub fn write_safetensors(
    path: impl AsRef<Path>,
    tensors: &[TensorRef<'_>],
    metadata: &BTreeMap<String, String>,
) -> Result<()> {
    let path = path.as_ref();
    write(path, tensors, metadata).map_err(|problem| problem.at(path))
}

fn write(path: &Path, tensors: &[TensorRef<'_>], metadata: &BTreeMap<String, String>) -> Parsed<()> {
    let mut names = HashSet::new();
    for tensor in tensors {
        let name = printable(tensor.name);
        let count = tensor.shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
        if count != Some(tensor.len()) {
            let TensorRef { shape, .. } = tensor;
            return Err(Problem::Invalid(format!("tensor {name} has {} values for {shape:?}", tensor.len())));
        }
        if tensor.name == "__metadata__" || !names.insert(tensor.name) {
            return Err(Problem::Invalid(format!("the name {name} is taken")));
        }
    }
    let mut metadata: HashMap<String, String> = metadata.clone().into_iter().collect();
    metadata.entry("format".into()).or_insert_with(|| "pt".into());
    let Some(file_name) = path.file_name() else {
        return Err(Problem::Kind { what: "a folder".into(), remedy: "name a file in it" });
    };
    let mut temporary = file_name.to_os_string();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(temporary);
    let written = serialize_to_file(tensors.iter().map(|t| (t.name, *t)), Some(metadata), &temporary)
        .map_err(|e| match e {
            SafeTensorError::IoError(source) => Problem::Io { action: "write", source },
            other => Problem::Invalid(other.to_string()),
        })
        .and_then(|()| File::open(&temporary).and_then(|file| file.sync_all()).map_err(Problem::io("sync")))
        .and_then(|()| fs::rename(&temporary, path).map_err(Problem::io("replace")));
    if written.is_err() {
        // Best effort: the error that matters is the first.
        let _ = fs::remove_file(&temporary);
    }
    written
}
