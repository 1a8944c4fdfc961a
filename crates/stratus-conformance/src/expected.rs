//! Results of the reference backend, computed once per process, because a suite compares the same case in
//! many layouts, on many threads and with many implementations.

use crate::Case;
use crate::run::Results;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::{Choices, EngineError, Precision};

/// A case and its results, once computed. The lock is held during the computation, so that others wait
/// instead of repeating it.
type Entry = Arc<Mutex<Option<(Case, Arc<Results>)>>>;

static RESULT_CACHE: LazyLock<Mutex<HashMap<(String, Precision), Entry>>> = LazyLock::new(Mutex::default);

impl Case {
    /// The results on the reference backend.
    ///
    /// # Errors
    /// If the reference does not support the case.
    pub fn expected(&self, precision: Precision) -> Result<Arc<Results>, EngineError> {
        let compute = || self.run(&ReferenceBackend, precision, Choices::default()).map(Arc::new);
        let key = (self.name.clone(), precision);
        let entry =
            RESULT_CACHE.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default().clone();
        let mut entry = entry.lock().unwrap_or_else(PoisonError::into_inner);
        match &*entry {
            Some((case, results)) if case == self => Ok(results.clone()),
            // A test changed the case but not its name.
            Some(_) => compute(),
            None => {
                let results = compute()?;
                *entry = Some((self.clone(), results.clone()));
                Ok(results)
            }
        }
    }
}
