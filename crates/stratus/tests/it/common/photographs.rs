//! Photographs of three classes, each in a separate folder.

use super::{CommandOutput, TestDir, streets};
use png::ColorType;

/// Writes ten images of each of three classes: a bright row, column or frame, with some noise.
pub fn write_photographs(dir: &TestDir, folder: &str) {
    for (class, name) in ["column", "frame", "row"].iter().enumerate() {
        for image in 0..10 {
            let pixel = |at: usize| {
                let (row, column) = (at / 12, at % 12);
                let bright =
                    [column == 3 + image % 6, row * column * (11 - row) * (11 - column) == 0, row == 6];
                (at * 37 + image * 101) as u8 % 60 + if bright[class] { 190 } else { 0 }
            };
            let path = dir.path(&format!("{folder}/{name}/{image}.png"));
            streets::write_sized(
                &path,
                ColorType::Grayscale,
                &(0..144).map(pixel).collect::<Vec<_>>(),
                [12, 12],
            );
        }
    }
}

/// Settings to train on the photographs, small enough for the reference backend.
pub const SETTINGS: &[&str] = &[
    "data.name=folder",
    "data.shape=[1, 12, 12]",
    "data.split_seed=0",
    "train.device=reference",
    "model.width=4",
    "train.batch_size=9",
    "train.epochs=2",
];

/// A test folder with photographs.
pub fn test_dir() -> TestDir {
    let dir = TestDir::without_kernel_cache();
    write_photographs(&dir, "photographs");
    dir
}

/// Trains digits on the photographs, on a terminal of `columns` columns.
pub fn train(dir: &TestDir, run: &str, more: &[&str], columns: Option<&str>) -> CommandOutput {
    let settings = SETTINGS.iter().chain(more).flat_map(|setting| ["--set", setting]);
    let begin = ["train", "digits", "--out", run, "--data", "photographs"];
    run_with_columns(dir, &begin.into_iter().chain(settings).collect::<Vec<_>>(), columns)
}

/// Runs a command on a terminal of `columns` columns.
pub fn run_with_columns(dir: &TestDir, arguments: &[&str], columns: Option<&str>) -> CommandOutput {
    let mut command = dir.command(arguments);
    if let Some(columns) = columns {
        command.env("COLUMNS", columns);
    }
    CommandOutput::new(command.output().unwrap())
}
