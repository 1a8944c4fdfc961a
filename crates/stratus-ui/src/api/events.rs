//! The stream of changes: which runs changed, with their rows.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::Stream;
use futures::stream::unfold;
use stratus_report::page;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::runs::{Rows, chosen_keys};
use super::{Failure, Site, to_json};
use crate::index::ItemId;
use crate::server::QueryPairs;

/// Time between comments that keep the connection alive.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Maximum number of runs that a page names.
const MAX_WATCHED: usize = 50;

/// A page that receives events.
struct Watcher {
    site: Site,
    /// Keys whose values the rows have.
    keys: Vec<String>,
    /// The runs of the page; all if empty.
    watched: Vec<ItemId>,
    revision: Option<u64>,
    revisions: watch::Receiver<u64>,
    _permit: OwnedSemaphorePermit,
}

impl Watcher {
    /// The next event.
    async fn next(&mut self) -> Option<Event> {
        loop {
            self.revisions.borrow_and_update();
            let mut changes = self.site.index.changes_since(self.revision);
            let is_wanted = |id: &ItemId| self.watched.is_empty() || self.watched.contains(id);
            changes.changed.retain(|entry| is_wanted(&entry.row.id));
            changes.removed.retain(is_wanted);
            self.revision = Some(changes.revision);
            if changes.is_all || !changes.changed.is_empty() || !changes.removed.is_empty() {
                let rows = Rows::new(&self.site, &changes, &self.keys);
                let id = format!("{}-{}", rows.instance, rows.revision);
                return Some(Event::default().event("runs").id(id).data(page::showable_json(to_json(&rows))));
            }
            // It ends with the server.
            self.revisions.changed().await.ok()?;
        }
    }
}

/// The revision of an id of an event or of a page, `INSTANCE-REVISION`; `None` if it is from another server.
fn revision_of(text: &str, instance: u64) -> Option<u64> {
    let (of, revision) = text.split_once('-')?;
    (of.parse() == Ok(instance)).then(|| revision.parse().ok())?
}

/// `/events?since=INSTANCE-REVISION&keys=…&runs=…`: changes after a revision, as they come.
pub async fn stream(
    State(site): State<Site>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Failure> {
    let permit = std::sync::Arc::clone(&site.streams).try_acquire_owned().map_err(|_| Failure::Busy)?;
    let query = QueryPairs::of(query.as_deref());
    // A browser that connects again has the id of the last event.
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok().map(str::to_owned));
    let since = last.or_else(|| query.get("since"));
    let watcher = Watcher {
        keys: chosen_keys(&query),
        watched: query.list("runs", MAX_WATCHED).iter().filter_map(|id| ItemId::parse(id)).collect(),
        revision: since.and_then(|since| revision_of(&since, site.instance)),
        revisions: site.index.subscribe(),
        _permit: permit,
        site,
    };
    let events = unfold(watcher, |mut watcher| async {
        let event = watcher.next().await?;
        Some((Ok(event), watcher))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_of_other_servers_are_not_used() {
        assert_eq!(revision_of("17-5", 17), Some(5));
        for text in ["", "5", "18-5", "17-", "17-x", "-", "17-5-5"] {
            assert_eq!(revision_of(text, 17), None, "{text}");
        }
    }
}
