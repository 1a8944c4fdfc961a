//! A real OpenStack Swift, which speaks S3 too, on this machine: `scripts/store-servers.sh` starts and stops
//! it. What goes wrong panics: it is the test that fails.

#![allow(clippy::unwrap_used, reason = "a helper that unwraps is a failing test")]

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use tempfile::TempDir;

/// The key of the node's only user.
pub const KEY: &str = "testing";

const USER: &str = "test:tester";

/// Whether there are no servers on this machine, and whoever started the tests says that this is known.
/// `test` is then named where it is seen.
#[must_use]
pub fn is_left_out(test: &str) -> bool {
    let left_out = env::var("STRATUS_STORE_SERVERS").is_ok_and(|servers| servers == "none");
    if left_out {
        // Past the test's captured output: it must be seen.
        let _ = writeln!(io::stderr(), "\n*** {test} WAS NOT RUN: STRATUS_STORE_SERVERS=none ***\n");
    }
    left_out
}

/// A node that ends with the test.
pub struct Node(TempDir);

impl Node {
    /// Starts one with nothing in it.
    #[must_use]
    pub fn start() -> Self {
        let node = Self(tempfile::tempdir().unwrap());
        start(node.folder());
        node
    }

    /// The node's folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// Its address, for HTTP.
    #[must_use]
    pub fn address(&self) -> String {
        let port = fs::read_to_string(self.folder().join("port")).unwrap();
        format!("http://127.0.0.1:{}", port.trim())
    }

    /// The environment of a program that uses the node, as Swift and as S3, with this key.
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

    /// Makes a container, which S3 calls a bucket.
    pub fn create_container(&self, name: &str) {
        let signed_in = self.ask("GET", "/auth/v1.0", &[("X-Auth-User", USER), ("X-Auth-Key", KEY)]);
        let header = |wanted: &str| {
            let mut lines = signed_in.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).unwrap().1.trim().to_owned()
        };
        let storage = header("X-Storage-Url");
        let path = storage.strip_prefix(&self.address()).unwrap();
        self.ask("PUT", &format!("{path}/{name}"), &[("X-Auth-Token", &header("X-Auth-Token"))]);
    }

    /// What the node answers.
    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> String {
        let address = self.address();
        let host = address.trim_start_matches("http://");
        let mut stream = TcpStream::connect(host).unwrap();
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 0");
        write!(stream, "{method} {path} {head}\r\n{headers}\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
        answer
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        script("stop", self.folder());
    }
}

/// Starts what does not run of the node in `folder`.
pub fn start(folder: &Path) {
    script("start", folder);
}

/// Kills a server of the node in `folder` as it stands: `proxy`, which clients speak to, or another of its
/// `run/*.pid`.
pub fn kill(folder: &Path, server: &str) {
    let number = fs::read_to_string(folder.join(format!("run/{server}.pid"))).unwrap();
    let kill = |signal| Command::new("kill").args([signal, number.trim()]).stderr(Stdio::null()).status();
    assert!(kill("-9").unwrap().success());
    // It must be gone before another is started in its place.
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
