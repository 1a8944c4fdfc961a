//! Measured steps of Stratus, on networks of the zoo.

use crate::catalogue::{Catalogue, Processor};
use crate::error::{Error, Result};
use crate::file;
use crate::measured::StepRecords;
use crate::model::Peaks;
use crate::peaks::{NumberFormat, on_matrix_units, peaks};
use crate::table::{MAX_FILE_BYTES, Table};
use crate::work::program::work;
use crate::work::training::{L2_BYTES_PER_CORE, Target, training};
use std::path::Path;
use stratus_engine::Precision;
use stratus_graph::zoo::{self, ModelConfig};

/// A measured step.
#[derive(Clone, Debug, PartialEq)]
pub struct StratusStep {
    /// The name of the machine, in the catalogue or not.
    pub machine: String,
    /// Number of cores of a CPU; 1 for a GPU.
    pub cores: usize,
    /// A network of the zoo, with its published image size and classes.
    pub network: String,
    /// The number format.
    pub format: NumberFormat,
    /// Images per step.
    pub batch: usize,
    /// Seconds of a step.
    pub seconds: f64,
    /// Peaks, if the machine is not in the catalogue.
    pub peaks: Option<Peaks>,
}

/// A table of measured steps.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTable {
    /// The steps, one per row.
    pub steps: Vec<StratusStep>,
}

/// A group of steps that are fitted together: steps of one GPU, or of all CPUs, in one format.
#[derive(Clone, Debug, PartialEq)]
pub struct StepGroup {
    /// The name of the GPU.
    pub machine: Option<String>,
    /// True if it is a GPU.
    pub gpu: bool,
    /// The number format.
    pub format: NumberFormat,
    /// True if convolutions run on matrix units.
    pub matrix_units: bool,
}

/// Default clock of a CPU, cycles/s.
const DEFAULT_CLOCK_HZ: f64 = 3e9;

impl StepTable {
    /// Reads a table of step times.
    ///
    /// # Errors
    /// If the file cannot be read, or as [`Self::parse`].
    pub fn read(path: &Path) -> Result<Self> {
        Self::parse(&path.display().to_string(), &file::read(path, MAX_FILE_BYTES)?)
    }

    /// Parses `machine,cores,network,precision,batch,step_s,arithmetic_gflops,bandwidth_gb_s`. Peaks may be
    /// empty if the catalogue has the machine.
    ///
    /// # Errors
    /// If a column is missing, or a line is invalid.
    pub fn parse(file: &str, text: &str) -> Result<Self> {
        let table = Table::parse(file, text)?;
        let column = |name| table.column(name);
        let (machine, cores, network) = (column("machine")?, column("cores")?, column("network")?);
        let (precision, batch, seconds) = (column("precision")?, column("batch")?, column("step_s")?);
        let (arithmetic, bandwidth) = (column("arithmetic_gflops")?, column("bandwidth_gb_s")?);
        let mut steps = Vec::new();
        for row in table.rows() {
            let peaks = if row.text(arithmetic).is_empty() {
                None
            } else {
                let giga = |column| row.count(column).map(|number| number * 1e9);
                Some(Peaks {
                    arithmetic: giga(arithmetic)?,
                    bandwidth: giga(bandwidth)?,
                    clock: DEFAULT_CLOCK_HZ,
                })
            };
            let format = NumberFormat::parse(row.text(precision))
                .ok_or_else(|| row.problem(format!("unknown precision `{}`", row.text(precision))))?;
            steps.push(StratusStep {
                machine: row.text(machine).to_owned(),
                cores: row.count_or(cores, 1.0)?.max(1.0) as usize,
                network: row.text(network).to_owned(),
                format,
                batch: row.count(batch)? as usize,
                seconds: row.count(seconds)?,
                peaks,
            });
        }
        Ok(Self { steps })
    }

    /// The groups of steps, in the order of first occurrence.
    ///
    /// # Errors
    /// If a machine without peaks is not in the catalogue.
    pub fn groups(&self, catalogue: &Catalogue) -> Result<Vec<StepGroup>> {
        let mut groups: Vec<StepGroup> = Vec::new();
        for step in &self.steps {
            let group = step.group(catalogue)?;
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        Ok(groups)
    }

    /// The steps of a group with their terms.
    ///
    /// # Errors
    /// If a machine or network is unknown.
    pub fn records(&self, group: &StepGroup, catalogue: &Catalogue) -> Result<StepRecords> {
        let mut measured = StepRecords::default();
        for step in &self.steps {
            if step.group(catalogue)? != *group {
                continue;
            }
            let peaks = match step.peaks {
                Some(peaks) => peaks,
                None => peaks(&catalogue.find(&step.machine)?.processor, step.format)?,
            };
            let problem = |problem: String| Error::TooFew { problem };
            let network = zoo::find(&step.network).map_err(|error| problem(error.to_string()))?;
            let hyper = (network.defaults)();
            let graph = (network.build)(&ModelConfig { ..hyper }).map_err(|e| problem(e.to_string()))?;
            let target = match group.gpu {
                true => Target::Gpu,
                false => Target::Cpu { cache_bytes: step.cores * L2_BYTES_PER_CORE },
            };
            let program = training(&graph, step.batch, step.format.precision(), target)
                .map_err(|error| problem(error.to_string()))?;
            measured.add(
                (&step.machine, &step.network),
                (hyper.input[1] as u32, step.batch as u32),
                (&work(&program, group.matrix_units), &peaks, step.seconds),
            );
        }
        Ok(measured)
    }
}

impl StratusStep {
    fn group(&self, catalogue: &Catalogue) -> Result<StepGroup> {
        let format = self.format;
        if self.peaks.is_some() {
            return Ok(StepGroup { machine: None, gpu: false, format, matrix_units: false });
        }
        let machine = catalogue.find(&self.machine)?;
        let matrix_units = on_matrix_units(&machine.processor, format);
        let gpu = matches!(machine.processor, Processor::Gpu(_));
        Ok(StepGroup { machine: gpu.then_some(machine.name), gpu, format, matrix_units })
    }
}

impl NumberFormat {
    /// Parses the name of a number format.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::F32, Self::Tf32, Self::Bf16, Self::F16].into_iter().find(|format| format.name() == name)
    }

    /// The precision of values in this format.
    #[must_use]
    pub fn precision(self) -> Precision {
        match self {
            Self::F32 | Self::Tf32 => Precision::F32,
            Self::Bf16 => Precision::Bf16,
            Self::F16 => Precision::F16,
        }
    }
}
