//! What `torch.save` writes since PyTorch 1.6: a zip archive of a pickle, `data.pkl`, and a file for each
//! storage, `data/<key>`, in one folder. <https://docs.pytorch.org/docs/stable/notes/serialization.html>
//!
//! PyTorch stores entries without compression and aligned, so a tensor is a range of the file. The archive's
//! checksums are not looked at: PyTorch can be told to leave them out.

mod pickle;
mod state_dict;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use rawzip::{CompressionMethod, MAX_CENTRAL_DIRECTORY_RECORD_SIZE, ZipLocator};

use crate::NamedTensor;
use crate::error::{Parsed, Problem};
use crate::file::{Contents, Format};
use crate::source::Source;
use stratus_base::printable;

/// Entries of an archive that are listed: a storage each and a few more.
const ENTRY_LIMIT: usize = 1 << 17;
/// The longest pickle that is read. One of ResNet-152 with an optimiser's state has 200 kB.
const PICKLE_LIMIT: u64 = 32 << 20;

pub(crate) fn read(source: &Source) -> Parsed<Contents> {
    let archive = Archive::read(source)?;
    if let Some(order) = archive.entries.get("byteorder") {
        let order = archive.stored("byteorder", order)?;
        if source.read(order.start, (order.end - order.start).min(16))? != b"little" {
            return Err(Problem::Kind {
                what: "a PyTorch file of a big-endian machine".into(),
                remedy: "save it again on a little-endian one, or as safetensors",
            });
        }
    }
    let pickle = archive.entries.get("data.pkl").ok_or_else(|| Problem::damaged("it has no data.pkl"))?;
    let pickle = archive.stored("data.pkl", pickle)?;
    if pickle.end - pickle.start > PICKLE_LIMIT {
        return Err(Problem::Limit { what: "bytes in the pickle", limit: PICKLE_LIMIT as usize });
    }
    let pickle = source.read(pickle.start, pickle.end - pickle.start)?;
    let objects = pickle::load(&pickle)?;
    let found = state_dict::find(&objects)?;
    let tensors = found.tensors.into_iter().map(|(name, view)| archive.locate(name, view));
    Ok(Contents {
        format: Format::Torch,
        tensors: tensors.collect::<Parsed<_>>()?,
        metadata: BTreeMap::new(),
        unwrapped: found.unwrapped,
    })
}

/// The entries of the archive, by their name within its one folder.
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
        let damaged = |e: rawzip::Error| Problem::damaged(format!("the zip archive cannot be read ({e})"));
        let mut buffer = vec![0; MAX_CENTRAL_DIRECTORY_RECORD_SIZE];
        let archive =
            ZipLocator::new().locate_in_reader(source, &mut buffer, source.len()).map_err(|(_, e)| {
                Problem::damaged(format!("the zip archive has no end ({e}); it may be truncated"))
            })?;
        let mut entries = HashMap::new();
        let mut folder: Option<String> = None;
        let mut records = archive.entries(&mut buffer);
        while let Some(record) = records.next_entry().map_err(damaged)? {
            if entries.len() == ENTRY_LIMIT {
                return Err(Problem::Limit { what: "entries in the archive", limit: ENTRY_LIMIT });
            }
            let path = record.file_path();
            let path =
                str::from_utf8(path.as_bytes()).map_err(|_| Problem::damaged("a name in it is no UTF-8"))?;
            let Some((top, name)) = path.split_once('/') else {
                return Err(no_torch(path));
            };
            if folder.get_or_insert_with(|| top.into()) != top {
                return Err(no_torch(path));
            }
            if name == "constants.pkl" || name.starts_with("code/") {
                return Err(Problem::Kind {
                    what: "a TorchScript program".into(),
                    remedy: "save only its tensors: torch.save(torch.jit.load(path).state_dict(), path)",
                });
            }
            let entry = archive.get_entry(record.wayfinder()).map_err(damaged)?;
            let (start, end) = entry.compressed_data_range();
            let size = record.uncompressed_size_hint();
            let entry = Entry { compression: record.compression_method(), data: start..end, size };
            if entries.insert(name.to_string(), entry).is_some() {
                return Err(Problem::damaged(format!("it has two entries {}", printable(path))));
            }
        }
        Ok(Self { entries, length: source.len() })
    }

    /// The bytes of an entry, which must be stored as they are.
    fn stored(&self, name: &str, entry: &Entry) -> Parsed<Range<u64>> {
        if entry.compression != CompressionMethod::STORE {
            return Err(Problem::Kind {
                what: "a compressed archive, which PyTorch does not write".into(),
                remedy: "pack its files again without compression (zip -0), or save it again with torch.save",
            });
        }
        let Range { start, end } = entry.data;
        if start > end || end > self.length || end - start != entry.size {
            return Err(Problem::damaged(format!("the entry {} does not lie in the file", printable(name))));
        }
        Ok(start..end)
    }

    /// A tensor with the place of its first element.
    fn locate(&self, name: String, view: &pickle::View<'_>) -> Parsed<NamedTensor> {
        let fault = |reason: String| Problem::Tensor {
            name: printable(&name),
            reason,
            remedy: "download or save the file again",
        };
        let key = format!("data/{}", view.storage.key);
        let entry = self.entries.get(&key).ok_or_else(|| fault(format!("{} is missing", printable(&key))))?;
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
            // Within the storage, whose bytes were just checked to lie in the file.
            offset: start + view.offset * size,
            strides: view.strides.clone(),
        })
    }
}

fn no_torch(path: &str) -> Problem {
    Problem::Kind {
        what: format!("a zip archive of something else (it holds {})", printable(path)),
        remedy: "name a .pth file that torch.save has written, or unpack it first",
    }
}
