//! From steps to kernels: chooses layouts and implementations by measuring, and inserts reorders between
//! layouts.
//!
//! All feature maps of a program share one layout, channels last or channels in blocks of 16: a plan is built
//! for each, and the faster one kept. Within a plan, every convolution and fully connected layer takes its
//! fastest implementation. The forward pass decides the layout of the weights it reads; later steps use them
//! in that layout or reorder them, whichever is faster.

mod builder;
mod choose;
mod layouts;
pub(crate) mod measure;
mod steps;

pub(crate) use builder::PlanBuilder;
pub(crate) use layouts::{LayoutNeeds, reshape_layout};

use crate::backend::OneDnn;
use crate::ops::on_cpu;
use measure::Bench;
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use stratus_engine::ops::KernelSpec;
use stratus_engine::{EngineError, Precision, PrepareRequest, PreparedProgram, Program};

/// If a plan in a later layout seems faster, and took at most this time to measure, the first is measured
/// again.
const MAX_REMEASURE_TIME: Duration = Duration::from_millis(500);

/// The candidate layouts of feature maps.
const MAP_LAYOUTS: [&str; 2] = ["nhwc", "nChw16c"];

/// Prepares a program with the choices of the request, else with the fastest measured, or in oneDNN's own
/// order.
pub(crate) fn prepare(
    backend: &OneDnn,
    program: &Program,
    request: &PrepareRequest,
) -> Result<PreparedProgram, EngineError> {
    check_precision(backend, program)?;
    let mut bench = Bench::new().map_err(prepare_error)?;
    let mut build = |layout, options, incumbent: Option<&[Duration]>| {
        PlanBuilder::new(backend, program, request, &mut bench, layout, options)?.build(incumbent)
    };
    if !request.choices.layouts.is_empty() || !request.measure {
        let options = BuildOptions { fallbacks: true, measure_maps: false };
        return Ok(build(MAP_LAYOUTS[0], options, None)?.prepared);
    }
    let mut best: Option<(&str, TimedPlan)> = None;
    let mut last_error = None;
    // A layout in which some convolution has only a reference kernel, or cannot run on AMX although it would
    // fill its tiles, is tried only if all layouts are like that.
    for fallbacks in [false, true] {
        let options = BuildOptions { fallbacks, measure_maps: true };
        for layout in MAP_LAYOUTS {
            let start = Instant::now();
            match build(layout, options, best.as_ref().map(|(_, best)| &best.times[..])) {
                Ok(plan) => {
                    let Some((first, before)) = best.take() else {
                        best = Some((layout, plan));
                        continue;
                    };
                    let mut incumbent = before;
                    if plan.is_faster(&incumbent) && start.elapsed() < MAX_REMEASURE_TIME {
                        // The layouts are measured in sequence: other load may have slowed down the first.
                        backend.timings.lock().unwrap_or_else(PoisonError::into_inner).clear();
                        incumbent = build(first, options, None)?;
                    }
                    best = Some(if plan.is_faster(&incumbent) { (layout, plan) } else { (first, incumbent) });
                }
                Err(EngineError::Interrupted) => return Err(EngineError::Interrupted),
                Err(error) => last_error = Some(error),
            }
        }
        if best.is_some() {
            break;
        }
    }
    match (best, last_error) {
        (Some((_, best)), _) => Ok(best.prepared),
        (None, Some(error)) => Err(error),
        (None, None) => Err(EngineError::Placement("no candidate layout of feature maps".to_owned())),
    }
}

/// Rejects unsupported precisions, because oneDNN's own message would only be "not implemented".
fn check_precision(backend: &OneDnn, program: &Program) -> Result<(), EngineError> {
    // Neither native kernels nor oneDNN support these types.
    let unknown = matches!(program.precision, Precision::F16 | Precision::F64);
    if let Some(step) = program.steps.first().filter(|_| unknown) {
        return Err(EngineError::Unsupported {
            backend: "onednn".to_owned(),
            kernel: step.kernel.name().to_owned(),
            layer: program.layer_name(step),
            reason: format!("the CPU backend supports f32 and bf16, not {}", program.precision),
        });
    }
    let first = program.steps.iter().find(|step| on_cpu(&step.kernel).onednn_use().is_some());
    first.filter(|_| !backend.supports(program.precision)).map_or(Ok(()), |step| {
        Err(EngineError::Unsupported {
            backend: "onednn".to_owned(),
            kernel: step.kernel.name().to_owned(),
            layer: program.layer_name(step),
            reason: format!(
                "oneDNN needs AVX-512 for {}, but only {} is available; hint: use f32",
                program.precision,
                backend.context.instruction_set()
            ),
        })
    })
}

/// Returns whether a time beats an incumbent's by more than the variation between runs. Otherwise the
/// incumbent stays, so that plans are stable.
fn is_faster(time: Duration, incumbent: Duration) -> bool {
    time.as_secs_f64() < 0.97 * incumbent.as_secs_f64()
}

/// The error for a failed preparation, with oneDNN's reason.
fn prepare_error(reason: String) -> EngineError {
    EngineError::Unsupported {
        backend: "onednn".to_owned(),
        kernel: "attributes".to_owned(),
        layer: "any".to_owned(),
        reason,
    }
}

/// A plan and the times of its steps.
struct TimedPlan {
    prepared: PreparedProgram,
    /// The accumulated time after each step of the source; shorter if the plan was abandoned.
    times: Vec<Duration>,
    /// True if the plan was abandoned because it could no longer beat the incumbent.
    abandoned: bool,
}

impl TimedPlan {
    fn is_faster(&self, incumbent: &Self) -> bool {
        !self.abandoned && is_faster(total(&self.times), total(&incumbent.times))
    }
}

fn total(times: &[Duration]) -> Duration {
    times.last().copied().unwrap_or_default()
}

/// Returns whether a plan that took `time` up to `position` loses even if the rest takes a quarter less than
/// the incumbent's.
fn is_hopeless(time: Duration, position: usize, incumbent: &[Duration]) -> bool {
    let rest = total(incumbent) - incumbent[position];
    time + rest * 3 / 4 > total(incumbent)
}

/// The options for building a plan.
#[derive(Clone, Copy)]
struct BuildOptions {
    /// True if a step may run on a reference kernel, or without AMX, if oneDNN has nothing better.
    fallbacks: bool,
    /// True if native kernels on maps are measured too, to compare layouts of maps.
    measure_maps: bool,
}
