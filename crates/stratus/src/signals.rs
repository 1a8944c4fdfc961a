//! SIGINT, SIGTERM and SIGHUP set a flag; the training loop checks it and stops with a checkpoint.

use crate::errors::{Failure, INTERRUPTED, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::fs;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Makes SIGINT, SIGTERM and SIGHUP set the returned flag.
///
/// SIGHUP, the end of a terminal or of a connection, stays ignored if it was when the process began, as under
/// `nohup`.
///
/// A second SIGINT ends the process at once with exit code 75; the run can be resumed all the same.
///
/// # Errors
/// If the system refuses to register the handlers.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let failed = |error: std::io::Error| Failure::failed(format!("cannot register signal handlers: {error}"));
    // Handlers run in order of registration. This one is registered first, so it exits only if an earlier
    // signal has set the flag.
    flag::register_conditional_shutdown(SIGINT, i32::from(INTERRUPTED), Arc::clone(&stop)).map_err(failed)?;
    let hangup = (!ignores_hangup()).then_some(SIGHUP);
    for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
        flag::register(signal, Arc::clone(&stop)).map_err(failed)?;
    }
    Ok(stop)
}

/// Returns true if the process ignores SIGHUP, as under `nohup`. Its children do too.
#[must_use]
pub fn ignores_hangup() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| is_ignored(SIGHUP, &status))
}

/// Returns true if `status`, the text of `/proc/PID/status`, lists the signal as ignored. The mask is a
/// hexadecimal number, whose lowest bit is signal 1.
fn is_ignored(signal: i32, status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Sets the flag when standard input ends. Its content is ignored.
pub fn stop_with_stdin(stop: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let (mut input, mut buffer) = (std::io::stdin().lock(), [0; 512]);
        while matches!(input.read(&mut buffer), Ok(1..)) {}
        stop.store(true, Ordering::Relaxed);
    });
}

#[cfg(test)]
mod tests {
    use super::{is_ignored, stop_flag};
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use std::sync::atomic::Ordering;

    #[test]
    fn signal_only_sets_the_flag() {
        let stop = stop_flag().unwrap();
        assert!(!stop.load(Ordering::SeqCst));
        signal_hook::low_level::raise(SIGTERM).unwrap();
        assert!(stop.load(Ordering::SeqCst));
    }
    #[test]
    fn hangup_under_nohup_is_ignored() {
        let status = "Name:\tstratus\nSigBlk:\t0000000000000003\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(SIGHUP, status));
        assert!(!is_ignored(SIGINT, status));
        assert!(!is_ignored(SIGTERM, status));
        assert!(!is_ignored(SIGHUP, "SigIgn:\t0000000000001000\n"));
        assert!(!is_ignored(SIGHUP, ""));
    }
}
