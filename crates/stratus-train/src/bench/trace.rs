//! Compares the measured times per layer on a GPU with the kernel times that the vendor's tracer (CUPTI)
//! reports.

use super::{Bench, median};
use crate::TrainError;
use serde::Serialize;
use stratus_engine::device::KernelSpan;
use stratus_engine::{Clock, EngineError};

/// The times of a layer's steps: forward, backward, update.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerTrace {
    /// The layer.
    pub layer: String,
    /// The number of kernels that it ran.
    pub kernels: usize,
    /// Seconds by the marks between steps: the median over runs.
    pub marked_s: f64,
    /// Seconds of its kernels by the tracer: the median over runs.
    pub traced_s: f64,
    /// Seconds of its kernels by the tracer, including the pause after each until the next kernel starts,
    /// which the marks should match.
    pub elapsed_s: f64,
}

/// A training step, measured by marks and tracer at the same time.
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
    /// Number of traced steps.
    pub runs: usize,
    /// The layers, in the order of the program.
    pub layers: Vec<LayerTrace>,
    /// Total seconds by the marks.
    pub marked_s: f64,
    /// Total seconds of kernels by the tracer.
    pub traced_s: f64,
    /// Total seconds by the tracer, including pauses.
    pub elapsed_s: f64,
}

impl Bench {
    /// Traces training steps.
    ///
    /// # Errors
    /// If no tracer is available, or a kernel fails.
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
        let step_layers: Vec<String> =
            plan.program.steps.iter().map(|step| plan.program.layer_name(step)).collect();
        let mut names: Vec<String> = Vec::new();
        for name in &step_layers {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        let position = |name: &String| names.iter().position(|other| other == name).unwrap_or(0);
        let layer_of: Vec<usize> = step_layers.iter().map(position).collect();
        let (network, precision) = (plan.program.network.clone(), plan.program.precision.to_string());
        let batch = plan.program.batch;
        let mut samples = vec![LayerSamples::default(); names.len()];
        for _ in 0..runs.max(1) {
            self.step(&mut clock)?;
            let spans = tracer.take().map_err(failed)?;
            let marked = &clock.slots()[..layer_of.len()];
            let run = sum_by_layer(marked, &spans, &layer_of, names.len());
            for (sample, (kernels, nanoseconds)) in samples.iter_mut().zip(run) {
                sample.kernels = kernels;
                for (seconds, nanoseconds) in sample.seconds.iter_mut().zip(nanoseconds) {
                    seconds.push(nanoseconds as f64 * 1e-9);
                }
            }
        }
        let layers: Vec<LayerTrace> = names
            .into_iter()
            .zip(samples)
            .map(|(layer, LayerSamples { kernels, mut seconds })| {
                let [marked_s, traced_s, elapsed_s] = seconds.each_mut().map(|runs| median(runs));
                LayerTrace { layer, kernels, marked_s, traced_s, elapsed_s }
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
            elapsed_s: layers.iter().map(|layer| layer.elapsed_s).sum(),
            layers,
        })
    }
}

/// The samples of a layer over all runs.
#[derive(Clone, Default)]
struct LayerSamples {
    kernels: usize,
    /// The seconds of each run by the marks, by the tracer, and by the tracer with pauses.
    seconds: [Vec<f64>; 3],
}

/// The number of kernels of each layer, and its nanoseconds by the marks, by the tracer, and by the tracer
/// with pauses. `layer_of` is the layer of each step.
fn sum_by_layer(
    marked: &[u64],
    spans: &[KernelSpan],
    layer_of: &[usize],
    layers: usize,
) -> Vec<(usize, [u64; 3])> {
    let mut sums = vec![(0, [0; 3]); layers];
    for (&layer, &nanoseconds) in layer_of.iter().zip(marked) {
        sums[layer].1[0] += nanoseconds;
    }
    let assigned = assign(marked, spans);
    for (position, (step, span)) in assigned.iter().enumerate() {
        let (kernels, [_, traced, elapsed]) = &mut sums[layer_of[*step]];
        let until = assigned.get(position + 1).map_or(span.end, |(_, next)| next.start);
        *kernels += 1;
        *traced += span.end - span.start;
        *elapsed += until.saturating_sub(span.start);
    }
    sums
}

/// Assigns each kernel to the step whose time contains its midpoint. The two clocks have different origins;
/// they are aligned at the last mark and the end of the last kernel.
fn assign<'a>(marked: &[u64], spans: &'a [KernelSpan]) -> Vec<(usize, &'a KernelSpan)> {
    let total: u64 = marked.iter().sum();
    let Some(end) = spans.iter().map(|span| span.end).max() else { return Vec::new() };
    let mut assigned = Vec::with_capacity(spans.len());
    let (mut step, mut passed) = (0, marked.first().copied().unwrap_or(0));
    for span in spans {
        // The time from the first mark to the middle of this kernel, by its distance from the last kernel's
        // end.
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
    fn assigns_kernels_to_the_steps_that_ran_them() {
        let span = |start, end| KernelSpan { start, end };
        // Steps of 100, 50 and 200; the tracer's clock is 1000 at the first mark. The second step has two
        // kernels.
        let spans = [span(1002, 1099), span(1101, 1120), span(1121, 1148), span(1152, 1350)];
        let steps: Vec<usize> = assign(&[100, 50, 200], &spans).iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, [0, 1, 1, 2]);
        assert!(assign(&[100], &[]).is_empty());
        // The first and the last step belong to one layer. Pauses of 2, 1 and 4 follow the first three
        // kernels.
        let sums = sum_by_layer(&[100, 50, 200], &spans, &[0, 1, 0], 2);
        assert_eq!(sums, [(2, [300, 97 + 198, 99 + 198]), (2, [50, 19 + 27, 20 + 31])]);
    }
}
