//! Arithmetic and memory traffic per layer from the plan, and how near the machine's peaks they come.
//!
//! The roofline model (Williams, Waterman, Patterson 2009): a kernel that does `I` FLOP per byte of memory
//! traffic runs at most at `min(peak FLOP/s, I · peak bytes/s)`.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};

use serde::{Deserialize, Serialize};
use stratus_engine::{Phase, Plan};
use stratus_run::RunDir;
use stratus_run::machine::Machine;

use crate::accounting::{Accounting, LayerCost};

/// Longer plan files are not read: the largest network's is 5 MB.
const PLAN_LIMIT: u64 = 256 << 20;

/// The part of `plan.json` that a report needs.
#[derive(Deserialize)]
struct PlanFile {
    train: Plan,
}

/// Reads and checks the plan of a run's training iterations. The error says why it cannot be used.
pub(super) fn read_plan(run: &RunDir) -> Result<Plan, String> {
    let path = run.plan();
    let failed = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    let length = fs::metadata(&path).map_err(failed)?.len();
    if length > PLAN_LIMIT {
        return Err(format!("{} has {length} bytes, more than a plan has", path.display()));
    }
    let file = File::open(&path).map_err(failed)?;
    let plan: PlanFile = serde_json::from_reader(std::io::BufReader::new(file)).map_err(|error| {
        format!("{} is damaged or of another version of Stratus: {error}", path.display())
    })?;
    let plan = plan.train;
    let damaged = |reason: String| format!("{} is damaged: {reason}", path.display());
    plan.program.verify("report").map_err(|error| damaged(error.to_string()))?;
    let (values, steps) = (plan.program.values.len(), plan.program.steps.len());
    if plan.placements.len() != values || plan.steps.len() != steps {
        return Err(damaged("its placements and kernels are not those of its program".to_owned()));
    }
    Ok(plan)
}

/// The peaks of a machine, as `stratus doctor` measures them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Peaks {
    /// 10⁹ bytes a second: STREAM's triad.
    pub gb_per_s: Option<f64>,
    /// 10⁹ floating-point operations a second by number format: `f32`, `bf16`.
    pub gflops: BTreeMap<String, f64>,
}

impl Peaks {
    /// The peaks in a `machine.json`.
    #[must_use]
    pub fn of(machine: &Machine) -> Self {
        let usable = |value: &f64| value.is_finite() && *value > 0.0;
        let gflops = machine.peaks.iter().filter_map(|(name, value)| {
            let format = name.strip_suffix("_gflops").filter(|format| !format.contains('_'))?;
            usable(value).then(|| (format.to_owned(), *value))
        });
        let gb_per_s = machine.peaks.get("triad_gb_per_s").copied().filter(usable);
        Self { gb_per_s, gflops: gflops.collect() }
    }

    /// The most GFLOP/s at `intensity` FLOP per byte, where both peaks are known.
    #[must_use]
    pub fn attainable(&self, precision: &str, intensity: f64) -> Option<f64> {
        Some(self.gflops.get(precision)?.min(intensity * self.gb_per_s?))
    }
}

/// Arithmetic and traffic of a training iteration on a whole batch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Work {
    /// Samples a batch.
    pub batch: usize,
    /// The number format of the arithmetic.
    pub precision: String,
    /// Floating-point operations of an iteration; a multiply-add counts two.
    pub flops: u64,
    /// Bytes of all operands of all steps of an iteration.
    pub bytes: u64,
    /// The machine's peaks, as far as they are known.
    pub peaks: Peaks,
    /// Per layer, in the order of the accounting.
    pub layers: Vec<LayerWork>,
    /// Per layer and phase, for the roofline.
    pub points: Vec<Point>,
}

/// A layer's arithmetic and traffic.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerWork {
    /// The layer, as in the accounting.
    pub layer: String,
    /// Floating-point operations an iteration.
    pub flops: u64,
    /// Bytes of operands an iteration.
    pub bytes: u64,
    /// 10⁹ operations a second over the layer's median time.
    pub gflops_per_s: Option<f64>,
    /// 10⁹ bytes a second over the layer's median time.
    pub gb_per_s: Option<f64>,
}

/// A layer's phase in the roofline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The layer, as in the accounting.
    pub layer: String,
    /// The phase: `forward`, `backward_data`, `backward_weights`, `update`.
    pub phase: &'static str,
    /// Median milliseconds an iteration.
    pub ms: f64,
    /// FLOP per byte.
    pub intensity: f64,
    /// GFLOP/s.
    pub gflops_per_s: f64,
    /// The share of what the roofline allows that is reached, where the peaks are known. Above 1 where the
    /// operands come out of caches, or minimal filtering needs fewer operations than are counted.
    pub efficiency: Option<f64>,
}

impl Work {
    /// The work of `plan`, with the times of `accounting`.
    pub(super) fn of(plan: &Plan, accounting: &Accounting, peaks: Peaks) -> Self {
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
        let points = accounting.layers.iter().flat_map(|layer| {
            let times = [&layer.forward, &layer.backward_data, &layer.backward_weights, &layer.update];
            phases.into_iter().zip(times).map(move |(phase, time)| (layer, phase, time.median_ms))
        });
        let points = points.filter_map(|(layer, phase, ms)| {
            let (flops, bytes) = work(layer, phase);
            let intensity = (bytes > 0).then(|| flops as f64 / bytes as f64).filter(|value| *value > 0.0)?;
            let gflops_per_s = rate(flops, ms)?;
            let efficiency = peaks.attainable(&precision, intensity).map(|most| gflops_per_s / most);
            let layer = layer.layer.clone();
            Some(Point { layer, phase: phase.name(), ms, intensity, gflops_per_s, efficiency })
        });
        let (layers, points) = (layers.collect(), points.collect());
        Self { batch: program.batch, precision, flops, bytes, layers, points, peaks }
    }
}
