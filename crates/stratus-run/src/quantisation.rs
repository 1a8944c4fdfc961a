//! `optimise/quantisation.json`: the layers of a network that run in int8 in inference, and the ranges
//! of the maps that they read and write.

use crate::{Result, atomic};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// How a network computes in inference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantisation {
    /// The SHA-256 of the weights that the layers were chosen for, as in the state of their checkpoint.
    pub weights_sha256: String,
    /// The number format of the other layers: `f32` or `bf16`.
    pub precision: String,
    /// The layers that run in int8, in the order of the network.
    pub layers: Vec<QuantisedLayer>,
    /// The layers that do not, though they multiply matrices, with the reasons.
    pub kept: Vec<KeptLayer>,
    /// The ranges of maps by the name of their value.
    pub ranges: BTreeMap<String, MapRange>,
}

/// A layer that runs in int8.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuantisedLayer {
    /// Its name.
    pub layer: String,
    /// The Kullback–Leibler divergence of the predictions on calibration images, in nats per image or pixel,
    /// if only this layer and those that read the same map run in int8: the increase of the cross-entropy, if
    /// the other predictions were true.
    pub divergence: f64,
    /// Milliseconds of one image in the number format of the other layers, and in int8; `None` if they
    /// were not measured.
    pub ms: Option<[f64; 2]>,
}

/// A layer that does not run in int8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptLayer {
    /// Its name.
    pub layer: String,
    /// The reason.
    pub reason: String,
}

/// The range of a map's numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MapRange {
    /// The lowest number, at most 0.
    pub low: f32,
    /// The highest number, at least 0.
    pub high: f32,
    /// How it follows from the numbers of calibration images.
    pub method: String,
}

/// The start of a fine-tuning with fake quantisation. The content of `optimise/fake_quantisation.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FakeQuantisationStart {
    /// Accuracy or mean IoU on the validation images, of the network before the fine-tuning, without int8.
    pub score: f64,
    /// The layers and the ranges of maps. The checksum is that of the file of weights before the fine-tuning.
    #[serde(flatten)]
    pub quantisation: Quantisation,
}

impl FakeQuantisationStart {
    /// Reads the file; `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read or is damaged.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        atomic::read_json_if_exists(path)
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        atomic::write_json(path, self)
    }
}

impl Quantisation {
    /// Reads the file; `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read or is damaged.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        atomic::read_json_if_exists(path)
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        atomic::write_json(path, self)
    }
}
