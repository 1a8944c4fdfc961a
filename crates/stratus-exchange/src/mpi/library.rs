//! The functions of a loaded library.

use super::abi::{Abi, Constants, KNOWN_SYSTEM, OPEN_MPI_OBJECTS};
use crate::ExchangeError;
use libloading::os::unix::{Library as Loaded, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;

type Transfer = unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, c_int, usize, *mut usize) -> c_int;

/// Functions and constants of MPI. Requests are words as handles are.
pub(super) struct Library {
    constants: Constants,
    init_thread: unsafe extern "C" fn(*mut c_int, *mut c_void, c_int, *mut c_int) -> c_int,
    finalize: unsafe extern "C" fn() -> c_int,
    comm_rank: unsafe extern "C" fn(usize, *mut c_int) -> c_int,
    comm_size: unsafe extern "C" fn(usize, *mut c_int) -> c_int,
    set_errhandler: unsafe extern "C" fn(usize, usize) -> c_int,
    isend: Transfer,
    irecv: Transfer,
    test: unsafe extern "C" fn(*mut usize, *mut c_int, usize) -> c_int,
    all_reduce: unsafe extern "C" fn(*const c_void, *mut c_void, c_int, usize, usize, usize) -> c_int,
    error_string: unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int,
    version: unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int,
    /// Last, so that it is closed last. It never is: MPI leaves threads and handlers behind.
    _loaded: std::mem::ManuallyDrop<Loaded>,
}

/// Why a library was not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error("{path} cannot be loaded: {reason}")]
    Absent { path: String, reason: String },
    #[error("{path} is no MPI that can be used: {reason}")]
    Unusable { path: String, reason: String },
}

/// Whether there is no such file.
pub(super) fn is_absent(error: &LoadError) -> bool {
    matches!(error, LoadError::Absent { .. })
}

/// A function of a library.
///
/// # Safety
/// The library's function of this name has the type `F`.
unsafe fn function<F: Copy>(loaded: &Loaded, path: &Path, name: &str) -> Result<F, LoadError> {
    // SAFETY: as the caller says.
    let found = unsafe { loaded.get::<F>(name.as_bytes()) };
    found.map(|function| *function).map_err(|_| LoadError::Unusable {
        path: path.display().to_string(),
        reason: format!("it has no {name}"),
    })
}

/// The longest text that a library writes, in any interface.
const MOST_TEXT: usize = 8192;

impl Library {
    /// Loads a library's file. Its symbols become known to what it loads itself, as Open MPI's plug-ins need.
    pub(super) fn load(path: &Path) -> Result<Self, LoadError> {
        let name = || path.display().to_string();
        let unusable = |reason: String| LoadError::Unusable { path: name(), reason };
        if !KNOWN_SYSTEM {
            return Err(unusable("MPI is called on 64-bit Linux and macOS alone".to_owned()));
        }
        // SAFETY: the initialisers of an MPI library do nothing before it is called; the user, the system or
        // `make deps` put it where it was found.
        let loaded = unsafe { Loaded::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }
            .map_err(|error| LoadError::Absent { path: name(), reason: error.to_string() })?;
        let address = |symbol: &str| {
            // SAFETY: the address alone is taken, nothing behind it is read.
            unsafe { loaded.get::<*mut c_void>(symbol.as_bytes()) }
                .map(|found| found.into_raw() as usize)
                .map_err(|_| unusable(format!("it has no {symbol}")))
        };
        let is_standard = path.file_name().is_some_and(|name| name.to_string_lossy().contains("mpi_abi"));
        let objects = OPEN_MPI_OBJECTS.map(address);
        let abi = match (is_standard, &objects[0]) {
            (true, _) => Abi::Standard,
            (false, Ok(_)) => Abi::OpenMpi,
            (false, Err(_)) => Abi::Mpich,
        };
        let constants = match abi {
            Abi::OpenMpi => {
                let [world, byte, errors, float, sum] = objects;
                abi.constants([world?, byte?, errors?, float?, sum?])
            }
            Abi::Standard | Abi::Mpich => abi.constants([0; 5]),
        };
        // SAFETY: the function of each name has the type of its field in every interface, handles as `abi`
        // says.
        unsafe {
            Ok(Self {
                constants,
                init_thread: function(&loaded, path, "MPI_Init_thread")?,
                finalize: function(&loaded, path, "MPI_Finalize")?,
                comm_rank: function(&loaded, path, "MPI_Comm_rank")?,
                comm_size: function(&loaded, path, "MPI_Comm_size")?,
                set_errhandler: function(&loaded, path, "MPI_Comm_set_errhandler")?,
                isend: function(&loaded, path, "MPI_Isend")?,
                irecv: function(&loaded, path, "MPI_Irecv")?,
                test: function(&loaded, path, "MPI_Test")?,
                all_reduce: function(&loaded, path, "MPI_Allreduce")?,
                error_string: function(&loaded, path, "MPI_Error_string")?,
                version: function(&loaded, path, "MPI_Get_library_version")?,
                _loaded: std::mem::ManuallyDrop::new(loaded),
            })
        }
    }

    /// Joins the other processes. Errors are returned from then on, rather than ending the process.
    pub(super) fn init(&self) -> Result<(), ExchangeError> {
        let mut provided = 0;
        // SAFETY: MPI allows null arguments; it is called once, as its owner is made once in a process.
        let code = unsafe {
            (self.init_thread)(null_mut(), null_mut(), self.constants.thread_funneled, &raw mut provided)
        };
        self.check("MPI_Init_thread", code)?;
        if provided < self.constants.thread_funneled {
            return Err(ExchangeError::Library {
                library: self.version(),
                reason: "it was built for programs without threads".to_owned(),
            });
        }
        // SAFETY: MPI is initialised; both are its constants.
        let code = unsafe { (self.set_errhandler)(self.constants.comm_world, self.constants.errors_return) };
        self.check("MPI_Comm_set_errhandler", code)
    }

    pub(super) fn rank(&self) -> Result<usize, ExchangeError> {
        self.number("MPI_Comm_rank", self.comm_rank)
    }

    pub(super) fn size(&self) -> Result<usize, ExchangeError> {
        self.number("MPI_Comm_size", self.comm_size)
    }

    fn number(
        &self,
        call: &'static str,
        function: unsafe extern "C" fn(usize, *mut c_int) -> c_int,
    ) -> Result<usize, ExchangeError> {
        let mut number = 0;
        // SAFETY: MPI is initialised; it writes one integer.
        let code = unsafe { function(self.constants.comm_world, &raw mut number) };
        self.check(call, code)?;
        Ok(usize::try_from(number).unwrap_or(0))
    }

    /// Begins to send.
    ///
    /// # Safety
    /// The bytes live and stay as they are until the request is done.
    pub(super) unsafe fn send(&self, bytes: &[u8], peer: usize, tag: c_int) -> Result<usize, ExchangeError> {
        // SAFETY: as the caller says; MPI does not write to what it sends.
        unsafe { self.transfer("MPI_Isend", self.isend, bytes.as_ptr().cast_mut(), bytes.len(), peer, tag) }
    }

    /// Begins to receive.
    ///
    /// # Safety
    /// The bytes live and are not touched until the request is done.
    pub(super) unsafe fn receive(
        &self,
        bytes: &mut [u8],
        peer: usize,
        tag: c_int,
    ) -> Result<usize, ExchangeError> {
        // SAFETY: as the caller says.
        unsafe { self.transfer("MPI_Irecv", self.irecv, bytes.as_mut_ptr(), bytes.len(), peer, tag) }
    }

    unsafe fn transfer(
        &self,
        call: &'static str,
        function: Transfer,
        bytes: *mut u8,
        length: usize,
        peer: usize,
        tag: c_int,
    ) -> Result<usize, ExchangeError> {
        let Constants { byte, comm_world, .. } = self.constants;
        let mut request = 0;
        let (count, peer) = (c_int::try_from(length).unwrap_or(c_int::MAX), peer as c_int);
        // SAFETY: `count` bytes are there, as the caller says; MPI is initialised.
        let code = unsafe { function(bytes.cast(), count, byte, peer, tag, comm_world, &raw mut request) };
        self.check(call, code)?;
        Ok(request)
    }

    /// Whether a request is done, which lets the library work at it.
    pub(super) fn test(&self, request: &mut usize) -> Result<bool, ExchangeError> {
        let mut done = 0;
        // SAFETY: the request is one of `transfer`'s, or the null request that MPI has put in its place.
        let code = unsafe { (self.test)(request, &raw mut done, self.constants.status_ignore) };
        self.check("MPI_Test", code)?;
        Ok(done != 0)
    }

    /// Adds up values over all processes, in whatever order the library likes.
    pub(super) fn all_reduce(&self, values: &[f32], sums: &mut [f32]) -> Result<(), ExchangeError> {
        let Constants { float, sum, comm_world, .. } = self.constants;
        let count = c_int::try_from(values.len().min(sums.len())).unwrap_or(c_int::MAX);
        // SAFETY: both hold `count` numbers, and the call returns when it needs neither any more.
        let code = unsafe {
            (self.all_reduce)(values.as_ptr().cast(), sums.as_mut_ptr().cast(), count, float, sum, comm_world)
        };
        self.check("MPI_Allreduce", code)
    }

    pub(super) fn finalize(&self) -> Result<(), ExchangeError> {
        // SAFETY: MPI is initialised, and its owner is dropped once.
        let code = unsafe { (self.finalize)() };
        self.check("MPI_Finalize", code)
    }

    /// The library's first line about itself.
    pub(super) fn version(&self) -> String {
        let text = text(|buffer, length| {
            // SAFETY: the buffer holds what any interface writes at most.
            unsafe { (self.version)(buffer, length) }
        });
        text.lines().next().unwrap_or("MPI").trim().to_owned()
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), ExchangeError> {
        if code == 0 {
            return Ok(());
        }
        let reason = text(|buffer, length| {
            // SAFETY: the buffer holds what any interface writes at most.
            unsafe { (self.error_string)(code, buffer, length) }
        });
        Err(ExchangeError::Call { call, reason: format!("{} (code {code})", reason.trim()) })
    }
}

/// The text that a function writes.
fn text(write: impl FnOnce(*mut c_char, *mut c_int) -> c_int) -> String {
    let mut buffer = vec![0u8; MOST_TEXT + 1];
    let mut length = 0;
    write(buffer.as_mut_ptr().cast(), &raw mut length);
    let length = usize::try_from(length).unwrap_or(0).min(MOST_TEXT);
    let written = &buffer[..length];
    let end = written.iter().position(|&byte| byte == 0).unwrap_or(length);
    String::from_utf8_lossy(&written[..end]).into_owned()
}
