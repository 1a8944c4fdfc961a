//! The supply of images of an experiment's data set: measured on this machine, or assumed.

use crate::bench::data_rate::measure_core_seconds;
use crate::device::OpenDevice;
use stratus_data::datasets;
use stratus_data::store::is_address;
use stratus_experiment::Experiment;
use stratus_forecast::planning_backend::PlanningBackend;
use stratus_forecast::supply::{CORES_PER_VCPU, Decoding, ImageSupply, PHOTOGRAPH_BYTES, PHOTOGRAPH_CORE_S};

/// Known facts about the images of a data set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SupplyInputs {
    /// The time to decode an image, stated by the user or measured before.
    pub decoding: Option<Decoding>,
    /// Bytes of the data set.
    pub data_bytes: Option<u64>,
    /// Bytes per second of the link.
    pub link_bytes_per_s: Option<f64>,
}

impl SupplyInputs {
    /// Returns whether images cross the link in every epoch: a remote data set that is larger than the folder
    /// of local copies. Others are transferred once.
    #[must_use]
    pub fn streams(&self, experiment: &Experiment) -> bool {
        let cache_bytes = (experiment.data.cache_mib as u64) << 20;
        is_remote(experiment) && self.data_bytes.is_none_or(|bytes| bytes > cache_bytes)
    }
}

/// The decoding of the last experiment, so that those of a sweep that read the same images measure it once.
#[derive(Debug, Default)]
pub struct LastDecoding(Option<(Experiment, Decoding)>);

impl LastDecoding {
    /// The decoding of an experiment, if the last one read the same images for the same network.
    pub(super) fn of(&self, experiment: &Experiment) -> Option<Decoding> {
        let is_alike = |(last, _): &&(Experiment, Decoding)| {
            last.data == experiment.data
                && last.augment == experiment.augment
                && last.model == experiment.model
        };
        self.0.as_ref().filter(is_alike).map(|(_, decoding)| *decoding)
    }

    pub(super) fn remember(&mut self, experiment: &Experiment, decoding: Option<Decoding>) {
        self.0 = decoding.map(|decoding| (experiment.clone(), decoding));
    }
}

/// Returns whether the data set is in a store.
fn is_remote(experiment: &Experiment) -> bool {
    experiment.data.path.as_deref().is_some_and(is_address)
}

/// The supply of `images` images, and a note on its assumptions. `is_here`: the data set was opened on this
/// machine. `input_pixels`: of the network's input.
pub(super) fn image_supply(
    experiment: &Experiment,
    is_here: bool,
    images: Option<u64>,
    input_pixels: usize,
    inputs: &SupplyInputs,
) -> (ImageSupply, Option<String>) {
    let image_bytes =
        inputs.data_bytes.zip(images).map(|(bytes, images)| bytes as f64 / images.max(1) as f64);
    let (decoding, note) = match inputs.decoding {
        Some(decoding) => (Some(decoding), None),
        None => decoding(experiment, is_here, image_bytes, input_pixels),
    };
    let link = inputs.link_bytes_per_s.filter(|_| inputs.streams(experiment));
    let stream = link.zip(image_bytes).map(|(per_s, bytes)| [bytes, per_s]);
    let loaders = experiment.data.workers.map(|workers| workers as u64);
    (ImageSupply { decoding, loaders, stream }, note)
}

fn decoding(
    experiment: &Experiment,
    is_here: bool,
    image_bytes: Option<f64>,
    input_pixels: usize,
) -> (Option<Decoding>, Option<String>) {
    let mut problem = "cannot be measured here".to_owned();
    if is_here && !is_remote(experiment) {
        let device = OpenDevice::new(Box::new(PlanningBackend { gpu: false, threads: 1 }));
        match measure_core_seconds(experiment, &device) {
            Ok(core_s) => return (Some(Decoding { core_s, is_measured: true }), None),
            Err(error) => problem = format!("was not measured ({error})"),
        }
    }
    // Data sets with published files store pixels.
    let is_encoded = datasets::entry(&experiment.data.name).is_ok_and(|entry| entry.files.is_empty());
    if !is_encoded {
        return (None, None);
    }
    // The photographs that were measured were cropped to this size.
    const MEASURED_PIXELS: f64 = 224.0 * 224.0;
    let bytes = image_bytes.unwrap_or(PHOTOGRAPH_BYTES * input_pixels as f64 / MEASURED_PIXELS);
    let core_s = PHOTOGRAPH_CORE_S * bytes / PHOTOGRAPH_BYTES;
    let note = format!(
        "decoding {problem}: assuming photographs of {:.1} kB, of which a core decodes {:.0} per second, a \
         virtual CPU {:.0}; set --decode-rate",
        bytes / 1e3,
        1.0 / core_s,
        CORES_PER_VCPU / core_s
    );
    (Some(Decoding { core_s, is_measured: false }), Some(note))
}
