//! Photographs of three classes, each class in a folder of its own.

use super::{Place, Ran, streets};
use png::ColorType;

/// Ten images of each of three classes: a bright row, column or frame, with some noise.
pub fn put_photographs(place: &Place, folder: &str) {
    for (class, name) in ["column", "frame", "row"].iter().enumerate() {
        for image in 0..10 {
            let pixel = |at: usize| {
                let (row, column) = (at / 12, at % 12);
                let bright =
                    [column == 3 + image % 6, row * column * (11 - row) * (11 - column) == 0, row == 6];
                (at * 37 + image * 101) as u8 % 60 + if bright[class] { 190 } else { 0 }
            };
            let path = place.path(&format!("{folder}/{name}/{image}.png"));
            streets::write_sized(
                &path,
                ColorType::Grayscale,
                &(0..144).map(pixel).collect::<Vec<_>>(),
                [12, 12],
            );
        }
    }
}

/// What a training on them is told: small enough for the reference backend.
pub const SETTINGS: &[&str] = &[
    "data.name=folder",
    "data.shape=[1, 12, 12]",
    "data.split_seed=0",
    "train.device=reference",
    "model.width=4",
    "train.batch_size=9",
    "train.epochs=2",
];

/// A place with photographs.
pub fn place() -> Place {
    let place = Place::bare();
    put_photographs(&place, "photographs");
    place
}

/// Trains digits on them, as on a terminal of so many columns.
pub fn train(place: &Place, run: &str, more: &[&str], columns: Option<&str>) -> Ran {
    let settings = SETTINGS.iter().chain(more).flat_map(|setting| ["--set", setting]);
    let begin = ["train", "digits", "--out", run, "--data", "photographs"];
    shown(place, &begin.into_iter().chain(settings).collect::<Vec<_>>(), columns)
}

/// Runs a command, as on a terminal of so many columns.
pub fn shown(place: &Place, arguments: &[&str], columns: Option<&str>) -> Ran {
    let mut command = place.command(arguments);
    if let Some(columns) = columns {
        command.env("COLUMNS", columns);
    }
    Ran::of(command.output().unwrap())
}
