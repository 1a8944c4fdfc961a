//! Pages on labels and numbers: their figures equal the CSV files, names are text, damage is named.

use std::fs;
use std::path::Path;

use crate::figures::{SKIPPED, cells, expect_near, make_named, table};
use crate::page::{HOSTILE, drawn};
use stratus_measures::{LabelScores, ScoreTable, TargetErrors};
use stratus_report::overview::RunOverview;
use stratus_report::report::{Comparison, Report};
use stratus_report::{collect, markdown, page, runs};
use stratus_run::RunDir;
use stratus_run::classes::{self, OutputMetrics};
use stratus_run::csv::{CsvWriter, Task};
use stratus_run::summary::{FinalMetrics, Summary};
use stratus_run::validation::{
    ClassRow, LabelMistake, LabelPoint, NumberMistake, TargetPoint, TaskImages, ValidationImages,
    write_curves, write_points,
};

/// A run of a task.
fn run(root: &Path, task: Task) -> RunDir {
    let run = make_named(root, task, &[vec!["conv1".to_owned()]], 30);
    run.validation().create().unwrap();
    run
}

fn read(run: &RunDir) -> Report {
    Report::read(&[run.path().to_owned()], Some(SKIPPED), None)
}

/// Outputs and targets of 60 samples with different numbers, some of them missing. The columns differ in how
/// often the outputs are right.
fn scores(columns: u16, target: impl Fn(u16, f32) -> f32) -> ScoreTable {
    let mut table = ScoreTable::new(columns.into());
    for sample in 0..60_u16 {
        let output = |column: u16| f32::from((sample * 37 + column * 11) % 61) / 13.0 - 2.3;
        let outputs: Vec<f32> = (0..columns).map(output).collect();
        let known = |column: u16| {
            let is_missing = (sample + column) % 9 == 4;
            if is_missing { f32::NAN } else { target(sample * (column + 2), output(column)) }
        };
        table.append(&outputs, &(0..columns).map(known).collect::<Vec<_>>()).unwrap();
    }
    table
}

/// A run with labels; `names` are theirs.
fn labels(root: &Path, names: &[&str]) -> RunDir {
    let run = run(root, Task::MultiLabel);
    let wrong = |seed: u16| seed.is_multiple_of(5);
    let target = |seed: u16, output: f32| f32::from(u8::from((output > 0.0) != wrong(seed)));
    let table = scores(u16::try_from(names.len()).unwrap(), target);
    let labels = LabelScores::new(&table, 0.0, |label| names[label].to_owned()).labels;
    let outputs = OutputMetrics { labels, ..OutputMetrics::default() };
    record(&run, Task::MultiLabel, &outputs);
    let curve = |label: usize| {
        let points = table.ranking(label).curve(20);
        let share = |logit: f32| 1.0 / (1.0 + (-logit).exp());
        points.into_iter().map(move |point| LabelPoint {
            label,
            threshold: share(point.threshold),
            recall: point.recall,
            precision: point.precision,
        })
    };
    let curves: Vec<LabelPoint> = (0..names.len()).flat_map(curve).collect();
    write_curves(&run.validation().curves(), 2, &curves).unwrap();
    run
}

/// A run with targets; `names` are theirs.
fn numbers(root: &Path, names: &[&str]) -> RunDir {
    let run = run(root, Task::Regression);
    let noise = |seed: u16| f32::from(seed % 7) / 3.0 - 1.0;
    let table = scores(u16::try_from(names.len()).unwrap(), |seed, output| output + noise(seed));
    let targets = TargetErrors::new(&table, |target| names[target].to_owned()).targets;
    record(&run, Task::Regression, &OutputMetrics { targets, ..OutputMetrics::default() });
    let points: Vec<TargetPoint> = (0..names.len())
        .flat_map(|target| {
            let points = table.points(target, 40);
            points.into_iter().map(move |point| TargetPoint {
                target,
                number: point.target,
                predicted: point.output,
            })
        })
        .collect();
    write_points(&run.validation().points(), 2, &points).unwrap();
    run
}

/// Writes the metrics of the last validation, and those of two validations.
fn record(run: &RunDir, task: Task, outputs: &OutputMetrics) {
    classes::write(&run.classes(), outputs).unwrap();
    let mut history = CsvWriter::<ClassRow>::open(&run.validation().class_history(), task).unwrap();
    for epoch in 1..=2 {
        ClassRow::of_validation(epoch, outputs).for_each(|row| history.append(&row).unwrap());
    }
    history.flush().unwrap();
}

/// The rows of a table of the page, by the name of the label or target.
fn row<'a>(rows: &'a [Vec<String>], name: &str) -> &'a [String] {
    rows.iter().find(|row| row[0] == name).unwrap()
}

/// Compares cells with fields of a CSV file; a cell without a number is an en dash.
#[track_caller]
fn expect_cells(cells: &[String], fields: &[&String], factor: f64) {
    assert_eq!(cells.len(), fields.len());
    for (cell, field) in cells.iter().zip(fields) {
        if field.is_empty() {
            assert_eq!(cell, "–");
        } else {
            expect_near(cell.parse().unwrap(), factor * field.parse::<f64>().unwrap());
        }
    }
}

/// The values of an attribute in a text.
fn attributes<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let start = format!("{name}=\"");
    text.split(&start).skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

/// The panel with this label.
fn panel<'a>(page: &'a str, label: &str) -> &'a str {
    let from = page.find(&format!("aria-label=\"{label}\">\n<polyline")).unwrap_or_else(|| panic!("{label}"));
    &page[from..from + page[from..].find("</svg>").unwrap()]
}

#[test]
fn labels_on_a_page_equal_their_csv_files() {
    let root = tempfile::tempdir().unwrap();
    let run = labels(root.path(), &["cat", "dog", "eel"]);
    let page = page::render(&read(&run));
    let rows = cells(&page, "Labels");
    let expected = table(&run.classes());
    for line in &expected {
        let row = row(&rows, &line["name"]);
        let fields = |names: &[&str]| names.iter().map(|name| line[*name].clone()).collect::<Vec<_>>();
        expect_cells(
            &row[1..4],
            &fields(&["positives", "negatives", "missing"]).iter().collect::<Vec<_>>(),
            1.0,
        );
        expect_cells(&row[4..6], &fields(&["average_precision", "auc"]).iter().collect::<Vec<_>>(), 100.0);
        expect_cells(&row[6..7], &[&line["threshold"]], 1.0);
        expect_cells(&row[7..], &fields(&["precision", "recall", "f1"]).iter().collect::<Vec<_>>(), 100.0);
    }
    assert_eq!(rows.len(), 3);
    // The lowest average precision first, in the table and in the panels.
    let precision = |row: &Vec<String>| row[4].parse::<f64>().unwrap();
    assert!(rows.is_sorted_by(|one, other| precision(one) < precision(other)), "{rows:?}");
    let titles: Vec<&str> = attributes(&page, "aria-label")
        .into_iter()
        .filter(|label| label.starts_with("Precision over"))
        .collect();
    let names: Vec<String> = rows.iter().map(|row| format!("Precision over recall of {}", row[0])).collect();
    assert_eq!(titles, names);
    // Each curve passes the points of its file, in a panel of 200 pixels from 52 and 22.
    let points = table(&run.validation().curves());
    for (label, line) in expected.iter().enumerate() {
        let drawing = panel(&page, &format!("Precision over recall of {}", line["name"]));
        let curve = drawing.split("class=\"curve\"").nth(1).unwrap();
        let curve: Vec<[f64; 2]> = attributes(curve, "points")[0]
            .split(' ')
            .map(|point| {
                let (x, y) = point.split_once(',').unwrap();
                [(x.parse::<f64>().unwrap() - 52.0) / 200.0, (222.0 - y.parse::<f64>().unwrap()) / 200.0]
            })
            .collect();
        let own: Vec<_> = points.iter().filter(|point| point["label"] == label.to_string()).collect();
        assert_eq!(curve.len(), 2 * own.len());
        for (drawn, point) in curve.iter().skip(1).step_by(2).zip(own) {
            for (drawn, name) in drawn.iter().zip(["recall", "precision"]) {
                assert!((drawn - point[name].parse::<f64>().unwrap()).abs() < 1e-4, "{drawn} {point:?}");
            }
        }
        let f1 = 100.0 * line["f1"].parse::<f64>().unwrap();
        assert!(drawing.contains(&format!("F1 {f1:.2} %</title>")), "{drawing}");
        let average = 100.0 * line["average_precision"].parse::<f64>().unwrap();
        assert!(page.contains(&format!("average precision {average:.2} %, {} of", line["positives"])));
    }
    let history = &drawn(&page)["runs"][0]["class_history"];
    assert_eq!(history["is_fraction"], true);
    assert!(page.contains("Validation average precision of each label by epoch, %"));
    assert!(page.contains("data-chart=\"label-measures\"") && !page.contains("data-chart=\"errors\""));
    let best = 61.0 * 2.0 / 3.7;
    assert!(
        page.contains("best validation mean average precision") && page.contains(&format!("{best:.2} %"))
    );
}

#[test]
fn numbers_on_a_page_equal_their_csv_files() {
    let root = tempfile::tempdir().unwrap();
    let run = numbers(root.path(), &["age", "height"]);
    let page = page::render(&read(&run));
    let rows = cells(&page, "Targets");
    let points = table(&run.validation().points());
    for (target, line) in table(&run.classes()).iter().enumerate() {
        let row = row(&rows, &line["name"]);
        let fields = ["samples", "missing", "mean", "mae", "rmse", "r2"].map(|name| &line[name]);
        expect_cells(&row[1..], &fields, 1.0);
        let r2: f64 = line["r2"].parse().unwrap();
        assert!(page.contains(&format!("R² {r2:.4}, MAE ")), "{r2}");
        let drawing = panel(&page, &format!("Predicted over true {}", line["name"]));
        // A dot is at the same place on both axes if its numbers are equal, and between the right ticks.
        let dots = drawing.split("class=\"dots\"").nth(1).unwrap();
        let dots: Vec<[f64; 2]> = attributes(dots, "d")[0]
            .split("h0")
            .filter(|dot| !dot.is_empty())
            .map(|dot| {
                let (x, y) = dot.trim_start_matches('M').split_once(' ').unwrap();
                [(x.parse::<f64>().unwrap() - 52.0) / 200.0, (222.0 - y.parse::<f64>().unwrap()) / 200.0]
            })
            .collect();
        let own: Vec<[f64; 2]> = points
            .iter()
            .filter(|point| point["target"] == target.to_string())
            .map(|point| ["number", "predicted"].map(|name| point[name].parse().unwrap()))
            .collect();
        assert_eq!(dots.len(), own.len());
        // Both axes have one scale: the drawing is linear in the numbers.
        let [first, last] = [0, own.len() - 1].map(|at| (dots[at][0], own[at][0]));
        let scale = (last.0 - first.0) / (last.1 - first.1);
        for (dot, point) in dots.iter().zip(&own) {
            for axis in [0, 1] {
                let expected = first.0 + scale * (point[axis] - first.1);
                assert!((dot[axis] - expected).abs() < 1e-3, "{dot:?} {point:?}");
            }
        }
        assert!(page.contains(&format!(", {} of {} images", own.len(), line["samples"])));
    }
    // R² is a number, also where others have percentages.
    let best = 0.8 * 2.0 / 3.7;
    assert!(page.contains("best validation R²") && page.contains(&format!("<dd>{best:.4}</dd>")), "{best}");
    let mae = 3.1 * 2.0 / 3.7;
    assert!(page.contains(&format!("<dd>{}</dd>", stratus_base::text::significant(mae))));
    assert!(page.contains("Validation R² of each target by epoch</figcaption>") && !page.contains("R², %"));
    assert!(page.contains("data-chart=\"errors\"") && page.contains("<figcaption>R²</figcaption>"));
    assert_eq!(drawn(&page)["runs"][0]["class_history"]["is_fraction"], false);
}

#[test]
fn names_of_labels_and_targets_are_text() {
    let root = tempfile::tempdir().unwrap();
    for (run, images) in [
        (
            labels(&root.path().join("labels"), &["cat", HOSTILE]),
            TaskImages::MultiLabel {
                mistake_count: 3,
                mistakes: vec![LabelMistake { file: HOSTILE.to_owned(), wrong: vec![1], missed: vec![0] }],
            },
        ),
        (
            numbers(&root.path().join("numbers"), &[HOSTILE, "age"]),
            TaskImages::Regression {
                mistakes: vec![NumberMistake {
                    file: HOSTILE.to_owned(),
                    target: 0,
                    number: 1.5,
                    predicted: -2.0,
                }],
            },
        ),
    ] {
        ValidationImages { epoch: 2, size: [4, 4], workers: 1, images }.write(&run.validation()).unwrap();
        let page = page::render(&read(&run));
        assert!(page.contains("&lt;img src=x"), "{page}");
        assert!(!page.contains("<script>alert") && !page.contains("<img src=x"), "{page}");
    }
}

#[test]
fn only_the_panels_of_the_lowest_labels_are_drawn() {
    let root = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..15).map(|label| format!("label {label}")).collect();
    let run = labels(root.path(), &names.iter().map(String::as_str).collect::<Vec<_>>());
    let page = page::render(&read(&run));
    assert_eq!(page.matches("aria-label=\"Precision over recall of ").count(), 12);
    assert!(page.contains("The 12 of 15 labels with the lowest average precision."));
    assert_eq!(cells(&page, "Labels").len(), 15);
    // Without a folder of validations there is the table.
    fs::remove_dir_all(run.validation().path()).unwrap();
    let page = page::render(&read(&run));
    assert_eq!(cells(&page, "Labels").len(), 15);
    assert!(!page.contains("Precision over recall"));
    // Before the first validation, a run has only the names of its labels.
    let header = "label,name,positives,negatives,missing,average_precision,auc,threshold,precision,recall,f1";
    fs::write(run.classes(), format!("{header}\n0,cat,0,0,0,,,,,,\n")).unwrap();
    let report = read(&run);
    assert_eq!(problems(&report), [""; 0]);
    assert!(report.runs[0].validation.is_none());
}

/// The problems of tables of labels and targets. The runs of these tests have no plan.
fn problems(report: &Report) -> Vec<String> {
    assert!(!page::render(report).is_empty());
    let all = report.problems.iter().map(|problem| format!("{}: {}", problem.what, problem.reason));
    all.filter(|problem| problem.contains(".csv")).collect()
}

#[test]
fn damaged_tables_of_labels_and_targets_are_named() {
    let root = tempfile::tempdir().unwrap();
    let run = labels(&root.path().join("labels"), &["cat", "dog"]);
    let folder = run.validation();
    assert_eq!(problems(&read(&run)), [""; 0]);
    fs::write(folder.curves(), "epoch,label,threshold,recall,precision\n2,0,0.5,7.0,0.5\n").unwrap();
    let found = problems(&read(&run));
    assert!(found.len() == 1 && found[0].starts_with("precision–recall curves: "), "{found:?}");
    // A curve of a label that the run does not have is not drawn.
    let point = LabelPoint { label: usize::MAX, threshold: 0.5, recall: 0.5, precision: 0.5 };
    write_curves(&folder.curves(), 2, &[point]).unwrap();
    assert_eq!(problems(&read(&run)), [""; 0]);
    assert!(!page::render(&read(&run)).contains("Precision over recall"));
    fs::write(run.classes(), "label,name\n").unwrap();
    let found = problems(&read(&run));
    assert!(found.len() == 1 && found[0].starts_with("metrics of the labels: "), "{found:?}");

    let run = numbers(&root.path().join("numbers"), &["age"]);
    fs::write(run.validation().points(), "epoch,target,number,predicted\n2,0,NaN,1.0\n").unwrap();
    fs::write(run.classes(), "target,name,samples,missing,mean,mae,rmse,r2\n0,age,1,0,,,x,\n").unwrap();
    let found = problems(&read(&run));
    assert!(found.len() == 2 && found[0].contains("points.csv is damaged"), "{found:?}");
    assert!(found[1].starts_with("errors of the targets: "), "{found:?}");
}

/// Writes the summary of a run with these metrics.
fn summary(run: &RunDir, final_metrics: FinalMetrics) {
    Summary { final_metrics, ..Summary::default() }.write(&run.summary()).unwrap();
}

#[test]
fn r2_is_a_number_in_comparisons_lists_and_tables() {
    let root = tempfile::tempdir().unwrap();
    let runs_of = [numbers(&root.path().join("a"), &["age"]), numbers(&root.path().join("b"), &["age"])];
    summary(&runs_of[0], FinalMetrics { val_r2: Some(-0.25), ..FinalMetrics::default() });
    let paths: Vec<_> = runs_of.iter().map(|run| run.path().to_owned()).collect();
    fs::write(runs_of[1].experiment(), "[train]\nbatch_size = 64\n").unwrap();
    let report = Report::read(&paths, Some(SKIPPED), None);
    let comparison: &Comparison = report.comparison.as_ref().unwrap();
    // The best R² of an epoch: 0.8 · 2 / 3.7.
    let verdict = comparison.verdict.as_ref().unwrap();
    assert!(verdict.starts_with("Equal R²: ") && verdict.contains(" 0.4324, then "), "{verdict}");
    let page = page::render(&report);
    assert!(page.contains("best R²</button>") && page.contains("Validation R² by epoch</figcaption>"));
    let text = markdown::markdown(&report);
    assert!(text.contains("| best R² |") && text.contains("| training R² | "), "{text}");
    assert!(
        text.contains("validation R² |") && text.contains("| 0.4324 |") && !text.contains("R² %"),
        "{text}"
    );
    assert!(markdown::to_csv(&report).contains("best R²"));
    let listed = runs::list(&[root.path().to_owned()]).unwrap();
    let one = listed.runs.iter().find(|run| run.path.starts_with(root.path().join("a"))).unwrap();
    assert_eq!(one.score.map(|score| score.text(one.best.unwrap())), Some("0.4324".to_owned()));

    let records: Vec<_> = runs_of.iter().map(|run| collect::RunRecord::read(run, None).unwrap()).collect();
    let overview = RunOverview::new(&records);
    assert_eq!(overview.rows[0].val_r2, Some(-0.25));
    let csv = overview.to_csv(&records);
    assert!(csv.lines().next().unwrap().contains("val_top1,val_r2,overall_s"), "{csv}");
    assert!(csv.lines().nth(1).unwrap().contains(",-0.25,"), "{csv}");
    // A run with R² among others: no score is a percentage.
    let other = labels(&root.path().join("c"), &["cat"]);
    let mixed = Report::read(&[paths[0].clone(), other.path().to_owned()], Some(SKIPPED), None);
    let page = page::render(&mixed);
    assert!(page.contains("best score</button>") && page.contains("Validation score by epoch</figcaption>"));
    assert!(page.contains(">0.4324</td>") && !page.contains(">43.24</td>"), "{page}");
}
