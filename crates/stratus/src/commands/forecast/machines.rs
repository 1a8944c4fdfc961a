//! The machine catalogue on the command line.

use crate::errors::{Failure, Result};
use crate::output::{Output, Table};
use clap::Args;
use serde::Serialize;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use stratus_forecast::calibration::Calibration;
use stratus_forecast::catalogue::{Catalogue, Cpu, MAX_FILE_BYTES, Machine, Processor, THIS_MACHINE};
use stratus_forecast::profile::{MAX_FILE_BYTES as MAX_PROFILE_BYTES, Profile};
use stratus_run::machine::Machine as RunMachine;

/// Arguments of `stratus forecast machines`.
#[derive(Args, Debug)]
pub struct MachinesArguments {
    /// TOML file that adds or replaces catalogue rows
    #[arg(long, value_name = "FILE")]
    machines: Option<PathBuf>,
}

/// The built-in catalogue, with the rows of a file added.
pub(super) fn catalogue(file: Option<&Path>) -> Result<Catalogue> {
    let catalogue = Catalogue::builtin()?;
    match file {
        Some(path) => Ok(catalogue.with(&path.display().to_string(), &read(path)?)?),
        None => Ok(catalogue),
    }
}

/// Reads a file up to one byte beyond the maximum size of a catalogue, so that an endless file is rejected.
pub(super) fn read(path: &Path) -> Result<String> {
    read_limited(path, MAX_FILE_BYTES)
}

fn read_limited(path: &Path, max_bytes: usize) -> Result<String> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(max_bytes as u64 + 1).read_to_string(&mut text))
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?;
    Ok(text)
}

/// Returns all cloud instances of the catalogue.
pub(super) fn cloud_instances(catalogue: &Catalogue) -> Result<Vec<Machine>> {
    Ok(catalogue
        .instances
        .iter()
        .map(|row| catalogue.find(&row.name))
        .collect::<std::result::Result<_, _>>()?)
}

/// Finds machines by name; a calibration is named by its file, and its profiles are added.
pub(super) fn find_machines(
    names: &[String],
    catalogue: &Catalogue,
    profiles: &mut Vec<Profile>,
) -> Result<Vec<Machine>> {
    let mut find = |name: &String| match name.trim() {
        name if name.eq_ignore_ascii_case(THIS_MACHINE) => Ok(this_machine(catalogue)),
        name if is_file(name) => {
            let calibration = read_calibration(Path::new(name))?;
            let machine = calibration.machine();
            profiles.splice(0..0, calibration.profiles);
            Ok(machine)
        }
        name => Ok(catalogue.find(name)?),
    };
    names.iter().map(&mut find).collect()
}

/// Returns whether a name is a file name, which no machine of the catalogue has.
fn is_file(name: &str) -> bool {
    name.contains(['/', '\\']) || name.to_ascii_lowercase().ends_with(".toml")
}

/// Reads a calibration file.
///
/// # Errors
/// If the file cannot be read, or is not a calibration of this version.
pub fn read_calibration(path: &Path) -> Result<Calibration> {
    let text = read_limited(path, MAX_PROFILE_BYTES)?;
    Ok(Calibration::parse(&path.display().to_string(), &text)?)
}

/// This machine. Its kernels are timed, so it needs no catalogue row.
fn this_machine(catalogue: &Catalogue) -> Machine {
    let machine = RunMachine::probe();
    let threads = machine.cpu.usable_threads.map_or(1, |threads| threads as usize);
    let model = machine.cpu.model;
    let mut cpu = catalogue.cpu_of_model(&model, threads).unwrap_or_else(|| Cpu::unknown(&model, threads));
    cpu.memory_gib = machine.ram_bytes.map(|bytes| bytes as f64 / f64::from(1 << 30));
    Machine { name: THIS_MACHINE.to_owned(), processor: Processor::Cpu(cpu), instance: None }
}

/// A row of the list.
#[derive(Serialize)]
struct MachineRow {
    name: String,
    what: String,
    memory_gib: Option<f64>,
    on_demand_per_hour: Option<f64>,
    spot_per_hour: Option<f64>,
    currency: Option<String>,
    source: String,
    date: String,
}

/// Lists the catalogue.
///
/// # Errors
/// If the file is not a catalogue.
pub(super) fn run(arguments: &MachinesArguments, output: &Output) -> Result {
    let catalogue = catalogue(arguments.machines.as_deref())?;
    let gpus = catalogue.gpus.iter().map(|gpu| MachineRow {
        name: gpu.name.clone(),
        what: gpu.title.clone(),
        memory_gib: Some(gpu.memory_gib),
        on_demand_per_hour: None,
        spot_per_hour: None,
        currency: None,
        source: gpu.source.clone(),
        date: gpu.date.clone(),
    });
    let cpus = catalogue.cpus.iter().map(|cpu| MachineRow {
        name: cpu.name.clone(),
        what: format!("{}, {} cores", cpu.title, cpu.cores),
        memory_gib: cpu.memory_gib,
        on_demand_per_hour: None,
        spot_per_hour: None,
        currency: None,
        source: cpu.source.clone(),
        date: cpu.date.clone(),
    });
    let instances = catalogue.instances.iter().map(|row| MachineRow {
        name: row.name.clone(),
        what: format!("{}: {} × {}, {} vCPU", row.cloud, row.gpus, row.gpu, row.vcpus),
        memory_gib: Some(row.ram_gib),
        on_demand_per_hour: row.on_demand_per_hour,
        spot_per_hour: row.spot_per_hour,
        currency: row.currency.clone(),
        source: row.source.clone(),
        date: row.date.clone(),
    });
    let listed: Vec<MachineRow> = gpus.chain(cpus).chain(instances).collect();
    output.print_wrapped(&listed, || {
        let number = |value: Option<f64>| value.map_or("–".to_owned(), |value| value.to_string());
        let heading = ["machine", "GiB", "per hour", "date", "description, source"].map(str::to_owned);
        let rows = listed.iter().map(|row| {
            let MachineRow { name, what, memory_gib, on_demand_per_hour, date, source, .. } = row;
            let (memory, price) = (number(*memory_gib), number(*on_demand_per_hour));
            [name.clone(), memory, price, date.clone(), format!("{what} ({source})")]
        });
        let rows = [heading].into_iter().chain(rows).collect::<Vec<_>>();
        Table::new(&rows).wrap_last_column().max_width(output.terminal_width(), &[]).to_string()
    })
}
