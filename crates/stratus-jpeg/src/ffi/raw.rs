//! The used part of libjpeg's interface: function pointers from the loaded library, and the leading fields of
//! its structs.
//!
//! Layouts are those of `jpeglib.h` on 64-bit Linux and macOS. Interfaces 62, 70 and 80 differ only in fields
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
pub(super) const LARGEST_STRUCT: usize = 1024;

/// A callback with the object as argument.
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
    /// As integers; a union with an 80-byte string.
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

/// Whether the layouts hold on this system.
const KNOWN_SYSTEM: bool = cfg!(all(unix, target_pointer_width = "64"));

// Offsets that a C compiler gives for the header, with interfaces 62 and 80 alike.
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
    assert!(size_of::<Decompress>() <= LARGEST_STRUCT);
    assert!(offset_of!(ErrorManager, num_warnings) == 128);
    assert!(offset_of!(ErrorManager, last_jpeg_message) == 144);
    assert!(size_of::<ErrorManager>() == 168);
    assert!(offset_of!(MemoryManager, max_memory_to_use) == 88);
    assert!(size_of::<ProgressManager>() == 32);
};

/// Why a library cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is not there, or cannot be loaded.
    #[error("{} cannot be loaded: {reason}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the dynamic linker said.
        reason: String,
    },
    /// A function is missing.
    #[error("{} has no function {symbol}: it is not libjpeg-turbo 1.5 or newer", path.display())]
    Symbol {
        /// The file.
        path: PathBuf,
        /// The function.
        symbol: &'static str,
    },
    /// The library has an unknown interface.
    #[error("{} has an interface that Stratus does not know: {found}", path.display())]
    Interface {
        /// The file.
        path: PathBuf,
        /// What it says it is.
        found: String,
    },
}

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        #[allow(non_snake_case, reason = "the names of the C interface")]
        pub(super) struct Functions {
            $(pub $name: unsafe extern "C-unwind" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            #[allow(non_snake_case, reason = "the names of the C interface")]
            fn resolve(library: &libloading::Library, path: &Path) -> Result<Self, LoadError> {
                $(
                    let symbol = concat!(stringify!($name), "\0");
                    // SAFETY: the symbol's type is the one that `jpeglib.h` declares, the same in all of its
                    // versions.
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

/// A loaded libjpeg-turbo; clones share it.
#[derive(Clone)]
pub struct Library {
    inner: Arc<Inner>,
}

struct Inner {
    functions: Functions,
    path: PathBuf,
    version: Option<String>,
    /// The interface and the bytes of `jpeg_decompress_struct`.
    interface: Interface,
    /// Never unloaded: it owns the error messages.
    _library: ManuallyDrop<libloading::Library>,
}

/// The binary interface of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    /// `JPEG_LIB_VERSION`.
    pub version: c_int,
    /// Bytes of `jpeg_decompress_struct`.
    pub bytes: usize,
    /// Codes of warnings that do not affect pixels.
    pub harmless: [Option<c_int>; HARMLESS.len()],
}

/// The beginnings of warnings that do not affect pixels: stray bytes between segments, which cameras leave;
/// versions of metadata; scan parameters that only progressive files use.
const HARMLESS: [&str; 4] = [
    "Corrupt JPEG data: %u extraneous bytes before marker",
    "Warning: unknown JFIF revision number",
    "Unknown Adobe color transform code",
    "Invalid SOS parameters for sequential JPEG",
];

impl Library {
    /// Loads a library and checks that it is libjpeg-turbo with an interface that is known.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        if !KNOWN_SYSTEM {
            let found = "its layouts are known on 64-bit Linux and macOS".to_owned();
            return Err(LoadError::Interface { path: path.to_owned(), found });
        }
        // SAFETY: loading runs the library's initialisers. The path is one of the documented places or named
        // by the user, who trusts it as they trust any library on their search path.
        let library = unsafe { libloading::Library::new(path) }
            .map_err(|error| LoadError::Open { path: path.to_owned(), reason: error.to_string() })?;
        let functions = Functions::resolve(&library, path)?;
        let found = file_of(functions.jpeg_CreateDecompress as *const c_void);
        let path = found.unwrap_or_else(|| path.to_owned());
        let (version, bytes) = session::interface(&functions).ok_or_else(|| LoadError::Interface {
            path: path.clone(),
            found: "it does not say".to_owned(),
        })?;
        if ![62, 70, 80].contains(&version) || !(size_of::<Decompress>()..=LARGEST_STRUCT).contains(&bytes) {
            let found = format!("version {version}, with {bytes} bytes for an object");
            return Err(LoadError::Interface { path, found });
        }
        let interface = Interface { version, bytes, harmless: harmless(&functions) };
        let version = version_in(&path);
        Ok(Self {
            inner: Arc::new(Inner {
                functions,
                path,
                version,
                interface,
                _library: ManuallyDrop::new(library),
            }),
        })
    }

    /// Its file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Its version, such as `3.1.0 (build 20241218)`, where its file says it.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.inner.version.as_deref()
    }

    pub(super) fn functions(&self) -> &Functions {
        &self.inner.functions
    }

    pub(super) fn interface(&self) -> Interface {
        self.inner.interface
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inner { path, version, interface, .. } = self.inner.as_ref();
        f.debug_struct("Library")
            .field("path", path)
            .field("version", version)
            .field("interface", interface)
            .finish()
    }
}

/// The codes of harmless warnings, which differ between versions, from the library's message table.
fn harmless(functions: &Functions) -> [Option<c_int>; HARMLESS.len()] {
    let errors = session::standard_errors(functions);
    HARMLESS.map(|text| {
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
fn file_of(_: *const c_void) -> Option<PathBuf> {
    None
}

/// The file from which a function was loaded.
#[cfg(unix)]
fn file_of(function: *const c_void) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let process = libloading::os::unix::Library::this();
    // SAFETY: POSIX 2024 and both systems' manuals declare `dladdr` like this.
    let dladdr = unsafe {
        process.get::<unsafe extern "C" fn(*const c_void, *mut DlInfo) -> c_int>(b"dladdr\0").ok()?
    };
    let (name, address) = (std::ptr::null(), std::ptr::null_mut());
    let mut info = DlInfo { file: name, base: address, symbol: name, address };
    // SAFETY: `info` is there for the call to fill in.
    let known = unsafe { dladdr(function, &raw mut info) } != 0 && !info.file.is_null();
    // SAFETY: the name belongs to the loaded library, which is not unloaded meanwhile.
    known.then(|| {
        Path::new(std::ffi::OsStr::from_bytes(unsafe { CStr::from_ptr(info.file) }.to_bytes())).to_owned()
    })
}

/// The version, found in the library file: no function returns it.
fn version_in(path: &Path) -> Option<String> {
    const LABEL: &[u8] = b"libjpeg-turbo version ";
    const LARGEST_LIBRARY: u64 = 64 << 20;
    let mut content = Vec::new();
    File::open(path).ok()?.take(LARGEST_LIBRARY).read_to_end(&mut content).ok()?;
    let label = content.windows(LABEL.len()).position(|window| window == LABEL)?;
    let text = content.get(label + LABEL.len()..)?;
    let text = text.get(..text.iter().take(64).position(|&byte| byte == 0 || byte == b'\n')?)?;
    let text = std::str::from_utf8(text).ok()?.trim();
    (!text.is_empty()).then(|| text.to_owned())
}
