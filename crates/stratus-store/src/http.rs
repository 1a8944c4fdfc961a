//! Files of a web server, which can be neither listed nor written.

use std::io::{self, Read};

use ureq::http::{Method, Request, StatusCode, header};

use crate::backend::{Failure, FileInfo, StoreBackend};
use crate::web::{HttpClient, HttpResponse};
use crate::{Entry, StoreError};

pub(crate) struct HttpStore {
    client: HttpClient,
    /// The redacted address.
    address: String,
    /// The URL without a trailing `/` and without the query string.
    base: String,
    /// The query string of every file, usually a signature.
    query: Option<String>,
}

impl HttpStore {
    pub(crate) fn new(client: HttpClient, address: String, base: String, query: Option<String>) -> Self {
        Self { client, address, base, query }
    }

    fn request(&self, method: Method, path: &str, range: Option<String>) -> Result<HttpResponse, Failure> {
        let mut url = format!("{}/{}", self.base, crate::address::encode(path));
        if let Some(query) = &self.query {
            url = format!("{url}?{query}");
        }
        let mut request = Request::builder().method(method).uri(url);
        if let Some(range) = range {
            request = request.header(header::RANGE, range);
        }
        let request = request.body(Vec::new()).map_err(|error| StoreError::Unexpected {
            file: self.file(path),
            problem: self.client.secrets().redact(&error.to_string()),
        })?;
        self.client.send(&request).map_err(|error| error.to_failure(self.file(path)))
    }

    fn file(&self, path: &str) -> String {
        format!("{}/{path}", self.address)
    }

    fn refused(&self, path: &str, response: HttpResponse) -> Failure {
        let advice = match response.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                "the server requires credentials: pass a signed URL (`?…`)"
            }
            _ => "check the address",
        };
        let (cause, advice) = (response.explain(), advice.to_owned());
        StoreError::Refused { file: self.file(path), cause, advice }.into()
    }
}

impl StoreBackend for HttpStore {
    fn list(&self, _prefix: &str, _found: &mut dyn FnMut(Entry)) -> Result<(), Failure> {
        let problem = "a web server cannot list its files; name each file";
        Err(StoreError::Unsupported { address: self.address.clone(), problem }.into())
    }

    fn info(&self, path: &str) -> Result<Option<FileInfo>, Failure> {
        let response = self.request(Method::HEAD, path, None)?;
        let length = response.header(header::CONTENT_LENGTH).and_then(|length| length.parse().ok());
        match (response.status, length) {
            (StatusCode::NOT_FOUND | StatusCode::GONE, _) => return Ok(None),
            (StatusCode::OK, Some(bytes)) => return Ok(Some(info(&response, bytes))),
            _ => {}
        }
        // Signatures are often valid only for GET, so HEAD can fail.
        let response = self.request(Method::GET, path, Some("bytes=0-0".to_owned()))?;
        match response.status {
            StatusCode::NOT_FOUND | StatusCode::GONE => Ok(None),
            // An empty file has no first byte.
            StatusCode::RANGE_NOT_SATISFIABLE if total(&response) == Some(0) => Ok(Some(info(&response, 0))),
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => match total(&response) {
                Some(bytes) => Ok(Some(info(&response, bytes))),
                None => Err(StoreError::Unexpected {
                    file: self.file(path),
                    problem: "the server does not report the size (neither Content-Length nor \
                              Content-Range); use another server"
                        .to_owned(),
                }
                .into()),
            },
            _ => Err(self.refused(path, response)),
        }
    }

    fn open(&self, path: &str, offset: u64, length: u64) -> Result<Box<dyn Read + '_>, Failure> {
        if length == 0 {
            return Ok(Box::new(io::empty()));
        }
        let last = offset.saturating_add(length - 1);
        let response = self.request(Method::GET, path, Some(format!("bytes={offset}-{last}")))?;
        match response.status {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(response.body),
            // The file ends before `offset`; the caller detects the missing bytes.
            StatusCode::RANGE_NOT_SATISFIABLE => Ok(Box::new(io::empty())),
            StatusCode::NOT_FOUND | StatusCode::GONE => {
                Err(StoreError::NotFound { file: self.file(path) }.into())
            }
            _ => Err(self.refused(path, response)),
        }
    }

    fn write(&self, _path: &str, _from: &mut dyn Read, _bytes: u64) -> Result<(), Failure> {
        let problem = "a web server cannot store files; use a folder or an object store";
        Err(StoreError::Unsupported { address: self.address.clone(), problem }.into())
    }
}

/// The size of the whole file from `Content-Range: bytes 0-0/<size>`.
fn total(response: &HttpResponse) -> Option<u64> {
    response.header(header::CONTENT_RANGE)?.rsplit_once('/')?.1.trim().parse().ok()
}

fn info(response: &HttpResponse, bytes: u64) -> FileInfo {
    let version = response.header(header::ETAG).or_else(|| response.header(header::LAST_MODIFIED));
    // The cache stores the version on a single line.
    FileInfo { bytes, version: version.map(|version| version.escape_debug().to_string()) }
}
