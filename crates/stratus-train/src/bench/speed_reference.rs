//! The speed of this machine at a moment: the time of a fixed training step. The CPUs of virtual machines and
//! of laptops change theirs by tens of percent within minutes.

use super::calibrate::TrainingStep;
use super::median;
use crate::TrainError;
use crate::device::OpenDevice;
use std::time::Instant;
use stratus_forecast::calibration::design::speed_reference;
use stratus_forecast::peaks::NumberFormat;

/// Steps per measurement, which take about a tenth of a second.
const STEPS: usize = 5;

/// A fixed training step in f32, see [`speed_reference`].
pub(super) struct SpeedReference(TrainingStep);

impl SpeedReference {
    /// Plans the step and runs it once.
    ///
    /// # Errors
    /// As starting a run.
    pub fn new(device: &OpenDevice) -> Result<Self, TrainError> {
        let mut step = TrainingStep::prepare(&speed_reference()?, NumberFormat::F32, device, &mut None)?;
        let mut clock = step.clock();
        step.run(&mut clock)?;
        Ok(Self(step))
    }

    /// The median seconds of the step, now.
    ///
    /// # Errors
    /// If a kernel fails.
    pub fn measure(&mut self) -> Result<f64, TrainError> {
        let mut clock = self.0.clock();
        let mut seconds = Vec::with_capacity(STEPS);
        for _ in 0..STEPS {
            let started = Instant::now();
            self.0.run(&mut clock)?;
            seconds.push(started.elapsed().as_secs_f64());
        }
        Ok(median(&mut seconds))
    }
}
