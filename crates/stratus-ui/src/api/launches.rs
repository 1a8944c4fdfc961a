//! The list of launches, and the page of a launch. No request reaches another machine.

use std::sync::Arc;

use axum::response::Html;
use serde::Serialize;

use super::items::{ItemKind, unchanged};
use super::{Site, to_json};
use crate::index::{FolderProblem, Index, ScannedItem};
use crate::launches::{LaunchDocument, LaunchLine};
use crate::pages::scripted as pages;

/// The list of launches.
#[derive(Serialize)]
struct Listing<'a> {
    launches: Vec<LaunchLine<'a>>,
    folders: Vec<String>,
    problems: &'a [FolderProblem],
}

/// Launches: `/launches`, `/launches/ID`, `/api/launches`, `/api/launches/ID`.
#[derive(Debug)]
pub struct Launches;

impl ItemKind for Launches {
    const NAME: &'static str = "launch";

    fn items(index: &Index) -> Arc<Vec<ScannedItem>> {
        index.items().launches
    }

    fn list(site: &Site) -> String {
        let (items, roots) = (Self::items(&site.index), site.index.roots());
        let read: Vec<_> = items.iter().map(|item| (item, site.launches.read(&site.index, item))).collect();
        let listing = Listing {
            launches: read.iter().map(|(item, read)| LaunchLine::new(item, read, &roots)).collect(),
            folders: site.index.folders().iter().map(|folder| folder.display().to_string()).collect(),
            problems: &site.index.problems(),
        };
        to_json(&listing)
    }

    /// The version is the revision of the folders: the document is small, and sent again whenever something
    /// in them changes.
    fn document(site: &Site, item: &ScannedItem, version: Option<&str>) -> String {
        let now = format!("{}-{}", site.instance, site.index.revision());
        if version == Some(now.as_str()) {
            return unchanged(&now);
        }
        let read = site.launches.read(&site.index, item);
        to_json(&LaunchDocument::new(item, &read, now, &site.index.roots()))
    }

    fn list_page(data: &str) -> Html<String> {
        pages::launches(data)
    }

    fn page(label: &str, data: &str) -> Html<String> {
        pages::launch(label, data)
    }
}
