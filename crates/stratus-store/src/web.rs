//! An HTTP client with retries.
//!
//! All HTTP stores send their requests through [`HttpClient`]. Transient failures (no connection, 408, 425,
//! 429, 5xx) are retried with growing delays, or after the delay requested by `Retry-After`. Any other
//! response is returned to the caller, who reads the body. If the connection breaks meanwhile,
//! [`Store`](crate::Store) resumes the download.

use std::fmt;
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use ureq::http::{HeaderMap, Method, Request, Response, StatusCode, header};
use ureq::{Agent, AsSendBody, Body};

use crate::backend::Failure;
use crate::retry::{FIRST_CONTACT_TIMEOUT, Retries, retry_after};
use crate::secret::Secrets;
use crate::{RetryPolicy, StoreError};

/// The maximum number of bytes read from an error page.
const MAX_ERROR_PAGE_BYTES: u64 = 1 << 16;

/// Hosts that issue credentials inside a cloud. Elsewhere they do not respond.
const METADATA_HOSTS: [&str; 4] =
    ["169.254.169.254", "169.254.170.2", "metadata.google.internal", "metadata"];

/// The timeout of requests to [`METADATA_HOSTS`].
const METADATA_TIMEOUT: Duration = Duration::from_secs(2);

/// An HTTP client with retries and redaction of secrets.
pub(crate) struct HttpClient {
    agent: Agent,
    retry_policy: RetryPolicy,
    secrets: Secrets,
    /// True if there ever was a response.
    has_responded: AtomicBool,
}

/// A response. The text of an error page is already redacted.
pub(crate) struct HttpResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// The length of the body, if the server reported it.
    #[cfg_attr(not(feature = "objects"), allow(dead_code, reason = "only used by object stores"))]
    pub(crate) length: Option<u64>,
    pub(crate) body: Box<dyn Read + Send>,
}

/// The error of a request without a usable response.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// Retries are exhausted.
    Exhausted { cause: String, attempts: u32, waited: Duration },
    /// A retry would fail in the same way.
    Permanent(String),
}

impl fmt::Display for RequestError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exhausted { cause, .. } | Self::Permanent(cause) => formatter.write_str(cause),
        }
    }
}

impl std::error::Error for RequestError {}

impl RequestError {
    /// Converts to the failure of a file.
    pub(crate) fn to_failure(&self, file: String) -> Failure {
        Failure::Permanent(match self {
            Self::Exhausted { cause, attempts, waited } => StoreError::RetriesExhausted {
                file,
                cause: cause.clone(),
                attempts: *attempts,
                waited: *waited,
            },
            Self::Permanent(problem) => StoreError::Unexpected { file, problem: problem.clone() },
        })
    }
}

impl HttpClient {
    /// Creates a client that follows up to `redirects` redirects. It must be 0 for signed requests, which
    /// must not be sent to another host.
    pub(crate) fn new(retry_policy: RetryPolicy, secrets: Secrets, redirects: u32) -> Self {
        let connect = retry_policy.idle_timeout.min(Duration::from_secs(20));
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .user_agent(concat!("stratus/", env!("CARGO_PKG_VERSION")))
            .max_redirects(redirects)
            .max_redirects_will_error(redirects > 0)
            .timeout_resolve(Some(connect))
            .timeout_connect(Some(connect))
            .timeout_recv_response(Some(retry_policy.idle_timeout))
            .timeout_per_read(Some(retry_policy.idle_timeout))
            .timeout_per_write(Some(retry_policy.idle_timeout))
            .build()
            .into();
        Self { agent, retry_policy, secrets, has_responded: AtomicBool::new(false) }
    }

    pub(crate) fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// Sends `request` until the response is not a transient failure. The body is sent again each time.
    pub(crate) fn send(&self, request: &Request<Vec<u8>>) -> Result<HttpResponse, RequestError> {
        let mut secrets = self.secrets.clone();
        add_secrets_of(request, &mut secrets);
        let is_metadata = request.uri().host().is_some_and(|host| METADATA_HOSTS.contains(&host));
        let mut retries = Retries::new(self.retry_policy());
        loop {
            let mut requested = Duration::ZERO;
            let cause = match self.send_once(request, is_metadata) {
                Ok(response) => {
                    self.has_responded.store(true, Ordering::Relaxed);
                    let response = to_response(request, response, &secrets)?;
                    if !is_transient(response.status) || is_metadata {
                        return Ok(response);
                    }
                    if let Some(value) = response.header(header::RETRY_AFTER) {
                        requested = retry_after(value, SystemTime::now());
                    }
                    response.explain()
                }
                Err(error) if is_transient_error(&error) && !is_metadata => {
                    secrets.redact(&error.to_string())
                }
                Err(error) => return Err(RequestError::Permanent(secrets.redact(&error.to_string()))),
            };
            retries.wait_for(requested).map_err(|end| RequestError::Exhausted {
                cause,
                attempts: end.attempts,
                waited: end.waited,
            })?;
        }
    }

    fn retry_policy(&self) -> RetryPolicy {
        let mut retry_policy = self.retry_policy;
        if !self.has_responded.load(Ordering::Relaxed) {
            retry_policy.give_up_after = retry_policy.give_up_after.min(FIRST_CONTACT_TIMEOUT);
        }
        retry_policy
    }

    fn send_once(
        &self,
        request: &Request<Vec<u8>>,
        is_metadata: bool,
    ) -> Result<Response<Body>, ureq::Error> {
        let (mut head, ()) = Request::new(()).into_parts();
        head.method.clone_from(request.method());
        head.uri.clone_from(request.uri());
        head.headers.clone_from(request.headers());
        let without_body =
            [Method::GET, Method::HEAD, Method::DELETE, Method::OPTIONS].contains(request.method());
        if request.body().is_empty() && without_body {
            self.run(Request::from_parts(head, ()), is_metadata)
        } else {
            self.run(Request::from_parts(head, request.body().as_slice()), is_metadata)
        }
    }

    fn run(
        &self,
        request: Request<impl AsSendBody>,
        is_metadata: bool,
    ) -> Result<Response<Body>, ureq::Error> {
        let time = is_metadata.then_some(METADATA_TIMEOUT);
        self.agent.run(self.agent.configure_request(request).timeout_global(time).build())
    }
}

impl HttpResponse {
    /// The status and the body of an error page as text.
    pub(crate) fn explain(mut self) -> String {
        let mut text = Vec::new();
        // Best effort: an incomplete text is still useful.
        let _ = self.body.read_to_end(&mut text);
        let text = String::from_utf8_lossy(&text);
        let text = if text.is_empty() { String::new() } else { format!(": {text}") };
        format!("the server responded {}{text}", self.status)
    }

    pub(crate) fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Streams a successful body, cut to the requested range. Reads and redacts an error page.
fn to_response(
    request: &Request<Vec<u8>>,
    response: Response<Body>,
    secrets: &Secrets,
) -> Result<HttpResponse, RequestError> {
    let (parts, body) = response.into_parts();
    let mut length = body.content_length();
    let mut body: Box<dyn Read + Send> = Box::new(body.into_reader());
    let (mut status, mut headers) = (parts.status, parts.headers);
    if !status.is_success() {
        let mut text = Vec::new();
        // Best effort: an incomplete text is still useful.
        let _ = body.take(MAX_ERROR_PAGE_BYTES).read_to_end(&mut text);
        let text = secrets.redact(&String::from_utf8_lossy(&text)).into_bytes();
        headers.remove(header::CONTENT_LENGTH);
        length = Some(text.len() as u64);
        return Ok(HttpResponse { status, headers, length, body: Box::new(io::Cursor::new(text)) });
    }
    if let Some((first, last)) = requested_range(request).filter(|_| request.method() == Method::GET) {
        let wanted = (last - first).saturating_add(1);
        if status == StatusCode::PARTIAL_CONTENT {
            let range = headers.get(header::CONTENT_RANGE).and_then(|range| range.to_str().ok());
            if range.and_then(range_start) != Some(first) {
                let found = secrets.redact(range.unwrap_or("none"));
                return Err(RequestError::Permanent(format!(
                    "the server sent a different range than requested (bytes {first}-{last}, \
                     Content-Range: {found})"
                )));
            }
        } else {
            // A server without support for ranges sends the whole file.
            let total = length;
            body = Box::new(SkipPrefix { left: first, body });
            length = total.map(|total| total.saturating_sub(first).min(wanted));
            if let Some(length) = length {
                let total = total.unwrap_or(0);
                let end = first + length.max(1) - 1;
                let range = format!("bytes {first}-{end}/{total}");
                headers.insert(header::CONTENT_LENGTH, length.into());
                if let Ok(range) = range.try_into() {
                    headers.insert(header::CONTENT_RANGE, range);
                }
                status = StatusCode::PARTIAL_CONTENT;
            }
        }
        body = Box::new(body.take(wanted));
        length = length.map(|length| length.min(wanted));
    }
    Ok(HttpResponse { status, headers, length, body })
}

/// A body without its first bytes.
struct SkipPrefix {
    left: u64,
    body: Box<dyn Read + Send>,
}

impl Read for SkipPrefix {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.left > 0 {
            let skipped = io::copy(&mut (&mut self.body).take(self.left), &mut io::sink())?;
            self.left -= skipped;
            if self.left > 0 {
                return Ok(0);
            }
        }
        self.body.read(out)
    }
}

/// The first and last byte of `Range: bytes=<first>-<last>`.
fn requested_range(request: &Request<Vec<u8>>) -> Option<(u64, u64)> {
    let range = request.headers().get(header::RANGE)?.to_str().ok()?.strip_prefix("bytes=")?;
    let (first, last) = range.split_once('-')?;
    let first = first.parse().ok()?;
    let last = if last.is_empty() { u64::MAX } else { last.parse().ok()? };
    (first <= last).then_some((first, last))
}

/// The first byte of a 206 response, from `Content-Range: bytes <start>-…` (RFC 9110, section 14.4).
fn range_start(range: &str) -> Option<u64> {
    range.strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok()
}

/// Returns whether the server may respond differently later.
fn is_transient(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 425 | 429 | 500 | 502 | 503 | 504)
}

/// Returns whether a later connection may succeed.
fn is_transient_error(error: &ureq::Error) -> bool {
    match error {
        // TLS reports an untrusted certificate as `InvalidData`.
        ureq::Error::Io(error) => error.kind() != io::ErrorKind::InvalidData,
        ureq::Error::Timeout(_) | ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => true,
        _ => false,
    }
}

/// Adds the secrets of a request, which its response may repeat.
fn add_secrets_of(request: &Request<Vec<u8>>, secrets: &mut Secrets) {
    for (name, value) in request.headers() {
        let name = name.as_str();
        if name == "authorization" || name.contains("token") || name.contains("key") || name.contains("auth")
        {
            let value = value.to_str().unwrap_or_default();
            secrets.add(value);
            value.split([' ', ',', '=']).filter(|part| part.len() >= 16).for_each(|part| secrets.add(part));
        }
    }
    if let Some(query) = request.uri().query() {
        secrets.add_query(query);
    }
}
