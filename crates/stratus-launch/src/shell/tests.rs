use super::{Ended, Shell, clean, run, text};
use crate::{Error, Result};
use std::io::Read;
use std::process::Command;
use stratus_base::text::quoted;

/// An account as `sshd` serves it: its shell is handed the line, and its start-up files write and read.
struct Account {
    /// The account's shell.
    shell: &'static str,
    /// The commands of start-up files, for a Bourne shell.
    before: String,
    /// The commands that run when the shell has ended.
    after: String,
}

impl Account {
    fn of(shell: &'static str) -> Self {
        Self { shell, before: String::new(), after: String::new() }
    }

    fn that(before: &str, after: &str) -> Self {
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

    fn unreachable(&self, code: Option<i32>, said: &str) -> Option<Error> {
        (code == Some(255)).then(|| Error::target(format!("lab: out of reach: {said}"), ""))
    }
}

/// Every byte, several times.
fn bytes() -> Vec<u8> {
    (0..300_000_u32).map(|at| (at ^ at >> 8) as u8).collect()
}

/// Runs scripts whose answers, input and arguments are as awkward as they can be.
fn check(account: &Account) {
    let arguments = ["a b", "it's", "!x $HOME `id` \\n %s", "", "é\n*"];
    let script = "cat; printf '<%s>' \"$@\"; echo no >&2; exit 9";
    let (ended, answer) = text(account, script, &arguments, b"in\n").unwrap();
    let expected: String = arguments.iter().map(|argument| format!("<{argument}>")).collect();
    assert_eq!(answer, format!("in\n{expected}"), "{}", account.shell);
    assert_eq!((ended.code, ended.said.as_str()), (Some(9), "no\n"));
    // A code that `ssh` itself ends with where it does not get there.
    assert_eq!(text(account, "exit 255", &[], b"").unwrap().0.code, Some(255));
    assert_eq!(text(account, "", &[], b"").unwrap().1, "");

    // Bytes there and back, of which the end is not read.
    let sent = bytes();
    let taken = |from: &mut dyn Read| {
        let mut came = vec![0; sent.len() - 10];
        from.read_exact(&mut came).unwrap();
        Ok(came)
    };
    let (ended, came) = run(account, "cat", &[], |out| out.write_all(&sent), taken).unwrap();
    assert_eq!(ended.code, Some(0));
    assert!(came == sent[..came.len()], "{}", account.shell);
}

#[test]
fn a_script_says_the_same_whatever_the_shell_of_the_account_is() {
    for shell in ["sh", "dash", "bash", "ksh", "mksh", "zsh", "csh", "tcsh", "fish", "busybox sh"] {
        let program = shell.split(' ').next().unwrap_or_default();
        match Command::new(program).args(["-c", "true"]).output() {
            Ok(_) => check(&Account::of(shell)),
            Err(error) => eprintln!("SKIPPED {shell}: cannot start it: {error}"),
        }
    }
}

/// Reads a word in single quotes as `csh` does, which ends at a line break and replaces `!`, and as `fish`
/// does, where a backslash stands for something: what all read alike has none of these.
#[test]
fn the_line_has_nothing_that_shells_read_differently() {
    for bytes in [0, 7, 123_456_789] {
        let line = super::frame::Frame::line(bytes);
        let words: Vec<&str> = line.split('\'').collect();
        let [before, word, after] = words[..] else { panic!("{line}") };
        assert!(!word.contains(['\n', '!', '\\']), "{line}");
        let is_plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || " -".contains(c));
        assert!(is_plain(before) && is_plain(after), "{line}");
    }
}

#[test]
fn greetings_and_farewells_are_no_part_of_an_answer() {
    let binary = "head -c 200000 /dev/zero; printf '\\377\\001'";
    let repeats = "echo \"running: $1\"; echo \"running: $1\" >&2";
    for before in
        ["echo Welcome to lab", "echo 12 users", "printf 'no end'", binary, "echo loud >&2", repeats]
    {
        for after in ["", "echo Good bye", "echo Good bye >&2; exit 3", binary] {
            check(&Account::that(before, after));
        }
    }
}

#[test]
fn refuses_an_account_that_does_not_run_the_script() {
    let said = |before: &str, shell: &'static str| {
        let account = Account { shell, before: before.to_owned(), after: String::new() };
        text(&account, "echo run", &[], b"input\n").map(|(_, text)| text).unwrap_err().to_string()
    };
    let no = "lab: the account's shell does not run a script: ";
    assert_eq!(
        said("echo This account is not available; exit 1", "sh"),
        format!("{no}This account is not available")
    );
    assert_eq!(said("exit 0", "sh"), format!("{no}nothing was said"));
    // Start-up files that read the script's first line would otherwise have the rest of it run.
    assert_eq!(said("read line", "sh"), format!("{no}the script did not come whole"));
    assert_eq!(said("cat > /dev/null", "sh"), format!("{no}the script did not come whole"));
    assert!(said("echo hello", "no-such-shell").contains("no-such-shell"));
    assert_eq!(
        said("echo Connection refused >&2; exit 255", "sh"),
        "lab: out of reach: Connection refused\n"
    );
}

#[test]
fn an_answer_that_is_cut_is_no_answer() {
    let account = Account::of("sh");
    // The script's own shell is killed: its last mark does not come.
    let (Ended { code, .. }, answer) = text(&account, "echo half; kill -9 $$; sleep 1", &[], b"").unwrap();
    assert_eq!((code, answer.as_str()), (None, "half\n"));
    let lost = Account::that("", "exit 255");
    let error = text(&lost, "echo half; kill -9 $$; sleep 1", &[], b"").map(drop).unwrap_err();
    assert!(error.to_string().contains("out of reach"), "{error}");
}

#[test]
fn of_a_long_complaint_the_end_is_kept() {
    let account = Account::that("head -c 100000 /dev/zero | tr '\\0' w >&2", "");
    let script = "head -c 100000 /dev/zero | tr '\\0' x >&2; echo >&2; echo last >&2; exit 1";
    let (ended, _) = text(&account, script, &[], b"").unwrap();
    let error = ended.error(&account, "do it").to_string();
    assert_eq!(error, "lab: cannot do it: last");
}

#[test]
fn a_quoted_word_is_one_word_whatever_is_in_it() {
    for text in ["", "a b", "it's", "''", "$HOME `id` \\ \"x\" !!", "a\nb\n", "-n", "*?[a]", "é ✓", "#;&|"]
    {
        let line = format!("printf %s {}", quoted(text));
        let out = Command::new("sh").args(["-c", &line]).output().unwrap();
        assert_eq!(String::from_utf8(out.stdout).unwrap(), text);
    }
}

#[test]
fn text_of_a_target_cannot_command_the_terminal() {
    assert_eq!(clean("a\u{1b}[31mb\r\n\tc\u{202e}d\u{7}"), "a\\u{1b}[31mb\n\tc\\u{202e}d\\u{7}");
}
