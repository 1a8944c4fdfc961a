//! The addresses of the server: pages, JSON documents, the stream of changes, assets.
//!
//! A run is named by its id. No part of an address is ever used as a path.

mod actions;
mod assets;
mod changes;
mod compare;
mod events;
mod files;
mod forecast;
mod items;
mod launches;
mod pictures;
mod runs;
mod sweeps;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use stratus_report::page;
use tokio::sync::Semaphore;

use crate::forecasts::{Forecaster, Forecasts};
use crate::index::{Entry, Index, ItemId};
use crate::launches::Launches;
use crate::pages;
use crate::reports::Reports;
use crate::sweeps::Sweeps;

/// Maximum number of reports that are read at the same time.
const MAX_READERS: usize = 2;
/// Maximum number of pages that receive events.
const MAX_STREAMS: usize = 64;

/// Everything that requests share.
#[derive(Clone, Debug)]
pub struct Site {
    index: Arc<Index>,
    reports: Arc<Reports>,
    sweeps: Arc<Sweeps>,
    launches: Arc<Launches>,
    forecasts: Forecasts,
    readers: Arc<Semaphore>,
    /// The turn of actions, which do not wait for readers of large files.
    acting: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    /// The token that pages send with actions; `None` if there are none.
    page_token: Option<Arc<str>>,
    /// Distinguishes this server from earlier ones at the same address, whose revisions mean nothing here.
    instance: u64,
}

impl Site {
    /// The site of an index.
    pub fn new(index: Arc<Index>, forecaster: Option<Arc<dyn Forecaster>>, page_token: Option<&str>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        Self {
            index,
            reports: Arc::default(),
            sweeps: Arc::default(),
            launches: Arc::default(),
            forecasts: Forecasts::new(forecaster),
            readers: Arc::new(Semaphore::new(MAX_READERS)),
            acting: Arc::new(Semaphore::new(1)),
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
            page_token: page_token.map(Arc::from),
            instance: u64::try_from(now).unwrap_or(0),
        }
    }

    /// The run of an id in an address.
    fn entry(&self, id: &str) -> Result<Entry, Failure> {
        let entry = ItemId::parse(id).and_then(|id| self.index.entry(&id));
        entry.ok_or(Failure::NoRun)
    }

    /// Runs a function that reads files, outside the thread of the server.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Site) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        self.run_in_turn(&self.readers, read).await
    }

    /// Runs a function that acts on a run, as [`Site::read`].
    async fn act<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Site) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        self.run_in_turn(&self.acting, act).await
    }

    async fn run_in_turn<T: Send + 'static>(
        &self,
        turn: &Arc<Semaphore>,
        read: impl FnOnce(&Site) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let permit = Arc::clone(turn).acquire_owned().await.map_err(|_| Failure::Busy)?;
        let site = self.clone();
        let task = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            read(&site)
        });
        task.await.map_err(|_| Failure::Unreadable("the files of this run cannot be read".to_owned()))?
    }
}

/// The reason why a request has no answer.
#[derive(Debug)]
pub enum Failure {
    /// The server has no such address.
    NoPage,
    /// There is no such run, or not any more.
    NoRun,
    /// There is no such sweep or launch, or not any more.
    NoItem(&'static str),
    /// The run cannot be shown.
    Unreadable(String),
    /// Too many pages are open.
    Busy,
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, title, text) = match self {
            Self::NoPage => (StatusCode::NOT_FOUND, "Not found", "This server has no such page.".to_owned()),
            Self::NoRun => {
                let text = "No such run is in the folders. It may have been moved or deleted.".to_owned();
                (StatusCode::NOT_FOUND, "Not found", text)
            }
            Self::NoItem(what) => {
                let text = format!("No such {what} is in the folders. It may have been moved or deleted.");
                (StatusCode::NOT_FOUND, "Not found", text)
            }
            Self::Unreadable(reason) => (StatusCode::UNPROCESSABLE_ENTITY, "Unreadable run", reason),
            Self::Busy => {
                let text = "Too many pages are open. Close some of them.".to_owned();
                (StatusCode::SERVICE_UNAVAILABLE, "Busy", text)
            }
        };
        let mut response = (status, pages::message(title, &text)).into_response();
        response.extensions_mut().insert(FailureText(text.into()));
        response
    }
}

/// The reason why a request has no answer, kept with its page for [`answer_scripts`].
#[derive(Clone)]
struct FailureText(Arc<str>);

/// Returns whether a script asks at an address, and needs a document where people get a page.
pub fn is_of_script(path: &str) -> bool {
    path.starts_with("/api/")
}

/// Answers a script with a document instead of the page of a failure.
async fn answer_scripts(request: Request, next: Next) -> Response {
    let is_of_script = is_of_script(request.uri().path());
    let mut response = next.run(request).await;
    match response.extensions_mut().remove::<FailureText>() {
        Some(FailureText(text)) if is_of_script => refused(response.status(), &text),
        _ => response,
    }
}

/// A JSON document.
pub struct Json(String);

impl IntoResponse for Json {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, "application/json")], page::showable_json(self.0)).into_response()
    }
}

/// The reason why a request of a script is refused.
#[derive(Serialize)]
struct Refusal<'a> {
    error: &'a str,
}

/// An answer to a script, with the reason why its request is refused.
pub fn refused(status: StatusCode, error: &str) -> Response {
    (status, Json(to_json(&Refusal { error }))).into_response()
}

/// Serialises a value. Values of this crate have string keys and numbers only, which cannot fail.
fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())
}

/// Answers after the first scan: before it, every run would be missing.
async fn wait_for_first_scan(State(site): State<Site>, request: Request, next: Next) -> Response {
    site.index.first_scan().await;
    next.run(request).await
}

/// The routes, without a guard.
pub fn router(site: Site) -> Router {
    Router::new()
        .route("/", get(runs::table))
        .route("/run/{id}", get(runs::page))
        .route("/compare", get(compare::page))
        .route("/events", get(events::stream))
        .route("/api/runs", get(runs::list))
        .route("/api/runs/{id}/sections", get(runs::sections))
        .route("/api/runs/{id}/pictures/{name}", get(pictures::file))
        .route("/api/runs/{id}/series", get(runs::series))
        .route("/api/runs/{id}/log", get(files::log))
        .route("/api/runs/{id}/files", get(files::list))
        .route("/api/runs/{id}/stop", post(actions::stop))
        .route("/api/runs/{id}/continue", post(actions::resume))
        .route("/api/compare", get(compare::sections))
        .route("/api/compare/layers", get(compare::layers))
        .route("/changes", get(changes::stream))
        .route("/forecast", get(forecast::page))
        .route("/api/forecast", get(forecast::data))
        .route("/launches", get(items::list::<launches::Launches>))
        .route("/launches/{id}", get(items::page::<launches::Launches>))
        .route("/api/launches", get(items::list_data::<launches::Launches>))
        .route("/api/launches/{id}", get(items::data::<launches::Launches>))
        .route("/sweeps", get(items::list::<sweeps::Sweeps>))
        .route("/sweeps/{id}", get(items::page::<sweeps::Sweeps>))
        .route("/api/sweeps", get(items::list_data::<sweeps::Sweeps>))
        .route("/api/sweeps/{id}", get(items::data::<sweeps::Sweeps>))
        .route("/assets/{name}", get(assets::asset))
        .fallback(|| async { Failure::NoPage })
        .layer(middleware::from_fn(answer_scripts))
        .layer(middleware::from_fn_with_state(site.clone(), wait_for_first_scan))
        .with_state(site)
}
