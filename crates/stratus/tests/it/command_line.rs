//! The command line: help, results, errors and exit codes.

use crate::common::{CommandOutput, without_registries};
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs the program in a folder, without a terminal.
fn stratus_in(folder: &Path, arguments: &[&str]) -> CommandOutput {
    let output = Command::new(env!("CARGO_BIN_EXE_stratus"))
        .args(arguments)
        .current_dir(folder)
        .env_remove("COLUMNS")
        .env_remove("CLICOLOR_FORCE")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    CommandOutput::new(output)
}

fn stratus(arguments: &[&str]) -> CommandOutput {
    stratus_in(tempfile::tempdir().unwrap().path(), arguments)
}

/// The command and its error. The exit code must be 2 and standard output empty.
fn error_of(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("bad.toml"), "[model]\nname = \"digits\"\n\n[train]\nepoch = 3\n")
        .unwrap();
    std::fs::write(folder.path().join("binary.toml"), [0xff, 0xfe, 0x00]).unwrap();
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    let ran = stratus_in(folder.path(), arguments);
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{arguments:?}: {}", ran.err);
    format!("$ stratus {}\n{}", arguments.join(" "), without_registries(&ran.err))
}

fn help(arguments: &[&str]) -> String {
    let ran = stratus(arguments);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    ran.out
}

#[test]
fn help_matches_the_snapshots() {
    insta::assert_snapshot!("help", help(&["--help"]));
    insta::assert_snapshot!("help_config", help(&["config", "--help"]));
    insta::assert_snapshot!("help_config_show", help(&["config", "show", "--help"]));
    insta::assert_snapshot!("help_config_keys", help(&["config", "keys", "--help"]));
    insta::assert_snapshot!("help_config_convert", help(&["config", "convert", "--help"]));
    insta::assert_snapshot!("help_doctor", help(&["doctor", "--help"]));
    insta::assert_snapshot!("help_data", help(&["data", "--help"]));
    insta::assert_snapshot!("help_train", help(&["train", "--help"]));
    insta::assert_snapshot!("help_eval", help(&["eval", "--help"]));
    insta::assert_snapshot!("help_model_export", help(&["model", "export", "--help"]));
    insta::assert_snapshot!("help_report", help(&["report", "--help"]));
    insta::assert_snapshot!("help_collect", help(&["collect", "--help"]));
    insta::assert_snapshot!("help_runs", help(&["runs", "--help"]));
    insta::assert_snapshot!("help_sweep", help(&["sweep", "--help"]));
    insta::assert_snapshot!("help_launch", help(&["launch", "--help"]));
}

#[test]
fn completions_list_every_command() {
    // The script for fish asks the program for commands and flags, see `completing.rs`.
    let fish = stratus(&["completions", "fish"]);
    assert!(fish.code == Some(0) && fish.out.contains("command stratus __complete"), "{}", fish.out);
    for shell in ["bash", "zsh"] {
        let ran = stratus(&["completions", shell]);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
        for word in ["train", "forecast", "completions", "until-epoch"] {
            assert!(ran.out.contains(word), "{shell}: {word}");
        }
    }
    assert_eq!(stratus(&["completions", "tcsh"]).code, Some(2));
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let ran = stratus_in(folder.path(), &["man", "share/man1"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), ""), "{}", ran.err);
    for (page, text) in [("stratus", "train"), ("stratus-eval", "confusion"), ("stratus-data-check", "path")]
    {
        let read = std::fs::read_to_string(folder.path().join(format!("share/man1/{page}.1"))).unwrap();
        assert!(read.contains(".TH") && read.contains(text), "{read}");
    }
    std::fs::write(folder.path().join("file"), "").unwrap();
    let ran = stratus_in(folder.path(), &["man", "file/man1"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.starts_with("error: cannot write to file/man1: "), "{}", ran.err);
}

#[test]
fn short_flags_set_their_keys() {
    let folder = tempfile::tempdir().unwrap();
    let mut arguments =
        vec!["train", "digits", "--device", "cpu", "--epochs", "1", "--batch", "8", "--lr", "0.01"];
    arguments.extend([
        "--seed",
        "7",
        "--out",
        "run",
        "--set",
        "train.epochs=1",
        "--set",
        "data.name=synthetic",
    ]);
    arguments.extend(["--set", "data.synthetic.images=16", "--set", "data.synthetic.validation_images=8"]);
    let ran = stratus_in(folder.path(), &arguments);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    // The result is printed before the time table.
    let position = |text: &str| ran.out.find(text).unwrap_or_else(|| panic!("{text}: {}", ran.out));
    assert!(position("run directory") < position("Milliseconds per iteration"));
    let text = std::fs::read_to_string(folder.path().join("run/experiment.toml")).unwrap();
    for line in ["epochs = 1", "batch_size = 8", "learning_rate = 0.01", "seed = 7", "device = \"cpu\""] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    let ran = stratus_in(folder.path(), &["train", "run", "--epochs", "3"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("--epochs cannot be used when resuming"), "{}", ran.err);
    let ran = stratus_in(folder.path(), &["train", "digits", "--lr", "fast"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("`optimiser.learning_rate` expects a number"), "{}", ran.err);
}

#[test]
fn short_flag_that_contradicts_set_is_rejected() {
    let small = ["--set", "data.name=synthetic", "--set", "train.epochs=3", "--set", "train.batch_size=16"];
    let cases: &[(&[&str], &str)] = &[
        (&["train", "digits", "--epochs", "2"], "`--epochs 2` and `--set train.epochs=3`"),
        (&["plan", "digits", "--batch", "8"], "`--batch 8` and `--set train.batch_size=16`"),
        (&["sweep", "throughput", "--dry-run", "--epochs", "2"], "`--epochs 2` and `--set train.epochs=3`"),
        (&["launch", "local", "digits", "--batch", "8"], "`--batch 8` and `--set train.batch_size=16`"),
        (&["forecast", "digits", "--batch", "8,16"], "`--batch 8,16` and `--set train.batch_size=16`"),
        (&["eval", "digits", "--batch", "8"], "`--batch 8` and `--set train.batch_size=16`"),
        (&["bench", "data", "digits", "--batch", "8"], "`--batch 8` and `--set train.batch_size=16`"),
    ];
    for (command, named) in cases {
        let error = error_of(&[command, &small[..]].concat());
        assert!(error.contains(&format!("error: {named} contradict each other")), "{error}");
    }
}

#[test]
fn sweep_takes_short_flags() {
    let folder = tempfile::tempdir().unwrap();
    let sweep = "[model]\nname = \"digits\"\n[sweep.keys]\n\"train.seed\" = [1, 2]\n";
    std::fs::write(folder.path().join("sweep.toml"), sweep).unwrap();
    let short = ["sweep", "sweep.toml", "--dry-run", "--batch", "none"];
    let ran = stratus_in(folder.path(), &short);
    assert_eq!(ran.code, Some(2), "{}", ran.out);
    assert!(ran.err.contains("`train.batch_size`"), "{}", ran.err);
}

#[test]
fn help_of_a_command_is_that_of_its_flag() {
    assert_eq!(help(&["help"]), help(&["--help"]));
    assert_eq!(help(&["help", "train"]), help(&["train", "--help"]));
    assert_eq!(help(&["help", "data", "check"]), help(&["data", "check", "--help"]));
    let error = error_of(&["help", "trian"]);
    assert!(error.contains("error: no command named `trian`\n"), "{error}");
    assert!(error_of(&["help", "data", "chek"]).contains("no command named `data chek`"));
}

#[test]
fn networks_are_listed_and_shown() {
    let list = stratus(&["model", "list"]).out;
    for name in ["digits ", "alexnet ", "resnet152 ", "mobilenet_v2 "] {
        assert!(list.lines().any(|line| line.starts_with(name)), "{name}");
    }
    let ran = stratus(&["model", "show", "googlenet"]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    assert!(ran.out.contains("auxiliary output aux1.fc2, loss weight 0.3\n"), "{}", ran.out);
    assert!(ran.out.contains("without auxiliary outputs: 6624904 trained parameters"), "{}", ran.out);
}

#[test]
fn layer_file_is_shown_like_a_network() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/small.toml");
    let ran = stratus(&["model", "show", example.to_str().unwrap()]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    assert!(ran.out.starts_with("small on 3x32x32\n"), "{}", ran.out);
    assert!(ran.out.contains("10308 trained parameters"), "{}", ran.out);
    let bad = error_of(&["model", "show", "bad.toml"]);
    assert!(
        bad.contains("error: bad.toml: layer file: unknown key `model`; available: name, input,"),
        "{bad}"
    );
    assert!(error_of(&["model", "show", "binary.toml"]).contains("error: binary.toml: "));
    assert!(error_of(&["model", "show", "absent.toml"]).contains("error: absent.toml: "));
    let set = error_of(&["model", "show", example.to_str().unwrap(), "--set", "model.width=3"]);
    assert!(set.contains("error: model.width is 3, but "), "{set}");
}

#[test]
fn cifar_10_examples_are_valid() {
    let examples =
        [("cifar10", "layer3.conv2", "norm1"), ("cifar10-resnet", "layer3.block.conv2", "block.norm1")];
    for (name, convolution, norm) in examples {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/examples/{name}.toml"));
        let made_up = ["--set", "data.name=synthetic", "--set", "train.device=reference"];
        let ran =
            stratus(&[&["plan", example.to_str().unwrap(), "--dump", "program"], &made_up[..]].concat());
        assert_eq!(ran.code, Some(0), "{name}: {}", ran.err);
        assert!(ran.out.contains(&format!("{convolution}.weight:momentum")), "{name}: {}", ran.out);
        // The first layer is frozen, and batch norms train only their bias.
        assert!(!ran.out.contains("stem.conv.weight:gradient"), "{name}: {}", ran.out);
        assert!(ran.out.contains(&format!("layer1.{norm}.bias:momentum")), "{name}: {}", ran.out);
        for norm in ["norm", "norm1", "norm2"] {
            assert!(!ran.out.contains(&format!("{norm}.weight:momentum")), "{name}: {}", ran.out);
        }
    }
}

#[test]
fn missing_arguments_exit_with_usage_error() {
    let ran = stratus(&[]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("Usage: stratus"));
}

#[test]
fn error_messages_match_the_snapshot() {
    let cases: &[&[&str]] = &[
        &["config", "show", "digit"],
        &["config", "show", "weather"],
        &["config", "show", "absent.toml"],
        &["config", "show", "bad.toml"],
        &["config", "show", "binary.toml"],
        &["config", "show", "empty"],
        &["config", "show", "digits", "--set", "train.epocs=3"],
        &["config", "show", "digits", "--set", "train.epochs=0"],
        &["config", "show", "digits", "--set", "train.epochs"],
        &["config", "show", "digits", "--set", "schedule.name=cosin"],
        &["config", "keys", "epocs"],
        &["--json", "config", "show", "digit"],
        &["confg"],
        &["data", "stats", "minst"],
        &["collect", "empty"],
        &["collect", "absent"],
    ];
    let texts: Vec<String> = cases.iter().map(|arguments| error_of(arguments)).collect();
    insta::assert_snapshot!("errors", texts.join("\n"));
}

#[test]
fn config_show_prints_every_default() {
    insta::assert_snapshot!("config_show", help(&["config", "show", "digits"]));
    insta::assert_snapshot!("config_show_resnet18", help(&["config", "show", "resnet18"]));
}

#[test]
fn shown_configuration_round_trips() {
    let folder = tempfile::tempdir().unwrap();
    let shown = help(&["config", "show", "digits", "--set", "train.epochs=3"]);
    assert!(shown.contains("epochs = 3\n"));
    let run = folder.path().join("run");
    std::fs::create_dir(&run).unwrap();
    std::fs::write(run.join("experiment.toml"), &shown).unwrap();
    for target in ["run", "run/experiment.toml"] {
        assert_eq!(stratus_in(folder.path(), &["config", "show", target]).out, shown);
    }
}

#[test]
fn json_output_is_one_document() {
    let cases: &[&[&str]] = &[
        &["config", "show", "digits", "--json"],
        &["config", "keys", "--json"],
        &["config", "list", "--json"],
        &["doctor", "--no-measure", "--json"],
    ];
    for arguments in cases {
        let document: serde_json::Value = serde_json::from_str(&help(arguments)).unwrap();
        assert!(document.is_object() || document.is_array(), "{arguments:?}");
    }
    let shown: serde_json::Value = serde_json::from_str(&help(cases[0])).unwrap();
    assert_eq!(shown["train.epochs"], 50);
    assert_eq!(shown["data.path"], "data/mnist");
}

#[test]
fn config_keys_explains_keys() {
    insta::assert_snapshot!("config_keys_schedule", help(&["config", "keys", "schedule"]));
    let list = help(&["config", "list"]);
    assert!(
        list.starts_with("digits\nalexnet\n") && list.ends_with("\ncityscapes-erfnet\ncoco-labels\n"),
        "{list}"
    );
}

/// `stratus config keys --markdown > docs/configuration.md` updates the page.
#[test]
fn reference_page_is_current() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let written = std::fs::read_to_string(page).unwrap();
    assert_eq!(written, help(&["config", "keys", "--markdown"]), "docs/configuration.md is out of date");
}

/// `make reference` updates the page.
#[test]
fn command_reference_is_current() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/commands.md");
    let written = std::fs::read_to_string(page).unwrap_or_default();
    let printed = help(&["man", "--markdown"]);
    assert!(written == printed, "docs/commands.md is out of date: run `make reference`");
}

#[test]
fn quiet_keeps_results() {
    let ran = stratus(&["doctor", "--no-measure", "-q"]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    assert!(ran.out.starts_with("stratus"));
}

#[test]
fn data_stats_describes_a_data_set() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let ran = stratus_in(&folder, &["data", "stats", "mnist"]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    insta::assert_snapshot!("data_stats", ran.out);
}

#[test]
fn missing_data_exits_with_failure_not_usage_error() {
    let ran = stratus(&["data", "stats", "mnist"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""));
    assert!(ran.err.starts_with("error: data/mnist: "), "{}", ran.err);
}
