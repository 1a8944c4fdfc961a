//! Measured steps of Stratus itself, on networks of the zoo.

use crate::catalogue::{Catalogue, Processor};
use crate::csv::Table;
use crate::error::{Error, Result};
use crate::measured::Measured;
use crate::model::Peaks;
use crate::peaks::{Format, on_matrix_units, peaks};
use crate::work::program::work;
use crate::work::training::{SECOND_LEVEL, Target, training};
use stratus_engine::Precision;
use stratus_graph::zoo::{self, Hyperparameters};

/// A measured step.
#[derive(Clone, Debug, PartialEq)]
pub struct StratusStep {
    /// The machine, by the catalogue's name or another.
    pub machine: String,
    /// Cores of a processor; 1 of a GPU.
    pub cores: usize,
    /// A network of the zoo, on images and classes that it is published for.
    pub network: String,
    /// What it was computed in.
    pub format: Format,
    /// Images of a step.
    pub batch: usize,
    /// Seconds of a step.
    pub seconds: f64,
    /// Peaks, where the machine is not in the catalogue.
    pub peaks: Option<Peaks>,
}

/// A table of them.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTable {
    /// A row each.
    pub steps: Vec<StratusStep>,
}

/// Steps that are fitted together: of one GPU, or of processors, in one format.
#[derive(Clone, Debug, PartialEq)]
pub struct StepKind {
    /// The GPU.
    pub machine: Option<String>,
    /// Whether it is one.
    pub gpu: bool,
    /// The format.
    pub format: Format,
    /// Whether convolutions run on matrix units.
    pub matrix_units: bool,
}

/// Cycles a second of a processor whose clock is not known.
const CLOCK: f64 = 3e9;

impl StepTable {
    /// Reads `machine,cores,network,precision,batch,step_s,arithmetic_gflops,bandwidth_gb_s`. Peaks may be
    /// empty where the catalogue has the machine.
    ///
    /// # Errors
    /// Where a column is missing, or a line cannot be.
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
                Some(Peaks { arithmetic: giga(arithmetic)?, bandwidth: giga(bandwidth)?, clock: CLOCK })
            };
            let format = Format::parse(row.text(precision))
                .ok_or_else(|| row.problem(format!("there is no precision `{}`", row.text(precision))))?;
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

    /// The kinds of steps, in the order in which they occur.
    ///
    /// # Errors
    /// Where a machine without peaks is not in the catalogue.
    pub fn kinds(&self, catalogue: &Catalogue) -> Result<Vec<StepKind>> {
        let mut kinds: Vec<StepKind> = Vec::new();
        for step in &self.steps {
            let kind = step.kind(catalogue)?;
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        Ok(kinds)
    }

    /// The steps of a kind with their terms.
    ///
    /// # Errors
    /// Where a machine or network is not known.
    pub fn measured(&self, kind: &StepKind, catalogue: &Catalogue) -> Result<Measured> {
        let mut measured = Measured::default();
        for step in &self.steps {
            if step.kind(catalogue)? != *kind {
                continue;
            }
            let peaks = match step.peaks {
                Some(peaks) => peaks,
                None => peaks(&catalogue.find(&step.machine)?.processor, step.format)?,
            };
            let problem = |problem: String| Error::TooFew { problem };
            let network = zoo::find(&step.network).map_err(|error| problem(error.to_string()))?;
            let hyper = (network.defaults)();
            let graph = (network.build)(&Hyperparameters { ..hyper }).map_err(|e| problem(e.to_string()))?;
            let target = match kind.gpu {
                true => Target::Gpu,
                false => Target::Cpu { cache_bytes: step.cores * SECOND_LEVEL },
            };
            let program = training(&graph, step.batch, step.format.precision(), target)
                .map_err(|error| problem(error.to_string()))?;
            measured.add(
                (&step.machine, &step.network),
                (hyper.input[1] as u32, step.batch as u32),
                (&work(&program, kind.matrix_units), &peaks, step.seconds),
            );
        }
        Ok(measured)
    }
}

impl StratusStep {
    fn kind(&self, catalogue: &Catalogue) -> Result<StepKind> {
        let format = self.format;
        if self.peaks.is_some() {
            return Ok(StepKind { machine: None, gpu: false, format, matrix_units: false });
        }
        let machine = catalogue.find(&self.machine)?;
        let matrix_units = on_matrix_units(&machine.processor, format);
        let gpu = matches!(machine.processor, Processor::Gpu(_));
        Ok(StepKind { machine: gpu.then_some(machine.name), gpu, format, matrix_units })
    }
}

impl Format {
    /// The format of a name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::F32, Self::Tf32, Self::Bf16, Self::F16].into_iter().find(|format| format.name() == name)
    }

    /// What values are kept in.
    #[must_use]
    pub fn precision(self) -> Precision {
        match self {
            Self::F32 | Self::Tf32 => Precision::F32,
            Self::Bf16 => Precision::Bf16,
            Self::F16 => Precision::F16,
        }
    }
}
