//! What comes with the crate: the tables of measured steps, and the profiles that were fitted to them.

use crate::catalogue::Catalogue;
use crate::error::Result;
use crate::measured::Measured;
use crate::memory::{Constants, cells};
use crate::profile::Profile;
use crate::work::layers;

/// Step times of TensorFlow 2.5 in f32 (PROFET, ddps-lab, MIT licence): a row a GPU, network, image size and
/// batch.
pub const LATENCY: &str = include_str!("../data/latency.csv");
/// The layers of those networks, derived from the same project's definitions.
pub const LAYERS: &str = include_str!("../data/layers.csv");
/// Step times of Stratus, from docs/benchmarks.
pub const STRATUS_STEPS: &str = include_str!("../data/stratus-steps.csv");

/// Their names in messages.
pub const LATENCY_NAME: &str = "crates/stratus-forecast/data/latency.csv";
/// See [`LATENCY_NAME`].
pub const LAYERS_NAME: &str = "crates/stratus-forecast/data/layers.csv";
/// See [`LATENCY_NAME`].
pub const STRATUS_STEPS_NAME: &str = "crates/stratus-forecast/data/stratus-steps.csv";

/// Files of profiles, each with its content.
const PROFILES: &[(&str, &str)] = &[
    ("tensorflow-f32-m60-8gb.toml", include_str!("../data/profiles/tensorflow-f32-m60-8gb.toml")),
    ("tensorflow-f32-t4-16gb.toml", include_str!("../data/profiles/tensorflow-f32-t4-16gb.toml")),
    ("tensorflow-f32-k80-12gb.toml", include_str!("../data/profiles/tensorflow-f32-k80-12gb.toml")),
    ("tensorflow-f32-v100-16gb.toml", include_str!("../data/profiles/tensorflow-f32-v100-16gb.toml")),
    ("tensorflow-f32-gpu.toml", include_str!("../data/profiles/tensorflow-f32-gpu.toml")),
    ("stratus-bf16-h100-80gb-sxm.toml", include_str!("../data/profiles/stratus-bf16-h100-80gb-sxm.toml")),
    ("stratus-f32-cpu.toml", include_str!("../data/profiles/stratus-f32-cpu.toml")),
    ("stratus-bf16-cpu.toml", include_str!("../data/profiles/stratus-bf16-cpu.toml")),
];

/// The shipped profiles.
///
/// # Errors
/// Never but by a mistake in a shipped file, which a test would find.
pub fn profiles() -> Result<Vec<Profile>> {
    PROFILES.iter().map(|(file, text)| Profile::parse(file, text)).collect()
}

/// The measured steps of TensorFlow.
///
/// # Errors
/// Never but by a mistake in a shipped file, which a test would find.
pub fn tensorflow() -> Result<Measured> {
    Measured::of_layers((LATENCY_NAME, LATENCY), (LAYERS_NAME, LAYERS), &Catalogue::builtin()?)
}

/// The constants of TensorFlow's memory, chosen from all shipped step times.
///
/// # Errors
/// Never but by a mistake in a shipped file, which a test would find.
pub fn tensorflow_memory() -> Result<Constants> {
    let networks = layers::parse(LAYERS_NAME, LAYERS)?;
    Ok(Constants::choose(&cells(&tensorflow()?, &networks, &Catalogue::builtin()?)?))
}
