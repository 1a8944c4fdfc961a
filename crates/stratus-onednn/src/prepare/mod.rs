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
mod needs;
mod steps;
mod timed_plan;

pub(crate) use builder::{CpuOp, OneDnnUse, PlanBuilder};
pub(crate) use layouts::reshape_layout;
pub(crate) use needs::LayoutNeeds;

use crate::onednn::OneDnn;
use builder::OpLookup;
use measure::Bench;
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use stratus_engine::ops::KernelSpec;
use stratus_engine::{EngineError, Precision, PrepareRequest, PreparedProgram, Program};
use timed_plan::{BuildOptions, TimedPlan, prepare_error};

/// If a plan in a later layout seems faster, and took at most this time to measure, the first is measured
/// again.
const MAX_REMEASURE_TIME: Duration = Duration::from_millis(500);

/// The candidate layouts of feature maps.
const MAP_LAYOUTS: [&str; 2] = ["nhwc", "nChw16c"];

/// Prepares a program with the choices of the request, else with the fastest measured, or in oneDNN's own
/// order. `ops` finds the operation of each kernel.
pub(crate) fn prepare(
    backend: &OneDnn,
    ops: OpLookup,
    program: &Program,
    request: &PrepareRequest,
) -> Result<PreparedProgram, EngineError> {
    check_precision(backend, ops, program)?;
    let mut bench = Bench::new(program).map_err(prepare_error)?;
    let mut build = |layout, options, incumbent: Option<&[Duration]>| {
        PlanBuilder::new(backend, ops, program, request, &mut bench, options)?.build(layout, incumbent)
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
fn check_precision(backend: &OneDnn, ops: OpLookup, program: &Program) -> Result<(), EngineError> {
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
    let first = program.steps.iter().find(|step| ops(&step.kernel).onednn_use().is_some());
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
