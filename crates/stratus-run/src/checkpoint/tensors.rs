//! Tensors read back from a checkpoint's files, and the checksum of a set of weights.

use safetensors::{Dtype, SafeTensors};
use sha2::{Digest, Sha256};
use stratus_base::checksum::hex;
use stratus_weights::{Tensor, TensorRef, Values};

/// The SHA-256, in hexadecimal, that stands for a set of weights.
///
/// It is taken over the tensors in the byte order of their names. Of each tensor go in: the name's length and
/// the name, the type's length and the type (`F32`, `I64`), the number of extents, the extents, the number of
/// bytes of the values, the values. Lengths, numbers and extents are u64; everything is little-endian, values
/// row-major.
///
/// # Errors
/// Where values cannot be had.
pub fn weights_sha256(tensors: &[TensorRef<'_>]) -> std::io::Result<String> {
    let mut order: Vec<&TensorRef<'_>> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.name);
    let mut hasher = Sha256::new();
    for tensor in order {
        for text in [tensor.name, tensor.values.dtype()] {
            hasher.update((text.len() as u64).to_le_bytes());
            hasher.update(text);
        }
        hasher.update((tensor.shape.len() as u64).to_le_bytes());
        for &extent in tensor.shape {
            hasher.update((extent as u64).to_le_bytes());
        }
        hasher.update((tensor.values.bytes() as u64).to_le_bytes());
        tensor.values.for_each_piece(|piece| {
            hasher.update(piece);
            Ok::<(), std::io::Error>(())
        })?;
    }
    Ok(hex(&hasher.finalize()))
}

/// Reads a safetensors file's bytes: its tensors by name, or why they cannot be read.
pub fn read_safetensors(bytes: &[u8]) -> Result<Vec<Tensor>, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| format!("no safetensors file ({e})"))?;
    let mut tensors = Vec::with_capacity(file.len());
    for (name, view) in file.iter() {
        let data = view.data();
        let values = match view.dtype() {
            Dtype::F32 => Values::F32(data.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()),
            Dtype::I64 => Values::I64(data.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b)).collect()),
            other => return Err(format!("the tensor {name} is of type {other:?}; F32 and I64 are read")),
        };
        tensors.push(Tensor { name: name.to_string(), shape: view.shape().to_vec(), values });
    }
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tensors)
}
