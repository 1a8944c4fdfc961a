//! The machine catalogue on the command line.

use crate::errors::Result;
use crate::output::{Output, Table};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use stratus_forecast::catalogue::Catalogue;

/// Arguments of `stratus forecast machines`.
#[derive(Args, Debug)]
pub struct MachinesArguments {
    /// TOML file that adds or replaces catalogue rows
    #[arg(long, value_name = "FILE")]
    machines: Option<PathBuf>,
}

/// The built-in catalogue, with the rows of a file added.
pub(super) fn catalogue(file: Option<&Path>) -> stratus_forecast::Result<Catalogue> {
    let catalogue = Catalogue::builtin()?;
    match file {
        Some(path) => catalogue.with_file(path),
        None => Ok(catalogue),
    }
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
