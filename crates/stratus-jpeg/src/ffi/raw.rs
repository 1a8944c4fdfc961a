//! The used part of the libjpeg API: function pointers of the loaded library, and the leading fields of its
//! structs.
//!
//! Layouts are those of `jpeglib.h` on 64-bit Linux and macOS. The ABIs 62, 70 and 80 differ only in fields
//! of `jpeg_decompress_struct` after the ones declared here.

use std::ffi::{c_char, c_int, c_long, c_uchar, c_uint, c_ulong, c_void};
use std::path::{Path, PathBuf};

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
pub(super) const KNOWN_SYSTEM: bool = cfg!(all(unix, target_pointer_width = "64"));

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
            pub fn resolve(library: &libloading::Library, path: &Path) -> Result<Self, LoadError> {
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
pub(super) const HARMLESS_WARNINGS: [&str; 4] = [
    "Corrupt JPEG data: %u extraneous bytes before marker",
    "Warning: unknown JFIF revision number",
    "Unknown Adobe color transform code",
    "Invalid SOS parameters for sequential JPEG",
];
