//! CamVid: 701 frames of driving through Cambridge, a class for every pixel.
//!
//! G. J. Brostow, J. Fauqueur, R. Cipolla: "Semantic object classes in video: a high-definition ground truth
//! database", 2009. Its 32 classes are reduced to the 11 that V. Badrinarayanan, A. Kendall and R. Cipolla
//! ("SegNet", 2017) and most others train on. Two layouts are read:
//!
//! - lists of pairs, `train.txt`, `val.txt`, `test.txt`, one line `train/x.png trainannot/x.png` per pair,
//!   with label images of 0 to 10 and 11 for void. Of absolute paths, only the last folder and file are used.
//! - the original files, `701_StillsRaw_full/x.png` and `LabeledApproved_full/x_L.png`, whose labels are 32
//!   colours; without lists they are split 60/20/20.
//!
//! Label images of either layout may use either encoding; `LabelEncoding` tells them apart.

use std::borrow::Cow;
use std::path::Path;

use super::label_encoding::{EncodingKind, LabelEncoding, class_table_of_ids};
use super::pairs::{Pair, PairedFiles};
use super::{files, split};
use crate::dataset::{Dataset, IGNORED_PIXEL};
use crate::datasets::entry::{DatasetEntry, OpenOptions};
use crate::datasets::split::{Split, SplitMethod};
use crate::error::DataError;
use crate::ignored_files::IgnoredFiles;

const NAME: &str = "camvid";
const IMAGES: &str = "701_StillsRaw_full";
const LABELS: &str = "LabeledApproved_full";
/// The seed that splits the original files.
const SPLIT_SEED: u64 = 1;

/// The registry entry.
pub static ENTRY: DatasetEntry = DatasetEntry {
    name: NAME,
    summary: "701 street scenes with a class for every pixel, 11 classes; list files or the original",
    open: |root, split, options| open(root, split, options),
    files: &[],
    mirrors: &[],
};

/// The names of the classes.
pub(crate) const CLASSES: [&str; 11] = [
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

/// The colour of each class: that of the published class that it is named after.
pub(crate) const CLASS_COLOURS: [[u8; 3]; 11] = [
    [128, 128, 128],
    [128, 0, 0],
    [192, 192, 128],
    [128, 64, 128],
    [0, 0, 192],
    [128, 128, 0],
    [192, 128, 128],
    [64, 64, 128],
    [64, 0, 128],
    [64, 64, 0],
    [0, 128, 192],
];

/// Label encoding of the list-file layout.
static LIST_ENCODING: LabelEncoding<'static> = label_encoding(EncodingKind::IndicesOrColours);
/// Label encoding of the original files.
static ORIGINAL_ENCODING: LabelEncoding<'static> = label_encoding(EncodingKind::Colours);

const fn label_encoding(kind: EncodingKind) -> LabelEncoding<'static> {
    LabelEncoding {
        classes: &CLASSES,
        index_classes: class_table_of_ids([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 11),
        index_text: "0 to 10, and 11 for void",
        colours: &COLOURS,
        index_colours: &[],
        kind,
    }
}

/// The 32 published colours of the original label images, and the class that each is reduced to.
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
    let pairs = match (&options.split_method, list) {
        (SplitMethod::Lists(_), _) => match options.split_method.list_of(split) {
            Some(list) => listed_pairs(list)?,
            None => Vec::new(),
        },
        (SplitMethod::Unsplit, _) => all_pairs(root)?,
        (SplitMethod::Seeded(seed), _) => split_pairs(&all_pairs(root)?, *seed, split),
        (SplitMethod::Published, Some(list)) => listed_pairs(&list)?,
        (SplitMethod::Published, None) if !listed && root.join(IMAGES).is_dir() => {
            split_pairs(&original_pairs(root)?, SPLIT_SEED, split)
        }
        (SplitMethod::Published, None) => return Err(missing_layout_error(root, lists)),
    };
    let original = pairs.iter().all(|pair| pair.labels.starts_with(LABELS));
    let encoding = if original { &ORIGINAL_ENCODING } else { &LIST_ENCODING };
    let ignored_files = if original { other_files(root)? } else { IgnoredFiles::default() };
    let set = PairedFiles::open(NAME, encoding, root, split, pairs, options)?;
    Ok(Box::new(set.with_ignored_files(ignored_files)))
}

/// The files beside the original images that are not PNG files.
fn other_files(root: &Path) -> Result<IgnoredFiles, DataError> {
    let folder = root.join(IMAGES);
    let mut ignored_files = IgnoredFiles::default();
    for name in files::visible_names(&folder, |name| stem_of(name).is_none())? {
        let path = folder.join(name);
        if !path.is_dir() {
            ignored_files.add(|| path.display().to_string());
        }
    }
    Ok(ignored_files)
}

fn missing_layout_error(root: &Path, lists: &[&str]) -> DataError {
    let problem = format!(
        "neither {} nor {IMAGES}/ found; expected lists of pairs, or {IMAGES}/ and {LABELS}/",
        lists.join(" nor ")
    );
    DataError::Invalid { path: root.to_owned(), problem }
}

/// All pairs: of the original files, or else of all lists.
fn all_pairs(root: &Path) -> Result<Vec<Pair>, DataError> {
    if root.join(IMAGES).is_dir() {
        return original_pairs(root);
    }
    let names = ["train.txt", "val.txt", "valid.txt", "validation.txt", "test.txt"];
    let lists: Vec<_> = names.iter().map(|list| root.join(list)).filter(|list| list.is_file()).collect();
    if lists.is_empty() {
        return Err(missing_layout_error(root, &["train.txt", "val.txt", "test.txt"]));
    }
    let pairs: Vec<Vec<Pair>> = lists.iter().map(|list| listed_pairs(list)).collect::<Result<_, _>>()?;
    Ok(pairs.concat())
}

/// The pairs of a split, assigned by the file names of the images.
fn split_pairs(pairs: &[Pair], seed: u64, split: Split) -> Vec<Pair> {
    let name = |pair: &Pair| pair.image.rsplit('/').next().unwrap_or_default().to_owned();
    let part = split::seeded_split(seed, split, pairs.iter().map(|pair| Cow::Owned(name(pair))));
    part.into_iter().map(|index| pairs[index as usize].clone()).collect()
}

/// Reads the pairs of a list file: image and label image on each line.
fn listed_pairs(list: &Path) -> Result<Vec<Pair>, DataError> {
    let text = files::read_list(list)?;
    let mut pairs = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let invalid = |problem: String| DataError::Invalid {
            path: list.to_owned(),
            problem: format!("line {}: {problem}", number + 1),
        };
        let words: Vec<&str> = line.split_whitespace().collect();
        let (image, labels) = match words[..] {
            [] => continue,
            [image, labels] => (image, labels),
            _ => {
                let count = words.len();
                return Err(invalid(format!("expected 2 fields (image, label image), found {count}")));
            }
        };
        let relative = |word: &str| {
            path_below_root(word)
                .map(Box::from)
                .ok_or_else(|| invalid(format!("path `{word}` is outside the data set folder")))
        };
        pairs.push(Pair { image: relative(image)?, labels: relative(labels)? });
    }
    if pairs.is_empty() {
        return Err(DataError::Empty { origin: list.display().to_string() });
    }
    Ok(pairs)
}

/// A listed path relative to the data set folder. Absolute paths are those of another machine.
fn path_below_root(word: &str) -> Option<&str> {
    let path = if word.starts_with('/') {
        let (folders, _) = word.rsplit_once('/')?;
        &word[folders.rfind('/')? + 1..]
    } else {
        word.strip_prefix("./").unwrap_or(word)
    };
    files::is_relative_inside(path).then_some(path)
}

/// The pairs of the original files. Missing label images are detected when they are read.
fn original_pairs(root: &Path) -> Result<Vec<Pair>, DataError> {
    let names = files::visible_names(&root.join(IMAGES), |name| stem_of(name).is_some())?;
    let pair = |name: &String| {
        let stem = stem_of(name).unwrap_or(name);
        // The case of the file extension may differ between the two.
        let extension = &name[stem.len()..];
        let labels = [extension, ".png", ".PNG"].map(|extension| format!("{LABELS}/{stem}_L{extension}"));
        let existing = labels.iter().find(|labels| root.join(labels).is_file());
        let labels = existing.unwrap_or(&labels[0]).as_str().into();
        Pair { image: format!("{IMAGES}/{name}").into(), labels }
    };
    Ok(names.iter().map(pair).collect())
}

/// The name of a PNG file without its extension.
fn stem_of(name: &str) -> Option<&str> {
    let stem = name.len().checked_sub(4)?;
    name.get(stem..)?.eq_ignore_ascii_case(".png").then_some(&name[..stem])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_paths_stay_below_the_folder() {
        assert_eq!(path_below_root("train/a.png"), Some("train/a.png"));
        assert_eq!(path_below_root("./train/a.png"), Some("train/a.png"));
        assert_eq!(path_below_root("/SegNet/CamVid/train/a.png"), Some("train/a.png"));
        assert_eq!(path_below_root("/train/a.png"), Some("train/a.png"));
        for path in ["../a.png", "a/../../b.png", "/a.png", "/x/../a.png", "/x/..", "/"] {
            assert_eq!(path_below_root(path), None, "{path}");
        }
    }

    #[test]
    fn colours_are_distinct_and_cover_every_class() {
        for (at, (colour, _)) in COLOURS.iter().enumerate() {
            assert!(COLOURS[..at].iter().all(|(other, _)| other != colour), "{colour:?}");
        }
        for class in 0..CLASSES.len() as u8 {
            let colour = CLASS_COLOURS[usize::from(class)];
            assert!(COLOURS.iter().any(|(found, reduced)| *reduced == class && *found == colour));
        }
    }
}
