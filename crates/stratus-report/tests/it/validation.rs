//! Pages on what the network gets wrong: names that look like markup, damaged files, limits.

use std::fs;
use std::path::Path;

use stratus_report::page::{self, MAX_EMBEDDED_BYTES};
use stratus_report::report::{Network, Report};
use stratus_run::classes::{self, OutputMetrics};
use stratus_run::csv::{CsvWriter, Task};
use stratus_run::validation::{
    ClassRow, ClassSample, Confusion, MAX_CLASS_HISTORY_BYTES, MaskEpoch, Mistake, PictureFile, TaskImages,
    ValidationImages, write_confusion,
};
use stratus_run::{RunDir, atomic};
use stratus_testing::png::undecodable_png;

const HOSTILE: &str =
    "a/</script><script>alert(1)</script><img src=x onerror='alert(1)'>\"`|\n\u{7}..\\b.png";

/// A run that kept these images, with pictures of `bytes` bytes.
fn run(root: &Path, images: &ValidationImages, bytes: usize) -> RunDir {
    let run = RunDir::create(root, "digits").unwrap();
    atomic::write(&run.experiment(), b"[train]\nbatch_size = 32\n").unwrap();
    run.prepare().unwrap();
    let folder = run.validation();
    folder.create().unwrap();
    for (file, count, columns) in images.files() {
        fs::write(folder.pictures(file), undecodable_png(images.file_size(count, columns), bytes)).unwrap();
    }
    images.write(&folder).unwrap();
    run
}

fn render(run: &RunDir) -> String {
    page::render(&Report::read(&[run.path().to_owned()], None, None))
}

fn classification(files: &[&str]) -> ValidationImages {
    let mistake =
        |file: &&str| Mistake { file: (*file).to_owned(), class: 0, predicted: 1, probability: 0.9376 };
    let sample = |file: &&str| ClassSample { file: (*file).to_owned(), class: 1, predicted: 1 };
    ValidationImages {
        epoch: 3,
        size: [12, 10],
        workers: 1,
        images: TaskImages::Classification {
            mistake_count: 31,
            mistakes: files.iter().map(mistake).collect(),
            samples: files.iter().map(sample).collect(),
        },
    }
}

fn segmentation(epochs: u32) -> ValidationImages {
    let predictions = (1..=epochs).map(|epoch| MaskEpoch { epoch, iou: vec![Some(0.5), None] }).collect();
    let samples = vec!["val/1.png".to_owned(), HOSTILE.to_owned()];
    let images = TaskImages::Segmentation { samples, predictions, colours: vec![[1, 2, 3], [255, 0, 128]] };
    ValidationImages { epoch: epochs, size: [12, 10], workers: 1, images }
}

#[test]
fn mistakes_are_shown_with_their_names_as_text() {
    let root = tempfile::tempdir().unwrap();
    let images = classification(&["data/val/cat/17.png", HOSTILE]);
    let run = run(root.path(), &images, 10);
    let metrics = |class, name: &str| stratus_measures::ClassMetrics {
        class,
        name: name.to_owned(),
        samples: 4,
        accuracy: Some(0.5),
        iou: None,
        bf: None,
    };
    let classes = vec![metrics(0, "cat"), metrics(1, HOSTILE)];
    classes::write(&run.classes(), &OutputMetrics { classes, ..OutputMetrics::default() }).unwrap();
    let counts = [(0, 0, 7), (0, 1, 3), (1, 1, 5)].map(|(class, predicted, count)| Confusion {
        class,
        predicted,
        count,
    });
    write_confusion(&run.validation().confusion(), 3, &counts).unwrap();
    let mut table =
        CsvWriter::<ClassRow>::open(&run.validation().class_history(), Task::Classification).unwrap();
    for epoch in 1..=3 {
        for class in 0..2 {
            let accuracy = Some(f64::from(epoch) / 10.0 + class as f64 / 2.0);
            table.append(&ClassRow { epoch, class, samples: 4, accuracy, ..ClassRow::default() }).unwrap();
        }
    }
    table.flush().unwrap();
    let page = render(&run);
    for text in [
        "after epoch 3",
        "31 images are misclassified",
        "93.8 %",
        "17.png",
        "href=\"data:image/png;base64,iVBORw0KGgo",
        "viewBox=\"10 0 10 12\"",
        "Confusion matrix",
        "30.00",
        "2 of 2 correct",
    ] {
        assert!(page.contains(text), "{text}\n{page}");
    }
    assert!(!page.contains("<script>alert") && !page.contains("<img src=x"), "{page}");
    let shown = crate::page::drawn(&page);
    let history = &shown["runs"][0]["class_history"];
    assert_eq!((&history["metric"], &history["epochs"]), (&"accuracy".into(), &serde_json::json!([1, 2, 3])));
    assert_eq!(history["curves"][0]["name"], "cat");
    assert_eq!(history["curves"][0]["values"], serde_json::json!([0.1, 0.2, 0.3]));
    // A server has the pictures instead.
    let report = Report::read(&[run.path().to_owned()], None, None);
    let section = page::run_section(&report.runs[0], 0, "/api/runs/1/pictures/");
    assert!(section.contains("href=\"/api/runs/1/pictures/3\"") && !section.contains("base64"));
}

#[test]
fn masks_are_shown_for_every_epoch() {
    let root = tempfile::tempdir().unwrap();
    let run = run(root.path(), &segmentation(3), 10);
    let page = render(&run);
    for text in [
        "data-mask-epochs=\"1,2,3\"",
        "id=\"pictures-0-1\"",
        "href=\"#pictures-0-3\"",
        "data-ious=\"50.0 %,50.0 %,50.0 %\"",
        "data-ious=\"–,–,–\"",
        "fill=\"#ff0080\"",
        "without a class",
    ] {
        assert!(page.contains(text), "{text}\n{page}");
    }
    assert!(!page.contains("<script>alert") && !page.contains("<img src=x"));
}

#[test]
fn a_page_embeds_pictures_up_to_a_limit() {
    let root = tempfile::tempdir().unwrap();
    let run = run(root.path(), &segmentation(20), MAX_EMBEDDED_BYTES / 8);
    let page = render(&run);
    // The samples, and the newest six epochs.
    assert_eq!(page.matches("data:image/png").count(), 7);
    assert!(
        page.contains("data-mask-epochs=\"15,16,17,18,19,20\"")
            && page.contains("left out: they exceed the 5 MiB")
    );
    assert!(page.len() < MAX_EMBEDDED_BYTES * 4 / 3 + (1 << 20));
}

#[test]
fn mistakes_of_several_workers_are_said_to_be_of_one() {
    let root = tempfile::tempdir().unwrap();
    let images = ValidationImages { workers: 4, ..classification(&["a.png"]) };
    let run = run(root.path(), &images, 10);
    let page = render(&run);
    for text in
        ["4 workers shared it", "31 images are misclassified", "of those that the first worker evaluated"]
    {
        assert!(page.contains(text), "{text}");
    }
    // The first worker has none, the others have 31.
    let images = ValidationImages { workers: 4, ..classification(&[]) };
    images.write(&run.validation()).unwrap();
    let page = render(&run);
    assert!(page.contains("31 images have another predicted class than their own; none is shown"));
    assert!(!page.contains("No mistake"));
    // Pipeline stages have only tables.
    run.validation().remove_index().unwrap();
    let counts = [Confusion { class: 0, predicted: 1, count: 3 }];
    write_confusion(&run.validation().confusion(), 3, &counts).unwrap();
    let page = render(&run);
    assert!(page.contains("Pipeline stages keep none") && !page.contains("No mistake"));
}

/// A run with pipeline stages keeps no pictures, and the page says so: the plan tells the number of stages.
#[test]
fn a_run_with_stages_is_said_to_keep_no_pictures() {
    let root = tempfile::tempdir().unwrap();
    let run = run(root.path(), &classification(&["a.png"]), 10);
    run.validation().remove_index().unwrap();
    let mut report = Report::read(&[run.path().to_owned()], None, None);
    report.runs[0].layers.network = Some(Network { stage: Some((0, 4)), ..Network::default() });
    let said = "This run has 4 pipeline stages, which keep no pictures";
    assert!(page::render(&report).contains(&format!("{said}.")));
    let counts = [Confusion { class: 0, predicted: 1, count: 3 }];
    write_confusion(&run.validation().confusion(), 3, &counts).unwrap();
    let mut report = Report::read(&[run.path().to_owned()], None, None);
    report.runs[0].layers.network = Some(Network { stage: Some((0, 4)), ..Network::default() });
    assert!(page::render(&report).contains(&format!("{said}: below are the tables of all images.")));
}

#[test]
fn a_long_history_and_a_long_legend_are_cut() {
    let root = tempfile::tempdir().unwrap();
    let mut images = segmentation(1);
    if let TaskImages::Segmentation { colours, .. } = &mut images.images {
        *colours = vec![[1, 2, 3]; 300];
    }
    let run = run(root.path(), &images, 10);
    let history = fs::File::create(run.validation().class_history()).unwrap();
    history.set_len(MAX_CLASS_HISTORY_BYTES + 1).unwrap();
    let page = render(&run);
    assert!(page.contains("The first 256 of 300 classes.") && page.contains("it is larger than 16 MiB"));
    assert_eq!(page.matches("#010203").count(), 256);
}

#[test]
fn damaged_files_are_named() {
    let root = tempfile::tempdir().unwrap();
    let run = run(root.path(), &segmentation(3), 10);
    let folder = run.validation();
    let problems = || {
        let report = Report::read(&[run.path().to_owned()], None, None);
        assert!(!page::render(&report).is_empty());
        let problems = report.problems.iter().map(|problem| problem.reason.clone());
        problems.filter(|reason| reason.contains("validation")).collect::<Vec<_>>()
    };
    assert!(problems().is_empty());
    let picture = folder.pictures(PictureFile::Epoch(2));
    fs::write(&picture, b"\x89PNG\r\n\x1a\nhalf").unwrap();
    fs::write(folder.confusion(), "epoch,class,predicted,count\n1,1,1\n").unwrap();
    fs::write(folder.class_history(), "epoch,class,samples,accuracy,iou,bf\n1,x,1,,,\n").unwrap();
    let found = problems();
    assert_eq!(found.len(), 3, "{found:?}");
    let page = render(&run);
    assert!(page.contains("data-mask-epochs=\"1,3\"") && page.contains("0000000002.png is damaged"));
    assert!(page.contains("left out: their file is damaged") && !page.contains("their file is missing"));
    fs::remove_file(&picture).unwrap();
    let page = render(&run);
    assert!(page.contains("left out: their file is missing") && !page.contains("their file is damaged"));
    assert!(problems().iter().any(|reason| reason.contains("0000000002.png")));
    // A class that exceeds every matrix, and an index without images.
    write_confusion(
        &folder.confusion(),
        1,
        &[Confusion { class: usize::MAX, predicted: usize::MAX, count: u64::MAX }],
    )
    .unwrap();
    let empty = "{\"epoch\": 1, \"size\": [4294967295, 4294967295], \"images\": {\"task\": \
                 \"classification\", \"mistake_count\": 1, \"mistakes\": [], \"samples\": []}}";
    fs::write(folder.images(), empty).unwrap();
    render(&run);
    for text in ["", "{", "[]", "{\"epoch\":-1}", "\u{0}"] {
        fs::write(folder.images(), text).unwrap();
        assert!(problems().iter().any(|reason| reason.contains("images.json")), "{text}");
    }
}
