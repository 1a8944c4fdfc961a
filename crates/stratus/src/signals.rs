//! SIGINT, SIGTERM and SIGHUP set a flag; the training loop checks it and stops with a checkpoint.

use crate::errors::{Failure, INTERRUPTED, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Makes SIGINT, SIGTERM and SIGHUP set the returned flag.
///
/// A second SIGINT ends the process at once with exit code 75; the run can be resumed all the same. A closed
/// terminal sends SIGHUP; where the process ignores it, as under `nohup`, it stays ignored.
///
/// # Errors
/// If the system refuses to register the handlers.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let failed = |error: std::io::Error| Failure::failed(format!("cannot register signal handlers: {error}"));
    // Handlers run in order of registration. This one is registered first, so it exits only if an earlier
    // signal has set the flag.
    flag::register_conditional_shutdown(SIGINT, i32::from(INTERRUPTED), Arc::clone(&stop)).map_err(failed)?;
    let signals = [SIGINT, SIGTERM].into_iter().chain((!ignores(SIGHUP)).then_some(SIGHUP));
    for signal in signals {
        flag::register(signal, Arc::clone(&stop)).map_err(failed)?;
    }
    Ok(stop)
}

/// Returns true if this process ignores the signal, by its status in `/proc`; false where that is missing.
fn ignores(signal: i32) -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| is_in_ignored_set(&status, signal))
}

/// Returns true if the line `SigIgn` of a process's status, a hexadecimal mask, contains the signal.
fn is_in_ignored_set(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    (mask >> (signal - 1)) & 1 == 1
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
    use super::{SIGHUP, SIGTERM, is_in_ignored_set, stop_flag};
    use std::sync::atomic::Ordering;

    #[test]
    fn signal_only_sets_the_flag() {
        let stop = stop_flag().unwrap();
        assert!(!stop.load(Ordering::SeqCst));
        signal_hook::low_level::raise(SIGTERM).unwrap();
        assert!(stop.load(Ordering::SeqCst));
    }

    #[test]
    fn ignored_signals_are_read_from_the_process_status() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000004002\n";
        assert!(is_in_ignored_set(status, SIGHUP));
        assert!(!is_in_ignored_set(status, SIGTERM));
        assert!(!is_in_ignored_set("", SIGHUP));
    }
}
