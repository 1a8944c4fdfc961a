//! Actions on runs.

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::{Failure, Json, Site, refused, to_json};
use crate::actions::{ActionError, Kind, Progress};

/// The content of a request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ActionRequest {
    /// The state of the run that the page showed.
    state: String,
}

/// `/api/runs/ID/stop`: saves a checkpoint and stops.
pub async fn stop(site: State<Site>, id: Path<String>, body: Bytes) -> Response {
    act(site.0, Kind::Stop, id.0, &body).await
}

/// `/api/runs/ID/continue`: continues from the last checkpoint.
pub async fn resume(site: State<Site>, id: Path<String>, body: Bytes) -> Response {
    act(site.0, Kind::Continue, id.0, &body).await
}

async fn act(site: Site, kind: Kind, id: String, body: &[u8]) -> Response {
    let request: ActionRequest = match serde_json::from_slice(body) {
        Ok(request) => request,
        Err(_) => return refused(StatusCode::BAD_REQUEST, "the content must be {\"state\": \"…\"}"),
    };
    let start = move |site: &Site| -> Result<Result<Progress, ActionError>, Failure> {
        let entry = site.entry(&id)?;
        Ok(site.index.actions().start(kind, &entry, &site.index.roots(), &request.state))
    };
    match site.act(start).await {
        Ok(Ok(progress)) => (StatusCode::ACCEPTED, Json(to_json(&progress))).into_response(),
        Ok(Err(ActionError::ReadOnly)) => refused(StatusCode::FORBIDDEN, "this server offers no actions"),
        Ok(Err(ActionError::NotPossible(reason))) => refused(StatusCode::CONFLICT, &reason),
        Err(Failure::Unreadable(reason)) => refused(StatusCode::UNPROCESSABLE_ENTITY, &reason),
        Err(Failure::Busy) => refused(StatusCode::SERVICE_UNAVAILABLE, "the server is busy"),
        Err(Failure::NoRun | Failure::NoPage | Failure::NoItem(_)) => {
            refused(StatusCode::NOT_FOUND, "the run was moved or deleted meanwhile")
        }
    }
}
