//! The comparison of runs.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::Html;
use futures::future::join_all;
use serde::Serialize;
use stratus_report::page;
use stratus_report::report::Report;

use super::{Failure, Json, Site, to_json};
use crate::index::Entry;
use crate::pages;
use crate::reports::CachedReport;
use crate::server::QueryPairs;

/// Maximum number of runs in a comparison.
const MAX_RUNS: usize = 50;

/// A run of the comparison, for its script.
#[derive(Serialize)]
struct ComparedRun<'a> {
    id: &'a str,
    label: &'a str,
}

/// The compared runs, of those in the address.
#[derive(Debug, Default)]
struct Selection {
    entries: Vec<Entry>,
    /// The number of ids that no run has.
    missing: usize,
    /// The number of ids after the first [`MAX_RUNS`], which are not compared.
    excess: usize,
}

impl Selection {
    fn of(site: &Site, query: Option<&str>) -> Self {
        let ids = QueryPairs::of(query).list("runs", usize::MAX);
        let excess = ids.len().saturating_sub(MAX_RUNS);
        let mut entries: Vec<Entry> = Vec::new();
        let mut missing = 0;
        for id in ids.iter().take(MAX_RUNS) {
            match site.entry(id) {
                Ok(entry) if entries.iter().all(|known| known.row.id != entry.row.id) => entries.push(entry),
                Ok(_) => {}
                Err(_) => missing += 1,
            }
        }
        Self { entries, missing, excess }
    }
}

/// How much of a run is read.
#[derive(Clone, Copy)]
enum Extent {
    /// The results, which are enough for a comparison.
    Results,
    /// The whole report, with the times of layers.
    Report,
}

/// The reports of runs, and why others cannot be read.
async fn read_runs(
    site: &Site,
    entries: &[Entry],
    extent: Extent,
) -> Result<(Vec<Arc<CachedReport>>, Vec<String>), Failure> {
    let reports = entries.iter().cloned().map(|entry| {
        site.read(move |site| {
            let roots = site.index.roots();
            let report = match extent {
                Extent::Results => site.reports.compared(&entry, &roots),
                Extent::Report => site.reports.report(&entry, &roots),
            };
            report.map_err(|reason| Failure::Unreadable(format!("{}: {reason}", entry.row.label)))
        })
    });
    let mut reasons = Vec::new();
    let mut read: Vec<Arc<CachedReport>> = Vec::new();
    for report in join_all(reports).await {
        match report {
            Ok(report) => read.push(report),
            Err(Failure::Unreadable(reason)) => reasons.push(reason),
            Err(other) => return Err(other),
        }
    }
    Ok((read, reasons))
}

/// The sections of a comparison, and the data of its charts.
async fn read_sections(site: &Site, chosen: &Selection) -> Result<(String, String), Failure> {
    let (read, mut reasons) = read_runs(site, &chosen.entries, Extent::Results).await?;
    if chosen.missing > 0 {
        let runs = if chosen.missing == 1 { "run is" } else { "runs are" };
        reasons.push(format!("{} {runs} no longer in the folders", chosen.missing));
    }
    if chosen.excess > 0 {
        let all = MAX_RUNS + chosen.excess;
        reasons.push(format!("only the first {MAX_RUNS} of the {all} runs in the address are compared"));
    }
    let runs = read.iter().filter_map(|report| report.run.clone()).collect();
    let problems = read.iter().flat_map(|report| report.problems.clone()).collect();
    let report = Report::new(runs, problems);
    let mut html = String::from("<div data-part=\"comparison\">\n");
    match &report.comparison {
        Some(comparison) => html.push_str(&page::comparison_section(comparison, &report.runs)),
        None => html.push_str("<p>Select at least two runs in the table of all runs.</p>\n"),
    }
    html.push_str("</div>\n<div data-part=\"problems\">\n");
    for reason in reasons {
        html.push_str(&format!("<p class=\"problems\">{}</p>\n", page::escape(&reason)));
    }
    html.push_str(&page::problems_section(&report.problems));
    html.push_str("</div>\n");
    Ok((html, page::data_json(&report.runs, 0, report.comparison.as_ref())))
}

/// `/compare?runs=ID,ID`: the page of the comparison.
pub async fn page(State(site): State<Site>, RawQuery(query): RawQuery) -> Result<Html<String>, Failure> {
    let chosen = Selection::of(&site, query.as_deref());
    let (html, data) = read_sections(&site, &chosen).await?;
    let compared: Vec<ComparedRun<'_>> = chosen
        .entries
        .iter()
        .map(|entry| ComparedRun { id: entry.row.id.as_str(), label: &entry.row.label })
        .collect();
    // The document of the report's script, with the ids.
    let data = format!("{{\"compared\":{},{}", to_json(&compared), data.trim_start_matches('{'));
    Ok(pages::comparison(compared.len(), &html, &data))
}

/// `/api/compare?runs=ID,ID`: the sections of the comparison again.
pub async fn sections(State(site): State<Site>, RawQuery(query): RawQuery) -> Result<Json, Failure> {
    let chosen = Selection::of(&site, query.as_deref());
    let (html, data) = read_sections(&site, &chosen).await?;
    Ok(Json(format!("{{\"html\":{},\"data\":{data}}}", to_json(&html))))
}

/// `/api/compare/layers?runs=ID,ID`: the times of the layers, side by side.
pub async fn layers(State(site): State<Site>, RawQuery(query): RawQuery) -> Result<Json, Failure> {
    let chosen = Selection::of(&site, query.as_deref());
    let count = chosen.entries.len().min(page::MAX_LAYER_TIME_RUNS);
    let (read, reasons) = read_runs(&site, &chosen.entries[..count], Extent::Report).await?;
    let runs: Vec<_> = read.iter().filter_map(|report| report.run.clone()).collect();
    let mut html = page::layer_times(&runs);
    if count < chosen.entries.len() {
        let all = chosen.entries.len();
        html.push_str(&format!("<p class=\"note\">The first {count} of {all} runs.</p>\n"));
    }
    for reason in reasons {
        html.push_str(&format!("<p class=\"problems\">{}</p>\n", page::escape(&reason)));
    }
    Ok(Json(format!("{{\"html\":{}}}", to_json(&html))))
}
