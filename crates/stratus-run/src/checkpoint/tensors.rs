//! Reading tensors from the files of a checkpoint, and the checksum of a set of weights.

use safetensors::{Dtype, SafeTensors};
use sha2::{Digest, Sha256};
use stratus_base::checksum::hex;
use stratus_weights::{Tensor, TensorRef, Values};

/// The SHA-256, in hexadecimal, that identifies a set of weights.
///
/// It covers the tensors in the byte order of their names. Each tensor contributes: the length of its name
/// and the name, the length of its type and the type (`F32`, `I64`), the number of extents, the extents, the
/// number of bytes of the values, the values. Lengths, numbers and extents are u64; everything is
/// little-endian, values are row-major.
///
/// # Errors
/// If the values cannot be read.
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
        tensor.values.for_each_chunk(|piece| {
            hasher.update(piece);
            Ok::<(), std::io::Error>(())
        })?;
    }
    Ok(hex(&hasher.finalize()))
}

/// Parses the bytes of a safetensors file: its tensors sorted by name, or why they cannot be read.
pub fn read_safetensors(bytes: &[u8]) -> Result<Vec<Tensor>, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| format!("not a safetensors file ({e})"))?;
    let mut tensors = Vec::with_capacity(file.len());
    for (name, view) in file.iter() {
        let data = view.data();
        let values = match view.dtype() {
            Dtype::F32 => Values::F32(data.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()),
            Dtype::I64 => Values::I64(data.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b)).collect()),
            other => {
                return Err(format!("tensor {name} has the unsupported type {other:?}; expected F32 or I64"));
            }
        };
        tensors.push(Tensor { name: name.to_string(), shape: view.shape().to_vec(), values });
    }
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tensors)
}
