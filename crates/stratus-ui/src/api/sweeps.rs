//! The list of sweeps, and the page of a sweep.

use axum::extract::{Path, RawQuery, State};
use axum::response::Html;
use serde::Serialize;

use super::{Failure, Json, Site, to_json};
use crate::index::{FolderProblem, RunId, ScannedItem};
use crate::pages::scripted as pages;
use crate::server::QueryPairs;
use crate::sweeps::{SweepDocument, SweepLine};

/// The list of sweeps.
#[derive(Serialize)]
struct Listing<'a> {
    sweeps: Vec<SweepLine<'a>>,
    folders: Vec<String>,
    problems: &'a [FolderProblem],
}

fn read_list(site: &Site) -> String {
    let items = site.index.items();
    let read: Vec<_> = items.sweeps.iter().map(|item| (item, site.sweeps.read(&site.index, item))).collect();
    let listing = Listing {
        sweeps: read.iter().map(|(item, read)| SweepLine::new(item, read)).collect(),
        folders: site.index.folders().iter().map(|folder| folder.display().to_string()).collect(),
        problems: &site.index.problems(),
    };
    to_json(&listing)
}

/// The sweep of an id in an address.
fn item(site: &Site, id: &str) -> Result<ScannedItem, Failure> {
    let id = RunId::parse(id).ok_or(Failure::NoSuch("sweep"))?;
    let items = site.index.items();
    let found = items.sweeps.iter().find(|item| *item.id() == id);
    found.cloned().ok_or(Failure::NoSuch("sweep"))
}

/// The document of a sweep; a short one, if `version` is that of the sweep.
fn read_document(site: &Site, item: &ScannedItem, version: Option<&str>) -> String {
    let read = site.sweeps.read(&site.index, item);
    let now = format!("{}-{}", site.instance, read.version);
    if version == Some(now.as_str()) {
        return format!("{{\"version\":{},\"is_same\":true}}", to_json(&now));
    }
    to_json(&SweepDocument::new(item, &read, now))
}

/// `/sweeps`: the list.
pub async fn list(State(site): State<Site>) -> Result<Html<String>, Failure> {
    site.read(|site| Ok(pages::sweeps(&read_list(site)))).await
}

/// `/api/sweeps`: the list again.
pub async fn list_data(State(site): State<Site>) -> Result<Json, Failure> {
    site.read(|site| Ok(Json(read_list(site)))).await
}

/// `/sweeps/ID`: the page of a sweep.
pub async fn page(State(site): State<Site>, Path(id): Path<String>) -> Result<Html<String>, Failure> {
    let item = item(&site, &id)?;
    site.read(move |site| Ok(pages::sweep(&item.found.label, &read_document(site, &item, None)))).await
}

/// `/api/sweeps/ID?version=V`: the document of a sweep.
pub async fn data(
    State(site): State<Site>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json, Failure> {
    let item = item(&site, &id)?;
    let version = QueryPairs::of(query.as_deref()).get("version");
    site.read(move |site| Ok(Json(read_document(site, &item, version.as_deref())))).await
}
