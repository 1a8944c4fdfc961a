//! The values of tensors of every supported type, in the model or in an external file.

use crate::error::{Parsed, Problem};
use crate::proto;
use half::{bf16, f16};
use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};
use stratus_base::printable;

/// `TensorProto.DataType`.
pub(crate) mod kind {
    pub const FLOAT: i64 = 1;
    pub const UINT8: i64 = 2;
    pub const INT8: i64 = 3;
    pub const INT32: i64 = 6;
    pub const INT64: i64 = 7;
    pub const BOOL: i64 = 9;
    pub const FLOAT16: i64 = 10;
    pub const DOUBLE: i64 = 11;
    pub const BFLOAT16: i64 = 16;

    /// The name of a type in ONNX.
    pub fn name(kind: i64) -> String {
        const NAMES: [&str; 27] = [
            "UNDEFINED",
            "FLOAT",
            "UINT8",
            "INT8",
            "UINT16",
            "INT16",
            "INT32",
            "INT64",
            "STRING",
            "BOOL",
            "FLOAT16",
            "DOUBLE",
            "UINT32",
            "UINT64",
            "COMPLEX64",
            "COMPLEX128",
            "BFLOAT16",
            "FLOAT8E4M3FN",
            "FLOAT8E4M3FNUZ",
            "FLOAT8E5M2",
            "FLOAT8E5M2FNUZ",
            "UINT4",
            "INT4",
            "FLOAT4E2M1",
            "FLOAT8E8M0",
            "UINT2",
            "INT2",
        ];
        let name = usize::try_from(kind).ok().and_then(|kind| NAMES.get(kind));
        name.map_or_else(|| format!("type {kind}"), |name| (*name).to_owned())
    }
}

/// Returns whether images may have this type. A type of 0 is not specified.
pub(crate) fn is_float(type_number: i64) -> bool {
    [0, kind::FLOAT, kind::FLOAT16, kind::DOUBLE, kind::BFLOAT16].contains(&type_number)
}

/// The values of a constant, row-major.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Elements {
    Floats(Vec<f32>),
    Ints(Vec<i64>),
}

/// A tensor that does not depend on the images.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Constant {
    /// The dimensions, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    pub elements: Elements,
}

impl Constant {
    pub fn ints(shape: Vec<usize>, values: Vec<i64>) -> Self {
        Self { shape, elements: Elements::Ints(values) }
    }

    pub fn floats(shape: Vec<usize>, values: Vec<f32>) -> Self {
        Self { shape, elements: Elements::Floats(values) }
    }

    /// The only value of a constant of any shape, if there is exactly one.
    pub fn scalar(&self) -> Option<f32> {
        match &self.elements {
            Elements::Floats(values) => <[f32; 1]>::try_from(values.as_slice()).ok().map(|[value]| value),
            Elements::Ints(values) => {
                <[i64; 1]>::try_from(values.as_slice()).ok().map(|[value]| value as f32)
            }
        }
    }

    /// Converts to another type like the operator `Cast`: floats are rounded to nearest, integers truncated,
    /// and Booleans are 1 if the value is not zero.
    ///
    /// # Errors
    /// If the type cannot hold a value, or is not supported for constants.
    pub fn cast(self, to: i64) -> Result<Self, String> {
        let integers: Option<RangeInclusive<i64>> = match to {
            kind::UINT8 => Some(0..=255),
            kind::INT8 => Some(-128..=127),
            kind::INT32 => Some(i64::from(i32::MIN)..=i64::from(i32::MAX)),
            kind::INT64 => Some(i64::MIN..=i64::MAX),
            _ => None,
        };
        let out_of_range =
            |value: String| format!("its `to` is {}, which cannot hold {value}", kind::name(to));
        let elements = match (self.elements, integers, to) {
            (Elements::Ints(values), Some(range), _) => {
                if let Some(value) = values.iter().find(|value| !range.contains(value)) {
                    return Err(out_of_range(value.to_string()));
                }
                Elements::Ints(values)
            }
            (Elements::Floats(values), Some(range), _) => {
                // 2^63 is the smallest value that is too large; below it, the conversion truncates.
                let truncated = |&value: &f32| {
                    let within = value.is_finite() && value.abs() < 9_223_372_036_854_775_808.0;
                    let whole = within.then_some(value as i64).filter(|whole| range.contains(whole));
                    whole.ok_or_else(|| out_of_range(value.to_string()))
                };
                Elements::Ints(values.iter().map(truncated).collect::<Result<_, _>>()?)
            }
            (Elements::Ints(values), _, kind::BOOL) => {
                Elements::Ints(values.into_iter().map(|value| i64::from(value != 0)).collect())
            }
            (Elements::Floats(values), _, kind::BOOL) => {
                Elements::Ints(values.into_iter().map(|value| i64::from(value != 0.0)).collect())
            }
            (elements, _, kind::FLOAT | kind::DOUBLE | kind::FLOAT16 | kind::BFLOAT16) => {
                let values = match elements {
                    Elements::Floats(values) => values,
                    Elements::Ints(values) => values.into_iter().map(|value| value as f32).collect(),
                };
                let rounded = |value: f32| match to {
                    kind::FLOAT16 => f16::from_f32(value).to_f32(),
                    kind::BFLOAT16 => bf16::from_f32(value).to_f32(),
                    _ => value,
                };
                Elements::Floats(values.into_iter().map(rounded).collect())
            }
            _ => {
                return Err(format!(
                    "unsupported type {} of a constant: store it as FLOAT or INT64",
                    kind::name(to)
                ));
            }
        };
        Ok(Self { elements, ..self })
    }

    /// Reorders the dimensions like the operator `Transpose`. `None` if `order` is not a permutation.
    pub fn transposed(&self, order: &[usize]) -> Option<Self> {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..self.shape.len()) {
            return None;
        }
        let mut strides = vec![1; self.shape.len()];
        for axis in (1..self.shape.len()).rev() {
            strides[axis - 1] = strides[axis] * self.shape[axis];
        }
        let shape: Vec<usize> = order.iter().map(|&axis| self.shape[axis]).collect();
        let strides: Vec<usize> = order.iter().map(|&axis| strides[axis]).collect();
        let elements = match &self.elements {
            Elements::Floats(values) => Elements::Floats(gathered(values, &shape, &strides)),
            Elements::Ints(values) => Elements::Ints(gathered(values, &shape, &strides)),
        };
        Some(Self { shape, elements })
    }
}

/// Returns the elements of a strided tensor in row-major order.
fn gathered<T: Copy>(values: &[T], shape: &[usize], strides: &[usize]) -> Vec<T> {
    let mut out = Vec::with_capacity(values.len());
    let mut index = vec![0; shape.len()];
    for _ in 0..values.len() {
        out.push(values[index.iter().zip(strides).map(|(i, stride)| i * stride).sum::<usize>()]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    out
}

/// The dimensions of a tensor and the number of elements, checked for overflow.
fn checked_shape(tensor: &proto::Tensor<'_>) -> Parsed<(Vec<usize>, usize)> {
    let shape: Option<Vec<usize>> = tensor.dimensions.iter().map(|&dim| usize::try_from(dim).ok()).collect();
    let elements =
        shape.as_ref().and_then(|shape| shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim)));
    match (shape, elements) {
        (Some(shape), Some(elements)) => Ok((shape, elements)),
        _ => Err(Problem::damaged(format!(
            "tensor `{}` has the invalid shape {:?}",
            printable(tensor.name),
            tensor.dimensions
        ))),
    }
}

/// The number of elements by the shape of a tensor; 0 if the shape is invalid.
pub(crate) fn elements(tensor: &proto::Tensor<'_>) -> usize {
    checked_shape(tensor).map_or(0, |(_, elements)| elements)
}

/// Reads a tensor. External files are searched in `folder`.
pub(crate) fn read(tensor: &proto::Tensor<'_>, folder: Option<&ModelFolder>) -> Parsed<Constant> {
    if let Some(indices) = &tensor.indices {
        return sparse(tensor, indices, folder);
    }
    let (shape, elements) = checked_shape(tensor)?;
    let name = printable(tensor.name);
    let bytes = |size: usize| -> Parsed<Option<std::borrow::Cow<'_, [u8]>>> {
        let Some(expected) = elements.checked_mul(size) else {
            return Err(Problem::damaged(format!("tensor `{name}` is larger than memory")));
        };
        let found: Option<std::borrow::Cow<'_, [u8]>> = if tensor.is_external {
            Some(external(tensor, expected, folder)?.into())
        } else {
            tensor.raw.map(Into::into)
        };
        match &found {
            Some(bytes) if bytes.len() != expected => Err(Problem::damaged(format!(
                "tensor `{name}` has {} bytes, expected {expected} by its shape {shape:?}",
                bytes.len()
            ))),
            _ => Ok(found),
        }
    };
    macro_rules! raw {
        ($size:literal, $convert:expr) => {
            bytes($size)?
                .map(|bytes| bytes.as_chunks::<$size>().0.iter().map(|&bytes| $convert(bytes)).collect())
        };
    }
    // Small types are in `int32_data` if they are not raw.
    let bits = || tensor.ints.iter().map(|&bits| bits as u16);
    let elements_found = match tensor.kind {
        kind::FLOAT => Elements::Floats(raw!(4, f32::from_le_bytes).unwrap_or_else(|| tensor.floats.clone())),
        kind::DOUBLE => Elements::Floats(
            raw!(8, |b| f64::from_le_bytes(b) as f32)
                .unwrap_or_else(|| tensor.doubles.iter().map(|&value| value as f32).collect()),
        ),
        kind::FLOAT16 => Elements::Floats(
            raw!(2, |b| f16::from_le_bytes(b).to_f32())
                .unwrap_or_else(|| bits().map(|bits| f16::from_bits(bits).to_f32()).collect()),
        ),
        kind::BFLOAT16 => Elements::Floats(
            raw!(2, |b| bf16::from_le_bytes(b).to_f32())
                .unwrap_or_else(|| bits().map(|bits| bf16::from_bits(bits).to_f32()).collect()),
        ),
        kind::INT64 => Elements::Ints(raw!(8, i64::from_le_bytes).unwrap_or_else(|| tensor.ints.clone())),
        kind::INT32 => Elements::Ints(
            raw!(4, |b| i64::from(i32::from_le_bytes(b))).unwrap_or_else(|| tensor.ints.clone()),
        ),
        kind::BOOL | kind::UINT8 => {
            Elements::Ints(raw!(1, |[b]: [u8; 1]| i64::from(b)).unwrap_or_else(|| tensor.ints.clone()))
        }
        kind::INT8 => Elements::Ints(
            raw!(1, |b: [u8; 1]| i64::from(i8::from_le_bytes(b))).unwrap_or_else(|| tensor.ints.clone()),
        ),
        other => {
            return Err(Problem::UnsupportedModel {
                problem: format!("unsupported type {} of tensor `{name}`", kind::name(other)),
                remedy: "export its weights as float, double, float16 or bfloat16",
            });
        }
    };
    let found = match &elements_found {
        Elements::Floats(values) => values.len(),
        Elements::Ints(values) => values.len(),
    };
    if found != elements {
        return Err(Problem::damaged(format!(
            "tensor `{name}` has {found} values, expected {elements} by its shape {shape:?}"
        )));
    }
    Ok(Constant { shape, elements: elements_found })
}

/// Converts a sparse tensor to a dense one, whose size callers have checked.
fn sparse(
    tensor: &proto::Tensor<'_>,
    indices: &proto::Indices<'_>,
    folder: Option<&ModelFolder>,
) -> Parsed<Constant> {
    let (shape, elements) = checked_shape(tensor)?;
    let name = printable(tensor.name);
    let damaged = |problem: String| Problem::damaged(format!("sparse tensor `{name}` {problem}"));
    let stored = proto::Tensor { dimensions: indices.values.clone(), indices: None, ..tensor.clone() };
    let values = read(&stored, folder)?;
    let positions = read(&indices.positions, folder)?;
    let Elements::Ints(numbers) = &positions.elements else {
        return Err(damaged("has indices that are not integers".to_owned()));
    };
    let count = values.shape.iter().product::<usize>();
    let position = |number: i64, dim: usize| usize::try_from(number).ok().filter(|&position| position < dim);
    let found: Option<Vec<usize>> = match positions.shape[..] {
        [stored] if stored == count => numbers.iter().map(|&number| position(number, elements)).collect(),
        [stored, rank] if stored == count && rank == shape.len() && rank > 0 => numbers
            .chunks_exact(rank)
            .map(|numbers| {
                let mut positions = numbers.iter().zip(&shape);
                positions.try_fold(0, |at, (&number, &dim)| Some(at * dim + position(number, dim)?))
            })
            .collect(),
        _ => {
            return Err(damaged(format!(
                "has {count} values, but indices of the shape {:?} for {shape:?}",
                positions.shape
            )));
        }
    };
    let found = found.ok_or_else(|| damaged(format!("has an index outside its shape {shape:?}")))?;
    let elements = match values.elements {
        Elements::Floats(values) => Elements::Floats(scattered(&found, &values, elements)),
        Elements::Ints(values) => Elements::Ints(scattered(&found, &values, elements)),
    };
    Ok(Constant { shape, elements })
}

/// Scatters values to their positions among zeros.
fn scattered<T: Copy + Default>(positions: &[usize], values: &[T], count: usize) -> Vec<T> {
    let mut all = vec![T::default(); count];
    positions.iter().zip(values).for_each(|(&position, &value)| all[position] = value);
    all
}

/// The folder of a model, which contains the files of its external weights.
#[derive(Clone, Debug)]
pub(crate) struct ModelFolder {
    /// The folder of the path that the user passed.
    named: PathBuf,
    /// The canonical folders of that path and of the target if it is a symbolic link.
    real: Vec<PathBuf>,
}

impl ModelFolder {
    /// Finds the folder of a model.
    pub fn for_model(model: &Path) -> Self {
        let named = match model.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let target = model.canonicalize().ok().and_then(|model| model.parent().map(Path::to_owned));
        let real = named.canonicalize().ok().into_iter().chain(target).collect();
        Self { named: named.to_owned(), real }
    }

    /// The bytes of the files of a graph's external weights; 0 for files that cannot be read.
    pub fn bytes_of(&self, graph: &proto::Graph<'_>) -> u64 {
        let external = graph.initialisers.iter().filter(|tensor| tensor.is_external);
        let locations: HashSet<&str> =
            external.filter_map(|tensor| tensor.external_entry("location")).collect();
        let files = locations.into_iter().filter_map(|location| self.file(location).ok()?.metadata().ok());
        files.map(|file| file.len()).fold(0, u64::saturating_add)
    }

    /// The file at `location`, which must be a plain name in the folder. A symbolic link is followed if its
    /// target is in the folder or, as in download caches, in the folder of the model's own target.
    ///
    /// # Errors
    /// The problem and the remedy.
    fn file(&self, location: &str) -> Result<PathBuf, (String, &'static str)> {
        let mut components = Path::new(location).components();
        let plain = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
        if !plain {
            return Err(outside());
        }
        let path = self.named.join(location);
        let is_link = path.symlink_metadata().is_ok_and(|found| found.is_symlink());
        let target = || {
            let target = path.read_link().unwrap_or_default();
            printable(&target.to_string_lossy())
        };
        match path.canonicalize() {
            Ok(real) if !real.parent().is_some_and(|real| self.real.iter().any(|folder| folder == real)) => {
                let link = format!(
                    "a symbolic link to {}, outside the model's folder",
                    printable(&real.to_string_lossy())
                );
                Err((link, "copy the file itself into the folder of the model, or export a single file"))
            }
            Ok(real) if !real.is_file() => Err(("not a file".to_owned(), "export the model again")),
            Ok(real) => Ok(real),
            Err(_) if is_link => Err((
                format!("a broken symbolic link to {}", target()),
                "download the file of its weights again",
            )),
            // A missing file is reported when it is opened.
            Err(_) => Ok(path),
        }
    }
}

fn outside() -> (String, &'static str) {
    (
        "not a file in the model's folder".to_owned(),
        "copy the file into the folder of the model, or export a single file",
    )
}

/// Reads the bytes of a tensor from an external file in the folder of the model. Offset and length are
/// checked against the size of the file.
fn external(tensor: &proto::Tensor<'_>, expected: usize, folder: Option<&ModelFolder>) -> Parsed<Vec<u8>> {
    let name = printable(tensor.name);
    let entry = |key: &str| tensor.external_entry(key);
    let location = entry("location").unwrap_or_default();
    let path = folder.map_or_else(|| Err(outside()), |folder| folder.file(location));
    let path = path.map_err(|(description, remedy)| Problem::UnsupportedModel {
        problem: format!("the values of `{name}` are in {:?}, which is {description}", printable(location)),
        remedy,
    })?;
    let number = |key: &str, otherwise: u64| match entry(key) {
        None => Ok(otherwise),
        Some(text) => text.parse::<u64>().map_err(|_| {
            Problem::damaged(format!("invalid {key} {:?} of the values of `{name}`", printable(text)))
        }),
    };
    let (offset, length) = (number("offset", 0)?, number("length", expected as u64)?);
    let mut file = File::open(&path).map_err(Problem::io("open its external weights"))?;
    let size = file.metadata().map_err(Problem::io("inspect its external weights"))?.len();
    if length != expected as u64 || offset.checked_add(length).is_none_or(|end| end > size) {
        return Err(Problem::damaged(format!(
            "tensor `{name}` needs {expected} bytes, but refers to {length} at byte {offset} of {}, which \
             has {size}",
            printable(location)
        )));
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(expected).map_err(|_| {
        Problem::io("allocate memory for its weights")(std::io::Error::other("the memory is exhausted"))
    })?;
    file.seek(SeekFrom::Start(offset)).map_err(Problem::io("read its external weights"))?;
    file.take(length).read_to_end(&mut bytes).map_err(Problem::io("read its external weights"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(kind: i64, dimensions: &[i64]) -> proto::Tensor<'static> {
        proto::Tensor { name: "t", kind, dimensions: dimensions.to_vec(), ..Default::default() }
    }

    fn message(tensor: &proto::Tensor<'_>) -> String {
        read(tensor, None).unwrap_err().to_string()
    }

    #[test]
    fn reads_raw_and_typed_values() {
        let floats = proto::Tensor { floats: vec![1.0, -2.5], ..tensor(1, &[2]) };
        let raw: Vec<u8> = [1.0f32, -2.5].iter().flat_map(|value| value.to_le_bytes()).collect();
        let raw = proto::Tensor { raw: Some(&raw), ..tensor(1, &[2]) };
        assert_eq!(read(&floats, None).unwrap(), Constant::floats(vec![2], vec![1.0, -2.5]));
        assert_eq!(read(&raw, None).unwrap(), read(&floats, None).unwrap());
        let halves = proto::Tensor { ints: vec![0x3c00], ..tensor(10, &[]) };
        assert_eq!(read(&halves, None).unwrap().scalar(), Some(1.0));
        let ints = proto::Tensor { raw: Some(&[0xff; 8]), ..tensor(7, &[1]) };
        assert_eq!(read(&ints, None).unwrap(), Constant::ints(vec![1], vec![-1]));
    }

    #[test]
    fn rejects_invalid_shapes() {
        assert!(message(&tensor(1, &[-1])).contains("invalid shape [-1]"));
        assert!(message(&tensor(1, &[i64::MAX, 9])).contains("invalid shape"));
        assert!(message(&tensor(1, &[i64::MAX])).contains("larger than memory"));
        assert!(message(&tensor(1, &[3])).contains("has 0 values, expected 3 by its shape [3]"));
        let raw = proto::Tensor { raw: Some(&[0; 7]), ..tensor(1, &[2]) };
        assert!(message(&raw).contains("has 7 bytes, expected 8 by its shape [2]"));
        assert!(message(&tensor(8, &[1])).contains("unsupported type STRING of tensor `t`"));
    }

    #[test]
    fn transposed_reorders_elements() {
        let constant = Constant::ints(vec![2, 3], vec![1, 2, 3, 4, 5, 6]);
        assert_eq!(constant.transposed(&[1, 0]).unwrap(), Constant::ints(vec![3, 2], vec![1, 4, 2, 5, 3, 6]));
        assert_eq!(constant.transposed(&[0, 1]).unwrap(), constant);
        assert_eq!(constant.transposed(&[0, 0]), None);
        assert_eq!(constant.transposed(&[0]), None);
    }

    #[test]
    fn rejects_external_files_outside_the_folder() {
        let folder = ModelFolder::for_model(&Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
        let problem = |location, length| {
            let external = vec![("location", location), ("length", length)];
            message_in(&proto::Tensor { external, is_external: true, ..tensor(1, &[1]) }, &folder)
        };
        for location in ["../Cargo.toml", "/etc/passwd", "src/lib.rs", "", ".", ".."] {
            assert!(problem(location, "4").contains("not a file in the model's folder"), "{location}");
        }
        assert!(problem("absent.data", "4").starts_with("cannot open its external weights"));
        assert!(problem("Cargo.toml", "5").contains("needs 4 bytes, but refers to 5 at byte 0"));
        assert!(problem("Cargo.toml", "x").contains("invalid length \"x\""));
    }

    fn message_in(tensor: &proto::Tensor<'_>, folder: &ModelFolder) -> String {
        read(tensor, Some(folder)).unwrap_err().to_string()
    }
}
