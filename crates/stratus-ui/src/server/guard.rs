//! Checks of every request: method, `Host`, `Origin`, token; and the headers of every response.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, Request, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::peer::Peer;
use super::post;
use super::query::QueryPairs;
use crate::{api, pages};
use stratus_base::Secret;

/// Maximum length of the path and the query of a request.
const MAX_TARGET_BYTES: usize = 8 << 10;
/// Maximum time to answer a request; streams of events are answered at once.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(60);
/// The name of the query's parameter.
const TOKEN: &str = "token";

/// The sources of what a page loads: this server only.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// The headers of every response.
const HEADERS: [(&str, &str); 6] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-store"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
];

/// The rules for requests.
#[derive(Debug)]
pub struct Guard {
    /// Names that a request may call this server, without port.
    names: Vec<String>,
    /// True if every address is allowed as a name, since the server listens on all interfaces. An attacker's
    /// page can call the server by its own name only.
    allows_addresses: bool,
    port: u16,
    token: Option<Secret>,
    /// The token that pages send with actions; `None` if there are none.
    page_token: Option<Secret>,
    /// True if processes of this user on this machine need no token.
    trusts_own_user: bool,
}

impl Guard {
    /// The rules of a server that was asked to listen on `host`, and does on `address`.
    pub fn new(
        host: &str,
        address: SocketAddr,
        token: Option<Secret>,
        page_token: Option<Secret>,
        trusts_own_user: bool,
    ) -> Self {
        let ip = address.ip();
        let mut names = vec![host.to_ascii_lowercase(), in_url(ip)];
        if ip.is_loopback() || ip.is_unspecified() {
            names.extend(["localhost", "127.0.0.1", "[::1]"].map(str::to_owned));
        }
        if ip.is_unspecified() {
            names.insert(0, machine_name().unwrap_or_else(|| "localhost".to_owned()));
        }
        let allows_addresses = ip.is_unspecified();
        Self { names, allows_addresses, port: address.port(), token, page_token, trusts_own_user }
    }

    /// The token that pages send with actions.
    pub fn page_token(&self) -> Option<&str> {
        self.page_token.as_ref().map(Secret::as_str)
    }

    /// The address of the first page, with the token.
    pub fn url(&self) -> String {
        let query = self.token.as_ref().map(|token| format!("?{TOKEN}={}", token.as_str()));
        self.url_of(self.names.first().map_or("localhost", String::as_str)) + &query.unwrap_or_default()
    }

    /// The address of the first page for this machine, without the token.
    pub fn local_url(&self) -> String {
        // With all interfaces, the name of the machine may be that of another one for the resolver.
        let first = self.names.first().map_or("localhost", String::as_str);
        self.url_of(if self.allows_addresses { "127.0.0.1" } else { first })
    }

    fn url_of(&self, host: &str) -> String {
        let is_bare_v6 = host.contains(':') && !host.starts_with('[');
        let host = if is_bare_v6 { format!("[{host}]") } else { host.to_owned() };
        format!("http://{host}:{}/", self.port)
    }

    /// Returns whether a `Host` header names this server.
    fn is_this_host(&self, host: &str) -> bool {
        let (name, port) = match host.rfind(':') {
            Some(colon) if !host.ends_with(']') => (&host[..colon], host[colon + 1..].parse().ok()),
            _ => (host, Some(80)),
        };
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        port == Some(self.port)
            && (self.names.iter().any(|known| known.eq_ignore_ascii_case(name))
                || self.allows_addresses && address.is_ok())
    }

    /// The reason to refuse a request, if there is one.
    fn refusal(&self, request: &Request<Body>) -> Option<Refusal> {
        let is_action = is_action(request);
        if !is_action && !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Some(Refusal::Method);
        }
        let headers = request.headers();
        let has_body = headers.contains_key(header::TRANSFER_ENCODING)
            || headers.get(header::CONTENT_LENGTH).is_some_and(|length| length != "0");
        if has_body && !is_action {
            return Some(Refusal::Body);
        }
        let target = request.uri().path_and_query().map_or("", |target| target.as_str());
        if target.len() > MAX_TARGET_BYTES {
            return Some(Refusal::Length);
        }
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok());
        let Some(host) = host.filter(|host| hosts.next().is_none() && self.is_this_host(host)) else {
            return Some(Refusal::Host);
        };
        // An absolute address in the request line has precedence over the header.
        if request.uri().authority().is_some_and(|authority| authority.as_str() != host) {
            return Some(Refusal::Host);
        }
        let is_own = |origin: &HeaderValue| {
            origin.to_str().is_ok_and(|origin| origin.strip_prefix("http://") == Some(host))
        };
        if !headers.get_all(header::ORIGIN).iter().all(is_own) {
            return Some(Refusal::Origin);
        }
        if is_foreign_load(request) {
            return Some(Refusal::Origin);
        }
        if is_action { post::refusal(request, self.page_token.as_ref()).map(Refusal::Action) } else { None }
    }

    /// The name of the cookie. Cookies do not differ by port, so the name does.
    fn cookie_name(&self) -> String {
        format!("stratus_ui_{}", self.port)
    }

    fn has_cookie(&self, headers: &HeaderMap, token: &Secret) -> bool {
        let name = self.cookie_name();
        headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok()).any(|cookies| {
            let mut pairs = cookies.split(';').filter_map(|pair| pair.trim().split_once('='));
            pairs.any(|(key, value)| key == name && token.equals(value))
        })
    }

    /// Checks the token; `None` if the request has it as a cookie, or none is needed.
    fn check_token(&self, request: &Request<Body>) -> Option<Response> {
        let token = self.token.as_ref()?;
        let given = QueryPairs::of(request.uri().query()).get(TOKEN);
        if given.is_some_and(|given| token.equals(&given)) {
            return Some(self.with_cookie(request, token));
        }
        if self.has_cookie(request.headers(), token) {
            return None;
        }
        let peer = request.extensions().get::<Option<Peer>>().copied().flatten();
        if self.trusts_own_user && peer.is_some_and(Peer::is_process_of_this_user) {
            return None;
        }
        Some(Refusal::Token.respond(api::is_of_script(request.uri().path())))
    }

    /// Keeps the token in a cookie, and removes it from the address.
    fn with_cookie(&self, request: &Request<Body>, token: &Secret) -> Response {
        let rest: Vec<&str> = request
            .uri()
            .query()
            .unwrap_or_default()
            .split('&')
            .filter(|pair| pair.split('=').next() != Some(TOKEN))
            .collect();
        // The path begins with one slash: two would be another host.
        let path = format!("/{}", request.uri().path().trim_start_matches('/'));
        let query = if rest.is_empty() { String::new() } else { format!("?{}", rest.join("&")) };
        let cookie = format!("{}={}; HttpOnly; SameSite=Strict; Path=/", self.cookie_name(), token.as_str());
        let headers = [(header::LOCATION, path + &query), (header::SET_COOKIE, cookie)];
        (StatusCode::SEE_OTHER, headers).into_response()
    }
}

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    Method,
    Body,
    Length,
    Host,
    Origin,
    Token,
    Time,
    Action(post::Refused),
}

impl Refusal {
    /// The status, a title, and the reason.
    fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::Method => {
                (StatusCode::METHOD_NOT_ALLOWED, "Method not allowed", "This server answers only GET here.")
            }
            Self::Body => (StatusCode::BAD_REQUEST, "Bad request", "Requests have no body here."),
            Self::Length => (StatusCode::URI_TOO_LONG, "Address too long", "Select fewer runs or columns."),
            Self::Host => (
                StatusCode::FORBIDDEN,
                "Unknown host",
                "The request names another host or port than this server. Use the address that `stratus ui` \
                 printed; through a tunnel, use the same port on both sides.",
            ),
            Self::Origin => {
                (StatusCode::FORBIDDEN, "Foreign origin", "The request comes from a page of another server.")
            }
            Self::Token => (
                StatusCode::FORBIDDEN,
                "Token needed",
                "Open the address that `stratus ui` printed, with its token. It is then kept in a cookie.",
            ),
            Self::Time => {
                let text = "Reading the files of the runs took too long.";
                (StatusCode::GATEWAY_TIMEOUT, "Too slow", text)
            }
            Self::Action((status, reason)) => (status, "Refused", reason),
        }
    }

    /// The answer: a document to a script, else a page.
    fn respond(self, is_of_script: bool) -> Response {
        let (status, title, text) = self.parts();
        match is_of_script {
            true => api::refused(status, text),
            false => (status, pages::message(title, text)).into_response(),
        }
    }
}

/// Returns whether a request acts on a run.
fn is_action(request: &Request<Body>) -> bool {
    *request.method() == Method::POST && post::is_action(request.uri().path())
}

/// Returns whether a page of another server loads something, as an image for example: it cannot read the
/// answer, but would make this server work. Links to pages are followed. Only browsers tell.
fn is_foreign_load(request: &Request<Body>) -> bool {
    let said = |name| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_link = said("sec-fetch-mode") == "navigate" && !request.uri().path().starts_with("/api/");
    matches!(said("sec-fetch-site"), "cross-site" | "same-site") && !is_link
}

/// Answers a request, or refuses it.
pub async fn check(State(guard): State<Arc<Guard>>, request: Request<Body>, next: Next) -> Response {
    let is_of_script = api::is_of_script(request.uri().path());
    let refused = guard.refusal(&request).map(|refusal| refusal.respond(is_of_script));
    let mut response = match refused.or_else(|| guard.check_token(&request)) {
        Some(response) => response,
        None => answer_in_time(MAX_ANSWER_TIME, is_of_script, next.run(request)).await,
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

/// The answer, or a failure if it takes longer than `max_time`.
async fn answer_in_time(
    max_time: Duration,
    is_of_script: bool,
    answer: impl Future<Output = Response>,
) -> Response {
    match tokio::time::timeout(max_time, answer).await {
        Ok(response) => response,
        Err(_) => Refusal::Time.respond(is_of_script),
    }
}

/// The text of an IP address in a URL.
fn in_url(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// The name of this machine, if it can be that of a host.
fn machine_name() -> Option<String> {
    let name = stratus_run::machine::host_name()?.to_ascii_lowercase();
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    is_name.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(host: &str, address: &str) -> Guard {
        Guard::new(host, address.parse().unwrap(), None, None, false)
    }

    #[test]
    fn slow_answers_have_the_form_of_the_request() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let answer = |is_of_script| {
            let never = std::future::pending();
            runtime.block_on(answer_in_time(Duration::ZERO, is_of_script, never))
        };
        for (is_of_script, kind) in [(true, "application/json"), (false, "text/html; charset=utf-8")] {
            let response = answer(is_of_script);
            assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
            assert_eq!(response.headers()[header::CONTENT_TYPE], kind);
        }
        assert!(api::is_of_script("/api/runs") && !api::is_of_script("/run/api/"));
    }

    #[test]
    fn only_the_names_of_this_server_are_its_hosts() {
        let local = guard("127.0.0.1", "127.0.0.1:6174");
        for host in ["127.0.0.1:6174", "localhost:6174", "LOCALHOST:6174", "[::1]:6174"] {
            assert!(local.is_this_host(host), "{host}");
        }
        for host in [
            "",
            ":6174",
            "localhost",
            "localhost:80",
            "localhost:06174x",
            "evil.example:6174",
            "127.0.0.1.evil.example:6174",
            "localhost:6174.evil.example",
            "192.168.0.7:6174",
            "[::1]",
            "é:6174",
        ] {
            assert!(!local.is_this_host(host), "{host}");
        }
        let named = guard("lab.example", "192.168.0.7:80");
        for host in ["lab.example", "LAB.example:80", "192.168.0.7"] {
            assert!(named.is_this_host(host), "{host}");
        }
        assert!(!named.is_this_host("localhost:80") && !named.is_this_host("192.168.0.8"));
        let all = guard("0.0.0.0", "0.0.0.0:6174");
        assert!(all.is_this_host("192.168.0.8:6174") && all.is_this_host("[fe80::1]:6174"));
        assert!(!all.is_this_host("evil.example:6174"));
        assert_eq!(guard("::1", "[::1]:6174").url(), "http://[::1]:6174/");
        assert!(guard("::1", "[::1]:6174").is_this_host("[::1]:6174"));
    }
}
