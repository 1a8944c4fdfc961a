//! Accounts whose shell says more than it is asked, or is no Bourne shell. A stand-in for `ssh` hands the
//! line to that shell as `sshd` does.

use super::{ended, instead, launch, near, target, text};
use crate::common::{Place, Result};
use std::process::Command;

/// Makes the target `lab`, an account with a shell, whose start-up files and end do what is said.
fn account(place: &mut Place, shell: &str, before: &str, after: &str) {
    let script = format!(
        "while [ $# -gt 0 ]; do\n  case $1 in\n    -F | -o | -p | -l) shift 2 ;;\n    -O) exit 0 ;;\n    \
         --) shift; break ;;\n    *) shift ;;\n  esac\ndone\nshift\n{before}\n{shell} -c \"$1\"\n\
         code=$?\n{after}\nexit \"$code\""
    );
    instead(place, "ssh", &script);
}

/// Launches, watches, fetches, and compares with a run here.
fn check(place: &Place, name: &str) {
    let launched = launch(place, "lab", 1, &[]);
    assert_eq!(ended(place), ["completed"], "{name}");
    let logs = place.run(&["launch", "logs"]).expect(0).out;
    assert!(logs.contains("epoch") && !logs.contains("Welcome") && !logs.contains("Good bye"), "{logs}");
    let run = launched["runs"][0].as_str().unwrap();
    place.run(&["launch", "fetch"]).expect(0);
    assert_eq!(Result::of(&place.path(run)), near(place, "near", 1, 7), "{name}");
    let again: serde_json::Value =
        serde_json::from_str(&place.run(&["launch", "fetch", "--json"]).expect(0).out).unwrap();
    assert!(!again.to_string().contains("\"changing\":1"), "{again}");
    let stopped = place.run(&["launch", "stop", text(&launched, "id")]).expect(0);
    assert!(!stopped.err.contains("Welcome"), "{}", stopped.err);
}

#[test]
fn an_account_that_greets_is_launched_on_and_fetched_from() {
    let mut place = Place::new();
    target(&place, "lab", "kind = \"ssh\"\nhost = \"lab\"", "there");
    let greeting = "printf 'Welcome to lab\\n12 users'; head -c 100000 /dev/zero; echo Welcome >&2";
    account(&mut place, "sh", greeting, "echo Good bye; echo Good bye >&2");
    check(&place, "an account that greets");
}

#[test]
fn an_account_whose_shell_is_tcsh_is_launched_on_and_fetched_from() {
    if let Err(error) = Command::new("tcsh").args(["-f", "-c", "true"]).output() {
        eprintln!("SKIPPED: cannot start tcsh: {error}");
        return;
    }
    let mut place = Place::new();
    target(&place, "lab", "kind = \"ssh\"\nhost = \"lab\"", "there");
    account(&mut place, "tcsh", "printf 'Welcome\\n'", "");
    check(&place, "an account with tcsh");
}

#[test]
fn an_account_that_runs_no_script_is_refused_before_anything_is_trained() {
    let mut place = Place::new();
    target(&place, "lab", "kind = \"ssh\"\nhost = \"lab\"", "there");
    account(&mut place, "sh", "echo This account is not available; exit 1", "");
    let data = format!("data.path={}", crate::common::root().join("data/mnist").display());
    let said = place.run(&["launch", "lab", "digits", "--set", &data]).expect(1).err;
    let expected = "error: lab: the account's shell does not run a script: This account is not available";
    assert!(said.contains(expected) && said.contains("hint: "), "{said}");
    assert!(!place.path("runs").exists() && !place.path("there").exists());
}
