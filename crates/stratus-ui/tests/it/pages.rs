//! The pages and documents of generated runs: complete, damaged, hostile.

use std::fs;
use std::path::Path;

use crate::common::{MadeRun, Running, make};
use serde_json::Value;
use stratus_report::page;
use stratus_report::report::Report;
use stratus_run::RunDir;
use stratus_run::csv::{CsvWriter, EpochRow, Task};
use stratus_run::summary::Status;
use stratus_run::validation::{Mistake, PictureFile, TaskImages, ValidationImages};
use stratus_testing::png::undecodable_png;

/// A name that would be markup, a script, or the end of one if it were not escaped, with a control character.
pub const HOSTILE: &str = "</script><script>alert(1)</script><img src=x onerror='alert(1)'>\"`|\n\u{7}";

/// The document in an element of a page.
pub fn data(page: &str) -> Value {
    let from = page.find("id=\"data\">").unwrap() + "id=\"data\">".len();
    serde_json::from_str(page[from..].split("</script>").next().unwrap()).unwrap()
}

/// The row of a label.
fn row<'a>(list: &'a Value, label: &str) -> &'a Value {
    list["runs"].as_array().unwrap().iter().find(|run| run["label"] == label).unwrap()
}

#[test]
fn an_optimised_run_has_the_name_of_its_network_and_its_variants_when_they_are_written() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::open(&make(root.path(), &MadeRun::default())).unwrap();
    let server = Running::start(root.path());
    assert_eq!(row(&server.json("/api/runs"), "digits/1")["network"], "digits");
    let id = server.id("digits/1");
    let sections = || {
        server.index.scan();
        server.json(&format!("/api/runs/{id}/sections")).to_string()
    };
    assert!(!sections().contains("Optimised network"));
    fs::create_dir(run.optimise()).unwrap();
    fs::write(run.optimise_network(), "name = \"resnet18\"\n\n[[layer]]\n").unwrap();
    fs::write(run.optimise_request(), "{\"run\": \"runs/resnet18/1\"}").unwrap();
    // A report that was just read is kept for a moment.
    let becomes = |expected: &str| {
        let shown = (0..500).any(|_| {
            let is_shown = sections().contains(expected);
            if !is_shown {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            is_shown
        });
        assert!(shown, "{expected}");
    };
    becomes("Original run: runs/resnet18/1.");
    assert_eq!(row(&server.json("/api/runs"), "digits/1")["network"], "resnet18, optimised");
    let header = stratus_run::variants::COLUMNS.join(",");
    fs::write(run.variants(), format!("{header}\npruned int8,0.5,1.25,2,3,4,5\n")).unwrap();
    becomes("pruned int8");
    becomes("1.2500");
    // A link out of the folders is not followed.
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret.toml");
    fs::write(&secret, "name = \"secret\"\n").unwrap();
    fs::remove_file(run.optimise_network()).unwrap();
    std::os::unix::fs::symlink(&secret, run.optimise_network()).unwrap();
    fs::write(run.optimise_request(), "{\"run\": \"runs/resnet18/2\"}").unwrap();
    server.index.scan();
    assert!(!server.get("/api/runs").body.contains("secret"));
}

#[test]
fn table_has_the_state_and_the_figures_of_every_run() {
    let root = tempfile::tempdir().unwrap();
    make(root.path(), &MadeRun::default());
    let young = MadeRun { path: "digits/2", epochs: 0, status: Status::Interrupted, ..MadeRun::default() };
    make(root.path(), &young);
    make(root.path(), &MadeRun { path: "digits/10", batch_size: 64, ..MadeRun::default() });
    let server = Running::start(root.path());
    let list = server.json("/api/runs?keys=train.batch_size,no.such");
    let labels: Vec<&Value> = list["runs"].as_array().unwrap().iter().map(|run| &run["label"]).collect();
    assert_eq!(labels, ["digits/1", "digits/2", "digits/10"]);
    let first = row(&list, "digits/1");
    let facts = ["state", "experiment", "network", "data", "device", "score"].map(|key| first[key].as_str());
    assert_eq!(facts, ["completed", "digits", "digits", "digits", "CPU", "top-1"].map(Some));
    assert_eq!((first["epochs"].as_u64(), first["of_epochs"].as_u64()), (Some(2), Some(4)));
    assert_eq!((first["percent"].as_f64(), first["left_s"].as_f64()), (Some(100.0), None));
    assert_eq!(first["best"], 0.875);
    assert_eq!(first["curve"], serde_json::json!([0.75, 0.875]));
    assert_eq!((first["images_per_second"].as_f64(), first["iteration"].as_u64()), (Some(1000.0), Some(40)));
    assert_eq!(first["price"], 36.0 * 25.0 / 3600.0);
    assert_eq!(first["started"], "2026-11-29T04:30:00.000Z");
    assert_eq!(first["settings"], serde_json::json!(["32", null]));
    assert_eq!(row(&list, "digits/10")["settings"][0], "64");
    assert_eq!(row(&list, "digits/2")["state"], "interrupted");
    assert_eq!(list["keys"][0], serde_json::json!({"name": "train.batch_size", "differs": true}));
    // The page itself has the rows, so that it is drawn without another request.
    let page = server.get("/");
    assert_eq!(data(&page.body)["runs"].as_array().unwrap().len(), 3);
    // So has that of a view, with the values of its keys.
    let view =
        server.get("/?q=digits&group=k%3Atrain.batch_size&columns=state,k:train.epochs,k:train.batch_size");
    assert_eq!(data(&view.body)["chosen"], serde_json::json!(["train.epochs", "train.batch_size"]));
    assert_eq!(data(&view.body)["runs"][0]["settings"], serde_json::json!(["4", "32"]));
}

/// R² is a number that may be negative, not a percentage.
#[test]
fn table_says_which_scores_are_percentages() {
    let root = tempfile::tempdir().unwrap();
    make(root.path(), &MadeRun::default());
    let path = make(root.path(), &MadeRun { path: "ages/1", epochs: 0, ..MadeRun::default() });
    let run = RunDir::open(&path).unwrap();
    let _ = fs::remove_file(run.epochs());
    let mut rows = CsvWriter::<EpochRow>::open(&run.epochs(), Task::Regression).unwrap();
    for (epoch, r2) in [(1, -1.5), (2, -0.25), (3, -0.5)] {
        rows.append(&EpochRow { epoch, val_accuracy: Some(r2), ..EpochRow::default() }).unwrap();
    }
    rows.flush().unwrap();
    let server = Running::start(root.path());
    let list = server.json("/api/runs");
    let ages = row(&list, "ages/1");
    assert_eq!((&ages["score"], &ages["score_unit"]), (&"R²".into(), &"".into()));
    assert_eq!((&ages["best"], &ages["curve"]), (&(-0.25).into(), &serde_json::json!([-1.5, -0.25, -0.5])));
    assert_eq!(row(&list, "digits/1")["score_unit"], "%");
    let page = server.get(&format!("/run/{}", server.id("ages/1"))).body;
    assert!(page.contains("best validation R²") && page.contains("-0.2500"), "{page}");
}

#[test]
fn page_of_a_run_has_the_sections_of_its_report() {
    let root = tempfile::tempdir().unwrap();
    let path = make(root.path(), &MadeRun::default());
    let server = Running::start(root.path());
    let id = server.id("digits/1");
    let page = server.get(&format!("/run/{id}"));
    let report = Report::read(&[path], None, None);
    let section = page::run_section(&report.runs[0], 0, &format!("/api/runs/{id}/pictures/"));
    assert!(section.contains("Per layer") && page.body.contains(&section), "{}", page.body);
    let shown = data(&page.body);
    assert_eq!(shown["runs"][0]["curves"]["iteration"].as_array().unwrap().len(), 40);
    for script in ["uPlot.iife.min.js", "page.js", "common.js", "run.js"] {
        assert!(page.body.contains(&format!("<script src=\"/assets/{script}\" defer></script>")));
        let asset = server.get(&format!("/assets/{script}"));
        assert_eq!((asset.status, asset.header("content-type")), (200, "text/javascript; charset=utf-8"));
    }
    assert_eq!(server.get("/assets/page.js").body, page::SCRIPT);
    let again = server.json(&format!("/api/runs/{id}/sections"));
    assert!(again["html"].as_str().unwrap().contains(&section));
    assert_eq!(again["content"], shown["content"]);
    let series = server.json(&format!("/api/runs/{id}/series"));
    assert_eq!(series["loss"], shown["runs"][0]["curves"]["loss"], "one code for both");
    assert_eq!(series["elapsed_s"][39].as_f64().map(|s| (s * 1e3).round()), Some(400.0));
}

#[test]
fn pictures_are_served_by_name_only() {
    let root = tempfile::tempdir().unwrap();
    let path = make(root.path(), &MadeRun::default());
    let folder = RunDir::open(&path).unwrap().validation();
    folder.create().unwrap();
    let mistake = Mistake { file: HOSTILE.to_owned(), class: 0, predicted: 1, probability: 0.5 };
    let images =
        TaskImages::Classification { mistake_count: 1, mistakes: vec![mistake], samples: Vec::new() };
    let images = ValidationImages { epoch: 2, size: [1, 1], workers: 1, images };
    images.write(&folder).unwrap();
    let picture = undecodable_png([1, 1], 9);
    fs::write(folder.pictures(PictureFile::Epoch(2)), &picture).unwrap();
    let server = Running::start(root.path());
    let id = server.id("digits/1");
    let page = server.get(&format!("/run/{id}"));
    assert!(page.body.contains(&format!("<image id=\"pictures-0-2\" href=\"/api/runs/{id}/pictures/2\"")));
    assert!(page.body.contains("Most confident mistakes") && !page.body.contains("<img"));
    let answer = server.get(&format!("/api/runs/{id}/pictures/2"));
    assert_eq!((answer.status, answer.header("content-type")), (200, "image/png"));
    assert_eq!(answer.header("content-length"), picture.len().to_string());
    for name in ["1", "samples", "..", "%2e%2e", "..%2f0000000002.png", "0000000002.png", "-1", "99999999999"]
    {
        assert_eq!(server.get(&format!("/api/runs/{id}/pictures/{name}")).status, 404, "{name}");
    }
    // A picture that is damaged after the page was made, and one that leads out of the folders.
    fs::write(folder.pictures(PictureFile::Epoch(2)), &picture[..40]).unwrap();
    assert_eq!(server.get(&format!("/api/runs/{id}/pictures/2")).status, 404);
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("a.png"), &picture).unwrap();
    fs::remove_file(folder.pictures(PictureFile::Epoch(2))).unwrap();
    std::os::unix::fs::symlink(outside.path().join("a.png"), folder.pictures(PictureFile::Epoch(2))).unwrap();
    assert_eq!(server.get(&format!("/api/runs/{id}/pictures/2")).status, 422);
}

#[test]
fn comparison_has_the_section_of_the_report() {
    let root = tempfile::tempdir().unwrap();
    let first = make(root.path(), &MadeRun::default());
    let second = make(root.path(), &MadeRun { path: "digits/2", batch_size: 64, ..MadeRun::default() });
    let server = Running::start(root.path());
    let ids = [server.id("digits/1"), server.id("digits/2")];
    let page = server.get(&format!("/compare?runs={},{}", ids[0], ids[1]));
    let report = Report::read(&[first, second.clone()], None, None);
    // The times of layers, which need the runs, are read when they are asked for.
    let section = page::comparison_section(report.comparison.as_ref().unwrap(), &[]);
    assert!(page.body.contains(&section), "{section} in {}", page.body);
    let layers = server.json(&format!("/api/compare/layers?runs={},{}", ids[0], ids[1]));
    assert_eq!(layers["html"], page::layer_times(&report.runs));
    assert!(page.body.contains("train.batch_size"));
    assert_eq!(data(&page.body)["compared"][1], serde_json::json!({"id": ids[1], "label": "digits/2"}));
    // One run of the two, an unknown id, the same id twice, none.
    fs::remove_dir_all(second).unwrap();
    server.index.scan();
    for query in [
        format!("runs={},{}", ids[0], ids[1]),
        format!("runs={0},{0}", ids[0]),
        "runs=x".into(),
        String::new(),
    ] {
        let page = server.get(&format!("/compare?{query}"));
        assert_eq!(page.status, 200, "{query}");
        assert!(page.body.contains("Select at least two runs"), "{query}");
    }
    let page = server.get(&format!("/compare?runs={},{}", ids[0], ids[1]));
    assert!(page.body.contains("1 run is no longer in the folders"), "{}", page.body);
    let page = server.get(&format!("/compare?runs={}", [ids[0].as_str(); 51].join(",")));
    let left_out = "only the first 50 of the 51 runs in the address are compared";
    assert!(page.body.contains(left_out), "{}", page.body);
}

/// A text as documents have it: a script shows it as it is.
pub fn shown_text(text: &str) -> String {
    text.replace('\u{7}', "\u{fffd}")
}

#[test]
fn names_of_runs_never_become_markup() {
    let root = tempfile::tempdir().unwrap();
    let folder = "</title><script>alert(1)</script>";
    let path = folder.replace('/', "∕");
    make(root.path(), &MadeRun { path: &path, name: HOSTILE, ..MadeRun::default() });
    let long = "x".repeat(10_000);
    make(root.path(), &MadeRun { path: "long", name: &long, ..MadeRun::default() });
    let server = Running::start(root.path());
    let list = server.json("/api/runs?keys=model.name");
    assert_eq!(row(&list, &path)["network"], shown_text(HOSTILE));
    assert_eq!(row(&list, "long")["settings"][0].as_str().unwrap().len(), 10_000);
    let ids = [server.id(&path), server.id("long")];
    let pages = ["/".to_owned(), format!("/run/{}", ids[0]), format!("/compare?runs={},{}", ids[0], ids[1])];
    for target in pages {
        let page = server.get(&target);
        assert_eq!(page.status, 200, "{target}");
        assert!(!page.body.contains("<script>") && !page.body.contains("<img"), "{target}: {}", page.body);
        // Scripts of the page: files, and the element of the data.
        let scripts = page.body.matches("<script").count();
        let own = page.body.matches("<script src=\"/assets/").count();
        assert_eq!(scripts, own + 1, "{target}");
        let head = page.body.split("</head>").next().unwrap();
        assert_eq!(head.matches("</title").count(), 1, "{target}");
    }
    let shown = data(&server.get(&format!("/run/{}", ids[0])).body);
    assert_eq!(shown["runs"][0]["curves"]["layers"][0]["layer"], shown_text(HOSTILE));
}

#[test]
fn texts_of_documents_do_not_change_the_direction_of_others() {
    let root = tempfile::tempdir().unwrap();
    let name = "a\u{202e}b\u{2066}c\u{2028}d";
    make(root.path(), &MadeRun { name, ..MadeRun::default() });
    let server = Running::start(root.path());
    let id = server.id("digits/1");
    let shown = "a\u{fffd}b\u{fffd}c\u{fffd}d";
    assert_eq!(row(&server.json("/api/runs"), "digits/1")["network"], shown);
    assert_eq!(server.events("").next().1["runs"][0]["network"], shown);
    assert_eq!(data(&server.get("/").body)["runs"][0]["network"], shown);
    let of_run = data(&server.get(&format!("/run/{id}")).body);
    assert_eq!(of_run["runs"][0]["curves"]["layers"][0]["layer"], shown);
}

#[test]
fn damaged_and_half_written_files_are_reported_in_the_row() {
    let root = tempfile::tempdir().unwrap();
    let damage = |path: &'static str, damage: &dyn Fn(&Path)| {
        damage(&make(root.path(), &MadeRun { path, ..MadeRun::default() }));
    };
    let write = |name: &'static str, bytes: &'static [u8]| {
        move |run: &Path| fs::write(run.join(name), bytes).unwrap()
    };
    damage("bad/1", &write("experiment.toml", b"[train\n"));
    damage("bad/2", &write("summary.json", b"{\"status\": \"comp"));
    damage("bad/3", &write("epochs.csv", b"epoch,what\n1,2\n"));
    damage("bad/4", &write("iterations.csv", b"\xff\xfe\xff\n"));
    damage("bad/5", &write("log.txt", b"no time"));
    damage("bad/6", &|run| fs::remove_file(run.join("summary.json")).unwrap());
    damage("bad/7", &|run| {
        fs::remove_file(run.join("epochs.csv")).unwrap();
        fs::create_dir(run.join("epochs.csv")).unwrap();
    });
    damage("bad/8", &write("experiment.toml", b""));
    damage("bad/9", &write("timeline/records.bin", b"not a timeline"));
    damage("bad/10", &|run| fs::write(run.join("experiment.toml"), "x".repeat(500_000)).unwrap());
    let server = Running::start(root.path());
    let list = server.json("/api/runs");
    let problem = |label| row(&list, label)["problem"].as_str().unwrap_or_default();
    assert!(problem("bad/1").contains("experiment.toml is damaged"), "{}", problem("bad/1"));
    assert_eq!(row(&list, "bad/1")["state"], "unreadable");
    assert!(problem("bad/2").contains("summary.json"), "{}", problem("bad/2"));
    assert!(problem("bad/3").contains("epochs.csv is damaged: line 1 has no column"), "{}", problem("bad/3"));
    assert_eq!(row(&list, "bad/4")["iteration"], Value::Null);
    assert_eq!(row(&list, "bad/5")["started"], Value::Null);
    assert_eq!(row(&list, "bad/6")["state"], "interrupted", "no process writes it");
    assert_eq!(problem("bad/7"), "epochs.csv is not a file");
    assert_eq!((problem("bad/8"), row(&list, "bad/8")["of_epochs"].clone()), ("", Value::Null));
    assert!(problem("bad/10").contains("experiment.toml is damaged"), "{}", problem("bad/10"));
    assert!(problem("bad/10").chars().count() <= 400, "a damaged line is quoted in part");
    // Without its configuration, summary or iterations a run has no report; its curves may be there.
    let no_report = [1, 2, 4, 10];
    for number in 1..=10 {
        let id = server.id(&format!("bad/{number}"));
        let page = server.get(&format!("/run/{id}"));
        let expected = if no_report.contains(&number) { 422 } else { 200 };
        assert_eq!(page.status, expected, "bad/{number}: {}", page.body);
        let series = server.get(&format!("/api/runs/{id}/series"));
        assert_eq!(series.status, if number == 4 { 422 } else { 200 }, "bad/{number}: {}", series.body);
    }
    assert_eq!(server.get("/").status, 200);
}

#[test]
fn folders_without_runs_and_folders_that_vanish_are_reported() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("runs");
    let server = Running::start(&folder);
    let list = server.json("/api/runs");
    assert_eq!(list["runs"], serde_json::json!([]));
    assert_eq!(list["problems"][0]["reason"], "it does not exist");
    assert_eq!(list["folders"][0].as_str(), folder.to_str());
    make(&folder, &MadeRun::default());
    server.index.scan();
    let list = server.json("/api/runs");
    assert_eq!(list["runs"].as_array().unwrap().len(), 1);
    assert_eq!(list["problems"], serde_json::json!([]));
    fs::remove_dir_all(&folder).unwrap();
    server.index.scan();
    let list = server.json("/api/runs");
    assert_eq!(
        (list["runs"].clone(), list["problems"].as_array().unwrap().len()),
        (serde_json::json!([]), 1)
    );
    fs::write(&folder, "a file").unwrap();
    server.index.scan();
    assert_eq!(server.json("/api/runs")["problems"][0]["reason"], "it is not a folder");
}
