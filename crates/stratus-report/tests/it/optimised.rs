//! Reports on runs that `stratus optimise` made: the variants of the network, and the layers that lost
//! channels.

use std::fs;
use std::path::{Path, PathBuf};

use stratus_report::report::Report;
use stratus_report::table::TableFormat;
use stratus_report::tables::{self, TableKind};
use stratus_report::{markdown, page};
use stratus_run::csv::{CsvWriter, EpochRow, Task};
use stratus_run::variants::{self, Variant};
use stratus_run::{RunDir, atomic};

/// A name that would be markup, a script, or the end of one if it were not escaped.
const HOSTILE: &str = "</script><script>alert(1)</script>\"'|\n\u{202e}";

fn make(root: &Path, task: Task) -> RunDir {
    let run = RunDir::create(root, "digits").unwrap();
    let text = "[experiment]\nname = \"digits-optimised\"\n[model]\nname = \"network.toml\"\n";
    atomic::write(&run.experiment(), text.as_bytes()).unwrap();
    let mut epochs = CsvWriter::open(&run.epochs(), task).unwrap();
    epochs.append(&EpochRow { epoch: 1, ..EpochRow::default() }).unwrap();
    epochs.flush().unwrap();
    fs::create_dir(run.optimise()).unwrap();
    fs::write(run.optimise_request(), "{\"run\": \"runs/digits/7\", \"prune\": 0.5}").unwrap();
    run
}

fn variant(name: &str, measure: Option<f64>, ms: f64) -> Variant {
    Variant {
        variant: name.to_owned(),
        measure,
        ms_median: ms,
        ms_p99: 2.0 * ms,
        ms_batch8: 5.0 * ms,
        bytes: 44_700_000,
        multiply_adds: 1_814_073_344,
    }
}

fn report(runs: &[&RunDir]) -> Report {
    let paths: Vec<PathBuf> = runs.iter().map(|run| run.path().to_owned()).collect();
    Report::read(&paths, None, None)
}

/// The part of a page on the optimised network.
fn part(page: &str) -> &str {
    let from = page.find("data-part=\"optimised\"").unwrap();
    let end = page[from..].find("data-part=\"time\"").unwrap();
    &page[from..from + end]
}

/// The cells of the rows of the first table in a page: the sort key, or else the text.
fn first_table(page: &str) -> Vec<Vec<String>> {
    let body = page.split("<tbody>").nth(1).unwrap().split("</tbody>").next().unwrap();
    let cell = |cell: &str| {
        let number = cell.split("data-n=\"").nth(1).map(|rest| rest.split('"').next().unwrap());
        number.unwrap_or_else(|| cell.split_once('>').unwrap().1.split("</td>").next().unwrap()).to_owned()
    };
    let row = |row: &str| row.split("<td").skip(1).map(cell).collect();
    body.split("<tr>").skip(1).map(row).collect()
}

#[test]
fn every_figure_of_the_page_is_that_of_the_file() {
    let root = tempfile::tempdir().unwrap();
    let run = make(root.path(), Task::Classification);
    let rows = [
        variant("original f32", Some(0.9771), 1.25),
        variant("int8", Some(0.9731), 0.4375),
        variant("pruned int8", None, 0.25),
        variant("another thing", Some(0.9), 2.5),
    ];
    variants::write(&run.variants(), &rows).unwrap();
    let pruning = r#"{"multiply_adds": [1000, 250], "parameters": [2000, 1500],
        "layers": [{"layer": "layer1.0", "channels": [64, 48]}, {"layer": "fc", "channels": [10, 5]}]}"#;
    fs::write(run.optimise_pruning(), pruning).unwrap();
    let quantisation = r#"{"weights_sha256": "", "precision": "bf16", "ranges": {}, "layers": [
        {"layer": "conv<2>", "divergence": 0.00125, "ms": [0.5, 0.125]},
        {"layer": "conv3", "divergence": 0.0, "ms": null}],
        "kept": [{"layer": "fc", "reason": "its operation has no int8 kernel"}]}"#;
    fs::write(run.optimise_quantisation(), quantisation).unwrap();
    let report = report(&[&run]);
    assert_eq!(report.problems.iter().filter(|problem| problem.what.contains("network")).count(), 0);
    let whole = page::render(&report);
    let page = part(&whole);
    let file = fs::read_to_string(run.variants()).unwrap();
    let numbers = |text: &str| text.parse::<f64>().map_or_else(|_| text.to_owned(), |n| n.to_string());
    let in_file: Vec<Vec<String>> =
        file.lines().skip(1).map(|line| line.split(',').map(numbers).collect()).collect();
    let mut on_page = first_table(page);
    on_page[2][1] = on_page[2][1].replace('–', "");
    assert_eq!(on_page, in_file);
    for text in ["Original run: runs/digits/7.", "25.0 % of its multiply-adds", "75.0 % of its parameters"] {
        assert!(page.contains(text), "{text}");
    }
    for text in ["97.71", "0.4375", "42.6", "1,814,073,344", "2 layers lost channels", ">64<", ">48<", "75.0"]
    {
        assert!(page.contains(text), "{text}");
    }
    for text in [
        "2 layers in int8, the others in bf16",
        "conv&lt;2&gt;",
        "1.2500",
        "0.1250",
        "4.00",
        "no int8 kernel",
    ] {
        assert!(page.contains(text), "{text}");
    }
    // A variant without measure has no point; the fastest and the best one are not exceeded.
    assert_eq!(page.matches("<circle").count(), 3);
    assert_eq!(page.matches("class=\"point update\"").count(), 2);
    assert!(page.contains("aria-label=\"int8: top-1 97.31 %, 0.4375 ms\""), "{page}");
    let svg = page::variants_svg(&report.runs[0]).unwrap();
    assert!(svg.contains("<circle") && svg.contains("prefers-color-scheme: dark"));
    let text = markdown::markdown(&report);
    assert!(text.contains("| pruned int8 | – | 0.2500 | 0.5000 | 1.2500 | 42.6 | 1,814,073,344 |"), "{text}");
    assert!(text.contains("| layer1.0 | 64 | 48 |"), "{text}");
    assert!(text.contains("| conv3 | 0.0000 | – | – |"), "{text}");
    // The table of several runs has the columns of the file; a run without it has no rows.
    let plain = RunDir::create(root.path(), "plain").unwrap();
    let table = root.path().join("all.csv");
    let both = [run.clone(), plain];
    assert_eq!(tables::write(&both, TableKind::Variants, TableFormat::Csv, &table, None).unwrap(), 4);
    let table = fs::read_to_string(table).unwrap();
    assert!(table.starts_with("run,variant,measure,ms_median,ms_p99,ms_batch8,bytes,multiply_adds\n"));
    assert!(table.contains(",int8,0.9731,0.4375,0.875,2.1875,44700000,1814073344\n"), "{table}");
}

#[test]
fn segmentation_has_its_measure() {
    let root = tempfile::tempdir().unwrap();
    let run = make(root.path(), Task::Segmentation);
    variants::write(&run.variants(), &[variant("a", Some(0.5), 1.0)]).unwrap();
    let whole = page::render(&report(&[&run]));
    assert!(part(&whole).contains("mean IoU %") && part(&whole).contains("a: mean IoU 50.00 %"));
}

#[test]
fn other_runs_have_no_section_and_unfinished_ones_say_so() {
    let root = tempfile::tempdir().unwrap();
    let run = make(root.path(), Task::Classification);
    let report_of = || report(&[&run]);
    let whole = page::render(&report_of());
    assert!(part(&whole).contains("were not compared yet") && !part(&whole).contains("<table"));
    assert!(report_of().problems.iter().all(|problem| !problem.what.contains("variants")));
    fs::remove_dir_all(run.optimise()).unwrap();
    let whole = page::render(&report_of());
    assert!(!part(&whole).contains("Optimised"));
    assert!(report_of().runs[0].optimised.is_none() && page::variants_svg(&report_of().runs[0]).is_none());
}

#[test]
fn a_comparison_has_the_variants_of_all_runs() {
    let root = tempfile::tempdir().unwrap();
    let runs = [(); 3].map(|()| make(root.path(), Task::Classification));
    variants::write(&runs[0].variants(), &[variant("pruned f32", Some(0.9), 1.0)]).unwrap();
    variants::write(&runs[1].variants(), &[variant("pruned f32", Some(0.8), 0.5)]).unwrap();
    let report = report(&[&runs[0], &runs[1], &runs[2]]);
    let page = page::comparison_section(report.comparison.as_ref().unwrap(), &report.runs);
    let from = page.find("Optimised networks").unwrap();
    let rows = first_table(&page[from..]);
    assert_eq!(rows.iter().map(|row| row[1].as_str()).collect::<Vec<_>>(), ["pruned f32"; 2]);
    assert_ne!(rows[0][0], rows[1][0]);
    assert_eq!(page[from..].matches("<circle").count(), 2);
    assert!(markdown::markdown(&report).contains("# Optimised networks"));
    // The live page reads less of each run, but this too.
    let (one, _) = stratus_report::report::RunReport::read_for_comparison(runs[0].path(), "1".to_owned());
    assert_eq!(one.unwrap().optimised.unwrap().variants.len(), 1);
}

#[test]
fn hostile_files_are_named_and_never_become_markup() {
    let root = tempfile::tempdir().unwrap();
    let run = make(root.path(), Task::Classification);
    variants::write(&run.variants(), &[variant(HOSTILE, Some(0.5), 1.0), variant("", Some(0.5), 1.0)])
        .unwrap();
    let layer = serde_json::to_string(HOSTILE).unwrap();
    let pruning = format!(
        "{{\"multiply_adds\": [0, 18446744073709551615], \"parameters\": [0, 0], \"layers\": [{}]}}",
        vec![format!("{{\"layer\": {layer}, \"channels\": [0, 9007199254740993]}}"); 1500].join(",")
    );
    fs::write(run.optimise_pruning(), pruning).unwrap();
    fs::write(run.optimise_request(), format!("{{\"run\": {layer}}}")).unwrap();
    let whole = page::render(&report(&[&run]));
    let shown = part(&whole);
    assert!(!shown.contains("<script") && !shown.contains('\u{202e}') && !shown.contains("NaN"), "{shown}");
    assert!(shown.contains("first 1000 of them") && shown.contains("<details>"));
    let text = markdown::markdown(&report(&[&run]));
    assert!(!text.contains("<script") && text.contains("1300 more layers."), "{text:.400}");
    // Many rows are cut, with a sentence that says so.
    let many: Vec<Variant> =
        (0..5000).map(|at| variant(&format!("v{at}"), Some(0.5), f64::from(at))).collect();
    variants::write(&run.variants(), &many).unwrap();
    let whole = page::render(&report(&[&run]));
    let shown = part(&whole);
    assert!(shown.contains("first 200 of 5000 variants") && shown.contains("first 40 of 5000 networks"));
    assert_eq!((first_table(shown).len(), shown.matches("<circle").count()), (200, 40));
    // What is damaged is missing data.
    let header = variants::COLUMNS.join(",");
    for (content, reason) in [
        (format!("{header}\na,0.5,NaN,1,1,1,1\n"), "line 2: invalid ms_median"),
        (format!("{header}\na,0.5,1,1,1,1,1\nb,0.5,1"), "its last line is incomplete"),
        (format!("{header}\n{}", "a,0.5,1,1,1,1,1\n".repeat(1_000_000)), "it is larger than 1 MiB"),
        ("<script>\n".to_owned(), "line 1 has no column variant"),
    ] {
        fs::write(run.variants(), content).unwrap();
        let report = report(&[&run]);
        let problem = report.problems.iter().find(|problem| problem.what == "the variants of the network");
        assert!(problem.unwrap().reason.contains(reason), "{problem:?}");
        assert!(page::render(&report).contains("Optimised network"));
    }
    for (content, reason) in
        [("{", "it ends at line 1"), ("[1]", "not the expected JSON"), ("{}", "`multiply_adds`")]
    {
        fs::write(run.optimise_pruning(), content).unwrap();
        let report = report(&[&run]);
        let what = "the layers that lost channels";
        let problem = report.problems.iter().find(|problem| problem.what == what).unwrap();
        assert!(problem.reason.contains(reason), "{problem:?}");
        assert!(!problem.reason.contains("struct") && !problem.reason.contains("Pruning"), "{problem:?}");
    }
}
