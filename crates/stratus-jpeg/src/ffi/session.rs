//! A safe wrapper of `jpeg_decompress_struct`, which decodes one file.
//!
//! Each file gets a new object in reused memory. A reused object would keep the Huffman and quantisation
//! tables of the previous file and apply them to a file without tables. Creating an object takes about a
//! thousandth of the decoding time.

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::raw::{Abi, Decompress, ErrorManager, Functions, MAX_STRUCT_BYTES, ProgressManager};

/// The maximum number of scans of a file. Encoders write about ten, and each costs a pass over the whole
/// image.
const MAX_SCANS: c_int = 100;
/// The maximum number of rows requested per call; the library returns one to four.
const MAX_ROWS_PER_CALL: usize = 8;
/// `JMSG_LENGTH_MAX`.
const MAX_MESSAGE_BYTES: usize = 200;

/// The values of `J_COLOR_SPACE` that occur in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColourSpace {
    Grey,
    Rgb,
    YCbCr,
    Cmyk,
    Ycck,
    Other,
}

impl ColourSpace {
    fn from_code(code: c_int) -> Self {
        match code {
            1 => Self::Grey,
            2 => Self::Rgb,
            3 => Self::YCbCr,
            4 => Self::Cmyk,
            5 => Self::Ycck,
            _ => Self::Other,
        }
    }

    fn code(self) -> c_int {
        match self {
            Self::Other => 0,
            Self::Grey => 1,
            Self::Rgb => 2,
            Self::YCbCr => 3,
            Self::Cmyk => 4,
            Self::Ycck => 5,
        }
    }
}

/// The state that callbacks access through `client_data`.
struct CallbackState {
    abi: Abi,
    problem: String,
}

/// The memory of a [`Decompressor`]: the object and the structs it points to.
pub(crate) struct DecoderMemory {
    object: MaybeUninit<[u64; MAX_STRUCT_BYTES / 8]>,
    errors: MaybeUninit<ErrorManager>,
    progress: ProgressManager,
    state: CallbackState,
}

impl DecoderMemory {
    /// Memory for an object of a library with this interface.
    pub(super) fn new(abi: Abi) -> Self {
        Self {
            object: MaybeUninit::uninit(),
            errors: MaybeUninit::uninit(),
            progress: ProgressManager {
                progress_monitor: Some(progress_monitor),
                pass_counter: 0,
                pass_limit: 0,
                completed_passes: 0,
                total_passes: 0,
            },
            state: CallbackState { abi, problem: String::new() },
        }
    }
}

/// A decompression object. Its memory and the file are borrowed for `'a` and accessed only through these
/// pointers.
pub(crate) struct Decompressor<'a> {
    functions: &'a Functions,
    object: *mut Decompress,
    state: *mut CallbackState,
    borrowed: PhantomData<(&'a mut DecoderMemory, &'a [u8])>,
}

/// The panic payload that unwinds through the frames of the library instead of `longjmp`.
struct DecodingFailed;

impl<'a> Decompressor<'a> {
    /// Starts reading a file; [`read_header`](Self::read_header) must follow. The library may allocate at
    /// most `memory` bytes for whole-image arrays.
    pub(super) fn begin(
        functions: &'a Functions,
        storage: &'a mut DecoderMemory,
        file: &'a [u8],
        memory: usize,
    ) -> Result<Self, String> {
        let Abi { version, bytes, .. } = storage.state.abi;
        let storage: *mut DecoderMemory = storage;
        let mut decompressor = Self::init(functions, storage);
        // SAFETY: the object has the size that the library requires, and its error manager is set.
        decompressor.call(|functions, object| unsafe {
            (functions.jpeg_CreateDecompress)(object, version, bytes);
        })?;
        // SAFETY: the object is created, with a memory manager; the progress monitor is borrowed as long as
        // the object lives.
        unsafe {
            (*decompressor.object).progress = &raw mut (*storage).progress;
            (*(*decompressor.object).mem).max_memory_to_use = c_long::try_from(memory).unwrap_or(c_long::MAX);
        }
        // SAFETY: the object is created, and the file is borrowed as long as the object lives.
        decompressor.call(|functions, object| unsafe {
            (functions.jpeg_mem_src)(object, file.as_ptr(), file.len() as c_ulong);
        })?;
        Ok(decompressor)
    }

    /// Initialises a zeroed object with an error manager, before `jpeg_CreateDecompress`.
    fn init(functions: &'a Functions, storage: *mut DecoderMemory) -> Self {
        // SAFETY: the caller borrows the memory for `'a`. Uninitialised parts are written here before they
        // are read: the error manager by `jpeg_std_error`, the object by zeros, which are valid pointers and
        // numbers.
        unsafe {
            let object: *mut Decompress = (&raw mut (*storage).object).cast();
            object.cast::<[u64; MAX_STRUCT_BYTES / 8]>().write([0; MAX_STRUCT_BYTES / 8]);
            let errors: *mut ErrorManager = (&raw mut (*storage).errors).cast();
            (*object).err = (functions.jpeg_std_error)(errors);
            (*errors).error_exit = Some(error_exit);
            (*errors).emit_message = Some(emit_message);
            (*errors).output_message = Some(output_message);
            let state = &raw mut (*storage).state;
            (*object).client_data = state.cast();
            Self { functions, object, state, borrowed: PhantomData }
        }
    }

    /// Calls the library and returns its error message if the call fails.
    fn call<T>(&mut self, call: impl FnOnce(&Functions, *mut Decompress) -> T) -> Result<T, String> {
        let (functions, object) = (self.functions, self.object);
        catch_unwind(AssertUnwindSafe(|| call(functions, object))).map_err(|payload| {
            if !payload.is::<DecodingFailed>() {
                resume_unwind(payload);
            }
            // SAFETY: no callback runs, so nothing else accesses the state.
            std::mem::take(unsafe { &mut (*self.state).problem })
        })
    }

    /// Reads the header.
    pub(crate) fn read_header(&mut self) -> Result<(), String> {
        // SAFETY: the object is created and has a file.
        self.call(|functions, object| unsafe {
            (functions.jpeg_read_header)(object, 1);
        })
    }

    /// Height and width of the image.
    pub(crate) fn size(&self) -> [usize; 2] {
        // SAFETY: the object is initialised, and no call is in progress.
        unsafe { [(*self.object).image_height as usize, (*self.object).image_width as usize] }
    }

    /// Bits per sample.
    pub(crate) fn bits(&self) -> c_int {
        // SAFETY: as in `size`.
        unsafe { (*self.object).data_precision }
    }

    /// The colour space of the file, once the header is read.
    pub(crate) fn colours(&self) -> ColourSpace {
        // SAFETY: as in `size`.
        ColourSpace::from_code(unsafe { (*self.object).jpeg_color_space })
    }

    /// Starts decoding to a colour space at the scale 1/`denominator` (1, 2, 4 or 8). Returns the bytes per
    /// pixel. Multi-scan files are read to their end.
    pub(crate) fn start(&mut self, colours: ColourSpace, denominator: usize) -> Result<usize, String> {
        // Smoothing would interpolate coefficients of missing scans, so it is disabled.
        // SAFETY: as in `size`.
        unsafe {
            (*self.object).out_color_space = colours.code();
            (*self.object).do_block_smoothing = 0;
            ((*self.object).scale_num, (*self.object).scale_denom) = (1, denominator as u32);
        }
        // SAFETY: the header is read, or the library reports an error.
        self.call(|functions, object| unsafe {
            (functions.jpeg_start_decompress)(object);
            (*object).output_components as usize
        })
    }

    /// Height and width of the decoded image, once decoding has begun: the size of the image divided by the
    /// denominator of the scale, rounded up.
    pub(crate) fn output_size(&self) -> [usize; 2] {
        // SAFETY: as in `size`.
        unsafe { [(*self.object).output_height as usize, (*self.object).output_width as usize] }
    }

    /// Restricts decoding to `columns` columns from `first`, rounded outwards. Returns the first column and
    /// the width of rows.
    pub(crate) fn crop(&mut self, first: usize, columns: usize) -> Result<(usize, usize), String> {
        let (mut offset, mut width) = (first as u32, columns as u32);
        // SAFETY: decoding has begun, or the library reports an error; both pointers are valid for writes.
        self.call(|functions, object| unsafe {
            (functions.jpeg_crop_scanline)(object, &raw mut offset, &raw mut width);
        })?;
        Ok((offset as usize, width as usize))
    }

    /// Skips rows.
    pub(crate) fn skip(&mut self, rows: usize) -> Result<(), String> {
        // SAFETY: decoding has begun, or the library reports an error.
        let skipped =
            self.call(|functions, object| unsafe { (functions.jpeg_skip_scanlines)(object, rows as u32) })?;
        if skipped as usize == rows {
            Ok(())
        } else {
            Err("the image has fewer rows than the header specifies".to_owned())
        }
    }

    /// Decodes a row to the start of each slice of `rows`.
    pub(crate) fn read<'r>(&mut self, rows: impl Iterator<Item = &'r mut [u8]>) -> Result<(), String> {
        // SAFETY: as in `size`.
        let bytes =
            unsafe { (*self.object).output_width as usize * (*self.object).output_components as usize };
        let mut rows = rows.fuse();
        loop {
            let mut pointers = [std::ptr::null_mut(); MAX_ROWS_PER_CALL];
            let mut count = 0;
            for (pointer, row) in pointers.iter_mut().zip(&mut rows) {
                if row.len() < bytes {
                    return Err(format!("a row of {bytes} bytes does not fit into {} bytes", row.len()));
                }
                *pointer = row.as_mut_ptr();
                count += 1;
            }
            if count == 0 {
                return Ok(());
            }
            let mut done = 0;
            while done < count {
                let left = &mut pointers[done..count];
                // SAFETY: each pointer is to the memory of a row, which the iterator lent for the call.
                let read = self.call(|functions, object| unsafe {
                    (functions.jpeg_read_scanlines)(object, left.as_mut_ptr(), left.len() as u32)
                })?;
                if read == 0 {
                    return Err("the image has fewer rows than the header specifies".to_owned());
                }
                done += read as usize;
            }
        }
    }

    /// Reads to the end of the file. All rows must have been read.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        // SAFETY: decoding has begun, or the library reports an error.
        self.call(|functions, object| unsafe {
            (functions.jpeg_finish_decompress)(object);
        })
    }
}

impl Drop for Decompressor<'_> {
    fn drop(&mut self) {
        // SAFETY: the object is created, or its memory is zeros, which the function accepts.
        let _ = self.call(|functions, object| unsafe { (functions.jpeg_destroy_decompress)(object) });
    }
}

/// Returns the version of the library and the size of its object, which it reports when a caller passes wrong
/// values.
pub(super) fn detect_abi(functions: &Functions) -> Option<(c_int, usize)> {
    let unknown = Abi { version: 0, bytes: 0, harmless: [None; _] };
    let reported = |version| {
        let mut storage = DecoderMemory::new(unknown);
        let storage: *mut DecoderMemory = &raw mut storage;
        let mut decompressor = Decompressor::init(functions, storage);
        // SAFETY: the error manager is set, and the library checks version and size before it accesses more.
        let created = decompressor.call(|functions, object| unsafe {
            (functions.jpeg_CreateDecompress)(object, version, 0);
        });
        // SAFETY: `init` has set the error manager, whose memory is still valid.
        created.is_err().then(|| unsafe { (*(*decompressor.object).err).msg_parm[0] })
    };
    let version = reported(0)?;
    Some((version, usize::try_from(reported(version)?).ok()?))
}

/// The default error manager of the library.
pub(super) fn standard_errors(functions: &Functions) -> ErrorManager {
    let mut errors = MaybeUninit::uninit();
    // SAFETY: the function writes every field.
    unsafe {
        (functions.jpeg_std_error)(errors.as_mut_ptr());
        errors.assume_init()
    }
}

/// Stores the error message and unwinds out of the library.
///
/// # Safety
/// Only for the library to call, with the object of a [`Decompressor`].
unsafe extern "C-unwind" fn error_exit(object: *mut Decompress) {
    // SAFETY: the object of a decompressor has an error manager and a state as long as it is used; the
    // message has the length that `jpeglib.h` requires.
    unsafe {
        let mut message = [0 as c_char; MAX_MESSAGE_BYTES];
        if let Some(format) = (*(*object).err).format_message {
            format(object, message.as_mut_ptr());
        }
        message[MAX_MESSAGE_BYTES - 1] = 0;
        let state: *mut CallbackState = (*object).client_data.cast();
        (*state).problem = CStr::from_ptr(message.as_ptr()).to_string_lossy().into_owned();
    }
    // Unlike a panic, this does not call the panic hook, which would print.
    resume_unwind(Box::new(DecodingFailed));
}

/// Treats a warning as an error, unless it does not affect pixels.
///
/// # Safety
/// Like [`error_exit`].
unsafe extern "C-unwind" fn emit_message(object: *mut Decompress, level: c_int) {
    // SAFETY: as in `error_exit`.
    unsafe {
        let state: *mut CallbackState = (*object).client_data.cast();
        let code = (*(*object).err).msg_code;
        if level < 0 && !(*state).abi.harmless.contains(&Some(code)) {
            error_exit(object);
        }
    }
}

/// Prints nothing.
unsafe extern "C-unwind" fn output_message(_: *mut Decompress) {}

/// Called every few rows of a scan. Stops decoding if there are too many scans.
///
/// # Safety
/// Like [`error_exit`].
unsafe extern "C-unwind" fn progress_monitor(object: *mut Decompress) {
    // SAFETY: as in `error_exit`.
    unsafe {
        if (*object).input_scan_number <= MAX_SCANS {
            return;
        }
        let state: *mut CallbackState = (*object).client_data.cast();
        (*state).problem = format!("more than {MAX_SCANS} scans");
    }
    resume_unwind(Box::new(DecodingFailed));
}
