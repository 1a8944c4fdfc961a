//! Completion of command lines, by the real shells.

use crate::common::TestDir;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The folder of the program, for `PATH`.
fn program_folder() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_stratus")).parent().unwrap()
}

/// Runs a script of a shell in the folder of the test, with the program on the `PATH`; returns its output.
fn run_shell(dir: &TestDir, shell: &str, arguments: &[&str], script: &str) -> String {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(program_folder().to_owned()).chain(std::env::split_paths(&path));
    let mut command = Command::new(shell);
    command.args(arguments).arg(script).current_dir(dir.folder.path());
    command.env("PATH", std::env::join_paths(folders).unwrap()).env("HOME", dir.folder.path());
    let ran = command.output().unwrap_or_else(|error| panic!("{shell}: {error}"));
    let err = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && err.is_empty(), "{err}");
    String::from_utf8(ran.stdout).unwrap()
}

/// The words that bash offers at the end of a line, each with a line break.
fn bash(dir: &TestDir, line: &str) -> String {
    // As bash calls the function: the line and the position, the words split at its break characters.
    let script = r#"
        source <(stratus completions bash)
        COMP_LINE=$LINE COMP_POINT=${#LINE} COMP_TYPE=9
        read -ra COMP_WORDS <<< "${LINE//=/ = }"
        COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
        COMPREPLY=()
        compopt() { :; }
        "$(complete -p stratus | sed 's/.*-F \([^ ]*\) .*/\1/')" stratus "${COMP_WORDS[COMP_CWORD]}" ""
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let script = format!("LINE={}\n{script}", stratus_base::text::shell_quoted(line));
    run_shell(dir, "bash", &["--norc", "--noprofile", "-c"], &script)
}

/// Returns whether a shell is installed; prints that the test is skipped, if not.
fn is_installed(shell: &str) -> bool {
    let found = Command::new(shell).arg("--version").output().is_ok();
    if !found {
        println!("SKIPPED: {shell} is not installed");
    }
    found
}

/// The line after zsh has completed it, in a terminal.
fn zsh(dir: &TestDir, line: &str) -> String {
    // Keys are sent once the line editor has set up the terminal: before, the terminal itself would take the
    // last one, Ctrl-R. So nothing depends on time.
    let script = r#"
        zmodload zsh/zpty
        zpty inner zsh -f -i
        zpty -w inner 'stty -echo; PS1= PS2= PROMPT_EOL_MARK='
        zpty -w inner 'autoload -Uz compinit; compinit -u -D; source <(stratus completions zsh)'
        zpty -w inner 'report() { print -r -- "LINE<$BUFFER>ENDED"; zle kill-whole-line }; zle -N report'
        zpty -w inner 'bindkey "^I" complete-word; bindkey "^X^R" report'
        zpty -w inner 'zle-line-init() { print -r REA""DY; zle -D zle-line-init }; zle -N zle-line-init'
        zpty -r inner output '*READY*'
        zpty -w -n inner "$LINE"$'\t\x18\x12'
        zpty -r inner output '*LINE<*>ENDED*'
        zpty -d inner
        output=${output##*LINE<}
        print -r -- "${output%%>ENDED*}"
    "#;
    let script = format!("LINE={}\n{script}", stratus_base::text::shell_quoted(line));
    run_shell(dir, "zsh", &["-f", "-c"], &script)
}

/// The words that fish offers at the end of a line, without their descriptions.
fn fish(dir: &TestDir, line: &str) -> Vec<String> {
    let script = format!(
        "stratus completions fish | source; complete --do-complete {}",
        stratus_base::text::shell_quoted(line)
    );
    let found = run_shell(dir, "fish", &["--no-config", "-c"], &script);
    found.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect()
}

fn write_runs(dir: &TestDir) {
    for run in ["digits/1", "digits/2", "digits/10", "vgg/1", "$(touch hacked)/1", "a b/1", ".launches/1"] {
        let folder = dir.path("runs").join(run);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("experiment.toml"), "").unwrap();
    }
    fs::write(dir.path("targets.toml"), "[lab]\nkind = \"ssh\"\nhost = \"lab\"\n").unwrap();
    fs::write(dir.path("net work.toml"), "").unwrap();
}

#[test]
fn bash_completes_experiments_keys_targets_and_runs() {
    let dir = TestDir::without_kernel_cache();
    write_runs(&dir);
    for (line, offered) in [
        ("stratus tra", "train\n"),
        ("stratus train resnet5", "resnet50\n"),
        ("stratus train --epo", "--epochs\n"),
        ("stratus train runs/d", "runs/digits/10\nruns/digits/2\nruns/digits/1\nruns/digits\n"),
        ("stratus report runs/digits/2", "runs/digits/2\nruns/digits/2\n"),
        ("stratus train digits --set train.epo", "train.epochs=\n"),
        // Bash replaces what follows the equals sign.
        ("stratus train digits --set schedule.name=one", "one_cycle\n"),
        ("stratus train digits --set data.path=targ", "targets.toml\n"),
        ("stratus launch l", "lab\nlocal\n"),
        ("stratus launch ", "fetch\n"),
        ("stratus model show vgg16", "vgg16\nvgg16_bn\n"),
        ("stratus train net", "net work.toml\n"),
        ("stratus runs --sort sc", "score\n"),
    ] {
        let found = bash(&dir, line);
        match line {
            "stratus launch l" | "stratus launch " => {
                offered.lines().for_each(|word| assert!(found.lines().any(|line| line == word), "{found}"));
            }
            _ => assert_eq!(found, offered, "{line}"),
        }
    }
    // Names that a shell would interpret are not offered as runs.
    let runs = bash(&dir, "stratus report runs/");
    assert!(runs.contains("runs/vgg/1\n") && !runs.contains("launches/1"), "{runs}");
    assert!(!runs.contains(")/1") && !runs.contains("a b/1"), "{runs}");
    assert!(!dir.path("hacked").exists());
}

#[test]
fn zsh_completes_commands_flags_keys_and_files() {
    if !is_installed("zsh") {
        return;
    }
    let dir = TestDir::without_kernel_cache();
    write_runs(&dir);
    for (line, completed) in [
        ("stratus tra", "stratus train "),
        ("stratus train resnet5", "stratus train resnet50 "),
        ("stratus train --epo", "stratus train --epochs "),
        ("stratus train digits --set train.epo", "stratus train digits --set train.epochs="),
        (
            "stratus train digits --set schedule.name=one",
            "stratus train digits --set schedule.name=one_cycle ",
        ),
        ("stratus train digits --set data.path=targ", "stratus train digits --set data.path=targets.toml "),
        ("stratus train digits --device ref", "stratus train digits --device reference "),
        ("stratus launch loca", "stratus launch local "),
        ("stratus train net", "stratus train net\\ work.toml "),
    ] {
        assert_eq!(zsh(&dir, line), format!("{completed}\n"), "{line}");
    }
}

#[test]
fn fish_completes_commands_flags_keys_runs_and_files() {
    if !is_installed("fish") {
        return;
    }
    let dir = TestDir::without_kernel_cache();
    write_runs(&dir);
    for (line, offered) in [
        ("stratus tra", "train"),
        ("stratus train resnet5", "resnet50"),
        ("stratus train --epo", "--epochs"),
        ("stratus train digits --set train.epo", "train.epochs="),
        ("stratus train digits --set=train.epo", "--set=train.epochs="),
        ("stratus train digits --set schedule.name=one", "schedule.name=one_cycle"),
        ("stratus train digits --set data.path=targ", "data.path=targets.toml"),
        ("stratus train digits --device ref", "reference"),
        ("stratus launch loca", "local"),
        ("stratus train net", "net work.toml"),
        ("stratus eval runs/vgg/", "runs/vgg/1"),
    ] {
        let found = fish(&dir, line);
        assert!(found.iter().any(|word| word == offered), "{line}: {found:?}");
    }
    let runs = fish(&dir, "stratus report runs/");
    assert!(!runs.iter().any(|run| run.contains(")/1")), "{runs:?}");
}

#[test]
fn answers_have_descriptions_and_fit_an_older_script() {
    let dir = TestDir::without_kernel_cache();
    write_runs(&dir);
    fs::write(dir.path("runs/vgg/1/labels.json"), r#"{"name": "the wide one"}"#).unwrap();
    let ran = dir.run(&["__complete", "train", "runs/v"]).expect(0);
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("runs/vgg/1\tthe wide one\n\tfiles\n", ""));
    let ran = dir.run(&["__complete", "train", "--set", "train.epo"]).expect(0);
    assert!(ran.out.starts_with("train.epochs=\t") && ran.out.lines().count() == 1, "{}", ran.out);
    assert!(dir.run(&["__complete"]).expect(0).out.contains("train\t"));
    // Without a runs folder, and in one that cannot be read.
    let empty = TestDir::without_kernel_cache();
    assert_eq!(empty.run(&["__complete", "train", "runs/"]).expect(0).out, "\tfiles\n");
    fs::write(empty.path("runs"), "").unwrap();
    assert_eq!(empty.run(&["__complete", "launch", "status", "x"]).expect(0).out, "");
}

#[test]
fn many_runs_are_listed_up_to_a_limit() {
    let dir = TestDir::without_kernel_cache();
    for number in 1..=700 {
        let folder = dir.path("runs/digits").join(number.to_string());
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("experiment.toml"), "").unwrap();
    }
    let found = dir.run(&["__complete", "train", "runs/"]).expect(0).out;
    assert_eq!(found.lines().count(), 501, "500 runs, and the line for files");
    assert!(found.starts_with("runs/digits/700\t\nruns/digits/699\t\n"), "{found}");
}
