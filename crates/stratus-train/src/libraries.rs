//! The libraries that kernels and data sets use, and the benchmarks of arithmetic that they offer.

use crate::bench::peaks::ComputeBenchmark;
use std::rc::Rc;
use stratus_base::installation::libraries_command;
use stratus_data::JpegLibrary;
use stratus_engine::{Backend, DType};
use stratus_onednn::OneDnn;
use stratus_run::machine::survey::LibraryReport;

/// The libraries that were found, and the benchmarks that they offer.
#[derive(Debug)]
pub struct LibraryProbes {
    /// The libraries that were searched for, if any.
    pub libraries: Option<Vec<LibraryReport>>,
    /// The benchmarks of arithmetic.
    pub compute: Vec<ComputeBenchmark>,
}

impl Default for LibraryProbes {
    fn default() -> Self {
        LibraryProbes { libraries: None, compute: vec![ComputeBenchmark::portable()] }
    }
}

impl LibraryProbes {
    /// Searches for the libraries.
    #[must_use]
    pub fn detect() -> Self {
        let mut probes = Self::detect_onednn();
        probes.libraries.get_or_insert_default().extend([detect_cuda(), detect_jpeg()]);
        probes
    }

    fn detect_onednn() -> Self {
        match OneDnn::load(0) {
            Ok(onednn) => {
                let report = LibraryReport {
                    name: "oneDNN".to_owned(),
                    version: Some(onednn.version()),
                    path: Some(onednn.path().display().to_string()),
                    note: Some(onednn.runtime_warning().unwrap_or_else(|| onednn.describe())),
                };
                let onednn = Rc::new(onednn);
                let source = |name: &str, description: &str, dtype: DType| ComputeBenchmark {
                    name: name.to_owned(),
                    description: description.to_owned(),
                    measure: {
                        let onednn = Rc::clone(&onednn);
                        Box::new(move |_| onednn.peak_gflops(dtype))
                    },
                };
                LibraryProbes {
                    libraries: Some(vec![report]),
                    compute: vec![
                        source("f32_gflops", "f32, oneDNN matrix product", DType::F32),
                        source("bf16_gflops", "bf16, oneDNN matrix product", DType::Bf16),
                    ],
                }
            }
            Err(error) => {
                let slower = "training is about 30 times slower without it";
                let note = Some(match error.hint() {
                    Some(hint) => format!("{error}; {hint}"),
                    None => format!("{error}; {slower}; run `{}`", libraries_command()),
                });
                let report = LibraryReport { name: "oneDNN".to_owned(), version: None, path: None, note };
                LibraryProbes { libraries: Some(vec![report]), ..LibraryProbes::default() }
            }
        }
    }
}

/// Reports the libraries for GPUs, and the usable GPUs.
fn detect_cuda() -> LibraryReport {
    let (found, gpus) = stratus_cuda::detect();
    // Only several GPUs use it, and they do without it.
    let nccl = match stratus_cuda::nccl_version() {
        Ok(version) => format!("; NCCL {version}"),
        Err(reason) => {
            let reason = reason.strip_prefix("NCCL ").unwrap_or(&reason);
            format!("; NCCL: none usable ({reason}), so several GPUs exchange gradients through host memory")
        }
    };
    let missing: Vec<&str> =
        found.iter().filter(|library| library.version.is_none()).map(|library| library.name).collect();
    let loaded = found.iter().filter_map(|library| match library.version.as_deref()? {
        "" => Some(library.name.to_owned()),
        version => Some(format!("{} {version}", library.name)),
    });
    let loaded = loaded.collect::<Vec<_>>().join(", ");
    let note = match (missing.is_empty(), gpus.is_empty()) {
        (true, false) => format!("{loaded}{nccl}; {}", gpus.join("; ")),
        (true, true) => format!("{loaded}; no GPU found"),
        (false, _) if loaded.is_empty() => {
            format!("{} not found: no NVIDIA GPU can be used", missing.join(", "))
        }
        (false, _) => format!(
            "{loaded}; {} not found: no NVIDIA GPU can be used; set {} to their folder",
            missing.join(", "),
            stratus_cuda::ENVIRONMENT
        ),
    };
    let note = match stratus_cuda::check_named_folders() {
        Ok(()) => note,
        Err(error) => format!("{error}; {note}"),
    };
    let driver = found.iter().find(|library| library.name == "CUDA driver");
    let version = driver.filter(|_| missing.is_empty()).and_then(|driver| driver.version.clone());
    LibraryReport { name: "CUDA".to_owned(), version, path: None, note: Some(note) }
}

/// Reports libjpeg-turbo.
fn detect_jpeg() -> LibraryReport {
    let name = "libjpeg-turbo".to_owned();
    match JpegLibrary::find() {
        Ok(library) => LibraryReport {
            name,
            version: Some(library.version().to_owned()),
            path: library.path().map(|path| path.display().to_string()),
            note: None,
        },
        Err(reason) => LibraryReport {
            name,
            version: None,
            path: None,
            note: Some(match reason.hint() {
                Some(hint) => format!("{reason}; {hint}"),
                None => format!(
                    "{reason}; JPEG files are decoded by {}, which makes data loading a third slower; run \
                     `{}`",
                    JpegLibrary::Zune,
                    libraries_command()
                ),
            }),
        },
    }
}
