//! The program and the bytes of a training on a machine that is not here.

use super::absent::Absent;
use crate::errors::Result;
use std::collections::BTreeMap;
use std::sync::Arc;
use stratus_data::{DataError, Dataset, Split};
use stratus_engine::passes::lower::lower;
use stratus_engine::program::Mode;
use stratus_forecast::Result as ForecastResult;
use stratus_forecast::bill::Conditions;
use stratus_forecast::catalogue::{Machine, Processor};
use stratus_forecast::forecast::{Length, Memory, Plan as Planned};
use stratus_forecast::memory::kept;
use stratus_forecast::model::Framework;
use stratus_forecast::peaks::{Format, on_matrix_units, peaks};
use stratus_forecast::shipped;
use stratus_forecast::sketch::Sketch;
use stratus_forecast::work::program::{tensorflow, work};
use stratus_forecast::work::training::{SECOND_LEVEL, Target, training};
use stratus_graph::ops::ParameterKind;
use stratus_train::compile::{Programs, programs};
use stratus_train::device::OpenDevice;
use stratus_train::experiment::Precision;
use stratus_train::input::{Datasets, open_dataset};
use stratus_train::network::Network;
use stratus_train::{Experiment, Resolved, TrainError};

/// The compute capability from which a GPU has bf16 and TF32: Ampere's.
const AMPERE: f64 = 8.0;

/// Makes plans, each once.
pub(super) struct Planner {
    experiment: Experiment,
    framework: Framework,
    length: Length,
    dataset: Arc<dyn Dataset>,
    /// That of validation, where it is here.
    validation: Option<Arc<dyn Dataset>>,
    notes: Vec<String>,
    made: BTreeMap<(bool, usize, usize, &'static str, bool, usize), Planned>,
}

impl Planner {
    /// For an experiment; its data set need not be here.
    ///
    /// # Errors
    /// Where there is no such network.
    pub fn new(
        mut experiment: Experiment,
        framework: Framework,
        images: Option<u64>,
        epochs: Option<u64>,
    ) -> Result<Self> {
        let mut notes = Vec::new();
        experiment.train.epochs = epochs.unwrap_or(experiment.train.epochs);
        let mut length = Length {
            epochs: experiment.train.epochs,
            validation_every: experiment.validation.every_epochs,
            checkpoints: experiment.checkpoint.keep as u64,
            batches_ahead: experiment.data.workers.unwrap_or(1) as u64 + 2,
            ..Length::default()
        };
        let mut validation = None;
        let dataset: Arc<dyn Dataset> = match open_dataset(&experiment, Split::Train) {
            Ok(dataset) => {
                length.images = Some(dataset.len() as u64);
                length.resident = dataset.resident_bytes();
                validation = open_dataset(&experiment, Split::Validation).ok();
                length.validation_images = validation.as_ref().map(|dataset| dataset.len() as u64);
                dataset
            }
            Err(error) => {
                let what = match &error {
                    TrainError::Data(DataError::MissingRoot { .. }) => {
                        format!("is not at {}", experiment.data_path().display())
                    }
                    other => format!("cannot be opened ({other})"),
                };
                let known = if images.is_some() { "" } else { "; --images gives the number of images" };
                notes.push(format!(
                    "data set `{}` {what}: images are taken to be what the network is made for{known}",
                    experiment.data.name
                ));
                Arc::new(Absent::of(&experiment)?)
            }
        };
        length.images = images.or(length.images);
        Ok(Self { experiment, framework, length, dataset, validation, notes, made: BTreeMap::new() })
    }

    /// What is planned.
    pub fn experiment(&self) -> &Experiment {
        &self.experiment
    }

    /// Whose time is forecast.
    pub fn framework(&self) -> Framework {
        self.framework
    }

    /// How long it trains.
    pub fn length(&self) -> Length {
        self.length
    }

    /// What the bill depends on, and how many images are validated where that was said.
    pub fn bill(&mut self, validation_images: Option<u64>, conditions: Conditions) {
        self.length.validation_images = validation_images.or(self.length.validation_images);
        self.length.conditions = conditions;
    }

    /// Bytes of the gradients of each layer that is trained, by its name.
    ///
    /// # Errors
    /// Where the network cannot be built.
    pub fn gradients(&self) -> Result<Vec<(String, f64)>> {
        let graph = Network::of(&self.experiment, self.dataset.as_ref())?.graph;
        let mut layers: Vec<(String, f64)> = Vec::new();
        for parameter in graph
            .parameters
            .iter()
            .filter(|parameter| parameter.kind == ParameterKind::Trained && !parameter.frozen)
        {
            let layer = parameter.name.rsplit_once('.').map_or(parameter.name.as_str(), |(layer, _)| layer);
            let bytes = 4.0 * parameter.shape.iter().product::<usize>() as f64;
            match layers.last_mut().filter(|(known, _)| known == layer) {
                Some((_, sum)) => *sum += bytes,
                None => layers.push((layer.to_owned(), bytes)),
            }
        }
        Ok(layers)
    }

    /// What the user should know.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// What convolutions are computed in on a machine, as `train.precision` and `train.tf32` ask; of
    /// TensorFlow f32.
    ///
    /// # Errors
    /// Where the machine cannot.
    pub fn format(&self, machine: &Machine) -> ForecastResult<Format> {
        let settings = &self.experiment.train;
        let format = match &machine.processor {
            _ if self.framework == Framework::Tensorflow => Format::F32,
            Processor::Gpu(gpu) => {
                let ampere = gpu.compute_capability >= AMPERE;
                match settings.precision {
                    Precision::Auto if ampere => Format::Bf16,
                    Precision::Bf16 => Format::Bf16,
                    Precision::F16 => Format::F16,
                    _ if ampere && settings.tf32 && gpu.tf32_tensor_tflops.is_some() => Format::Tf32,
                    _ => Format::F32,
                }
            }
            Processor::Cpu(cpu) => match settings.precision {
                Precision::Bf16 => Format::Bf16,
                Precision::F16 => Format::F16,
                Precision::Auto if cpu.bf16_flops_per_cycle.is_some() => Format::Bf16,
                _ => Format::F32,
            },
        };
        // Whether it has such units.
        peaks(&machine.processor, format)?;
        Ok(format)
    }

    /// The data sets, or what stands for them.
    pub fn datasets(&self) -> Datasets {
        let train = Arc::clone(&self.dataset);
        let validation = self.validation.as_ref().map_or_else(|| Arc::clone(&train), Arc::clone);
        Datasets { train, validation }
    }

    /// The work and the bytes of a batch size on a kind of machine.
    ///
    /// # Errors
    /// Where the network cannot be built or lowered.
    pub fn plan(&mut self, processor: &Processor, format: Format, batch: usize) -> Result<Planned> {
        let (gpu, threads, tile_kib) = match processor {
            Processor::Gpu(_) => (true, 1, 0),
            Processor::Cpu(cpu) => {
                (false, cpu.cores, cpu.cores * cpu.second_level_kib.unwrap_or(SECOND_LEVEL >> 10))
            }
        };
        let on_matrix_units = on_matrix_units(processor, format);
        let key = (gpu, threads, tile_kib, format.name(), on_matrix_units, batch);
        if let Some(made) = self.made.get(&key) {
            return Ok(made.clone());
        }
        if self.framework == Framework::Tensorflow {
            let planned = self.tensorflow(batch)?;
            self.made.insert(key, planned.clone());
            return Ok(planned);
        }
        let sketch = Sketch { gpu, threads };
        let (programs, device) = self.bytes((sketch, tile_kib), format, batch)?;
        // A second size tells what an image takes.
        let other = if batch > 1 { batch / 2 } else { 2 };
        let (_, of_other) = self.bytes((sketch, tile_kib), format, other)?;
        let memory = Memory {
            per_image: device.device.abs_diff(of_other.device) / batch.abs_diff(other).max(1) as u64,
            ..device
        };
        let planned = Planned {
            framework: self.framework,
            batch: batch as u64,
            train: work(&programs.train, on_matrix_units),
            evaluate: work(&programs.evaluate, on_matrix_units),
            validation_batch: programs.evaluate.batch as u64,
            memory,
        };
        self.made.insert(key, planned.clone());
        Ok(planned)
    }

    /// What TensorFlow does of the same layers: it fuses none.
    fn tensorflow(&self, batch: usize) -> Result<Planned> {
        let graph = Network::of(&self.experiment, self.dataset.as_ref())?.graph;
        let program = training(&graph, batch, stratus_engine::Precision::F32, Target::Unfused)?;
        let evaluate = lower(&graph, Mode::Evaluate, stratus_engine::Precision::F32, batch)?;
        let (constants, kept) = (shipped::tensorflow_memory()?, kept(&program));
        // The share that it can have of a GPU's memory counts as need.
        let bytes = |batch: usize| (constants.bytes(kept, batch as f64) / constants.share) as u64;
        let input = graph.input_shape().elements() * 4;
        let memory = Memory {
            device: bytes(batch),
            per_image: (bytes(batch + 1) - bytes(batch)).max(1),
            batch: (batch * input) as u64,
            beside: None,
            checkpoint: kept[2] as u64 * 4,
        };
        Ok(Planned {
            framework: self.framework,
            batch: batch as u64,
            train: tensorflow(&program),
            evaluate: tensorflow(&evaluate),
            validation_batch: batch as u64,
            memory,
        })
    }

    fn bytes(
        &self,
        (sketch, tile_kib): (Sketch, usize),
        format: Format,
        batch: usize,
    ) -> Result<(Programs, Memory)> {
        let mut experiment = self.experiment.clone();
        experiment.train.batch_size = batch;
        experiment.train.precision = match format {
            Format::F32 | Format::Tf32 => Precision::F32,
            Format::Bf16 => Precision::Bf16,
            Format::F16 => Precision::F16,
        };
        let mut device = OpenDevice::new(Box::new(sketch));
        device.tile_kib = tile_kib;
        let graph = Network::of(&experiment, self.dataset.as_ref())?.graph;
        let resolved = Resolved::new(&experiment, self.dataset.as_ref(), &graph, &device)?;
        let programs = programs(&resolved, &graph, &device)?;
        let memory = sketch.memory(&[&programs.train, &programs.evaluate, &programs.refresh])?;
        Ok((programs, memory))
    }
}
