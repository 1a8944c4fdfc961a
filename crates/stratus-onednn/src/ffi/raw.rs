//! The functions of the C API that Stratus calls, as pointers resolved in the loaded library.

use libloading::Library;
use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use stratus_base::library::root_cause;

/// `DNNL_MAX_NDIMS`.
pub const MAX_DIMENSIONS: usize = 12;
/// `dnnl_dims_t`.
pub type Dims = [i64; MAX_DIMENSIONS];
/// Every handle of the C API is an opaque pointer.
pub type Handle = *mut c_void;
pub type Status = c_int;

/// `dnnl_exec_arg_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ExecArg {
    pub arg: c_int,
    pub memory: Handle,
}

#[repr(C)]
struct RawVersion {
    major: c_int,
    minor: c_int,
    patch: c_int,
    hash: *const c_char,
    cpu_runtime: u32,
    gpu_runtime: u32,
}

/// A loaded library.
struct OpenedLibrary {
    library: Library,
    /// True if its OpenMP functions are those of `stratus-threads`.
    on_stratus_threads: bool,
}

/// Loads oneDNN. Its OpenMP functions resolve to Stratus's if those suffice; otherwise to those of the
/// runtime it is linked with, even if the program exports functions of the same names.
fn open(path: &Path) -> Result<OpenedLibrary, libloading::Error> {
    #[cfg(target_os = "linux")]
    {
        use libloading::os::unix;
        /// A flag of the system's loader: names are resolved among the library's own dependencies first.
        const RTLD_DEEPBIND: c_int = 0x8;
        let on_stratus_threads =
            stratus_threads::are_exported() && super::imports::runs_on_stratus_threads(path);
        let scope = if on_stratus_threads { 0 } else { RTLD_DEEPBIND };
        let flags = unix::RTLD_NOW | unix::RTLD_LOCAL | scope;
        // SAFETY: loading runs the library's initialisers. The path is one of the documented places or given
        // by the user, who trusts it like any library on their search path.
        let load = |path: &Path| unsafe { unix::Library::open(Some(path), flags) };
        let opened = load(path).or_else(|error| {
            // The loader does not look for dependencies beside a library. Where the system has no libgomp,
            // oneDNN needs one that is already loaded, of which it calls nothing if it runs on Stratus's.
            let runtime = path.with_file_name("libgomp.so.1");
            if !on_stratus_threads || !runtime.is_file() {
                return Err(error);
            }
            // The library stays loaded: oneDNN depends on it.
            std::mem::forget(load(&runtime)?);
            load(path)
        });
        Ok(OpenedLibrary { library: opened?.into(), on_stratus_threads })
    }
    #[cfg(not(target_os = "linux"))]
    {
        // SAFETY: as above.
        let library = unsafe { Library::new(path) }?;
        Ok(OpenedLibrary { library, on_stratus_threads: false })
    }
}

/// The threading runtime of oneDNN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// One thread.
    Sequential,
    /// OpenMP.
    OpenMp,
    /// Another runtime (TBB, or a thread pool of the caller).
    Other,
}

/// oneDNN's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Major.
    pub major: i32,
    /// Minor.
    pub minor: i32,
    /// Patch.
    pub patch: i32,
    /// The threading runtime.
    pub runtime: Runtime,
}

/// The reasons why a library cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file exists but cannot be loaded.
    #[error("cannot load {}: {reason}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The dynamic linker's error message.
        reason: String,
    },
    /// A function is missing.
    #[error("{} is not oneDNN 3.x: function {symbol} not found", path.display())]
    Symbol {
        /// The file.
        path: PathBuf,
        /// The function.
        symbol: &'static str,
    },
    /// Another major version.
    #[error("{}: found oneDNN {found}, need 3.x", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The version found.
        found: String,
    },
    /// oneDNN does not start.
    #[error("cannot start {}: {reason}", path.display())]
    Start {
        /// The file.
        path: PathBuf,
        /// oneDNN's error message.
        reason: String,
    },
}

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the loaded library. The pointers stay valid forever: the library is never
        /// unloaded, because the threads of its OpenMP runtime run its code after the last call.
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            pub library: ManuallyDrop<Library>,
        }

        impl Functions {
            fn resolve(library: Library, path: &Path) -> Result<Self, LoadError> {
                $(
                    let symbol = concat!(stringify!($name), "\0");
                    // SAFETY: the symbol has the type declared in oneDNN's public header (3.x, a stable C
                    // interface).
                    let $name = *unsafe { library.get(symbol.as_bytes()) }
                        .map_err(|_| LoadError::Symbol { path: path.to_owned(), symbol: stringify!($name) })?;
                )*
                Ok(Self { $($name,)* library: ManuallyDrop::new(library) })
            }
        }
    };
}

functions! {
    dnnl_engine_create: fn(*mut Handle, c_int, usize) -> Status;
    dnnl_engine_destroy: fn(Handle) -> Status;
    dnnl_stream_create: fn(*mut Handle, Handle, u32) -> Status;
    dnnl_stream_destroy: fn(Handle) -> Status;
    dnnl_memory_desc_create_with_tag: fn(*mut Handle, c_int, *const i64, c_int, c_int) -> Status;
    dnnl_memory_desc_create_with_strides: fn(*mut Handle, c_int, *const i64, c_int, *const i64) -> Status;
    dnnl_memory_desc_permute_axes: fn(*mut Handle, Handle, *const c_int) -> Status;
    dnnl_memory_desc_clone: fn(*mut Handle, Handle) -> Status;
    dnnl_memory_desc_destroy: fn(Handle) -> Status;
    dnnl_memory_desc_query: fn(Handle, c_int, *mut c_void) -> Status;
    dnnl_memory_desc_get_size: fn(Handle) -> usize;
    dnnl_memory_create: fn(*mut Handle, Handle, Handle, *mut c_void) -> Status;
    dnnl_memory_set_data_handle: fn(Handle, *mut c_void) -> Status;
    dnnl_memory_destroy: fn(Handle) -> Status;
    dnnl_primitive_attr_create: fn(*mut Handle) -> Status;
    dnnl_primitive_attr_destroy: fn(Handle) -> Status;
    dnnl_primitive_attr_set_scratchpad_mode: fn(Handle, c_int) -> Status;
    dnnl_primitive_attr_set_post_ops: fn(Handle, Handle) -> Status;
    dnnl_post_ops_create: fn(*mut Handle) -> Status;
    dnnl_post_ops_destroy: fn(Handle) -> Status;
    dnnl_post_ops_append_eltwise: fn(Handle, c_int, f32, f32) -> Status;
    dnnl_post_ops_append_binary: fn(Handle, c_int, Handle) -> Status;
    dnnl_primitive_attr_set_scales_mask: fn(Handle, c_int, c_int) -> Status;
    dnnl_convolution_forward_primitive_desc_create: fn(
        *mut Handle, Handle, c_int, c_int, Handle, Handle, Handle, Handle, *const i64, *const i64,
        *const i64, *const i64, Handle
    ) -> Status;
    dnnl_convolution_backward_data_primitive_desc_create: fn(
        *mut Handle, Handle, c_int, Handle, Handle, Handle, *const i64, *const i64, *const i64,
        *const i64, Handle, Handle
    ) -> Status;
    dnnl_convolution_backward_weights_primitive_desc_create: fn(
        *mut Handle, Handle, c_int, Handle, Handle, Handle, Handle, *const i64, *const i64, *const i64,
        *const i64, Handle, Handle
    ) -> Status;
    dnnl_inner_product_forward_primitive_desc_create: fn(
        *mut Handle, Handle, c_int, Handle, Handle, Handle, Handle, Handle
    ) -> Status;
    dnnl_inner_product_backward_data_primitive_desc_create: fn(
        *mut Handle, Handle, Handle, Handle, Handle, Handle, Handle
    ) -> Status;
    dnnl_inner_product_backward_weights_primitive_desc_create: fn(
        *mut Handle, Handle, Handle, Handle, Handle, Handle, Handle, Handle
    ) -> Status;
    dnnl_matmul_primitive_desc_create: fn(
        *mut Handle, Handle, Handle, Handle, Handle, Handle, Handle
    ) -> Status;
    dnnl_reorder_primitive_desc_create: fn(*mut Handle, Handle, Handle, Handle, Handle, Handle) -> Status;
    dnnl_primitive_desc_next_impl: fn(Handle) -> Status;
    dnnl_primitive_desc_query: fn(Handle, c_int, c_int, *mut c_void) -> Status;
    dnnl_primitive_desc_query_md: fn(Handle, c_int, c_int) -> Handle;
    dnnl_primitive_desc_clone: fn(*mut Handle, Handle) -> Status;
    dnnl_primitive_desc_destroy: fn(Handle) -> Status;
    dnnl_primitive_create: fn(*mut Handle, Handle) -> Status;
    dnnl_primitive_execute: fn(Handle, Handle, c_int, *const ExecArg) -> Status;
    dnnl_primitive_destroy: fn(Handle) -> Status;
    dnnl_get_effective_cpu_isa: fn() -> c_int;
}

/// Converts a status to a result; `function` is the function that returned it.
pub fn check(status: Status, function: &str) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("{function}: {}", status_text(status))) }
}

/// The meaning of a status code (`dnnl_status_t`).
fn status_text(status: Status) -> &'static str {
    match status {
        1 => "out of memory",
        2 => "invalid arguments",
        3 => "not implemented",
        4 => "no further implementation",
        5 => "runtime error",
        6 => "not required",
        _ => "unknown error",
    }
}

impl Functions {
    /// Loads a library and checks that it is oneDNN 3.x.
    pub fn load(path: &Path) -> Result<(Self, Version, bool), LoadError> {
        let OpenedLibrary { library, on_stratus_threads } = open(path)
            .map_err(|error| LoadError::Open { path: path.to_owned(), reason: root_cause(&error) })?;
        // SAFETY: the type is the header's.
        let version =
            unsafe { library.get::<unsafe extern "C" fn() -> *const RawVersion>(b"dnnl_version\0") }
                .map_err(|_| LoadError::Symbol { path: path.to_owned(), symbol: "dnnl_version" })?;
        // SAFETY: the function returns the address of a constant, which starts with these fields since 1.0.
        let version = unsafe { &*version() };
        let runtime = match version.cpu_runtime {
            1 => Runtime::Sequential,
            2 => Runtime::OpenMp,
            _ => Runtime::Other,
        };
        let version = Version { major: version.major, minor: version.minor, patch: version.patch, runtime };
        if version.major != 3 {
            let found = format!("{}.{}.{}", version.major, version.minor, version.patch);
            return Err(LoadError::Version { path: path.to_owned(), found });
        }
        Ok((Self::resolve(library, path)?, version, on_stratus_threads))
    }
}
