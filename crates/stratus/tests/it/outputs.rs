//! Files that commands write where the user says: what they are called, and what they never replace.

use crate::common::photographs::put_photographs;
use crate::common::streets::{streets, train, write};
use crate::common::{Place, Ran, photographs, tiny};
use png::ColorType;
use std::fs;
use std::path::Path;

/// A folder with streets, and a run that saw them once.
fn segmenting() -> Place {
    let place = Place::bare();
    streets(&place);
    train(&place, "run", "fcn_resnet18", &["train.epochs=1", "train.device=reference"]).expect(0);
    place
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

/// It refuses to replace a file, and says how it would.
fn expect_refusal(ran: Ran, file: &str) -> Ran {
    let ran = ran.expect(2);
    assert!(ran.err.contains(&format!("{file} exists, and ")), "{}", ran.err);
    assert!(ran.err.contains("replace this one with --overwrite"), "{}", ran.err);
    assert_eq!(ran.out, "");
    ran
}

#[test]
fn masks_have_the_names_of_images_with_one_ending_replaced() {
    let place = segmenting();
    let image = fs::read(place.path("set/val/8.png")).unwrap();
    fs::create_dir(place.path("scans")).unwrap();
    for name in ["scan.1.png", "scan.2.PNG", "2024-05-01 12.30.15.png"] {
        fs::write(place.path("scans").join(name), &image).unwrap();
    }
    fs::write(place.path("no ending.7"), &image).unwrap();
    let infer = |more: &[&str]| place.run(&[&["infer", "run"], more].concat());
    infer(&["scans", "no ending.7", "--out", "masks", "--overlay"]).expect(0);
    let stems = ["2024-05-01 12.30.15", "no ending.7", "scan.1", "scan.2"];
    let expected: Vec<String> =
        stems.iter().flat_map(|stem| [format!("{stem}.overlay.png"), format!("{stem}.png")]).collect();
    assert_eq!(names(&place.path("masks")), expected);
    // Two outputs in one file are refused.
    fs::write(place.path("scan.1.jpg"), &image).unwrap();
    let ran = infer(&["scans", "scan.1.jpg", "--out", "other"]).expect(2);
    assert!(ran.err.contains("the mask of scan"), "{}", ran.err);
    fs::write(place.path("scan.overlay.png"), &image).unwrap();
    fs::write(place.path("scan.png"), &image).unwrap();
    let ran = infer(&["scan.png", "scan.overlay.png", "--out", "other", "--overlay"]).expect(2);
    assert!(ran.err.contains("the overlay of scan.png and the mask of scan.overlay.png"), "{}", ran.err);
    assert!(!place.path("other").exists());
}

#[test]
fn infer_replaces_its_own_pictures_and_no_others() {
    let place = segmenting();
    let infer = |more: &[&str]| place.run(&[&["infer", "run"], more].concat());
    let labels = fs::read(place.path("set/valannot/8.png")).unwrap();
    let all = ["set/val", "--out", "set/valannot"];
    expect_refusal(infer(&all), "set/valannot/10.png");
    assert_eq!(fs::read(place.path("set/valannot/8.png")).unwrap(), labels);
    // Its own are replaced, and lie in the folder of images without being some.
    let own = ["set/val", "--out", "set/val/masks", "--overlay", "--sheet", "set/val/sheet.png"];
    for _ in 0..2 {
        let ran = infer(&own).expect(0);
        assert!(ran.out.contains("\nimages    3\n"), "{}", ran.out);
    }
    let ran = infer(&["set/val", "--out", "elsewhere"]).expect(0);
    assert!(ran.out.contains("\nimages    3\n"), "{}", ran.out);
    // Beside the images too.
    fs::create_dir(place.path("beside")).unwrap();
    fs::copy(place.path("set/val/8.png"), place.path("beside/8.jpg")).unwrap();
    for _ in 0..2 {
        let ran = infer(&["beside", "--out", "beside"]).expect(0);
        assert!(ran.out.contains("\nimages    1\n"), "{}", ran.out);
    }
    // A mask that somebody has corrected is theirs.
    write(&place.path("set/val/masks/9.png"), ColorType::Grayscale, &[3; 24 * 32]);
    expect_refusal(infer(&own), "set/val/masks/9.png");
    infer(&[&own[..], &["--overwrite"]].concat()).expect(0);
    infer(&own).expect(0);
}

#[test]
fn infer_never_replaces_what_it_reads() {
    let place = segmenting();
    let infer = |more: &[&str]| place.run(&[&["infer", "run"], more].concat());
    let image = fs::read(place.path("set/val/8.png")).unwrap();
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
    assert_eq!(fs::read(place.path("set/val/8.png")).unwrap(), image);
    let ran = infer(&["set/val/8.png", "--out", "masks", "--sheet", "masks/8.png"]).expect(2);
    assert!(ran.err.contains("the mask of set/val/8.png and the sheet would both be"), "{}", ran.err);
    // Frames of a video have no number before they are decoded.
    fs::create_dir(place.path("frames")).unwrap();
    fs::write(place.path("frames/film-000007.png"), "mine").unwrap();
    fs::write(place.path("film.mp4"), "video").unwrap();
    expect_refusal(infer(&["film.mp4", "--out", "frames"]), "frames/film-000007.png");
}

#[test]
fn hidden_files_are_no_images_unless_they_are_named() {
    let place = Place::bare();
    put_photographs(&place, "photographs");
    photographs::train(&place, "run", &["train.epochs=1"], None).expect(0);
    let image = fs::read(place.path("photographs/row/0.png")).unwrap();
    for name in ["a.png", "._a.png", ".ipynb_checkpoints/a-checkpoint.png", "__MACOSX/a.png", "b/.c.png"] {
        let path = place.path("mac").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, if name == "._a.png" { b"no image" } else { &image[..] }).unwrap();
    }
    let paths = |images: &[&str]| {
        let ran = place.run(&[&["infer", "run", "--json"], images].concat()).expect(0);
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

/// Every command that writes a file of the user's choice.
#[test]
fn no_command_replaces_a_file_that_it_did_not_write() {
    let place = Place::bare();
    tiny::write_data(&place.path("data"));
    fs::write(place.path("net.toml"), tiny::NET).unwrap();
    let train = tiny::arguments(&["train", "net.toml", "--out", "run"], &["train.epochs=1"]);
    place.run(&train).expect(0);
    place.run(&["model", "export", "run", "--onnx", "model.onnx"]).expect(0);
    let xml = "<pytorch_configuration><input><path>here</path><classes><class>a</class><class>b</class>\
               </classes></input><network_type>AlexNet</network_type></pytorch_configuration>";
    fs::write(place.path("lab.xml"), xml).unwrap();
    let show = ["data", "show", "mnist", "--path", "data", "--set", "data.verify=false", "--out", "own.png"];
    // Whether the command's own file is replaced the next time.
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
    for (command, file, again) in commands {
        let path = place.path(file);
        fs::write(&path, "mine").unwrap();
        expect_refusal(place.run(command), file);
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine", "{command:?}");
        let overwriting = [command, &["--overwrite"]].concat();
        place.run(&overwriting).expect(0);
        assert_ne!(fs::read(&path).unwrap(), b"mine", "{command:?}");
        match again {
            true => place.run(command).expect(0),
            false => expect_refusal(place.run(command), file),
        };
        fs::remove_file(&path).unwrap();
    }
    // A layer file that was edited, and what a command reads.
    place.run(&["model", "import", "model.onnx", "-o", "own.toml", "--overwrite"]).expect(0);
    let edited = format!("{}# mine\n", fs::read_to_string(place.path("own.toml")).unwrap());
    fs::write(place.path("own.toml"), edited).unwrap();
    expect_refusal(place.run(&["model", "import", "model.onnx", "-o", "own.toml"]), "own.toml");
    for command in [
        &["config", "convert", "lab.xml", "--out", "lab.xml", "--overwrite"][..],
        &["eval", "net.toml", "--weights", "own.safetensors", "--csv", "own.safetensors", "--overwrite"],
        &["model", "export", "net.toml", "--weights", "own.safetensors", "--onnx", "net.toml", "--overwrite"],
    ] {
        let ran = place.run(command).expect(2);
        assert!(ran.err.contains("which is an input"), "{command:?}: {}", ran.err);
    }
    assert_eq!(fs::read_to_string(place.path("lab.xml")).unwrap(), xml);
}

/// The list of classes beside an XML file is made by a training too.
#[test]
fn a_training_does_not_replace_a_list_of_classes_of_the_users() {
    let place = Place::bare();
    let xml = "<pytorch_configuration><input><path>here</path><classes><class>a</class><class>b</class>\
               </classes></input><network_type>AlexNet</network_type></pytorch_configuration>";
    fs::write(place.path("lab.xml"), xml).unwrap();
    let list = place.path("lab.classes.txt");
    fs::write(&list, "b\na\n").unwrap();
    let ran = place.run(&["train", "lab.xml"]).expect(2);
    assert!(ran.err.contains("lab.classes.txt exists, and the classes of lab.xml"), "{}", ran.err);
    assert_eq!(fs::read_to_string(&list).unwrap(), "b\na\n");
    fs::write(&list, "a\n").unwrap();
    place.run(&["train", "lab.xml"]);
    assert_eq!(fs::read_to_string(&list).unwrap(), "a\nb\n");
}
