//! The machine catalogue on the command line.

use crate::errors::{Failure, Result};
use crate::output::{Output, Table};
use clap::Args;
use serde::Serialize;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use stratus_forecast::calibration::Calibration;
use stratus_forecast::catalogue::{Catalogue, Cpu, HERE, LONGEST, Machine, Processor};
use stratus_forecast::profile::{LONGEST as LONGEST_PROFILE, Profile};
use stratus_run::machine::Machine as Here;

/// Arguments of `stratus forecast machines`.
#[derive(Args, Debug)]
pub struct MachinesArguments {
    /// A file with more rows, or others
    #[arg(long, value_name = "FILE")]
    machines: Option<PathBuf>,
}

/// The built-in catalogue, with a file's rows.
pub(super) fn catalogue(file: Option<&Path>) -> Result<Catalogue> {
    let catalogue = Catalogue::builtin()?;
    match file {
        Some(path) => Ok(catalogue.with(&path.display().to_string(), &read(path)?)?),
        None => Ok(catalogue),
    }
}

/// A file's content, at most one byte more than a catalogue has, whatever the path names.
pub(super) fn read(path: &Path) -> Result<String> {
    read_at_most(path, LONGEST)
}

fn read_at_most(path: &Path, longest: usize) -> Result<String> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(longest as u64 + 1).read_to_string(&mut text))
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?;
    Ok(text)
}

/// Every cloud instance.
pub(super) fn affordable(catalogue: &Catalogue) -> Result<Vec<Machine>> {
    Ok(catalogue
        .instances
        .iter()
        .map(|row| catalogue.find(&row.name))
        .collect::<std::result::Result<_, _>>()?)
}

/// The machines of these names; what `stratus calibrate` wrote is named by its file, and adds its profiles.
pub(super) fn named(
    names: &[String],
    catalogue: &Catalogue,
    profiles: &mut Vec<Profile>,
) -> Result<Vec<Machine>> {
    let mut find = |name: &String| match name.trim() {
        name if name.eq_ignore_ascii_case(HERE) => Ok(here(catalogue)),
        name if is_file(name) => {
            let calibration = calibration(Path::new(name))?;
            let machine = calibration.machine();
            profiles.splice(0..0, calibration.profiles);
            Ok(machine)
        }
        name => Ok(catalogue.find(name)?),
    };
    names.iter().map(&mut find).collect()
}

/// No machine of the catalogue has such a name.
fn is_file(name: &str) -> bool {
    name.contains(['/', '\\']) || name.to_ascii_lowercase().ends_with(".toml")
}

/// Reads what `stratus calibrate` wrote.
///
/// # Errors
/// Where it cannot be read, or is no calibration of this version.
pub fn calibration(path: &Path) -> Result<Calibration> {
    let text = read_at_most(path, LONGEST_PROFILE)?;
    Ok(Calibration::parse(&path.display().to_string(), &text)?)
}

/// This machine. Its kernels are timed, so that nothing of a data sheet has to be known.
fn here(catalogue: &Catalogue) -> Machine {
    let machine = Here::probe();
    let threads = machine.cpu.usable_threads.map_or(1, |threads| threads as usize);
    let model = machine.cpu.model;
    let mut cpu = catalogue.cpu_of_model(&model, threads).unwrap_or_else(|| Cpu::unknown(&model, threads));
    cpu.memory_gib = machine.ram_bytes.map(|bytes| bytes as f64 / f64::from(1 << 30));
    Machine { name: HERE.to_owned(), processor: Processor::Cpu(cpu), instance: None }
}

/// A row of the list.
#[derive(Serialize)]
struct Listed {
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
/// Where the file is no catalogue.
pub(super) fn run(arguments: &MachinesArguments, output: &Output) -> Result {
    let catalogue = catalogue(arguments.machines.as_deref())?;
    let gpus = catalogue.gpus.iter().map(|gpu| Listed {
        name: gpu.name.clone(),
        what: gpu.title.clone(),
        memory_gib: Some(gpu.memory_gib),
        on_demand_per_hour: None,
        spot_per_hour: None,
        currency: None,
        source: gpu.source.clone(),
        date: gpu.date.clone(),
    });
    let cpus = catalogue.cpus.iter().map(|cpu| Listed {
        name: cpu.name.clone(),
        what: format!("{}, {} cores", cpu.title, cpu.cores),
        memory_gib: cpu.memory_gib,
        on_demand_per_hour: None,
        spot_per_hour: None,
        currency: None,
        source: cpu.source.clone(),
        date: cpu.date.clone(),
    });
    let instances = catalogue.instances.iter().map(|row| Listed {
        name: row.name.clone(),
        what: format!("{}: {} × {}, {} vCPU", row.cloud, row.gpus, row.gpu, row.vcpus),
        memory_gib: Some(row.ram_gib),
        on_demand_per_hour: row.on_demand_per_hour,
        spot_per_hour: row.spot_per_hour,
        currency: row.currency.clone(),
        source: row.source.clone(),
        date: row.date.clone(),
    });
    let listed: Vec<Listed> = gpus.chain(cpus).chain(instances).collect();
    output.result(&listed, || {
        let number = |value: Option<f64>| value.map_or("–".to_owned(), |value| value.to_string());
        let heading = ["machine", "GiB", "an hour", "date", "what, source"].map(str::to_owned);
        let rows = listed.iter().map(|row| {
            let Listed { name, what, memory_gib, on_demand_per_hour, date, source, .. } = row;
            let (memory, price) = (number(*memory_gib), number(*on_demand_per_hour));
            [name.clone(), memory, price, date.clone(), format!("{what} ({source})")]
        });
        let rows = [heading].into_iter().chain(rows).collect::<Vec<_>>();
        Table::new(&rows).prose().within(output.narrow(), &[]).to_string()
    })
}
