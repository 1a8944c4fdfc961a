//! Opening what computes.

use crate::TrainError;
use crate::experiment::{Device, Precision};
use stratus_engine::Backend;
use stratus_engine::reference::ReferenceBackend;
use stratus_onednn::OneDnn;
use stratus_run::machine::{Machine, caches};

/// A backend and what is worth saying about it.
pub struct Opened {
    /// What computes.
    pub backend: Box<dyn Backend>,
    /// Its library's name, version and path, where it has one.
    pub library: Option<(String, String)>,
    /// Whether bf16 runs on instructions of its own.
    pub fast_bf16: bool,
    /// What must not be missed.
    pub warnings: Vec<String>,
}

/// Opens a device; `threads` 0 takes every core.
///
/// # Errors
/// Where the one that was asked for by name is not there.
pub fn open(device: Device, threads: usize) -> Result<Opened, TrainError> {
    if device == Device::Reference {
        return Ok(reference(Vec::new()));
    }
    match OneDnn::load(threads) {
        Ok(onednn) => Ok(Opened {
            library: Some((onednn.version(), onednn.path().display().to_string())),
            fast_bf16: onednn.has_fast_bf16(),
            warnings: onednn
                .note()
                .into_iter()
                .map(|note| format!("oneDNN {}: {note}", onednn.version()))
                .collect(),
            backend: Box::new(onednn),
        }),
        Err(error) if device == Device::Onednn => {
            Err(TrainError::Device { device: "onednn", reason: error.to_string() })
        }
        Err(error) => Ok(reference(vec![format!(
            "{error}.\n  Training runs on the reference backend, in plain Rust: correct, and about a hundred times slower. \
             `make deps` installs oneDNN into this checkout (x86-64 Linux, no root needed); elsewhere install libdnnl 3.x \
             (Debian and Ubuntu: libdnnl-dev, Homebrew and conda: onednn)."
        )])),
    }
}

fn reference(warnings: Vec<String>) -> Opened {
    Opened { backend: Box::new(ReferenceBackend), library: None, fast_bf16: false, warnings }
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
    #[must_use]
    pub fn precision(&self, setting: Precision) -> stratus_engine::Precision {
        match setting {
            Precision::F32 => stratus_engine::Precision::F32,
            Precision::Bf16 => stratus_engine::Precision::Bf16,
            Precision::Auto if self.fast_bf16 => stratus_engine::Precision::Bf16,
            Precision::Auto => stratus_engine::Precision::F32,
        }
    }
}
