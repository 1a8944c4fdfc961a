//! The functions of a loaded MPI library.

use super::abi::{Abi, Constants, IS_SUPPORTED_PLATFORM, OPEN_MPI_OBJECTS};
use crate::ExchangeError;
use libloading::os::unix::{Library as Loaded, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;
use stratus_base::library::root_cause;

type Transfer = unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, c_int, usize, *mut usize) -> c_int;

/// Functions and constants of MPI. Requests are machine words, like handles.
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
    /// The library. It is never closed, since threads and signal handlers of MPI outlive its use.
    _loaded: std::mem::ManuallyDrop<Loaded>,
}

/// The error of a library that could not be loaded.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error("{path} cannot be loaded: {reason}")]
    Absent { path: String, reason: String },
    #[error("{path} is not a usable MPI library: {reason}")]
    Unusable { path: String, reason: String },
}

/// Returns whether the library could not be opened.
pub(super) fn is_absent(error: &LoadError) -> bool {
    matches!(error, LoadError::Absent { .. })
}

/// Looks up a function of a library.
///
/// # Safety
/// The library's function with this name must have the type `F`.
unsafe fn function<F: Copy>(loaded: &Loaded, path: &Path, name: &str) -> Result<F, LoadError> {
    // SAFETY: guaranteed by the caller.
    let found = unsafe { loaded.get::<F>(name.as_bytes()) };
    found.map(|function| *function).map_err(|_| LoadError::Unusable {
        path: path.display().to_string(),
        reason: format!("it has no {name}"),
    })
}

/// The maximum length of a text that a library of any interface writes.
const MAX_TEXT_BYTES: usize = 8192;

impl Library {
    /// Loads a library file. Its symbols are global, as Open MPI's plug-ins require.
    pub(super) fn load(path: &Path) -> Result<Self, LoadError> {
        let name = || path.display().to_string();
        let unusable = |reason: String| LoadError::Unusable { path: name(), reason };
        if !IS_SUPPORTED_PLATFORM {
            return Err(unusable("MPI is supported only on 64-bit Linux and macOS".to_owned()));
        }
        // SAFETY: the initialisers of an MPI library have no effect before it is called; the file was
        // installed by the user, the system or `make deps`.
        let loaded = unsafe { Loaded::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }
            .map_err(|error| LoadError::Absent { path: name(), reason: root_cause(&error) })?;
        let address = |symbol: &str| {
            // SAFETY: only the address is taken; the object is not read.
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
        // SAFETY: in every interface, the function of each name has the type of its field; handles are those
        // of `abi`.
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

    /// Initialises MPI. From then on, errors are returned instead of ending the process.
    pub(super) fn init(&self) -> Result<(), ExchangeError> {
        let mut provided = 0;
        // SAFETY: MPI allows null arguments; it is called once, since its owner is created once per process.
        let code = unsafe {
            (self.init_thread)(null_mut(), null_mut(), self.constants.thread_funneled, &raw mut provided)
        };
        self.check("MPI_Init_thread", code)?;
        if provided < self.constants.thread_funneled {
            return Err(ExchangeError::Library {
                library: self.version(),
                reason: "it lacks MPI_THREAD_FUNNELED".to_owned(),
            });
        }
        // SAFETY: MPI is initialised; both arguments are its constants.
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

    /// Starts to send.
    ///
    /// # Safety
    /// The bytes must stay alive and unchanged until the request has completed.
    pub(super) unsafe fn send(&self, bytes: &[u8], peer: usize, tag: c_int) -> Result<usize, ExchangeError> {
        // SAFETY: guaranteed by the caller; MPI does not write to a send buffer.
        unsafe { self.transfer("MPI_Isend", self.isend, bytes.as_ptr().cast_mut(), bytes.len(), peer, tag) }
    }

    /// Starts to receive.
    ///
    /// # Safety
    /// The bytes must stay alive and untouched until the request has completed.
    pub(super) unsafe fn receive(
        &self,
        bytes: &mut [u8],
        peer: usize,
        tag: c_int,
    ) -> Result<usize, ExchangeError> {
        // SAFETY: guaranteed by the caller.
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
        // SAFETY: the buffer has `count` bytes, as guaranteed by the caller; MPI is initialised.
        let code = unsafe { function(bytes.cast(), count, byte, peer, tag, comm_world, &raw mut request) };
        self.check(call, code)?;
        Ok(request)
    }

    /// Returns whether a request has completed. The call also lets the library make progress.
    pub(super) fn test(&self, request: &mut usize) -> Result<bool, ExchangeError> {
        let mut done = 0;
        // SAFETY: the request is one of `transfer`, or the null request that replaced it.
        let code = unsafe { (self.test)(request, &raw mut done, self.constants.status_ignore) };
        self.check("MPI_Test", code)?;
        Ok(done != 0)
    }

    /// Sums values over all processes, in an order that the library chooses.
    pub(super) fn all_reduce(&self, values: &[f32], sums: &mut [f32]) -> Result<(), ExchangeError> {
        let Constants { float, sum, comm_world, .. } = self.constants;
        let count = c_int::try_from(values.len().min(sums.len())).unwrap_or(c_int::MAX);
        // SAFETY: both buffers hold `count` numbers, and the call uses neither after it returns.
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

    /// The first line of the library's version text.
    pub(super) fn version(&self) -> String {
        let text = text(|buffer, length| {
            // SAFETY: the buffer is as large as the longest text of any interface.
            unsafe { (self.version)(buffer, length) }
        });
        text.lines().next().unwrap_or("MPI").trim().to_owned()
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), ExchangeError> {
        if code == 0 {
            return Ok(());
        }
        let reason = text(|buffer, length| {
            // SAFETY: the buffer is as large as the longest text of any interface.
            unsafe { (self.error_string)(code, buffer, length) }
        });
        Err(ExchangeError::Call { call, reason: format!("{} (code {code})", reason.trim()) })
    }
}

/// The text that `write` puts into a buffer.
fn text(write: impl FnOnce(*mut c_char, *mut c_int) -> c_int) -> String {
    let mut buffer = vec![0u8; MAX_TEXT_BYTES + 1];
    let mut length = 0;
    write(buffer.as_mut_ptr().cast(), &raw mut length);
    let length = usize::try_from(length).unwrap_or(0).min(MAX_TEXT_BYTES);
    let written = &buffer[..length];
    let end = written.iter().position(|&byte| byte == 0).unwrap_or(length);
    String::from_utf8_lossy(&written[..end]).into_owned()
}
