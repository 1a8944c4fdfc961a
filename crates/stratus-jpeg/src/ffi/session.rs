//! Decoding one file: the life of a `jpeg_decompress_struct`.
//!
//! Each file gets a new object in reused memory. A reused object would keep the Huffman and quantisation
//! tables of the last file and apply them to a file that lacks its own. Creating an object takes about a
//! thousandth of the decoding time.

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::raw::{Decompress, ErrorManager, Functions, Interface, LARGEST_STRUCT, Library, ProgressManager};

/// The most scans of a file. Encoders write about ten, and each one costs a pass over the whole image.
const MOST_SCANS: c_int = 100;
/// The most rows per call; the library returns one to four.
const ROWS_AT_ONCE: usize = 8;
/// `JMSG_LENGTH_MAX`.
const LONGEST_MESSAGE: usize = 200;

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
    fn of(code: c_int) -> Self {
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

/// State that the callbacks read and write, through `client_data`.
struct CallbackState {
    interface: Interface,
    problem: String,
}

/// The memory of a [`Session`]: the object and the structs it points to.
pub(crate) struct DecoderMemory {
    object: MaybeUninit<[u64; LARGEST_STRUCT / 8]>,
    errors: MaybeUninit<ErrorManager>,
    progress: ProgressManager,
    state: CallbackState,
}

impl DecoderMemory {
    pub(crate) fn new(library: &Library) -> Self {
        Self::with(library.interface())
    }

    fn with(interface: Interface) -> Self {
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
            state: CallbackState { interface, problem: String::new() },
        }
    }
}

/// A decompression object. Its memory and the file are borrowed for `'a` and accessed only through these
/// pointers.
pub(crate) struct Session<'a> {
    functions: &'a Functions,
    object: *mut Decompress,
    state: *mut CallbackState,
    borrowed: PhantomData<(&'a mut DecoderMemory, &'a [u8])>,
}

/// The panic payload that unwinds through the frames of the library, in place of `longjmp`.
struct DecodingFailed;

impl<'a> Session<'a> {
    /// Starts reading a file; next comes [`read_header`](Self::read_header). The library may allocate at most
    /// `memory` bytes for whole-image arrays.
    pub(crate) fn begin(
        library: &'a Library,
        storage: &'a mut DecoderMemory,
        file: &'a [u8],
        memory: usize,
    ) -> Result<Self, String> {
        let Interface { version, bytes, .. } = library.interface();
        let storage: *mut DecoderMemory = storage;
        let mut session = Self::on(library.functions(), storage);
        // SAFETY: the object's memory has the bytes that the library asks for and knows where errors go.
        session.call(|functions, object| unsafe {
            (functions.jpeg_CreateDecompress)(object, version, bytes);
        })?;
        // SAFETY: the object is made, with a memory manager; the progress monitor is borrowed for as long as
        // the object lives.
        unsafe {
            (*session.object).progress = &raw mut (*storage).progress;
            (*(*session.object).mem).max_memory_to_use = c_long::try_from(memory).unwrap_or(c_long::MAX);
        }
        // SAFETY: the object is made, and the file is borrowed for as long as it lives.
        session.call(|functions, object| unsafe {
            (functions.jpeg_mem_src)(object, file.as_ptr(), file.len() as c_ulong);
        })?;
        Ok(session)
    }

    /// A zeroed object with an error manager, before `jpeg_CreateDecompress`.
    fn on(functions: &'a Functions, storage: *mut DecoderMemory) -> Self {
        // SAFETY: the place is borrowed for `'a`, by the caller; what is not written yet is written here
        // before it is read: the error manager by the library's function for it, and the object by zeros,
        // which are null pointers and numbers.
        unsafe {
            let object: *mut Decompress = (&raw mut (*storage).object).cast();
            object.cast::<[u64; LARGEST_STRUCT / 8]>().write([0; LARGEST_STRUCT / 8]);
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

    /// Calls the library; returns its error message where the call fails.
    fn call<T>(&mut self, call: impl FnOnce(&Functions, *mut Decompress) -> T) -> Result<T, String> {
        let (functions, object) = (self.functions, self.object);
        catch_unwind(AssertUnwindSafe(|| call(functions, object))).map_err(|payload| {
            if !payload.is::<DecodingFailed>() {
                resume_unwind(payload);
            }
            // SAFETY: no callback runs, and nobody else has the notes.
            std::mem::take(unsafe { &mut (*self.state).problem })
        })
    }

    /// Reads the header.
    pub(crate) fn read_header(&mut self) -> Result<(), String> {
        // SAFETY: the object is made and has a file.
        self.call(|functions, object| unsafe {
            (functions.jpeg_read_header)(object, 1);
        })
    }

    /// Height and width of the image.
    pub(crate) fn size(&self) -> [usize; 2] {
        // SAFETY: the object's memory is set, and no call is under way.
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
        ColourSpace::of(unsafe { (*self.object).jpeg_color_space })
    }

    /// Starts decoding to these colours, reduced by 1, 2, 4 or 8; returns the bytes per pixel. Multi-scan
    /// files are read to their end.
    pub(crate) fn start(&mut self, colours: ColourSpace, by: usize) -> Result<usize, String> {
        // SAFETY: as in `size`. Smoothing would guess what scans that are missing hold, from the neighbours.
        unsafe {
            (*self.object).out_color_space = colours.code();
            (*self.object).do_block_smoothing = 0;
            ((*self.object).scale_num, (*self.object).scale_denom) = (1, by as u32);
        }
        // SAFETY: the header is read, or the library says that it is not.
        self.call(|functions, object| unsafe {
            (functions.jpeg_start_decompress)(object);
            (*object).output_components as usize
        })
    }

    /// Height and width of what is decoded, once decoding has begun: those of the image, divided by the
    /// reduction and rounded up.
    pub(crate) fn output_size(&self) -> [usize; 2] {
        // SAFETY: as in `size`.
        unsafe { [(*self.object).output_height as usize, (*self.object).output_width as usize] }
    }

    /// Restricts decoding to some columns, rounded outwards; returns the first column and the width of rows.
    pub(crate) fn crop(&mut self, first: usize, columns: usize) -> Result<(usize, usize), String> {
        let (mut offset, mut width) = (first as u32, columns as u32);
        // SAFETY: decoding has begun, or the library says that it has not; both numbers are there for the
        // call to change.
        self.call(|functions, object| unsafe {
            (functions.jpeg_crop_scanline)(object, &raw mut offset, &raw mut width);
        })?;
        Ok((offset as usize, width as usize))
    }

    /// Skips rows.
    pub(crate) fn skip(&mut self, rows: usize) -> Result<(), String> {
        // SAFETY: decoding has begun, or the library says that it has not.
        let skipped =
            self.call(|functions, object| unsafe { (functions.jpeg_skip_scanlines)(object, rows as u32) })?;
        if skipped as usize == rows {
            Ok(())
        } else {
            Err("the image has fewer rows than its header says".to_owned())
        }
    }

    /// Decodes as many rows as `rows` holds, each to the start of its slice.
    pub(crate) fn read<'r>(&mut self, rows: impl Iterator<Item = &'r mut [u8]>) -> Result<(), String> {
        // SAFETY: as in `size`.
        let bytes =
            unsafe { (*self.object).output_width as usize * (*self.object).output_components as usize };
        let mut rows = rows.fuse();
        loop {
            let mut pointers = [std::ptr::null_mut(); ROWS_AT_ONCE];
            let mut count = 0;
            for (pointer, row) in pointers.iter_mut().zip(&mut rows) {
                if row.len() < bytes {
                    return Err(format!("a row has {bytes} bytes, with room for {}", row.len()));
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
                // SAFETY: each pointer leads to a row's memory, which the iterator lent for the call.
                let read = self.call(|functions, object| unsafe {
                    (functions.jpeg_read_scanlines)(object, left.as_mut_ptr(), left.len() as u32)
                })?;
                if read == 0 {
                    return Err("the image has fewer rows than its header says".to_owned());
                }
                done += read as usize;
            }
        }
    }

    /// Reads to the end of the file; all rows must have been read.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        // SAFETY: decoding has begun, or the library says that it has not.
        self.call(|functions, object| unsafe {
            (functions.jpeg_finish_decompress)(object);
        })
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // SAFETY: the object is made, in whatever state, or its memory is zeros, which the function knows.
        let _ = self.call(|functions, object| unsafe { (functions.jpeg_destroy_decompress)(object) });
    }
}

/// The library's version and the size of its object, which it reports when a caller passes wrong ones.
pub(super) fn interface(functions: &Functions) -> Option<(c_int, usize)> {
    let unknown = Interface { version: 0, bytes: 0, harmless: [None; _] };
    let refused = |version| {
        let mut storage = DecoderMemory::with(unknown);
        let storage: *mut DecoderMemory = &raw mut storage;
        let mut session = Session::on(functions, storage);
        // SAFETY: the object's memory knows where errors go, and the library looks at version and bytes
        // before it touches more.
        let made = session.call(|functions, object| unsafe {
            (functions.jpeg_CreateDecompress)(object, version, 0);
        });
        // SAFETY: `on` has set the error manager, in a place that is still there.
        made.is_err().then(|| unsafe { (*(*session.object).err).msg_parm[0] })
    };
    let version = refused(0)?;
    Some((version, usize::try_from(refused(version)?).ok()?))
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
/// For the library to call, with an object of a [`Session`].
unsafe extern "C-unwind" fn error_exit(object: *mut Decompress) {
    // SAFETY: a session's object has an error manager and notes for as long as it is used; the message has
    // the length that the header demands.
    unsafe {
        let mut message = [0 as c_char; LONGEST_MESSAGE];
        if let Some(format) = (*(*object).err).format_message {
            format(object, message.as_mut_ptr());
        }
        message[LONGEST_MESSAGE - 1] = 0;
        let state: *mut CallbackState = (*object).client_data.cast();
        (*state).problem = CStr::from_ptr(message.as_ptr()).to_string_lossy().into_owned();
    }
    // Unlike a panic, this does not call the panic hook, which would print.
    resume_unwind(Box::new(DecodingFailed));
}

/// Treats a warning as an error, unless it does not affect pixels.
///
/// # Safety
/// As [`error_exit`].
unsafe extern "C-unwind" fn emit_message(object: *mut Decompress, level: c_int) {
    // SAFETY: as in `error_exit`.
    unsafe {
        let state: *mut CallbackState = (*object).client_data.cast();
        let code = (*(*object).err).msg_code;
        if level < 0 && !(*state).interface.harmless.contains(&Some(code)) {
            error_exit(object);
        }
    }
}

/// Prints nothing.
unsafe extern "C-unwind" fn output_message(_: *mut Decompress) {}

/// Called every few rows of a scan: stops decoding where there are too many scans.
///
/// # Safety
/// As [`error_exit`].
unsafe extern "C-unwind" fn progress_monitor(object: *mut Decompress) {
    // SAFETY: as in `error_exit`.
    unsafe {
        if (*object).input_scan_number <= MOST_SCANS {
            return;
        }
        let state: *mut CallbackState = (*object).client_data.cast();
        (*state).problem = format!("more than {MOST_SCANS} scans");
    }
    resume_unwind(Box::new(DecodingFailed));
}
