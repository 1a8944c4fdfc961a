//! Weights files: their tensors by name, values on demand.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use rawzip::FileReader;

use crate::contents::{Contents, Dtype, Format, NamedTensor};
use crate::error::{Parsed, Problem, Result};
use crate::matching::{MatchReport, match_tensors};
use crate::source::{Source, try_with_capacity};
use crate::{safetensors, torch};

/// The number of elements converted at a time.
const CHUNK_ELEMENTS: u64 = 1 << 18;

/// An opened weights file.
///
/// ```no_run
/// # fn main() -> Result<(), stratus_weights::Error> {
/// let file = stratus_weights::WeightsFile::open("resnet50.pth")?;
/// for tensor in file.float_tensors() {
///     let values = file.read(tensor)?;
///     println!("{} {:?} {}", tensor.name, tensor.shape, values.len());
/// }
/// # Ok(())
/// # }
/// ```
pub struct WeightsFile {
    path: PathBuf,
    source: Source,
    contents: Contents,
    index: HashMap<String, usize>,
    /// The prefix that was stripped from every name.
    prefix: String,
}

/// The prefixes that wrappers add to every name: `torch.nn.DataParallel` and the like, `torch.compile`, and
/// Lightning.
const WRAPPER_PREFIXES: [&str; 3] = ["module.", "_orig_mod.", "model."];
/// The counter that `torch.optim.swa_utils.AveragedModel` adds to the network that it wraps.
const SWA_COUNTER: &str = "n_averaged";

/// Strips the prefixes of all wrappers from every name. Returns the stripped prefix.
fn strip_wrapper_prefixes(tensors: &mut [NamedTensor]) -> String {
    let mut prefix = String::new();
    let mut wrapped: Vec<&mut NamedTensor> =
        tensors.iter_mut().filter(|tensor| tensor.name != SWA_COUNTER).collect();
    let wraps = |wrapper: &str, wrapped: &[&mut NamedTensor]| {
        !wrapped.is_empty()
            && wrapped
                .iter()
                .all(|tensor| tensor.name.len() > wrapper.len() && tensor.name.starts_with(wrapper))
    };
    while let Some(wrapper) = WRAPPER_PREFIXES.iter().find(|wrapper| wraps(wrapper, &wrapped)) {
        wrapped.iter_mut().for_each(|tensor| drop(tensor.name.drain(..wrapper.len())));
        prefix.push_str(wrapper);
    }
    prefix
}

impl WeightsFile {
    /// Opens a file and lists its tensors. The format is detected from the content, not from the name.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let source = || -> Parsed<Source> {
            let file = File::open(path).map_err(Problem::io("open"))?;
            let metadata = file.metadata().map_err(Problem::io("inspect"))?;
            if metadata.is_dir() {
                return Err(Problem::WrongKind { kind: "a folder".into(), remedy: "pass a file in it" });
            }
            Ok(Source::File(FileReader::from(file), metadata.len()))
        };
        Self::new(path, source().map_err(|problem| problem.in_file(path))?)
    }

    /// Lists the tensors of a file in memory. Errors refer to it as `path`.
    pub fn from_bytes(path: impl AsRef<Path>, bytes: Vec<u8>) -> Result<Self> {
        Self::new(path.as_ref(), Source::Bytes(bytes))
    }

    fn new(path: &Path, source: Source) -> Result<Self> {
        let mut contents = contents(&source).map_err(|problem| problem.in_file(path))?;
        let prefix = strip_wrapper_prefixes(&mut contents.tensors);
        let index = contents.tensors.iter().enumerate().map(|(i, tensor)| (tensor.name.clone(), i)).collect();
        Ok(Self { path: path.to_path_buf(), source, contents, index, prefix })
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The format of the file.
    #[must_use]
    pub fn format(&self) -> Format {
        self.contents.format
    }

    /// All tensors: of a PyTorch file in the order of the dict, of a safetensors file in the order of the
    /// file.
    #[must_use]
    pub fn tensors(&self) -> &[NamedTensor] {
        &self.contents.tensors
    }

    /// The tensors of floating-point types, which excludes counters such as `num_batches_tracked`.
    pub fn float_tensors(&self) -> impl Iterator<Item = &NamedTensor> {
        self.contents.tensors.iter().filter(|tensor| tensor.dtype.is_float())
    }

    /// The tensor with a name, given with or without the stripped [`prefix`](Self::prefix).
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&NamedTensor> {
        let bare = || self.index.get(name.strip_prefix(&self.prefix)?);
        self.index.get(name).or_else(bare).map(|&i| &self.contents.tensors[i])
    }

    /// The `__metadata__` of a safetensors file; empty for others.
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.contents.metadata
    }

    /// The key of the state dict, such as `state_dict` or `model`, if it is not the root of the file.
    #[must_use]
    pub fn wrapper_key(&self) -> Option<&str> {
        self.contents.wrapper_key.as_deref()
    }

    /// The prefix that was stripped from every name: `module.` of `torch.nn.DataParallel`, `_orig_mod.` of
    /// `torch.compile`, `model.` of Lightning, or several of them.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Matches the tensors with the `expected` tensors of a network, see [`match_tensors`]. The stripped
    /// prefix is restored if all names of the network start with it.
    pub fn match_network<'a>(
        &'a self,
        expected: impl IntoIterator<Item = (&'a str, &'a [usize])>,
    ) -> MatchReport {
        let expected: Vec<_> = expected.into_iter().collect();
        let match_with = |prefix: &str| {
            let floats = self
                .float_tensors()
                .map(|tensor| (format!("{prefix}{}", tensor.name), tensor.shape.as_slice()));
            let floats: Vec<_> = floats.collect();
            match_tensors(
                floats.iter().map(|(name, shape)| (name.as_str(), *shape)),
                expected.iter().copied(),
            )
        };
        let restore =
            !self.prefix.is_empty() && expected.iter().all(|(name, _)| name.starts_with(&self.prefix));
        match_with(if restore { &self.prefix } else { "" })
    }

    /// Reads the values of a floating-point tensor as f32, row-major.
    ///
    /// float64 is rounded to nearest; float16 and bfloat16 are exact.
    pub fn read(&self, tensor: &NamedTensor) -> Result<Vec<f32>> {
        let values = match tensor.dtype {
            Dtype::F64 => self.elements(tensor, |b| f64::from_le_bytes(b) as f32),
            Dtype::F32 => self.elements(tensor, f32::from_le_bytes),
            Dtype::F16 => self.elements(tensor, |b| f16::from_le_bytes(b).to_f32()),
            Dtype::Bf16 => self.elements(tensor, |b| bf16::from_le_bytes(b).to_f32()),
            other => Err(Problem::Tensor {
                name: tensor.name.clone(),
                reason: format!("unsupported type {other}"),
                remedy: "float64, float32, float16 and bfloat16 are supported",
            }),
        };
        values.map_err(|problem| problem.in_file(&self.path))
    }

    /// Reads the values of an int64 tensor, row-major.
    pub fn read_i64(&self, tensor: &NamedTensor) -> Result<Vec<i64>> {
        let values = match tensor.dtype {
            Dtype::I64 => self.elements(tensor, i64::from_le_bytes),
            other => Err(Problem::Tensor {
                name: tensor.name.clone(),
                reason: format!("expected type int64, found {other}"),
                remedy: "read it as its own type",
            }),
        };
        values.map_err(|problem| problem.in_file(&self.path))
    }

    fn elements<T: Copy, const N: usize>(
        &self,
        tensor: &NamedTensor,
        convert: impl Fn([u8; N]) -> T,
    ) -> Parsed<Vec<T>> {
        let span = tensor.span();
        let bytes = span.checked_mul(N as u64).and_then(|bytes| tensor.offset.checked_add(bytes));
        if bytes.is_none_or(|end| end > self.source.len()) {
            return Err(Problem::damaged(format!("tensor {} ends after the end of the file", tensor.name)));
        }
        let mut values = try_with_capacity(span)?;
        let mut start = 0;
        while start < span {
            let count = CHUNK_ELEMENTS.min(span - start);
            let chunk = self.source.read(tensor.offset + start * N as u64, count * N as u64)?;
            values.extend(chunk.as_chunks().0.iter().map(|&bytes| convert(bytes)));
            start += count;
        }
        match &tensor.strides {
            None => Ok(values),
            Some(strides) => gather(&values, &tensor.shape, strides),
        }
    }
}

impl fmt::Debug for WeightsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeightsFile")
            .field("path", &self.path)
            .field("format", &self.contents.format)
            .field("tensors", &self.contents.tensors.len())
            .finish_non_exhaustive()
    }
}

/// Returns the elements of a strided tensor in row-major order.
fn gather<T: Copy>(values: &[T], shape: &[usize], strides: &[u64]) -> Parsed<Vec<T>> {
    let count = shape.iter().product::<usize>();
    let mut out = try_with_capacity(count as u64)?;
    let mut index = vec![0; shape.len()];
    let mut at = 0;
    for _ in 0..count {
        out.push(values[at as usize]);
        for d in (0..shape.len()).rev() {
            index[d] += 1;
            at += strides[d];
            if index[d] < shape[d] {
                break;
            }
            at -= strides[d] * shape[d] as u64;
            index[d] = 0;
        }
    }
    Ok(out)
}

/// The first bytes of other files that users often pass, with a description and a remedy.
const OTHER_FORMATS: [(&[u8], &str, &str); 9] = [
    (
        // Protocol 2 and the magic number of torch.save before it wrote zip archives.
        b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19",
        "a PyTorch file in the format before version 1.6",
        "save it again with a current PyTorch: torch.save(torch.load(path, map_location='cpu'), path)",
    ),
    (b"\x80", "a plain Python pickle", "save the tensors with torch.save or as safetensors"),
    (b"\x89HDF\r\n", "an HDF5 file, as of Keras", "save the weights as safetensors"),
    (b"\x1f\x8b", "a gzip archive", "unpack it first"),
    (b"version https://git-lfs", "a Git LFS pointer", "fetch the file itself: git lfs pull"),
    (b"<", "an HTML page instead of weights", "check the address and download the file again"),
    (b"{", "a JSON file", "pass a .safetensors or .pth file; a file in several parts must be merged first"),
    (b"\x93NUMPY", "a NumPy array", "save the weights as safetensors"),
    (b"Rar!", "a RAR archive", "unpack it first"),
];

fn contents(source: &Source) -> Parsed<Contents> {
    const REMEDY: &str = "pass a .safetensors file, or a .pth file with a state dict written by torch.save";
    let start = source.read(0, source.len().min(265))?;
    if start.is_empty() {
        return Err(Problem::WrongKind { kind: "an empty file".into(), remedy: "download or save it again" });
    }
    if start.starts_with(b"PK\x03\x04") {
        return torch::read(source);
    }
    // The ninth byte of a safetensors file opens the header. Check it first, since the eight bytes before are
    // an arbitrary number.
    if start.get(8) == Some(&b'{') {
        return safetensors::read(source);
    }
    if let Some((_, kind, remedy)) = OTHER_FORMATS.iter().find(|(magic, ..)| start.starts_with(magic)) {
        return Err(Problem::WrongKind { kind: (*kind).into(), remedy });
    }
    if start.get(257..262) == Some(b"ustar") {
        return Err(Problem::WrongKind {
            kind: "a tar archive, as of a download or the first versions of PyTorch".into(),
            remedy: "unpack it, or save it again with a current PyTorch",
        });
    }
    Err(Problem::WrongKind { kind: "neither safetensors nor a PyTorch file".into(), remedy: REMEDY })
}
