//! Startup phases of a backend: their names, their times, and a request to stop.

use crate::EngineError;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Called with the name of each phase as it starts.
pub type PhaseListener = Arc<dyn Fn(&str) + Send + Sync>;

/// Follows the startup of one backend, and may stop it. The backend receives it when it is opened. By
/// default, it neither listens nor stops.
#[derive(Clone, Default)]
pub struct StartupMonitor {
    /// Receives the name of each phase.
    pub listener: Option<PhaseListener>,
    /// Set by another thread to end preparations, which check it in [`Self::report_or_stop`].
    pub stop: Option<Arc<AtomicBool>>,
}

impl StartupMonitor {
    /// Reports a phase unless a stop was requested. Work that has many small parts calls it for each.
    ///
    /// # Errors
    /// [`EngineError::Interrupted`] if a stop was requested.
    pub fn report_or_stop(&self, phase: impl FnOnce() -> String) -> Result<(), EngineError> {
        if self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            return Err(EngineError::Interrupted);
        }
        self.report(phase);
        Ok(())
    }

    /// Reports a phase to the listener, if there is one.
    fn report<S: AsRef<str>>(&self, phase: impl FnOnce() -> S) {
        if let Some(listener) = &self.listener {
            listener(phase().as_ref());
        }
    }
}

impl fmt::Debug for StartupMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { listener, stop } = self;
        f.debug_struct("StartupMonitor").field("listens", &listener.is_some()).field("stop", stop).finish()
    }
}

/// The total time of each phase by name, in the order in which phases first ended. Phases of different
/// threads overlap.
#[derive(Debug, Default)]
pub struct StartupTimes {
    monitor: StartupMonitor,
    phases: Mutex<Vec<(&'static str, Duration)>>,
}

impl StartupTimes {
    /// No phases yet; each is reported to `monitor` as it starts.
    #[must_use]
    pub fn new(monitor: StartupMonitor) -> Self {
        Self { monitor, phases: Mutex::default() }
    }

    /// Runs `work` and adds its time to a phase.
    pub fn time<T>(&self, phase: &'static str, work: impl FnOnce() -> T) -> T {
        self.monitor.report(|| phase);
        let start = Instant::now();
        let done = work();
        let elapsed = start.elapsed();
        let mut phases = self.phases.lock().unwrap_or_else(PoisonError::into_inner);
        match phases.iter_mut().find(|(name, _)| *name == phase) {
            Some((_, sum)) => *sum += elapsed,
            None => phases.push((phase, elapsed)),
        }
        done
    }

    /// The seconds of each phase so far.
    #[must_use]
    pub fn seconds(&self) -> Vec<(&'static str, f64)> {
        let phases = self.phases.lock().unwrap_or_else(PoisonError::into_inner);
        phases.iter().map(|(name, elapsed)| (*name, elapsed.as_secs_f64())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_receives_the_phases_of_its_backend_only() {
        let received = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&received);
        let listener: PhaseListener = Arc::new(move |phase: &str| to.lock().unwrap().push(phase.to_owned()));
        let monitor = StartupMonitor { listener: Some(listener), stop: None };
        StartupTimes::new(monitor.clone()).time("compiling", || ());
        StartupTimes::default().time("measuring without listener", || ());
        monitor.report_or_stop(|| "step 1".to_owned()).unwrap();
        assert_eq!(*received.lock().unwrap(), ["compiling", "step 1"]);
    }

    #[test]
    fn preparation_ends_once_a_stop_is_requested() {
        let stop = Arc::new(AtomicBool::new(false));
        let monitor = StartupMonitor { stop: Some(Arc::clone(&stop)), listener: None };
        monitor.report_or_stop(String::new).unwrap();
        stop.store(true, Ordering::Relaxed);
        let phase = || panic!("a phase that does not start has no name");
        assert!(matches!(monitor.report_or_stop(phase), Err(EngineError::Interrupted)));
        // Another backend is not stopped.
        StartupMonitor::default().report_or_stop(String::new).unwrap();
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
