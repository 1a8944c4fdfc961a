//! Photographs of three classes, each class in a folder of its own.

use super::{Place, streets};
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
