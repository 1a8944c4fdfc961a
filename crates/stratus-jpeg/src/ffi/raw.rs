//! The used part of the libjpeg API: function pointers of the loaded library, and the leading fields of its
//! structs.
//!
//! Layouts are those of `jpeglib.h` on 64-bit Linux and macOS. The ABIs 62, 70 and 80 differ only in fields
//! of `jpeg_decompress_struct` after the ones declared here.

use std::ffi::{CStr, c_char, c_int, c_long, c_uchar, c_uint, c_ulong, c_void};
use std::fs::File;
use std::io::Read;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::session;

/// The leading fields of `jpeg_decompress_struct`.
#[repr(C)]
pub(super) struct Decompress {
    pub err: *mut ErrorManager,
    pub mem: *mut MemoryManager,
    pub progress: *mut ProgressManager,
    pub client_data: *mut c_void,
    pub is_decompressor: c_int,
    pub global_state: c_int,
    pub src: *mut c_void,
    pub image_width: c_uint,
    pub image_height: c_uint,
    pub num_components: c_int,
    pub jpeg_color_space: c_int,
    pub out_color_space: c_int,
    pub scale_num: c_uint,
    pub scale_denom: c_uint,
    pub output_gamma: f64,
    pub buffered_image: c_int,
    pub raw_data_out: c_int,
    pub dct_method: c_int,
    pub do_fancy_upsampling: c_int,
    pub do_block_smoothing: c_int,
    pub quantize_colors: c_int,
    pub dither_mode: c_int,
    pub two_pass_quantize: c_int,
    pub desired_number_of_colors: c_int,
    pub enable_1pass_quant: c_int,
    pub enable_external_quant: c_int,
    pub enable_2pass_quant: c_int,
    pub output_width: c_uint,
    pub output_height: c_uint,
    pub out_color_components: c_int,
    pub output_components: c_int,
    pub rec_outbuf_height: c_int,
    pub actual_number_of_colors: c_int,
    pub colormap: *mut c_void,
    pub output_scanline: c_uint,
    pub input_scan_number: c_int,
    pub input_imcu_row: c_uint,
    pub output_scan_number: c_int,
    pub output_imcu_row: c_uint,
    pub coef_bits: *mut c_void,
    pub quant_tbl_ptrs: [*mut c_void; 4],
    pub dc_huff_tbl_ptrs: [*mut c_void; 4],
    pub ac_huff_tbl_ptrs: [*mut c_void; 4],
    pub data_precision: c_int,
}

/// An upper bound of the size of `jpeg_decompress_struct`: 632 bytes (62) or 656 (80).
pub(super) const MAX_STRUCT_BYTES: usize = 1024;

/// A callback that takes the object.
pub(super) type Callback<R = ()> = unsafe extern "C-unwind" fn(*mut Decompress) -> R;

/// `jpeg_error_mgr`.
#[repr(C)]
pub(super) struct ErrorManager {
    pub error_exit: Option<Callback>,
    pub emit_message: Option<unsafe extern "C-unwind" fn(*mut Decompress, c_int)>,
    pub output_message: Option<Callback>,
    pub format_message: Option<unsafe extern "C-unwind" fn(*mut Decompress, *mut c_char)>,
    pub reset_error_mgr: Option<Callback>,
    pub msg_code: c_int,
    /// The message parameters as integers; a union with an 80-byte string.
    pub msg_parm: [c_int; 20],
    pub trace_level: c_int,
    pub num_warnings: c_long,
    pub jpeg_message_table: *const *const c_char,
    pub last_jpeg_message: c_int,
    pub addon_message_table: *const *const c_char,
    pub first_addon_message: c_int,
    pub last_addon_message: c_int,
}

/// `jpeg_memory_mgr`.
#[repr(C)]
pub(super) struct MemoryManager {
    methods: [*const c_void; 11],
    pub max_memory_to_use: c_long,
}

/// `jpeg_progress_mgr`.
#[repr(C)]
pub(super) struct ProgressManager {
    pub progress_monitor: Option<Callback>,
    pub pass_counter: c_long,
    pub pass_limit: c_long,
    pub completed_passes: c_int,
    pub total_passes: c_int,
}

/// True if the layouts are valid on this system.
const KNOWN_SYSTEM: bool = cfg!(all(unix, target_pointer_width = "64"));

// A C compiler gives these offsets for the header, with the ABIs 62 and 80 alike.
#[cfg(all(unix, target_pointer_width = "64"))]
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Decompress, image_width) == 48);
    assert!(offset_of!(Decompress, output_gamma) == 80);
    assert!(offset_of!(Decompress, do_fancy_upsampling) == 100);
    assert!(offset_of!(Decompress, output_width) == 136);
    assert!(offset_of!(Decompress, output_scanline) == 168);
    assert!(offset_of!(Decompress, coef_bits) == 192);
    assert!(offset_of!(Decompress, data_precision) == 296);
    assert!(size_of::<Decompress>() <= MAX_STRUCT_BYTES);
    assert!(offset_of!(ErrorManager, num_warnings) == 128);
    assert!(offset_of!(ErrorManager, last_jpeg_message) == 144);
    assert!(size_of::<ErrorManager>() == 168);
    assert!(offset_of!(MemoryManager, max_memory_to_use) == 88);
    assert!(size_of::<ProgressManager>() == 32);
};

/// The error for an unusable library.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file does not exist or cannot be loaded.
    #[error("cannot load {}: {reason}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The message of the dynamic linker.
        reason: String,
    },
    /// A function is missing.
    #[error("{} is not libjpeg-turbo 1.5 or newer: no function {symbol}", path.display())]
    Symbol {
        /// The file.
        path: PathBuf,
        /// The function.
        symbol: &'static str,
    },
    /// The library has an unknown ABI.
    #[error("unsupported libjpeg ABI of {}: {found}", path.display())]
    UnknownAbi {
        /// The file.
        path: PathBuf,
        /// The ABI of the library.
        found: String,
    },
}

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        #[allow(non_snake_case, reason = "the names of the C API")]
        pub(super) struct Functions {
            $(pub $name: unsafe extern "C-unwind" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            #[allow(non_snake_case, reason = "the names of the C API")]
            fn resolve(library: &libloading::Library, path: &Path) -> Result<Self, LoadError> {
                $(
                    let symbol = concat!(stringify!($name), "\0");
                    // SAFETY: the type of the symbol is that of `jpeglib.h`, the same in all versions.
                    let $name = *unsafe { library.get(symbol.as_bytes()) }
                        .map_err(|_| LoadError::Symbol { path: path.to_owned(), symbol: stringify!($name) })?;
                )*
                Ok(Self { $($name,)* })
            }
        }
    };
}

functions! {
    jpeg_crop_scanline: fn(*mut Decompress, *mut c_uint, *mut c_uint);
    jpeg_skip_scanlines: fn(*mut Decompress, c_uint) -> c_uint;
    jpeg_mem_src: fn(*mut Decompress, *const c_uchar, c_ulong);
    jpeg_std_error: fn(*mut ErrorManager) -> *mut ErrorManager;
    jpeg_CreateDecompress: fn(*mut Decompress, c_int, usize);
    jpeg_destroy_decompress: fn(*mut Decompress);
    jpeg_read_header: fn(*mut Decompress, c_int) -> c_int;
    jpeg_start_decompress: fn(*mut Decompress) -> c_int;
    jpeg_read_scanlines: fn(*mut Decompress, *mut *mut u8, c_uint) -> c_uint;
    jpeg_finish_decompress: fn(*mut Decompress) -> c_int;
}

/// A loaded libjpeg-turbo. Clones share it.
#[derive(Clone)]
pub struct Library {
    inner: Arc<Inner>,
}

struct Inner {
    functions: Functions,
    path: PathBuf,
    version: Option<String>,
    abi: Abi,
    /// Never unloaded, since it owns the error messages.
    _library: ManuallyDrop<libloading::Library>,
}

/// The binary interface of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Abi {
    /// `JPEG_LIB_VERSION`.
    pub version: c_int,
    /// The size of `jpeg_decompress_struct`.
    pub bytes: usize,
    /// The codes of [`HARMLESS_WARNINGS`].
    pub harmless: [Option<c_int>; HARMLESS_WARNINGS.len()],
}

/// The first words of warnings that do not affect pixels: stray bytes between segments, which cameras leave;
/// versions of metadata; scan parameters that only progressive files use.
const HARMLESS_WARNINGS: [&str; 4] = [
    "Corrupt JPEG data: %u extraneous bytes before marker",
    "Warning: unknown JFIF revision number",
    "Unknown Adobe color transform code",
    "Invalid SOS parameters for sequential JPEG",
];

impl Library {
    /// Loads a library and checks that it is libjpeg-turbo with a known ABI.
    ///
    /// # Errors
    /// If the library cannot be loaded or is not a supported libjpeg-turbo.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        if !KNOWN_SYSTEM {
            let found = "struct layouts are known only for 64-bit Linux and macOS".to_owned();
            return Err(LoadError::UnknownAbi { path: path.to_owned(), found });
        }
        // SAFETY: loading runs the initialisers of the library. The path is a documented one or set by the
        // user, who trusts it like any library on the search path.
        let library = unsafe { libloading::Library::new(path) }
            .map_err(|error| LoadError::Open { path: path.to_owned(), reason: error.to_string() })?;
        let functions = Functions::resolve(&library, path)?;
        let found = loaded_from(functions.jpeg_CreateDecompress as *const c_void);
        let path = found.unwrap_or_else(|| path.to_owned());
        let (version, bytes) = session::detect_abi(&functions)
            .ok_or_else(|| LoadError::UnknownAbi { path: path.clone(), found: "not reported".to_owned() })?;
        if ![62, 70, 80].contains(&version) || !(size_of::<Decompress>()..=MAX_STRUCT_BYTES).contains(&bytes)
        {
            let found = format!("version {version}, struct of {bytes} bytes");
            return Err(LoadError::UnknownAbi { path, found });
        }
        let abi = Abi { version, bytes, harmless: harmless(&functions) };
        let version = version_in(&path);
        Ok(Self {
            inner: Arc::new(Inner { functions, path, version, abi, _library: ManuallyDrop::new(library) }),
        })
    }

    /// The library file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The version, such as `3.1.0 (build 20241218)`, if the file contains it.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.inner.version.as_deref()
    }

    pub(super) fn functions(&self) -> &Functions {
        &self.inner.functions
    }

    pub(super) fn abi(&self) -> Abi {
        self.inner.abi
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inner { path, version, abi, .. } = self.inner.as_ref();
        f.debug_struct("Library").field("path", path).field("version", version).field("abi", abi).finish()
    }
}

/// Looks up the codes of harmless warnings, which differ between versions, in the message table of the
/// library.
fn harmless(functions: &Functions) -> [Option<c_int>; HARMLESS_WARNINGS.len()] {
    let errors = session::standard_errors(functions);
    HARMLESS_WARNINGS.map(|text| {
        (0..=errors.last_jpeg_message).find(|&code| {
            // SAFETY: the table is a constant of the library with entries from 0 to `last_jpeg_message`.
            let message = unsafe { *errors.jpeg_message_table.add(code as usize) };
            // SAFETY: an entry is null or a constant C string.
            !message.is_null() && unsafe { CStr::from_ptr(message) }.to_bytes().starts_with(text.as_bytes())
        })
    })
}

/// `Dl_info`.
#[cfg(unix)]
#[repr(C)]
struct DlInfo {
    file: *const c_char,
    base: *mut c_void,
    symbol: *const c_char,
    address: *mut c_void,
}

#[cfg(not(unix))]
fn loaded_from(_: *const c_void) -> Option<PathBuf> {
    None
}

/// Returns the file from which a function was loaded.
#[cfg(unix)]
fn loaded_from(function: *const c_void) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let process = libloading::os::unix::Library::this();
    // SAFETY: POSIX 2024 and the manuals of both systems declare `dladdr` like this.
    let dladdr = unsafe {
        process.get::<unsafe extern "C" fn(*const c_void, *mut DlInfo) -> c_int>(b"dladdr\0").ok()?
    };
    let (name, address) = (std::ptr::null(), std::ptr::null_mut());
    let mut info = DlInfo { file: name, base: address, symbol: name, address };
    // SAFETY: `info` is valid for writes.
    let known = unsafe { dladdr(function, &raw mut info) } != 0 && !info.file.is_null();
    // SAFETY: the name belongs to the loaded library, which is not unloaded.
    known.then(|| {
        Path::new(std::ffi::OsStr::from_bytes(unsafe { CStr::from_ptr(info.file) }.to_bytes())).to_owned()
    })
}

/// Searches the library file for the version, which no function returns.
fn version_in(path: &Path) -> Option<String> {
    const LABEL: &[u8] = b"libjpeg-turbo version ";
    const MAX_LIBRARY_BYTES: u64 = 64 << 20;
    let mut content = Vec::new();
    File::open(path).ok()?.take(MAX_LIBRARY_BYTES).read_to_end(&mut content).ok()?;
    let label = content.windows(LABEL.len()).position(|window| window == LABEL)?;
    let text = content.get(label + LABEL.len()..)?;
    let text = text.get(..text.iter().take(64).position(|&byte| byte == 0 || byte == b'\n')?)?;
    let text = std::str::from_utf8(text).ok()?.trim();
    (!text.is_empty()).then(|| text.to_owned())
}
