//! The program that connects to other machines: the system's `ssh`, or another in its place.

use std::ffi::OsString;
use std::process::Command;

/// The environment variable with a replacement of `ssh`, which receives the same arguments.
pub const PROGRAM_VARIABLE: &str = "STRATUS_SSH";

/// The program that is run as `ssh`.
#[must_use]
pub fn program() -> OsString {
    std::env::var_os(PROGRAM_VARIABLE).filter(|program| !program.is_empty()).unwrap_or_else(|| "ssh".into())
}

/// The command that connects without questions: an unknown or changed key of a host is an error, a silent
/// connection ends after about a minute, and nothing of the user's configuration is forwarded.
#[must_use]
pub fn command() -> Command {
    let mut command = Command::new(program());
    for option in [
        "BatchMode=yes",
        "StrictHostKeyChecking=yes",
        "ConnectTimeout=15",
        "ServerAliveInterval=15",
        "ServerAliveCountMax=4",
        "ClearAllForwardings=yes",
        "ForwardAgent=no",
        "ForwardX11=no",
        "PermitLocalCommand=no",
        "RequestTTY=no",
    ] {
        command.args(["-o", option]);
    }
    command
}

/// The hint of a failure to start `program`.
#[must_use]
pub fn start_hint(program: &str) -> String {
    match std::env::var_os(PROGRAM_VARIABLE) {
        Some(other) if other.to_str() == Some(program) => format!("correct or unset {PROGRAM_VARIABLE}"),
        _ => format!("install {program}"),
    }
}
