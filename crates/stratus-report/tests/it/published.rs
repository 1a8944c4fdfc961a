//! `report --against`: published figures compared with those of generated runs.

use std::fs;
use std::path::{Path, PathBuf};

use stratus_report::report::{PublishedTable, Report};
use stratus_report::{markdown, page};
use stratus_run::machine::Machine;
use stratus_run::summary::{FinalMetrics, Memory, SpeedPercentiles, Summary, TimeBreakdown};
use stratus_run::{RunDir, atomic};

const TABLE: &str = "\
source,model,dataset,machine,epochs,Batch,quantity,value,unit
\"A. Author, 2020\",digits,mnist,lab-gpu,50,128,train_time,296,s
\"A. Author, 2020\",digits,mnist,lab-gpu,50,128,accuracy,87,percent
\"A. Author, 2020\",digits,mnist,lab-gpu,50,256,train_time,276,s
deck,DeepLabv3+-ResNet18,camvid-701,v100,,2,gpu_memory,8,GB
deck,digits,mnist,v100,,,images_per_second,5000,
deck,digits,mnist,v100,,,relative_time,158,percent
deck,digits,mnist,v100,,,time_per_image,0.5,ms
";

fn run(root: &Path, model: &str, batch_size: u64) -> PathBuf {
    let run = RunDir::create(root, "digits").unwrap();
    atomic::write(&run.experiment(), b"[model]\nname = \"digits\"\n").unwrap();
    run.prepare().unwrap();
    let summary = Summary {
        model: model.into(),
        dataset: "mnist".into(),
        batch_size,
        epochs: 10,
        time: TimeBreakdown { total_s: 148.0, ..TimeBreakdown::default() },
        final_metrics: FinalMetrics { val_top1: Some(0.957), ..FinalMetrics::default() },
        images_per_second: SpeedPercentiles { median: Some(10_000.0), ..SpeedPercentiles::default() },
        memory: Memory { device_peak_bytes: Some(4_000_000_000), ..Memory::default() },
        ..Summary::default()
    };
    summary.write(&run.summary()).unwrap();
    Machine { host: "here".into(), ..Machine::default() }.write(&run.machine()).unwrap();
    run.path().to_owned()
}

fn reference(root: &Path, text: &str) -> Result<PublishedTable, String> {
    let path = root.join("reference.csv");
    fs::write(&path, text).unwrap();
    let folder = format!("{}/", root.display());
    PublishedTable::read(&path).map_err(|error| error.to_string().replace(&folder, ""))
}

#[test]
fn compares_published_figures_with_runs() {
    let root = tempfile::tempdir().unwrap();
    let runs = [run(root.path(), "digits", 128), run(root.path(), "deeplabv3plus_resnet18", 2)];
    let mut report = Report::read(&runs, None, None);
    report.compare_with_published(&reference(root.path(), TABLE).unwrap());
    let comparison = report.published.clone().unwrap();
    let rows: Vec<_> = comparison
        .rows
        .iter()
        .map(|row| (row.published.metric.as_str(), row.run.as_str(), row.ours, row.ratio))
        .collect();
    let expected = [
        ("train_time", "digits/1", Some(148.0), Some(0.5)),
        ("accuracy", "digits/1", Some(95.7), Some(1.1)),
        ("gpu_memory", "digits/2", Some(4.0), Some(0.5)),
        ("images_per_second", "digits/1", Some(10_000.0), Some(2.0)),
        ("time_per_image", "digits/1", Some(0.1), Some(0.2)),
    ];
    for (row, (metric, run, ours, ratio)) in rows.iter().zip(&expected) {
        let is_close = |a: Option<f64>, b: &Option<f64>| (a.unwrap() - b.unwrap()).abs() < 1e-9;
        assert!(
            (row.0, row.1) == (*metric, *run) && is_close(row.2, ours) && is_close(row.3, ratio),
            "{row:?}"
        );
    }
    assert_eq!(rows.len(), expected.len(), "{rows:?}");
    // Differences are listed; rows without a matching run are counted.
    assert_eq!(comparison.rows[0].differences, ["epochs 50, here 10"]);
    assert_eq!(comparison.rows[2].differences, ["data set camvid-701, here mnist"]);
    assert_eq!(
        comparison.omissions(),
        "1 row is for other networks or batch sizes. Unsupported metrics: relative_time (1)."
    );
    let html = page::render(&report);
    assert!(html.contains("Published figures") && html.contains("lab-gpu") && html.contains("0.500"));
    let text = markdown::markdown(&report);
    let row = "| train time | digits | 128 | 296 | 148 | s | 0.500 | lab-gpu | here () | A. Author, 2020 |";
    assert!(text.contains(row), "{text}");
    let csv = markdown::to_csv(&report);
    assert!(csv.lines().nth(1).unwrap().starts_with("\"A. Author, 2020\",,digits,mnist,lab-gpu,,50,,128,"));
    assert_eq!(csv.lines().count(), 6);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["against"]["rows"][0]["published"]["value"], 296.0);
    assert_eq!(json["against"]["unknown"]["relative_time"], 1);
}

#[test]
fn missing_figure_of_a_run_is_none() {
    let root = tempfile::tempdir().unwrap();
    let runs = [run(root.path(), "digits", 128)];
    let mut report = Report::read(&runs, None, None);
    let table = "metric,value,unit\nmiou,0.6,fraction\nval_loss,0,\niteration_time,3,ms\n";
    report.compare_with_published(&reference(root.path(), table).unwrap());
    let comparison = report.published.clone().unwrap();
    assert!(comparison.rows.iter().all(|row| row.ours.is_none() && row.ratio.is_none()), "{comparison:?}");
    assert!(markdown::markdown(&report).contains("| miou |  |  | 0.6 | – | fraction | – |"));
    report.compare_with_published(&reference(root.path(), "metric,value,model\nmiou,0.6,vgg16\n").unwrap());
    assert!(page::render(&report).contains("No published figure matches"));
}

#[test]
fn refuses_invalid_tables_and_names_the_line() {
    let root = tempfile::tempdir().unwrap();
    let refused = |text: &str| reference(root.path(), text).unwrap_err();
    let columns = "expected source, framework, model, dataset, machine, image_size, epochs, \
                   iterations, batch_size, metric, value, unit, note";
    assert_eq!(
        refused("metric,valeu\n"),
        format!("reference.csv: line 1: unknown column `valeu`, did you mean `value`?; {columns}")
    );
    assert_eq!(
        refused("metric,value,colour of the cat\n"),
        format!("reference.csv: line 1: unknown column `colour of the cat`; {columns}")
    );
    assert_eq!(refused("metric\n"), "reference.csv: line 1: missing column `value`");
    assert_eq!(refused("metric,value,quantity\n"), "reference.csv: line 1: duplicate column `metric`");
    let value = "value must be a number with a decimal point and without a unit";
    assert_eq!(
        refused("metric,value\naccuracy,0.5\naccuracy,5 %\n"),
        format!("reference.csv: line 3: {value}, but is `5 %`")
    );
    assert!(refused("metric,value\naccuracy,inf\n").contains("line 2: value must be a number"));
    assert_eq!(
        refused("metric,value,unit\ntrain_time,3,parsec\n"),
        "reference.csv: line 2: unknown unit `parsec` of train_time; expected s, ms, us, µs, min, h"
    );
    assert_eq!(
        refused("metric,value,epochs\naccuracy,1,many\n"),
        "reference.csv: line 2: epochs must be an integer, but is `many`"
    );
    assert!(refused("metric,value\naccuracy\n").starts_with("reference.csv: "));
    assert!(refused("").contains("missing column `metric`"));
    let absent = PublishedTable::read(&root.path().join("none.csv")).unwrap_err().to_string();
    assert!(absent.starts_with("cannot read ") && absent.contains("none.csv"), "{absent}");
}
