//! The program that connects to other machines: the system's `ssh`, or another in its place.

use std::ffi::OsString;

/// The environment variable with a replacement of `ssh`, which receives the same arguments.
pub const PROGRAM_VARIABLE: &str = "STRATUS_SSH";

/// The program that is run as `ssh`.
#[must_use]
pub fn program() -> OsString {
    std::env::var_os(PROGRAM_VARIABLE).filter(|program| !program.is_empty()).unwrap_or_else(|| "ssh".into())
}

/// The hint of a failure to start `program`.
#[must_use]
pub fn start_hint(program: &str) -> String {
    match std::env::var_os(PROGRAM_VARIABLE) {
        Some(other) if other.to_str() == Some(program) => format!("correct or unset {PROGRAM_VARIABLE}"),
        _ => format!("install {program}"),
    }
}
