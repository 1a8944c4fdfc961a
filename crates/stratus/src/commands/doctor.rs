//! `stratus doctor`: this machine, and what is missing on it.

use crate::errors::Result;
use crate::machine::peaks::{self, ComputeSource, Peaks};
use crate::machine::{LibraryReport, Survey, cpu};
use crate::output::{Output, bytes, pairs};
use clap::Args;
use serde::Serialize;
use std::rc::Rc;
use stratus_data::JpegLibrary;
use stratus_engine::{Backend, DType};
use stratus_onednn::OneDnn;

/// Arguments of `stratus doctor`.
#[derive(Args, Debug)]
pub struct DoctorArguments {
    /// Leave out the measurements
    #[arg(long)]
    pub no_measure: bool,
}

/// What the libraries tell about themselves and can measure.
#[derive(Debug)]
pub struct Probes {
    /// The libraries that were looked for; `None` where none was.
    pub libraries: Option<Vec<LibraryReport>>,
    /// Ways to measure arithmetic.
    pub compute: Vec<ComputeSource>,
}

impl Default for Probes {
    fn default() -> Self {
        Probes { libraries: None, compute: vec![ComputeSource::portable()] }
    }
}

impl Probes {
    /// Looks for the libraries; kernel libraries that are found measure arithmetic.
    pub fn of_this_machine() -> Self {
        let mut probes = Self::of_onednn();
        probes.libraries.get_or_insert_default().extend([cuda(), jpeg()]);
        probes
    }

    fn of_onednn() -> Self {
        match OneDnn::load(0) {
            Ok(onednn) => {
                let report = LibraryReport {
                    name: "oneDNN".to_owned(),
                    version: Some(onednn.version()),
                    path: Some(onednn.path().display().to_string()),
                    note: Some(onednn.note().unwrap_or_else(|| onednn.describe())),
                };
                let onednn = Rc::new(onednn);
                let source = |name: &str, what: &str, dtype: DType| ComputeSource {
                    name: name.to_owned(),
                    what: what.to_owned(),
                    measure: {
                        let onednn = Rc::clone(&onednn);
                        Box::new(move |_| onednn.peak_gflops(dtype))
                    },
                };
                Probes {
                    libraries: Some(vec![report]),
                    compute: vec![
                        source("f32_gflops", "f32, oneDNN matrix product", DType::F32),
                        source("bf16_gflops", "bf16, oneDNN matrix product", DType::Bf16),
                    ],
                }
            }
            Err(error) => {
                let note = Some(format!("{error}; run `make deps`"));
                let report = LibraryReport { name: "oneDNN".to_owned(), version: None, path: None, note };
                Probes { libraries: Some(vec![report]), ..Probes::default() }
            }
        }
    }
}

/// What a GPU is used through, and the GPUs that can be used.
fn cuda() -> LibraryReport {
    let (found, gpus) = stratus_cuda::survey();
    let missing: Vec<&str> =
        found.iter().filter(|library| library.version.is_none()).map(|library| library.name).collect();
    let there = found.iter().filter_map(|library| match library.version.as_deref()? {
        "" => Some(library.name.to_owned()),
        version => Some(format!("{} {version}", library.name)),
    });
    let there = there.collect::<Vec<_>>().join(", ");
    let note = match (missing.is_empty(), gpus.is_empty()) {
        (true, false) => format!("{there}; {}", gpus.join("; ")),
        (true, true) => format!("{there}; the driver shows no GPU"),
        (false, _) if there.is_empty() => {
            format!("{} cannot be loaded: no NVIDIA GPU can be used", missing.join(", "))
        }
        (false, _) => format!(
            "{there}; {} cannot be loaded, without which no NVIDIA GPU can be used; \
             {} names folders that hold them",
            missing.join(", "),
            stratus_cuda::ENVIRONMENT
        ),
    };
    let driver = found.iter().find(|library| library.name == "CUDA driver");
    let version = driver.filter(|_| missing.is_empty()).and_then(|driver| driver.version.clone());
    LibraryReport { name: "CUDA".to_owned(), version, path: None, note: Some(note) }
}

/// libjpeg-turbo, or what it is wanted for.
fn jpeg() -> LibraryReport {
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
            note: Some(format!(
                "{reason}; JPEG files are decoded by {}, and take a third longer to become batches; \
                 run `make deps`",
                JpegLibrary::Zune
            )),
        },
    }
}

/// What `stratus doctor` reports.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of Stratus.
    pub stratus: &'static str,
    /// The machine; found libraries and peaks are entered in it.
    #[serde(flatten)]
    pub survey: Survey,
    /// The libraries that were looked for, found or not.
    pub looked_for: Option<Vec<LibraryReport>>,
    /// What was measured.
    pub measured: Option<Peaks>,
}

/// Runs `stratus doctor`.
///
/// # Errors
/// Where the report cannot be written.
pub fn run(arguments: &DoctorArguments, output: &Output, probes: &Probes) -> Result {
    let mut survey = Survey::of_this_machine();
    survey.add_libraries(probes.libraries.as_deref().unwrap_or_default());
    let measured = (!arguments.no_measure).then(|| {
        output.message("measuring memory and arithmetic, about two seconds");
        peaks::measure(&survey, &probes.compute)
    });
    if let Some(peaks) = &measured {
        survey.add_peaks(peaks);
    }
    let looked_for = probes.libraries.clone();
    let report = Report { stratus: env!("CARGO_PKG_VERSION"), survey, looked_for, measured };
    output.result(&report, || render(&report))
}

fn render(report: &Report) -> String {
    let Survey { machine, instruction_sets, ram_available_bytes, threads_limited_by } = &report.survey;
    let mut rows: Vec<(String, String)> = Vec::new();
    // What is not known is left out.
    let mut row = |name: &str, parts: Vec<String>| {
        if !parts.is_empty() {
            rows.push((name.to_owned(), parts.join(", ")));
        }
    };
    let known = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let some = |parts: Vec<Option<String>>| parts.into_iter().flatten().collect::<Vec<_>>();

    row("stratus", vec![report.stratus.to_owned()]);
    row("host", some(vec![known(&machine.host)]));
    row("system", some(vec![known(&machine.os), known(&machine.kernel), known(&machine.cpu.architecture)]));
    row("processor", some(vec![known(&machine.cpu.model)]));
    row(
        "cores",
        some(vec![
            machine.cpu.cores.map(|n| count(n as usize, "core")),
            machine.cpu.threads.map(|n| count(n as usize, "thread")),
            machine.cpu.sockets.map(|n| count(n as usize, "socket")),
            machine.cpu.usable_threads.map(|n| {
                let why = threads_limited_by.as_ref().map_or(String::new(), |why| format!(", limited {why}"));
                format!("usable {}{why}", count(n as usize, "thread"))
            }),
        ]),
    );
    if !instruction_sets.is_empty() {
        row("instruction sets", vec![instruction_sets.join(" ")]);
        let native = cpu::native_bf16(instruction_sets);
        row("bf16", vec![if native { "native" } else { "not native: f32 is faster here" }.to_owned()]);
    }
    for cache in &machine.cpu.caches {
        let kind = cache.kind.to_lowercase();
        row(&format!("L{} {kind}", cache.level), vec![format!("{} × {}", cache.count, bytes(cache.bytes))]);
    }
    row(
        "memory",
        some(vec![
            machine.ram_bytes.map(bytes),
            ram_available_bytes.map(|free| format!("{} available", bytes(free))),
        ]),
    );
    for device in &machine.devices {
        row(
            &device.kind,
            some(vec![known(&device.name), device.driver.as_ref().map(|d| format!("driver {d}"))]),
        );
    }
    for library in report.looked_for.iter().flatten() {
        let version = library.version.clone().unwrap_or_else(|| "not found".to_owned());
        row(&library.name, some(vec![Some(version), library.path.clone(), library.note.clone()]));
    }
    if let Some(peaks) = &report.measured {
        if let Some(rate) = peaks.memory_gb_per_second {
            row(
                "memory bandwidth",
                vec![format!("{rate:.1} GB/s (triad, {})", count(peaks.threads, "thread"))],
            );
        }
        for compute in &peaks.compute {
            row("peak", vec![format!("{:.0} GFLOP/s ({})", compute.gflops, compute.what)]);
        }
    }
    pairs(&rows)
}

fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::{Report, render};
    use crate::machine::peaks::{Compute, Peaks};
    use crate::machine::{LibraryReport, Survey};
    use stratus_run::machine::caches::Cache;
    use stratus_run::machine::{Cpu, Machine};

    #[test]
    fn the_report_reads_well() {
        let library =
            |name: &str, version: Option<&str>, path: Option<&str>, note: Option<&str>| LibraryReport {
                name: name.into(),
                version: version.map(Into::into),
                path: path.map(Into::into),
                note: note.map(Into::into),
            };
        let cpu = Cpu {
            model: "A Processor".into(),
            architecture: "x86_64".into(),
            sockets: Some(1),
            cores: Some(2),
            threads: Some(4),
            usable_threads: Some(3),
            features: Vec::new(),
            caches: vec![Cache { level: 3, kind: "Unified".into(), bytes: 32 << 20, count: 1 }],
        };
        let machine = Machine {
            host: "lab".into(),
            os: "System 1".into(),
            kernel: "6.1".into(),
            cpu,
            ram_bytes: Some(16 << 30),
            ..Machine::default()
        };
        let report = Report {
            stratus: "1.2.3",
            survey: Survey {
                machine,
                instruction_sets: vec!["AVX2", "FMA"],
                ram_available_bytes: Some(3 << 29),
                threads_limited_by: None,
            },
            looked_for: Some(vec![
                library("oneDNN", Some("3.2"), Some("/opt/libdnnl.so.3"), Some("GNU OpenMP")),
                library("cuDNN", None, None, Some("install it")),
            ]),
            measured: Some(Peaks {
                threads: 4,
                memory_gb_per_second: Some(21.25),
                compute: vec![Compute {
                    name: "f32_gflops".into(),
                    what: "f32, oneDNN matmul".into(),
                    gflops: 375.4,
                }],
            }),
        };
        insta::assert_snapshot!(render(&report));
        let unknown = Report { survey: Survey::default(), looked_for: None, measured: None, ..report };
        assert_eq!(render(&unknown), "stratus  1.2.3\n");
    }
}
