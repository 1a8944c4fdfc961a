//! The closed list of globals (`module.name`) that a pickle may refer to.

use crate::Dtype;
use crate::error::{Parsed, Problem};
use stratus_base::printable;

/// A function or a class of the closed list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::torch) enum Global {
    OrderedDict,
    Set,
    Size,
    RebuildTensor,
    RebuildParameter,
    Storage(Dtype),
    /// A class, a constructor of plain data, or a value. Its objects are ignored.
    Ignored,
}

impl Global {
    pub(super) fn resolve(module: &str, name: &str) -> Parsed<Self> {
        Ok(match (module, name) {
            ("collections", "OrderedDict") => Self::OrderedDict,
            ("builtins" | "__builtin__", "set" | "frozenset") => Self::Set,
            ("torch", "Size") => Self::Size,
            ("torch._utils", "_rebuild_tensor_v2") => Self::RebuildTensor,
            ("torch._utils", "_rebuild_parameter") => Self::RebuildParameter,
            ("torch", "DoubleStorage") => Self::Storage(Dtype::F64),
            ("torch", "FloatStorage") => Self::Storage(Dtype::F32),
            ("torch", "HalfStorage") => Self::Storage(Dtype::F16),
            ("torch", "BFloat16Storage") => Self::Storage(Dtype::Bf16),
            ("torch", "LongStorage") => Self::Storage(Dtype::I64),
            ("torch", "IntStorage") => Self::Storage(Dtype::I32),
            ("torch", "ShortStorage") => Self::Storage(Dtype::I16),
            ("torch", "CharStorage") => Self::Storage(Dtype::I8),
            ("torch", "ByteStorage") => Self::Storage(Dtype::U8),
            ("torch", "BoolStorage") => Self::Storage(Dtype::Bool),
            _ if is_ignored(module, name) => Self::Ignored,
            _ => return Err(Problem::ForbiddenGlobal(printable(&format!("{module}.{name}")))),
        })
    }
}

/// Returns whether a global is plain data that training scripts such as torchvision's and timm's save besides
/// weights: arguments, metrics, paths, dates, devices and number formats. Python executes no other code when
/// it creates one of them.
fn is_ignored(module: &str, name: &str) -> bool {
    match module {
        "argparse" => name == "Namespace",
        "types" => name == "SimpleNamespace",
        "collections" => ["Counter", "defaultdict", "deque"].contains(&name),
        "builtins" | "__builtin__" => [
            "bool",
            "bytearray",
            "bytes",
            "complex",
            "dict",
            "float",
            "int",
            "list",
            "range",
            "slice",
            "str",
            "tuple",
        ]
        .contains(&name),
        // Protocol 2 encodes bytes with this function.
        "_codecs" => name == "encode",
        "numpy" => ["dtype", "ndarray"].contains(&name),
        "numpy.core.multiarray" | "numpy._core.multiarray" => ["scalar", "_reconstruct"].contains(&name),
        "numpy.core.numeric" | "numpy._core.numeric" => name == "_frombuffer",
        "pathlib" | "pathlib._local" => {
            ["Path", "PosixPath", "PurePath", "PurePosixPath", "PureWindowsPath", "WindowsPath"]
                .contains(&name)
        }
        "datetime" => ["date", "datetime", "time", "timedelta", "timezone"].contains(&name),
        "torch" => {
            const VALUES: [&str; 16] = [
                "device", "bfloat16", "bool", "double", "float", "float16", "float32", "float64", "half",
                "int", "int16", "int32", "int64", "int8", "long", "uint8",
            ];
            VALUES.contains(&name)
        }
        _ => false,
    }
}
