//! `stratus doctor`: a report on this machine and its libraries.

use crate::errors::Result;
use crate::output::{Output, key_value_list};
use clap::Args;
use serde::Serialize;
use stratus_base::text::bytes;
use stratus_run::machine::energy::EnergyAccess;
use stratus_run::machine::instruction_sets::native_bf16;
use stratus_run::machine::survey::{LibraryReport, MachineSurvey};
use stratus_train::bench::peaks::{self, Peaks};
use stratus_train::libraries::LibraryProbes;

/// Arguments of `stratus doctor`.
#[derive(Args, Debug)]
pub struct DoctorArguments {
    /// Do not measure peaks
    #[arg(long)]
    pub no_measure: bool,
}

/// The result of `stratus doctor`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of Stratus.
    pub stratus: &'static str,
    /// The machine, with the libraries and peaks that were found.
    #[serde(flatten)]
    pub survey: MachineSurvey,
    /// The libraries that were searched for, found or not.
    pub looked_for: Option<Vec<LibraryReport>>,
    /// The measured peaks.
    pub measured: Option<Peaks>,
}

/// Runs `stratus doctor`.
///
/// # Errors
/// If the report cannot be written.
pub fn run(arguments: &DoctorArguments, output: &Output, probes: &LibraryProbes) -> Result {
    let mut survey = MachineSurvey::probe();
    survey.add_libraries(probes.libraries.as_deref().unwrap_or_default());
    let measured = (!arguments.no_measure).then(|| {
        output.message("measuring memory and arithmetic, about two seconds");
        peaks::measure(&survey, &probes.compute)
    });
    if let Some(peaks) = &measured {
        peaks.add_to(&mut survey.machine);
    }
    let looked_for = probes.libraries.clone();
    let report = Report { stratus: env!("CARGO_PKG_VERSION"), survey, looked_for, measured };
    output.print_wrapped(&report, || render(&report))
}

fn render(report: &Report) -> String {
    let MachineSurvey { machine, instruction_sets, ram_available_bytes, threads_limited_by, cpu_energy } =
        &report.survey;
    let mut rows: Vec<(String, String)> = Vec::new();
    // Unknown values are omitted.
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
    row("CPU", some(vec![known(&machine.cpu.model)]));
    row(
        "cores",
        some(vec![
            machine.cpu.cores.map(|n| format_count(n as usize, "core")),
            machine.cpu.threads.map(|n| format_count(n as usize, "thread")),
            machine.cpu.sockets.map(|n| format_count(n as usize, "socket")),
            machine.cpu.usable_threads.map(|n| {
                let limit =
                    threads_limited_by.as_ref().map_or(String::new(), |reason| format!(", limited {reason}"));
                format!("usable {}{limit}", format_count(n as usize, "thread"))
            }),
        ]),
    );
    if !instruction_sets.is_empty() {
        row("instruction sets", vec![instruction_sets.join(" ")]);
        let native = native_bf16(instruction_sets);
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
    if let Some(access) = cpu_energy {
        row("energy counters", vec![describe_energy(*access).to_owned()]);
    }
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
                vec![format!("{rate:.1} GB/s (triad, {})", format_count(peaks.threads, "thread"))],
            );
        }
        for compute in &peaks.compute {
            row("peak", vec![format!("{:.0} GFLOP/s ({})", compute.gflops, compute.description)]);
        }
    }
    key_value_list(&rows)
}

/// The access to the energy counters of the processor, and its consequence.
fn describe_energy(access: EnergyAccess) -> &'static str {
    match access {
        EnergyAccess::Readable => "of the CPU, readable",
        EnergyAccess::Denied => {
            "of the CPU, readable by root only (CVE-2020-8694): runs do not measure its energy; an \
             administrator can allow it with chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"
        }
        EnergyAccess::Absent => {
            "none of the CPU, as in most virtual machines and containers: runs do not measure its energy"
        }
    }
}

fn format_count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::{EnergyAccess, Report, render};
    use stratus_run::machine::caches::Cache;
    use stratus_run::machine::survey::{LibraryReport, MachineSurvey};
    use stratus_run::machine::{Cpu, Machine};
    use stratus_train::bench::peaks::{ComputePeak, Peaks};

    #[test]
    fn report_shows_known_values_only() {
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
            survey: MachineSurvey {
                machine,
                instruction_sets: vec!["AVX2", "FMA"],
                ram_available_bytes: Some(3 << 29),
                threads_limited_by: None,
                cpu_energy: Some(EnergyAccess::Denied),
            },
            looked_for: Some(vec![
                library("oneDNN", Some("3.2"), Some("/opt/libdnnl.so.3"), Some("GNU OpenMP")),
                library("cuDNN", None, None, Some("install it")),
            ]),
            measured: Some(Peaks {
                threads: 4,
                memory_gb_per_second: Some(21.25),
                compute: vec![ComputePeak {
                    name: "f32_gflops".into(),
                    description: "f32, oneDNN matmul".into(),
                    gflops: 375.4,
                }],
            }),
        };
        insta::assert_snapshot!(render(&report));
        let unknown = Report { survey: MachineSurvey::default(), looked_for: None, measured: None, ..report };
        assert_eq!(render(&unknown), "stratus  1.2.3\n");
    }
}
