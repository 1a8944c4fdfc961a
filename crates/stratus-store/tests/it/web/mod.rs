//! A web server on the loopback interface with programmable failures.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use stratus_store::{RetryPolicy, Store};

/// A received request.
#[derive(Debug, Clone)]
pub struct ReceivedRequest {
    pub method: String,
    /// The path with the query string.
    pub path: String,
    /// The first requested byte.
    pub first: Option<usize>,
    /// The header lines.
    pub headers: Vec<String>,
    pub body: String,
    /// The number of earlier requests.
    pub earlier: usize,
}

/// The response to a request.
pub enum Reply {
    /// The content, or the requested range.
    Serve,
    /// Other content with a version.
    Version(&'static str, Vec<u8>),
    /// The whole content, ignoring the range.
    IgnoreRange,
    /// Another range than the requested one.
    OtherRange,
    /// The content without its size.
    Unsized,
    /// An error page.
    Status(u16, String),
    /// An error page with `Retry-After`.
    Later(u16, String),
    /// Headers, each with a line break, and content.
    Page(String, String),
    /// The requested range, truncated to a number of bytes.
    Break(usize),
    /// The requested range, in pieces of a number of bytes with pauses.
    Trickle(usize),
    /// Bytes that are not HTTP.
    Garbage,
    /// No response for a time.
    Silence(Duration),
}

pub struct Server {
    pub address: String,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl ReceivedRequest {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let matches = |line: &'_ String| {
            line.split_once(": ").is_some_and(|(found, _)| found.eq_ignore_ascii_case(name))
        };
        Some(self.headers.iter().find(|line| matches(line))?.split_once(": ")?.1)
    }
}

impl Server {
    /// Serves `content` at every path with the responses of `reply`, until the test ends.
    pub fn start(
        content: Vec<u8>,
        reply: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/data", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (content, reply, log) = (Arc::new(content), Arc::new(reply), Arc::clone(&requests));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (content, reply, log) = (Arc::clone(&content), Arc::clone(&reply), Arc::clone(&log));
                // A disconnected client is not an error of the server.
                thread::spawn(move || respond(stream.ok()?, &content, &*reply, &log));
            }
        });
        Self { address, requests }
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().unwrap().clone()
    }

    /// The number of GET requests so far.
    pub fn gets(&self) -> usize {
        self.requests().iter().filter(|request| request.method == "GET").count()
    }

    pub fn store(&self) -> Store {
        Store::open_with_policy(&self.address, brief()).unwrap()
    }
}

/// The retry policy of tests.
pub fn brief() -> RetryPolicy {
    RetryPolicy {
        idle_timeout: Duration::from_millis(400),
        give_up_after: Duration::from_millis(1500),
        first_delay: Duration::from_millis(5),
        max_delay: Duration::from_millis(40),
    }
}

/// Pseudorandom bytes, in which every range is unique.
pub fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn respond(
    stream: TcpStream,
    content: &[u8],
    reply: &(dyn Fn(&ReceivedRequest) -> Reply + Send + Sync),
    log: &Mutex<Vec<ReceivedRequest>>,
) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut lines = reader.by_ref().lines();
    let request = lines.next()?.ok()?;
    let mut words = request.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let (mut range, mut length, mut headers) = (None, 0, Vec::new());
    for line in lines {
        let line = line.ok()?;
        if line.is_empty() {
            break;
        }
        headers.push(line.clone());
        let line = line.to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().ok()?;
        }
        if let Some((first, last)) =
            line.strip_prefix("range: bytes=").and_then(|range| range.split_once('-'))
        {
            range = Some((first.parse::<usize>().ok()?, last.parse::<usize>().unwrap_or(usize::MAX)));
        }
    }
    let mut body = String::new();
    reader.take(length).read_to_string(&mut body).ok()?;
    let received = {
        let mut log = log.lock().unwrap();
        let first = range.map(|(first, _)| first);
        let received = ReceivedRequest { method, path, first, headers, body, earlier: log.len() };
        log.push(received.clone());
        received
    };
    send(stream, &received, content, range, &reply(&received))
}

fn send(
    mut stream: TcpStream,
    received: &ReceivedRequest,
    content: &[u8],
    range: Option<(usize, usize)>,
    reply: &Reply,
) -> Option<()> {
    let (version, content) = match reply {
        Reply::Version(version, content) => (*version, content.as_slice()),
        _ => ("first", content),
    };
    let range = range.filter(|_| !matches!(reply, Reply::IgnoreRange | Reply::Unsized));
    let mut head = format!("HTTP/1.1 200 OK\r\nETag: \"{version}\"\r\n");
    let mut part = content;
    if let Some((first, last)) = range {
        let first = if matches!(reply, Reply::OtherRange) { first + 1 } else { first };
        let end = content.len().min(last.saturating_add(1));
        if first >= end {
            let head = format!(
                "HTTP/1.1 416 No\r\nContent-Range: bytes */{}\r\nContent-Length: 0\r\n\r\n",
                content.len()
            );
            return stream.write_all(head.as_bytes()).ok();
        }
        part = &content[first..end];
        head = format!(
            "HTTP/1.1 206 Partial Content\r\nETag: \"{version}\"\r\nContent-Range: bytes {first}-{}/{}\r\n",
            end - 1,
            content.len()
        );
    }
    if !matches!(reply, Reply::Unsized) {
        head += &format!("Content-Length: {}\r\n", part.len());
    }
    head += "Connection: close\r\n\r\n";
    match reply {
        Reply::Garbage => return stream.write_all(b"220 mail.example ESMTP\r\n\r\n\x00\x01\x02").ok(),
        Reply::Silence(time) => thread::sleep(*time),
        Reply::Status(status, page) => {
            let length = page.len();
            head =
                format!("HTTP/1.1 {status} Because\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
            part = page.as_bytes();
        }
        Reply::Later(status, delay) => {
            head = format!(
                "HTTP/1.1 {status} Later\r\nRetry-After: {delay}\r\nContent-Length: 0\r\nConnection: \
                 close\r\n\r\n"
            );
            part = b"";
        }
        Reply::Page(headers, page) => {
            head = format!(
                "HTTP/1.1 200 OK\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n",
                page.len()
            );
            part = page.as_bytes();
        }
        Reply::Break(bytes) => part = &part[..part.len().min(*bytes)],
        _ => {}
    }
    stream.write_all(head.as_bytes()).ok()?;
    if received.method == "HEAD" {
        return Some(());
    }
    let (piece, pause) = match reply {
        Reply::Trickle(bytes) => (*bytes, Duration::from_millis(20)),
        _ => (1 << 20, Duration::ZERO),
    };
    for piece in part.chunks(piece) {
        stream.write_all(piece).ok()?;
        thread::sleep(pause);
    }
    Some(())
}
