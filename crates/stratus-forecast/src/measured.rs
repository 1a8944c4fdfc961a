//! Measured step times with their terms, to fit and evaluate profiles.

use crate::catalogue::{Catalogue, Processor};
use crate::error::{Error, Result};
use crate::file;
use crate::model::fit::Sample;
use crate::model::{Peaks, Terms};
use crate::peaks::{NumberFormat, peaks};
use crate::table::{MAX_FILE_BYTES, Table};
use crate::work::Work;
use crate::work::layers::{self, Networks};
use std::path::Path;

/// Measured step times with their terms.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepRecords {
    /// Machines, in the order in which they first occur.
    pub machines: Vec<String>,
    /// Networks, in the order in which they first occur.
    pub networks: Vec<String>,
    /// The steps.
    pub steps: Vec<StepRecord>,
}

/// A measured step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepRecord {
    /// Position in [`StepRecords::machines`].
    pub machine: usize,
    /// Position in [`StepRecords::networks`].
    pub network: usize,
    /// Height and width of the images.
    pub image_size: u32,
    /// Images per step.
    pub batch: u32,
    /// Its terms and seconds.
    pub sample: Sample,
}

impl StepRecords {
    /// Reads the files of [`Self::from_layer_table`].
    ///
    /// # Errors
    /// If a file cannot be read or has more than 64 MiB, or as [`Self::from_layer_table`].
    pub fn read_layer_table(times: &Path, layers: &Path, catalogue: &Catalogue) -> Result<Self> {
        let [(times, times_text), (layers, layers_text)] = [times, layers].map(|path| {
            let text = file::read(path, MAX_FILE_BYTES);
            (path.display().to_string(), text)
        });
        Self::from_layer_table((&times, &times_text?), (&layers, &layers_text?), catalogue)
    }

    /// Adds a measured step.
    pub fn add(
        &mut self,
        (machine, network): (&str, &str),
        (image_size, batch): (u32, u32),
        (work, peaks, seconds): (&Work, &Peaks, f64),
    ) {
        let sample = Sample { terms: Terms::for_step(work, peaks), seconds };
        let machine = position(&mut self.machines, machine);
        let network = position(&mut self.networks, network);
        self.steps.push(StepRecord { machine, network, image_size, batch, sample });
    }

    /// Reads a table of TensorFlow's step times in f32, `gpu,gpu_memory_gb,model,image_size,batch_size,
    /// batch_s_median` (other columns are ignored), for networks of a table of layers ([`layers::parse`]).
    /// The machine of `V100`, `16` is `v100-16gb` of the catalogue.
    ///
    /// # Errors
    /// If a table is malformed, a machine is not in the catalogue, or a network is not in the table of
    /// layers.
    pub fn from_layer_table(
        times: (&str, &str),
        layers: (&str, &str),
        catalogue: &Catalogue,
    ) -> Result<Self> {
        let networks = layers::parse(layers.0, layers.1)?;
        let table = Table::parse(times.0, times.1)?;
        let columns = Columns::find(&table)?;
        let mut measured = Self::default();
        for row in table.rows() {
            let name = format!("{}-{}gb", row.text(columns.gpu).to_lowercase(), row.text(columns.memory));
            let machine = catalogue.find(&name)?;
            let Processor::Gpu(_) = &machine.processor else {
                return Err(row.problem(format!("`{name}` is not a GPU")));
            };
            let peaks = peaks(&machine.processor, NumberFormat::F32)?;
            let (model, size) = (row.text(columns.model), row.count(columns.size)? as u32);
            let batch = row.count(columns.batch)?;
            let seconds = row.count(columns.seconds)?;
            let layers = network(&networks, model, size)
                .ok_or_else(|| row.problem(format!("{} has no layers of {model} at {size}", layers.0)))?;
            let work = layers.work(batch);
            measured.add((&machine.name, model), (size, batch as u32), (&work, &peaks, seconds));
        }
        if measured.steps.is_empty() {
            return Err(Error::TooFew { problem: format!("{} has no step times", times.0) });
        }
        Ok(measured)
    }
}

/// The layers of a network at an image size.
#[must_use]
pub fn network<'a>(networks: &'a Networks, model: &str, size: u32) -> Option<&'a layers::LayerTable> {
    networks.get(&(model.to_owned(), size))
}

struct Columns {
    gpu: usize,
    memory: usize,
    model: usize,
    size: usize,
    batch: usize,
    seconds: usize,
}

impl Columns {
    fn find(table: &Table<'_>) -> Result<Self> {
        Ok(Self {
            gpu: table.column("gpu")?,
            memory: table.column("gpu_memory_gb")?,
            model: table.column("model")?,
            size: table.column("image_size")?,
            batch: table.column("batch_size")?,
            seconds: table.column("batch_s_median")?,
        })
    }
}

fn position(names: &mut Vec<String>, name: &str) -> usize {
    names.iter().position(|known| known == name).unwrap_or_else(|| {
        names.push(name.to_owned());
        names.len() - 1
    })
}
