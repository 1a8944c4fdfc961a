//! Opening what computes.

use crate::experiment::{Device, Precision, Train};
use crate::{TrainError, plan_cache};
use std::error::Error;
use stratus_cuda::Cuda;
use stratus_engine::Backend;
use stratus_engine::reference::ReferenceBackend;
use stratus_onednn::OneDnn;
use stratus_run::machine::{Machine, caches};

/// A backend and what is worth saying about it.
pub struct Opened {
    /// What computes.
    pub backend: Box<dyn Backend>,
    /// Its libraries.
    pub libraries: Vec<LoadedLibrary>,
    /// Whether bf16 runs on instructions of its own.
    pub fast_bf16: bool,
    /// What must not be missed.
    pub warnings: Vec<String>,
}

/// A library that a backend computes with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedLibrary {
    /// Its name in files.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Where it was loaded from, where that is known.
    pub path: String,
}

/// Opens the device of an experiment.
///
/// # Errors
/// Where the one that was asked for by name is not there.
pub fn open(settings: &Train) -> Result<Opened, TrainError> {
    match settings.device {
        Device::Reference => Ok(reference(Vec::new())),
        Device::Cuda => cuda(settings).map_err(|error| missing("cuda", &error)),
        Device::Onednn => onednn(settings.threads).map_err(|error| missing("onednn", &error)),
        Device::Auto => {
            if let Ok(opened) = cuda(settings) {
                return Ok(opened);
            }
            onednn(settings.threads).or_else(|error| {
                Ok(reference(vec![format!(
                    "{error}.\n  Training runs on the reference backend, in plain Rust: correct, and about a hundred times slower. \
                     `make deps` installs oneDNN into this checkout (x86-64 Linux, no root needed); elsewhere install libdnnl 3.x \
                     (Debian and Ubuntu: libdnnl-dev, Homebrew and conda: onednn)."
                )]))
            })
        }
    }
}

fn missing(device: &'static str, error: &dyn Error) -> TrainError {
    TrainError::Device { device, reason: error.to_string() }
}

fn onednn(threads: usize) -> Result<Opened, stratus_onednn::NotFound> {
    let onednn = OneDnn::load(threads)?;
    let library = LoadedLibrary {
        name: "onednn".to_owned(),
        version: onednn.version(),
        path: onednn.path().display().to_string(),
    };
    Ok(Opened {
        libraries: vec![library],
        fast_bf16: onednn.has_fast_bf16(),
        warnings: onednn
            .note()
            .into_iter()
            .map(|note| format!("oneDNN {}: {note}", onednn.version()))
            .collect(),
        backend: Box::new(onednn),
    })
}

fn cuda(settings: &Train) -> Result<Opened, stratus_cuda::NotFound> {
    let cache = plan_cache::folder().map(|folder| folder.join("kernels"));
    let cuda = Cuda::open(&stratus_cuda::Settings { ordinal: 0, tf32: settings.tf32, cache })?;
    let libraries = cuda.libraries().into_iter().map(|(name, version)| LoadedLibrary {
        name: name.to_owned(),
        version,
        path: String::new(),
    });
    Ok(Opened {
        libraries: libraries.collect(),
        fast_bf16: cuda.has_bf16(),
        warnings: Vec::new(),
        backend: Box::new(cuda),
    })
}

fn reference(warnings: Vec<String>) -> Opened {
    Opened { backend: Box::new(ReferenceBackend), libraries: Vec::new(), fast_bf16: false, warnings }
}

impl Opened {
    /// KiB that a tile of the batch is made to fit on this device: its threads' second-level caches; 0 where tiles gain nothing.
    #[must_use]
    pub fn tile_kib(&self, setting: Option<usize>) -> usize {
        // Where the system does not say: the least of today's processors.
        const SECOND_LEVEL: u64 = 1 << 20;
        setting.unwrap_or_else(|| {
            if !self.backend.gains_from_tiles() {
                return 0;
            }
            let cache = caches::second_level(&Machine::probe().cpu.caches).unwrap_or(SECOND_LEVEL);
            self.backend.threads() * (cache >> 10) as usize
        })
    }

    /// The precision that a setting comes to on this device.
    ///
    /// # Errors
    /// Where nothing can be computed in it here.
    pub fn precision(&self, setting: Precision) -> Result<stratus_engine::Precision, TrainError> {
        let precision = match setting {
            Precision::F32 => stratus_engine::Precision::F32,
            Precision::Bf16 => stratus_engine::Precision::Bf16,
            Precision::F16 => stratus_engine::Precision::F16,
            Precision::Auto if self.fast_bf16 => stratus_engine::Precision::Bf16,
            Precision::Auto => stratus_engine::Precision::F32,
        };
        let possible = self.backend.precisions();
        if possible.contains(&precision) {
            return Ok(precision);
        }
        let possible: Vec<String> = possible.iter().map(ToString::to_string).collect();
        let hint = match precision {
            stratus_engine::Precision::F16 => {
                "take a GPU with --set train.device=cuda, or a number format that is possible here"
            }
            _ => "set train.precision to one of these",
        };
        Err(TrainError::Configuration {
            problem: format!(
                "train.precision is {precision}; {} computes in {} on this machine",
                self.backend.name(),
                possible.join(", ")
            ),
            hint: hint.to_owned(),
        })
    }
}
