//! The page of forecasts.

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use serde::Serialize;

use super::{Failure, Json, Site, refused, to_json};
use crate::forecasts::{ForecastExperiment, ForecastRequest, NoForecast};
use crate::index::check_files;
use crate::pages::scripted as pages;
use crate::server::QueryPairs;

/// Maximum number of runs in the choice of experiments: the first of the table.
const MAX_RUNS: usize = 500;
/// Maximum length of a number or an objective in an address.
const MAX_TEXT_BYTES: usize = 200;

/// The choices of the page.
#[derive(Serialize)]
struct Choices {
    /// False if the server computes no forecasts.
    is_available: bool,
    experiments: Vec<String>,
    precisions: Vec<String>,
    /// Runs whose configuration can be read: id and label.
    runs: Vec<(String, String)>,
    /// The number of runs that are not listed.
    more_runs: usize,
}

/// `/forecast`: the page. Its script asks for the forecast of the address.
pub async fn page(State(site): State<Site>) -> Html<String> {
    let forecaster = site.forecasts.forecaster();
    let all = site.index.changes_since(None).changed;
    let readable = all.iter().filter(|entry| entry.settings.is_some());
    let runs: Vec<(String, String)> =
        readable.map(|entry| (entry.row.id.as_str().to_owned(), entry.row.label.clone())).collect();
    let choices = Choices {
        is_available: forecaster.is_some(),
        experiments: forecaster.map_or_else(Vec::new, |forecaster| forecaster.experiments()),
        precisions: forecaster.map_or_else(Vec::new, |forecaster| forecaster.precisions()),
        more_runs: runs.len().saturating_sub(MAX_RUNS),
        runs: runs.into_iter().take(MAX_RUNS).collect(),
    };
    pages::forecast(&to_json(&choices))
}

/// `/api/forecast?experiment=NAME|run=ID&batch=…&images=…&epochs=…&precision=…&objective=…`: a forecast.
pub async fn data(State(site): State<Site>, RawQuery(query): RawQuery) -> Result<Response, Failure> {
    let query = QueryPairs::of(query.as_deref());
    let text = |name: &str| query.get(name).unwrap_or_default();
    let experiment = match query.get("run") {
        Some(id) => {
            let entry = site.entry(&id)?;
            if let Some(problem) = entry.row.problem.as_ref().filter(|_| entry.settings.is_none()) {
                return Ok(refused(StatusCode::UNPROCESSABLE_ENTITY, problem));
            }
            let path = entry.path.clone();
            let check =
                move |site: &Site| check_files(&entry.path, &site.index.roots()).map_err(Failure::Unreadable);
            match site.read(check).await {
                Err(Failure::Unreadable(reason)) => {
                    return Ok(refused(StatusCode::UNPROCESSABLE_ENTITY, &reason));
                }
                checked => checked?,
            }
            ForecastExperiment::Run(path)
        }
        None => {
            // No other name is looked up: it could be a path.
            let name = text("experiment");
            let known = site.forecasts.forecaster().is_some_and(|all| all.experiments().contains(&name));
            if !known {
                return Ok(refused(StatusCode::NOT_FOUND, "no such experiment is registered"));
            }
            ForecastExperiment::Builtin(name)
        }
    };
    let objective = Some(text("objective")).filter(|text| !text.is_empty());
    let request = ForecastRequest {
        experiment,
        batch: text("batch"),
        images: text("images"),
        epochs: text("epochs"),
        precision: text("precision"),
        objective: objective.unwrap_or_else(|| "value".to_owned()),
    };
    let texts = [&request.batch, &request.images, &request.epochs, &request.precision, &request.objective];
    if texts.iter().any(|text| text.len() > MAX_TEXT_BYTES) {
        return Ok(refused(StatusCode::UNPROCESSABLE_ENTITY, "a value of the address is too long"));
    }
    match site.forecasts.answer(request).await {
        Ok(answer) => Ok(Json(answer).into_response()),
        Err(NoForecast::Busy) => Err(Failure::Busy),
        Err(NoForecast::Unavailable) => Err(Failure::NoPage),
        Err(NoForecast::Refused(reason)) => Ok(refused(StatusCode::UNPROCESSABLE_ENTITY, &reason)),
    }
}
