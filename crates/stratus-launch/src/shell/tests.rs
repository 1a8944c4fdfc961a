use super::{ScriptExit, Shell, escape_control_characters, run, run_for_text};
use crate::{Error, Result};
use std::io::Read;
use std::process::Command;
use stratus_base::text::shell_quoted;

/// An account as `sshd` serves it: its shell runs the line, and its start-up files may write and read.
struct Account {
    /// The account's shell.
    shell: &'static str,
    /// The commands of the start-up files, for a Bourne shell.
    before: String,
    /// The commands that run after the shell has exited.
    after: String,
}

impl Account {
    fn with_shell(shell: &'static str) -> Self {
        Self { shell, before: String::new(), after: String::new() }
    }

    fn with_commands(before: &str, after: &str) -> Self {
        Self { shell: "sh", before: before.to_owned(), after: after.to_owned() }
    }
}

impl Shell for Account {
    fn name(&self) -> &str {
        "lab"
    }

    fn command(&self, line: &str) -> Result<Command> {
        let mut command = Command::new("sh");
        let script = format!("{}\n{} -c \"$1\"\n{}", self.before, self.shell, self.after);
        command.args(["-c", &script, "sh", line]);
        Ok(command)
    }

    fn connection_error(&self, code: Option<i32>, stderr: &str) -> Option<Error> {
        (code == Some(255)).then(|| Error::target(format!("lab: unreachable: {stderr}"), ""))
    }
}

/// Every byte, several times.
fn bytes() -> Vec<u8> {
    (0..300_000_u32).map(|at| (at ^ at >> 8) as u8).collect()
}

/// Runs scripts with awkward output, input and arguments.
fn check(account: &Account) {
    let arguments = ["a b", "it's", "!x $HOME `id` \\n %s", "", "é\n*"];
    let script = "cat; printf '<%s>' \"$@\"; echo no >&2; exit 9";
    let (ended, answer) = run_for_text(account, script, &arguments, b"in\n").unwrap();
    let expected: String = arguments.iter().map(|argument| format!("<{argument}>")).collect();
    assert_eq!(answer, format!("in\n{expected}"), "{}", account.shell);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(9), "no\n"));
    // `ssh` itself exits with this code if the connection fails.
    assert_eq!(run_for_text(account, "exit 255", &[], b"").unwrap().0.code, Some(255));
    assert_eq!(run_for_text(account, "", &[], b"").unwrap().1, "");

    // Binary input and output, whose end is not read.
    let sent = bytes();
    let receive = |from: &mut dyn Read| {
        let mut received = vec![0; sent.len() - 10];
        from.read_exact(&mut received).unwrap();
        Ok(received)
    };
    let (ended, received) = run(account, "cat", &[], |out| out.write_all(&sent), receive).unwrap();
    assert_eq!(ended.code, Some(0));
    assert!(received == sent[..received.len()], "{}", account.shell);
}

#[test]
fn script_output_is_independent_of_the_account_shell() {
    for shell in ["sh", "dash", "bash", "ksh", "mksh", "zsh", "csh", "tcsh", "fish", "busybox sh"] {
        let program = shell.split(' ').next().unwrap_or_default();
        match Command::new(program).args(["-c", "true"]).output() {
            Ok(_) => check(&Account::with_shell(shell)),
            Err(error) => eprintln!("SKIPPED {shell}: cannot start it: {error}"),
        }
    }
}

/// In single quotes, `csh` ends at a line break and replaces `!`, and `fish` interprets backslashes.
#[test]
fn command_line_has_no_characters_that_shells_read_differently() {
    for bytes in [0, 7, 123_456_789] {
        let line = super::frame::Frame::command_line(bytes);
        let words: Vec<&str> = line.split('\'').collect();
        let [before, word, after] = words[..] else { panic!("{line}") };
        assert!(!word.contains(['\n', '!', '\\']), "{line}");
        let is_plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || " -".contains(c));
        assert!(is_plain(before) && is_plain(after), "{line}");
    }
}

#[test]
fn output_of_start_up_files_is_not_part_of_the_script_output() {
    let binary = "head -c 200000 /dev/zero; printf '\\377\\001'";
    let repeats = "echo \"running: $1\"; echo \"running: $1\" >&2";
    for before in
        ["echo Welcome to lab", "echo 12 users", "printf 'no end'", binary, "echo loud >&2", repeats]
    {
        for after in ["", "echo Good bye", "echo Good bye >&2; exit 3", binary] {
            check(&Account::with_commands(before, after));
        }
    }
}

#[test]
fn rejects_an_account_that_does_not_run_the_script() {
    let error = |before: &str, shell: &'static str| {
        let account = Account { shell, before: before.to_owned(), after: String::new() };
        run_for_text(&account, "echo run", &[], b"input\n").map(|(_, text)| text).unwrap_err().to_string()
    };
    let no = "lab: the account's shell does not run scripts: ";
    assert_eq!(
        error("echo This account is not available; exit 1", "sh"),
        format!("{no}This account is not available")
    );
    assert_eq!(error("exit 0", "sh"), format!("{no}no output"));
    // Start-up files may read the first line of the script; the rest must not run.
    assert_eq!(error("read line", "sh"), format!("{no}the script is incomplete"));
    assert_eq!(error("cat > /dev/null", "sh"), format!("{no}the script is incomplete"));
    assert!(error("echo hello", "no-such-shell").contains("no-such-shell"));
    assert_eq!(
        error("echo Connection refused >&2; exit 255", "sh"),
        "lab: unreachable: Connection refused\n"
    );
}

#[test]
fn truncated_output_is_an_error() {
    let account = Account::with_shell("sh");
    // The shell of the script is killed, so its end mark is missing.
    let (ScriptExit { code, .. }, answer) =
        run_for_text(&account, "echo half; kill -9 $$; sleep 1", &[], b"").unwrap();
    assert_eq!((code, answer.as_str()), (None, "half\n"));
    let lost = Account::with_commands("", "exit 255");
    let error = run_for_text(&lost, "echo half; kill -9 $$; sleep 1", &[], b"").map(drop).unwrap_err();
    assert!(error.to_string().contains("unreachable"), "{error}");
}

#[test]
fn end_of_long_error_output_is_kept() {
    let account = Account::with_commands("head -c 100000 /dev/zero | tr '\\0' w >&2", "");
    let script = "head -c 100000 /dev/zero | tr '\\0' x >&2; echo >&2; echo last >&2; exit 1";
    let (ended, _) = run_for_text(&account, script, &[], b"").unwrap();
    let error = ended.to_error(&account, "do it").to_string();
    assert_eq!(error, "lab: cannot do it: last");
}

#[test]
fn quoted_text_is_one_word() {
    for text in ["", "a b", "it's", "''", "$HOME `id` \\ \"x\" !!", "a\nb\n", "-n", "*?[a]", "é ✓", "#;&|"]
    {
        let line = format!("printf %s {}", shell_quoted(text));
        let out = Command::new("sh").args(["-c", &line]).output().unwrap();
        assert_eq!(String::from_utf8(out.stdout).unwrap(), text);
    }
}

#[test]
fn control_characters_of_a_target_are_escaped() {
    assert_eq!(
        escape_control_characters("a\u{1b}[31mb\r\n\tc\u{202e}d\u{7}"),
        "a\\u{1b}[31mb\n\tc\\u{202e}d\\u{7}"
    );
}

#[test]
fn error_of_tar_is_its_cause_not_the_reference_to_it() {
    let account = Account::with_commands("", "");
    let script = "echo 'tar: a: Cannot open: Read-only file system' >&2
        echo 'tar: Exiting with failure status due to previous errors' >&2; exit 2";
    let (ended, _) = run_for_text(&account, script, &[], b"").unwrap();
    let error = ended.to_error(&account, "do it").to_string();
    assert_eq!(error, "lab: cannot do it: tar: a: Cannot open: Read-only file system");
}
