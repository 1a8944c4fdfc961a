//! The programs and the memory of a training run on another machine.

use super::supply::{SupplyInputs, image_supply};
use crate::compile::{Programs, programs, worker_program};
use crate::device::OpenDevice;
use crate::exchange::gradient_sums;
use crate::input::{Datasets, PlaceholderDataset, open_dataset};
use crate::network::Network;
use crate::teacher::Teacher;
use crate::{ResolvedProcess, TrainError};
use std::collections::BTreeMap;
use std::sync::Arc;
use stratus_data::{DataError, Dataset, Split};
use stratus_engine::Program;
use stratus_engine::passes::lower::lower;
use stratus_engine::program::Mode;
use stratus_experiment::{Experiment, Precision};
use stratus_forecast::Result as ForecastResult;
use stratus_forecast::bill::RunConditions;
use stratus_forecast::catalogue::{Machine, Processor};
use stratus_forecast::forecast::{PlannedMemory, TrainingLength, TrainingWork};
use stratus_forecast::memory::kept;
use stratus_forecast::model::Framework;
use stratus_forecast::peaks::{NumberFormat, on_matrix_units, peaks};
use stratus_forecast::planning_backend::PlanningBackend;
use stratus_forecast::shipped;
use stratus_forecast::work::program::{tensorflow, work};
use stratus_forecast::work::training::{L2_BYTES_PER_CORE, Target, training};
use stratus_graph::Graph;

/// The first compute capability with bf16 and TF32: Ampere.
const AMPERE_CAPABILITY: f64 = 8.0;

/// Plans an experiment for machines and batch sizes, and caches the plans.
pub struct Planner {
    experiment: Experiment,
    framework: Framework,
    length: TrainingLength,
    dataset: Arc<dyn Dataset>,
    /// True if the data set is on this machine, and `dataset` is no placeholder.
    is_here: bool,
    /// The validation data set, if it is on this machine.
    validation: Option<Arc<dyn Dataset>>,
    notes: Vec<String>,
    teacher: Option<Arc<Teacher>>,
    plans: BTreeMap<(bool, usize, usize, &'static str, bool, usize), TrainingWork>,
}

impl Planner {
    /// A planner for an experiment, whose data set may be missing on this machine. `images` and `epochs`, if
    /// given, replace the numbers of the data set and of the experiment.
    ///
    /// # Errors
    /// If the network is not found.
    pub fn new(
        experiment: Experiment,
        framework: Framework,
        images: Option<u64>,
        epochs: Option<u64>,
    ) -> Result<Self, TrainError> {
        Self::with_access(experiment, framework, (images, epochs), true)
    }

    /// As [`Planner::new`], without opening the data set, wherever it is.
    ///
    /// # Errors
    /// As [`Planner::new`].
    pub fn without_data_set(
        experiment: Experiment,
        framework: Framework,
        images: Option<u64>,
        epochs: Option<u64>,
    ) -> Result<Self, TrainError> {
        Self::with_access(experiment, framework, (images, epochs), false)
    }

    fn with_access(
        mut experiment: Experiment,
        framework: Framework,
        (images, epochs): (Option<u64>, Option<u64>),
        may_open: bool,
    ) -> Result<Self, TrainError> {
        let teacher = Teacher::open(&experiment)?;
        if teacher.is_some() && framework != Framework::Stratus {
            return Err(TrainError::Configuration {
                problem: format!("a teacher (train.teacher) is not forecast for {}", framework.name()),
                hint: "forecast without it: --set train.teacher=".to_owned(),
            });
        }
        let mut notes = Vec::new();
        experiment.train.epochs = epochs.unwrap_or(experiment.train.epochs);
        let mut length = TrainingLength {
            epochs: experiment.train.epochs,
            validation_every: experiment.validation.every_epochs,
            checkpoints: experiment.checkpoint.keep as u64,
            batches_ahead: experiment.data.workers.unwrap_or(1) as u64 + 2,
            ..TrainingLength::default()
        };
        let mut validation = None;
        let mut is_here = true;
        let opened = may_open.then(|| open_dataset(&experiment, Split::Train));
        let dataset: Arc<dyn Dataset> = match opened {
            Some(Ok(dataset)) => {
                length.images = Some(dataset.len() as u64);
                length.resident = dataset.resident_bytes();
                validation = open_dataset(&experiment, Split::Validation).ok();
                length.validation_images = validation.as_ref().map(|dataset| dataset.len() as u64);
                dataset
            }
            failed => {
                is_here = false;
                let problem = match &failed {
                    Some(Err(TrainError::Data(DataError::MissingRoot { .. }))) => {
                        format!("is not at {}", experiment.data_path().display())
                    }
                    Some(Err(other)) => format!("cannot be opened ({other})"),
                    _ => "is not opened".to_owned(),
                };
                let shape = match experiment.shape() {
                    Some([channels, height, width]) if !may_open => {
                        format!("images of {channels}x{height}x{width}")
                    }
                    _ => "the network's published image shape".to_owned(),
                };
                let advice = if images.is_some() { "" } else { "; set the number of images with --images" };
                notes.push(match experiment.has_data_set() {
                    true => {
                        format!("data set `{}` {problem}: assuming {shape}{advice}", experiment.data.name)
                    }
                    false => format!("no data set is set: assuming images of the layer file's shape{advice}"),
                });
                Arc::new(PlaceholderDataset::of(&experiment)?)
            }
        };
        length.images = images.or(length.images);
        Ok(Self {
            experiment,
            framework,
            length,
            dataset,
            is_here,
            validation,
            notes,
            teacher,
            plans: BTreeMap::new(),
        })
    }

    /// The planned experiment.
    pub fn experiment(&self) -> &Experiment {
        &self.experiment
    }

    /// The framework whose time is forecast.
    pub fn framework(&self) -> Framework {
        self.framework
    }

    /// The length of the training run.
    pub fn length(&self) -> TrainingLength {
        self.length
    }

    /// Sets the cost inputs, and the number of validation images if it is given.
    pub fn set_bill_inputs(&mut self, validation_images: Option<u64>, conditions: RunConditions) {
        self.length.validation_images = validation_images.or(self.length.validation_images);
        self.length.conditions = conditions;
    }

    /// Sets the supply of images, which is otherwise assumed to be fast enough. Decoding is measured for half
    /// a second if the data set is on this machine. Nothing is known of the supply of TensorFlow.
    pub fn set_supply(&mut self, inputs: &SupplyInputs) {
        if self.framework == Framework::Stratus {
            let images = self.length.images.map(|images| images + self.length.validation_images.unwrap_or(0));
            let shape = self.experiment.shape().or_else(|| self.dataset.sample_shape());
            let input_pixels = shape.map_or(224 * 224, |[_, height, width]| height * width);
            let (supply, note) = image_supply(&self.experiment, self.is_here, images, input_pixels, inputs);
            self.length.supply = supply;
            self.notes.extend(note);
        }
    }

    /// The shape (C, H, W) of the network's input.
    ///
    /// # Errors
    /// If the network cannot be built.
    pub fn input_shape(&self) -> Result<Option<[usize; 3]>, TrainError> {
        let graph = Network::for_dataset(&self.experiment, self.dataset.as_ref())?.graph;
        Ok(graph.input_shape().0[..].try_into().ok())
    }

    /// A planner for the same training with images of another shape (C, H, W).
    ///
    /// # Errors
    /// If the network does not take this shape.
    pub fn with_input_shape(&self, shape: [usize; 3]) -> Result<Self, TrainError> {
        let mut experiment = self.experiment.clone();
        experiment.data.shape = Some(shape.to_vec());
        let dataset: Arc<dyn Dataset> = match self.is_here {
            true => Arc::clone(&self.dataset),
            false => Arc::new(PlaceholderDataset::of(&experiment)?),
        };
        Network::for_dataset(&experiment, dataset.as_ref())?;
        Ok(Self {
            experiment,
            framework: self.framework,
            length: self.length,
            dataset,
            is_here: self.is_here,
            validation: self.validation.clone(),
            notes: Vec::new(),
            teacher: self.teacher.clone(),
            plans: BTreeMap::new(),
        })
    }

    /// Sets the number of epochs.
    pub fn set_epochs(&mut self, epochs: u64) {
        self.length.epochs = epochs;
    }

    /// The fraction of the bytes of gradients that workers send, by `train.exchange_type`.
    #[must_use]
    pub fn sent_fraction(&self) -> f64 {
        const BYTES: u64 = 1 << 20;
        gradient_sums(&self.experiment).sent_bytes(BYTES) as f64 / BYTES as f64
    }

    /// Notes for the user about assumptions.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The precision of convolutions on a machine, by `train.precision` and `train.tf32`; for TensorFlow,
    /// f32.
    ///
    /// # Errors
    /// If the machine does not support it.
    pub fn format(&self, machine: &Machine) -> ForecastResult<NumberFormat> {
        let settings = &self.experiment.train;
        let format = match &machine.processor {
            _ if self.framework == Framework::Tensorflow => NumberFormat::F32,
            Processor::Gpu(gpu) => {
                let ampere = gpu.compute_capability >= AMPERE_CAPABILITY;
                match settings.precision {
                    Precision::Auto if ampere => NumberFormat::Bf16,
                    Precision::Bf16 => NumberFormat::Bf16,
                    Precision::F16 => NumberFormat::F16,
                    _ if ampere && settings.tf32 && gpu.tf32_tensor_tflops.is_some() => NumberFormat::Tf32,
                    _ => NumberFormat::F32,
                }
            }
            Processor::Cpu(cpu) => match settings.precision {
                Precision::Bf16 => NumberFormat::Bf16,
                Precision::F16 => NumberFormat::F16,
                Precision::Auto if cpu.bf16_flops_per_cycle.is_some() => NumberFormat::Bf16,
                _ => NumberFormat::F32,
            },
        };
        // Checks that the machine supports the format.
        peaks(&machine.processor, format)?;
        Ok(format)
    }

    /// The data sets, or placeholders.
    pub fn datasets(&self) -> Datasets {
        let train = Arc::clone(&self.dataset);
        let validation = self.validation.as_ref().map_or_else(|| Arc::clone(&train), Arc::clone);
        Datasets { train, validation }
    }

    /// The work and memory of a batch size on a kind of machine.
    ///
    /// # Errors
    /// If the network cannot be built or lowered.
    pub fn plan(
        &mut self,
        processor: &Processor,
        format: NumberFormat,
        batch: usize,
    ) -> Result<TrainingWork, TrainError> {
        let (backend, tile_kib) = planning_device(processor);
        let on_matrix_units = on_matrix_units(processor, format);
        let key = (backend.gpu, backend.threads, tile_kib, format.name(), on_matrix_units, batch);
        if let Some(plan) = self.plans.get(&key) {
            return Ok(plan.clone());
        }
        if self.framework == Framework::Tensorflow {
            let planned = self.tensorflow(batch)?;
            self.plans.insert(key, planned.clone());
            return Ok(planned);
        }
        let (programs, device) = self.programs_and_memory(backend, tile_kib, format, batch)?;
        // The difference from a second batch size gives the memory per image.
        let other_batch = if batch > 1 { batch / 2 } else { 2 };
        let (_, other_memory) = self.programs_and_memory(backend, tile_kib, format, other_batch)?;
        let memory = PlannedMemory {
            per_image: device.device.abs_diff(other_memory.device)
                / batch.abs_diff(other_batch).max(1) as u64,
            ..device
        };
        let planned = TrainingWork {
            framework: self.framework,
            batch: batch as u64,
            train: work(&programs.train, on_matrix_units),
            evaluate: work(&programs.evaluate, on_matrix_units),
            validation_batch: programs.evaluate.batch as u64,
            memory,
        };
        self.plans.insert(key, planned.clone());
        Ok(planned)
    }

    /// The plan of the same layers in TensorFlow, which does not fuse layers.
    fn tensorflow(&self, batch: usize) -> Result<TrainingWork, TrainError> {
        let graph = Network::for_dataset(&self.experiment, self.dataset.as_ref())?.graph;
        let program = training(&graph, batch, stratus_engine::Precision::F32, Target::Unfused)?;
        let evaluate = lower(&graph, Mode::Evaluate, stratus_engine::Precision::F32, batch)?;
        let (constants, kept) = (shipped::tensorflow_memory()?, kept(&program));
        // TensorFlow can use only a fraction of a GPU's memory; dividing by it gives the required size.
        let bytes = |batch: usize| (constants.bytes(kept, batch as f64) / constants.usable_fraction) as u64;
        let input = graph.input_shape().elements() * 4;
        let memory = PlannedMemory {
            device: bytes(batch),
            per_image: (bytes(batch + 1) - bytes(batch)).max(1),
            batch_bytes: (batch * input) as u64,
            planned_host_bytes: None,
            checkpoint_bytes: kept[2] as u64 * 4,
        };
        Ok(TrainingWork {
            framework: self.framework,
            batch: batch as u64,
            train: tensorflow(&program),
            evaluate: tensorflow(&evaluate),
            validation_batch: batch as u64,
            memory,
        })
    }

    fn programs_and_memory(
        &self,
        backend: PlanningBackend,
        tile_kib: usize,
        format: NumberFormat,
        batch: usize,
    ) -> Result<(Programs, PlannedMemory), TrainError> {
        let mut experiment = self.experiment.clone();
        experiment.train.batch_size = batch;
        let (resolved, graph, device) = self.resolve(experiment, backend, tile_kib, format)?;
        let programs = programs(&resolved, &graph, &device)?;
        let memory = backend.memory(&[&programs.train, &programs.evaluate, &programs.refresh])?;
        Ok((programs, memory))
    }

    /// The training program of one of several workers with `batch` images each, and the bytes of its device's
    /// memory.
    ///
    /// # Errors
    /// If the network cannot be built or lowered.
    pub fn worker(
        &self,
        processor: &Processor,
        format: NumberFormat,
        batch: usize,
    ) -> Result<(Program, u64), TrainError> {
        let (backend, tile_kib) = planning_device(processor);
        let mut experiment = self.experiment.clone();
        experiment.train.batch_size = batch;
        // A worker computes one part.
        (experiment.train.parts, experiment.train.micro_batches) = (0, 1);
        let (resolved, graph, device) = self.resolve(experiment, backend, tile_kib, format)?;
        let worker = worker_program(&resolved, &graph, &device)?;
        let Programs { evaluate, refresh, .. } = programs(&resolved, &graph, &device)?;
        let memory = backend.memory(&[&worker, &evaluate, &refresh])?;
        Ok((worker, memory.device))
    }

    fn resolve(
        &self,
        mut experiment: Experiment,
        backend: PlanningBackend,
        tile_kib: usize,
        format: NumberFormat,
    ) -> Result<(ResolvedProcess, Graph, OpenDevice), TrainError> {
        experiment.train.precision = match format {
            NumberFormat::F32 | NumberFormat::Tf32 => Precision::F32,
            NumberFormat::Bf16 => Precision::Bf16,
            NumberFormat::F16 => Precision::F16,
        };
        let mut device = OpenDevice::new(Box::new(backend));
        device.tile_kib = tile_kib;
        let graph = Network::for_dataset(&experiment, self.dataset.as_ref())?.graph;
        let (dataset, teacher) = (self.dataset.as_ref(), self.teacher.as_ref());
        let resolved = ResolvedProcess::with_open_teacher(&experiment, dataset, &graph, &device, teacher)?;
        Ok((resolved, graph, device))
    }
}

/// The backend that plans for a processor, and the KiB of its tiles.
fn planning_device(processor: &Processor) -> (PlanningBackend, usize) {
    match processor {
        Processor::Gpu(_) => (PlanningBackend { gpu: true, threads: 1 }, 0),
        Processor::Cpu(cpu) => {
            let tile_kib = cpu.cores * cpu.second_level_kib.unwrap_or(L2_BYTES_PER_CORE >> 10);
            (PlanningBackend { gpu: false, threads: cpu.cores }, tile_kib)
        }
    }
}
