//! NVRTC: compiles CUDA C to machine code.

use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};
use std::ffi::{CString, c_char};
use std::ptr;

/// The version, as `major.minor`.
///
/// # Errors
/// NVRTC's error message.
pub(crate) fn version() -> Result<String, String> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both point to ints.
    check(unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) })?;
    Ok(format!("{major}.{minor}"))
}

struct Program(nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created and destroyed once. A failure only leaks memory.
        let _ = unsafe { sys::nvrtcDestroyProgram(&raw mut self.0) };
    }
}

/// Compiles a text for an architecture, as `sm_90`, to machine code (a cubin). `name` is used in messages.
///
/// # Errors
/// The compiler's messages.
pub(crate) fn compile(text: &str, name: &str, architecture: &str) -> Result<Vec<u8>, String> {
    let text = c_string(text)?;
    let file = c_string(name)?;
    let mut program = Program(ptr::null_mut());
    // SAFETY: text and name end with a zero byte; no headers are given.
    check(unsafe {
        sys::nvrtcCreateProgram(&raw mut program.0, text.as_ptr(), file.as_ptr(), 0, ptr::null(), ptr::null())
    })?;
    let options = [format!("--gpu-architecture={architecture}"), "--std=c++17".to_owned()];
    let options = options.iter().map(|option| c_string(option)).collect::<Result<Vec<_>, _>>()?;
    let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    // SAFETY: the program was created; the number of options is right, and each ends with a zero byte.
    let compiled = unsafe { sys::nvrtcCompileProgram(program.0, pointers.len() as i32, pointers.as_ptr()) };
    if compiled != nvrtcResult::NVRTC_SUCCESS {
        return Err(format!("{name}: {}", log(&program).unwrap_or_else(|reason| reason)));
    }
    let mut size = 0;
    // SAFETY: the program was compiled, and `size` is one number.
    check(unsafe { sys::nvrtcGetCUBINSize(program.0, &raw mut size) })?;
    let mut code = vec![0_u8; size];
    // SAFETY: the buffer has the size returned above.
    check(unsafe { sys::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast()) })?;
    Ok(code)
}

fn log(program: &Program) -> Result<String, String> {
    let mut size = 0;
    // SAFETY: the program exists, and `size` is one number.
    check(unsafe { sys::nvrtcGetProgramLogSize(program.0, &raw mut size) })?;
    let mut log = vec![0_u8; size];
    // SAFETY: the buffer has the size returned above.
    check(unsafe { sys::nvrtcGetProgramLog(program.0, log.as_mut_ptr().cast()) })?;
    Ok(String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned())
}

fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| "source text contains a zero byte".to_owned())
}

fn check(result: nvrtcResult) -> Result<(), String> {
    if result == nvrtcResult::NVRTC_SUCCESS { Ok(()) } else { Err(format!("NVRTC error {result:?}")) }
}
