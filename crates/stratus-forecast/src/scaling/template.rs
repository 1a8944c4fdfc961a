//! The actions of a worker's step, without times.

use super::{DeviceStep, StepAction};
use std::collections::BTreeMap;

/// The minimum fraction of the measured time whose layers must be those of the step.
const MIN_KNOWN_SHARE: f64 = 0.5;

/// A part of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TemplateAction {
    /// The kernel at a position of [`StepTemplate::kernels`].
    Kernel(usize),
    /// As [`StepAction::Start`].
    Start {
        /// The bucket.
        bucket: usize,
        /// Bytes of its gradients.
        bytes: f64,
    },
    /// As [`StepAction::Wait`].
    Wait {
        /// The bucket.
        bucket: usize,
    },
}

/// A kernel of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateKernel {
    /// The layers that it computes.
    pub layer: String,
    /// Its phase: `forward`, `backward_data`, ….
    pub phase: &'static str,
    /// Its estimated cost, relative to that of the other kernels of its layer and phase.
    pub weight: f64,
}

/// The step of one of several workers, without times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTemplate {
    /// The actions, in order.
    pub actions: Vec<TemplateAction>,
    /// The kernels, in order.
    pub kernels: Vec<TemplateKernel>,
    /// Images of a worker.
    pub batch: u64,
    /// Bytes of device memory.
    pub device_bytes: u64,
}

impl StepTemplate {
    /// The step whose kernels take `seconds`, in order.
    #[must_use]
    pub fn with_seconds(&self, seconds: &[f64]) -> DeviceStep {
        let actions = self.actions.iter().map(|action| match *action {
            TemplateAction::Kernel(at) => {
                StepAction::Compute { seconds: seconds.get(at).copied().unwrap_or(0.0) }
            }
            TemplateAction::Start { bucket, bytes } => StepAction::Start { bucket, bytes },
            TemplateAction::Wait { bucket } => StepAction::Wait { bucket },
        });
        DeviceStep { actions: actions.collect(), batch: self.batch, device_bytes: self.device_bytes }
    }

    /// The step with times that were measured by layer and phase. The time of layers that this step lacks,
    /// such as those that are fused in another way, is spread over the others. `None` if that is most of the
    /// time.
    #[must_use]
    pub fn with_layer_times(&self, times: &BTreeMap<(String, &'static str), f64>) -> Option<DeviceStep> {
        let mut weights: BTreeMap<(&str, &str), f64> = BTreeMap::new();
        for kernel in &self.kernels {
            *weights.entry((&kernel.layer, kernel.phase)).or_default() += kernel.weight;
        }
        let known = times.iter().filter(|((layer, phase), _)| {
            weights.get(&(layer.as_str(), *phase)).is_some_and(|weight| *weight > 0.0)
        });
        let known: BTreeMap<(&str, &str), f64> =
            known.map(|((layer, phase), seconds)| ((layer.as_str(), *phase), *seconds)).collect();
        let (total, found) = (times.values().sum::<f64>(), known.values().sum::<f64>());
        if found <= 0.0 || found < MIN_KNOWN_SHARE * total {
            return None;
        }
        let seconds = self.kernels.iter().map(|kernel| {
            let key = (kernel.layer.as_str(), kernel.phase);
            let of_layer = known.get(&key).copied().unwrap_or(0.0) * total / found;
            of_layer * kernel.weight / weights[&key].max(f64::MIN_POSITIVE)
        });
        Some(self.with_seconds(&seconds.collect::<Vec<_>>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> StepTemplate {
        let kernel = |layer: &str, phase, weight| TemplateKernel { layer: layer.to_owned(), phase, weight };
        StepTemplate {
            actions: vec![
                TemplateAction::Kernel(0),
                TemplateAction::Kernel(1),
                TemplateAction::Start { bucket: 0, bytes: 8.0 },
                TemplateAction::Kernel(2),
                TemplateAction::Wait { bucket: 0 },
            ],
            kernels: vec![
                kernel("conv", "forward", 1.0),
                kernel("conv", "backward_weights", 1.0),
                kernel("conv", "backward_weights", 3.0),
            ],
            batch: 4,
            device_bytes: 9,
        }
    }

    fn seconds(step: &DeviceStep) -> Vec<f64> {
        let seconds = step.actions.iter().filter_map(|action| match action {
            StepAction::Compute { seconds } => Some(*seconds),
            _ => None,
        });
        seconds.collect()
    }

    #[test]
    fn measured_times_of_layers_are_divided_among_their_kernels() {
        let times = BTreeMap::from([
            (("conv".to_owned(), "forward"), 2.0),
            (("conv".to_owned(), "backward_weights"), 8.0),
        ]);
        let step = template().with_layer_times(&times).unwrap();
        assert_eq!(seconds(&step), [2.0, 2.0, 6.0]);
        assert_eq!((step.compute_seconds(), step.batch, step.device_bytes), (10.0, 4, 9));
        // The total stays the same if a layer is unknown.
        let more = BTreeMap::from([(("fused".to_owned(), "forward"), 5.0)]).into_iter().chain(times.clone());
        let step = template().with_layer_times(&more.collect()).unwrap();
        assert!((step.compute_seconds() - 15.0).abs() < 1e-12);
        // Most layers are unknown, or nothing was measured.
        let other = BTreeMap::from([(("other".to_owned(), "forward"), 11.0)]).into_iter().chain(times);
        assert_eq!(template().with_layer_times(&other.collect()), None);
        assert_eq!(template().with_layer_times(&BTreeMap::new()), None);
    }
}
