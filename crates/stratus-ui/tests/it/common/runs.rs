//! Generated runs.

use std::fs;
use std::path::{Path, PathBuf};

use stratus_run::csv::{CsvWriter, EpochRow, IterationRow, Task};
use stratus_run::summary::{FinalMetrics, SpeedPercentiles, Status, Summary, TimeBreakdown};
use stratus_run::timeline::{Phase, Program, Purpose, Slot, TimelineWriter};
use stratus_run::{RunDir, atomic};

/// A run to be generated.
pub struct MadeRun<'a> {
    /// Its folder, like `digits/1`.
    pub path: &'a str,
    /// The names of experiment, network and layer.
    pub name: &'a str,
    /// The batch size, for differing configurations.
    pub batch_size: u32,
    pub epochs: u32,
    pub iterations_per_epoch: u64,
    pub status: Status,
}

impl Default for MadeRun<'static> {
    fn default() -> Self {
        Self {
            path: "digits/1",
            name: "digits",
            batch_size: 32,
            epochs: 2,
            iterations_per_epoch: 20,
            status: Status::Completed,
        }
    }
}

/// Writes a run; returns its directory.
pub fn make(root: &Path, made: &MadeRun) -> PathBuf {
    let path = root.join(made.path);
    fs::create_dir_all(&path).unwrap();
    let name = toml_text(made.name);
    let text = format!(
        "[experiment]\nname = {name}\n[model]\nname = {name}\n[data]\nname = {name}\n[train]\nepochs = 4\n\
         batch_size = {}\nprice_per_hour = 36.0\ndevice = \"cpu\"\n",
        made.batch_size
    );
    atomic::write(&path.join("experiment.toml"), text.as_bytes()).unwrap();
    let run = RunDir::open(&path).unwrap();
    run.prepare().unwrap();
    fs::write(run.log(), "2026-11-29T04:30:00.000Z started\n").unwrap();
    for epoch in 1..=made.epochs {
        append_iterations(&run, made.name, epoch, made.iterations_per_epoch);
        append_epoch(&run, epoch);
    }
    write_summary(&run, made);
    path
}

fn write_summary(run: &RunDir, made: &MadeRun) {
    let summary = Summary {
        status: made.status,
        experiment: made.name.to_owned(),
        model: made.name.to_owned(),
        dataset: made.name.to_owned(),
        device: "cpu".to_owned(),
        batch_size: u64::from(made.batch_size),
        epochs: made.epochs,
        iterations: u64::from(made.epochs) * made.iterations_per_epoch,
        images_per_second: SpeedPercentiles { median: Some(1000.0), p10: None, p90: None },
        time: TimeBreakdown { total_s: 25.0, ..TimeBreakdown::default() },
        final_metrics: FinalMetrics { val_loss: Some(0.5), ..FinalMetrics::default() },
        ..Summary::default()
    };
    summary.write(&run.summary()).unwrap();
}

/// Appends iterations of an epoch to `iterations.csv` and the timeline.
pub fn append_iterations(run: &RunDir, layer: &str, epoch: u32, count: u64) {
    let slot = |layers: &[&str], kind: &str, phase| Slot {
        layers: layers.iter().map(ToString::to_string).collect(),
        kind: kind.into(),
        phase,
        device: "cpu".into(),
    };
    let slots = vec![
        slot(&[], "", Phase::DataWait),
        slot(&[layer], "conv2d", Phase::Forward),
        slot(&[layer], "conv2d", Phase::BackwardWeights),
    ];
    let program = Program { name: "train".into(), purpose: Purpose::Train, batch_size: 32, slots };
    let mut rows = CsvWriter::<IterationRow>::open(&run.iterations(), Task::Classification).unwrap();
    let before = stratus_run::csv::read::<IterationRow>(&run.iterations()).unwrap().len() as u64;
    let mut timeline = TimelineWriter::open(&run.timeline()).unwrap();
    let id = timeline.register(&program).unwrap();
    for iteration in before + 1..=before + count {
        timeline.append(id, epoch, iteration, 10_000_100, &[1_000_000, 4_000_000, 5_000_000]).unwrap();
        let row = IterationRow {
            epoch,
            iteration,
            loss: 2.0 / iteration as f64,
            accuracy: Some(0.5),
            learning_rate: 0.1,
            data_s: 0.001,
            train_s: 0.009,
            ..IterationRow::default()
        };
        rows.append(&row).unwrap();
    }
    rows.flush().unwrap();
    timeline.flush().unwrap();
}

/// Appends an epoch to `epochs.csv`.
pub fn append_epoch(run: &RunDir, epoch: u32) {
    let mut rows = CsvWriter::<EpochRow>::open(&run.epochs(), Task::Classification).unwrap();
    let row = EpochRow {
        epoch,
        train_loss: 1.0 / f64::from(epoch),
        train_accuracy: 0.5,
        val_loss: Some(0.5),
        val_accuracy: Some(1.0 - 0.25 / f64::from(epoch)),
        elapsed_s: 10.0 * f64::from(epoch),
        ..EpochRow::default()
    };
    rows.append(&row).unwrap();
    rows.flush().unwrap();
}

/// A string of TOML.
fn toml_text(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            letter if letter.is_control() => out.push_str(&format!("\\u{:04X}", letter as u32)),
            letter => out.push(letter),
        }
    }
    out + "\""
}
