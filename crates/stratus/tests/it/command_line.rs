//! The command line as its users see it: help, results, errors and exit codes.

use std::path::Path;
use std::process::{Command, Stdio};

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

/// Runs the command line in a folder, without a terminal.
fn stratus_in(folder: &Path, arguments: &[&str]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_stratus"))
        .args(arguments)
        .current_dir(folder)
        .env_remove("COLUMNS")
        .env_remove("CLICOLOR_FORCE")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    Ran {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn stratus(arguments: &[&str]) -> Ran {
    stratus_in(tempfile::tempdir().unwrap().path(), arguments)
}

/// What a refused command says; its exit code must be 2 and its standard output empty.
fn refused(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("bad.toml"), "[model]\nname = \"digits\"\n\n[train]\nepoch = 3\n")
        .unwrap();
    std::fs::write(folder.path().join("binary.toml"), [0xff, 0xfe, 0x00]).unwrap();
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    let ran = stratus_in(folder.path(), arguments);
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{arguments:?}: {}", ran.err);
    format!("$ stratus {}\n{}", arguments.join(" "), ran.err)
}

fn help(arguments: &[&str]) -> String {
    let ran = stratus(arguments);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    ran.out
}

#[test]
fn help_texts() {
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
fn shells_get_completions_with_every_command() {
    for shell in ["bash", "zsh", "fish"] {
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
fn short_forms_set_the_keys_that_everybody_sets_and_set_wins() {
    let folder = tempfile::tempdir().unwrap();
    let mut arguments =
        vec!["train", "digits", "--device", "cpu", "--epochs", "1", "--batch", "8", "--lr", "0.01"];
    arguments.extend([
        "--seed",
        "7",
        "--out",
        "run",
        "--set",
        "train.epochs=2",
        "--set",
        "data.name=synthetic",
    ]);
    arguments.extend(["--set", "data.synthetic.images=16", "--set", "data.synthetic.validation_images=8"]);
    let ran = stratus_in(folder.path(), &arguments);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    // The result comes first, then where the time went.
    let place = |text: &str| ran.out.find(text).unwrap_or_else(|| panic!("{text}: {}", ran.out));
    assert!(place("run directory") < place("Milliseconds per iteration"));
    let text = std::fs::read_to_string(folder.path().join("run/experiment.toml")).unwrap();
    for line in ["epochs = 2", "batch_size = 8", "learning_rate = 0.01", "seed = 7", "device = \"cpu\""] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    let ran = stratus_in(folder.path(), &["train", "run", "--epochs", "3"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("--epochs cannot be given to a run that is continued"), "{}", ran.err);
    let ran = stratus_in(folder.path(), &["train", "digits", "--lr", "fast"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("`optimiser.learning_rate` expects a number"), "{}", ran.err);
}

#[test]
fn networks_are_listed_and_shown() {
    let list = stratus(&["model", "list"]).out;
    for name in ["digits ", "alexnet ", "resnet152 ", "mobilenet_v2 "] {
        assert!(list.lines().any(|line| line.starts_with(name)), "{name}");
    }
    let ran = stratus(&["model", "show", "googlenet"]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    assert!(ran.out.contains("auxiliary output aux1.fc2, its loss counts 0.3 times\n"), "{}", ran.out);
    assert!(ran.out.contains("without auxiliary outputs 6624904 trained parameters"), "{}", ran.out);
}

#[test]
fn a_layer_file_is_shown_like_a_network() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/small.toml");
    let ran = stratus(&["model", "show", example.to_str().unwrap()]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    assert!(ran.out.starts_with("small on 3x32x32\n"), "{}", ran.out);
    assert!(ran.out.contains("10308 trained parameters"), "{}", ran.out);
    let bad = refused(&["model", "show", "bad.toml"]);
    assert!(
        bad.contains("error: bad.toml: layer file: there is no key `model`; known are name, input,"),
        "{bad}"
    );
    assert!(refused(&["model", "show", "binary.toml"]).contains("error: binary.toml: "));
    assert!(refused(&["model", "show", "absent.toml"]).contains("error: absent.toml: "));
    let set = refused(&["model", "show", example.to_str().unwrap(), "--set", "model.width=3"]);
    assert!(set.contains("error: model.width is 3, and "), "{set}");
}

#[test]
fn the_examples_for_cifar_10_can_be_trained() {
    let examples =
        [("cifar10", "layer3.conv2", "norm1"), ("cifar10-resnet", "layer3.block.conv2", "block.norm1")];
    for (name, convolution, norm) in examples {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/examples/{name}.toml"));
        let made_up = ["--set", "data.name=synthetic", "--set", "train.device=reference"];
        let ran =
            stratus(&[&["plan", example.to_str().unwrap(), "--dump", "program"], &made_up[..]].concat());
        assert_eq!(ran.code, Some(0), "{name}: {}", ran.err);
        assert!(ran.out.contains(&format!("{convolution}.weight:momentum")), "{name}: {}", ran.out);
        // The first layer is not trained, and of batch norms only what they add.
        assert!(!ran.out.contains("stem.conv.weight:gradient"), "{name}: {}", ran.out);
        assert!(ran.out.contains(&format!("layer1.{norm}.bias:momentum")), "{name}: {}", ran.out);
        for norm in ["norm", "norm1", "norm2"] {
            assert!(!ran.out.contains(&format!("{norm}.weight:momentum")), "{name}: {}", ran.out);
        }
    }
}

#[test]
fn no_arguments_are_wrong_usage() {
    let ran = stratus(&[]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("Usage: stratus"));
}

#[test]
fn errors() {
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
    let texts: Vec<String> = cases.iter().map(|arguments| refused(arguments)).collect();
    insta::assert_snapshot!("errors", texts.join("\n"));
}

#[test]
fn a_configuration_is_shown_with_every_default() {
    insta::assert_snapshot!("config_show", help(&["config", "show", "digits"]));
    insta::assert_snapshot!("config_show_resnet18", help(&["config", "show", "resnet18"]));
}

#[test]
fn a_shown_configuration_gives_itself_again() {
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
fn json_is_one_document() {
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
fn keys_are_explained() {
    insta::assert_snapshot!("config_keys_schedule", help(&["config", "keys", "schedule"]));
    let list = help(&["config", "list"]);
    assert!(list.starts_with("digits\nalexnet\n") && list.ends_with("\ncityscapes-erfnet\n"), "{list}");
}

/// `docs/configuration.md` is what the keys say; `stratus config keys --markdown > docs/configuration.md`
/// mends it.
#[test]
fn the_reference_page_is_current() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let written = std::fs::read_to_string(page).unwrap();
    assert_eq!(written, help(&["config", "keys", "--markdown"]), "docs/configuration.md is out of date");
}

#[test]
fn quiet_leaves_results_alone() {
    let ran = stratus(&["doctor", "--no-measure", "-q"]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    assert!(ran.out.starts_with("stratus"));
}

#[test]
fn a_data_set_is_described() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let ran = stratus_in(&folder, &["data", "stats", "mnist"]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    insta::assert_snapshot!("data_stats", ran.out);
}

#[test]
fn absent_data_is_a_failure_not_wrong_usage() {
    let ran = stratus(&["data", "stats", "mnist"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""));
    assert!(ran.err.starts_with("error: data/mnist: "), "{}", ran.err);
}
