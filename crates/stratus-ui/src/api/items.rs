//! The list and the pages of the items of a kind: sweeps, launches.

use std::sync::Arc;

use axum::extract::{Path, RawQuery, State};
use axum::response::Html;

use super::{Failure, Json, Site, to_json};
use crate::index::{Index, ItemId, ScannedItem};
use crate::server::QueryPairs;

/// A kind of item in the folders.
pub trait ItemKind: 'static {
    /// Its name in messages.
    const NAME: &'static str;

    /// The items, as the last scan saw them.
    fn items(index: &Index) -> Arc<Vec<ScannedItem>>;

    /// The document of the list.
    fn list(site: &Site) -> String;

    /// The document of an item; [`unchanged`], if `version` is that of the item.
    fn document(site: &Site, item: &ScannedItem, version: Option<&str>) -> String;

    /// The page of the list, with its document.
    fn list_page(data: &str) -> Html<String>;

    /// The page of an item, with its document.
    fn page(label: &str, data: &str) -> Html<String>;
}

/// The document of an item that a page has already.
pub fn unchanged(version: &str) -> String {
    format!("{{\"version\":{},\"is_same\":true}}", to_json(&version))
}

/// The item of an id in an address.
fn item<K: ItemKind>(site: &Site, id: &str) -> Result<ScannedItem, Failure> {
    let id = ItemId::parse(id).ok_or(Failure::NoItem(K::NAME))?;
    let items = K::items(&site.index);
    items.iter().find(|item| *item.id() == id).cloned().ok_or(Failure::NoItem(K::NAME))
}

/// The page of the list.
pub async fn list<K: ItemKind>(State(site): State<Site>) -> Result<Html<String>, Failure> {
    site.read(|site| Ok(K::list_page(&K::list(site)))).await
}

/// The document of the list.
pub async fn list_data<K: ItemKind>(State(site): State<Site>) -> Result<Json, Failure> {
    site.read(|site| Ok(Json(K::list(site)))).await
}

/// `…/ID`: the page of an item.
pub async fn page<K: ItemKind>(
    State(site): State<Site>,
    Path(id): Path<String>,
) -> Result<Html<String>, Failure> {
    let item = item::<K>(&site, &id)?;
    site.read(move |site| Ok(K::page(&item.found.label, &K::document(site, &item, None)))).await
}

/// `…/ID?version=V`: the document of an item.
pub async fn data<K: ItemKind>(
    State(site): State<Site>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json, Failure> {
    let item = item::<K>(&site, &id)?;
    let version = QueryPairs::of(query.as_deref()).get("version");
    site.read(move |site| Ok(Json(K::document(site, &item, version.as_deref())))).await
}
