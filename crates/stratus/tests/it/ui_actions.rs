//! `stratus ui` stops and continues real trainings.
#![cfg(feature = "ui")]

use crate::common::{PER_EPOCH, RunResult, TestDir, summary, train_arguments};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const EPOCHS: u32 = 4;

/// A server as a process.
struct Ui {
    process: Child,
    host: String,
}

impl Ui {
    fn start(dir: &TestDir) -> Self {
        let mut command = dir.command(&["ui", "--port", "0"]);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let host = line.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
        Self { process, host }
    }

    /// The status and the body of an answer.
    fn request(&self, head: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        let length = body.len();
        write!(
            stream,
            "{head}Host: {}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}",
            self.host
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    fn row(&self) -> Value {
        let (_, body) = self.request("GET /api/runs HTTP/1.1\r\n", "");
        serde_json::from_str::<Value>(&body).unwrap()["runs"][0].clone()
    }

    /// The row of the only run once it fulfils a condition.
    fn row_when(&self, condition: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..3000 {
            let row = self.row();
            if condition(&row) {
                return row;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("{}", self.row());
    }

    /// Acts on the only run, as its page does.
    fn act(&self, action: &str, state: &str) -> (u16, String) {
        let (_, page) = self.request("GET / HTTP/1.1\r\n", "");
        let token = page.split_once("name=\"stratus-page\" content=\"").unwrap().1.split('"').next().unwrap();
        let id = self.row()["id"].as_str().unwrap().to_owned();
        let head = format!(
            "POST /api/runs/{id}/{action} HTTP/1.1\r\nOrigin: http://{}\r\nContent-Type: \
             application/json\r\nX-Stratus-Page: {token}\r\n",
            self.host
        );
        self.request(&head, &format!("{{\"state\":\"{state}\"}}"))
    }

    fn end(mut self) {
        let ended =
            Command::new("kill").args(["-s", "INT", &self.process.id().to_string()]).status().unwrap();
        assert!(ended.success() && self.process.wait().unwrap().success());
    }
}

/// A training is stopped with a checkpoint, continued by a process of its own that outlives the server, and
/// has the result of one that was never stopped.
#[test]
fn stopped_and_continued_trainings_have_the_same_result() {
    let dir = TestDir::new();
    dir.train("whole", EPOCHS, &[]).expect(0);
    let run = dir.path("runs/digits/1");
    let mut command = dir.command(&[]);
    command.args(train_arguments("runs/digits/1", EPOCHS, &[]));
    let log = File::create(dir.path("log")).unwrap();
    let mut training = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
    while !run.join("experiment.toml").exists() {
        assert!(training.try_wait().unwrap().is_none(), "it ended early");
        std::thread::sleep(Duration::from_millis(5));
    }
    let ui = Ui::start(&dir);
    ui.row_when(|row| row["offer"]["kind"] == "stop" && row["iteration"].as_u64().is_some_and(|at| at > 5));
    let (status, answer) = ui.act("stop", "running");
    let messages = || fs::read_to_string(dir.path("log")).unwrap();
    let code = training.wait().unwrap().code();
    // It may have completed in the meantime.
    assert!(status == 202 || code == Some(0), "{status} {answer}");
    assert_eq!(code, Some(75), "{}", messages());
    let done = summary(&run)["iterations"].as_u64().unwrap();
    assert!(0 < done && done < u64::from(EPOCHS) * PER_EPOCH as u64);
    assert!(run.join(format!("checkpoints/{done:010}/manifest.json")).is_file());
    let row = ui.row_when(|row| row["state"] == "interrupted" && row["action"]["text"] == "stopped");
    assert_eq!(row["offer"]["kind"], "continue");
    let (status, answer) = ui.act("stop", "running");
    assert_eq!((status, answer.as_str()), (409, "{\"error\":\"the run is interrupted by now\"}"));

    let (status, answer) = ui.act("continue", "interrupted");
    assert_eq!(status, 202, "{answer}");
    // A second press while it starts.
    let (status, _) = ui.act("continue", "interrupted");
    assert_eq!(status, 409);
    let row = ui.row_when(|row| row["state"] == "running" || row["state"] == "completed");
    assert!(row["action"]["stage"] != "failed", "{row}");
    ui.end();
    let status = || summary(&run)["status"].as_str().map(str::to_owned);
    for _ in 0..3000 {
        if status().as_deref() == Some("completed") {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(RunResult::read(&run), RunResult::read(&dir.path("whole")));
    assert_eq!(summary(&run)["resumed"], 1);
    let log = fs::read_to_string(run.join("log.txt")).unwrap();
    assert!(log.contains("resum"), "{log}");
}

/// Nothing is lost when the data is gone: the row says why the run cannot be continued.
#[test]
fn the_error_of_a_continuation_is_shown() {
    let dir = TestDir::new();
    dir.train("runs/digits/1", 2, &["--until-epoch", "1"]).expect(0);
    let experiment = dir.path("runs/digits/1/experiment.toml");
    let text = fs::read_to_string(&experiment).unwrap();
    let ui = Ui::start(&dir);
    fs::write(&experiment, text.replace(crate::common::digits().to_str().unwrap(), "/no/such/data")).unwrap();
    ui.row_when(|row| row["offer"]["kind"] == "continue");
    let (status, answer) = ui.act("continue", "interrupted");
    assert_eq!(status, 202, "{answer}");
    let row = ui.row_when(|row| row["action"]["stage"] == "failed");
    assert!(row["action"]["text"].as_str().unwrap().contains("/no/such/data"), "{row}");
    ui.end();
}
