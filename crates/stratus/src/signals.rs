//! SIGINT and SIGTERM set a flag; the training loop checks it and stops with a checkpoint.

use crate::errors::{Failure, INTERRUPTED, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Makes SIGINT and SIGTERM set the returned flag.
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
    for signal in [SIGINT, SIGTERM] {
        flag::register(signal, Arc::clone(&stop)).map_err(failed)?;
    }
    Ok(stop)
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
    use super::stop_flag;
    use std::sync::atomic::Ordering;

    #[test]
    fn signal_only_sets_the_flag() {
        let stop = stop_flag().unwrap();
        assert!(!stop.load(Ordering::SeqCst));
        signal_hook::low_level::raise(signal_hook::consts::SIGTERM).unwrap();
        assert!(stop.load(Ordering::SeqCst));
    }
}
