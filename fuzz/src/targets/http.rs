//! Answers of a web server.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;
use stratus_store::{RetryPolicy, Store};

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target {
    name: "http",
    run,
    seeds: seeds::http,
    dictionary: &[
        "HTTP/1.1 200 OK\\x0d\\x0a",
        "HTTP/1.1 206 Partial Content\\x0d\\x0a",
        "Content-Length: ",
        "Content-Range: bytes 0-0/",
        "Transfer-Encoding: chunked\\x0d\\x0a",
        "Location: ",
        "Retry-After: ",
        "ETag: ",
        "Last-Modified: ",
        "Content-Encoding: gzip\\x0d\\x0a",
        "\\x0d\\x0a\\x0d\\x0a",
    ],
    max_bytes: 65536,
};

fn run(data: &[u8]) {
    let Some(store) = store() else { return };
    if let Ok(mut answer) = ANSWER.lock() {
        answer.clear();
        answer.extend_from_slice(data);
    }
    let _ = store.size("file");
    let _ = store.read("file", 1 << 20);
    let _ = store.read_at("file", 3, &mut [0; 5]);
}

/// The bytes that the server sends to every request.
static ANSWER: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// The store of a server that sends [`ANSWER`]; it fails without a retry.
fn store() -> Option<&'static Store> {
    static STORE: OnceLock<Option<Store>> = OnceLock::new();
    let open = || {
        let listener = TcpListener::bind("127.0.0.1:0").ok()?;
        let address = format!("http://{}/", listener.local_addr().ok()?);
        std::thread::spawn(move || listener.incoming().flatten().for_each(serve));
        let policy = RetryPolicy {
            idle_timeout: Duration::from_secs(1),
            give_up_after: Duration::ZERO,
            first_delay: Duration::ZERO,
            max_delay: Duration::ZERO,
        };
        Store::open_with_policy(&address, policy).ok()
    };
    STORE.get_or_init(open).as_ref()
}

fn serve(mut client: TcpStream) {
    let mut request = [0; 4096];
    let _ = client.read(&mut request);
    let answer = ANSWER.lock().map(|answer| answer.clone()).unwrap_or_default();
    // The client may have closed the connection.
    let _ = client.write_all(&answer);
}
