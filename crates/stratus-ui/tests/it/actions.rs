//! Actions on runs: what permits them, and what is refused. Real trainings are stopped and continued by the
//! tests of the program.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use stratus_launch::LaunchRecord;
use stratus_run::lock::Lock;
use stratus_run::remote::RemoteRun;
use stratus_run::summary::Status;

use crate::common::{Answer, MadeRun, Running, make};

/// A request that acts, with one of its headers replaced, or removed if the value is empty.
fn post_with(server: &Running, target: &str, name: &'static str, value: &str) -> Answer {
    let mut headers = server.action_headers();
    headers.retain(|(known, _)| *known != name);
    if !value.is_empty() {
        headers.push((name, value.to_owned()));
    }
    server.post(target, &headers, "{\"state\":\"interrupted\"}")
}

/// The reason in an answer.
fn reason(answer: &Answer) -> String {
    let document: Value = serde_json::from_str(&answer.body).unwrap_or_else(|_| panic!("{answer:?}"));
    document["error"].as_str().unwrap_or_else(|| panic!("{answer:?}")).to_owned()
}

/// The row of a run once it fulfils a condition.
fn row_when(server: &Running, label: &str, condition: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..600 {
        let runs = server.json("/api/runs");
        let row = runs["runs"].as_array().unwrap().iter().find(|row| row["label"] == label).cloned();
        if let Some(row) = row.filter(|row| condition(row)) {
            return row;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{}", server.json("/api/runs"));
}

/// A process that holds the lock of a run like a training, and writes the summary of a stopped one on
/// SIGTERM.
fn trainer(run: &Path) -> Child {
    let script = "trap 'sed -i s/running/interrupted/ \"$0/summary.json\"; exit 75' TERM; \
                  exec 9<>\"$0/run.lock\"; flock 9; echo $$ >\"$0/run.lock\"; touch \"$0.held\"; \
                  while :; do sleep 0.05 9>&-; done";
    let mut command = Command::new("bash");
    let mut child =
        command.args(["-c", script]).arg(run).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !run.with_extension("held").exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended early");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

#[test]
fn only_a_page_of_this_server_may_act() {
    let root = tempfile::tempdir().unwrap();
    make(root.path(), &MadeRun { status: Status::Interrupted, ..MadeRun::default() });
    let server = Running::with_program(root.path(), "127.0.0.1", Some("/bin/false"));
    let target = format!("/api/runs/{}/continue", server.id("digits/1"));
    let other_token = "0".repeat(64);
    let https = format!("https://{}", server.address);
    let other_port = format!("http://127.0.0.1:{}", server.address.port() ^ 1);
    for (name, value, status) in [
        ("Origin", "", 403),
        ("Origin", "null", 403),
        ("Origin", "http://evil.example", 403),
        ("Origin", &https, 403),
        ("Origin", &other_port, 403),
        ("Host", "evil.example", 403),
        ("Content-Type", "", 415),
        ("Content-Type", "text/plain", 415),
        ("Content-Type", "application/x-www-form-urlencoded", 415),
        ("Content-Type", "multipart/form-data; boundary=application/json", 415),
        ("X-Stratus-Page", "", 403),
        ("X-Stratus-Page", &other_token, 403),
        ("Sec-Fetch-Site", "cross-site", 403),
        ("Sec-Fetch-Site", "same-site", 403),
        ("Sec-Fetch-Site", "none", 403),
    ] {
        let answer = post_with(&server, &target, name, value);
        assert_eq!(answer.status, status, "{name}: {value}: {answer:?}");
        assert!(!reason(&answer).is_empty());
    }
    // Two origins, of which one is right.
    let mut headers = server.action_headers();
    headers.push(("Origin", "http://evil.example".to_owned()));
    assert_eq!(server.post(&target, &headers, "{\"state\":\"interrupted\"}").status, 403);
    for (body, status) in [
        (String::new(), 400),
        ("{}".to_owned(), 400),
        ("[]".to_owned(), 400),
        ("{\"state\":7}".to_owned(), 400),
        ("{\"state\":\"interrupted\",\"more\":1}".to_owned(), 400),
        ("\u{0}".to_owned(), 400),
        (format!("{{\"state\":\"{}\"}}", "x".repeat(2000)), 413),
    ] {
        let answer = server.post(&target, &server.action_headers(), &body);
        assert_eq!(answer.status, status, "{body}: {answer:?}");
    }
    // A body without a length.
    let mut head = format!("POST {target} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n");
    server.action_headers().iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    assert_eq!(server.raw(&format!("{head}\r\n2\r\n{{}}\r\n0\r\n\r\n")).status, 413);
    for target in ["/api/runs/0123456789abcdef/stop", "/api/runs/..%2f..%2fetc/stop", "/api/runs/x/continue"]
    {
        let answer = server.post(target, &server.action_headers(), "{\"state\":\"running\"}");
        assert_eq!(answer.status, 404, "{target}: {answer:?}");
    }
    for target in ["/", "/api/runs", "/run/x/stop", "/api/runs//../stopp"] {
        assert_eq!(server.post(target, &server.action_headers(), "{}").status, 405, "{target}");
    }
    for method in ["GET", "PUT", "DELETE"] {
        assert_eq!(server.request(method, &target, &[("Host", &server.address.to_string())]).status, 405);
    }
    // Nothing of that did anything; the right request does.
    assert!(server.json("/api/runs")["runs"][0]["action"].is_null());
    let answer = server.post(&target, &server.action_headers(), "{\"state\":\"interrupted\"}");
    assert_eq!(answer.status, 202, "{answer:?}");
}

#[test]
fn read_only_servers_refuse_and_offer_nothing() {
    let root = tempfile::tempdir().unwrap();
    make(root.path(), &MadeRun { status: Status::Interrupted, ..MadeRun::default() });
    let acting = Running::with_program(root.path(), "127.0.0.1", Some("/bin/false"));
    let mut headers = acting.action_headers();
    let server = Running::start(root.path());
    let id = server.id("digits/1");
    headers[0].1 = server.address.to_string();
    headers[1].1 = format!("http://{}", server.address);
    for action in ["stop", "continue"] {
        let target = format!("/api/runs/{id}/{action}");
        let answer = server.post(&target, &headers, "{\"state\":\"interrupted\"}");
        assert_eq!(answer.status, 403);
        assert!(reason(&answer).contains("--read-only"), "{answer:?}");
    }
    assert!(!server.get("/").body.contains("stratus-page"));
    assert!(!server.get(&format!("/run/{id}")).body.contains("stratus-page"));
    assert_eq!(server.json("/api/runs")["runs"][0]["offer"], serde_json::json!({}));
    // The token of one server is not that of another.
    let other = Running::with_program(root.path(), "127.0.0.1", Some("/bin/false"));
    headers[0].1 = other.address.to_string();
    headers[1].1 = format!("http://{}", other.address);
    let answer = other.post(&format!("/api/runs/{id}/continue"), &headers, "{\"state\":\"interrupted\"}");
    assert_eq!(answer.status, 403);
    assert!(reason(&answer).contains("reload it"), "{answer:?}");
}

#[test]
fn other_machines_need_the_token_for_actions_too() {
    let root = tempfile::tempdir().unwrap();
    make(root.path(), &MadeRun { status: Status::Interrupted, ..MadeRun::default() });
    let server = Running::with_program(root.path(), "0.0.0.0", Some("/bin/false"));
    let token = server.url.split_once("?token=").unwrap().1;
    let cookie = server.get(&format!("/?token={token}")).header("set-cookie").to_owned();
    let pair = cookie.split(';').next().unwrap();
    let page = server.get_with("/", &[("Cookie", pair)]).body;
    let page_token =
        page.split_once("name=\"stratus-page\" content=\"").unwrap().1.split('"').next().unwrap();
    let runs = server.get_with("/api/runs", &[("Cookie", pair)]).body;
    let runs: Value = serde_json::from_str(&runs).unwrap();
    let target = format!("/api/runs/{}/continue", runs["runs"][0]["id"].as_str().unwrap());
    let mut headers = vec![
        ("Host", server.address.to_string()),
        ("Origin", format!("http://{}", server.address)),
        ("Content-Type", "application/json".to_owned()),
        ("X-Stratus-Page", page_token.to_owned()),
    ];
    let answer = server.post(&target, &headers, "{\"state\":\"interrupted\"}");
    assert_eq!(answer.status, 403, "{answer:?}");
    assert!(reason(&answer).contains("token"), "{answer:?}");
    headers.push(("Cookie", pair.to_owned()));
    assert_eq!(server.post(&target, &headers, "{\"state\":\"interrupted\"}").status, 202);
}

#[test]
fn a_training_is_stopped_once_and_the_row_tells_it() {
    let root = tempfile::tempdir().unwrap();
    let run = make(root.path(), &MadeRun { status: Status::Running, ..MadeRun::default() });
    let mut training = trainer(&run);
    let server = Running::with_program(root.path(), "127.0.0.1", Some("/bin/false"));
    let row = row_when(&server, "digits/1", |row| row["offer"]["kind"] == "stop");
    assert_eq!(row["state"], "running");
    let stop = format!("/api/runs/{}/stop", server.id("digits/1"));
    let resume = format!("/api/runs/{}/continue", server.id("digits/1"));
    let refused = server.post(&resume, &server.action_headers(), "{\"state\":\"running\"}");
    assert_eq!(
        (refused.status, reason(&refused).as_str()),
        (409, "a run that is running cannot be continued")
    );
    let refused = server.post(&stop, &server.action_headers(), "{\"state\":\"interrupted\"}");
    assert_eq!((refused.status, reason(&refused).as_str()), (409, "the run is running by now"));
    let accepted = server.post(&stop, &server.action_headers(), "{\"state\":\"running\"}");
    assert_eq!(accepted.status, 202, "{accepted:?}");
    assert_eq!(training.wait().unwrap().code(), Some(75));
    let row = row_when(&server, "digits/1", |row| row["state"] == "interrupted" && !row["action"].is_null());
    assert_eq!(row["action"], serde_json::json!({ "stage": "done", "text": "stopped" }));
    // A page that has not seen it.
    let late = server.post(&stop, &server.action_headers(), "{\"state\":\"running\"}");
    assert_eq!((late.status, reason(&late).as_str()), (409, "the run is interrupted by now"));
    assert!(row["offer"]["kind"] == "continue", "{row}");
}

/// The lock is held, but the process in the file is another one, as for a run on a shared disk.
#[test]
fn a_run_of_another_host_is_not_stopped() {
    let root = tempfile::tempdir().unwrap();
    let run = make(root.path(), &MadeRun { status: Status::Running, ..MadeRun::default() });
    let lock = Lock::acquire(&run).unwrap();
    let mut bystander = Command::new("sleep").arg("60").spawn().unwrap();
    fs::write(run.join("run.lock"), bystander.id().to_string()).unwrap();
    fs::write(run.join("machine.json"), "{\"host\": \"node<script>7\"}").unwrap();
    let server = Running::with_program(root.path(), "127.0.0.1", Some("/bin/false"));
    let row = row_when(&server, "digits/1", |row| !row["offer"]["refusal"].is_null());
    assert_eq!(row["offer"]["refusal"], "it is trained on node<script>7: stop it there");
    assert!(row["offer"]["kind"].is_null());
    let stop = format!("/api/runs/{}/stop", server.id("digits/1"));
    let refused = server.post(&stop, &server.action_headers(), "{\"state\":\"running\"}");
    assert_eq!(
        (refused.status, reason(&refused)),
        (409, row["offer"]["refusal"].as_str().unwrap().to_owned())
    );
    assert!(bystander.try_wait().unwrap().is_none(), "no signal was sent");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    drop(lock);
    // The lock of another host may be invisible: a run whose files just changed is not continued.
    let row = row_when(&server, "digits/1", |row| row["state"] == "interrupted");
    let refusal = row["offer"]["refusal"].as_str().unwrap();
    assert_eq!(refusal, "node<script>7 wrote its files a moment ago, and may still train it");
}

#[test]
fn a_run_of_a_launch_is_stopped_by_the_launch() {
    let root = tempfile::tempdir().unwrap();
    let made = MadeRun { path: "runs/digits/1", status: Status::Running, ..MadeRun::default() };
    let run = make(root.path(), &made);
    let remote = |launch: &str, status: &str| RemoteRun {
        launch: launch.to_owned(),
        target: "lab".to_owned(),
        status: status.to_owned(),
        ..RemoteRun::default()
    };
    remote("digits-1", "running").write(&run.join("remote.json")).unwrap();
    // A program that tells how it was called, and where.
    let program = root.path().join("program");
    fs::write(
        &program,
        "#!/bin/sh\necho \"$PWD: $*\" >\"${0%/*}/called\"; echo \"error: lab is away\" >&2; exit 1\n",
    )
    .unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&program, mode).unwrap();
    let server = Running::with_program(root.path(), "127.0.0.1", program.to_str());
    let label = "runs/digits/1";
    let row = row_when(&server, label, |row| !row["offer"]["refusal"].is_null());
    assert_eq!(row["offer"]["refusal"], "it belongs to the launch digits-1, which you did not start here");
    let mut record = LaunchRecord { id: "digits-1".to_owned(), ..LaunchRecord::default() };
    record.runs = vec!["runs/digits/2".into(), "runs/other/1".into()];
    record.write(&root.path().join("runs")).unwrap();
    let row = row_when(&server, label, |row| row["offer"]["kind"] == "stop");
    assert_eq!(row["offer"]["launch"], "digits-1");
    let stop = format!("/api/runs/{}/stop", server.id(label));
    // A run that only claims to belong to a launch does not stop the runs of the launch.
    let refused = server.post(&stop, &server.action_headers(), "{\"state\":\"running\"}");
    assert_eq!(
        (refused.status, reason(&refused).as_str()),
        (409, "the launch digits-1 does not list this run")
    );
    assert!(!root.path().join("called").exists());
    record.runs.push(label.into());
    record.write(&root.path().join("runs")).unwrap();
    assert_eq!(server.post(&stop, &server.action_headers(), "{\"state\":\"running\"}").status, 202);
    let row = row_when(&server, label, |row| row["action"]["stage"] == "failed");
    assert_eq!(row["action"]["text"], "lab is away");
    let called = fs::read_to_string(root.path().join("called")).unwrap();
    let folder = root.path().canonicalize().unwrap();
    assert_eq!(called, format!("{}: launch stop digits-1\n", folder.display()));
    // A name that is an option, or a path.
    for launch in ["--help", "../x", ""] {
        remote(launch, "running").write(&run.join("remote.json")).unwrap();
        let row = row_when(&server, label, |row| row["offer"]["kind"].is_null());
        assert_eq!(row["offer"]["refusal"], "the name of its launch is not valid", "{launch}");
        remote("digits-1", "running").write(&run.join("remote.json")).unwrap();
        row_when(&server, label, |row| row["offer"]["kind"] == "stop");
    }
    remote("digits-1", "interrupted").write(&run.join("remote.json")).unwrap();
    let row = row_when(&server, label, |row| row["state"] == "interrupted");
    let refusal = row["offer"]["refusal"].as_str().unwrap();
    assert_eq!(refusal, "it belongs to a launch: `stratus launch resume digits-1` continues it");
}

#[test]
fn a_continuation_that_fails_says_why_in_the_row() {
    let root = tempfile::tempdir().unwrap();
    make(root.path(), &MadeRun { status: Status::Interrupted, ..MadeRun::default() });
    let server = Running::with_program(root.path(), "127.0.0.1", Some("/bin/false"));
    let target = format!("/api/runs/{}/continue", server.id("digits/1"));
    let accepted = server.post(&target, &server.action_headers(), "{\"state\":\"interrupted\"}");
    assert_eq!(accepted.status, 202, "{accepted:?}");
    let row = row_when(&server, "digits/1", |row| row["action"]["stage"] == "failed");
    assert!(row["action"]["text"].as_str().unwrap().contains("exit status: 1"), "{row}");
    assert_eq!(row["offer"]["kind"], "continue", "it can be tried again");
    // A program that does not exist.
    let server = Running::with_program(root.path(), "127.0.0.1", Some("/no/such/program"));
    let target = format!("/api/runs/{}/continue", server.id("digits/1"));
    let refused = server.post(&target, &server.action_headers(), "{\"state\":\"interrupted\"}");
    assert_eq!(refused.status, 409);
    assert!(reason(&refused).contains("cannot start the process"), "{refused:?}");
}

#[test]
fn a_run_in_a_directory_of_another_user_is_not_continued() {
    let root = tempfile::tempdir().unwrap();
    let run = make(root.path(), &MadeRun { status: Status::Interrupted, ..MadeRun::default() });
    if std::os::unix::fs::chown(&run, Some(1), None).is_err() {
        eprintln!("SKIPPED: only the superuser can give a directory to another user");
        return;
    }
    let server = Running::with_program(root.path(), "127.0.0.1", Some("/bin/false"));
    let row = row_when(&server, "digits/1", |row| !row["offer"]["refusal"].is_null());
    assert_eq!(row["offer"]["refusal"], "its directory belongs to another user");
    let target = format!("/api/runs/{}/continue", server.id("digits/1"));
    let refused = server.post(&target, &server.action_headers(), "{\"state\":\"interrupted\"}");
    assert_eq!((refused.status, reason(&refused).as_str()), (409, "its directory belongs to another user"));
}

#[test]
fn runs_of_sweeps_are_continued_by_the_sweep() {
    let root = tempfile::tempdir().unwrap();
    let made = MadeRun { path: "batch/runs/1/1", status: Status::Interrupted, ..MadeRun::default() };
    make(root.path(), &made);
    fs::write(root.path().join("batch/sweep.toml"), "").unwrap();
    let server = Running::with_program(root.path(), "127.0.0.1", Some("/bin/false"));
    let row = row_when(&server, "batch/runs/1/1", |row| !row["offer"]["refusal"].is_null());
    assert!(row["offer"]["refusal"].as_str().unwrap().contains("it belongs to a sweep"), "{row}");
}
