//! The table of runs, and the page of a run.

use axum::extract::{Path, RawQuery, State};
use axum::response::Html;
use serde::Serialize;
use stratus_report::page;

use super::{Failure, Json, Site, to_json};
use crate::index::{Changes, Entry, ItemId, RunRow};
use crate::pages;
use crate::server::QueryPairs;

/// Maximum number of keys of the configuration in a table.
const MAX_KEYS: usize = 32;
/// Maximum number of columns of a table.
const MAX_COLUMNS: usize = 64;

/// A row with the values of the chosen keys.
#[derive(Serialize)]
pub struct Row<'a> {
    #[serde(flatten)]
    row: &'a RunRow,
    /// The revision of the last change other than new iterations.
    content: u64,
    position: usize,
    settings: Vec<Option<&'a str>>,
}

impl<'a> Row<'a> {
    fn new(entry: &'a Entry, keys: &[String]) -> Self {
        let value = |key: &String| entry.settings.as_ref()?.get(key).map(String::as_str);
        let settings = keys.iter().map(value).collect();
        Self { row: &entry.row, content: entry.content, position: entry.position, settings }
    }
}

/// The rows that a page has to draw.
#[derive(Serialize)]
pub struct Rows<'a> {
    /// The server.
    pub instance: u64,
    /// The revision of the index.
    pub revision: u64,
    /// True if `runs` are all runs.
    pub is_all: bool,
    /// Changed and new runs.
    pub runs: Vec<Row<'a>>,
    /// Removed runs.
    pub removed: Vec<&'a str>,
}

impl<'a> Rows<'a> {
    /// The changes of a site, with the values of keys.
    pub fn new(site: &Site, changes: &'a Changes, keys: &[String]) -> Self {
        Self {
            instance: site.instance,
            revision: changes.revision,
            is_all: changes.is_all,
            runs: changes.changed.iter().map(|entry| Row::new(entry, keys)).collect(),
            removed: changes.removed.iter().map(ItemId::as_str).collect(),
        }
    }
}

/// The table of runs.
#[derive(Serialize)]
struct Listing<'a> {
    #[serde(flatten)]
    rows: Rows<'a>,
    keys: &'a [crate::index::Key],
    /// The keys of the rows' `settings`.
    chosen: &'a [String],
    folders: Vec<String>,
    problems: &'a [crate::index::FolderProblem],
}

/// The chosen keys of the configuration of an address.
pub fn chosen_keys(query: &QueryPairs<'_>) -> Vec<String> {
    query.list("keys", MAX_KEYS)
}

/// The keys that the view of a page needs: those among its columns, and that of its groups.
fn keys_of_view(query: &QueryPairs<'_>) -> Vec<String> {
    let names = query.list("columns", MAX_COLUMNS).into_iter().chain(query.get("group"));
    let mut keys: Vec<String> = Vec::new();
    for key in names.filter_map(|name| name.strip_prefix("k:").map(str::to_owned)) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys.truncate(MAX_KEYS);
    keys
}

fn listing(site: &Site, chosen: &[String]) -> String {
    let changes = site.index.changes_since(None);
    let listing = Listing {
        rows: Rows::new(site, &changes, chosen),
        keys: &site.index.keys(),
        chosen,
        folders: site.index.folders().iter().map(|folder| folder.display().to_string()).collect(),
        problems: &site.index.problems(),
    };
    to_json(&listing)
}

/// `/`: the table of runs.
pub async fn table(State(site): State<Site>, RawQuery(query): RawQuery) -> Html<String> {
    let listing = listing(&site, &keys_of_view(&QueryPairs::of(query.as_deref())));
    pages::runs(&listing, site.page_token.as_deref())
}

/// `/api/runs`: all rows.
pub async fn list(State(site): State<Site>, RawQuery(query): RawQuery) -> Json {
    Json(listing(&site, &chosen_keys(&QueryPairs::of(query.as_deref()))))
}

/// The sections of a run, the data of its charts, and the revision of its files.
fn read_sections(site: &Site, entry: &Entry) -> Result<(String, String, u64), Failure> {
    let report = site.reports.report(entry, &site.index.roots()).map_err(Failure::Unreadable)?;
    let Some(run) = &report.run else {
        let reasons: Vec<&str> = report.problems.iter().map(|problem| problem.reason.as_str()).collect();
        return Err(Failure::Unreadable(reasons.join("; ")));
    };
    let mut html = page::run_section(run, 0, &format!("/api/runs/{}/pictures/", entry.row.id.as_str()));
    html.push_str("<div data-part=\"problems\">\n");
    html.push_str(&page::problems_section(&report.problems));
    html.push_str("</div>\n");
    Ok((html, page::data_json(std::slice::from_ref(run), 1, None), report.content))
}

/// `/run/ID`: the page of a run.
pub async fn page(State(site): State<Site>, Path(id): Path<String>) -> Result<Html<String>, Failure> {
    let entry = site.entry(&id)?;
    let (label, page_token) = (entry.row.label.clone(), site.page_token.clone());
    let (html, data, content) = site.read(move |site| read_sections(site, &entry)).await?;
    let data = format!("{{\"content\":{content},{}", data.trim_start_matches('{'));
    Ok(pages::run(&label, &html, &data, page_token.as_deref()))
}

/// `/api/runs/ID/sections`: the sections of a run again.
pub async fn sections(State(site): State<Site>, Path(id): Path<String>) -> Result<Json, Failure> {
    let entry = site.entry(&id)?;
    let (html, data, content) = site.read(move |site| read_sections(site, &entry)).await?;
    Ok(Json(format!("{{\"content\":{content},\"html\":{},\"data\":{data}}}", to_json(&html))))
}

/// `/api/runs/ID/series?generation=G&from=N`: the points of the curves from number N on.
pub async fn series(
    State(site): State<Site>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json, Failure> {
    let entry = site.entry(&id)?;
    let query = QueryPairs::of(query.as_deref());
    let (generation, from) = (query.number("generation").unwrap_or(0), query.number("from").unwrap_or(0));
    let read = move |site: &Site| {
        let roots = site.index.roots();
        let points = site.reports.with_series(&entry, &roots, |series| series.points_from(generation, from));
        points.map(|points| Json(to_json(&points))).map_err(Failure::Unreadable)
    };
    site.read(read).await
}
