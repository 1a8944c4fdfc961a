//! Arithmetic and memory traffic per layer, from the plan, relative to the peaks of the machine.
//!
//! The roofline model (Williams, Waterman, Patterson 2009): a kernel with `I` FLOP per byte of memory traffic
//! achieves at most `min(peak FLOP/s, I · peak bytes/s)`.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};

use serde::{Deserialize, Serialize};
use stratus_engine::{Phase, Plan, Role};
use stratus_run::RunDir;
use stratus_run::atomic::json_problem;
use stratus_run::machine::Machine;

use crate::accounting::{Accounting, LayerCost};

/// Maximum size of a plan file; the largest network's has 5 MB.
const MAX_PLAN_BYTES: u64 = 64 << 20;

/// The part of `plan.json` that a report needs.
#[derive(Deserialize)]
struct PlanFile {
    train: Plan,
}

/// Reads and validates the plan of the training iterations of a run. The error is the reason why it cannot be
/// used.
pub(super) fn read_plan(run: &RunDir) -> Result<Plan, String> {
    let path = run.plan();
    let failed = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    let length = fs::metadata(&path).map_err(failed)?.len();
    if length > MAX_PLAN_BYTES {
        return Err(format!("{} has {length} bytes; the limit is {MAX_PLAN_BYTES}", path.display()));
    }
    let file = File::open(&path).map_err(failed)?;
    let plan: PlanFile = serde_json::from_reader(std::io::BufReader::new(file)).map_err(|error| {
        format!("{} is damaged or from another version of Stratus: {}", path.display(), json_problem(&error))
    })?;
    let plan = plan.train;
    let damaged = |reason: String| format!("{} is damaged: {reason}", path.display());
    plan.program.verify("report").map_err(|error| damaged(error.to_string()))?;
    let (values, steps) = (plan.program.values.len(), plan.program.steps.len());
    if plan.placements.len() != values || plan.steps.len() != steps {
        return Err(damaged("its placements and kernels do not match its program".to_owned()));
    }
    Ok(plan)
}

/// The shape `[C, H, W]` of the images of a run, by its plan; `None` if it cannot be read.
#[must_use]
pub fn planned_image_shape(run: &RunDir) -> Option<[usize; 3]> {
    let plan = read_plan(run).ok()?;
    let images = plan.program.values.iter().find(|value| value.role == Role::Images)?;
    let shape = images.shape.get(usize::from(images.per_sample)..)?;
    // Others are no photographs, or were padded.
    <[usize; 3]>::try_from(shape).ok().filter(|[channels, ..]| matches!(channels, 1 | 3))
}

/// The peaks of a machine, as measured by `stratus doctor`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Peaks {
    /// Memory bandwidth of the STREAM triad, 10⁹ bytes/s.
    pub gb_per_s: Option<f64>,
    /// 10⁹ FLOP/s by number format: `f32`, `bf16`.
    pub gflops: BTreeMap<String, f64>,
}

impl Peaks {
    /// The peaks in a `machine.json`.
    #[must_use]
    pub fn from_machine(machine: &Machine) -> Self {
        let usable = |value: &f64| value.is_finite() && *value > 0.0;
        let gflops = machine.peaks.iter().filter_map(|(name, value)| {
            let format = name.strip_suffix("_gflops").filter(|format| !format.contains('_'))?;
            usable(value).then(|| (format.to_owned(), *value))
        });
        let gb_per_s = machine.peaks.get("triad_gb_per_s").copied().filter(usable);
        Self { gb_per_s, gflops: gflops.collect() }
    }

    /// The maximum GFLOP/s at `intensity` FLOP per byte, if both peaks are known.
    #[must_use]
    pub fn attainable(&self, precision: &str, intensity: f64) -> Option<f64> {
        Some(self.gflops.get(precision)?.min(intensity * self.gb_per_s?))
    }
}

/// Arithmetic and memory traffic of a training iteration on a whole batch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RooflineData {
    /// Samples per batch.
    pub batch: usize,
    /// The number format of the arithmetic.
    pub precision: String,
    /// Floating-point operations of an iteration; a multiply-add counts as two.
    pub flops: u64,
    /// Bytes of all operands of all steps of an iteration.
    pub bytes: u64,
    /// The known peaks of the machine.
    pub peaks: Peaks,
    /// Layers, in the order of the accounting.
    pub layers: Vec<LayerWork>,
    /// Points of the roofline, per layer and phase.
    pub points: Vec<RooflinePoint>,
}

/// Arithmetic and memory traffic of a layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerWork {
    /// The layer, as in the accounting.
    pub layer: String,
    /// Floating-point operations per iteration.
    pub flops: u64,
    /// Bytes of operands per iteration.
    pub bytes: u64,
    /// GFLOP/s over the median time of the layer.
    pub gflops_per_s: Option<f64>,
    /// 10⁹ bytes/s over the median time of the layer.
    pub gb_per_s: Option<f64>,
}

/// A phase of a layer in the roofline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RooflinePoint {
    /// The row of the layer in the accounting.
    pub row: usize,
    /// The layer, as in the accounting.
    pub layer: String,
    /// The phase: `forward`, `backward_data`, `backward_weights`, `update`.
    pub phase: &'static str,
    /// Median milliseconds per iteration.
    pub ms: f64,
    /// FLOP per byte.
    pub intensity: f64,
    /// GFLOP/s.
    pub gflops_per_s: f64,
    /// The achieved fraction of the roofline, if the peaks are known. It exceeds 1 if operands are read from
    /// caches, or if minimal filtering needs fewer operations than are counted.
    pub efficiency: Option<f64>,
}

impl RooflineData {
    /// The roofline data of `plan`, with the times of `accounting`.
    pub(super) fn new(plan: &Plan, accounting: &Accounting, peaks: Peaks) -> Self {
        let program = &plan.program;
        // (FLOP, bytes) by layers and phase.
        let mut sums: HashMap<(String, Phase), (u64, u64)> = HashMap::new();
        let (mut flops, mut bytes) = (0, 0);
        for (position, step) in program.steps.iter().enumerate() {
            let (step_flops, step_bytes) = (program.step_flops(position), plan.step_bytes(position));
            let sum = sums.entry((program.layer_name(step), step.phase)).or_default();
            *sum = (sum.0 + step_flops, sum.1 + step_bytes);
            (flops, bytes) = (flops + step_flops, bytes + step_bytes);
        }
        let precision = program.precision.to_string();
        let work =
            |layer: &LayerCost, phase| sums.get(&(layer.layer.clone(), phase)).copied().unwrap_or_default();
        let phases = [Phase::Forward, Phase::BackwardData, Phase::BackwardWeights, Phase::Update];
        let rate = |count: u64, ms: f64| (count > 0 && ms > 0.0).then(|| count as f64 / ms / 1e6);
        let layers = accounting.layers.iter().map(|layer| {
            let all = phases.map(|phase| work(layer, phase));
            let (flops, bytes) = all.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            let ms = layer.total.median_ms;
            LayerWork {
                layer: layer.layer.clone(),
                flops,
                bytes,
                gflops_per_s: rate(flops, ms),
                gb_per_s: rate(bytes, ms),
            }
        });
        let points = accounting.layers.iter().enumerate().flat_map(|(row, layer)| {
            let times = [&layer.forward, &layer.backward_data, &layer.backward_weights, &layer.update];
            phases.into_iter().zip(times).map(move |(phase, time)| (row, layer, phase, time.median_ms))
        });
        let points = points.filter_map(|(row, layer, phase, ms)| {
            let (flops, bytes) = work(layer, phase);
            let intensity = (bytes > 0).then(|| flops as f64 / bytes as f64).filter(|value| *value > 0.0)?;
            let gflops_per_s = rate(flops, ms)?;
            let efficiency = peaks.attainable(&precision, intensity).map(|peak| gflops_per_s / peak);
            let layer = layer.layer.clone();
            Some(RooflinePoint { row, layer, phase: phase.name(), ms, intensity, gflops_per_s, efficiency })
        });
        let (layers, points) = (layers.collect(), points.collect());
        Self { batch: program.batch, precision, flops, bytes, layers, points, peaks }
    }
}
