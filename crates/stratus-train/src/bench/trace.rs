//! Compares our times per layer on a GPU with the kernel times that the vendor's tracer (CUPTI) reports.

use super::{Bench, median};
use crate::TrainError;
use serde::Serialize;
use stratus_engine::device::KernelSpan;
use stratus_engine::{Clock, EngineError};

/// A layer's steps: forward, backward, update.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerTrace {
    /// The layer.
    pub layer: String,
    /// How many kernels it ran.
    pub kernels: usize,
    /// Seconds by our marks between steps: the median over runs.
    pub marked_s: f64,
    /// Seconds of its kernels by the tracer: the median over runs.
    pub traced_s: f64,
}

/// A training step, measured by our marks and by the tracer at once.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepTrace {
    /// The network.
    pub network: String,
    /// Element type.
    pub precision: String,
    /// Samples per step.
    pub batch: usize,
    /// Library and device.
    pub library: String,
    /// Traced steps.
    pub runs: usize,
    /// Each layer, in the order of the program.
    pub layers: Vec<LayerTrace>,
    /// All layers by the marks, in seconds.
    pub marked_s: f64,
    /// All kernels by the tracer, in seconds.
    pub traced_s: f64,
}

impl Bench {
    /// Traces training steps.
    ///
    /// # Errors
    /// If there is no tracer, or a kernel fails.
    pub fn trace(&mut self, runs: usize) -> Result<StepTrace, TrainError> {
        const WARM_UP: usize = 3;
        let failed =
            |reason: String| TrainError::Engine(EngineError::Device { device: "tracing".to_owned(), reason });
        let mut clock = Clock::new(self.slots());
        let mut tracer = self.backend.trace().map_err(failed)?;
        for _ in 0..WARM_UP {
            self.step(&mut clock)?;
        }
        tracer.take().map_err(failed)?;
        let plan = self.compiled.session.plan(self.compiled.ids.train);
        let of_step: Vec<String> =
            plan.program.steps.iter().map(|step| plan.program.layer_name(step)).collect();
        let mut names: Vec<String> = Vec::new();
        for name in &of_step {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        let position = |name: &String| names.iter().position(|other| other == name).unwrap_or(0);
        let layer_of: Vec<usize> = of_step.iter().map(position).collect();
        let (network, precision) = (plan.program.network.clone(), plan.program.precision.to_string());
        let batch = plan.program.batch;
        let mut seen = vec![(0, Vec::new(), Vec::new()); names.len()];
        for _ in 0..runs.max(1) {
            self.step(&mut clock)?;
            let spans = tracer.take().map_err(failed)?;
            let marked = &clock.slots()[..layer_of.len()];
            let mut run = vec![(0, 0_u64, 0_u64); names.len()];
            for (&layer, &nanoseconds) in layer_of.iter().zip(marked) {
                run[layer].1 += nanoseconds;
            }
            for (step, span) in assign(marked, &spans) {
                let layer = &mut run[layer_of[step]];
                layer.0 += 1;
                layer.2 += span.end - span.start;
            }
            for ((kernels, by_marks, by_tracer), (of_run, marked, traced)) in seen.iter_mut().zip(run) {
                *kernels = of_run;
                by_marks.push(marked as f64 * 1e-9);
                by_tracer.push(traced as f64 * 1e-9);
            }
        }
        let layers: Vec<LayerTrace> = names
            .into_iter()
            .zip(&mut seen)
            .map(|(layer, (kernels, by_marks, by_tracer))| LayerTrace {
                layer,
                kernels: *kernels,
                marked_s: median(by_marks),
                traced_s: median(by_tracer),
            })
            .collect();
        Ok(StepTrace {
            network,
            precision,
            batch,
            library: self.backend.describe(),
            runs: runs.max(1),
            marked_s: layers.iter().map(|layer| layer.marked_s).sum(),
            traced_s: layers.iter().map(|layer| layer.traced_s).sum(),
            layers,
        })
    }
}

/// Assigns each kernel to the step in whose time its midpoint is. The two clocks have different origins: they
/// are aligned at the last mark and the end of the last kernel.
fn assign<'a>(marked: &[u64], spans: &'a [KernelSpan]) -> Vec<(usize, &'a KernelSpan)> {
    let total: u64 = marked.iter().sum();
    let Some(end) = spans.iter().map(|span| span.end).max() else { return Vec::new() };
    let mut assigned = Vec::with_capacity(spans.len());
    let (mut step, mut passed) = (0, marked.first().copied().unwrap_or(0));
    for span in spans {
        // From the last kernel's end back to the middle of this one, and so from the first mark on.
        let middle = total.saturating_sub(end - (span.start + span.end) / 2);
        while middle > passed && step + 1 < marked.len() {
            step += 1;
            passed += marked[step];
        }
        assigned.push((step, span));
    }
    assigned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_belong_to_the_step_in_whose_time_they_ran() {
        let span = |start, end| KernelSpan { start, end };
        // Steps of 100, 50 and 200; the tool's clock stands at 1000 with the first mark. The second step has
        // two kernels.
        let spans = [span(1002, 1099), span(1101, 1120), span(1121, 1148), span(1152, 1350)];
        let steps: Vec<usize> = assign(&[100, 50, 200], &spans).iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, [0, 1, 1, 2]);
        assert!(assign(&[100], &[]).is_empty());
    }
}
