//! From steps to kernels: layouts and implementations chosen by measuring, and reorders where kernels
//! disagree.
//!
//! The feature maps of a program share one layout, channels last or channels in blocks of 16: a plan is built
//! in each, and the faster one kept. Within a plan, every convolution and fully connected layer takes its
//! fastest implementation. The forward pass decides the layout of the weights it reads; everything later
//! takes them in that layout, or pays for a reorder, whichever was faster.

mod builder;
mod choose;
mod layouts;
pub(crate) mod measure;
mod steps;

pub(crate) use builder::PlanBuilder;
pub(crate) use layouts::{LayoutNeeds, seen_as};

use crate::backend::OneDnn;
use crate::ops::on_cpu;
use measure::Bench;
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use stratus_engine::ops::KernelSpec;
use stratus_engine::{EngineError, Precision, PrepareRequest, Prepared, Program};

/// Where a plan in a later layout seems faster, and took no longer than this to measure, the first is
/// measured again.
const WORTH_A_SECOND_LOOK: Duration = Duration::from_millis(500);

/// The layouts of feature maps that are tried.
const MAP_LAYOUTS: [&str; 2] = ["nhwc", "nChw16c"];

/// Prepares a program: as the request says; where it says nothing, as measured, or in the library's own
/// order.
pub(crate) fn prepare(
    backend: &OneDnn,
    program: &Program,
    request: &PrepareRequest,
) -> Result<Prepared, EngineError> {
    refuse_precision(backend, program)?;
    let mut bench = Bench::new().map_err(unprepared)?;
    let mut build = |layout, options, incumbent: Option<&[Duration]>| {
        PlanBuilder::new(backend, program, request, &mut bench, layout, options)?.build(incumbent)
    };
    if !request.choices.layouts.is_empty() || !request.measure {
        let alone = BuildOptions { fallbacks: true, measure_maps: false };
        return Ok(build(MAP_LAYOUTS[0], alone, None)?.prepared);
    }
    let mut best: Option<(&str, TimedPlan)> = None;
    let mut refused = None;
    // A layout in which some convolution has but a reference kernel, or cannot run on AMX though it would
    // fill its tiles, is tried only where every layout is like that.
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
                    let mut kept = before;
                    if plan.is_faster(&kept) && start.elapsed() < WORTH_A_SECOND_LOOK {
                        // Layouts are measured one after the other: something else may have slowed down the
                        // first.
                        backend.timings.lock().unwrap_or_else(PoisonError::into_inner).clear();
                        kept = build(first, options, None)?;
                    }
                    best = Some(if plan.is_faster(&kept) { (layout, plan) } else { (first, kept) });
                }
                Err(EngineError::Interrupted) => return Err(EngineError::Interrupted),
                Err(error) => refused = Some(error),
            }
        }
        if best.is_some() {
            break;
        }
    }
    match (best, refused) {
        (Some((_, best)), _) => Ok(best.prepared),
        (None, Some(error)) => Err(error),
        (None, None) => Err(EngineError::Placement("no layout of feature maps was tried".to_owned())),
    }
}

/// Says which precision is missing; the library would only say that something is not implemented.
fn refuse_precision(backend: &OneDnn, program: &Program) -> Result<(), EngineError> {
    // Neither native kernels nor the library have these types.
    let unknown = matches!(program.precision, Precision::F16 | Precision::F64);
    if let Some(step) = program.steps.first().filter(|_| unknown) {
        return Err(EngineError::Unsupported {
            backend: "onednn".to_owned(),
            kernel: step.kernel.name().to_owned(),
            layer: program.layer_name(step),
            reason: format!("it computes in f32 and bf16, not in {}", program.precision),
        });
    }
    let first = program.steps.iter().find(|step| on_cpu(&step.kernel).library().is_some());
    first.filter(|_| !backend.supports(program.precision)).map_or(Ok(()), |step| {
        Err(EngineError::Unsupported {
            backend: "onednn".to_owned(),
            kernel: step.kernel.name().to_owned(),
            layer: program.layer_name(step),
            reason: format!(
                "oneDNN has kernels for {} on processors with AVX-512 alone, and may use {} here; take f32",
                program.precision,
                backend.context.instruction_set()
            ),
        })
    })
}

/// Whether a time beats an incumbent's by more than measurements differ from run to run. Otherwise the
/// incumbent stays, so that plans are stable.
fn is_faster(time: Duration, incumbent: Duration) -> bool {
    time.as_secs_f64() < 0.97 * incumbent.as_secs_f64()
}

/// Nothing can be prepared, for the library's reason.
fn unprepared(reason: String) -> EngineError {
    EngineError::Unsupported {
        backend: "onednn".to_owned(),
        kernel: "attributes".to_owned(),
        layer: "any".to_owned(),
        reason,
    }
}

/// A plan and how long its steps take.
struct TimedPlan {
    prepared: Prepared,
    /// The measured time up to each step of the source; ends early where the plan was given up.
    times: Vec<Duration>,
    /// Whether it could not win any more against an incumbent.
    given_up: bool,
}

impl TimedPlan {
    fn is_faster(&self, incumbent: &Self) -> bool {
        !self.given_up && is_faster(total(&self.times), total(&incumbent.times))
    }
}

fn total(times: &[Duration]) -> Duration {
    times.last().copied().unwrap_or_default()
}

/// Whether a plan that took `time` up to a step loses even if all that follows takes a quarter less than the
/// incumbent.
fn is_hopeless(time: Duration, position: usize, incumbent: &[Duration]) -> bool {
    let rest = total(incumbent) - incumbent[position];
    time + rest * 3 / 4 > total(incumbent)
}

/// How a plan is built.
#[derive(Clone, Copy)]
struct BuildOptions {
    /// Whether a step may run on a reference kernel, or without AMX, where the library has no better one.
    fallbacks: bool,
    /// Whether native kernels on maps are measured too: where layouts of maps are compared.
    measure_maps: bool,
}
