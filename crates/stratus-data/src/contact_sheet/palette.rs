//! The colours of classes: those that a data set publishes, those of a file, or generated ones.

use std::path::Path;

use stratus_base::{did_you_mean, nearest};

use crate::datasets::{camvid, cityscapes, files};
use crate::error::DataError;

/// The classes of Pascal VOC, background first (M. Everingham et al.: "The Pascal visual object classes (VOC)
/// challenge", 2010).
const VOC_CLASSES: [&str; 21] = [
    "background",
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
];

/// A colour for each class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassPalette {
    /// The colours of the first classes; all others are generated.
    colours: Vec<[u8; 3]>,
}

impl ClassPalette {
    /// The colours for classes of these names, by their indices: the published ones if the names are those of
    /// CamVid, Cityscapes or Pascal VOC, else generated ones. Case, spaces and punctuation do not matter.
    #[must_use]
    pub fn for_classes(names: &[String]) -> Self {
        let is_same = |published: &[&str]| {
            published.len() == names.len()
                && published.iter().zip(names).all(|(one, other)| letters(one).eq(letters(other)))
        };
        let colours = if is_same(&camvid::CLASSES) {
            camvid::CLASS_COLOURS.to_vec()
        } else if is_same(&cityscapes::CLASSES) {
            cityscapes::class_colours()
        } else if is_same(&VOC_CLASSES) {
            (0..VOC_CLASSES.len()).map(voc_colour).collect()
        } else {
            Vec::new()
        };
        Self { colours }
    }

    /// Reads the colours of a file: one class per line, red, green and blue from 0 to 255 and then the name,
    /// such as `128 64 128 road`. Empty lines and those that begin with `#` are skipped. Classes that the
    /// file does not name keep their colours.
    ///
    /// # Errors
    ///
    /// [`DataError`]: the file cannot be read, or names a class that is unknown or has a colour already.
    pub fn read(path: &Path, names: &[String]) -> Result<Self, DataError> {
        let text = files::read_list(path)?;
        Self::parse(&text, names).map_err(|problem| DataError::Invalid { path: path.to_owned(), problem })
    }

    fn parse(text: &str, names: &[String]) -> Result<Self, String> {
        let known = Self::for_classes(names);
        let mut colours: Vec<[u8; 3]> = (0..names.len()).map(|class| known.colour(class)).collect();
        let mut named = vec![false; names.len()];
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let invalid = |problem: String| format!("line {}: {problem}", number + 1);
            let (colour, name) = parse_line(line).ok_or_else(|| {
                invalid(
                    "expected red, green and blue from 0 to 255 and a class, like `128 64 128 road`".into(),
                )
            })?;
            let Some(class) = names.iter().position(|known| known == name) else {
                let hint = did_you_mean(nearest(name, names.iter().map(String::as_str)));
                return Err(invalid(format!("unknown class `{}`{hint}", name.escape_debug())));
            };
            if std::mem::replace(&mut named[class], true) {
                return Err(invalid(format!("class `{name}` has a colour already")));
            }
            colours[class] = colour;
        }
        if named.contains(&true) { Ok(Self { colours }) } else { Err("no colours".to_owned()) }
    }

    /// The palette with further classes of these colours, which follow the first `classes`.
    #[must_use]
    pub fn followed_by(&self, classes: usize, more: &[[u8; 3]]) -> Self {
        let colours = (0..classes).map(|class| self.colour(class)).chain(more.iter().copied()).collect();
        Self { colours }
    }

    /// The colour of a class.
    #[must_use]
    pub fn colour(&self, class: usize) -> [u8; 3] {
        self.colours.get(class).copied().unwrap_or_else(|| generated_colour(class))
    }
}

/// The colour and the name of a line.
fn parse_line(line: &str) -> Option<([u8; 3], &str)> {
    let mut rest = line;
    let mut colour = [0; 3];
    for channel in &mut colour {
        let (number, after) = rest.split_once(|letter: char| letter.is_whitespace() || letter == ',')?;
        *channel = number.parse().ok()?;
        rest = after.trim_start();
    }
    (!rest.is_empty()).then_some((colour, rest))
}

/// The letters and digits of a name, in lower case.
fn letters(name: &str) -> impl Iterator<Item = char> + '_ {
    name.chars().filter(|letter| letter.is_alphanumeric()).flat_map(char::to_lowercase)
}

/// Pascal VOC's colour of a class: every third bit of the index, the lowest first, makes the bits of red,
/// green and blue, the highest first.
fn voc_colour(class: usize) -> [u8; 3] {
    let channel =
        |offset: usize| (0..8).fold(0, |value, bit| value | (class >> (3 * bit + offset) & 1) << (7 - bit));
    [0, 1, 2].map(|offset| channel(offset) as u8)
}

/// A colour for any class: hues a golden section apart, so that neighbours differ, in three shades.
fn generated_colour(class: usize) -> [u8; 3] {
    let hue = class as f64 * 0.618_033_988_75 % 1.0 * 6.0;
    let (strength, light) = [(0.85, 255.0), (0.6, 230.0), (0.95, 170.0)][class % 3];
    // Hue to red, green and blue: each is full for a third of the circle and rises and falls in a sixth.
    let channel = |middle: f64| {
        let distance = (hue - middle).abs().min(6.0 - (hue - middle).abs());
        let share = (2.0 - distance).clamp(0.0, 1.0);
        (light * (1.0 - strength * (1.0 - share))).round() as u8
    };
    [channel(0.0), channel(2.0), channel(4.0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn generated_colours_are_distinct() {
        let palette = ClassPalette::default();
        for class in 0..100 {
            for other in 0..class {
                assert_ne!(palette.colour(class), palette.colour(other), "{class} {other}");
            }
        }
    }

    #[test]
    fn classes_of_known_names_have_their_published_colours() {
        let camvid = ClassPalette::for_classes(&owned(&camvid::CLASSES));
        assert_eq!(
            [0, 1, 3, 4, 10].map(|class| camvid.colour(class)),
            [[128, 128, 128], [128, 0, 0], [128, 64, 128], [0, 0, 192], [0, 128, 192]]
        );
        let mut cityscapes = owned(&cityscapes::CLASSES);
        cityscapes[6] = "Traffic_Light".to_owned();
        let cityscapes = ClassPalette::for_classes(&cityscapes);
        assert_eq!(
            [0, 6, 10, 18].map(|class| cityscapes.colour(class)),
            [[128, 64, 128], [250, 170, 30], [70, 130, 180], [119, 11, 32]]
        );
        let mut voc = owned(&VOC_CLASSES);
        voc[0] = "__background__".to_owned();
        voc[11] = "dining table".to_owned();
        let voc = ClassPalette::for_classes(&voc);
        assert_eq!(
            [0, 1, 2, 7, 15, 20].map(|class| voc.colour(class)),
            [[0, 0, 0], [128, 0, 0], [0, 128, 0], [128, 128, 128], [192, 128, 128], [0, 64, 128]]
        );
        // Any other list of classes, even a part, has generated colours, and so has any further class.
        assert_eq!(ClassPalette::for_classes(&owned(&camvid::CLASSES[..10])), ClassPalette::default());
        assert_eq!(ClassPalette::for_classes(&[]), ClassPalette::default());
        assert_eq!(camvid.colour(11), ClassPalette::default().colour(11));
    }

    #[test]
    fn a_file_gives_the_colours_of_the_classes_that_it_names() {
        let names = owned(&["sky", "traffic sign", "road"]);
        let palette =
            ClassPalette::parse("# mine\n\n 1 2 3\ttraffic sign\r\n255,0,9,road\n", &names).unwrap();
        let generated = ClassPalette::default();
        assert_eq!(
            [0, 1, 2, 3].map(|class| palette.colour(class)),
            [generated.colour(0), [1, 2, 3], [255, 0, 9], generated.colour(3)]
        );
        for (text, problem) in [
            ("", "no colours"),
            ("# 1 2 3 road", "no colours"),
            ("1 2 3", "line 1: expected red, green and blue"),
            ("\n1 2 256 road", "line 2: expected red"),
            ("1 -2 3 road", "line 1: expected red"),
            ("1 2 3 roat", "line 1: unknown class `roat`, did you mean `road`?"),
            ("1 2 3 r\u{1b}[2J", "line 1: unknown class `r\\u{1b}[2J`"),
            ("1 2 3 road\n4 5 6 road", "line 2: class `road` has a colour already"),
        ] {
            let found = ClassPalette::parse(text, &names).unwrap_err();
            assert!(found.starts_with(problem), "{found}");
        }
    }
}
