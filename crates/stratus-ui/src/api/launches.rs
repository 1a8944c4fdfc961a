//! The list of launches, and the page of a launch. No request reaches another machine.

use axum::extract::{Path, RawQuery, State};
use axum::response::Html;
use serde::Serialize;

use super::{Failure, Json, Site, to_json};
use crate::index::{FolderProblem, RunId, ScannedItem};
use crate::launches::{LaunchDocument, LaunchLine, ReadLaunch};
use crate::pages::scripted as pages;
use crate::server::QueryPairs;

/// The list of launches.
#[derive(Serialize)]
struct Listing<'a> {
    launches: Vec<LaunchLine<'a>>,
    folders: Vec<String>,
    problems: &'a [FolderProblem],
}

fn read_list(site: &Site) -> String {
    let (items, roots) = (site.index.items(), site.index.roots());
    let read: Vec<_> = items.launches.iter().map(|item| (item, ReadLaunch::new(&site.index, item))).collect();
    let listing = Listing {
        launches: read.iter().map(|(item, read)| LaunchLine::new(item, read, &roots)).collect(),
        folders: site.index.folders().iter().map(|folder| folder.display().to_string()).collect(),
        problems: &site.index.problems(),
    };
    to_json(&listing)
}

/// The launch of an id in an address.
fn item(site: &Site, id: &str) -> Result<ScannedItem, Failure> {
    let id = RunId::parse(id).ok_or(Failure::NoSuch("launch"))?;
    let items = site.index.items();
    let found = items.launches.iter().find(|item| *item.id() == id);
    found.cloned().ok_or(Failure::NoSuch("launch"))
}

/// The document of a launch. Its version is the revision of the folders: it is small, and sent again whenever
/// something in them changes.
fn read_document(site: &Site, item: &ScannedItem, version: Option<&str>) -> String {
    let now = format!("{}-{}", site.instance, site.index.revision());
    if version == Some(now.as_str()) {
        return format!("{{\"version\":{},\"is_same\":true}}", to_json(&now));
    }
    let read = ReadLaunch::new(&site.index, item);
    to_json(&LaunchDocument::new(item, &read, now, &site.index.roots()))
}

/// `/launches`: the list.
pub async fn list(State(site): State<Site>) -> Result<Html<String>, Failure> {
    site.read(|site| Ok(pages::launches(&read_list(site)))).await
}

/// `/api/launches`: the list again.
pub async fn list_data(State(site): State<Site>) -> Result<Json, Failure> {
    site.read(|site| Ok(Json(read_list(site)))).await
}

/// `/launches/ID`: the page of a launch.
pub async fn page(State(site): State<Site>, Path(id): Path<String>) -> Result<Html<String>, Failure> {
    let item = item(&site, &id)?;
    site.read(move |site| Ok(pages::launch(&item.found.label, &read_document(site, &item, None)))).await
}

/// `/api/launches/ID?version=V`: the document of a launch.
pub async fn data(
    State(site): State<Site>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json, Failure> {
    let item = item(&site, &id)?;
    let version = QueryPairs::of(query.as_deref()).get("version");
    site.read(move |site| Ok(Json(read_document(site, &item, version.as_deref())))).await
}
