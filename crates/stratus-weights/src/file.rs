//! A weights file: its tensors by name, their values on demand.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use rawzip::FileReader;

use crate::error::{Parsed, Problem, Result};
use crate::source::{Source, reserve};
use crate::{Matching, match_tensors, safetensors, torch};

/// Elements converted at a time.
const PIECE: u64 = 1 << 18;

/// The type of a tensor's elements in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// 64-bit floating point.
    F64,
    /// 32-bit floating point.
    F32,
    /// 16-bit floating point, IEEE 754 binary16.
    F16,
    /// 16-bit floating point with the exponent of 32 bits.
    Bf16,
    /// 64-bit integers.
    I64,
    /// 32-bit integers.
    I32,
    /// 16-bit integers.
    I16,
    /// 8-bit integers.
    I8,
    /// 8-bit integers without sign.
    U8,
    /// Truth values, a byte each.
    Bool,
    /// A type whose values are not read.
    Other,
}

impl Dtype {
    /// The bytes of an element; 0 for [`Dtype::Other`].
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
            Self::Other => 0,
        }
    }

    /// Whether it is a floating-point type whose values can be read: a weight.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::Bf16)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F64 => "float64",
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
            Self::I64 => "int64",
            Self::I32 => "int32",
            Self::I16 => "int16",
            Self::I8 => "int8",
            Self::U8 => "uint8",
            Self::Bool => "bool",
            Self::Other => "another type",
        })
    }
}

/// The format of a weights file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// safetensors.
    Safetensors,
    /// What `torch.save` writes since PyTorch 1.6: a pickle and its storages in a zip archive.
    Torch,
}

/// A tensor of a weights file: what it is and where, without its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTensor {
    /// The name: `layer1.0.conv1.weight`.
    pub name: String,
    /// The extents, outermost first; empty for a single value.
    pub shape: Vec<usize>,
    /// The type in the file.
    pub dtype: Dtype,
    /// The byte of the file where the first element lies.
    pub(crate) offset: u64,
    /// Elements from one index to the next, per extent; none where they lie row-major and dense.
    pub(crate) strides: Option<Vec<u64>>,
}

impl NamedTensor {
    /// The number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        // The product was checked when the file was read.
        self.shape.iter().product()
    }

    /// The elements of the file from the first to the last of this tensor.
    fn span(&self) -> u64 {
        match &self.strides {
            Some(_) if self.elements() == 0 => 0,
            Some(strides) => {
                1 + self.shape.iter().zip(strides).map(|(&n, s)| (n as u64 - 1) * s).sum::<u64>()
            }
            None => self.elements() as u64,
        }
    }
}

/// An opened weights file.
///
/// ```no_run
/// # fn main() -> Result<(), stratus_weights::Error> {
/// let file = stratus_weights::WeightsFile::open("resnet50.pth")?;
/// for tensor in file.floats() {
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
    /// What was taken off every name.
    prefix: String,
}

/// What programs put before every name of a network that they wrap: `torch.nn.DataParallel` and its like,
/// `torch.compile`, and Lightning.
const WRAPPERS: [&str; 3] = ["module.", "_orig_mod.", "model."];
/// What `torch.optim.swa_utils.AveragedModel` counts beside the network that it wraps.
const AVERAGED: &str = "n_averaged";

/// Takes off what wrappers put before every name, however many there are; returns all of it.
fn take_prefix(tensors: &mut [NamedTensor]) -> String {
    let mut prefix = String::new();
    let mut wrapped: Vec<&mut NamedTensor> =
        tensors.iter_mut().filter(|tensor| tensor.name != AVERAGED).collect();
    let wraps = |wrapper: &str, wrapped: &[&mut NamedTensor]| {
        !wrapped.is_empty()
            && wrapped
                .iter()
                .all(|tensor| tensor.name.len() > wrapper.len() && tensor.name.starts_with(wrapper))
    };
    while let Some(wrapper) = WRAPPERS.iter().find(|wrapper| wraps(wrapper, &wrapped)) {
        wrapped.iter_mut().for_each(|tensor| drop(tensor.name.drain(..wrapper.len())));
        prefix.push_str(wrapper);
    }
    prefix
}

/// What a format's reader finds.
pub(crate) struct Contents {
    pub format: Format,
    pub tensors: Vec<NamedTensor>,
    pub metadata: BTreeMap<String, String>,
    /// The key of the dict that was unwrapped.
    pub unwrapped: Option<String>,
}

impl WeightsFile {
    /// Opens a file and lists its tensors. The format is told by its content, not by its name.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let source = || -> Parsed<Source> {
            let file = File::open(path).map_err(Problem::io("open"))?;
            let metadata = file.metadata().map_err(Problem::io("inspect"))?;
            if metadata.is_dir() {
                return Err(Problem::Kind { what: "a folder".into(), remedy: "name a file in it" });
            }
            Ok(Source::File(FileReader::from(file), metadata.len()))
        };
        Self::new(path, source().map_err(|problem| problem.at(path))?)
    }

    /// The same of a file that is in memory already; `path` is what errors call it.
    pub fn from_bytes(path: impl AsRef<Path>, bytes: Vec<u8>) -> Result<Self> {
        Self::new(path.as_ref(), Source::Bytes(bytes))
    }

    fn new(path: &Path, source: Source) -> Result<Self> {
        let mut contents = contents(&source).map_err(|problem| problem.at(path))?;
        let prefix = take_prefix(&mut contents.tensors);
        let index = contents.tensors.iter().enumerate().map(|(i, tensor)| (tensor.name.clone(), i)).collect();
        Ok(Self { path: path.to_path_buf(), source, contents, index, prefix })
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its format.
    #[must_use]
    pub fn format(&self) -> Format {
        self.contents.format
    }

    /// All its tensors: of a PyTorch file in the order of the dict, of safetensors in the order of the file.
    #[must_use]
    pub fn tensors(&self) -> &[NamedTensor] {
        &self.contents.tensors
    }

    /// Its weights: the tensors of floating-point types. Counters such as `num_batches_tracked` are left out.
    pub fn floats(&self) -> impl Iterator<Item = &NamedTensor> {
        self.contents.tensors.iter().filter(|tensor| tensor.dtype.is_float())
    }

    /// The tensor of a name, with or without what was taken off every name ([`prefix`](Self::prefix)).
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

    /// The key that the state dict was found under, where the file wraps it: `state_dict`, `model`.
    #[must_use]
    pub fn unwrapped(&self) -> Option<&str> {
        self.contents.unwrapped.as_deref()
    }

    /// What programs that wrap networks put before every name, which was taken off: `module.` of
    /// `torch.nn.DataParallel`, `_orig_mod.` of `torch.compile`, `model.` of Lightning, or several.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// How its weights fit the tensors that a network wants, see [`match_tensors`]. A network whose own names
    /// all begin like that has them with it.
    pub fn matching<'a>(&'a self, wanted: impl IntoIterator<Item = (&'a str, &'a [usize])>) -> Matching {
        let wanted: Vec<_> = wanted.into_iter().collect();
        let named = |prefix: &str| {
            let floats =
                self.floats().map(|tensor| (format!("{prefix}{}", tensor.name), tensor.shape.as_slice()));
            let floats: Vec<_> = floats.collect();
            match_tensors(floats.iter().map(|(name, shape)| (name.as_str(), *shape)), wanted.iter().copied())
        };
        let own = !self.prefix.is_empty() && wanted.iter().all(|(name, _)| name.starts_with(&self.prefix));
        named(if own { &self.prefix } else { "" })
    }

    /// The values of one of its floating-point tensors as f32, row-major.
    ///
    /// float64 is rounded to the nearest; float16 and bfloat16 are exact.
    pub fn read(&self, tensor: &NamedTensor) -> Result<Vec<f32>> {
        let values = match tensor.dtype {
            Dtype::F64 => self.elements(tensor, |b| f64::from_le_bytes(b) as f32),
            Dtype::F32 => self.elements(tensor, f32::from_le_bytes),
            Dtype::F16 => self.elements(tensor, |b| f16::from_le_bytes(b).to_f32()),
            Dtype::Bf16 => self.elements(tensor, |b| bf16::from_le_bytes(b).to_f32()),
            other => Err(Problem::Tensor {
                name: tensor.name.clone(),
                reason: format!("it is of type {other}, which is no weight"),
                remedy: "float64, float32, float16 and bfloat16 are read",
            }),
        };
        values.map_err(|problem| problem.at(&self.path))
    }

    /// The values of one of its int64 tensors, row-major.
    pub fn read_i64(&self, tensor: &NamedTensor) -> Result<Vec<i64>> {
        let values = match tensor.dtype {
            Dtype::I64 => self.elements(tensor, i64::from_le_bytes),
            other => Err(Problem::Tensor {
                name: tensor.name.clone(),
                reason: format!("it is of type {other} and not int64"),
                remedy: "read it as what it is",
            }),
        };
        values.map_err(|problem| problem.at(&self.path))
    }

    fn elements<T: Copy, const N: usize>(
        &self,
        tensor: &NamedTensor,
        of: impl Fn([u8; N]) -> T,
    ) -> Parsed<Vec<T>> {
        let span = tensor.span();
        let bytes = span.checked_mul(N as u64).and_then(|bytes| tensor.offset.checked_add(bytes));
        if bytes.is_none_or(|end| end > self.source.len()) {
            return Err(Problem::damaged(format!("tensor {} ends beyond the file", tensor.name)));
        }
        let mut values = reserve(span)?;
        let mut start = 0;
        while start < span {
            let count = PIECE.min(span - start);
            let piece = self.source.read(tensor.offset + start * N as u64, count * N as u64)?;
            values.extend(piece.as_chunks().0.iter().map(|&bytes| of(bytes)));
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

/// The elements of a strided tensor in row-major order.
fn gather<T: Copy>(values: &[T], shape: &[usize], strides: &[u64]) -> Parsed<Vec<T>> {
    let count = shape.iter().product::<usize>();
    let mut out = reserve(count as u64)?;
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

/// The first bytes of files that are no weights file but are met in its place.
const FOREIGN: [(&[u8], &str, &str); 9] = [
    (
        // Protocol 2 and the number that torch.save put first before it wrote zip archives.
        b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19",
        "a PyTorch file in the format from before version 1.6",
        "save it again with a current PyTorch: torch.save(torch.load(path, map_location='cpu'), path)",
    ),
    (b"\x80", "a plain Python pickle", "save the tensors with torch.save or as safetensors"),
    (b"\x89HDF\r\n", "an HDF5 file, such as Keras writes", "save the weights as safetensors"),
    (b"\x1f\x8b", "a gzip archive", "unpack it first"),
    (b"version https://git-lfs", "a Git LFS pointer", "fetch the file itself: git lfs pull"),
    (b"<", "a web page: the download gave no weights", "download the file again and look at its address"),
    (b"{", "JSON", "name a .safetensors or .pth file; of a file in several parts, each part"),
    (b"\x93NUMPY", "a NumPy array", "save the weights as safetensors"),
    (b"Rar!", "a RAR archive", "unpack it first"),
];

fn contents(source: &Source) -> Parsed<Contents> {
    const WANTED: &str =
        "name a .safetensors file, or a .pth file with a state dict that torch.save has written";
    let start = source.read(0, source.len().min(265))?;
    if start.is_empty() {
        return Err(Problem::Kind { what: "an empty file".into(), remedy: "download or save it again" });
    }
    if start.starts_with(b"PK\x03\x04") {
        return torch::read(source);
    }
    // The ninth byte of safetensors opens the header; told first, for the eight before are a number and may
    // be any.
    if start.get(8) == Some(&b'{') {
        return safetensors::read(source);
    }
    if let Some((_, what, remedy)) = FOREIGN.iter().find(|(magic, ..)| start.starts_with(magic)) {
        return Err(Problem::Kind { what: (*what).into(), remedy });
    }
    if start.get(257..262) == Some(b"ustar") {
        return Err(Problem::Kind {
            what: "a tar archive, as PyTorch's first versions wrote and downloads are packed in".into(),
            remedy: "unpack it, or save it again with a current PyTorch",
        });
    }
    Err(Problem::Kind { what: "neither safetensors nor a PyTorch file".into(), remedy: WANTED })
}
