//! Forecasts: the numbers come from a [`Forecaster`], the command line's, since this crate knows neither
//! networks nor machines. Answers are kept, and one forecast is computed at a time.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

/// Maximum number of answers that are kept, each of at most a few megabytes.
const MAX_ANSWERS: usize = 32;
/// Maximum number of forecasts that are computed or wait.
const MAX_PENDING: usize = 4;
/// The time for which an answer is kept: data sets, prices and profiles on this machine may change.
const MAX_AGE: Duration = Duration::from_secs(600);

/// The experiment of a forecast.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ForecastExperiment {
    /// A registered experiment.
    Builtin(String),
    /// The experiment of a run in the folders.
    Run(PathBuf),
}

/// The question of a page. Texts are as people typed them: the forecaster checks them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ForecastRequest {
    /// The experiment.
    pub experiment: ForecastExperiment,
    /// Batch sizes between commas; those of the experiment if empty.
    pub batch: String,
    /// The number of training images; that of the data set if empty.
    pub images: String,
    /// The number of epochs; that of the experiment if empty.
    pub epochs: String,
    /// The number format; that of the experiment if empty.
    pub precision: String,
    /// The objective, as `stratus forecast --objective` takes it.
    pub objective: String,
}

/// Computes forecasts, as `stratus forecast` does.
pub trait Forecaster: Send + Sync {
    /// The names of the registered experiments.
    fn experiments(&self) -> Vec<String>;

    /// The number formats that can be asked for.
    fn precisions(&self) -> Vec<String>;

    /// A forecast, as a JSON document for the page; `forecast` in it is that of `stratus forecast --json`.
    ///
    /// # Errors
    /// The reason, in one sentence, if the request is invalid or the experiment cannot be planned.
    fn forecast(&self, request: &ForecastRequest) -> Result<String, String>;
}

/// An answer of a forecaster.
type Answer = Arc<Result<String, String>>;

/// The forecasts of a server.
#[derive(Clone)]
pub struct Forecasts {
    forecaster: Option<Arc<dyn Forecaster>>,
    answers: Arc<Mutex<HashMap<ForecastRequest, (Instant, Answer)>>>,
    /// One permit, since one forecast is computed at a time.
    computing: Arc<Semaphore>,
    /// [`MAX_PENDING`] permits.
    pending: Arc<Semaphore>,
}

impl fmt::Debug for Forecasts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Forecasts").field("answers", &self.answers).finish_non_exhaustive()
    }
}

/// The reason why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub enum NoForecast {
    /// The server has no forecaster.
    Unavailable,
    /// Too many forecasts are computed or wait.
    Busy,
    /// The request is invalid, or cannot be forecast.
    Refused(String),
}

impl Forecasts {
    /// Forecasts by a forecaster.
    pub fn new(forecaster: Option<Arc<dyn Forecaster>>) -> Self {
        Self {
            forecaster,
            answers: Arc::default(),
            computing: Arc::new(Semaphore::new(1)),
            pending: Arc::new(Semaphore::new(MAX_PENDING)),
        }
    }

    /// The forecaster, if there is one.
    pub fn forecaster(&self) -> Option<&Arc<dyn Forecaster>> {
        self.forecaster.as_ref()
    }

    /// The answer to a request: the kept one, or a new one, computed outside the thread of the server. A page
    /// that is closed meanwhile does not stop it: its answer is kept. Refusals are not: their cause may be
    /// mended.
    pub async fn answer(&self, request: ForecastRequest) -> Result<String, NoForecast> {
        let Some(forecaster) = &self.forecaster else { return Err(NoForecast::Unavailable) };
        if let Some(answer) = self.kept(&request) {
            return to_result(&answer);
        }
        let waiting = Arc::clone(&self.pending).try_acquire_owned().map_err(|_| NoForecast::Busy)?;
        let permit = Arc::clone(&self.computing).acquire_owned().await.map_err(|_| NoForecast::Busy)?;
        // Another page may have asked the same.
        if let Some(answer) = self.kept(&request) {
            return to_result(&answer);
        }
        let (forecaster, all) = (Arc::clone(forecaster), self.clone());
        let task = tokio::task::spawn_blocking(move || {
            let _permits = (permit, waiting);
            let answer = Arc::new(forecaster.forecast(&request));
            if answer.is_ok() {
                all.keep(request, Arc::clone(&answer));
            }
            answer
        });
        let failed = |_| NoForecast::Refused("the forecast failed; `stratus forecast` tells why".to_owned());
        to_result(&task.await.map_err(failed)?)
    }

    fn kept(&self, request: &ForecastRequest) -> Option<Answer> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.retain(|_, (at, _)| at.elapsed() < MAX_AGE);
        answers.get(request).map(|(_, answer)| Arc::clone(answer))
    }

    fn keep(&self, request: ForecastRequest, answer: Answer) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.len() >= MAX_ANSWERS {
            let oldest = answers.iter().min_by_key(|(_, (at, _))| *at).map(|(request, _)| request.clone());
            oldest.and_then(|oldest| answers.remove(&oldest));
        }
        answers.insert(request, (Instant::now(), answer));
    }
}

fn to_result(answer: &Answer) -> Result<String, NoForecast> {
    answer.as_ref().clone().map_err(NoForecast::Refused)
}
