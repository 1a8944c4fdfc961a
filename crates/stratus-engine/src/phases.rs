//! Startup phases: their names, times and the stop flag.

use crate::EngineError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Called with the name of each phase as it starts.
pub type PhaseListener = Arc<dyn Fn(&str) + Send + Sync>;

/// The listener for phase names.
static LISTENER: Mutex<Option<PhaseListener>> = Mutex::new(None);

/// Sets the listener, replacing the previous one.
pub fn set_listener(listener: Option<PhaseListener>) {
    *LISTENER.lock().unwrap_or_else(PoisonError::into_inner) = listener;
}

/// The stop flag of preparation.
static STOP: Mutex<Option<Arc<AtomicBool>>> = Mutex::new(None);

/// Sets the flag that ends preparations: they check it in [`report_or_stop`].
pub fn set_stop_flag(stop: Option<Arc<AtomicBool>>) {
    *STOP.lock().unwrap_or_else(PoisonError::into_inner) = stop;
}

/// Reports a phase to the listener unless a stop was requested. Work of many small parts calls it for each.
///
/// # Errors
/// [`EngineError::Interrupted`] if a stop was requested.
pub fn report_or_stop(phase: impl FnOnce() -> String) -> Result<(), EngineError> {
    let stop = STOP.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
        return Err(EngineError::Interrupted);
    }
    report(phase);
    Ok(())
}

/// Reports a phase to the listener.
fn report<S: AsRef<str>>(phase: impl FnOnce() -> S) {
    let listener = LISTENER.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(listener) = listener {
        listener(phase().as_ref());
    }
}

/// The total time of each phase by name, in the order in which phases first ended. Phases of different
/// threads overlap.
#[derive(Debug, Default)]
pub struct StartupTimes(Mutex<Vec<(&'static str, Duration)>>);

impl StartupTimes {
    /// Runs `work` and adds its time to a phase.
    pub fn time<T>(&self, phase: &'static str, work: impl FnOnce() -> T) -> T {
        report(|| phase);
        let start = Instant::now();
        let done = work();
        let elapsed = start.elapsed();
        let mut phases = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match phases.iter_mut().find(|(name, _)| *name == phase) {
            Some((_, sum)) => *sum += elapsed,
            None => phases.push((phase, elapsed)),
        }
        done
    }

    /// The seconds of each phase so far.
    #[must_use]
    pub fn seconds(&self) -> Vec<(&'static str, f64)> {
        let phases = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        phases.iter().map(|(name, elapsed)| (*name, elapsed.as_secs_f64())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_receives_phase_names_until_it_is_removed() {
        let received = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&received);
        set_listener(Some(Arc::new(move |phase: &str| to.lock().unwrap().push(phase.to_owned()))));
        StartupTimes::default().time("compiling while listening", || ());
        set_listener(None);
        StartupTimes::default().time("measuring without listener", || ());
        let received = received.lock().unwrap();
        // Other tests may have reported phases meanwhile.
        assert!(received.iter().any(|phase| phase == "compiling while listening"));
        assert!(!received.iter().any(|phase| phase == "measuring without listener"));
    }

    #[test]
    fn repeated_phases_accumulate_time() {
        let phases = StartupTimes::default();
        let sleep = || std::thread::sleep(Duration::from_millis(2));
        assert_eq!(phases.time("a", || 7), 7);
        phases.time("b", sleep);
        let before = phases.seconds();
        phases.time("a", sleep);
        let after = phases.seconds();
        assert_eq!(after.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["a", "b"]);
        assert!(after[0].1 >= before[0].1 + 0.002 && after[1] == before[1] && after[1].1 >= 0.002);
    }
}
