//! The machine catalogue: GPUs, CPUs and cloud instances, each row with its source and date.
//!
//! The built-in rows are `data/machines.toml`. A user's file adds rows, and replaces those with the same
//! name. Files are untrusted: their length and all values are validated.

mod rows;
mod run_price;
pub mod skypilot;

pub use rows::{Cpu, Gpu, GpuLinks, HourlyPrice, Instance, InstanceNetwork, price_age_days};
pub use run_price::RunPrice;
pub use skypilot::SkyPilotCatalogue;

use crate::error::{Error, NameHint, Result};
use crate::file;
use rows::Rows;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use stratus_base::nearest;

/// Maximum size of a catalogue file.
const MAX_FILE_BYTES: usize = 1 << 20;
/// The name of the machine that this program runs on.
pub const THIS_MACHINE: &str = "here";

/// The known machines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalogue {
    /// GPUs, in the order of the files.
    pub gpus: Vec<Gpu>,
    /// CPUs.
    pub cpus: Vec<Cpu>,
    /// Cloud instances.
    pub instances: Vec<Instance>,
}

/// A machine to forecast for.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The requested name.
    pub name: String,
    /// The GPU or CPU that computes.
    pub processor: Processor,
    /// The cloud instance, if it is one.
    pub instance: Option<Instance>,
}

/// The processor that computes in a machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Processor {
    /// A GPU.
    Gpu(Gpu),
    /// A CPU, with the number of usable cores.
    Cpu(Cpu),
}

impl Processor {
    /// The name in the catalogue.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Gpu(gpu) => &gpu.name,
            Self::Cpu(cpu) => &cpu.name,
        }
    }
}

impl Catalogue {
    /// The built-in catalogue.
    ///
    /// # Errors
    /// Only if the built-in file is invalid (covered by a test).
    pub fn builtin() -> Result<Self> {
        Self::default().with("machines.toml", include_str!("../../data/machines.toml"))
    }

    /// Adds the rows of the file at `path`, see [`Self::with`].
    ///
    /// # Errors
    /// If the file cannot be read, or as [`Self::with`].
    pub fn with_file(self, path: &Path) -> Result<Self> {
        self.with(&path.display().to_string(), &file::read(path, MAX_FILE_BYTES)?)
    }

    /// Replaces the instances of the clouds that SkyPilot's catalogue has. An instance whose name another
    /// cloud uses is left out. Networks, which SkyPilot's catalogue lacks, are kept.
    #[must_use]
    pub fn with_skypilot(mut self, catalogue: &SkyPilotCatalogue) -> Self {
        let networks: BTreeMap<String, InstanceNetwork> = self
            .instances
            .iter()
            .filter_map(|row| Some((row.name.to_lowercase(), row.network.clone()?)))
            .collect();
        self.instances.retain(|row| !catalogue.clouds.contains(&row.cloud.to_lowercase()));
        let mut known: BTreeSet<String> = self.names().map(str::to_lowercase).collect();
        let new = catalogue.instances.iter().filter(|row| known.insert(row.name.to_lowercase()));
        self.instances.extend(new.cloned().map(|row| Instance {
            network: row.network.or_else(|| networks.get(&row.name.to_lowercase()).cloned()),
            ..row
        }));
        self
    }

    /// All cloud instances.
    ///
    /// # Errors
    /// If one names an unknown GPU.
    pub fn cloud_instances(&self) -> Result<Vec<Machine>> {
        self.instances.iter().map(|row| self.find(&row.name)).collect()
    }

    /// Adds the rows of a file; rows with a known name are replaced.
    ///
    /// # Errors
    /// If the file is too large, not a catalogue, or has an invalid row.
    pub fn with(mut self, file: &str, text: &str) -> Result<Self> {
        let problem = |problem: String| Error::File { file: file.to_owned(), problem };
        if text.len() > MAX_FILE_BYTES {
            return Err(problem(format!("it has {} bytes; the limit is {MAX_FILE_BYTES}", text.len())));
        }
        let rows: Rows = toml::from_str(text).map_err(|error| problem(error.to_string()))?;
        rows.check(file)?;
        for gpu in rows.gpu {
            replace(&mut self.gpus, gpu, |row| &row.name);
        }
        for cpu in rows.cpu {
            replace(&mut self.cpus, cpu, |row| &row.name);
        }
        for instance in rows.instance {
            if !self.gpus.iter().any(|gpu| gpu.name == instance.gpu) {
                return Err(Error::Catalogue {
                    file: file.to_owned(),
                    row: format!("instance `{}`", instance.name),
                    problem: format!("unknown GPU `{}`", instance.gpu),
                });
            }
            replace(&mut self.instances, instance, |row| &row.name);
        }
        Ok(self)
    }

    /// Finds a machine by name, ignoring case.
    ///
    /// # Errors
    /// If there is no such machine; with the most similar name.
    pub fn find(&self, name: &str) -> Result<Machine> {
        let has_name = |row: &str| row.eq_ignore_ascii_case(name);
        if let Some(instance) = self.instances.iter().find(|row| has_name(&row.name)) {
            let gpu =
                self.gpus.iter().find(|gpu| gpu.name == instance.gpu).ok_or_else(|| self.unknown(name))?;
            return Ok(Machine {
                name: instance.name.clone(),
                processor: Processor::Gpu(gpu.clone()),
                instance: Some(instance.clone()),
            });
        }
        if let Some(gpu) = self.gpus.iter().find(|row| has_name(&row.name)) {
            let processor = Processor::Gpu(gpu.clone());
            return Ok(Machine { name: gpu.name.clone(), processor, instance: None });
        }
        if let Some(cpu) = self.cpus.iter().find(|row| has_name(&row.name)) {
            let processor = Processor::Cpu(cpu.clone());
            return Ok(Machine { name: cpu.name.clone(), processor, instance: None });
        }
        Err(self.unknown(name))
    }

    /// The CPU with this model name of the operating system, with at most `threads` cores.
    #[must_use]
    pub fn cpu_of_model(&self, model: &str, threads: usize) -> Option<Cpu> {
        // Names that are prefixes of others end in a blank: `EPYC 9654 96-Core`, `EPYC 9654P 96-Core`.
        let model = format!("{model} ");
        let found = self.cpus.iter().find(|cpu| cpu.models.iter().any(|part| model.contains(part.as_str())));
        found.map(|cpu| Cpu { cores: cpu.cores.min(threads.max(1)), ..cpu.clone() })
    }

    /// All names: instances, GPUs, CPUs.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let instances = self.instances.iter().map(|row| row.name.as_str());
        let gpus = self.gpus.iter().map(|row| row.name.as_str());
        instances.chain(gpus).chain(self.cpus.iter().map(|row| row.name.as_str()))
    }

    fn unknown(&self, name: &str) -> Error {
        let known = || self.names().map(str::to_owned).collect();
        let similar = nearest(name, self.names().chain([THIS_MACHINE])).or_else(|| self.find_similar(name));
        let hint = match similar {
            Some(similar) => NameHint { similar: Some(similar.to_owned()), known: Vec::new() },
            None => NameHint { similar: None, known: known() },
        };
        Error::UnknownMachine { name: name.to_owned(), hint }
    }

    /// A machine whose name contains the given text as a prefix of a part, with blanks and underscores as
    /// dashes: `v100`.
    fn find_similar(&self, name: &str) -> Option<&str> {
        let written = name.to_lowercase().replace([' ', '_'], "-");
        let is_similar = |known: &&str| {
            let known = known.to_lowercase();
            known.starts_with(&written) || known.contains(&format!("-{written}"))
        };
        // The names of instances contain those of GPUs.
        let processors = self.gpus.iter().map(|row| row.name.as_str());
        let mut processors = processors.chain(self.cpus.iter().map(|row| row.name.as_str()));
        match written.len() {
            0 | 1 => None,
            _ => processors.find(is_similar).or_else(|| self.names().find(is_similar)),
        }
    }
}

fn replace<T>(rows: &mut Vec<T>, row: T, name: impl Fn(&T) -> &String) {
    match rows.iter_mut().find(|known| name(known).eq_ignore_ascii_case(name(&row))) {
        Some(known) => *known = row,
        None => rows.push(row),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_source_and_plausible_values() {
        let catalogue = Catalogue::builtin().unwrap();
        assert!(catalogue.gpus.len() >= 25 && catalogue.cpus.len() >= 6 && catalogue.instances.len() >= 10);
        for gpu in &catalogue.gpus {
            assert!(!gpu.source.is_empty() && gpu.date.len() == 7, "{}", gpu.name);
            // A multiprocessor does 64 to 192 multiply-adds per cycle, at 0.5 to 3 GHz.
            let gflops = gpu.f32_tflops * 1e3 / f64::from(gpu.multiprocessors);
            assert!((100.0..800.0).contains(&gflops), "{}: {gflops} GFLOP/s per multiprocessor", gpu.name);
            // FLOPs per byte: typically about 20.
            let balance = gpu.f32_tflops * 1e3 / gpu.bandwidth_gb_s;
            assert!((8.0..130.0).contains(&balance), "{}: {balance} FLOP per byte", gpu.name);
            // From 15 GFLOP/s per watt for Kepler to 500.
            let efficiency = gpu.tdp_watts.map(|watts| gpu.f32_tflops * 1e3 / watts);
            assert!(
                efficiency.is_none_or(|rate| (15.0..500.0).contains(&rate)),
                "{}: {efficiency:?}",
                gpu.name
            );
            // NVLink is faster than PCI Express.
            let links = gpu.links.as_ref().filter(|links| !links.source.is_empty());
            let nvlink = links.and_then(|links| links.nvlink_gb_s.zip(links.pcie_gb_s));
            assert!(nvlink.is_none_or(|(nvlink, pcie)| nvlink > pcie && nvlink < gpu.bandwidth_gb_s));
            for tensor in [gpu.f16_tensor_tflops, gpu.bf16_tensor_tflops].into_iter().flatten() {
                // 30 for a B200, whose white paper has it.
                assert!((1.5..31.0).contains(&(tensor / gpu.f32_tflops)), "{}", gpu.name);
            }
        }
        for cpu in &catalogue.cpus {
            assert!(!cpu.source.is_empty() && cpu.date.len() == 7, "{}", cpu.name);
        }
        for instance in &catalogue.instances {
            assert!(!instance.source.is_empty(), "{}", instance.name);
            let price = instance.on_demand_per_hour.unwrap() / f64::from(instance.gpus);
            assert!((0.3..15.0).contains(&price), "{}", instance.name);
        }
    }

    #[test]
    fn finds_and_suggests_machines() {
        let catalogue = Catalogue::builtin().unwrap();
        assert_eq!(catalogue.find("V100-16GB").unwrap().name, "v100-16gb");
        let instance = catalogue.find("g4dn.xlarge").unwrap();
        assert!(matches!(instance.processor, Processor::Gpu(gpu) if gpu.name == "t4-16gb"));
        let hint = |name: &str| catalogue.find(name).unwrap_err().hint().unwrap();
        assert_eq!(hint("v100-16g"), "did you mean `v100-16gb`?");
        assert_eq!(hint("3090"), "did you mean `rtx-3090`?");
        assert_eq!(hint("h100"), "did you mean `h100-80gb-sxm`?");
        assert!(hint("abacus").starts_with("use one of these"));
    }

    #[test]
    fn finds_a_cpu_by_its_model_name() {
        let catalogue = Catalogue::builtin().unwrap();
        let cpu = catalogue.cpu_of_model("Intel(R) Xeon(R) Gold 6230 CPU @ 2.10GHz", 8).unwrap();
        assert_eq!((cpu.name.as_str(), cpu.cores), ("xeon-gold-6230", 8));
        assert_eq!(catalogue.cpu_of_model("AMD EPYC 9654P 96-Core Processor", 8), None);
        assert_eq!(catalogue.cpu_of_model("AMD EPYC", 8), None);
    }

    #[test]
    fn file_adds_and_replaces_rows() {
        let text = "[[instance]]\nname = \"lab\"\ncloud = \"ours\"\ngpu = \"rtx-3090\"\ngpus = 1\nvcpus = 8\n\
                   ram_gib = 64\nspot_per_hour = 0.1\ncurrency = \"EUR\"\n\
                   source = \"us\"\ndate = \"2026-11\"\n";
        let catalogue = Catalogue::builtin().unwrap().with("own.toml", text).unwrap();
        assert_eq!(catalogue.find("lab").unwrap().instance.unwrap().currency.as_deref(), Some("EUR"));
        let refused = |from: &str, to: &str| {
            let text = text.replace(from, to);
            Catalogue::builtin().unwrap().with("own.toml", &text).unwrap_err().to_string()
        };
        let error = refused("spot_per_hour = 0.1", "spot_per_hour = -0.1");
        assert_eq!(
            error,
            "own.toml: instance `lab`: spot_per_hour must be at least 0 and at most 100000, but is -0.1"
        );
        assert_eq!(refused("rtx-3090", "rtx-3099"), "own.toml: instance `lab`: unknown GPU `rtx-3099`");
        assert!(refused("gpus = 1", "gpus = 0").contains("gpus must be above 0"));
        let gpu = "[[gpu]]\nname = \"lab-gpu\"\ntitle = \"ours\"\narchitecture = \"ada\"\n\
                   compute_capability = 8.9\nf32_tflops = 30\nmemory_gib = 24\nbandwidth_gb_s = 300\n\
                   multiprocessors = 58\nsource = \"us\"\ndate = \"2026-11\"\n";
        let read = |watts: &str| Catalogue::builtin().unwrap().with("own.toml", &format!("{gpu}{watts}"));
        for (watts, expected) in [("", None), ("tdp_watts = 72\n", Some(72.0))] {
            let machine = read(watts).unwrap().find("lab-gpu").unwrap();
            assert!(matches!(machine.processor, Processor::Gpu(gpu) if gpu.tdp_watts == expected));
        }
        assert!(read("tdp_watts = 0\n").unwrap_err().to_string().contains("tdp_watts must be above 0"));
        let network = |rate: &str, source: &str| {
            let network = format!("\n[instance.network]\ngbit_s = {rate}\nsource = \"{source}\"\n");
            Catalogue::builtin().unwrap().with("own.toml", &format!("{text}{network}"))
        };
        assert!(network("10", "us").is_ok());
        let error = network("0", "us").unwrap_err().to_string();
        assert!(error.contains("network.gbit_s must be above 0"), "{error}");
        assert!(network("10", " ").unwrap_err().to_string().contains("network.source is empty"));
        assert!(refused("cloud", "clowd").contains("unknown field `clowd`"));
        assert!(refused("\"us\"", "\"\"").contains("source is empty"));
        assert!(refused("2026-11", "soon").contains("but is `soon`"));
    }
}
