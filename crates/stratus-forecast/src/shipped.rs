//! The files shipped with this crate: tables of measured steps, and the profiles fitted to them.

use crate::catalogue::Catalogue;
use crate::error::Result;
use crate::measured::StepRecords;
use crate::memory::{MemoryModel, memory_cases};
use crate::profile::Profile;
use crate::work::layers;

/// Step times of TensorFlow 2.5 in f32 (PROFET, ddps-lab, MIT licence): a row per GPU, network, image size
/// and batch size.
pub const LATENCY: &str = include_str!("../data/latency.csv");
/// The layers of those networks, derived from the same project's definitions.
pub const LAYERS: &str = include_str!("../data/layers.csv");
/// Step times of Stratus, from docs/benchmarks.
pub const STRATUS_STEPS: &str = include_str!("../data/stratus-steps.csv");

/// The name of [`LATENCY`] in messages.
pub const LATENCY_NAME: &str = "crates/stratus-forecast/data/latency.csv";
/// The name of [`LAYERS`] in messages.
pub const LAYERS_NAME: &str = "crates/stratus-forecast/data/layers.csv";
/// The name of [`STRATUS_STEPS`] in messages.
pub const STRATUS_STEPS_NAME: &str = "crates/stratus-forecast/data/stratus-steps.csv";

/// The names and contents of the files of profiles.
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
/// Only if a shipped file is invalid (covered by a test).
pub fn profiles() -> Result<Vec<Profile>> {
    PROFILES.iter().map(|(file, text)| Profile::parse(file, text)).collect()
}

/// The measured steps of TensorFlow.
///
/// # Errors
/// Only if a shipped file is invalid (covered by a test).
pub fn tensorflow() -> Result<StepRecords> {
    StepRecords::from_layer_table((LATENCY_NAME, LATENCY), (LAYERS_NAME, LAYERS), &Catalogue::builtin()?)
}

/// The memory model of TensorFlow, chosen from all shipped step times.
///
/// # Errors
/// Only if a shipped file is invalid (covered by a test).
pub fn tensorflow_memory() -> Result<MemoryModel> {
    let networks = layers::parse(LAYERS_NAME, LAYERS)?;
    Ok(MemoryModel::choose(&memory_cases(&tensorflow()?, &networks, &Catalogue::builtin()?)?))
}
