//! `stratus ui` on its command line: the address, a port in use, Ctrl-C.
#![cfg(feature = "ui")]

use crate::common::TestDir;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

/// Starts the server; returns it with the first line of its output.
fn start(dir: &TestDir, arguments: &[&str]) -> (Child, String) {
    let mut command = dir.command(&[&["ui"], arguments].concat());
    let mut server = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (server, line)
}

/// Interrupts the server; returns its exit code and its messages.
fn interrupt(mut server: Child) -> (Option<i32>, String) {
    assert!(Command::new("kill").args(["-s", "INT", &server.id().to_string()]).status().unwrap().success());
    let mut messages = String::new();
    server.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
    (server.wait().unwrap().code(), messages)
}

/// The body of the answer to a request for an address like `http://127.0.0.1:6174/`.
fn get(url: &str, path: &str) -> String {
    let host = url.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

#[test]
fn serves_runs_until_interrupted_and_writes_nothing() {
    let dir = TestDir::new();
    dir.train("runs/digits/1", 1, &[]).expect(0);
    let files = || {
        let mut names: Vec<_> = fs::read_dir(dir.path("runs/digits/1")).unwrap().flatten().collect();
        names.sort_by_key(fs::DirEntry::file_name);
        names
            .iter()
            .map(|file| (file.path(), file.metadata().unwrap().modified().unwrap()))
            .collect::<Vec<_>>()
    };
    let before = files();
    let (server, line) = start(&dir, &["--port", "0", "--read-only"]);
    let url = line.trim();
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    let list: serde_json::Value = serde_json::from_str(&get(url, "/api/runs")).unwrap();
    let run = &list["runs"][0];
    assert_eq!((run["label"].as_str(), run["state"].as_str()), (Some("digits/1"), Some("completed")));
    let page = get(url, &format!("/run/{}", run["id"].as_str().unwrap()));
    assert!(page.contains("digits on mnist") && page.contains("Per layer"), "{page}");
    let (code, messages) = interrupt(server);
    assert_eq!((code, messages.as_str()), (Some(0), "press Ctrl-C to stop\n"));
    assert_eq!(files(), before);
}

#[test]
fn port_in_use_is_reported_and_json_is_one_document() {
    let dir = TestDir::new();
    fs::create_dir(dir.path("runs")).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let (server, line) = start(&dir, &["runs", "--port", &port.to_string(), "--json"]);
    let (code, messages) = interrupt(server);
    assert_eq!(code, Some(0));
    assert!(messages.contains(&format!("warning: port {port} is in use; using port ")), "{messages}");
    assert!(line.starts_with('{'), "{line}");
}

#[test]
fn missing_folders_and_hosts_are_refused() {
    let dir = TestDir::new();
    let ran = dir.run(&["ui", "nowhere"]).expect(2);
    assert!(ran.err.contains("nowhere does not exist"), "{}", ran.err);
    let ran = dir.run(&["ui", "--host", "192.0.2.1"]).expect(1);
    assert!(ran.err.contains("cannot listen on 192.0.2.1:6174"), "{}", ran.err);
    assert!(ran.err.contains("--port and --host"), "{}", ran.err);
    dir.run(&["ui", "--port", "70000"]).expect(2);
}

#[test]
fn forecasts_of_the_page_are_those_of_the_command() {
    let dir = TestDir::new();
    // Without a data set, nothing is measured, so that numbers are the same each time.
    let common = ["--images", "50000", "--epochs", "3"];
    let (server, line) = start(&dir, &["--port", "0"]);
    let url = line.trim();
    for (name, query, arguments) in [
        ("resnet50", "&batch=16,64", &["--batch", "16,64"][..]),
        ("vgg16", "&objective=budget%3D0.01", &["--objective", "budget=0.01"][..]),
        (
            "resnet50",
            "&precision=f32&objective=fastest",
            &["--set", "train.precision=f32", "--objective", "fastest"],
        ),
    ] {
        let address = format!("/api/forecast?experiment={name}&images=50000&epochs=3{query}");
        let answer = get(url, &address);
        let page: serde_json::Value =
            serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{address}: {error}: {answer}"));
        let words = [&["forecast", name], &common[..], arguments].concat();
        let command = dir.run(&[&words[..], &["--json"]].concat()).expect(0).out;
        let command: serde_json::Value = serde_json::from_str(&command).unwrap();
        assert_eq!(page["forecast"], command, "{address}");
        assert!(command["machines"].as_array().unwrap().len() > 20, "{command}");
        // So are the words of the choice, which a terminal may wrap.
        let text = dir.run(&words).expect(0).out;
        let unwrapped = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let choice = page["choice"].as_str().unwrap();
        assert!(!choice.is_empty() && unwrapped(&text).contains(&unwrapped(choice)), "{choice} in {text}");
        let reasons = page["reasons"].as_array().unwrap();
        assert_eq!(reasons.len(), command["machines"].as_array().unwrap().len());
        // The command that the page names computes the same.
        let named: Vec<&str> = page["command"].as_str().unwrap().split(' ').skip(1).collect();
        let again = dir.run(&[&named[..], &["--json"]].concat()).expect(0).out;
        assert_eq!(serde_json::from_str::<serde_json::Value>(&again).unwrap(), command);
    }
    interrupt(server);
}

#[test]
fn sweeps_are_served_beside_runs_without_folders() {
    let dir = TestDir::new();
    let sweep = dir.path("sweeps/batch");
    fs::create_dir_all(&sweep).unwrap();
    let text = "[model]\nname = \"digits\"\n[sweep.keys]\n\"train.batch_size\" = [32, 64]\n";
    fs::write(sweep.join("sweep.toml"), text).unwrap();
    let table = "cell,repetition,status,reason,run,train.batch_size\n1,1,waiting,,,32\n2,1,waiting,,,64\n";
    fs::write(sweep.join("cells.csv"), table).unwrap();
    let (server, line) = start(&dir, &["--port", "0"]);
    let list: serde_json::Value = serde_json::from_str(&get(line.trim(), "/api/sweeps")).unwrap();
    let found = &list["sweeps"][0];
    assert_eq!((found["label"].as_str(), found["problem"].as_str()), (Some("sweeps/batch"), None), "{list}");
    assert_eq!(found["statuses"]["waiting"], 2);
    interrupt(server);
}
