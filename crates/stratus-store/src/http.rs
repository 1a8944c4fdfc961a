//! Files of a web server. It has no list of them, and nothing can be put there.

use std::io::{self, Read};

use ureq::http::{Method, Request, StatusCode, header};

use crate::backend::{Failure, FileInfo, StoreBackend};
use crate::web::{Answer, Web};
use crate::{Entry, StoreError};

pub(crate) struct Http {
    web: Web,
    /// As it may be shown, without `/` at its end.
    address: String,
    /// As it is asked for, without `/` at its end and without a query string.
    base: String,
    /// What stands behind every file's address: a signature.
    query: Option<String>,
}

impl Http {
    pub(crate) fn new(web: Web, address: String, base: String, query: Option<String>) -> Self {
        Self { web, address, base, query }
    }

    fn ask(&self, method: Method, path: &str, range: Option<String>) -> Result<Answer, Failure> {
        let mut url = format!("{}/{}", self.base, crate::address::encode(path));
        if let Some(query) = &self.query {
            url = format!("{url}?{query}");
        }
        let mut request = Request::builder().method(method).uri(url);
        if let Some(range) = range {
            request = request.header(header::RANGE, range);
        }
        let request = request.body(Vec::new()).map_err(|error| StoreError::Wrong {
            file: self.file(path),
            problem: self.web.secrets().hide(&error.to_string()),
        })?;
        self.web.send(&request).map_err(|error| error.of(self.file(path)))
    }

    fn file(&self, path: &str) -> String {
        format!("{}/{path}", self.address)
    }

    fn refused(&self, path: &str, answer: Answer) -> Failure {
        let advice = match answer.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                "the server wants credentials: give the address with its signature (?…), or use another \
                 server"
            }
            _ => "check the address",
        };
        let (cause, advice) = (answer.explain(), advice.to_owned());
        StoreError::Refused { file: self.file(path), cause, advice }.into()
    }
}

impl StoreBackend for Http {
    fn list(&self, _prefix: &str, _found: &mut dyn FnMut(Entry)) -> Result<(), Failure> {
        let problem = "a web server has no list of its files; name the files themselves";
        Err(StoreError::Unsupported { address: self.address.clone(), problem }.into())
    }

    fn info(&self, path: &str) -> Result<Option<FileInfo>, Failure> {
        let answer = self.ask(Method::HEAD, path, None)?;
        let length = answer.header(header::CONTENT_LENGTH).and_then(|length| length.parse().ok());
        match (answer.status, length) {
            (StatusCode::NOT_FOUND | StatusCode::GONE, _) => return Ok(None),
            (StatusCode::OK, Some(bytes)) => return Ok(Some(info(&answer, bytes))),
            _ => {}
        }
        // Not everything that can be got can be asked about: signatures are often for GET alone.
        let answer = self.ask(Method::GET, path, Some("bytes=0-0".to_owned()))?;
        match answer.status {
            StatusCode::NOT_FOUND | StatusCode::GONE => Ok(None),
            // An empty file has no first byte.
            StatusCode::RANGE_NOT_SATISFIABLE if total(&answer) == Some(0) => Ok(Some(info(&answer, 0))),
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => match total(&answer) {
                Some(bytes) => Ok(Some(info(&answer, bytes))),
                None => Err(StoreError::Wrong {
                    file: self.file(path),
                    problem: "the server does not say how large it is (neither Content-Length nor \
                              Content-Range); use another server"
                        .to_owned(),
                }
                .into()),
            },
            _ => Err(self.refused(path, answer)),
        }
    }

    fn open(&self, path: &str, offset: u64, length: u64) -> Result<Box<dyn Read + '_>, Failure> {
        if length == 0 {
            return Ok(Box::new(io::empty()));
        }
        let last = offset.saturating_add(length - 1);
        let answer = self.ask(Method::GET, path, Some(format!("bytes={offset}-{last}")))?;
        match answer.status {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(answer.body),
            // It ends before what is asked for; whoever reads sees that.
            StatusCode::RANGE_NOT_SATISFIABLE => Ok(Box::new(io::empty())),
            StatusCode::NOT_FOUND | StatusCode::GONE => {
                Err(StoreError::NotFound { file: self.file(path) }.into())
            }
            _ => Err(self.refused(path, answer)),
        }
    }

    fn write(&self, _path: &str, _from: &mut dyn Read, _bytes: u64) -> Result<(), Failure> {
        let problem = "files cannot be put on a web server; use a folder or a store of objects";
        Err(StoreError::Unsupported { address: self.address.clone(), problem }.into())
    }
}

/// The size of the whole file: `Content-Range: bytes 0-0/<size>`.
fn total(answer: &Answer) -> Option<u64> {
    answer.header(header::CONTENT_RANGE)?.rsplit_once('/')?.1.trim().parse().ok()
}

fn info(answer: &Answer, bytes: u64) -> FileInfo {
    let version = answer.header(header::ETAG).or_else(|| answer.header(header::LAST_MODIFIED));
    // It is kept on one line of a file.
    FileInfo { bytes, version: version.map(|version| version.escape_debug().to_string()) }
}
