//! A running server, an HTTP client over a socket, and generated runs.

mod runs;
mod sweeps;

pub use runs::{MadeRun, append_epoch, append_iterations, make};
pub use sweeps::{make_huge_sweep, make_sweep};

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use stratus_ui::{Forecaster, Index, Options, Server};

/// The longest wait for an answer or an event: far more than any needs, since machines of tests are busy.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The options of a server on a free port, without actions.
pub fn options(folder: &Path, host: &str) -> Options {
    let (folders, host) = (vec![folder.to_owned()], host.to_owned());
    Options { folders, host, port: 0, program: None, opens_browser: false }
}

/// A server that runs until it is dropped.
pub struct Running {
    pub address: SocketAddr,
    pub url: String,
    pub index: Arc<Index>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Serves a folder on a free port of the loopback interface.
    pub fn start(folder: &Path) -> Self {
        Self::with_host(folder, "127.0.0.1")
    }

    /// Serves a folder on a free port of an interface.
    pub fn with_host(folder: &Path, host: &str) -> Self {
        Self::with_program(folder, host, None)
    }

    /// Serves a folder, with actions on runs by a program.
    pub fn with_program(folder: &Path, host: &str, program: Option<&str>) -> Self {
        Self::with_options(&Options { program: program.map(Into::into), ..options(folder, host) })
    }

    /// Starts a server with options.
    pub fn with_options(options: &Options) -> Self {
        Self::serve(Server::bind(options).unwrap())
    }

    /// Serves a folder on a free port of the loopback interface, with a forecaster.
    pub fn with_forecaster(folder: &Path, forecaster: Arc<dyn Forecaster>) -> Self {
        Self::serve(Server::bind(&options(folder, "127.0.0.1")).unwrap().with_forecaster(forecaster))
    }

    fn serve(server: Server) -> Self {
        let (mut address, url) = (server.address(), server.url().to_owned());
        if address.ip().is_unspecified() {
            address.set_ip([127, 0, 0, 1].into());
        }
        let index = Arc::clone(server.index());
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = std::thread::spawn(move || server.serve(&flag).unwrap());
        Self { address, url, index, stop, thread: Some(thread) }
    }

    /// The answer to a GET request with the `Host` of the server.
    pub fn get(&self, target: &str) -> Answer {
        self.get_with(target, &[])
    }

    /// The answer to a GET request with more headers.
    pub fn get_with(&self, target: &str, headers: &[(&str, &str)]) -> Answer {
        let host = self.address.to_string();
        let mut all = vec![("Host", host.as_str())];
        all.extend_from_slice(headers);
        self.request("GET", target, &all)
    }

    /// The answer to a request with exactly these headers.
    pub fn request(&self, method: &str, target: &str, headers: &[(&str, &str)]) -> Answer {
        let mut head = format!("{method} {target} HTTP/1.1\r\n");
        headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        self.raw(&format!("{head}Connection: close\r\n\r\n"))
    }

    /// The token of a page of the server.
    pub fn page_token(&self) -> String {
        let page = self.get("/").body;
        let (_, rest) = page.split_once("name=\"stratus-page\" content=\"").expect("a page with a token");
        rest.split_once('"').unwrap().0.to_owned()
    }

    /// The headers of a request of a page of this server that acts.
    pub fn action_headers(&self) -> Vec<(&'static str, String)> {
        vec![
            ("Host", self.address.to_string()),
            ("Origin", format!("http://{}", self.address)),
            ("Content-Type", "application/json".to_owned()),
            ("X-Stratus-Page", self.page_token()),
        ]
    }

    /// The answer to a POST request with these headers.
    pub fn post(&self, target: &str, headers: &[(&str, String)], body: &str) -> Answer {
        let mut head = format!("POST {target} HTTP/1.1\r\nContent-Length: {}\r\n", body.len());
        headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        self.raw(&format!("{head}Connection: close\r\n\r\n{body}"))
    }

    /// The answer to the bytes of a request.
    pub fn raw(&self, request: &str) -> Answer {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = Vec::new();
        // The server may close the connection while more is sent.
        let _ = stream.read_to_end(&mut text);
        Answer::parse(&text)
    }

    /// The JSON document at an address.
    pub fn json(&self, target: &str) -> Value {
        let answer = self.get(target);
        assert_eq!(answer.status, 200, "{target}: {}", answer.body);
        serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{target}: {error}"))
    }

    /// The id of the run with a label.
    pub fn id(&self, label: &str) -> String {
        let runs = self.json("/api/runs");
        let run = runs["runs"].as_array().unwrap().iter().find(|run| run["label"] == label);
        run.unwrap_or_else(|| panic!("no run {label} in {runs}"))["id"].as_str().unwrap().to_owned()
    }

    /// The stream of changes of runs.
    pub fn events(&self, query: &str) -> Events {
        self.stream(&format!("/events{query}"))
    }

    /// The stream of events at an address.
    pub fn stream(&self, target: &str) -> Events {
        let mut stream = self.connect();
        let request = format!("GET {target} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address);
        stream.write_all(request.as_bytes()).unwrap();
        Events { lines: BufReader::new(stream), connected: false }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(MAX_WAIT)).unwrap();
        stream
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap();
            }
        }
    }
}

/// An answer of the server.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    fn parse(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or("0").parse().unwrap();
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers = headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
        Self { status, headers, body: body.to_owned() }
    }

    /// A header; empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }
}

/// The stream of changes.
pub struct Events {
    lines: BufReader<TcpStream>,
    connected: bool,
}

impl Events {
    /// The status of the answer.
    pub fn status(&mut self) -> u16 {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        self.connected = true;
        line.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// The next event: its id and its document.
    pub fn next(&mut self) -> (String, Value) {
        if !self.connected {
            assert_eq!(self.status(), 200);
        }
        let mut id = String::new();
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the stream ended");
            if let Some(text) = line.strip_prefix("id: ") {
                id = text.trim().to_owned();
            }
            if let Some(text) = line.strip_prefix("data: ") {
                return (id, serde_json::from_str(text).unwrap());
            }
        }
    }

    /// The first event that fulfils a condition.
    pub fn until(&mut self, condition: impl Fn(&Value) -> bool) -> Value {
        loop {
            let (_, event) = self.next();
            if condition(&event) {
                return event;
            }
        }
    }
}
