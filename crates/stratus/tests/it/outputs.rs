//! Output files of commands: their names, and which files they never overwrite.

use crate::common::photographs::write_photographs;
use crate::common::streets::{train, write, write_streets};
use crate::common::{CommandOutput, TestDir, photographs, tiny};
use png::ColorType;
use std::fs;
use std::path::Path;

/// A folder with street scenes, and a run of one epoch on them.
fn trained_segmentation() -> TestDir {
    let dir = TestDir::without_kernel_cache();
    write_streets(&dir);
    train(&dir, "run", "fcn_resnet18", &["train.epochs=1", "train.device=reference"]).expect(0);
    dir
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

/// Checks that overwriting the file is rejected with a hint.
fn expect_refusal(ran: CommandOutput, file: &str) -> CommandOutput {
    let ran = ran.expect(2);
    assert!(ran.err.contains(&format!("{file} exists, and ")), "{}", ran.err);
    assert!(ran.err.contains("or use --overwrite"), "{}", ran.err);
    assert_eq!(ran.out, "");
    ran
}

#[test]
fn mask_names_replace_the_image_extension() {
    let dir = trained_segmentation();
    let image = fs::read(dir.path("set/val/8.png")).unwrap();
    fs::create_dir(dir.path("scans")).unwrap();
    for name in ["scan.1.png", "scan.2.PNG", "2024-05-01 12.30.15.png"] {
        fs::write(dir.path("scans").join(name), &image).unwrap();
    }
    fs::write(dir.path("no ending.7"), &image).unwrap();
    let infer = |more: &[&str]| dir.run(&[&["infer", "run"], more].concat());
    infer(&["scans", "no ending.7", "--out", "masks", "--overlay"]).expect(0);
    let stems = ["2024-05-01 12.30.15", "no ending.7", "scan.1", "scan.2"];
    let expected: Vec<String> =
        stems.iter().flat_map(|stem| [format!("{stem}.overlay.png"), format!("{stem}.png")]).collect();
    assert_eq!(names(&dir.path("masks")), expected);
    // Two outputs with the same file name are rejected.
    fs::write(dir.path("scan.1.jpg"), &image).unwrap();
    let ran = infer(&["scans", "scan.1.jpg", "--out", "other"]).expect(2);
    assert!(ran.err.contains("the mask of scan"), "{}", ran.err);
    fs::write(dir.path("scan.overlay.png"), &image).unwrap();
    fs::write(dir.path("scan.png"), &image).unwrap();
    let ran = infer(&["scan.png", "scan.overlay.png", "--out", "other", "--overlay"]).expect(2);
    assert!(ran.err.contains("the overlay of scan.png and the mask of scan.overlay.png"), "{}", ran.err);
    assert!(!dir.path("other").exists());
}

#[test]
fn infer_overwrites_only_its_own_pictures() {
    let dir = trained_segmentation();
    let infer = |more: &[&str]| dir.run(&[&["infer", "run"], more].concat());
    let labels = fs::read(dir.path("set/valannot/8.png")).unwrap();
    let all = ["set/val", "--out", "set/valannot"];
    expect_refusal(infer(&all), "set/valannot/10.png");
    assert_eq!(fs::read(dir.path("set/valannot/8.png")).unwrap(), labels);
    // Existing output is overwritten, and is not used as input in the same folder.
    let own = ["set/val", "--out", "set/val/masks", "--overlay", "--sheet", "set/val/sheet.png"];
    for _ in 0..2 {
        let ran = infer(&own).expect(0);
        assert!(ran.out.contains("\nimages     3\n"), "{}", ran.out);
    }
    let ran = infer(&["set/val", "--out", "elsewhere"]).expect(0);
    assert!(ran.out.contains("\nimages     3\n"), "{}", ran.out);
    // Masks may be next to the images.
    fs::create_dir(dir.path("mixed")).unwrap();
    fs::copy(dir.path("set/val/8.png"), dir.path("mixed/8.jpg")).unwrap();
    for _ in 0..2 {
        let ran = infer(&["mixed", "--out", "mixed"]).expect(0);
        assert!(ran.out.contains("\nimages     1\n"), "{}", ran.out);
    }
    // An edited mask is not overwritten.
    write(&dir.path("set/val/masks/9.png"), ColorType::Grayscale, &[3; 24 * 32]);
    expect_refusal(infer(&own), "set/val/masks/9.png");
    infer(&[&own[..], &["--overwrite"]].concat()).expect(0);
    infer(&own).expect(0);
}

#[test]
fn infer_never_overwrites_its_input() {
    let dir = trained_segmentation();
    let infer = |more: &[&str]| dir.run(&[&["infer", "run"], more].concat());
    let image = fs::read(dir.path("set/val/8.png")).unwrap();
    for overwrite in [&[][..], &["--overwrite"]] {
        for more in [
            &["set/val/8.png", "--out", "set/val"][..],
            &["set/val/8.png", "--sheet", "set/val/8.png"],
            &["set/val", "--sheet", "set/val/../val/9.png"],
            &["set/val/8.png", "set/val/9.png", "--out", "masks", "--sheet", "set/val/9.png"],
        ] {
            let ran = infer(&[more, overwrite].concat()).expect(2);
            assert!(ran.err.contains("which is an input"), "{more:?}: {}", ran.err);
        }
    }
    assert_eq!(fs::read(dir.path("set/val/8.png")).unwrap(), image);
    let ran = infer(&["set/val/8.png", "--out", "masks", "--sheet", "masks/8.png"]).expect(2);
    assert!(ran.err.contains("the mask of set/val/8.png and the sheet would both be"), "{}", ran.err);
    // The number of frames of a video is unknown before decoding.
    fs::create_dir(dir.path("frames")).unwrap();
    fs::write(dir.path("frames/film-000007.png"), "mine").unwrap();
    fs::write(dir.path("film.mp4"), "video").unwrap();
    expect_refusal(infer(&["film.mp4", "--out", "frames"]), "frames/film-000007.png");
}

#[test]
fn hidden_files_are_skipped_unless_named() {
    let dir = TestDir::without_kernel_cache();
    write_photographs(&dir, "photographs");
    photographs::train(&dir, "run", &["train.epochs=1"], None).expect(0);
    let image = fs::read(dir.path("photographs/row/0.png")).unwrap();
    for name in ["a.png", "._a.png", ".ipynb_checkpoints/a-checkpoint.png", "__MACOSX/a.png", "b/.c.png"] {
        let path = dir.path("mac").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, if name == "._a.png" { b"no image" } else { &image[..] }).unwrap();
    }
    let paths = |images: &[&str]| {
        let ran = dir.run(&[&["infer", "run", "--json"], images].concat()).expect(0);
        let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        let images = report["images"].as_array().unwrap().clone();
        images.iter().map(|image| image["path"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(paths(&["mac"]), ["mac/a.png"]);
    assert_eq!(
        paths(&["mac/b/.c.png", "mac/.ipynb_checkpoints"]),
        ["mac/b/.c.png", "mac/.ipynb_checkpoints/a-checkpoint.png"]
    );
}

/// Covers every command with an output file.
#[test]
fn commands_never_overwrite_files_of_others() {
    let dir = TestDir::without_kernel_cache();
    tiny::write_data(&dir.path("data"));
    fs::write(dir.path("net.toml"), tiny::NET).unwrap();
    let train = tiny::arguments(&["train", "net.toml", "--out", "run"], &["train.epochs=1"]);
    dir.run(&train).expect(0);
    dir.run(&["model", "export", "run", "--onnx", "model.onnx"]).expect(0);
    let xml = "<pytorch_configuration><input><path>here</path><classes><class>a</class><class>b</class>\
               </classes></input><network_type>AlexNet</network_type></pytorch_configuration>";
    fs::write(dir.path("lab.xml"), xml).unwrap();
    let show = ["data", "show", "mnist", "--path", "data", "--set", "data.verify=false", "--out", "own.png"];
    // The flag is true if the command overwrites its own file.
    let commands: [(&[&str], &str, bool); 12] = [
        (&["eval", "run", "--csv", "own.csv"], "own.csv", true),
        (&["eval", "run", "--confusion", "own.csv"], "own.csv", true),
        (&["model", "export", "run", "--onnx", "own.onnx"], "own.onnx", true),
        (&["model", "export", "run", "--safetensors", "own.safetensors"], "own.safetensors", true),
        (&["model", "import", "model.onnx", "-o", "own.toml"], "own.toml", true),
        (&["config", "convert", "lab.xml", "--out", "own.toml"], "own.toml", true),
        (&show, "own.png", true),
        (&["report", "run", "--out", "own.html"], "own.html", true),
        (&["report", "run", "--format", "md", "--out", "own.md"], "own.md", false),
        (&["collect", "run", "--iterations", "--out", "own.csv"], "own.csv", true),
        (&["collect", "run", "--experiments", "--out", "own.csv"], "own.csv", true),
        (&["collect", "run", "--trace", "--out", "own.gz"], "own.gz", false),
    ];
    for (command, file, overwrites_own) in commands {
        let path = dir.path(file);
        fs::write(&path, "mine").unwrap();
        expect_refusal(dir.run(command), file);
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine", "{command:?}");
        let overwriting = [command, &["--overwrite"]].concat();
        dir.run(&overwriting).expect(0);
        assert_ne!(fs::read(&path).unwrap(), b"mine", "{command:?}");
        match overwrites_own {
            true => dir.run(command).expect(0),
            false => expect_refusal(dir.run(command), file),
        };
        fs::remove_file(&path).unwrap();
    }
    // An edited layer file, and the input of a command.
    dir.run(&["model", "import", "model.onnx", "-o", "own.toml", "--overwrite"]).expect(0);
    let edited = format!("{}# mine\n", fs::read_to_string(dir.path("own.toml")).unwrap());
    fs::write(dir.path("own.toml"), edited).unwrap();
    expect_refusal(dir.run(&["model", "import", "model.onnx", "-o", "own.toml"]), "own.toml");
    for command in [
        &["config", "convert", "lab.xml", "--out", "lab.xml", "--overwrite"][..],
        &["eval", "net.toml", "--weights", "own.safetensors", "--csv", "own.safetensors", "--overwrite"],
        &["model", "export", "net.toml", "--weights", "own.safetensors", "--onnx", "net.toml", "--overwrite"],
    ] {
        let ran = dir.run(command).expect(2);
        assert!(ran.err.contains("which is an input"), "{command:?}: {}", ran.err);
    }
    assert_eq!(fs::read_to_string(dir.path("lab.xml")).unwrap(), xml);
}

/// Training also writes the list of classes next to an XML file.
#[test]
fn training_keeps_an_existing_class_list() {
    let dir = TestDir::without_kernel_cache();
    let xml = "<pytorch_configuration><input><path>here</path><classes><class>a</class><class>b</class>\
               </classes></input><network_type>AlexNet</network_type></pytorch_configuration>";
    fs::write(dir.path("lab.xml"), xml).unwrap();
    let list = dir.path("lab.classes.txt");
    fs::write(&list, "b\na\n").unwrap();
    let ran = dir.run(&["train", "lab.xml"]).expect(2);
    assert!(ran.err.contains("lab.classes.txt exists and has other classes than lab.xml"), "{}", ran.err);
    assert_eq!(fs::read_to_string(&list).unwrap(), "b\na\n");
    fs::write(&list, "a\n").unwrap();
    dir.run(&["train", "lab.xml"]);
    assert_eq!(fs::read_to_string(&list).unwrap(), "a\nb\n");
}
