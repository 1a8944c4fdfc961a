//! Byte images: which batches a GPU receives as bytes, and that training and evaluation are bit-identical to
//! those on images that the loader normalises.

use crate::common::onednn;
use std::path::Path;
use stratus_cuda::Cuda;
use stratus_data::{Element, Layout, Loader};
use stratus_engine::backend::{PrepareRequest, PreparedProgram};
use stratus_engine::fusions::Fusions;
use stratus_engine::ops::KernelSpec;
use stratus_engine::plan::Persistent;
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::session::IterationScalars;
use stratus_engine::{
    Backend, Choices, Clock, DType, Device, EngineError, Phase, Plan, Precision, Program, Role, Session,
};
use stratus_experiment::Experiment;
use stratus_graph::{Graph, ParameterKind};
use stratus_train::ResolvedProcess;
use stratus_train::compile::{self, Programs};
use stratus_train::device::OpenDevice;
use stratus_train::evaluate::{Evaluator, Scores};
use stratus_train::input::{BatchFormat, Datasets, open_datasets};
use stratus_train::network::Network;

/// A backend that overrides `prefers_byte_images`.
struct Says<B>(B, bool);

impl<B: Backend> Backend for Says<B> {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn revision(&self) -> &'static str {
        self.0.revision()
    }
    fn threads(&self) -> usize {
        self.0.threads()
    }
    fn precisions(&self) -> Vec<Precision> {
        self.0.precisions()
    }
    fn device(&self) -> Result<Option<Box<dyn Device>>, EngineError> {
        self.0.device()
    }
    fn fusions(&self) -> Fusions {
        self.0.fusions()
    }
    fn prefers_byte_images(&self) -> bool {
        self.1
    }
    fn prepare(&self, program: &Program, request: &PrepareRequest) -> Result<PreparedProgram, EngineError> {
        self.0.prepare(program, request)
    }
}

fn opened(backend: impl Backend + 'static) -> OpenDevice {
    OpenDevice { has_native_bf16: true, ..OpenDevice::new(Box::new(backend)) }
}

fn takes_bytes() -> OpenDevice {
    opened(Cuda::emulated().unwrap())
}

fn takes_floats() -> OpenDevice {
    opened(Says(Cuda::emulated().unwrap(), false))
}

/// The digits network on a few synthetic images, with additional keys.
fn experiment(keys: &[(&str, &str)]) -> Experiment {
    let set = [
        ("data.name", "synthetic"),
        ("data.shape", "[3, 20, 21]"),
        ("data.synthetic.images", "22"),
        ("data.synthetic.validation_images", "10"),
        ("data.synthetic.classes", "4"),
        ("train.batch_size", "8"),
        ("validation.batch_size", "4"),
        ("data.drop_last", "false"),
    ];
    let keys: Vec<_> = set.iter().chain(keys).copied().collect();
    Experiment::builtin("digits").unwrap().with_overrides(&keys).unwrap()
}

fn resolve(experiment: &Experiment, device: &OpenDevice) -> (ResolvedProcess, Graph) {
    let train = open_datasets(experiment).unwrap().train;
    let graph = Network::for_dataset(experiment, train.as_ref()).unwrap().graph;
    (ResolvedProcess::new(experiment, train.as_ref(), &graph, device).unwrap(), graph)
}

fn programs(experiment: &Experiment, device: &OpenDevice) -> Programs {
    let (resolved, graph) = resolve(experiment, device);
    compile::programs(&resolved, &graph, device).unwrap()
}

/// The element types of images in whole training batches, in the last one, and in validation.
fn types(experiment: &Experiment, device: &OpenDevice) -> [DType; 3] {
    let programs = programs(experiment, device);
    let tail = programs.tail.unwrap();
    [&programs.train, &tail, &programs.evaluate].map(|program| {
        let images = program.value(program.find_role(Role::Images).unwrap());
        let converts = program.steps.iter().filter(|step| step.kernel.name() == "normalise_pixels").count();
        assert_eq!(converts > 0, images.dtype == DType::U8, "{}", program.dump());
        images.dtype
    })
}

#[test]
fn programs_without_normalised_images_read_bytes() {
    use DType::{Bf16, F32, U8};
    let gpu = takes_bytes();
    for keys in [
        &[][..],
        &[("data.augment.shift", "2"), ("data.augment.padding", "reflect"), ("data.augment.flip", "true")],
        &[
            ("data.augment.random_resized_crop", "true"),
            ("data.augment.brightness", "0.4"),
            ("data.augment.hue", "0.1"),
        ],
        &[("train.label_smoothing", "0.1"), ("train.micro_batches", "2")],
        &[("data.mean", "[0.1, 0.2, 0.3]"), ("data.std", "[1, 1, 1]")],
        &[("data.shape", "[4, 20, 21]")],
        &[("train.precision", "f32")],
    ] {
        let experiment = experiment(keys);
        assert_eq!(types(&experiment, &gpu), [U8; 3], "{keys:?}");
        let expected = if keys.contains(&("train.precision", "f32")) { F32 } else { Bf16 };
        assert_eq!(types(&experiment, &takes_floats()), [expected; 3], "{keys:?}");
    }
    // Blanked pixels and skipped images are the mean, mixed and rotated pixels are between bytes. Validation
    // has none of these.
    for keys in [
        ("data.augment.cutout", "4"),
        ("data.augment.rotation", "5"),
        ("data.augment.zoom", "[1.0, 1.2]"),
        ("data.augment.mixup", "0.2"),
        ("data.augment.cutmix", "1"),
        ("data.on_bad_sample", "skip"),
    ] {
        assert_eq!(types(&experiment(&[keys]), &gpu), [Bf16, Bf16, U8], "{keys:?}");
    }
    // Too many channels, or a normalisation that the loader rejects.
    assert_eq!(types(&experiment(&[("data.shape", "[5, 20, 21]")]), &gpu), [Bf16; 3]);
    let lacking = [("data.mean", "[0.1]"), ("data.std", "[1]")];
    assert_eq!(types(&experiment(&lacking), &gpu), [Bf16; 3]);
    // On a CPU there is no copy to save.
    let cpu = opened(ReferenceBackend);
    assert_eq!(types(&experiment(&[("train.precision", "f32")]), &cpu), [F32; 3]);
}

/// A session that trains and evaluates; its plans are not cached.
struct Trained {
    resolved: ResolvedProcess,
    session: Session,
    parameters: Vec<String>,
}

impl Trained {
    /// Its programs: 0 trains on a whole batch, 1 on the last batch, 2 evaluates.
    fn new(experiment: &Experiment, device: &OpenDevice) -> Self {
        let (resolved, graph) = resolve(experiment, device);
        let Programs { train, tail, evaluate, refresh } = programs(experiment, device);
        let mut persistent = Persistent::default();
        let backend = device.backend.as_ref();
        let mut plan = |program: &Program| {
            Plan::prepare(backend, program, Choices::default(), false, &mut persistent).unwrap()
        };
        let plans = vec![plan(&train), plan(&tail.unwrap()), plan(&evaluate), plan(&refresh)];
        let mut session = Session::on_backend(backend, plans, persistent).unwrap();
        for parameter in &graph.parameters {
            let trained = parameter.kind == ParameterKind::Trained;
            let value = |i: usize| ((i * 37 % 101) as f32 - 50.0) / if trained { 200.0 } else { 1000.0 };
            let offset = if parameter.name.ends_with("running_var") { 1.0 } else { 0.0 };
            let values: Vec<f32> = (0..parameter.elements()).map(|i| value(i) + offset).collect();
            session.write(&parameter.name, &values).unwrap();
        }
        let mut clock = Clock::disabled(session.slots(3));
        session.run(3, &mut [], &mut [], &mut clock, 0).unwrap();
        let parameters = graph.parameters.iter().map(|parameter| parameter.name.clone()).collect();
        Self { resolved, session, parameters }
    }

    /// Trains an epoch; returns the losses.
    fn epoch(&mut self, element: Element) -> Vec<u64> {
        let Datasets { train, .. } = open_datasets(self.resolved.settings()).unwrap();
        let format = BatchFormat::from_plan(self.session.plan(0));
        assert_eq!(format.element, element);
        assert_eq!(BatchFormat::from_plan(self.session.plan(1)), format);
        let mut loader = Loader::new(train, self.resolved.input().training(format)).unwrap();
        let mut losses = Vec::new();
        for iteration in 0..loader.batches_per_epoch() {
            let mut batch = loader.next().unwrap().unwrap();
            let program = usize::from(batch.samples < self.resolved.settings().train.batch_size);
            self.session
                .set_iteration_scalars(IterationScalars { learning_rate: 0.05, iteration, seed: 1 })
                .unwrap();
            let bytes = self.session.plan(program).external(0).unwrap().bytes;
            let labels = &mut batch.labels[..batch.samples * loader.label_len()];
            let labels = bytemuck::cast_slice_mut(labels);
            let mut clock = Clock::disabled(self.session.slots(program));
            self.session.run(program, &mut batch.images[..bytes], labels, &mut clock, 0).unwrap();
            losses.push(self.session.metrics().loss.to_bits());
            loader.recycle(batch);
        }
        losses
    }

    fn evaluate(&mut self, element: Element) -> Scores {
        assert_eq!(BatchFormat::from_plan(self.session.plan(2)).element, element);
        let Datasets { validation, .. } = open_datasets(self.resolved.settings()).unwrap();
        let mut evaluator = Evaluator::new(&self.resolved, &self.session, 2, validation).unwrap();
        evaluator.run(&mut self.session).unwrap()
    }

    fn weights(&self) -> Vec<u32> {
        let all = self.parameters.iter().flat_map(|name| self.session.read(name).unwrap());
        all.map(f32::to_bits).collect()
    }
}

/// Augmented images, an incomplete last batch, and validation on several views of each image.
#[test]
fn training_and_evaluation_are_bit_identical_to_normalised_images() {
    for (precision, element) in [("f32", Element::F32), ("bf16", Element::Bf16)] {
        let experiment = experiment(&[
            ("train.precision", precision),
            ("data.augment.shift", "2"),
            ("data.augment.flip", "true"),
            ("data.augment.brightness", "0.3"),
            ("validation.mirror", "true"),
            ("validation.shift", "1"),
        ]);
        let mut bytes = Trained::new(&experiment, &takes_bytes());
        let mut numbers = Trained::new(&experiment, &takes_floats());
        let copied = |trained: &Trained| trained.session.plan(0).external(0).unwrap().bytes;
        assert_eq!(copied(&numbers), element.bytes() * copied(&bytes));
        assert_eq!(BatchFormat::from_plan(bytes.session.plan(0)).layout, Layout::Nhwc);
        let (with, without) = (bytes.epoch(Element::U8), numbers.epoch(element));
        assert_eq!(with, without, "{precision}");
        assert_eq!(with.len(), 3);
        assert!(bytes.weights() == numbers.weights(), "{precision}");
        let (with, without) = (bytes.evaluate(Element::U8), numbers.evaluate(element));
        assert_eq!((&with, with.samples), (&without, 10));
        assert!(with.loss.is_finite() && with.loss > 0.0, "{with:?}");
    }
}

/// Bytes are correct on a CPU too, although not faster: with images that a stem reads, and with others.
#[test]
fn byte_images_are_bit_identical_on_the_cpu() {
    let Some(found) = onednn() else { return };
    let precisions = [("f32", Element::F32), ("bf16", Element::Bf16)];
    let precisions = precisions.into_iter().filter(|(name, _)| *name == "f32" || found.has_fast_bf16());
    for (precision, element) in precisions {
        for shape in ["[1, 20, 22]", "[3, 20, 21]"] {
            let experiment = experiment(&[("train.precision", precision), ("data.shape", shape)]);
            let says = |bytes| opened(Says(onednn().unwrap(), bytes));
            let mut bytes = Trained::new(&experiment, &says(true));
            let mut numbers = Trained::new(&experiment, &says(false));
            assert_eq!(bytes.epoch(Element::U8), numbers.epoch(element), "{precision} {shape}");
            assert!(bytes.weights() == numbers.weights(), "{precision} {shape}");
            assert_eq!(bytes.evaluate(Element::U8), numbers.evaluate(element));
        }
    }
}

/// Normalisation has a row of its own.
#[test]
fn normalisation_is_a_layer_of_reports() {
    let programs = programs(&experiment(&[]), &takes_bytes());
    let step = &programs.train.steps[0];
    let (name, kind) = (programs.train.layer_name(step), programs.train.layer_kind(step));
    assert_eq!((name.as_str(), kind.as_str(), step.phase), ("images", "normalise_pixels", Phase::Forward));
}

/// The `experiment.toml` of a run gives the same programs on resume.
#[test]
fn resumed_run_has_the_same_programs() {
    let first = experiment(&[]);
    let gpu = takes_bytes();
    let recorded = resolve(&first, &gpu).0.to_toml();
    let continued = Experiment::from_toml(&recorded, Path::new("experiment.toml")).unwrap();
    assert_eq!(programs(&first, &gpu), programs(&continued, &gpu));
    // Also from the recorded plan, with decimal numbers.
    for keys in [&[][..], &[("data.mean", "[0.485, 0.456, 0.406]"), ("data.std", "[0.229, 0.224, 0.225]")]] {
        let train = programs(&experiment(keys), &gpu).train;
        let written = serde_json::to_string(&train).unwrap();
        assert_eq!(serde_json::from_str::<Program>(&written).unwrap(), train);
    }
}
