//! A local OpenStack Swift server, which also supports S3, started and stopped by `scripts/store-servers.sh`.
//! Errors panic, which fails the test.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use tempfile::TempDir;

/// The key of the server's only user.
pub const KEY: &str = "testing";

const USER: &str = "test:tester";

/// Returns whether `STRATUS_STORE_SERVERS=none` skips the tests that need servers, and reports the skipped
/// `test`.
#[must_use]
pub fn is_skipped(test: &str) -> bool {
    let skipped = env::var("STRATUS_STORE_SERVERS").is_ok_and(|servers| servers == "none");
    if skipped {
        // Bypass the captured output of the test, so that the message is visible.
        let _ = writeln!(io::stderr(), "\nSKIPPED: {test}: STRATUS_STORE_SERVERS=none\n");
    }
    skipped
}

/// A running server, stopped on drop.
pub struct SwiftServer(TempDir);

impl SwiftServer {
    /// Starts an empty server.
    #[must_use]
    pub fn start() -> Self {
        let server = Self(tempfile::tempdir().unwrap());
        start(server.folder());
        server
    }

    /// The folder of the server.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// The HTTP address.
    #[must_use]
    pub fn address(&self) -> String {
        let port = fs::read_to_string(self.folder().join("port")).unwrap();
        format!("http://127.0.0.1:{}", port.trim())
    }

    /// The environment of a client that uses the server as Swift or S3 with `key`.
    #[must_use]
    pub fn environment(&self, key: &str) -> [(&'static str, String); 8] {
        let address = self.address();
        [
            ("ST_AUTH", format!("{address}/auth/v1.0")),
            ("ST_USER", USER.to_owned()),
            ("ST_KEY", key.to_owned()),
            ("AWS_ENDPOINT_URL", address),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", USER.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", key.to_owned()),
            ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
        ]
    }

    /// Creates a container, which is a bucket in S3.
    pub fn create_container(&self, name: &str) {
        let response = self.request("GET", "/auth/v1.0", &[("X-Auth-User", USER), ("X-Auth-Key", KEY)]);
        let header = |wanted: &str| {
            let mut lines = response.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).unwrap().1.trim().to_owned()
        };
        let storage = header("X-Storage-Url");
        let path = storage.strip_prefix(&self.address()).unwrap();
        self.request("PUT", &format!("{path}/{name}"), &[("X-Auth-Token", &header("X-Auth-Token"))]);
    }

    /// Sends a request and returns the response.
    fn request(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> String {
        let address = self.address();
        let host = address.trim_start_matches("http://");
        let mut stream = TcpStream::connect(host).unwrap();
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 0");
        write!(stream, "{method} {path} {head}\r\n{headers}\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 20"), "{response}");
        response
    }
}

impl Drop for SwiftServer {
    fn drop(&mut self) {
        script("stop", self.folder());
    }
}

/// Starts all processes of the server in `folder` that do not run.
pub fn start(folder: &Path) {
    script("start", folder);
}

/// Kills a process of the server in `folder`: `proxy`, to which clients connect, or another of its
/// `run/*.pid`.
pub fn kill(folder: &Path, server: &str) {
    let process_id = fs::read_to_string(folder.join(format!("run/{server}.pid"))).unwrap();
    let kill = |signal| Command::new("kill").args([signal, process_id.trim()]).stderr(Stdio::null()).status();
    assert!(kill("-9").unwrap().success());
    // The process must have ended before another one replaces it.
    while kill("-0").unwrap().success() {
        thread::sleep(Duration::from_millis(10));
    }
}

fn script(command: &str, folder: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/store-servers.sh");
    let status =
        Command::new("bash").arg(script).arg(command).arg(folder).stdin(Stdio::null()).status().unwrap();
    assert!(status.success(), "store-servers.sh {command}: run `scripts/store-servers.sh install`");
}
