//! Compares a training step of a backend with that of the reference.
//!
//! The expected results are those of the reference in double precision, of the plain program: every layer
//! by itself. The tolerance follows from the network: how far the reference is off in the precision of the
//! backend, and how much its results move if weights and images move by about the rounding. Rounding that
//! moves a value across a bend, such as that of ReLU, or to another maximum of a window changes gradients
//! much more. In f32, data whose results move by more than [`MAX_RESPONSE`] are replaced. In bf16 bends
//! cannot be avoided. Therefore a difference counts only if further data show it too.

use super::step::{Compilation, Tensor, evaluate, run_step};
use super::{Data, Settings};
use std::panic::{AssertUnwindSafe, catch_unwind};
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::{Backend, EngineError, Precision};
use stratus_graph::{Graph, Op};

/// The relative moves of weights and images: many times the rounding of f32, and the rounding of bf16.
const F32_SHIFT: f64 = 1e-5;
const BF16_SHIFT: f64 = 4e-3;
/// The maximum change of an f32 result, relative to its norm.
const MAX_RESPONSE: f64 = 1e-2;
/// The maximum tolerance at which a comparison means something.
const MAX_TOLERANCE: f64 = 0.4;
/// The number of data that are drawn for a network whose results move too much.
const MAX_DRAWS: u64 = 6;
/// The number of further data that must show a difference too.
const CONFIRMATIONS: u64 = 3;
/// The minimum norm that differences are relative to. That of gradients is relative to the largest gradient.
const MIN_NORM: f64 = 0.05;

/// A result vanishes because its terms cancel, as the gradient of a bias before a batch norm, if its norm is
/// less than this part of the minimum. The rounding of the terms is then larger than that of the result.
const VANISHING: f64 = 1e-3;
const VANISHING_TOLERANCE_FACTOR: f64 = 20.0;

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every result is within its tolerance.
    Agrees,
    /// The results depend too much on rounding to be compared.
    Sensitive,
    /// The difference, for several data.
    Differs(String),
    /// The error, or the panic, of the backend.
    Fails(String),
    /// The error of the reference.
    ReferenceFails(String),
}

impl Verdict {
    /// The problem, if it is one.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        match self {
            Self::Agrees | Self::Sensitive => None,
            Self::Differs(problem) => Some(format!("differs: {problem}")),
            Self::Fails(problem) => Some(format!("fails: {problem}")),
            Self::ReferenceFails(problem) => Some(format!("the reference fails: {problem}")),
        }
    }

    /// Returns whether both are the same kind of problem.
    pub(super) fn is_alike(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// A backend that is compared with the reference.
pub struct Subject<'a> {
    backend: &'a dyn Backend,
    precision: Precision,
    layouts: &'a [&'a str],
}

impl<'a> Subject<'a> {
    /// A backend in a precision. The feature maps of a network have one of `layouts`, or the backend chooses.
    #[must_use]
    pub fn new(backend: &'a dyn Backend, precision: Precision, layouts: &'a [&'a str]) -> Self {
        Self { backend, precision, layouts }
    }

    /// Compares a training step of a network, and evaluations before and after it.
    #[must_use]
    pub fn compare(&self, graph: &Graph, settings: &Settings) -> Verdict {
        let mut problem = None;
        let mut differing = 0;
        for draw in 0..MAX_DRAWS + CONFIRMATIONS {
            let settings = Settings { data: settings.data.wrapping_add(draw << 32), ..settings.clone() };
            match self.compare_data(graph, &settings) {
                Verdict::Sensitive => {}
                Verdict::Differs(difference) => {
                    problem.get_or_insert(difference);
                    differing += 1;
                }
                other => return other,
            }
            if differing > CONFIRMATIONS {
                break;
            }
        }
        match problem {
            Some(problem) if differing > CONFIRMATIONS => Verdict::Differs(problem),
            _ => Verdict::Sensitive,
        }
    }

    fn layout(&self, settings: &Settings) -> Option<&'a str> {
        self.layouts.get(settings.layout % (self.layouts.len() + 1)).copied()
    }

    /// [`Self::compare`] with one set of data.
    fn compare_data(&self, graph: &Graph, settings: &Settings) -> Verdict {
        if normalises_single_values(graph, settings) {
            return Verdict::Sensitive;
        }
        let data = Data::new(graph, settings);
        let tolerances = match self.tolerances(graph, settings, &data) {
            Ok(tolerances) => tolerances,
            Err(verdict) => return verdict,
        };
        let run = |layout| {
            let way = (self.precision, Compilation::Optimised(layout));
            guarded(|| run_step(self.backend, graph, settings, way, &data))
        };
        let layout = self.layout(settings);
        let mut got = run(layout);
        // Plans drop a layout that a kernel does not support.
        if layout.is_some() && matches!(&got, Err(Failure::Error(_))) {
            got = run(None);
        }
        let got = match got {
            Ok(got) => got,
            Err(failure) => return Verdict::Fails(failure.to_string()),
        };
        for tolerance in &tolerances.results {
            let name = &tolerance.expected.name;
            let Some(got) = got.iter().find(|tensor| tensor.name == *name) else {
                return Verdict::Fails(format!("has no result `{name}`"));
            };
            if let Some(position) = got.values.iter().position(|value| !value.is_finite()) {
                return Verdict::Fails(format!("`{name}` is {} at {position}", got.values[position]));
            }
            let distance = tolerances.distance(&tolerance.expected, got);
            if distance > tolerance.allowed {
                return Verdict::Differs(format!(
                    "`{name}` by {distance:.2e} of its norm, allowed {:.2e}",
                    tolerance.allowed
                ));
            }
        }
        Verdict::Agrees
    }

    /// The expected results and their tolerances.
    fn tolerances(&self, graph: &Graph, settings: &Settings, data: &Data) -> Result<Tolerances, Verdict> {
        let is_f32 = self.precision == Precision::F32;
        let shift = if is_f32 { F32_SHIFT } else { BF16_SHIFT };
        let run = |precision, data: &Data| {
            let way = (precision, Compilation::Plain);
            guarded(|| run_step(&ReferenceBackend, graph, settings, way, data))
                .map_err(|failure| Verdict::ReferenceFails(failure.to_string()))
        };
        let exact = run(Precision::F64, data)?;
        let rounded = run(self.precision, data)?;
        let seed = settings.data;
        let moved = [shift, -shift].map(|size| run(Precision::F64, &data.shifted(size, seed)));
        let [up, down] = moved;
        let moved = [up?, down?];
        let norms = exact.iter().filter(|tensor| tensor.is_gradient).map(|tensor| norm(&tensor.values));
        let mut tolerances = Tolerances { largest_gradient: norms.fold(0.0, f64::max), results: Vec::new() };
        for (position, expected) in exact.iter().enumerate() {
            if let Some(element) = expected.values.iter().position(|value| !value.is_finite()) {
                let value = expected.values[element];
                return Err(Verdict::ReferenceFails(format!("`{}` is {value}", expected.name)));
            }
            let distance = |to: &[Tensor]| match to.get(position) {
                Some(tensor) if tensor.name == expected.name => tolerances.distance(expected, tensor),
                _ => f64::INFINITY,
            };
            let response = distance(&moved[0]).max(distance(&moved[1]));
            let rounding = distance(&rounded);
            let mut allowed = if is_f32 {
                1e-4 + 4.0 * rounding + 0.1 * response
            } else {
                1e-2 + 3.0 * rounding.max(response)
            };
            if norm(&expected.values) < VANISHING * tolerances.min_norm(expected) {
                allowed *= VANISHING_TOLERANCE_FACTOR;
            }
            if (is_f32 && response > MAX_RESPONSE) || allowed.is_nan() || allowed >= MAX_TOLERANCE {
                if is_f32 {
                    return Err(Verdict::Sensitive);
                }
                continue;
            }
            tolerances.results.push(Tolerance { expected: expected.clone(), allowed });
        }
        if tolerances.results.is_empty() { Err(Verdict::Sensitive) } else { Ok(tolerances) }
    }
}

struct Tolerance {
    expected: Tensor,
    /// The allowed difference, relative to the expected norm.
    allowed: f64,
}

struct Tolerances {
    largest_gradient: f64,
    results: Vec<Tolerance>,
}

impl Tolerances {
    /// The minimum norm that differences of a result are relative to.
    fn min_norm(&self, expected: &Tensor) -> f64 {
        if expected.is_gradient { MIN_NORM * self.largest_gradient + 1e-9 } else { MIN_NORM }
    }

    /// The norm of the difference, relative to the expected norm.
    fn distance(&self, expected: &Tensor, got: &Tensor) -> f64 {
        let min = self.min_norm(expected);
        let difference: Vec<f64> = expected.values.iter().zip(&got.values).map(|(a, b)| a - b).collect();
        if expected.values.len() != got.values.len() {
            return f64::INFINITY;
        }
        norm(&difference) / norm(&expected.values).max(min)
    }
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// The data of a network and its outputs in evaluation.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// Weights and images.
    pub data: Data,
    /// The outputs, `[N, ...]`.
    pub outputs: Vec<f64>,
    /// How far outputs in f32 may be off, relative to the largest of them and of [`MIN_OUTPUT`].
    pub tolerance: f64,
}

/// The minimum size of outputs that differences are relative to.
pub const MIN_OUTPUT: f64 = 0.05;

/// Evaluates a network by the reference in double precision; `None` if its outputs depend too much on
/// rounding to be compared with those of an f32 program.
///
/// # Errors
/// If the reference cannot evaluate it.
pub fn evaluate_reference(graph: &Graph, settings: &Settings) -> Result<Option<Evaluation>, EngineError> {
    let data = Data::new(graph, settings);
    let outputs = evaluate(graph, settings, &data)?;
    let mut response = 0.0_f64;
    for size in [F32_SHIFT, -F32_SHIFT] {
        let moved = evaluate(graph, settings, &data.shifted(size, settings.data))?;
        response = response.max(output_distance(&outputs, &moved));
    }
    let tolerance = 1e-4 + 0.1 * response;
    Ok((response <= MAX_RESPONSE).then_some(Evaluation { data, outputs, tolerance }))
}

/// The largest difference of outputs, relative to the largest expected one and to [`MIN_OUTPUT`].
#[must_use]
pub fn output_distance(expected: &[f64], got: &[f64]) -> f64 {
    let largest = expected.iter().fold(MIN_OUTPUT, |largest, value| largest.max(value.abs()));
    let differences = expected.iter().zip(got).map(|(expected, got)| (expected - got).abs() / largest);
    if expected.len() == got.len() { differences.fold(0.0, f64::max) } else { f64::INFINITY }
}

/// Evaluates a network with other weights and images by the reference in double precision.
///
/// # Errors
/// If the reference cannot evaluate it.
pub fn evaluate_with(graph: &Graph, settings: &Settings, data: &Data) -> Result<Vec<f64>, EngineError> {
    evaluate(graph, settings, data)
}

/// Returns whether a norm is of single values: a batch norm with one for each channel of the batch, which
/// PyTorch refuses, or a norm of samples with groups of one. The result is the rounding of the value, times
/// the reciprocal of the square root of `epsilon`.
pub(super) fn normalises_single_values(graph: &Graph, settings: &Settings) -> bool {
    graph.nodes.iter().any(|node| {
        let extents = &graph.shape(node.output).0;
        let is_pixel = extents[1..].iter().all(|&extent| extent == 1);
        match &node.op {
            Op::BatchNorm2d(_) => is_pixel && settings.batch == 1,
            Op::GroupNorm(norm) => is_pixel && norm.groups == extents[0],
            Op::LayerNorm2d(_) => extents[0] == 1,
            _ => false,
        }
    })
}

/// An error, or a panic.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Error(EngineError),
    #[error("panicked: {0}")]
    Panic(String),
}

/// Runs a function; a panic is a failure too.
fn guarded<T>(run: impl FnOnce() -> Result<T, EngineError>) -> Result<T, Failure> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(Failure::Error),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(Failure::Panic(text.unwrap_or_default()))
        }
    }
}
