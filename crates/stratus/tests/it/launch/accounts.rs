//! Accounts whose shell prints additional output or is not a Bourne shell. A stand-in for `ssh` passes the
//! line to that shell as `sshd` does.

use super::{launch, replace_program, target, text, train_locally, wait_for_end};
use crate::common::{RunResult, TestDir};
use std::process::Command;

/// Replaces `ssh` by an account with a shell that runs `before` at its start and `after` at its end.
fn account(dir: &mut TestDir, shell: &str, before: &str, after: &str) {
    let script = format!(
        "while [ $# -gt 0 ]; do\n  case $1 in\n    -F | -o | -p | -l) shift 2 ;;\n    -O) exit 0 ;;\n    \
         --) shift; break ;;\n    *) shift ;;\n  esac\ndone\nshift\n{before}\n{shell} -c \"$1\"\n\
         code=$?\n{after}\nexit \"$code\""
    );
    replace_program(dir, "ssh", &script);
}

/// Launches, waits, fetches and compares with a local run.
fn check(dir: &TestDir, name: &str) {
    let launched = launch(dir, "lab", 1, &[]);
    assert_eq!(wait_for_end(dir), ["completed"], "{name}");
    let logs = dir.run(&["launch", "logs"]).expect(0).out;
    assert!(logs.contains("epoch") && !logs.contains("Welcome") && !logs.contains("Good bye"), "{logs}");
    let run = launched["runs"][0].as_str().unwrap();
    dir.run(&["launch", "fetch"]).expect(0);
    assert_eq!(RunResult::read(&dir.path(run)), train_locally(dir, "near", 1, 7), "{name}");
    let again: serde_json::Value =
        serde_json::from_str(&dir.run(&["launch", "fetch", "--json"]).expect(0).out).unwrap();
    assert!(!again.to_string().contains("\"changing\":1"), "{again}");
    let stopped = dir.run(&["launch", "stop", text(&launched, "id")]).expect(0);
    assert!(!stopped.err.contains("Welcome"), "{}", stopped.err);
}

#[test]
fn launches_on_an_account_that_prints_greetings() {
    let mut dir = TestDir::new();
    target(&dir, "lab", "kind = \"ssh\"\nhost = \"lab\"", "there");
    let greeting = "printf 'Welcome to lab\\n12 users'; head -c 100000 /dev/zero; echo Welcome >&2";
    account(&mut dir, "sh", greeting, "echo Good bye; echo Good bye >&2");
    check(&dir, "an account that greets");
}

#[test]
fn launches_on_an_account_with_tcsh() {
    if let Err(error) = Command::new("tcsh").args(["-f", "-c", "true"]).output() {
        eprintln!("SKIPPED: cannot start tcsh: {error}");
        return;
    }
    let mut dir = TestDir::new();
    target(&dir, "lab", "kind = \"ssh\"\nhost = \"lab\"", "there");
    account(&mut dir, "tcsh", "printf 'Welcome\\n'", "");
    check(&dir, "an account with tcsh");
}

#[test]
fn account_that_runs_no_script_is_rejected_before_training() {
    let mut dir = TestDir::new();
    target(&dir, "lab", "kind = \"ssh\"\nhost = \"lab\"", "there");
    account(&mut dir, "sh", "echo This account is not available; exit 1", "");
    let data = format!("data.path={}", crate::common::digits().display());
    let message = dir.run(&["launch", "lab", "digits", "--set", &data]).expect(1).err;
    let expected = "error: lab: the account's shell does not run scripts: This account is not available";
    assert!(message.contains(expected) && message.contains("hint: "), "{message}");
    assert!(!dir.path("runs").exists() && !dir.path("there").exists());
}
