//! The transport of OpenDAL's requests through [`HttpClient`].

use std::io::{self, Read};
use std::sync::Arc;

use futures::stream;
use opendal::{Buffer, Error, ErrorKind, HttpBody, HttpTransport};
use ureq::http::{Request, Response, StatusCode};

use crate::web::{HttpClient, HttpResponse, RequestError};

/// The size of the blocks of a response body.
const BLOCK_BYTES: u64 = 1 << 18;

/// A sender of requests, which may add a token.
pub(super) trait SendRequest: Send + Sync + 'static {
    fn send(&self, request: Request<Vec<u8>>) -> Result<HttpResponse, RequestError>;
}

impl SendRequest for HttpClient {
    fn send(&self, request: Request<Vec<u8>>) -> Result<HttpResponse, RequestError> {
        HttpClient::send(self, &request)
    }
}

pub(super) struct Transport<S>(pub(super) Arc<S>);

impl<S: SendRequest> HttpTransport for Transport<S> {
    async fn fetch(&self, request: Request<Buffer>) -> opendal::Result<Response<HttpBody>> {
        let response = self
            .0
            .send(request.map(|body| body.to_vec()))
            .map_err(|error| Error::new(ErrorKind::Unexpected, error.to_string()).set_source(error))?;
        let HttpResponse { status, headers, length, body } = response;
        // Not every service of OpenDAL maps this status.
        if status == StatusCode::RANGE_NOT_SATISFIABLE {
            return Err(Error::new(ErrorKind::RangeNotSatisfied, "the range begins after the end"));
        }
        let mut response = Response::new(HttpBody::new(blocks(body), length));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        Ok(response)
    }
}

/// A body as a stream that is always ready. Each block is read when it is polled.
fn blocks(
    body: Box<dyn Read + Send>,
) -> impl futures::Stream<Item = opendal::Result<Buffer>> + Send + Sync + Unpin + 'static {
    // The stream must be `Sync`, but the reader is not.
    let body = std::sync::Mutex::new(body);
    stream::iter(std::iter::from_fn(move || {
        let mut body = body.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut block = Vec::new();
        let read = read_block(&mut *body, &mut block);
        match read {
            Err(error) if block.is_empty() => Some(Err(broken(&error))),
            // Bytes before the failure count; the next read fails again.
            _ => (!block.is_empty()).then(|| Ok(Buffer::from(block))),
        }
    }))
}

fn read_block(body: &mut dyn Read, block: &mut Vec<u8>) -> io::Result<usize> {
    block.resize(usize::try_from(BLOCK_BYTES).unwrap_or(usize::MAX), 0);
    loop {
        match body.read(block) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => {
                block.truncate(*read.as_ref().unwrap_or(&0));
                return read;
            }
        }
    }
}

fn broken(error: &io::Error) -> Error {
    Error::new(ErrorKind::Unexpected, format!("the connection broke: {error}")).set_temporary()
}
