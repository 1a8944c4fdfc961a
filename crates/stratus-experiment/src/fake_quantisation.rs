//! `train.fake_quantisation`: the convolutions that the training step computes with rounded numbers.

use crate::{Device, Experiment};
use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

/// A convolution whose input and weights are rounded. Its text has the layer, the lowest and the highest
/// number of the input, separated by spaces.
#[derive(Clone, Debug, PartialEq)]
pub struct FakeQuantisedLayer {
    /// Its name.
    pub layer: String,
    /// The lowest number of its input, at most 0.
    pub low: f32,
    /// The highest number of its input, at least 0.
    pub high: f32,
}

impl fmt::Display for FakeQuantisedLayer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {} {}", self.layer, self.low, self.high)
    }
}

/// The error is the problem, for people.
impl FromStr for FakeQuantisedLayer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Names of layers may contain spaces.
        let mut words = text.trim().rsplitn(3, ' ');
        let (high, low, layer) = (words.next(), words.next(), words.next().unwrap_or_default().trim());
        let number = |word: Option<&str>| word.and_then(|word| word.parse::<f32>().ok());
        let (Some(low), Some(high), false) = (number(low), number(high), layer.is_empty()) else {
            return Err(format!("{text:?} is not a layer with two numbers"));
        };
        // Written so that NaN is refused too.
        if !(low <= 0.0 && high >= 0.0 && high - low > 0.0 && (high - low).is_finite()) {
            return Err(format!("the range of {text:?} is empty or infinite, or does not contain 0"));
        }
        Ok(Self { layer: layer.to_owned(), low, high })
    }
}

impl Experiment {
    /// The convolutions that the training step computes with rounded numbers.
    ///
    /// # Errors
    /// If `train.fake_quantisation.layers` cannot be read; the message is the problem, for people.
    pub fn fake_quantised_layers(&self) -> Result<Vec<FakeQuantisedLayer>, String> {
        let layers = self.fake_quantisation.layers.iter().map(|text| text.parse());
        let layers = layers.collect::<Result<Vec<FakeQuantisedLayer>, String>>()?;
        let mut seen = HashSet::new();
        match layers.iter().find(|layer| !seen.insert(&layer.layer)) {
            Some(layer) => Err(format!("{:?} occurs twice", layer.layer)),
            None => Ok(layers),
        }
    }

    /// The first problem of `train.fake_quantisation`, and a hint.
    pub(crate) fn check_fake_quantisation(&self) -> Option<(String, &'static str)> {
        let key = "train.fake_quantisation.layers";
        let layers = match self.fake_quantised_layers() {
            Ok(layers) => layers,
            Err(problem) => {
                let hint = "write each as the name of a convolution, the lowest and the highest number of \
                            its input: \"layer2.0 0 6.25\"";
                return Some((format!("invalid `{key}`: {problem}"), hint));
            }
        };
        if layers.is_empty() {
            return None;
        }
        let is_gpu = matches!(self.train.device, Device::Gpu | Device::Cuda);
        let conflicts = [
            ("train.stages", self.train.stages > 1, "train it without stages: --set train.stages=1"),
            ("first_stage.network", self.first_stage.network.is_some(), "remove the pre-training stage"),
            ("train.device", is_gpu, "train it on the CPU: --device cpu"),
        ];
        let (other, _, hint) = conflicts.into_iter().find(|(_, is_set, _)| *is_set)?;
        Some((format!("`{other}` cannot be combined with {key}"), hint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_has_a_name_and_a_range() {
        for (text, layer, low, high) in [
            ("layer2.0 0 6.25", "layer2.0", 0.0, 6.25),
            (" a layer -1.5 3e-2 ", "a layer", -1.5, 0.03),
            ("x 0 0.1", "x", 0.0, 0.1),
        ] {
            let parsed: FakeQuantisedLayer = text.parse().unwrap();
            assert_eq!(parsed, FakeQuantisedLayer { layer: layer.to_owned(), low, high });
            assert_eq!(parsed.to_string().parse(), Ok(parsed), "{text}");
        }
        for text in ["", "x", "x 1", "0 1", "x nan 1", "x 0 nan", "x 0 0", "x 1 2", "x 0 inf", "x -2 -1"] {
            let problem = text.parse::<FakeQuantisedLayer>().unwrap_err();
            assert!(problem.contains(&format!("{text:?}")), "{problem}");
        }
        assert!("x -3e38 3e38".parse::<FakeQuantisedLayer>().is_err());
    }

    #[test]
    fn repeated_layers_stages_and_gpus_are_refused() {
        let digits = Experiment::builtin("digits").unwrap();
        let layers = ("train.fake_quantisation.layers", "layer2.0 0 2,layer3.0 0 1");
        let tuned = digits.clone().with_overrides(&[layers]).unwrap();
        assert_eq!(tuned.fake_quantised_layers().unwrap().len(), 2);
        for (other, value) in [
            ("train.fake_quantisation.layers", "layer2.0 0 2,layer2.0 0 3"),
            ("train.fake_quantisation.layers", "layer2.0\u{1b}[2J 0 NaN"),
            ("train.fake_quantisation.max_weight", "0"),
            ("train.fake_quantisation.max_weight", "128"),
            ("train.stages", "2"),
            ("train.device", "gpu"),
            ("first_stage.network", "digits"),
        ] {
            let error = tuned.clone().with_overrides(&[(other, value)]).unwrap_err().to_string();
            assert!(error.contains(other) && !error.contains('\u{1b}'), "{other}: {error}");
        }
    }
}
