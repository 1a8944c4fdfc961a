//! The stream that tells pages of sweeps and launches that something may have changed. They ask for their
//! document again, which says whether it has.

use std::convert::Infallible;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::Stream;
use futures::stream::unfold;

use super::events::KEEP_ALIVE;
use super::{Failure, Site};

/// `/changes`: the revision of the folders, whenever it changes.
pub async fn stream(
    State(site): State<Site>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Failure> {
    let permit = std::sync::Arc::clone(&site.streams).try_acquire_owned().map_err(|_| Failure::Busy)?;
    let revisions = site.index.subscribe();
    let events = unfold((revisions, permit, false), |(mut revisions, permit, is_begun)| async move {
        // The first event is sent at once, since something may have changed while the page was loaded.
        if is_begun {
            revisions.changed().await.ok()?;
        }
        let revision = *revisions.borrow_and_update();
        let event = Event::default().event("changed").data(revision.to_string());
        Some((Ok(event), (revisions, permit, true)))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}
