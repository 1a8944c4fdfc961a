//! The machine catalogue on the command line.

use crate::errors::{Failure, Result};
use crate::output::{Output, Table};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use stratus_forecast::catalogue::{Catalogue, Machine, SkyPilotCatalogue, skypilot};

/// Arguments that select catalogue rows.
#[derive(Args, Debug)]
pub(super) struct CatalogueArguments {
    /// TOML file that adds or replaces catalogue rows
    #[arg(long, value_name = "FILE")]
    machines: Option<PathBuf>,
    /// Folder with SkyPilot's catalogues, whose instances and prices replace the built-in ones of their
    /// clouds; `none` to ignore them [default: ~/.sky/catalogs, if it exists]
    #[arg(long, value_name = "DIR")]
    sky_catalogs: Option<PathBuf>,
    /// Only instances of these clouds, like aws,lambda
    #[arg(long, value_name = "CLOUDS", value_delimiter = ',')]
    cloud: Vec<String>,
}

/// Arguments of `stratus forecast machines`.
#[derive(Args, Debug)]
pub struct MachinesArguments {
    #[command(flatten)]
    catalogue: CatalogueArguments,
}

/// Maximum number of unknown accelerators that are named.
const MAX_NAMED_ACCELERATORS: usize = 8;

impl CatalogueArguments {
    /// The files that are read.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.machines.iter()
    }

    /// The built-in catalogue, with the rows of SkyPilot and of the user's file. Problems of SkyPilot's files
    /// are printed.
    ///
    /// # Errors
    /// If a file is invalid.
    pub fn read(&self, output: &Output) -> stratus_forecast::Result<Catalogue> {
        let mut catalogue = Catalogue::builtin()?;
        let folder = match &self.sky_catalogs {
            Some(folder) if folder.as_os_str() == "none" => None,
            Some(folder) => Some(folder.clone()),
            None => skypilot::default_folder(),
        };
        if let Some(folder) = folder {
            let found = skypilot::read(&folder, &catalogue.gpus)?;
            report_skypilot(&found, output);
            catalogue = catalogue.with_skypilot(&found);
        }
        match &self.machines {
            Some(path) => catalogue.with_file(path),
            None => Ok(catalogue),
        }
    }

    /// The instances of the selected clouds.
    ///
    /// # Errors
    /// If a cloud has none.
    pub fn select(&self, machines: Vec<Machine>) -> Result<Vec<Machine>> {
        let cloud_of = |machine: &Machine| machine.instance.as_ref().map(|row| row.cloud.to_lowercase());
        if self.cloud.is_empty() {
            return Ok(machines);
        }
        let known: BTreeSet<String> = machines.iter().filter_map(cloud_of).collect();
        let chosen: BTreeSet<String> = self.cloud.iter().map(|cloud| cloud.trim().to_lowercase()).collect();
        if let Some(unknown) = chosen.difference(&known).next() {
            let known = known.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            return Err(Failure::usage(format!("the catalogue has no instance of the cloud `{unknown}`"))
                .with_hint(format!("it has instances of {known}")));
        }
        let is_chosen = |machine: &Machine| cloud_of(machine).is_some_and(|cloud| chosen.contains(&cloud));
        Ok(machines.into_iter().filter(is_chosen).collect())
    }
}

/// Prints what was read of SkyPilot's catalogue, and what was not.
fn report_skypilot(found: &SkyPilotCatalogue, output: &Output) {
    let clouds = found.clouds.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let clouds = if clouds.is_empty() { "no known GPU" } else { &clouds };
    output.message(&format!("prices of SkyPilot: {} ({clouds})", found.folder.display()));
    if !found.unknown_accelerators.is_empty() {
        let all = &found.unknown_accelerators;
        let named: Vec<&str> = all.iter().take(MAX_NAMED_ACCELERATORS).map(String::as_str).collect();
        let more = all.len().saturating_sub(named.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        output.message(&format!(
            "left out, as the machine catalogue has no GPU of these names and sizes: {}{more}",
            named.join(", ")
        ));
    }
    if found.damaged_rows > 0 {
        output.warning(&format!("{} damaged rows of SkyPilot's catalogue are left out", found.damaged_rows));
        found.problems.iter().for_each(|problem| output.message(problem));
    }
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
    let catalogue = arguments.catalogue.read(output)?;
    let instances = arguments.catalogue.select(catalogue.cloud_instances()?)?;
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
    let instances = instances.iter().filter_map(|machine| machine.instance.as_ref()).map(|row| MachineRow {
        name: row.name.clone(),
        what: format!(
            "{}: {} × {}{}{}",
            row.cloud,
            row.gpus,
            row.gpu,
            row.vcpus.map_or_else(String::new, |vcpus| format!(", {vcpus} vCPU")),
            row.region.as_ref().map_or_else(String::new, |region| format!(", {region}"))
        ),
        memory_gib: row.ram_gib,
        on_demand_per_hour: row.on_demand_per_hour,
        spot_per_hour: row.spot_per_hour,
        currency: row.currency.clone(),
        source: row.source.clone(),
        date: row.date.clone(),
    });
    let listed: Vec<MachineRow> = gpus.chain(cpus).chain(instances).collect();
    output.print_wrapped(&listed, || {
        let number = |value: Option<f64>| value.map_or("–".to_owned(), |value| value.to_string());
        let heading =
            ["machine", "GiB", "per hour", "spot", "date", "description, source"].map(str::to_owned);
        let rows = listed.iter().map(|row| {
            let MachineRow {
                name, what, memory_gib, on_demand_per_hour, spot_per_hour, date, source, ..
            } = row;
            let [memory, price, spot] = [*memory_gib, *on_demand_per_hour, *spot_per_hour].map(number);
            [name.clone(), memory, price, spot, date.clone(), format!("{what} ({source})")]
        });
        let rows = [heading].into_iter().chain(rows).collect::<Vec<_>>();
        Table::new(&rows).wrap_last_column().max_width(output.terminal_width(), &[]).to_string()
    })
}
