//! Checks of the requests that act on runs, beyond those of all requests.

use axum::body::Body;
use axum::http::header::{self, HeaderMap};
use axum::http::{Request, StatusCode};

use super::peer::Peer;
use stratus_base::Secret;

/// The header with the token of the page. Pages of other servers can neither read it nor send it.
pub const PAGE_HEADER: &str = "x-stratus-page";
/// Maximum length of the body.
pub const MAX_BODY_BYTES: usize = 1 << 10;
/// The beginning and the ends of the addresses that accept such requests.
const PATH: (&str, [&str; 2]) = ("/api/runs/", ["/stop", "/continue"]);

/// The reason why an action is refused.
pub type Refused = (StatusCode, &'static str);

/// Returns whether an address is that of an action.
pub fn is_action(path: &str) -> bool {
    path.strip_prefix(PATH.0).is_some_and(|rest| PATH.1.iter().any(|action| rest.ends_with(action)))
}

/// The reason to refuse a request that acts. Its host was checked, and its origin if it names one.
pub fn refusal(request: &Request<Body>, page_token: Option<&Secret>) -> Option<Refused> {
    let headers = request.headers();
    let Some(token) = page_token else {
        return Some((
            StatusCode::FORBIDDEN,
            "this server offers no actions: it was started with --read-only",
        ));
    };
    if headers.get_all(header::ORIGIN).iter().count() != 1 {
        return Some((StatusCode::FORBIDDEN, "the request names no origin"));
    }
    if !is_from_own_page(headers) {
        return Some((StatusCode::FORBIDDEN, "the request comes from a page of another server"));
    }
    if !is_json(headers) {
        return Some((StatusCode::UNSUPPORTED_MEDIA_TYPE, "the content must be JSON"));
    }
    let given = headers.get(PAGE_HEADER).and_then(|given| given.to_str().ok());
    if !given.is_some_and(|given| token.equals(given)) {
        return Some((StatusCode::FORBIDDEN, "the page was loaded from an earlier server: reload it"));
    }
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if length.is_none_or(|length: usize| length > MAX_BODY_BYTES) {
        return Some((StatusCode::PAYLOAD_TOO_LARGE, "the content is too long, or its length is missing"));
    }
    let peer = request.extensions().get::<Option<Peer>>().copied().flatten();
    if !peer.is_some_and(Peer::may_act) {
        let reason = match Peer::are_users_known() {
            true => "only the user who started `stratus ui` may stop and continue runs",
            false => "this system does not tell whose a connection is: use `stratus train RUN`",
        };
        return Some((StatusCode::FORBIDDEN, reason));
    }
    None
}

/// Browsers tell where a request comes from; other programs do not.
fn is_from_own_page(headers: &HeaderMap) -> bool {
    headers.get_all("sec-fetch-site").iter().all(|site| site == "same-origin")
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}
