//! The values of tensors: of whatever type and wherever they lie, in the model or in a file beside it.

use crate::error::{Parsed, Problem};
use crate::proto;
use half::{bf16, f16};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};
use stratus_base::printable;

/// The most numbers that a file has without listing them, in sparse tensors and those filled with one number:
/// 64 MiB.
pub(crate) const MOST_FILLED: usize = 1 << 24;

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

    /// What ONNX calls a type.
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

/// Whether images may be given in a type; 0 is a type that is not said.
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
    /// The extents, outermost first; empty for a single value.
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

    /// Its one value, whatever its shape.
    pub fn scalar(&self) -> Option<f32> {
        match &self.elements {
            Elements::Floats(values) => <[f32; 1]>::try_from(values.as_slice()).ok().map(|[value]| value),
            Elements::Ints(values) => {
                <[i64; 1]>::try_from(values.as_slice()).ok().map(|[value]| value as f32)
            }
        }
    }

    /// In another type, as the operator `Cast` has it: rounded to the nearest, cut off after the point, or
    /// whether it is not zero.
    ///
    /// # Errors
    /// Where the type cannot hold a value, or is none that constants are computed in.
    pub fn cast(self, to: i64) -> Result<Self, String> {
        let whole: Option<RangeInclusive<i64>> = match to {
            kind::UINT8 => Some(0..=255),
            kind::INT8 => Some(-128..=127),
            kind::INT32 => Some(i64::from(i32::MIN)..=i64::from(i32::MAX)),
            kind::INT64 => Some(i64::MIN..=i64::MAX),
            _ => None,
        };
        let beyond = |value: String| format!("its `to` is {}, which cannot hold {value}", kind::name(to));
        let elements = match (self.elements, whole, to) {
            (Elements::Ints(values), Some(range), _) => {
                if let Some(value) = values.iter().find(|value| !range.contains(value)) {
                    return Err(beyond(value.to_string()));
                }
                Elements::Ints(values)
            }
            (Elements::Floats(values), Some(range), _) => {
                // 2^63 is the first that is too large; below it, the conversion cuts off after the point.
                let cut = |&value: &f32| {
                    let within = value.is_finite() && value.abs() < 9_223_372_036_854_775_808.0;
                    let whole = within.then_some(value as i64).filter(|whole| range.contains(whole));
                    whole.ok_or_else(|| beyond(value.to_string()))
                };
                Elements::Ints(values.iter().map(cut).collect::<Result<_, _>>()?)
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
                    "its `to` is {}, in which constants are not computed: store them as FLOAT or INT64",
                    kind::name(to)
                ));
            }
        };
        Ok(Self { elements, ..self })
    }

    /// With its dimensions in another order, as the operator `Transpose` has it; none where `order` is none
    /// of its dimensions.
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

/// The elements of a strided tensor in row-major order.
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

/// The extents of a tensor and how many elements they give.
fn extents(tensor: &proto::Tensor<'_>) -> Parsed<(Vec<usize>, usize)> {
    let shape: Option<Vec<usize>> =
        tensor.dimensions.iter().map(|&extent| usize::try_from(extent).ok()).collect();
    let elements =
        shape.as_ref().and_then(|shape| shape.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent)));
    match (shape, elements) {
        (Some(shape), Some(elements)) => Ok((shape, elements)),
        _ => Err(Problem::damaged(format!(
            "the tensor `{}` has the impossible shape {:?}",
            printable(tensor.name),
            tensor.dimensions
        ))),
    }
}

/// How many elements a tensor says it has; 0 where it has an impossible shape.
pub(crate) fn elements(tensor: &proto::Tensor<'_>) -> usize {
    extents(tensor).map_or(0, |(_, elements)| elements)
}

/// Reads a tensor; `folder` is where files beside the model are looked for.
pub(crate) fn read(tensor: &proto::Tensor<'_>, folder: Option<&Folder>) -> Parsed<Constant> {
    if let Some(indices) = &tensor.indices {
        return sparse(tensor, indices, folder);
    }
    let (shape, elements) = extents(tensor)?;
    let name = printable(tensor.name);
    let bytes = |size: usize| -> Parsed<Option<std::borrow::Cow<'_, [u8]>>> {
        let Some(wanted) = elements.checked_mul(size) else {
            return Err(Problem::damaged(format!("the tensor `{name}` is larger than memory")));
        };
        let found: Option<std::borrow::Cow<'_, [u8]>> = if tensor.is_external {
            Some(external(tensor, wanted, folder)?.into())
        } else {
            tensor.raw.map(Into::into)
        };
        match &found {
            Some(bytes) if bytes.len() != wanted => Err(Problem::damaged(format!(
                "the tensor `{name}` has {} bytes, its shape {shape:?} wants {wanted}",
                bytes.len()
            ))),
            _ => Ok(found),
        }
    };
    macro_rules! raw {
        ($size:literal, $of:expr) => {
            bytes($size)?.map(|bytes| bytes.as_chunks::<$size>().0.iter().map(|&bytes| $of(bytes)).collect())
        };
    }
    // Small types lie in `int32_data` where they are not raw.
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
            return Err(Problem::Kind {
                what: format!("the tensor `{name}` is of ONNX's type {other}, which is no type of weights"),
                remedy: "float, double, float16 and bfloat16 weights are read: export it in one of these",
            });
        }
    };
    let found = match &elements_found {
        Elements::Floats(values) => values.len(),
        Elements::Ints(values) => values.len(),
    };
    if found != elements {
        return Err(Problem::damaged(format!(
            "the tensor `{name}` has {found} values, its shape {shape:?} wants {elements}"
        )));
    }
    Ok(Constant { shape, elements: elements_found })
}

/// A sparse tensor with its zeros.
fn sparse(
    tensor: &proto::Tensor<'_>,
    indices: &proto::Indices<'_>,
    folder: Option<&Folder>,
) -> Parsed<Constant> {
    let (shape, elements) = extents(tensor)?;
    if elements > MOST_FILLED {
        return Err(Problem::Limit { what: "elements of a sparse tensor", limit: MOST_FILLED as u64 });
    }
    let name = printable(tensor.name);
    let damaged = |what: String| Problem::damaged(format!("the sparse tensor `{name}` {what}"));
    let stored = proto::Tensor { dimensions: indices.values.clone(), indices: None, ..tensor.clone() };
    let values = read(&stored, folder)?;
    let places = read(&indices.places, folder)?;
    let Elements::Ints(numbers) = &places.elements else {
        return Err(damaged("has indices that are no whole numbers".to_owned()));
    };
    let count = values.shape.iter().product::<usize>();
    let place = |number: i64, extent: usize| usize::try_from(number).ok().filter(|&place| place < extent);
    let found: Option<Vec<usize>> = match places.shape[..] {
        [stored] if stored == count => numbers.iter().map(|&number| place(number, elements)).collect(),
        [stored, rank] if stored == count && rank == shape.len() && rank > 0 => numbers
            .chunks_exact(rank)
            .map(|numbers| {
                let mut places = numbers.iter().zip(&shape);
                places.try_fold(0, |at, (&number, &extent)| Some(at * extent + place(number, extent)?))
            })
            .collect(),
        _ => {
            return Err(damaged(format!(
                "has {count} values and indices of the shape {:?}, which do not place them in {shape:?}",
                places.shape
            )));
        }
    };
    let found = found.ok_or_else(|| damaged(format!("has an index outside of its shape {shape:?}")))?;
    let elements = match values.elements {
        Elements::Floats(values) => Elements::Floats(placed(&found, &values, elements)),
        Elements::Ints(values) => Elements::Ints(placed(&found, &values, elements)),
    };
    Ok(Constant { shape, elements })
}

/// Values at their places among zeros.
fn placed<T: Copy + Default>(places: &[usize], values: &[T], count: usize) -> Vec<T> {
    let mut all = vec![T::default(); count];
    places.iter().zip(values).for_each(|(&place, &value)| all[place] = value);
    all
}

/// Where a model lies, and so the files of its weights.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    /// As the model was named.
    named: PathBuf,
    /// The real folders of the name, and of the file that it may be a link to.
    real: Vec<PathBuf>,
}

impl Folder {
    /// The folder of a model.
    pub fn of(model: &Path) -> Self {
        let named = match model.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let behind = model.canonicalize().ok().and_then(|model| model.parent().map(Path::to_owned));
        let real = named.canonicalize().ok().into_iter().chain(behind).collect();
        Self { named: named.to_owned(), real }
    }

    /// The file that a model calls `location`: a plain name in its folder. A link is followed where it leads
    /// to that folder or, as in caches of downloads, to the one that the model itself is a link into.
    ///
    /// # Errors
    /// What it is instead, and what to do.
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
                    "a link to {}, outside of the model's own folder",
                    printable(&real.to_string_lossy())
                );
                Err((link, "put the file itself beside the model, or export it as a single file"))
            }
            Ok(real) if !real.is_file() => Err(("no file".to_owned(), "export the model again")),
            Ok(real) => Ok(real),
            Err(_) if is_link => Err((
                format!("a link to {}, which is not there", target()),
                "download the file of its weights again, whole",
            )),
            // A file that is not there stays to be reported when it is opened.
            Err(_) => Ok(path),
        }
    }
}

fn outside() -> (String, &'static str) {
    (
        "no file in the model's own folder".to_owned(),
        "put the file beside the model under its plain name, or export it as a single file",
    )
}

/// The bytes of a tensor that lie in a file beside the model: in the model's own folder, whatever the entry
/// says, and no more than that file has.
fn external(tensor: &proto::Tensor<'_>, wanted: usize, folder: Option<&Folder>) -> Parsed<Vec<u8>> {
    let name = printable(tensor.name);
    let entry = |key: &str| tensor.external.iter().find(|(found, _)| *found == key).map(|(_, value)| *value);
    let location = entry("location").unwrap_or_default();
    let path = folder.map_or_else(|| Err(outside()), |folder| folder.file(location));
    let path = path.map_err(|(is, remedy)| Problem::Kind {
        what: format!("the values of `{name}` lie in {:?}, which is {is}", printable(location)),
        remedy,
    })?;
    let number = |key: &str, otherwise: u64| match entry(key) {
        None => Ok(otherwise),
        Some(text) => text.parse::<u64>().map_err(|_| {
            Problem::damaged(format!("the {key} of `{name}`'s values, {:?}, is no number", printable(text)))
        }),
    };
    let (offset, length) = (number("offset", 0)?, number("length", wanted as u64)?);
    let mut file = File::open(&path).map_err(Problem::io("open the file of its weights"))?;
    let size = file.metadata().map_err(Problem::io("inspect the file of its weights"))?.len();
    if length != wanted as u64 || offset.checked_add(length).is_none_or(|end| end > size) {
        return Err(Problem::damaged(format!(
            "the tensor `{name}` wants {wanted} bytes, {length} from byte {offset} of {} are named, which \
             has {size}",
            printable(location)
        )));
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(wanted).map_err(|_| {
        Problem::io("find the memory for its weights")(std::io::ErrorKind::OutOfMemory.into())
    })?;
    file.seek(SeekFrom::Start(offset)).map_err(Problem::io("read the file of its weights"))?;
    file.take(length).read_to_end(&mut bytes).map_err(Problem::io("read the file of its weights"))?;
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
    fn values_are_read_from_either_place() {
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
    fn shapes_that_lie_are_refused() {
        assert!(message(&tensor(1, &[-1])).contains("impossible shape [-1]"));
        assert!(message(&tensor(1, &[i64::MAX, 9])).contains("impossible shape"));
        assert!(message(&tensor(1, &[i64::MAX])).contains("larger than memory"));
        assert!(message(&tensor(1, &[3])).contains("has 0 values, its shape [3] wants 3"));
        let raw = proto::Tensor { raw: Some(&[0; 7]), ..tensor(1, &[2]) };
        assert!(message(&raw).contains("has 7 bytes, its shape [2] wants 8"));
        assert!(message(&tensor(8, &[1])).contains("is of ONNX's type 8"));
    }

    #[test]
    fn transposing_moves_elements() {
        let constant = Constant::ints(vec![2, 3], vec![1, 2, 3, 4, 5, 6]);
        assert_eq!(constant.transposed(&[1, 0]).unwrap(), Constant::ints(vec![3, 2], vec![1, 4, 2, 5, 3, 6]));
        assert_eq!(constant.transposed(&[0, 1]).unwrap(), constant);
        assert_eq!(constant.transposed(&[0, 0]), None);
        assert_eq!(constant.transposed(&[0]), None);
    }

    #[test]
    fn external_files_stay_in_the_folder() {
        let folder = Folder::of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
        let problem = |location, length| {
            let external = vec![("location", location), ("length", length)];
            message_in(&proto::Tensor { external, is_external: true, ..tensor(1, &[1]) }, &folder)
        };
        for location in ["../Cargo.toml", "/etc/passwd", "src/lib.rs", "", ".", ".."] {
            assert!(problem(location, "4").contains("no file in the model's own folder"), "{location}");
        }
        assert!(problem("absent.data", "4").starts_with("cannot open the file of its weights"));
        assert!(problem("Cargo.toml", "5").contains("wants 4 bytes, 5 from byte 0"));
        assert!(problem("Cargo.toml", "x").contains("is no number"));
    }

    fn message_in(tensor: &proto::Tensor<'_>, folder: &Folder) -> String {
        read(tensor, Some(folder)).unwrap_err().to_string()
    }
}
