//! The log and the files of a run.

use axum::extract::{Path, RawQuery, State};

use super::{Failure, Json, Site, to_json};
use crate::index::check_files;
use crate::server::QueryPairs;
use crate::{files, log};

/// `/api/runs/ID/log?after=CURSOR`: what was appended to the log; without a cursor, its last lines.
pub async fn log(
    State(site): State<Site>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json, Failure> {
    let entry = site.entry(&id)?;
    let after = QueryPairs::of(query.as_deref()).get("after").and_then(|text| log::Cursor::parse(&text));
    let read = move |site: &Site| {
        check_files(&entry.path, &site.index.roots()).map_err(Failure::Unreadable)?;
        let part = log::read(&entry.path.join(stratus_run::layout::LOG), after)
            .map_err(|error| Failure::Unreadable(format!("cannot read the log: {error}")))?;
        Ok(Json(to_json(&part)))
    };
    site.read(read).await
}

/// `/api/runs/ID/files`: the files of the run.
pub async fn list(State(site): State<Site>, Path(id): Path<String>) -> Result<Json, Failure> {
    let entry = site.entry(&id)?;
    site.read(move |_| Ok(Json(to_json(&files::list(&entry.path))))).await
}
