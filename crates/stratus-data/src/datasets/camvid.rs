//! CamVid: 701 frames of driving through Cambridge, a class for every pixel.
//!
//! G. J. Brostow, J. Fauqueur, R. Cipolla: "Semantic object classes in video: a high-definition ground truth
//! database", 2009. Its 32 classes are reduced to the 11 that V. Badrinarayanan, A. Kendall and R. Cipolla
//! ("SegNet", 2017) and most others train on. Two layouts are read:
//!
//! - lists of pairs, `train.txt`, `val.txt`, `test.txt`, a line `train/x.png trainannot/x.png` each, with
//!   label images of 0 to 10 and 11 for void. A path from the root of somebody's file system counts by its
//!   last folder and file.
//! - the original files, `701_StillsRaw_full/x.png` and `LabeledApproved_full/x_L.png`, whose labels are 32
//!   colours; without lists they are split 60/20/20.
//!
//! Label images of either layout may be of either kind: what a palette, or a grey image, means is told by
//! `Coding`.

use std::borrow::Cow;
use std::path::Path;

use super::coding::{Coding, Form, values_of};
use super::pairs::{Pair, PairedFiles};
use super::{Dataset, DatasetEntry, IGNORED_PIXEL, OpenOptions, Split, SplitBy, files, split};
use crate::error::DataError;

const NAME: &str = "camvid";
const IMAGES: &str = "701_StillsRaw_full";
const LABELS: &str = "LabeledApproved_full";
/// The seed of the split that the original files get.
const SPLIT_SEED: u64 = 1;

/// The registry's entry.
pub static ENTRY: DatasetEntry = DatasetEntry {
    name: NAME,
    summary: "701 street scenes with a class for every pixel, 11 classes; list files or the original",
    open: |root, split, options| open(root, split, options),
    files: &[],
    mirrors: &[],
};

const CLASSES: [&str; 11] = [
    "sky",
    "building",
    "pole",
    "road",
    "pavement",
    "tree",
    "sign_symbol",
    "fence",
    "car",
    "pedestrian",
    "bicyclist",
];

/// What label images that lists name say.
static LISTED: Coding<'static> = coding(Form::NumbersOrColours);
/// What the original label images say.
static ORIGINAL: Coding<'static> = coding(Form::Colours);

const fn coding(form: Form) -> Coding<'static> {
    Coding {
        classes: &CLASSES,
        values: values_of([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 11),
        values_text: "0 to 10, and 11 for void",
        colours: &COLOURS,
        own: &[],
        form,
    }
}

/// The 32 colours of the original label images: the data set's own table, and the class that each is reduced
/// to.
const COLOURS: [([u8; 3], u8); 32] = [
    // Sky.
    ([128, 128, 128], 0),
    // Archway, Bridge, Building, Tunnel, Wall.
    ([192, 0, 128], 1),
    ([0, 128, 64], 1),
    ([128, 0, 0], 1),
    ([64, 0, 64], 1),
    ([64, 192, 0], 1),
    // Column_Pole, TrafficCone.
    ([192, 192, 128], 2),
    ([0, 0, 64], 2),
    // LaneMkgsDriv, LaneMkgsNonDriv, Road.
    ([128, 0, 192], 3),
    ([192, 0, 64], 3),
    ([128, 64, 128], 3),
    // ParkingBlock, RoadShoulder, Sidewalk.
    ([64, 192, 128], 4),
    ([128, 128, 192], 4),
    ([0, 0, 192], 4),
    // Tree, VegetationMisc.
    ([128, 128, 0], 5),
    ([192, 192, 0], 5),
    // Misc_Text, SignSymbol, TrafficLight.
    ([128, 128, 64], 6),
    ([192, 128, 128], 6),
    ([0, 64, 64], 6),
    // Fence.
    ([64, 64, 128], 7),
    // Car, OtherMoving, SUVPickupTruck, Train, Truck_Bus.
    ([64, 0, 128], 8),
    ([128, 64, 64], 8),
    ([64, 128, 192], 8),
    ([192, 64, 128], 8),
    ([192, 128, 192], 8),
    // Animal, CartLuggagePram, Child, Pedestrian.
    ([64, 128, 64], 9),
    ([64, 0, 192], 9),
    ([192, 128, 64], 9),
    ([64, 64, 0], 9),
    // Bicyclist, MotorcycleScooter.
    ([0, 128, 192], 10),
    ([192, 0, 192], 10),
    // Void.
    ([0, 0, 0], IGNORED_PIXEL),
];

fn open(root: &Path, split: Split, options: &OpenOptions) -> Result<Box<dyn Dataset>, DataError> {
    let lists: &[&str] = match split {
        Split::Train => &["train.txt"],
        Split::Validation => &["val.txt", "valid.txt", "validation.txt", "test.txt"],
        Split::Test => &["test.txt", "val.txt", "valid.txt", "validation.txt"],
    };
    let list = lists.iter().map(|list| root.join(list)).find(|list| list.is_file());
    let listed = root.join("train.txt").is_file();
    let pairs = match (&options.split_by, list) {
        (SplitBy::Listed(_), _) => match options.split_by.list_of(split) {
            Some(list) => listed_pairs(list)?,
            None => Vec::new(),
        },
        (SplitBy::Whole, _) => all_pairs(root)?,
        (SplitBy::Seeded(seed), _) => part_of(&all_pairs(root)?, *seed, split),
        (SplitBy::Given, Some(list)) => listed_pairs(&list)?,
        (SplitBy::Given, None) if !listed && root.join(IMAGES).is_dir() => {
            part_of(&original_pairs(root)?, SPLIT_SEED, split)
        }
        (SplitBy::Given, None) => return Err(nothing_there(root, lists)),
    };
    let original = pairs.iter().all(|pair| pair.labels.starts_with(LABELS));
    let coding = if original { &ORIGINAL } else { &LISTED };
    Ok(Box::new(PairedFiles::open(NAME, coding, root, split, pairs, options)?))
}

fn nothing_there(root: &Path, lists: &[&str]) -> DataError {
    let problem = format!(
        "holds neither {} nor {IMAGES}/; the layout is lists of pairs, or {IMAGES}/ and {LABELS}/",
        lists.join(" nor ")
    );
    DataError::Damaged { path: root.to_owned(), problem }
}

/// Every pair that there is: of the original files, or else of all lists.
fn all_pairs(root: &Path) -> Result<Vec<Pair>, DataError> {
    if root.join(IMAGES).is_dir() {
        return original_pairs(root);
    }
    let names = ["train.txt", "val.txt", "valid.txt", "validation.txt", "test.txt"];
    let lists: Vec<_> = names.iter().map(|list| root.join(list)).filter(|list| list.is_file()).collect();
    if lists.is_empty() {
        return Err(nothing_there(root, &["train.txt", "val.txt", "test.txt"]));
    }
    let pairs: Vec<Vec<Pair>> = lists.iter().map(|list| listed_pairs(list)).collect::<Result<_, _>>()?;
    Ok(pairs.concat())
}

/// A part by the images' file names.
fn part_of(pairs: &[Pair], seed: u64, split: Split) -> Vec<Pair> {
    let name = |pair: &Pair| pair.image.rsplit('/').next().unwrap_or_default().to_owned();
    let part = split::part_of(seed, split, pairs.iter().map(|pair| Cow::Owned(name(pair))));
    part.into_iter().map(|index| pairs[index as usize].clone()).collect()
}

/// The pairs of a list, a line each: image, label image.
fn listed_pairs(list: &Path) -> Result<Vec<Pair>, DataError> {
    let text = files::read_list(list)?;
    let mut pairs = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let wrong = |problem: String| DataError::Damaged {
            path: list.to_owned(),
            problem: format!("line {}: {problem}", number + 1),
        };
        let words: Vec<&str> = line.split_whitespace().collect();
        let (image, labels) = match words[..] {
            [] => continue,
            [image, labels] => (image, labels),
            _ => {
                let count = words.len();
                return Err(wrong(format!("{count} words; a line is an image and its label image")));
            }
        };
        let below = |word: &str| {
            listed_path(word)
                .map(Box::from)
                .ok_or_else(|| wrong(format!("`{word}` leads out of the data set's folder")))
        };
        pairs.push(Pair { image: below(image)?, labels: below(labels)? });
    }
    if pairs.is_empty() {
        return Err(DataError::Empty { origin: list.display().to_string() });
    }
    Ok(pairs)
}

/// A listed path, below the data set's folder. One that begins at a root is that of the machine that the list
/// was written on.
fn listed_path(word: &str) -> Option<&str> {
    let path = if word.starts_with('/') {
        let (folders, _) = word.rsplit_once('/')?;
        &word[folders.rfind('/')? + 1..]
    } else {
        word.strip_prefix("./").unwrap_or(word)
    };
    files::is_below(path).then_some(path)
}

/// The pairs of the original files. Which label image is missing is found when it is to be read.
fn original_pairs(root: &Path) -> Result<Vec<Pair>, DataError> {
    let names = files::names_in(&root.join(IMAGES), |name| stem_of(name).is_some())?;
    let pair = |name: &String| {
        let stem = stem_of(name).unwrap_or(name);
        // Endings are written in any case, and not always in the same.
        let ending = &name[stem.len()..];
        let labels = [ending, ".png", ".PNG"].map(|ending| format!("{LABELS}/{stem}_L{ending}"));
        let there = labels.iter().find(|labels| root.join(labels).is_file());
        let labels = there.unwrap_or(&labels[0]).as_str().into();
        Pair { image: format!("{IMAGES}/{name}").into(), labels }
    };
    Ok(names.iter().map(pair).collect())
}

/// A PNG file's name without its ending.
fn stem_of(name: &str) -> Option<&str> {
    let stem = name.len().checked_sub(4)?;
    name.get(stem..)?.eq_ignore_ascii_case(".png").then_some(&name[..stem])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_paths_are_below_the_folder() {
        assert_eq!(listed_path("train/a.png"), Some("train/a.png"));
        assert_eq!(listed_path("./train/a.png"), Some("train/a.png"));
        assert_eq!(listed_path("/SegNet/CamVid/train/a.png"), Some("train/a.png"));
        assert_eq!(listed_path("/train/a.png"), Some("train/a.png"));
        for path in ["../a.png", "a/../../b.png", "/a.png", "/x/../a.png", "/x/..", "/"] {
            assert_eq!(listed_path(path), None, "{path}");
        }
    }

    #[test]
    fn the_colours_are_all_different_and_reach_every_class() {
        for (at, (colour, _)) in COLOURS.iter().enumerate() {
            assert!(COLOURS[..at].iter().all(|(other, _)| other != colour), "{colour:?}");
        }
        for class in 0..CLASSES.len() as u8 {
            assert!(COLOURS.iter().any(|(_, reduced)| *reduced == class));
        }
    }
}
