//! The list of sweeps, and the page of a sweep.

use std::sync::Arc;

use axum::response::Html;
use serde::Serialize;

use super::items::{ItemKind, unchanged};
use super::{Site, to_json};
use crate::index::{FolderProblem, Index, ScannedItem};
use crate::pages::scripted as pages;
use crate::sweeps::{SweepDocument, SweepLine};

/// The list of sweeps.
#[derive(Serialize)]
struct Listing<'a> {
    sweeps: Vec<SweepLine<'a>>,
    folders: Vec<String>,
    problems: &'a [FolderProblem],
}

/// Sweeps: `/sweeps`, `/sweeps/ID`, `/api/sweeps`, `/api/sweeps/ID`.
#[derive(Debug)]
pub struct Sweeps;

impl ItemKind for Sweeps {
    const NAME: &'static str = "sweep";

    fn items(index: &Index) -> Arc<Vec<ScannedItem>> {
        index.items().sweeps
    }

    fn list(site: &Site) -> String {
        let items = Self::items(&site.index);
        let read: Vec<_> = items.iter().map(|item| (item, site.sweeps.read(&site.index, item))).collect();
        let listing = Listing {
            sweeps: read.iter().map(|(item, read)| SweepLine::new(item, read)).collect(),
            folders: site.index.folders().iter().map(|folder| folder.display().to_string()).collect(),
            problems: &site.index.problems(),
        };
        to_json(&listing)
    }

    fn document(site: &Site, item: &ScannedItem, version: Option<&str>) -> String {
        let read = site.sweeps.read(&site.index, item);
        let now = format!("{}-{}", site.instance, read.version);
        if version == Some(now.as_str()) {
            return unchanged(&now);
        }
        to_json(&SweepDocument::new(item, &read, now))
    }

    fn list_page(data: &str) -> Html<String> {
        pages::sweeps(data)
    }

    fn page(label: &str, data: &str) -> Html<String> {
        pages::sweep(label, data)
    }
}
