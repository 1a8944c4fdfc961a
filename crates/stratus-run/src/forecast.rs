//! The forecast of a run, and what came instead: seconds of each part of the run, forecast and measured.

use serde::{Deserialize, Serialize};

use crate::summary::{Status, Summary};

/// The forecast made at the last start or resume, from kernels timed separately.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// Seconds of a training step, without waiting for data.
    pub step_s: f64,
    /// Lower end of the 80 % interval of a step.
    pub low_s: f64,
    /// Upper end of the 80 % interval of a step.
    pub high_s: f64,
    /// Seconds of all steps and validations of the run.
    pub total_s: f64,
    /// Source of the forecast: `measured`.
    pub source: String,
    /// Measured mean seconds of a step; `None` before the second step.
    pub measured_step_s: Option<f64>,
    /// Forecast minus measured step time, in percent of the measured.
    pub error_percent: Option<f64>,
    /// Seconds of a validation; `None` in runs of earlier versions, as the next one.
    #[serde(default)]
    pub validation_s: Option<f64>,
    /// Seconds of a checkpoint, from its bytes and an assumed rate of the disk.
    #[serde(default)]
    pub checkpoint_s: Option<f64>,
    /// The parts of the run so far, the total last; empty in runs of earlier versions.
    #[serde(default)]
    pub parts: Vec<PartForecast>,
}

/// A part of a run's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunPart {
    /// Training iterations, without the next part and without checkpoints.
    Iterations,
    /// Waiting for data: reading and decoding. The forecast is that nothing is waited for.
    DataWait,
    /// Validation.
    Validation,
    /// Saving checkpoints.
    Checkpoints,
    /// The sum of the other parts.
    Total,
}

impl RunPart {
    /// The name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Iterations => "iterations",
            Self::DataWait => "data wait",
            Self::Validation => "validation",
            Self::Checkpoints => "checkpoints",
            Self::Total => "total",
        }
    }
}

/// The seconds of a part of the work that is done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartForecast {
    /// The part.
    pub part: RunPart,
    /// As forecast.
    pub forecast_s: f64,
    /// As measured, over all processes of the run.
    pub measured_s: f64,
    /// Forecast minus measured, in percent of the measured; `None` if nothing was measured.
    pub error_percent: Option<f64>,
}

impl PartForecast {
    fn new(part: RunPart, [forecast_s, measured_s]: [f64; 2]) -> Self {
        let percent = 100.0 * (forecast_s / measured_s - 1.0);
        let error_percent = (measured_s > 0.0 && percent.is_finite()).then_some(percent);
        Self { part, forecast_s, measured_s, error_percent }
    }

    /// Forecast minus measured seconds.
    #[must_use]
    pub fn error_s(&self) -> f64 {
        self.forecast_s - self.measured_s
    }
}

/// The parts with their forecast and measured seconds, and the total, which is last.
#[must_use]
pub fn with_total(parts: &[(RunPart, [f64; 2])]) -> Vec<PartForecast> {
    let total = parts.iter().fold([0.0; 2], |[a, b], (_, [forecast, measured])| [a + forecast, b + measured]);
    let parts = parts.iter().copied().chain([(RunPart::Total, total)]);
    parts.map(|(part, seconds)| PartForecast::new(part, seconds)).collect()
}

/// The part that is off by the most seconds; `None` without parts, or if all are exact.
#[must_use]
pub fn largest_error(parts: &[PartForecast]) -> Option<&PartForecast> {
    let parts = parts.iter().filter(|part| part.part != RunPart::Total && part.error_s() != 0.0);
    parts.max_by(|a, b| a.error_s().abs().total_cmp(&b.error_s().abs()))
}

impl Summary {
    /// The parts of the run so far, forecast and measured, the total last; empty without a forecast. Those of
    /// runs of earlier versions follow from the step, and from the total if all epochs were trained.
    #[must_use]
    pub fn forecast_parts(&self) -> Vec<PartForecast> {
        let Some(forecast) = &self.forecast else { return Vec::new() };
        if !forecast.parts.is_empty() {
            return forecast.parts.clone();
        }
        let (iterations, time) = (forecast.step_s * self.iterations as f64, &self.time);
        let mut parts = vec![
            (RunPart::Iterations, [iterations, time.train_s]),
            (RunPart::DataWait, [0.0, time.data_wait_s]),
        ];
        if self.status == Status::Completed && self.stopped_early.is_none() {
            let validation = (forecast.total_s - iterations).max(0.0);
            parts.push((RunPart::Validation, [validation, time.validation_s]));
        }
        with_total(&parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::{StoppedEarly, TimeBreakdown};

    #[test]
    fn total_is_compared_and_the_largest_error_found() {
        let parts = with_total(&[
            (RunPart::Iterations, [90.0, 100.0]),
            (RunPart::DataWait, [0.0, 25.0]),
            (RunPart::Validation, [5.0, 0.0]),
        ]);
        let total = parts.last().unwrap();
        assert_eq!((total.part, total.forecast_s, total.measured_s), (RunPart::Total, 95.0, 125.0));
        assert_eq!(total.error_percent.map(f64::round), Some(-24.0));
        let largest = largest_error(&parts).unwrap();
        assert_eq!(
            (largest.part, largest.error_s(), largest.error_percent),
            (RunPart::DataWait, -25.0, Some(-100.0))
        );
        assert_eq!(parts[2].error_percent, None, "nothing was measured");
        assert_eq!(largest_error(&with_total(&[(RunPart::Iterations, [1.0, 1.0])])), None);
        assert_eq!(largest_error(&[]), None);
    }

    #[test]
    fn summary_of_an_earlier_version_is_read_and_compared() {
        let text = r#"{"step_s": 2.0, "low_s": 1.5, "high_s": 2.5, "total_s": 23.0, "source": "measured",
                       "measured_step_s": 2.1, "error_percent": -4.7}"#;
        let forecast: Forecast = serde_json::from_str(text).unwrap();
        assert_eq!((forecast.validation_s, forecast.parts.len()), (None, 0));
        let time = TimeBreakdown { train_s: 20.0, data_wait_s: 5.0, validation_s: 4.0, ..Default::default() };
        let mut summary = Summary { iterations: 10, time, forecast: Some(forecast), ..Default::default() };
        let total = |summary: &Summary| {
            summary.forecast_parts().last().map(|total| [total.forecast_s, total.measured_s])
        };
        assert_eq!(total(&summary), Some([20.0, 25.0]), "validations so far are unknown");
        summary.status = Status::Completed;
        assert_eq!(total(&summary), Some([23.0, 29.0]));
        // Its total has epochs that were not trained.
        summary.stopped_early = Some(StoppedEarly::default());
        assert_eq!(total(&summary), Some([20.0, 25.0]));
        summary.forecast = None;
        assert_eq!(total(&summary), None);
    }
}
