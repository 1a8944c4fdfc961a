//! A loaded libjpeg-turbo.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs::File;
use std::io::Read;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stratus_base::library::root_cause;

use super::raw::{Abi, Decompress, Functions, HARMLESS_WARNINGS, KNOWN_SYSTEM, LoadError, MAX_STRUCT_BYTES};
use super::session::{DecoderMemory, Decompressor, detect_abi, standard_errors};

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
            .map_err(|error| LoadError::Open { path: path.to_owned(), reason: root_cause(&error) })?;
        let functions = Functions::resolve(&library, path)?;
        let found = loaded_from(functions.jpeg_CreateDecompress as *const c_void);
        let path = found.unwrap_or_else(|| path.to_owned());
        let (version, bytes) = detect_abi(&functions)
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

    /// The memory for an object of this library.
    pub(crate) fn new_memory(&self) -> DecoderMemory {
        DecoderMemory::new(self.inner.abi)
    }

    /// Starts reading a file, see [`Decompressor::begin`].
    pub(crate) fn begin<'a>(
        &'a self,
        storage: &'a mut DecoderMemory,
        file: &'a [u8],
        memory: usize,
    ) -> Result<Decompressor<'a>, String> {
        Decompressor::begin(&self.inner.functions, storage, file, memory)
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
    let errors = standard_errors(functions);
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
