//! XML configurations: conversion, training, fetching of classes; and the schema of TOML files.

#![cfg(unix)]

use crate::common::{TestDir, root};
use serde_json::Value;
use std::fs;

const FILE: &str = "\
<pytorch_configuration>
  <input>
    <path>here</path>
    <classes><class>a</class><class>b</class><class>c</class></classes>
  </input>
  <remote_location><path>lab</path></remote_location>
  <network_type>AlexNet</network_type>
  <num_classes>2</num_classes>
  <images_per_class>2</images_per_class>
  <epochs_number>3</epochs_number>
  <batch_size>4</batch_size>
  <colour>red</colour>
</pytorch_configuration>
";

#[test]
fn xml_file_is_converted_to_toml() {
    let dir = TestDir::without_kernel_cache();
    fs::write(dir.path("lab.xml"), FILE).unwrap();
    let printed = dir.run(&["config", "convert", "lab.xml", "batch_size=8"]).expect(0);
    assert!(printed.out.starts_with("[data]\nname = \"folder\"\nclasses = \"lab.classes.txt\"\n"));
    assert!(printed.out.contains("\n[train]\nepochs = 3\nbatch_size = 8\n"), "{}", printed.out);
    assert!(printed.out.ends_with("# lab.xml: line 12: unknown key `colour`\n"), "{}", printed.out);
    assert_eq!(
        printed.err,
        "warning: lab.xml: line 12: unknown key `colour`\n\
         --out also writes the list of classes to lab.classes.txt\n"
    );
    assert!(!dir.path("lab.classes.txt").exists());
    dir.run(&["config", "convert", "lab.xml", "--out", "lab.toml"]).expect(0);
    assert_eq!(fs::read_to_string(dir.path("lab.classes.txt")).unwrap(), "a\nb\n");
    let shown = dir.run(&["config", "show", "lab.toml"]).expect(0).out;
    assert!(shown.contains("\nimages_per_class = 2\n") && shown.contains("name = \"alexnet\""), "{shown}");
    let json: Value =
        serde_json::from_str(&dir.run(&["config", "convert", "lab.xml", "--json"]).expect(0).out).unwrap();
    assert_eq!((json["remote"].as_str(), json["classes"][1].as_str()), (Some("lab"), Some("b")));
    // Unknown elements are an error.
    let rejected = dir.run(&["train", "lab.xml"]).expect(2);
    assert_eq!(
        rejected.err,
        "error: lab.xml: line 12: unknown key `colour`\n\
         hint: remove them, or use keys of Stratus: `stratus config keys` lists them\n"
    );
    let rejected = dir.run(&["train", "digits", "batch_size=3"]).expect(2);
    assert_eq!(
        rejected.err,
        "error: `batch_size=3`: KEY=VALUE needs an XML experiment\nhint: use --set batch_size=3\n"
    );
}

/// The remote location is a local folder; `stratus data sync` is tested with servers.
#[test]
fn xml_file_trains_with_its_classes() {
    let dir = TestDir::without_kernel_cache();
    let fixtures = root().join("crates/stratus-data/tests/fixtures/images");
    for split in ["train", "val"] {
        for class in ["a", "b", "c"] {
            let folder = dir.path("lab").join(split).join(class);
            fs::create_dir_all(&folder).unwrap();
            for file in ["colour.jpg", "turned.jpg", "cmyk.jpg"] {
                fs::copy(fixtures.join(file), folder.join(file)).unwrap();
            }
        }
    }
    fs::write(dir.path("lab.xml"), FILE.replace("  <colour>red</colour>\n", "")).unwrap();
    let settings = "network_type=digits,model.width=2,data.shape=[1,28,28],epochs_number=1";
    let train =
        |out: &str| dir.run(&["train", "lab.xml", settings, "--out", out, "--device", "reference"]).expect(0);
    let ran = train("run");
    assert!(ran.err.contains("copying 2 classes from lab to here\ncopied 10 files, "), "{}", ran.err);
    // Two training images of each of two classes, and all validation images.
    assert!(dir.path("here/train/b").is_dir() && !dir.path("here/train/c").exists());
    assert_eq!(fs::read_dir(dir.path("here/train/a")).unwrap().count(), 2);
    let configuration = fs::read_to_string(dir.path("run/experiment.toml")).unwrap();
    for line in ["epochs = 1", "batch_size = 4", "images_per_class = 2", "device = \"reference\""] {
        assert!(configuration.lines().any(|found| found == line), "{line}: {configuration}");
    }
    // The second fetch has nothing to do.
    let again = train("again");
    assert!(!again.err.contains("bringing"), "{}", again.err);
}

/// Validates a document against the subset of JSON Schema that our schema uses, and collects the problems.
fn validate(schema: &Value, value: &Value, location: &str, found: &mut Vec<String>) {
    for (word, of) in schema.as_object().unwrap() {
        let number = || (value.as_f64(), of.as_f64());
        let keeps = match word.as_str() {
            "$schema" | "title" | "description" | "default" | "items" | "properties" => true,
            "type" => match of.as_str().unwrap() {
                "object" => value.is_object(),
                "array" => value.is_array(),
                "string" => value.is_string(),
                "boolean" => value.is_boolean(),
                "integer" => value.is_i64() || value.is_u64(),
                "number" => value.is_number(),
                other => panic!("the type {other} is not known to this test"),
            },
            "enum" => of.as_array().unwrap().contains(value),
            "minimum" => number().0 >= number().1,
            "maximum" => number().0 <= number().1,
            "exclusiveMinimum" => number().0 > number().1,
            "exclusiveMaximum" => number().0 < number().1,
            "minLength" => value.as_str().is_none_or(|text| !text.is_empty()),
            "maxLength" => value.as_str().is_none_or(|text| text.len() as u64 <= of.as_u64().unwrap()),
            "pattern" => value.as_str().is_none_or(|text| {
                assert_eq!(of, "^[A-Za-z0-9][A-Za-z0-9._-]*$");
                text.starts_with(|c: char| c.is_ascii_alphanumeric())
                    && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
            }),
            "additionalProperties" => value
                .as_object()
                .is_none_or(|members| members.keys().all(|name| schema["properties"].get(name).is_some())),
            other => panic!("the keyword {other} is not known to this test"),
        };
        if !keeps {
            found.push(format!("{location}: {word} is {of}, and there is {value}"));
        }
    }
    for (name, of) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        if let Some(value) = value.get(name) {
            validate(of, value, &format!("{location}.{name}"), found);
        }
    }
    if let (Some(of), Some(items)) = (schema.get("items"), value.as_array()) {
        items.iter().for_each(|item| validate(of, item, location, found));
    }
}

#[test]
fn schema_accepts_every_shipped_file() {
    let dir = TestDir::without_kernel_cache();
    let schema: Value = serde_json::from_str(&dir.run(&["config", "schema"]).expect(0).out).unwrap();
    let check = |text: &str| {
        let mut found = Vec::new();
        let value: Value = toml::from_str(text).unwrap();
        validate(&schema, &value, "", &mut found);
        found
    };
    let mut files = 0;
    for folder in ["crates/stratus-experiment/src/builtin", "crates/stratus-sweep/src/builtin"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            assert_eq!(check(&fs::read_to_string(&path).unwrap()), [""; 0], "{}", path.display());
            files += 1;
        }
    }
    assert!(files >= 15, "{files}");
    // Also with every default written out.
    for name in ["digits", "resnet18", "camvid-erfnet"] {
        assert_eq!(check(&dir.run(&["config", "show", name]).expect(0).out), [""; 0], "{name}");
    }
    for (wrong, problem) in [
        ("[train]\nepoch = 3\n", ".train: additionalProperties"),
        ("[trian]\n", ": additionalProperties"),
        ("[train]\nepochs = 0\n", ".train.epochs: minimum is 1, and there is 0"),
        ("[train]\nepochs = 1.5\n", ".train.epochs: type"),
        ("[train]\nlabel_smoothing = 1.0\n", ".train.label_smoothing: exclusiveMaximum"),
        ("[optimiser]\nname = \"sdg\"\n", ".optimiser.name: enum"),
        ("[data.augment]\nscale = [0.5, 2.0]\n", ".data.augment.scale: maximum"),
        ("[experiment]\nname = \"../x\"\n", ".experiment.name: pattern"),
    ] {
        let found = check(wrong);
        assert!(found.len() == 1 && found[0].starts_with(problem), "{wrong}: {found:?}");
    }
}
