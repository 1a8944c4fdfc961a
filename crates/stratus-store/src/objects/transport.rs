//! OpenDAL's requests, sent by [`Web`].

use std::io::{self, Read};
use std::sync::Arc;

use futures::stream;
use opendal::{Buffer, Error, ErrorKind, HttpBody, HttpTransport};
use ureq::http::{Request, Response, StatusCode};

use crate::web::{Answer, RequestError, Web};

/// Bytes of a body that are handed over at a time.
const BLOCK: u64 = 1 << 18;

/// How a request gets its answer: as it is, or with a token that is fetched first.
pub(super) trait SendRequest: Send + Sync + 'static {
    fn send(&self, request: Request<Vec<u8>>) -> Result<Answer, RequestError>;
}

impl SendRequest for Web {
    fn send(&self, request: Request<Vec<u8>>) -> Result<Answer, RequestError> {
        Web::send(self, &request)
    }
}

pub(super) struct Transport<S>(pub(super) Arc<S>);

impl<S: SendRequest> HttpTransport for Transport<S> {
    async fn fetch(&self, request: Request<Buffer>) -> opendal::Result<Response<HttpBody>> {
        let answer = self
            .0
            .send(request.map(|body| body.to_vec()))
            .map_err(|error| Error::new(ErrorKind::Unexpected, error.to_string()).set_source(error))?;
        let Answer { status, headers, length, body } = answer;
        // Not every service of OpenDAL's says what this is.
        if status == StatusCode::RANGE_NOT_SATISFIABLE {
            return Err(Error::new(ErrorKind::RangeNotSatisfied, "the range is behind the end"));
        }
        let mut response = Response::new(HttpBody::new(blocks(body), length));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        Ok(response)
    }
}

/// A body as a stream that is always ready: each block is read when it is asked for.
fn blocks(
    body: Box<dyn Read + Send>,
) -> impl futures::Stream<Item = opendal::Result<Buffer>> + Send + Sync + Unpin + 'static {
    // A reader is no `Sync`, which a stream of a body must be.
    let body = std::sync::Mutex::new(body);
    stream::iter(std::iter::from_fn(move || {
        let mut body = body.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut block = Vec::new();
        let read = read_block(&mut *body, &mut block);
        match read {
            Err(error) if block.is_empty() => Some(Err(broken(&error))),
            // What came before it broke counts; the next read breaks again.
            _ => (!block.is_empty()).then(|| Ok(Buffer::from(block))),
        }
    }))
}

fn read_block(body: &mut dyn Read, block: &mut Vec<u8>) -> io::Result<usize> {
    block.resize(usize::try_from(BLOCK).unwrap_or(usize::MAX), 0);
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
