//! What a backend's start spends its time on.

use crate::EngineError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Is called with the name of each phase that begins.
pub type Listener = Arc<dyn Fn(&str) + Send + Sync>;

/// Who is told what the process does meanwhile.
static LISTENER: Mutex<Option<Listener>> = Mutex::new(None);

/// Has `listener` be told from now on, in place of who was told before.
pub fn listen(listener: Option<Listener>) {
    *LISTENER.lock().unwrap_or_else(PoisonError::into_inner) = listener;
}

/// Whether preparations are to end.
static STOP: Mutex<Option<Arc<AtomicBool>>> = Mutex::new(None);

/// Has preparations that look at it ([`go_on`]) end once `stop` is set.
pub fn stop_with(stop: Option<Arc<AtomicBool>>) {
    *STOP.lock().unwrap_or_else(PoisonError::into_inner) = stop;
}

/// Tells who listens what begins, for work of many small parts.
///
/// # Errors
/// [`EngineError::Interrupted`] where preparations are to end.
pub fn go_on(phase: impl FnOnce() -> String) -> Result<(), EngineError> {
    let stop = STOP.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
        return Err(EngineError::Interrupted);
    }
    tell(phase);
    Ok(())
}

/// Tells who listens what begins.
fn tell<S: AsRef<str>>(phase: impl FnOnce() -> S) {
    let listener = LISTENER.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(listener) = listener {
        listener(phase().as_ref());
    }
}

/// Phases by name, in the order in which they ended first, with the time that each has taken in all. Phases
/// of different threads overlap.
#[derive(Debug, Default)]
pub struct Phases(Mutex<Vec<(&'static str, Duration)>>);

impl Phases {
    /// Does some work, whose time is counted to a phase.
    pub fn during<T>(&self, phase: &'static str, work: impl FnOnce() -> T) -> T {
        tell(|| phase);
        let begun = Instant::now();
        let done = work();
        let taken = begun.elapsed();
        let mut phases = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match phases.iter_mut().find(|(name, _)| *name == phase) {
            Some((_, sum)) => *sum += taken,
            None => phases.push((phase, taken)),
        }
        done
    }

    /// The seconds of each phase so far.
    #[must_use]
    pub fn seconds(&self) -> Vec<(&'static str, f64)> {
        let phases = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        phases.iter().map(|(name, taken)| (*name, taken.as_secs_f64())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_is_told_what_begins() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&told);
        listen(Some(Arc::new(move |phase: &str| to.lock().unwrap().push(phase.to_owned()))));
        Phases::default().during("compiling what is told", || ());
        listen(None);
        Phases::default().during("measuring in silence", || ());
        let told = told.lock().unwrap();
        // Other tests may have told something meanwhile.
        assert!(told.iter().any(|phase| phase == "compiling what is told"));
        assert!(!told.iter().any(|phase| phase == "measuring in silence"));
    }

    #[test]
    fn times_of_a_phase_are_added_up() {
        let phases = Phases::default();
        let sleep = || std::thread::sleep(Duration::from_millis(2));
        assert_eq!(phases.during("a", || 7), 7);
        phases.during("b", sleep);
        let before = phases.seconds();
        phases.during("a", sleep);
        let after = phases.seconds();
        assert_eq!(after.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["a", "b"]);
        assert!(after[0].1 >= before[0].1 + 0.002 && after[1] == before[1] && after[1].1 >= 0.002);
    }
}
