//! The machines of a forecast, by name.

use std::path::Path;
use stratus_forecast::Result;
use stratus_forecast::calibration::Calibration;
use stratus_forecast::catalogue::{Catalogue, Cpu, Machine, Processor, THIS_MACHINE};
use stratus_forecast::profile::Profile;

/// Finds machines by name: of the catalogue, this one (`here`), or those of calibration files, whose profiles
/// are added before the others.
///
/// # Errors
/// If one is not found, or its calibration file cannot be read.
pub fn find_machines(
    names: &[String],
    catalogue: &Catalogue,
    profiles: &mut Vec<Profile>,
) -> Result<Vec<Machine>> {
    names.iter().map(|name| find_machine(name, catalogue, profiles)).collect()
}

/// Finds a machine: of the catalogue, this one (`here`), or that of a calibration file, whose profiles are
/// added before the others.
pub(super) fn find_machine(
    name: &str,
    catalogue: &Catalogue,
    profiles: &mut Vec<Profile>,
) -> Result<Machine> {
    match name.trim() {
        name if name.eq_ignore_ascii_case(THIS_MACHINE) => Ok(this_machine(catalogue)),
        name if is_file(name) => {
            let calibration = Calibration::read(Path::new(name))?;
            let machine = calibration.machine();
            profiles.splice(0..0, calibration.profiles);
            Ok(machine)
        }
        name => catalogue.find(name),
    }
}

/// Returns whether a name is a file name, which no machine of the catalogue has.
fn is_file(name: &str) -> bool {
    name.contains(['/', '\\']) || name.to_ascii_lowercase().ends_with(".toml")
}

/// This machine. Its kernels are timed, so it needs no catalogue row.
fn this_machine(catalogue: &Catalogue) -> Machine {
    let machine = stratus_run::machine::Machine::probe();
    let threads = machine.cpu.usable_threads.map_or(1, |threads| threads as usize);
    let model = machine.cpu.model;
    let mut cpu = catalogue.cpu_of_model(&model, threads).unwrap_or_else(|| Cpu::unknown(&model, threads));
    cpu.memory_gib = machine.ram_bytes.map(|bytes| bytes as f64 / f64::from(1 << 30));
    Machine { name: THIS_MACHINE.to_owned(), processor: Processor::Cpu(cpu), instance: None }
}
