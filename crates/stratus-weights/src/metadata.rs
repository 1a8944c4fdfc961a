//! What travels beside weights: how a network wants its images, and what its classes are called.
//!
//! It stands in the `__metadata__` of a safetensors file and in the `metadata_props` of an ONNX model, both
//! of which hold texts by keys. Lists are JSON:
//!
//! ```text
//! class_names     ["sky","road"]              by the number of the class
//! mean, std       [0.485,0.456,0.406]         of each channel; the network gets (value / 255 - mean) / std
//! input_shape     [3,360,480]                 channels, height, width
//! resize          256                         the shorter side in pixels, before the crop; without it
//!                                             the largest crop of the input's aspect ratio is resized
//! crop            center                      how the input is cut from an image
//! channel_order   RGB                         or `gray`
//! ```

use std::collections::BTreeMap;

/// The most classes whose names are read.
const MOST_CLASSES: usize = 100_000;
/// The most channels of an image.
const MOST_CHANNELS: usize = 1 << 16;

/// The keys, in the order of the fields.
const KEYS: [&str; 4] = ["class_names", "mean", "std", "input_shape"];
/// The shorter side of an image, in pixels.
const RESIZE: &str = "resize";
/// How the input is cut from an image: always its centre.
const CROP: [&str; 2] = ["crop", "center"];
/// The key that follows from the channels.
const ORDER: &str = "channel_order";
/// The largest shorter side.
const LARGEST_SIDE: usize = 1 << 16;

/// How a network wants its images, and what its classes are called. What is not known is empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetworkMetadata {
    /// The names of the classes, by their number.
    pub class_names: Vec<String>,
    /// The mean of each channel, of values from 0 to 1.
    pub mean: Vec<f64>,
    /// The standard deviation of each channel, of values from 0 to 1.
    pub std: Vec<f64>,
    /// `[channels, height, width]` of the images.
    pub input_shape: Vec<usize>,
    /// Pixels of the shorter side that an image is resized to before its centre is cropped; `None` where the
    /// largest centre crop of the input's aspect ratio is resized.
    pub resize: Option<usize>,
}

impl NetworkMetadata {
    /// Texts by keys: see the module. What is empty has no key.
    #[must_use]
    pub fn entries(&self) -> BTreeMap<String, String> {
        let json = |list: serde_json::Value| (!list.as_array().is_some_and(Vec::is_empty)).then_some(list);
        let lists = [
            json(self.class_names.iter().map(String::as_str).collect()),
            json(self.mean.iter().copied().collect()),
            json(self.std.iter().copied().collect()),
            json(self.input_shape.iter().copied().collect()),
        ];
        let texts = KEYS.into_iter().zip(lists).filter_map(|(key, list)| Some((key, list?.to_string())));
        let order = match self.input_shape.first() {
            Some(1) => Some((ORDER, "gray".to_owned())),
            Some(3) => Some((ORDER, "RGB".to_owned())),
            _ => None,
        };
        let resize = self.resize.map(|side| (RESIZE, side.to_string()));
        // Where nothing is known of how images are prepared, neither is this.
        let crop = (resize.is_some() || !self.mean.is_empty()).then_some((CROP[0], CROP[1].to_owned()));
        texts.chain(resize).chain(crop).chain(order).map(|(key, text)| (key.to_owned(), text)).collect()
    }

    /// What texts by keys say. Other keys are passed over.
    ///
    /// # Errors
    /// Where a value is not what its key asks for: the key, and why.
    pub fn read<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, String> {
        let mut found = Self::default();
        for (key, text) in entries {
            let refused = |why: &str| Err(format!("its `{key}` is {why}"));
            match key {
                "class_names" => found.class_names = list(key, text)?,
                "mean" => found.mean = list(key, text)?,
                "std" => found.std = list(key, text)?,
                "input_shape" => found.input_shape = list(key, text)?,
                RESIZE => match text.parse() {
                    Ok(side) if (1..=LARGEST_SIDE).contains(&side) => found.resize = Some(side),
                    _ => return refused("no number of pixels"),
                },
                key if key == CROP[0] && text != CROP[1] => {
                    return refused("not `center`, and images are cropped there");
                }
                ORDER if !["RGB", "gray"].contains(&text) => {
                    return refused("neither RGB nor gray, and images are given as one of these");
                }
                _ => {}
            }
        }
        let refused = |key: &str, why: &str| Err(format!("its `{key}` {why}"));
        let Self { class_names, mean, std, input_shape, .. } = &found;
        if class_names.len() > MOST_CLASSES || mean.len() > MOST_CHANNELS {
            return refused("class_names", "or `mean` is longer than any network needs");
        }
        if mean.len() != std.len() {
            return refused("mean", &format!("has {} numbers, its `std` {}", mean.len(), std.len()));
        }
        // Wider than f32, a number would become infinite.
        let is_number = |number: &f64| (*number as f32).is_finite();
        if !mean.iter().all(is_number) || !std.iter().all(|std| is_number(std) && *std as f32 > 0.0) {
            return refused("mean", "or `std` holds a number that cannot be; deviations are more than 0");
        }
        if !input_shape.is_empty() && (input_shape.len() != 3 || input_shape.contains(&0)) {
            return refused("input_shape", "is not channels, height and width");
        }
        Ok(found)
    }
}

fn list<T: serde::de::DeserializeOwned>(key: &str, text: &str) -> Result<Vec<T>, String> {
    serde_json::from_str(text).map_err(|error| format!("its `{key}` is no such list: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(entries: &[(&str, &str)]) -> Result<NetworkMetadata, String> {
        NetworkMetadata::read(entries.iter().copied())
    }

    #[test]
    fn what_is_written_comes_back() {
        let metadata = NetworkMetadata {
            class_names: vec!["sky".to_owned(), "a \"b\", c\nd é".to_owned()],
            mean: vec![0.1 + 0.2, 0.0, 1.0],
            std: vec![0.229, 1.0, 1e-3],
            input_shape: vec![3, 360, 480],
            resize: Some(400),
        };
        let entries = metadata.entries();
        assert_eq!([&entries["resize"], &entries["crop"]], ["400", "center"]);
        assert_eq!(entries["channel_order"], "RGB");
        assert_eq!(entries["input_shape"], "[3,360,480]");
        let pairs = entries.iter().map(|(key, text)| (key.as_str(), text.as_str()));
        assert_eq!(NetworkMetadata::read(pairs), Ok(metadata));
        assert_eq!(NetworkMetadata::default().entries(), BTreeMap::new());
        assert_eq!(read(&[("format", "pt"), ("author", "[")]), Ok(NetworkMetadata::default()));
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_key() {
        for (entries, words) in [
            (&[("class_names", "sky, road")][..], "`class_names` is no such list"),
            (&[("class_names", "[1, 2]")], "`class_names`"),
            (&[("mean", "[0.5]")], "has 1 numbers, its `std` 0"),
            (&[("mean", "[0.5]"), ("std", "[0]")], "deviations are more than 0"),
            (&[("mean", "[1e300]"), ("std", "[1]")], "cannot be"),
            (&[("mean", "[0.5]"), ("std", "[-1]")], "cannot be"),
            (&[("input_shape", "[3, 8]")], "`input_shape` is not channels"),
            (&[("input_shape", "[3, 0, 8]")], "`input_shape`"),
            (&[("input_shape", "[3, -1, 8]")], "`input_shape` is no such list"),
            (&[("resize", "0")], "`resize` is no number of pixels"),
            (&[("resize", "256,256")], "`resize` is no number of pixels"),
            (&[("crop", "border")], "`crop` is not `center`"),
            (&[("channel_order", "BGR")], "`channel_order` is neither RGB nor gray"),
        ] {
            let error = read(entries).unwrap_err();
            assert!(error.contains(words), "{entries:?}: {error}");
        }
    }
}
