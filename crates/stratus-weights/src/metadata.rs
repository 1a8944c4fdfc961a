//! The metadata of a network: class names, image preprocessing, and the meaning of its outputs.
//!
//! It is stored as strings by key in the `__metadata__` of a safetensors file or the `metadata_props` of an
//! ONNX model. Lists are JSON:
//!
//! ```text
//! class_names     ["sky","road"]              by class index
//! mean, std       [0.485,0.456,0.406]         per channel; the network receives (value / 255 - mean) / std
//! input_shape     [3,360,480]                 channels, height, width
//! resize          256                         the shorter side in pixels before the crop; without it, the
//!                                             largest crop with the input's aspect ratio is resized
//! crop            center                      the position of the crop
//! channel_order   RGB                         or `gray`
//! loss            binary_cross_entropy        of the training; without it, `cross_entropy`
//! thresholds      [0.31,null]                 by label: it applies if its probability is at least this
//! target_mean,    [37.2], [11.8]              by target, of numbers: output · target_std + target_mean
//! target_std
//! ```

use std::collections::BTreeMap;

/// The maximum number of class names.
const MAX_CLASSES: usize = 100_000;
/// The maximum number of channels.
const MAX_CHANNELS: usize = 1 << 16;

/// The keys of lists, in the order of the fields.
const KEYS: [&str; 7] =
    ["class_names", "mean", "std", "input_shape", "thresholds", "target_mean", "target_std"];
/// The key of the training loss.
const LOSS_KEY: &str = "loss";
/// The losses that networks are trained with.
const LOSSES: [&str; 4] = ["cross_entropy", "binary_cross_entropy", "squared_error", "huber"];
/// The key of the shorter side of the resized image.
const RESIZE_KEY: &str = "resize";
/// The key of the crop position and its only value.
const CROP: [&str; 2] = ["crop", "center"];
/// The key of the channel order, which follows from the number of channels.
const CHANNEL_ORDER_KEY: &str = "channel_order";
/// The maximum of [`RESIZE_KEY`].
const MAX_RESIZE_SIDE_PIXELS: usize = 1 << 16;

/// The class names and the image preprocessing of a network. Unknown fields are empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetworkMetadata {
    /// The class names, by class index.
    pub class_names: Vec<String>,
    /// The mean of each channel, for values from 0 to 1.
    pub mean: Vec<f64>,
    /// The standard deviation of each channel, for values from 0 to 1.
    pub std: Vec<f64>,
    /// `[channels, height, width]` of the images.
    pub input_shape: Vec<usize>,
    /// The shorter side in pixels to which an image is resized before the centre crop. If `None`, the largest
    /// centre crop with the input's aspect ratio is resized.
    pub resize: Option<usize>,
    /// The training loss, which decides what outputs mean; `None` for `cross_entropy`.
    pub loss: Option<String>,
    /// The meaning of outputs that are not classes.
    pub outputs: OutputScales,
}

/// How outputs become labels or numbers, by output. Empty lists are unknown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutputScales {
    /// Labels: the probabilities, 0 to 1, from which they apply; `None`, in JSON null, for a label without
    /// one.
    pub thresholds: Vec<Option<f64>>,
    /// Numbers: the means of the targets, in their units.
    pub target_mean: Vec<f64>,
    /// Numbers: the standard deviations of the targets.
    pub target_std: Vec<f64>,
}

impl NetworkMetadata {
    /// The metadata as strings by key. Empty fields have no key.
    #[must_use]
    pub fn entries(&self) -> BTreeMap<String, String> {
        let json = |list: serde_json::Value| (!list.as_array().is_some_and(Vec::is_empty)).then_some(list);
        let lists = [
            json(self.class_names.iter().map(String::as_str).collect()),
            json(self.mean.iter().copied().collect()),
            json(self.std.iter().copied().collect()),
            json(self.input_shape.iter().copied().collect()),
            json(self.outputs.thresholds.iter().copied().collect()),
            json(self.outputs.target_mean.iter().copied().collect()),
            json(self.outputs.target_std.iter().copied().collect()),
        ];
        let texts = KEYS.into_iter().zip(lists).filter_map(|(key, list)| Some((key, list?.to_string())));
        let order = match self.input_shape.first() {
            Some(1) => Some((CHANNEL_ORDER_KEY, "gray".to_owned())),
            Some(3) => Some((CHANNEL_ORDER_KEY, "RGB".to_owned())),
            _ => None,
        };
        let resize = self.resize.map(|side| (RESIZE_KEY, side.to_string()));
        // Without preprocessing, the crop is unknown too.
        let crop = (resize.is_some() || !self.mean.is_empty()).then_some((CROP[0], CROP[1].to_owned()));
        let loss = self.loss.clone().map(|loss| (LOSS_KEY, loss));
        texts
            .chain(resize)
            .chain(crop)
            .chain(order)
            .chain(loss)
            .map(|(key, text)| (key.to_owned(), text))
            .collect()
    }

    /// Parses strings by key. Other keys are ignored.
    ///
    /// # Errors
    /// If a value is invalid; the message names its key.
    pub fn read<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, String> {
        let mut found = Self::default();
        for (key, text) in entries {
            let invalid = |expected: &str| Err(format!("`{key}` must be {expected}"));
            match key {
                "class_names" => found.class_names = list(key, text)?,
                "mean" => found.mean = list(key, text)?,
                "std" => found.std = list(key, text)?,
                "input_shape" => found.input_shape = list(key, text)?,
                "thresholds" => found.outputs.thresholds = list(key, text)?,
                "target_mean" => found.outputs.target_mean = list(key, text)?,
                "target_std" => found.outputs.target_std = list(key, text)?,
                // Other programs use this key for other things.
                LOSS_KEY if LOSSES.contains(&text) => found.loss = Some(text.to_owned()),
                RESIZE_KEY => match text.parse() {
                    Ok(side) if (1..=MAX_RESIZE_SIDE_PIXELS).contains(&side) => found.resize = Some(side),
                    _ => return invalid("a number of pixels from 1 to 65536"),
                },
                key if key == CROP[0] && text != CROP[1] => {
                    return invalid("`center`");
                }
                CHANNEL_ORDER_KEY if !["RGB", "gray"].contains(&text) => {
                    return invalid("`RGB` or `gray`");
                }
                _ => {}
            }
        }
        let Self { class_names, mean, std, input_shape, .. } = &found;
        if class_names.len() > MAX_CLASSES || mean.len() > MAX_CHANNELS {
            return Err(format!(
                "`class_names` or `mean` has more than {MAX_CLASSES} or {MAX_CHANNELS} entries"
            ));
        }
        if mean.len() != std.len() {
            return Err(format!("`mean` has {} values, `std` {}", mean.len(), std.len()));
        }
        // A number beyond the range of f32 would become infinite.
        let is_number = |number: &f64| (*number as f32).is_finite();
        if !mean.iter().all(is_number) || !std.iter().all(|std| is_number(std) && *std as f32 > 0.0) {
            return Err("`mean` and `std` must be finite, `std` positive".to_owned());
        }
        found.outputs.check()?;
        if !input_shape.is_empty() && (input_shape.len() != 3 || input_shape.contains(&0)) {
            return Err("`input_shape` must be channels, height and width".to_owned());
        }
        Ok(found)
    }
}

impl OutputScales {
    /// Checks the lists.
    ///
    /// # Errors
    /// If a number is out of range, or a list too long; the message names its key.
    fn check(&self) -> Result<(), String> {
        let Self { thresholds, target_mean, target_std } = self;
        if thresholds.len().max(target_mean.len()) > MAX_CLASSES {
            return Err(format!("`thresholds` or `target_mean` has more than {MAX_CLASSES} entries"));
        }
        if !thresholds.iter().flatten().all(|threshold| (0.0..=1.0).contains(threshold)) {
            return Err("`thresholds` must be from 0 to 1".to_owned());
        }
        if target_mean.len() != target_std.len() {
            return Err(format!(
                "`target_mean` has {} values, `target_std` {}",
                target_mean.len(),
                target_std.len()
            ));
        }
        let is_number = |number: &f64| (*number as f32).is_finite();
        if !target_mean.iter().all(is_number)
            || !target_std.iter().all(|std| is_number(std) && *std as f32 > 0.0)
        {
            return Err("`target_mean` and `target_std` must be finite, `target_std` positive".to_owned());
        }
        Ok(())
    }
}

fn list<T: serde::de::DeserializeOwned>(key: &str, text: &str) -> Result<Vec<T>, String> {
    serde_json::from_str(text).map_err(|error| format!("`{key}` is not a valid list: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(entries: &[(&str, &str)]) -> Result<NetworkMetadata, String> {
        NetworkMetadata::read(entries.iter().copied())
    }

    #[test]
    fn metadata_survives_a_round_trip() {
        let metadata = NetworkMetadata {
            class_names: vec!["sky".to_owned(), "a \"b\", c\nd é".to_owned()],
            mean: vec![0.1 + 0.2, 0.0, 1.0],
            std: vec![0.229, 1.0, 1e-3],
            input_shape: vec![3, 360, 480],
            resize: Some(400),
            loss: Some("huber".to_owned()),
            outputs: OutputScales {
                thresholds: vec![Some(0.1 + 0.2), None, Some(1.0)],
                target_mean: vec![-3.5],
                target_std: vec![1e-3],
            },
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
    fn rejects_invalid_values_by_key() {
        for (entries, words) in [
            (&[("class_names", "sky, road")][..], "`class_names` is not a valid list"),
            (&[("class_names", "[1, 2]")], "`class_names`"),
            (&[("mean", "[0.5]")], "`mean` has 1 values, `std` 0"),
            (&[("mean", "[0.5]"), ("std", "[0]")], "`mean` and `std` must be finite"),
            (&[("mean", "[1e300]"), ("std", "[1]")], "must be finite"),
            (&[("mean", "[0.5]"), ("std", "[-1]")], "`std` positive"),
            (&[("input_shape", "[3, 8]")], "`input_shape` must be channels"),
            (&[("input_shape", "[3, 0, 8]")], "`input_shape`"),
            (&[("input_shape", "[3, -1, 8]")], "`input_shape` is not a valid list"),
            (&[("resize", "0")], "`resize` must be a number of pixels"),
            (&[("resize", "256,256")], "`resize` must be a number of pixels"),
            (&[("crop", "border")], "`crop` must be `center`"),
            (&[("thresholds", "[1.5]")], "`thresholds` must be from 0 to 1"),
            (&[("target_mean", "[1]")], "`target_mean` has 1 values, `target_std` 0"),
            (&[("target_mean", "[1]"), ("target_std", "[0]")], "`target_std` positive"),
            (&[("channel_order", "BGR")], "`channel_order` must be `RGB` or `gray`"),
        ] {
            let error = read(entries).unwrap_err();
            assert!(error.contains(words), "{entries:?}: {error}");
        }
    }
}
