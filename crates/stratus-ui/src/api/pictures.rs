//! The pictures of the validations of a run.

use axum::extract::{Path, State};
use axum::http::header;
use axum::response::IntoResponse;
use stratus_report::page;
use stratus_run::RunDir;
use stratus_run::validation::ValidationImages;

use super::{Failure, Site};
use crate::index::check_files;

/// `/api/runs/ID/pictures/NAME`: a file of pictures, by the name that [`page::pictures_of_name`] reads.
pub async fn file(
    State(site): State<Site>,
    Path((id, name)): Path<(String, String)>,
) -> Result<impl IntoResponse, Failure> {
    let entry = site.entry(&id)?;
    let pictures = page::pictures_of_name(&name).ok_or(Failure::NoPage)?;
    let read = move |site: &Site| {
        check_files(&entry.path, &site.index.roots()).map_err(Failure::Unreadable)?;
        let folder = RunDir::open(&entry.path).map_err(|_| Failure::NoRun)?.validation();
        let images =
            ValidationImages::read(&folder).map_err(|error| Failure::Unreadable(error.to_string()))?;
        let images = images.ok_or(Failure::NoPage)?;
        // Training may have replaced them since the page was made.
        images.read_pictures(&folder, pictures).map_err(|_| Failure::NoPage)
    };
    Ok(([(header::CONTENT_TYPE, "image/png")], site.read(read).await?))
}
