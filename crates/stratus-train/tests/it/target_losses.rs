//! Losses of several targets per sample, of one logit per pixel, and their distillation, compared with
//! PyTorch on every backend. The fixtures are made by `scripts/fixtures/target_losses.py`, which defines the
//! operands.

use crate::common::{cuda, fnv1a64, numbers, onednn, session, splitmix64};
use serde::Deserialize;
use stratus_cuda::Cuda;
use stratus_engine::ops::{
    DistillationFunction, DistillationLoss, METRICS_FIELDS, PixelCrossEntropy, TargetFunction, TargetLoss,
};
use stratus_engine::program::{Layer, Mode};
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::{
    Backend, Choices, Clock, DType, Kernel, Phase, Precision, Program, Role, Step, ValueId,
};

/// The maximum error of a loss, and of a gradient relative to its largest element.
const TOLERANCE: f64 = 1e-6;

#[derive(Deserialize)]
struct Fixture {
    temperature: f32,
    weight: f32,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    kind: String,
    shape: Vec<usize>,
    weighted: bool,
    smoothing: f32,
    loss: f64,
    gradient: Vec<f64>,
}

/// A value of the step: name, shape, type and contents.
type Given = (&'static str, Vec<usize>, DType, Vec<f64>);

impl Case {
    fn numbers(&self, operand: &str, count: usize, map: impl Fn(f32) -> f32) -> Vec<f64> {
        numbers(&format!("{operand}:{}", self.name), count).map(|v| f64::from(map(v))).collect()
    }

    fn bits(&self, operand: &str, i: usize) -> u64 {
        splitmix64(fnv1a64(&format!("{operand}:{}", self.name)).wrapping_add(i as u64))
    }

    fn is_missing(&self, i: usize) -> bool {
        self.bits("missing", i).is_multiple_of(4)
    }

    /// f32 targets of samples or i32 classes of pixels.
    fn labels(&self) -> Given {
        let count = self.gradient.len();
        let given = self.numbers("targets", count, |v| v);
        let label = |i: usize| {
            let share = (given[i] as f32 + 1.0) * 0.5;
            match (self.shape.len(), self.kind.as_str()) {
                (4, _) if self.is_missing(i) => -1.0,
                (4, _) => f64::from(u8::from(given[i] > 0.0)),
                _ if self.is_missing(i) => f64::NAN,
                (_, "binary_cross_entropy" | "sigmoid") if self.bits("hard", i).is_multiple_of(3) => {
                    f64::from(share)
                }
                (_, "binary_cross_entropy" | "sigmoid") => f64::from(u8::from(share > 0.5)),
                _ => f64::from(3.0 * given[i] as f32),
            }
        };
        let labels = (0..count).map(label).collect();
        match self.shape[..] {
            [n, _, h, w] => ("labels", vec![n, h, w], DType::I32, labels),
            _ => ("labels", self.shape.clone(), DType::F32, labels),
        }
    }

    /// The kernel, its inputs, and whether it updates the metrics and the gradient.
    fn step(&self, fixture: &Fixture) -> (Kernel, Vec<Given>, bool) {
        let outputs = |name| {
            let values = self.numbers(name, self.gradient.len(), |v| 4.0 * v);
            (name, self.shape.clone(), DType::F32, values)
        };
        let distillation = |function| {
            let loss = DistillationLoss {
                function,
                weight: fixture.weight,
                temperature: fixture.temperature,
                mixed_labels: false,
                loss_scaled: false,
                partial: false,
            };
            (loss.into(), vec![outputs("outputs"), outputs("teacher"), self.labels()], true)
        };
        let (smoothing, class_weighted) = (self.smoothing, self.weighted);
        let mut inputs = vec![outputs("outputs"), self.labels()];
        if class_weighted {
            let shape = if self.shape.len() == 2 { vec![2, self.shape[1]] } else { vec![2] };
            let weights = self.numbers("weights", shape.iter().product(), |v| 2.0 + 1.5 * v);
            inputs.push(("weights", shape, DType::F32, weights));
        }
        let of_targets =
            |function| TargetLoss { function, smoothing, class_weighted, ..TargetLoss::default() }.into();
        let kernel = match self.kind.as_str() {
            "sigmoid" | "sigmoid_pixels" => return distillation(DistillationFunction::Sigmoid),
            "squared" => return distillation(DistillationFunction::SquaredError),
            "binary_pixels" => {
                PixelCrossEntropy { binary: true, smoothing, class_weighted, ..PixelCrossEntropy::default() }
                    .into()
            }
            "binary_cross_entropy" => of_targets(TargetFunction::BinaryCrossEntropy),
            "squared_error" => of_targets(TargetFunction::SquaredError),
            "huber" => of_targets(TargetFunction::Huber),
            other => panic!("unknown kind {other}"),
        };
        (kernel, inputs, false)
    }

    /// The loss and the gradient of a backend, with feature maps in a layout.
    fn run(&self, fixture: &Fixture, backend: &dyn Backend, layout: Option<&str>) -> (f64, Vec<f64>) {
        let (kernel, inputs, updates) = self.step(fixture);
        let mut program = Program {
            network: self.name.clone(),
            mode: Mode::Train,
            precision: Precision::F32,
            batch: self.shape[0],
            batch_parts: 1,
            stage: None,
            layers: vec![Layer { name: "loss".to_owned(), kind: "loss".to_owned() }],
            values: Vec::new(),
            steps: Vec::new(),
            sections: Vec::new(),
        };
        let ids: Vec<ValueId> = inputs
            .iter()
            .map(|(name, shape, dtype, _)| program.add_value(*name, shape, *dtype, Role::Buffer))
            .collect();
        let metrics = program.add_value("metrics", &[METRICS_FIELDS.len()], DType::F64, Role::Metrics);
        let gradient = program.add_value("gradient", &self.shape, DType::F32, Role::Buffer);
        let results = vec![metrics, gradient];
        let (updates, outputs) = if updates { (results, vec![]) } else { (vec![], results) };
        let (phase, layers) = (Phase::Loss, vec![0]);
        program.steps.push(Step { kernel, phase, layers, inputs: ids, updates, outputs });
        program.verify("test").unwrap();
        let maps = program.values.iter().filter(|value| value.shape.len() == 4);
        let layouts =
            maps.zip(layout.iter().cycle()).map(|(map, layout)| (map.name.clone(), (*layout).into()));
        let choices = Choices { layouts: layouts.collect(), ..Choices::default() };
        let mut session = session(backend, &program, choices);
        for (id, (.., contents)) in inputs.iter().enumerate() {
            session.write_value(0, id, contents).unwrap();
        }
        session.write_value(0, metrics.0, &[0.0; METRICS_FIELDS.len()]).unwrap();
        session.write_value(0, gradient.0, &vec![0.0; self.gradient.len()]).unwrap();
        let mut clock = Clock::disabled(session.slots(0));
        session.run(0, &mut [], &mut [], &mut clock, 0).unwrap();
        let loss = session.read_value(0, metrics.0).unwrap()[0];
        (loss, session.read_value(0, gradient.0).unwrap())
    }
}

fn load() -> Fixture {
    let folders = [env!("CARGO_MANIFEST_DIR"), "crates/stratus-train"].map(std::path::Path::new);
    let folder = folders.into_iter().find(|folder| folder.is_dir()).unwrap();
    serde_json::from_slice(&std::fs::read(folder.join("tests/fixtures/target_losses.json")).unwrap()).unwrap()
}

/// Compares all cases.
fn check(backend: &dyn Backend, layout: Option<&str>) {
    let fixture = load();
    assert_eq!(fixture.cases.len(), 14);
    for case in &fixture.cases {
        let (loss, gradient) = case.run(&fixture, backend, layout);
        let context = format!("`{}` on {}", case.name, backend.describe());
        assert!(
            (loss - case.loss).abs() <= TOLERANCE * case.loss.max(1.0),
            "{context}: {loss}, {}",
            case.loss
        );
        let largest = case.gradient.iter().fold(0.0, |largest: f64, slope| largest.max(slope.abs()));
        assert!(largest > 0.0, "{context}");
        for (i, (got, expected)) in gradient.iter().zip(&case.gradient).enumerate() {
            assert!((got - expected).abs() <= TOLERANCE * largest, "{context}, {i}: {got}, {expected}");
            assert_eq!(*got == 0.0, case.is_missing(i), "{context}, {i}: {got}");
        }
    }
}

#[test]
fn losses_of_the_reference_match_pytorch() {
    check(&ReferenceBackend, None);
}

#[test]
fn losses_on_the_cpu_match_pytorch() {
    let Some(backend) = onednn() else { return };
    check(&backend, Some("nhwc"));
    check(&backend, Some("nChw16c"));
}

#[test]
fn losses_on_a_gpu_match_pytorch() {
    check(&Cuda::emulated().unwrap(), None);
    if let Some(backend) = cuda() {
        check(&backend, None);
    }
}
