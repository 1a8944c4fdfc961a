//! Names, notes, tags and commits of runs.

use crate::common::TestDir;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn labels(dir: &TestDir, run: &str) -> Value {
    json(&fs::read_to_string(dir.path(run).join("labels.json")).unwrap())
}

/// A run directory with a configuration and nothing else.
fn write_run(dir: &TestDir, run: &str) {
    fs::create_dir_all(dir.path(run)).unwrap();
    let text = "[experiment]\nname = \"digits\"\n[model]\nname = \"digits\"\n[data]\nname = \"mnist\"\n";
    fs::write(dir.path(run).join("experiment.toml"), text).unwrap();
}

/// Makes the folder of the test a repository with one commit, and returns its hash.
fn commit(folder: &Path) -> String {
    let git = |arguments: &[&str]| {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgSign=false"];
        let mut git = Command::new("git");
        git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        let ran = git.args(identity).args(arguments).current_dir(folder).output().unwrap();
        assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap().trim().to_owned()
    };
    git(&["init", "--quiet", "--initial-branch=trunk"]);
    fs::write(folder.join("net.txt"), "one").unwrap();
    git(&["add", "net.txt"]);
    git(&["commit", "--quiet", "--message=first"]);
    git(&["rev-parse", "HEAD"])
}

#[test]
fn labels_of_a_training_are_shown_found_and_kept_when_it_is_resumed() {
    let dir = TestDir::new();
    let hash = commit(dir.folder.path());
    fs::write(dir.path("net.txt"), "two").unwrap();
    let flags =
        ["--name", "wide <b>net</b>", "--note", "first try\nof two", "--tag", "baseline", "--tag", "v1"];
    let more: Vec<&str> = flags.into_iter().chain(["--until-epoch", "1"]).collect();
    dir.train("runs/digits/1", 2, &more).expect(0);
    let recorded = labels(&dir, "runs/digits/1");
    assert_eq!(recorded["name"], "wide <b>net</b>");
    assert_eq!(recorded["tags"], serde_json::json!(["baseline", "v1"]));
    assert_eq!(recorded["git"], serde_json::json!({"commit": hash, "branch": "trunk", "dirty": true}));

    // A run keeps its labels; the flags are those of a new run.
    let refused = dir.run(&["train", "runs/digits/1", "--tag", "x"]).expect(2).err;
    assert!(refused.contains("--tag cannot be used when resuming"), "{refused}");
    assert!(refused.contains("`stratus runs tag runs/digits/1`"), "{refused}");
    let ended = dir.run(&["train", "runs/digits/1"]).expect(0).out;
    assert_eq!(labels(&dir, "runs/digits/1"), recorded);
    let short = format!("{}-dirty", &hash[..10]);
    assert!(
        ended.contains("name          wide <b>net</b>") && ended.contains("note          first try of two")
    );
    assert!(ended.contains(&format!("commit        {short}, branch trunk")), "{ended}");

    let listed = dir.run(&["runs"]).expect(0).out;
    for part in ["wide <b>net</b>", "baseline v1", "first try of two", &short] {
        assert!(listed.contains(part), "{part}: {listed}");
    }
    let listed = json(&dir.run(&["runs", "--json"]).expect(0).out);
    assert_eq!(listed["runs"][0]["labels"], recorded);
    let collected = json(&dir.run(&["collect", "runs/digits/1", "--json"]).expect(0).out);
    assert_eq!(collected[0]["labels"], recorded);
    let csv = dir.run(&["collect", "runs", "--csv", "--all"]).expect(0).out;
    assert!(
        csv.lines().next().unwrap().contains(",name,tags,note,git_commit,git_branch,git_dirty,"),
        "{csv}"
    );
    assert!(
        csv.contains(&format!("wide <b>net</b>,baseline v1,\"first try\nof two\",{hash},trunk,true,")),
        "{csv}"
    );

    dir.run(&["report", "runs/digits/1"]).expect(0);
    let page = fs::read_to_string(dir.path("runs/digits/1/report.html")).unwrap();
    assert!(page.contains("wide &lt;b&gt;net&lt;/b&gt;") && !page.contains("wide <b>"));
    assert!(page.contains("first try\nof two") && page.contains(&format!("commit {short} on trunk")));
    let text = dir.run(&["report", "runs/digits/1", "--format", "md", "--out", "-"]).expect(0).out;
    assert!(text.contains("- name: wide &lt;b&gt;net&lt;/b&gt;\n- tags: baseline v1\n"), "{text}");

    for words in [&["tag:baseline"][..], &[&hash[..8]], &["wide", "status:completed"], &["train.epochs=2"]] {
        let found = dir.run(&[&["runs", "find"], words].concat()).expect(0).out;
        assert!(found.contains("runs/digits/1"), "{words:?}: {found}");
    }
    assert_eq!(dir.run(&["runs", "find", "tag:other"]).expect(0).out, "no runs\n");
}

#[test]
fn tags_notes_and_names_are_changed_at_any_time() {
    let dir = TestDir::without_kernel_cache();
    for run in ["runs/digits/1", "runs/digits/2"] {
        write_run(&dir, run);
    }
    let tag = ["runs", "tag", "runs/digits/1", "runs/digits/2", "--add", "a", "--add", "b/1"];
    let ran = dir.run(&tag).expect(0);
    assert_eq!(
        (ran.out.as_str(), ran.err.as_str()),
        ("", "runs/digits/1: tags a, b/1\nruns/digits/2: tags a, b/1\n")
    );
    let ran = dir.run(&["runs", "tag", "runs/digits/1", "--add", "c", "--remove", "a", "--json"]).expect(0);
    assert_eq!(json(&ran.out)[0]["labels"]["tags"], serde_json::json!(["b/1", "c"]));
    let ran = dir.run(&["runs", "tag", "runs/digits/1", "--remove", "a"]).expect(0);
    assert!(ran.err.contains("warning: runs/digits/1 has no tag `a`"), "{}", ran.err);
    dir.run(&["runs", "note", "runs/digits/1", "several", "words"]).expect(0);
    dir.run(&["runs", "name", "runs/digits/1", "the one"]).expect(0);
    let written = labels(&dir, "runs/digits/1");
    assert_eq!((&written["note"], &written["name"]), (&"several words".into(), &"the one".into()));
    assert_eq!(dir.run(&["-q", "runs", "note", "runs/digits/1", ""]).expect(0).err, "");
    assert_eq!(labels(&dir, "runs/digits/1")["note"], Value::Null);

    // All changes are checked before the first is written.
    let before = labels(&dir, "runs/digits/1");
    for arguments in [
        &["runs", "tag", "runs/digits/1", "none", "--add", "x"][..],
        &["runs", "tag", "runs/digits/1", "--add", "x", "--add", "a b"],
        &["runs", "tag", "runs/digits/1", "--add", "<script>"],
        &["runs", "tag", "runs/digits/1", "--add", ""],
        &["runs", "tag", "runs/digits/1", "--add", "\u{1b}[31m"],
        &["runs", "tag", "runs/digits/1"],
        &["runs", "name", "runs/digits/1", "two\nlines"],
        &["runs", "note", "runs/digits/1", "\u{7}"],
        &["runs", "find", "tags:a"],
        &["runs", "find", "tag:"],
        &["runs", "find", "train.epoch=1"],
        &["runs", "find", ""],
    ] {
        let ran = dir.run(arguments).expect(2);
        assert!(
            ran.out.is_empty() && !ran.err.contains('\u{1b}') && !ran.err.contains('\u{7}'),
            "{}",
            ran.err
        );
        assert_eq!(labels(&dir, "runs/digits/1"), before, "{arguments:?}");
    }
    let typo = dir.run(&["runs", "find", "train.epoch=1"]).err;
    assert!(typo.contains("unknown key `train.epoch`\nhint: did you mean `train.epochs`?"), "{typo}");
    let typo = dir.run(&["runs", "--where", "train.epoch=1"]).expect(2).err;
    assert!(typo.contains("did you mean `train.epochs`?"), "{typo}");
    let remote = dir.run(&["runs", "tag", "sftp://lab/runs/1", "--add", "a"]).expect(2).err;
    assert!(remote.contains("is an address, not a run directory"), "{remote}");
    let typo = dir.run(&["runs", "tga"]).err;
    assert!(typo.contains("did you mean `stratus runs tag`?"), "{typo}");
    let typo = dir.run(&["runs", "runs/digitz"]).err;
    assert!(typo.contains("did you mean runs/digits?"), "{typo}");
    let typo = dir.run(&["collect", "run/digits/1"]).expect(2).err;
    assert!(typo.contains("did you mean runs/digits/1?"), "{typo}");
}

#[test]
fn damaged_labels_hide_neither_the_run_nor_the_damage() {
    let dir = TestDir::without_kernel_cache();
    write_run(&dir, "runs/digits/1");
    for text in ["{\"name\": \"half", "[]", "{\"name\": \"\\u001b[2J\"}", ""] {
        fs::write(dir.path("runs/digits/1/labels.json"), text).unwrap();
        let ran = dir.run(&["runs"]).expect(0);
        assert!(ran.out.contains("runs/digits/1"), "{}", ran.out);
        assert!(ran.err.starts_with("warning: runs/digits/1/labels.json is damaged: "), "{}", ran.err);
        assert!(!ran.err.contains('\u{1b}') && !ran.out.contains('\u{1b}'));
        // The file is not replaced by a change.
        let refused = dir.run(&["runs", "tag", "runs/digits/1", "--add", "a"]);
        assert!(refused.code != Some(0) && refused.err.contains("labels.json is damaged"), "{}", refused.err);
        assert_eq!(fs::read_to_string(dir.path("runs/digits/1/labels.json")).unwrap(), text);
    }
}

#[test]
fn invalid_labels_are_refused_before_anything_is_trained() {
    let dir = TestDir::without_kernel_cache();
    for flags in [["--tag", "a b"], ["--name", "a\nb"], ["--note", "\u{1b}"], ["--tag", ""]] {
        let ran =
            dir.run(&[&["train", "digits", "--set", "data.name=synthetic"], &flags[..]].concat()).expect(2);
        assert!(!dir.path("runs").exists() && !ran.err.contains('\u{1b}'), "{}", ran.err);
    }
}
