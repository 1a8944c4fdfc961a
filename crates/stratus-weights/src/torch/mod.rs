//! The reader of PyTorch files since version 1.6: a zip archive of a pickle, `data.pkl`, and a file for each
//! storage, `data/<key>`, in one folder. <https://docs.pytorch.org/docs/stable/notes/serialization.html>
//!
//! PyTorch stores entries uncompressed and aligned, so a tensor is a range of the file. The checksums of the
//! archive are ignored, since PyTorch can omit them.

mod pickle;
mod state_dict;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use rawzip::{CompressionMethod, MAX_CENTRAL_DIRECTORY_RECORD_SIZE, ZipLocator};

use crate::NamedTensor;
use crate::contents::{Contents, Format};
use crate::error::{Parsed, Problem};
use crate::source::Source;
use stratus_base::printable;

/// The maximum number of entries of an archive, one for each storage and a few more.
const MAX_ENTRIES: usize = 1 << 17;
/// The maximum size of a pickle. The pickle of ResNet-152 with the state of an optimiser has 200 kB.
const MAX_PICKLE_BYTES: u64 = 32 << 20;

pub(crate) fn read(source: &Source) -> Parsed<Contents> {
    let archive = Archive::read(source)?;
    if let Some(order) = archive.entries.get("byteorder") {
        let order = archive.stored("byteorder", order)?;
        if source.read(order.start, (order.end - order.start).min(16))? != b"little" {
            return Err(Problem::WrongKind {
                kind: "a big-endian PyTorch file".into(),
                remedy: "save it again on a little-endian machine, or as safetensors",
            });
        }
    }
    let pickle = archive.entries.get("data.pkl").ok_or_else(|| Problem::damaged("missing data.pkl"))?;
    let pickle = archive.stored("data.pkl", pickle)?;
    if pickle.end - pickle.start > MAX_PICKLE_BYTES {
        return Err(Problem::Limit { items: "bytes in the pickle", limit: MAX_PICKLE_BYTES as usize });
    }
    let pickle = source.read(pickle.start, pickle.end - pickle.start)?;
    let objects = pickle::load(&pickle)?;
    let found = state_dict::find(&objects)?;
    let tensors = found.tensors.into_iter().map(|(name, view)| archive.locate(name, view));
    Ok(Contents {
        format: Format::Torch,
        tensors: tensors.collect::<Parsed<_>>()?,
        metadata: BTreeMap::new(),
        wrapper_key: found.wrapper_key,
    })
}

/// The entries of the archive, by their name in its only folder.
struct Archive {
    entries: HashMap<String, Entry>,
    length: u64,
}

struct Entry {
    compression: CompressionMethod,
    data: Range<u64>,
    size: u64,
}

impl Archive {
    fn read(source: &Source) -> Parsed<Self> {
        let damaged = |e: rawzip::Error| Problem::damaged(format!("invalid zip archive ({e})"));
        let mut buffer = vec![0; MAX_CENTRAL_DIRECTORY_RECORD_SIZE];
        let archive =
            ZipLocator::new().locate_in_reader(source, &mut buffer, source.len()).map_err(|(_, e)| {
                Problem::damaged(format!("no end of the zip archive ({e}); it may be truncated"))
            })?;
        let mut entries = HashMap::new();
        let mut folder: Option<String> = None;
        let mut records = archive.entries(&mut buffer);
        while let Some(record) = records.next_entry().map_err(damaged)? {
            if entries.len() == MAX_ENTRIES {
                return Err(Problem::Limit { items: "entries in the archive", limit: MAX_ENTRIES });
            }
            let path = record.file_path();
            let path =
                str::from_utf8(path.as_bytes()).map_err(|_| Problem::damaged("a name in it is not UTF-8"))?;
            let Some((top, name)) = path.split_once('/') else {
                return Err(not_a_torch_archive(path));
            };
            if folder.get_or_insert_with(|| top.into()) != top {
                return Err(not_a_torch_archive(path));
            }
            if name == "constants.pkl" || name.starts_with("code/") {
                return Err(Problem::WrongKind {
                    kind: "a TorchScript program".into(),
                    remedy: "save only its tensors: torch.save(torch.jit.load(path).state_dict(), path)",
                });
            }
            let entry = archive.get_entry(record.wayfinder()).map_err(damaged)?;
            let (start, end) = entry.compressed_data_range();
            let size = record.uncompressed_size_hint();
            let entry = Entry { compression: record.compression_method(), data: start..end, size };
            if entries.insert(name.to_string(), entry).is_some() {
                return Err(Problem::damaged(format!("duplicate entry {}", printable(path))));
            }
        }
        Ok(Self { entries, length: source.len() })
    }

    /// The range of an entry, which must be uncompressed.
    fn stored(&self, name: &str, entry: &Entry) -> Parsed<Range<u64>> {
        if entry.compression != CompressionMethod::STORE {
            return Err(Problem::WrongKind {
                kind: "a compressed archive".into(),
                remedy: "repack it without compression (zip -0), or save it again with torch.save",
            });
        }
        let Range { start, end } = entry.data;
        if start > end || end > self.length || end - start != entry.size {
            return Err(Problem::damaged(format!("the entry {} is outside the file", printable(name))));
        }
        Ok(start..end)
    }

    /// Converts a view to a tensor with the offset of its first element in the file.
    fn locate(&self, name: String, view: &pickle::TensorView<'_>) -> Parsed<NamedTensor> {
        let fault = |reason: String| Problem::Tensor {
            name: printable(&name),
            reason,
            remedy: "download or save the file again",
        };
        let key = format!("data/{}", view.storage.key);
        let entry = self.entries.get(&key).ok_or_else(|| fault(format!("missing {}", printable(&key))))?;
        let Range { start, end } = self.stored(&key, entry)?;
        let size = view.storage.dtype.bytes();
        if view.storage.elements.checked_mul(size) != Some(end - start) {
            return Err(fault(format!(
                "its storage has {} bytes for {} elements of {}",
                end - start,
                view.storage.elements,
                view.storage.dtype
            )));
        }
        Ok(NamedTensor {
            name,
            shape: view.shape.clone(),
            dtype: view.storage.dtype,
            // The view was checked to be inside the storage, and the storage to be inside the file.
            offset: start + view.offset * size,
            strides: view.strides.clone(),
        })
    }
}

fn not_a_torch_archive(path: &str) -> Problem {
    Problem::WrongKind {
        kind: format!("another zip archive (it contains {})", printable(path)),
        remedy: "pass a .pth file written by torch.save, or unpack the archive first",
    }
}
