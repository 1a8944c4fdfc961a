//! `stratus infer RUN -`, used by another program through pipes.

#![cfg(target_os = "linux")]

mod masks;
mod names;

use crate::common::{TestDir, streets, tiny};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The time after which an answer counts as missing. No test passes or fails by a shorter time.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A running `stratus infer`, and the pipes to it.
struct Streaming {
    child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
    messages: Option<JoinHandle<String>>,
}

/// The output of a stream that has ended.
struct StreamOutput {
    code: Option<i32>,
    /// The answers that were not read before.
    answers: Vec<String>,
    err: String,
}

impl Streaming {
    fn start(dir: &TestDir, arguments: &[&str]) -> Self {
        Self::spawn(dir.command(&[&["infer"], arguments].concat()))
    }

    fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, answers) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            for line in output.split(b'\n') {
                // An answer is UTF-8 whatever the names are.
                if sender.send(String::from_utf8(line.unwrap()).unwrap()).is_err() {
                    return;
                }
            }
        });
        let mut messages = child.stderr.take().unwrap();
        let messages = thread::spawn(move || {
            let mut text = String::new();
            messages.read_to_string(&mut text).unwrap();
            text
        });
        Self { input: child.stdin.take(), child, answers, messages: Some(messages) }
    }

    fn write(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().unwrap();
        input.write_all(bytes).unwrap();
        input.flush().unwrap();
    }

    /// Waits for the next answer.
    fn answer(&mut self) -> String {
        match self.answers.recv_timeout(TIMEOUT) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => panic!("no answer"),
            Err(RecvTimeoutError::Disconnected) => {
                panic!("ended: {}", self.messages.take().unwrap().join().unwrap())
            }
        }
    }

    /// Writes a line and waits for its answer.
    fn ask(&mut self, name: &str) -> String {
        self.write(format!("{name}\n").as_bytes());
        self.answer()
    }

    fn ask_json(&mut self, name: &str) -> Value {
        serde_json::from_str(&self.ask(name)).unwrap()
    }

    /// Closes the input, and waits for the end.
    fn end(mut self) -> StreamOutput {
        self.input = None;
        self.wait()
    }

    /// Waits for the end.
    fn wait(mut self) -> StreamOutput {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(started.elapsed() < TIMEOUT, "does not end");
            thread::sleep(Duration::from_millis(5));
        };
        let err = self.messages.take().unwrap().join().unwrap();
        assert!(!err.contains("panicked"), "{err}");
        StreamOutput { code: status.code(), answers: self.answers.iter().collect(), err }
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        // Fails if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl StreamOutput {
    fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{:?}\n{}", self.answers, self.err);
        self
    }

    /// The messages with single spaces in place of white space.
    fn words(&self) -> String {
        self.err.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// A folder with a trained classifier in `run`, and images 0.png to 9.png.
fn classifier() -> TestDir {
    let dir = TestDir::without_kernel_cache();
    tiny::write_data(&dir.path("data"));
    fs::write(dir.path("net.toml"), tiny::NET).unwrap();
    let train = tiny::arguments(&["train", "net.toml", "--out", "run"], &["train.epochs=1"]);
    dir.run(&train).expect(0);
    for image in 0..10 {
        let pixels: Vec<u8> =
            (0..144).map(|pixel| if pixel / 12 == image { 200 + pixel as u8 % 50 } else { 9 }).collect();
        let path = dir.path(&format!("{image}.png"));
        streets::write_sized(&path, png::ColorType::Grayscale, &pixels, [12, 12]);
    }
    dir
}
