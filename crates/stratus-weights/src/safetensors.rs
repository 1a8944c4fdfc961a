//! The reader of safetensors files: a length, a JSON header, the values.
//! <https://github.com/huggingface/safetensors#format>

use ::safetensors::Dtype as Kind;
use ::safetensors::tensor::Metadata;

use crate::contents::{Contents, Dtype, Format, NamedTensor};
use crate::error::{Parsed, Problem};
use crate::source::Source;

/// The maximum size of the header, enough for 40,000 tensors. Its entries take up to 40 times their size in
/// memory.
const MAX_HEADER_BYTES: u64 = 4 << 20;

pub(crate) fn read(source: &Source) -> Parsed<Contents> {
    let length = source.read(0, 8)?;
    let length = length.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
    if length > MAX_HEADER_BYTES {
        return Err(Problem::Limit { items: "bytes in the header", limit: MAX_HEADER_BYTES as usize });
    }
    let header = source.read(8, length)?;
    let header: Metadata =
        serde_json::from_slice(&header).map_err(|e| Problem::damaged(format!("invalid header ({e})")))?;
    let start = 8 + length;
    let end = start + header.data_len() as u64;
    if end != source.len() {
        return Err(Problem::damaged(format!("expected {end} bytes by its header, found {}", source.len())));
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
    Ok(Contents { format: Format::Safetensors, tensors, metadata, wrapper_key: None })
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
