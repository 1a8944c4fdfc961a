//! The machine catalogue: GPUs, processors and cloud instances, each row with its source and date.
//!
//! The built-in rows are `data/machines.toml`. A file of the user's own adds rows, and replaces those of the
//! same name. Files are untrusted: their length and every figure are checked.

mod rows;

pub use rows::{Cpu, Gpu, Instance};

use crate::error::{Error, Result};
use rows::Rows;
use std::fmt;
use stratus_base::nearest;

/// The most bytes of a catalogue file.
pub const LONGEST: usize = 1 << 20;
/// The name of the machine that the program runs on.
pub const HERE: &str = "here";

/// Names near an unknown one, or some that there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameHint {
    near: Option<String>,
    known: Vec<String>,
}

impl fmt::Display for NameHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.near {
            Some(near) => write!(f, "did you mean `{near}`?"),
            None => write!(
                f,
                "give one of these, or its row in a file with --machines: {}",
                self.known.join(", ")
            ),
        }
    }
}

/// What is known about machines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalogue {
    /// GPUs, in the order of the files.
    pub gpus: Vec<Gpu>,
    /// Processors.
    pub cpus: Vec<Cpu>,
    /// Cloud instances.
    pub instances: Vec<Instance>,
}

/// A machine to forecast for.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The name it was asked for by.
    pub name: String,
    /// What computes.
    pub processor: Processor,
    /// The cloud's instance, where it is one.
    pub instance: Option<Instance>,
}

/// What computes in a machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Processor {
    /// A GPU.
    Gpu(Gpu),
    /// A processor, with the cores that may be used.
    Cpu(Cpu),
}

impl Catalogue {
    /// The built-in catalogue.
    ///
    /// # Errors
    /// Never but by a mistake in the built-in file, which a test would find.
    pub fn builtin() -> Result<Self> {
        Self::default().with("machines.toml", include_str!("../../data/machines.toml"))
    }

    /// With the rows of a file: new ones are added, those of a known name replaced.
    ///
    /// # Errors
    /// Where the file is too long, no catalogue, or a row cannot be.
    pub fn with(mut self, file: &str, text: &str) -> Result<Self> {
        let problem = |problem: String| Error::File { file: file.to_owned(), problem };
        if text.len() > LONGEST {
            return Err(problem(format!("it has {} bytes, a catalogue has at most {LONGEST}", text.len())));
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
                    problem: format!("there is no GPU `{}`", instance.gpu),
                });
            }
            replace(&mut self.instances, instance, |row| &row.name);
        }
        Ok(self)
    }

    /// The machine of a name. Upper and lower case are the same.
    ///
    /// # Errors
    /// Where there is none; with the nearest name.
    pub fn find(&self, name: &str) -> Result<Machine> {
        let same = |row: &str| row.eq_ignore_ascii_case(name);
        if let Some(instance) = self.instances.iter().find(|row| same(&row.name)) {
            let gpu =
                self.gpus.iter().find(|gpu| gpu.name == instance.gpu).ok_or_else(|| self.unknown(name))?;
            return Ok(Machine {
                name: instance.name.clone(),
                processor: Processor::Gpu(gpu.clone()),
                instance: Some(instance.clone()),
            });
        }
        if let Some(gpu) = self.gpus.iter().find(|row| same(&row.name)) {
            let processor = Processor::Gpu(gpu.clone());
            return Ok(Machine { name: gpu.name.clone(), processor, instance: None });
        }
        if let Some(cpu) = self.cpus.iter().find(|row| same(&row.name)) {
            let processor = Processor::Cpu(cpu.clone());
            return Ok(Machine { name: cpu.name.clone(), processor, instance: None });
        }
        Err(self.unknown(name))
    }

    /// The processor whose model the system names so, with as many cores as `threads`, if fewer.
    #[must_use]
    pub fn cpu_of_model(&self, model: &str, threads: usize) -> Option<Cpu> {
        // Names end in a blank where another begins with them: `EPYC 9654 96-Core`, `EPYC 9654P 96-Core`.
        let model = format!("{model} ");
        let found = self.cpus.iter().find(|cpu| cpu.models.iter().any(|part| model.contains(part.as_str())));
        found.map(|cpu| Cpu { cores: cpu.cores.min(threads.max(1)), ..cpu.clone() })
    }

    /// All names: instances, GPUs, processors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let instances = self.instances.iter().map(|row| row.name.as_str());
        let gpus = self.gpus.iter().map(|row| row.name.as_str());
        instances.chain(gpus).chain(self.cpus.iter().map(|row| row.name.as_str()))
    }

    fn unknown(&self, name: &str) -> Error {
        let known = || self.names().map(str::to_owned).collect();
        let near = nearest(name, self.names().chain([HERE])).or_else(|| self.begins_like(name));
        let hint = match near {
            Some(near) => NameHint { near: Some(near.to_owned()), known: Vec::new() },
            None => NameHint { near: None, known: known() },
        };
        Error::UnknownMachine { name: name.to_owned(), hint }
    }

    /// A machine whose name begins with what was written, blanks and underscores being dashes: `v100`.
    fn begins_like(&self, name: &str) -> Option<&str> {
        let written = name.to_lowercase().replace([' ', '_'], "-");
        let near = |known: &&str| {
            let known = known.to_lowercase();
            known.starts_with(&written) || known.contains(&format!("-{written}"))
        };
        if written.len() < 2 { None } else { self.names().find(near) }
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
    fn every_row_has_a_source_and_sane_units() {
        let catalogue = Catalogue::builtin().unwrap();
        assert!(catalogue.gpus.len() >= 25 && catalogue.cpus.len() >= 6 && catalogue.instances.len() >= 10);
        for gpu in &catalogue.gpus {
            assert!(!gpu.source.is_empty() && gpu.date.len() == 7, "{}", gpu.name);
            // A multiprocessor does 64 to 192 multiply-adds a cycle, at 0.5 to 3 GHz.
            let each = gpu.f32_tflops * 1e3 / f64::from(gpu.multiprocessors);
            assert!((100.0..800.0).contains(&each), "{}: {each} GFLOP/s a multiprocessor", gpu.name);
            // FLOPs a byte: no GPU of these is far from 20.
            let balance = gpu.f32_tflops * 1e3 / gpu.bandwidth_gb_s;
            assert!((8.0..130.0).contains(&balance), "{}: {balance} FLOP a byte", gpu.name);
            for tensor in [gpu.f16_tensor_tflops, gpu.bf16_tensor_tflops].into_iter().flatten() {
                assert!((1.5..20.0).contains(&(tensor / gpu.f32_tflops)), "{}", gpu.name);
            }
        }
        for cpu in &catalogue.cpus {
            assert!(!cpu.source.is_empty() && cpu.date.len() == 7, "{}", cpu.name);
        }
        for instance in &catalogue.instances {
            assert!(!instance.source.is_empty() && instance.date.len() == 7, "{}", instance.name);
            let each = instance.on_demand_per_hour.unwrap() / f64::from(instance.gpus);
            assert!((0.3..15.0).contains(&each), "{}", instance.name);
        }
    }

    #[test]
    fn machines_are_found_and_suggested() {
        let catalogue = Catalogue::builtin().unwrap();
        assert_eq!(catalogue.find("V100-16GB").unwrap().name, "v100-16gb");
        let instance = catalogue.find("g4dn.xlarge").unwrap();
        assert!(matches!(instance.processor, Processor::Gpu(gpu) if gpu.name == "t4-16gb"));
        let hint = |name: &str| catalogue.find(name).unwrap_err().hint().unwrap();
        assert_eq!(hint("v100-16g"), "did you mean `v100-16gb`?");
        assert_eq!(hint("3090"), "did you mean `rtx-3090`?");
        assert_eq!(hint("h100"), "did you mean `h100-80gb-sxm`?");
        assert!(hint("abacus").starts_with("give one of these"));
    }

    #[test]
    fn a_processor_is_known_by_its_model() {
        let catalogue = Catalogue::builtin().unwrap();
        let cpu = catalogue.cpu_of_model("Intel(R) Xeon(R) Gold 6230 CPU @ 2.10GHz", 8).unwrap();
        assert_eq!((cpu.name.as_str(), cpu.cores), ("xeon-gold-6230", 8));
        assert_eq!(catalogue.cpu_of_model("AMD EPYC 9654P 96-Core Processor", 8), None);
        assert_eq!(catalogue.cpu_of_model("AMD EPYC", 8), None);
    }

    #[test]
    fn a_file_adds_and_replaces() {
        let own = "[[instance]]\nname = \"lab\"\ncloud = \"ours\"\ngpu = \"rtx-3090\"\ngpus = 1\nvcpus = 8\n\
                   ram_gib = 64\nspot_per_hour = 0.1\ncurrency = \"EUR\"\n\
                   source = \"us\"\ndate = \"2026-11\"\n";
        let catalogue = Catalogue::builtin().unwrap().with("own.toml", own).unwrap();
        assert_eq!(catalogue.find("lab").unwrap().instance.unwrap().currency.as_deref(), Some("EUR"));
        let refused = |from: &str, to: &str| {
            let text = own.replace(from, to);
            Catalogue::builtin().unwrap().with("own.toml", &text).unwrap_err().to_string()
        };
        let error = refused("spot_per_hour = 0.1", "spot_per_hour = -0.1");
        assert_eq!(
            error,
            "own.toml: instance `lab`: spot_per_hour is -0.1; it is at least 0 and at most 100000"
        );
        assert_eq!(refused("rtx-3090", "rtx-3099"), "own.toml: instance `lab`: there is no GPU `rtx-3099`");
        assert!(refused("gpus = 1", "gpus = 0").contains("gpus is 0"));
        assert!(refused("cloud", "clowd").contains("unknown field `clowd`"));
        assert!(refused("\"us\"", "\"\"").contains("source is empty"));
        assert!(refused("2026-11", "soon").contains("date is `soon`"));
    }
}
