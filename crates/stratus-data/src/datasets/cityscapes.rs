//! Cityscapes: street scenes of 50 cities with a class for every pixel, reduced to the 19 evaluated classes.
//!
//! M. Cordts et al.: "The Cityscapes dataset for semantic urban scene understanding", 2016. The layout is
//! that of its archives: `leftImg8bit/<split>/<city>/<id>_leftImg8bit.png` and
//! `gtFine/<split>/<city>/<id>_gtFine_labelIds.png`. The labels of the test split are not published.

use std::path::Path;

use super::files;
use super::label_encoding::{EncodingKind, LabelEncoding, class_table_of_ids};
use super::pairs::{Pair, PairedFiles};
use crate::dataset::{Dataset, IGNORED_PIXEL};
use crate::datasets::entry::{DatasetEntry, OpenOptions};
use crate::datasets::split::Split;
use crate::error::DataError;

const NAME: &str = "cityscapes";
const IMAGES: &str = "leftImg8bit";
const LABELS: &str = "gtFine";

/// The registry entry.
pub static ENTRY: DatasetEntry = DatasetEntry {
    name: NAME,
    summary: "3,475 street scenes with a class for every pixel, 19 classes; leftImg8bit/ and gtFine/",
    open: |root, split, options| open(root, split, options),
    files: &[],
    mirrors: &[],
};

/// The names of the classes.
pub(crate) const CLASSES: [&str; 19] = [
    "road",
    "sidewalk",
    "building",
    "wall",
    "fence",
    "pole",
    "traffic light",
    "traffic sign",
    "vegetation",
    "terrain",
    "sky",
    "person",
    "rider",
    "car",
    "truck",
    "bus",
    "train",
    "motorcycle",
    "bicycle",
];

static ENCODING: LabelEncoding<'static> = LabelEncoding {
    classes: &CLASSES,
    index_classes: class_table_of_ids(TRAINING_CLASSES, IGNORED_PIXEL),
    index_text: "ids 0 to 33, and 255 for ignored",
    colours: &[],
    index_colours: &COLOURS,
    kind: EncodingKind::Indices,
};

const NONE: u8 = IGNORED_PIXEL;
/// The training class of ids 0 to 33: `trainId` of the table published by the authors (cityscapesScripts,
/// `labels.py`).
const TRAINING_CLASSES: [u8; 34] = [
    // unlabeled, ego vehicle, rectification border, out of roi, static, dynamic, ground
    NONE, NONE, NONE, NONE, NONE, NONE, NONE, //
    // road, sidewalk, parking, rail track
    0, 1, NONE, NONE, //
    // building, wall, fence, guard rail, bridge, tunnel
    2, 3, 4, NONE, NONE, NONE, //
    // pole, polegroup, traffic light, traffic sign
    5, NONE, 6, 7, //
    // vegetation, terrain, sky
    8, 9, 10, //
    // person, rider, car, truck, bus, caravan, trailer, train, motorcycle, bicycle
    11, 12, 13, 14, 15, NONE, NONE, 16, 17, 18,
];

/// The colours of ids 0 to 33, from the same table. Label images hold ids; a palette may have these colours.
const COLOURS: [[u8; 3]; 34] = [
    // unlabeled, ego vehicle, rectification border, out of roi, static, dynamic, ground
    [0, 0, 0],
    [0, 0, 0],
    [0, 0, 0],
    [0, 0, 0],
    [0, 0, 0],
    [111, 74, 0],
    [81, 0, 81],
    // road, sidewalk, parking, rail track
    [128, 64, 128],
    [244, 35, 232],
    [250, 170, 160],
    [230, 150, 140],
    // building, wall, fence, guard rail, bridge, tunnel
    [70, 70, 70],
    [102, 102, 156],
    [190, 153, 153],
    [180, 165, 180],
    [150, 100, 100],
    [150, 120, 90],
    // pole, polegroup, traffic light, traffic sign
    [153, 153, 153],
    [153, 153, 153],
    [250, 170, 30],
    [220, 220, 0],
    // vegetation, terrain, sky
    [107, 142, 35],
    [152, 251, 152],
    [70, 130, 180],
    // person, rider, car, truck, bus, caravan, trailer, train, motorcycle, bicycle
    [220, 20, 60],
    [255, 0, 0],
    [0, 0, 142],
    [0, 0, 70],
    [0, 60, 100],
    [0, 0, 90],
    [0, 0, 110],
    [0, 80, 100],
    [0, 0, 230],
    [119, 11, 32],
];

/// The published colour of each class.
pub(crate) fn class_colours() -> Vec<[u8; 3]> {
    let mut colours = vec![[0; 3]; CLASSES.len()];
    for (class, colour) in TRAINING_CLASSES.into_iter().zip(COLOURS) {
        if let Some(known) = colours.get_mut(usize::from(class)) {
            *known = colour;
        }
    }
    colours
}

fn open(root: &Path, split: Split, options: &OpenOptions) -> Result<Box<dyn Dataset>, DataError> {
    let folder = match split {
        Split::Train => "train",
        Split::Validation => "val",
        Split::Test => {
            let problem = "the labels of the test images are not published; use the validation split";
            return Err(DataError::Unlabelled {
                dataset: NAME.to_owned(),
                split,
                problem: problem.to_owned(),
            });
        }
    };
    for needed in [IMAGES, LABELS] {
        if !root.join(needed).join(folder).is_dir() {
            return Err(DataError::Invalid {
                path: root.to_owned(),
                problem: format!(
                    "no folder `{needed}/{folder}`; expected {IMAGES}/{folder}/<city>/ and \
                     {LABELS}/{folder}/<city>/"
                ),
            });
        }
    }
    let mut pairs = Vec::new();
    let images = root.join(IMAGES).join(folder);
    let is_city = |name: &str| images.join(name).is_dir() || files::dead_link(&images.join(name)).is_some();
    for city in files::visible_names(&images, is_city)? {
        files::reject_dead_link(&images.join(&city))?;
        let suffix = format!("_{IMAGES}.png");
        for name in files::visible_names(&images.join(&city), |name| name.ends_with(&suffix))? {
            let id = name.strip_suffix(&suffix).unwrap_or(&name);
            pairs.push(Pair {
                image: format!("{IMAGES}/{folder}/{city}/{name}").into(),
                labels: format!("{LABELS}/{folder}/{city}/{id}_{LABELS}_labelIds.png").into(),
            });
        }
    }
    Ok(Box::new(PairedFiles::open(NAME, &ENCODING, root, split, pairs, options)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_training_class_has_exactly_one_id() {
        let mut classes: Vec<u8> = TRAINING_CLASSES.into_iter().filter(|&class| class != NONE).collect();
        classes.sort_unstable();
        assert_eq!(classes, (0..19).collect::<Vec<u8>>());
        assert_eq!([7, 11, 17, 21, 26, 33].map(|id| TRAINING_CLASSES[id]), [0, 2, 5, 8, 13, 18]);
    }
}
