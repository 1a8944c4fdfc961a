//! The values of tensors: of whatever type and wherever they lie, in the model or in a file beside it.

use crate::error::{Parsed, Problem};
use crate::proto;
use half::{bf16, f16};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};
use stratus_base::printable;

/// `TensorProto.DataType`.
mod kind {
    pub const FLOAT: i64 = 1;
    pub const UINT8: i64 = 2;
    pub const INT8: i64 = 3;
    pub const INT32: i64 = 6;
    pub const INT64: i64 = 7;
    pub const BOOL: i64 = 9;
    pub const FLOAT16: i64 = 10;
    pub const DOUBLE: i64 = 11;
    pub const BFLOAT16: i64 = 16;
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
pub(crate) fn read(tensor: &proto::Tensor<'_>, folder: Option<&Path>) -> Parsed<Constant> {
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

/// The bytes of a tensor that lie in a file beside the model: in the model's own folder, whatever the entry
/// says, and no more than that file has.
fn external(tensor: &proto::Tensor<'_>, wanted: usize, folder: Option<&Path>) -> Parsed<Vec<u8>> {
    let name = printable(tensor.name);
    let entry = |key: &str| tensor.external.iter().find(|(found, _)| *found == key).map(|(_, value)| *value);
    let location = entry("location").unwrap_or_default();
    let Some(path) = folder.and_then(|folder| beside(folder, location)) else {
        return Err(Problem::Kind {
            what: format!(
                "the values of `{name}` lie in {:?}, which is no file in the model's own folder",
                printable(location)
            ),
            remedy: "put the file beside the model under its plain name, or export it as a single file",
        });
    };
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

/// The path of a plain file name in a folder, if that is what it is: not a way out of the folder, be it by a
/// link.
fn beside(folder: &Path, location: &str) -> Option<PathBuf> {
    let mut components = Path::new(location).components();
    let plain = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
    let path = folder.join(location);
    // A file that is not there stays to be reported when it is opened.
    let stays = match (path.canonicalize(), folder.canonicalize()) {
        (Ok(path), Ok(folder)) => path.parent() == Some(&folder),
        _ => true,
    };
    (plain && stays).then_some(path)
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
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let problem = |location, length| {
            let external = vec![("location", location), ("length", length)];
            message_in(&proto::Tensor { external, is_external: true, ..tensor(1, &[1]) }, folder)
        };
        for location in ["../Cargo.toml", "/etc/passwd", "src/lib.rs", "", ".", ".."] {
            assert!(problem(location, "4").contains("no file in the model's own folder"), "{location}");
        }
        assert!(problem("absent.data", "4").starts_with("cannot open the file of its weights"));
        assert!(problem("Cargo.toml", "5").contains("wants 4 bytes, 5 from byte 0"));
        assert!(problem("Cargo.toml", "x").contains("is no number"));
    }

    fn message_in(tensor: &proto::Tensor<'_>, folder: &Path) -> String {
        read(tensor, Some(folder)).unwrap_err().to_string()
    }
}
