//! Profiles: fitted coefficients with their provenance, one TOML file each.

use crate::correction::{Correction, KernelGroup, KernelResidual};
use crate::error::{Error, Result};
use crate::file;
use crate::model::{Coefficients, Estimate, Framework, Matrix, Peaks, TERM_COUNT, Term, Terms};
use crate::work::{FEATURE_COUNT, KernelFeatures, Work};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// The version of the file format; other versions are not read.
pub const FORMAT_VERSION: u32 = 2;
/// Maximum size of a profile.
pub(crate) const MAX_FILE_BYTES: usize = 4 << 20;
/// Weight of the forecast in the correction by runs, as a number of runs.
const PRIOR_RUNS: f64 = 1.0;
/// Nominal coverage of intervals.
pub const COVERAGE: f64 = 0.8;

/// A fitted profile.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// The machine that it was fitted on; `None` if it is shared by all machines, to be combined with a data
    /// sheet.
    pub machine: Option<String>,
    /// The framework whose kernels were timed.
    pub framework: Framework,
    /// The number format.
    pub precision: String,
    /// A description of the data that it was fitted to.
    pub data: String,
    /// The command that recreates it.
    pub command: String,
    /// The result of cross-validation.
    pub validation: Validation,
    /// The coefficients.
    pub coefficients: Coefficients,
    /// Standard deviation of the log error that no coefficient explains.
    pub spread: f64,
    /// Half-width of the interval, in standard deviations.
    pub factor: f64,
    /// Corrections per kernel, if single kernels were measured.
    pub correction: Correction,
    /// Runs with their forecasts.
    pub runs: Vec<ComparedRun>,
}

/// A run, with the forecast that the profile makes without runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComparedRun {
    /// The network.
    pub network: String,
    /// Images per step.
    pub batch: u64,
    /// Forecast seconds of a step.
    pub forecast_s: f64,
    /// Measured seconds of a step.
    pub measured_s: f64,
}

/// The result of cross-validation: each network, or machine, was predicted from the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Validation {
    /// Mean absolute error in percent.
    pub mean_percent: f64,
    /// Percent of the measured steps within their interval.
    pub covered_percent: f64,
    /// Number of steps.
    pub steps: usize,
    /// Number of networks.
    pub networks: usize,
}

/// A time with its 80 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The most probable value, seconds.
    pub seconds: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Interval {
    /// An interval with a half-width of `deviations` in the logarithm.
    #[must_use]
    pub fn new(seconds: f64, deviations: f64) -> Self {
        Self { seconds, low: seconds * (-deviations).exp(), high: seconds * deviations.exp() }
    }

    /// The interval of `count` times this time, with fully correlated errors.
    #[must_use]
    pub fn times(self, count: f64) -> Self {
        Self { seconds: self.seconds * count, low: self.low * count, high: self.high * count }
    }

    /// The interval of the sum of two times, with fully correlated errors.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            seconds: self.seconds + other.seconds,
            low: self.low + other.low,
            high: self.high + other.high,
        }
    }

    /// Returns whether a time is within the interval.
    #[must_use]
    pub fn contains(&self, seconds: f64) -> bool {
        (self.low..=self.high).contains(&seconds)
    }
}

impl Profile {
    /// Estimates a step with these terms.
    #[must_use]
    pub fn estimate_step(&self, terms: &Terms) -> (Interval, Estimate) {
        let estimate = self.coefficients.estimate(terms);
        let deviation = (self.spread * self.spread + estimate.deviation * estimate.deviation).sqrt();
        (Interval::new(estimate.seconds, self.factor * deviation), estimate)
    }

    /// Estimates a step with this work: from its terms, with corrections per kernel if kernels were measured,
    /// and with the correction by runs.
    #[must_use]
    pub fn estimate_work(&self, work: &Work, peaks: &Peaks) -> (Interval, Estimate) {
        let terms = Terms::for_step(work, peaks);
        if self.correction.groups.is_empty() {
            let (step, estimate) = self.estimate_step(&terms);
            return (step.times(self.run_correction()), estimate);
        }
        let estimate = self.coefficients.estimate(&terms);
        let (mut uncorrected, mut corrected) = (0.0, 0.0);
        for kernel in &work.kernels {
            let kernel_s = self.coefficients.estimate(&Terms::for_kernel(kernel, peaks)).seconds;
            uncorrected += kernel_s;
            corrected += kernel_s * self.correction.log_factor(kernel).exp();
        }
        let seconds = (estimate.seconds + corrected - uncorrected).max(corrected) * self.run_correction();
        // The spread is that of held-out networks, so it includes the uncertainty of the coefficients.
        (Interval::new(seconds, self.factor * self.spread), Estimate { seconds, ..estimate })
    }

    /// The geometric mean of measured over forecast times of runs, with the forecast counted as one run.
    #[must_use]
    pub fn run_correction(&self) -> f64 {
        let sum: f64 = self.runs.iter().map(|run| (run.measured_s / run.forecast_s).ln()).sum();
        (sum / (self.runs.len() as f64 + PRIOR_RUNS)).exp()
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// If the file cannot be read, or as [`Self::parse`].
    pub fn read(path: &Path) -> Result<Self> {
        Self::parse(&path.display().to_string(), &file::read(path, MAX_FILE_BYTES)?)
    }

    /// Parses a profile.
    ///
    /// # Errors
    /// If the file is too large, not a profile, or has a different format version.
    pub fn parse(file: &str, text: &str) -> Result<Self> {
        let mut table = versioned(file, text)?;
        table.remove("format");
        Self::from_table(table).map_err(|problem| Error::File { file: file.to_owned(), problem })
    }

    /// Parses a table without its format version.
    pub(crate) fn from_table(table: toml::Table) -> std::result::Result<Self, String> {
        let file: ProfileFile = table.try_into().map_err(|error| error.to_string())?;
        let is_valid = |value: f64, max: f64| value.is_finite() && value > 0.0 && value <= max;
        if !is_valid(file.spread, 10.0) || !is_valid(file.factor, 100.0) {
            return Err("spread or factor is out of range".to_owned());
        }
        for run in &file.runs {
            if !is_valid(run.forecast_s, 1e6) || !is_valid(run.measured_s, 1e6) {
                return Err(format!("a run of {} has an invalid time", run.network));
            }
        }
        let groups = file.kernels.into_iter().map(|(name, kernels)| {
            let group = group(kernels).map_err(|problem| format!("kernels `{name}`: {problem}"))?;
            Ok((name, group))
        });
        let groups = groups.collect::<std::result::Result<_, String>>()?;
        Ok(Self {
            machine: file.machine,
            framework: file.framework,
            precision: file.precision,
            data: file.data,
            command: file.command,
            validation: file.validation,
            coefficients: coefficients(&file.coefficients, &file.covariance)?,
            spread: file.spread,
            factor: file.factor,
            correction: Correction { groups },
            runs: file.runs,
        })
    }

    /// The text of the file.
    #[must_use]
    pub fn to_toml(&self) -> String {
        format!("format = {FORMAT_VERSION}\n{}", self.body(""))
    }

    /// The text without the format version, with tables nested in another one: `profile.`.
    pub(crate) fn body(&self, within: &str) -> String {
        let mut text = String::new();
        let mut line = |line: String| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{line}");
        };
        if let Some(machine) = &self.machine {
            line(format!("machine = {machine:?}"));
        }
        line(format!("framework = {:?}", self.framework.name()));
        line(format!("precision = {:?}", self.precision));
        line(format!("data = {:?}", self.data));
        line(format!("command = {:?}", self.command));
        line(format!("spread = {}", number(self.spread)));
        line(format!("factor = {}", number(self.factor)));
        let Validation { mean_percent, covered_percent, steps, networks } = self.validation;
        line(format!("\n[{within}validation]"));
        line(format!("mean_percent = {mean_percent:.2}\ncovered_percent = {covered_percent:.1}"));
        line(format!("steps = {steps}\nnetworks = {networks}"));
        line(format!("\n# Factors on the times at the machine's peak rates.\n[{within}coefficients]"));
        for term in Term::ALL {
            line(format!("{} = {}", term.name(), number(self.coefficients.log[term as usize].exp())));
        }
        line(format!("\n# The covariance of their logarithms: the lower triangle.\n[{within}covariance]"));
        for term in Term::ALL {
            let row = &self.coefficients.covariance[term as usize][..=term as usize];
            let rows: Vec<String> = row
                .chunks(8)
                .map(|part| part.iter().map(|&entry| number(entry)).collect::<Vec<_>>().join(", "))
                .collect();
            line(format!("{} = [\n    {},\n]", term.name(), rows.join(",\n    ")));
        }
        for (name, group) in &self.correction.groups {
            line(format!("\n[{within}kernels.{name:?}]\nreach = {}", number(group.reach)));
            line(format!(
                "noise = {}\n# Size features, and log(measured time / time of the terms).\nrows = [",
                number(group.noise)
            ));
            for row in &group.rows {
                let numbers: Vec<String> =
                    row.features.iter().chain([&row.residual]).map(|number| format!("{number:.3}")).collect();
                line(format!("    [{}],", numbers.join(", ")));
            }
            line("]".to_owned());
        }
        for ComparedRun { network, batch, forecast_s, measured_s } in &self.runs {
            line(format!("\n[[{within}runs]]\nnetwork = {network:?}\nbatch = {batch}"));
            line(format!("forecast_s = {}\nmeasured_s = {}", number(*forecast_s), number(*measured_s)));
        }
        text
    }
}

/// Parses the table of a file, and checks its format version.
pub(crate) fn versioned(file: &str, text: &str) -> Result<toml::Table> {
    let problem = |problem: String| Error::File { file: file.to_owned(), problem };
    if text.len() > MAX_FILE_BYTES {
        return Err(problem(format!("it has {} bytes; the limit is {MAX_FILE_BYTES}", text.len())));
    }
    let version: Version = toml::from_str(text).map_err(|error| problem(error.to_string()))?;
    if version.format != FORMAT_VERSION {
        return Err(Error::ProfileFormat {
            file: file.to_owned(),
            found: version.format,
            known: FORMAT_VERSION,
        });
    }
    toml::from_str(text).map_err(|error| problem(error.to_string()))
}

fn group(written: KernelGroupFile) -> std::result::Result<KernelGroup, String> {
    let KernelGroupFile { reach, noise, rows } = written;
    if !(reach > 0.01 && reach < 100.0 && noise > 0.001 && noise < 10.0) {
        return Err("reach or noise is out of range".to_owned());
    }
    if rows.is_empty() || rows.len() > crate::correction::MAX_GROUP_ROWS {
        return Err(format!(
            "it has {} rows; expected 1 to {}",
            rows.len(),
            crate::correction::MAX_GROUP_ROWS
        ));
    }
    if !rows.iter().flatten().all(|number| number.abs() < 100.0) {
        return Err("a number of a row is out of range".to_owned());
    }
    let row = |numbers: &[f64; FEATURE_COUNT + 1]| {
        let sizes: KernelFeatures = std::array::from_fn(|at| numbers[at]);
        KernelResidual { features: sizes, residual: numbers[FEATURE_COUNT] }
    };
    let rows = rows.iter().map(row).collect();
    KernelGroup::new(reach, noise, rows).ok_or_else(|| "its rows are numerically singular".to_owned())
}

/// Formats a number with four significant digits.
fn number(value: f64) -> String {
    format!("{value:.3e}")
}

fn coefficients(
    written: &BTreeMap<String, f64>,
    covariance: &BTreeMap<String, Vec<f64>>,
) -> std::result::Result<Coefficients, String> {
    let mut read = Coefficients {
        log: [0.0; TERM_COUNT],
        covariance: Box::new([[0.0; TERM_COUNT]; TERM_COUNT]) as Box<Matrix>,
    };
    if written.len() != TERM_COUNT || covariance.len() != TERM_COUNT {
        return Err(format!("it has {} coefficients; expected {TERM_COUNT}", written.len()));
    }
    for term in Term::ALL {
        let (name, at) = (term.name(), term as usize);
        let coefficient = written.get(name).ok_or_else(|| format!("missing coefficient `{name}`"))?;
        if !(*coefficient > 0.0 && *coefficient < 1e9) {
            return Err(format!("coefficient `{name}` must be above 0 and below 1e9, but is {coefficient}"));
        }
        read.log[at] = coefficient.ln();
        let row = covariance.get(name).ok_or_else(|| format!("missing covariance `{name}`"))?;
        if row.len() != at + 1 || !row.iter().all(|entry| entry.abs() < 1e3) {
            return Err(format!("invalid covariance `{name}`: {} entries, expected {}", row.len(), at + 1));
        }
        for (column, entry) in row.iter().enumerate() {
            read.covariance[at][column] = *entry;
            read.covariance[column][at] = *entry;
        }
    }
    Ok(read)
}

#[derive(Deserialize)]
struct Version {
    format: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileFile {
    machine: Option<String>,
    framework: Framework,
    precision: String,
    data: String,
    command: String,
    spread: f64,
    factor: f64,
    validation: Validation,
    coefficients: BTreeMap<String, f64>,
    covariance: BTreeMap<String, Vec<f64>>,
    #[serde(default)]
    kernels: BTreeMap<String, KernelGroupFile>,
    #[serde(default)]
    runs: Vec<ComparedRun>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KernelGroupFile {
    reach: f64,
    noise: f64,
    rows: Vec<[f64; FEATURE_COUNT + 1]>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fit::{Prior, fit};
    use crate::work::{Kernel, KernelKind};

    fn profile() -> Profile {
        let prior = Prior { log: std::array::from_fn(|at| at as f64 * 0.1), deviation: [0.5; TERM_COUNT] };
        Profile {
            machine: Some("v100-16gb".to_owned()),
            framework: Framework::Tensorflow,
            precision: "f32".to_owned(),
            data: "a \"table\"".to_owned(),
            command: "stratus forecast fit".to_owned(),
            validation: Validation { mean_percent: 5.0, covered_percent: 80.0, steps: 2, networks: 1 },
            coefficients: fit(&[], &prior, 0.1),
            spread: 0.05,
            factor: 1.5,
            correction: Correction::learn(&[("relu elementwise".to_owned(), row(0.25))]),
            runs: vec![run(0.5, 0.75), run(0.25, 0.5)],
        }
    }

    fn row(residual: f64) -> KernelResidual {
        KernelResidual { features: [1.5; FEATURE_COUNT], residual }
    }

    fn run(forecast_s: f64, measured_s: f64) -> ComparedRun {
        ComparedRun { network: "a".to_owned(), batch: 4, forecast_s, measured_s }
    }

    #[test]
    fn profile_survives_a_round_trip() {
        let written = profile();
        let read = Profile::parse("p.toml", &written.to_toml()).unwrap();
        assert_eq!(
            (&read.machine, &read.data, read.validation),
            (&written.machine, &written.data, written.validation)
        );
        for (read, written) in read.coefficients.log.iter().zip(&written.coefficients.log) {
            assert!((read - written).abs() < 1e-3);
        }
        assert_eq!(Profile::parse("p.toml", &read.to_toml()).unwrap(), read);
    }

    #[test]
    fn refuses_invalid_profiles() {
        let text = profile().to_toml();
        let refused = |from: &str, to: &str| {
            let text = text.replacen(from, to, 1);
            Profile::parse("p.toml", &text).unwrap_err().to_string()
        };
        let error = refused("format = 2", "format = 3");
        assert_eq!(error, "p.toml: unsupported profile format 3; expected format 2");
        assert!(refused("reach = ", "reach = -").contains("kernels `relu elementwise`: reach or noise"));
        assert!(refused("0.250],", "nan],").contains("a number of a row is out of range"));
        assert!(refused("measured_s = 7", "measured_s = -7").contains("a run of a has an invalid time"));
        assert!(refused("launch = 1.", "launch = -1.").contains("must be above 0"));
        assert!(refused("norm_bytes", "form_bytes").contains("missing coefficient `norm_bytes`"));
        assert!(refused("factor = 1.500e0", "factor = nan").contains("out of range"));
        assert!(refused("spread", "spraed").contains("unknown field"));
    }

    /// Two runs took 1.5 times and twice the forecast, which counts as one run.
    #[test]
    fn runs_correct_the_forecast() {
        let expected = (1.5_f64 * 2.0).powf(1.0 / 3.0);
        assert!((profile().run_correction() - expected).abs() < 1e-12);
        assert_eq!(Profile { runs: Vec::new(), ..profile() }.run_correction(), 1.0);
    }

    /// The forecast of a measured kernel is its measurement.
    #[test]
    fn measured_kernels_are_corrected() {
        let kernel = Kernel {
            layer: String::new(),
            name: "relu".to_owned(),
            kind: KernelKind::Elementwise,
            flops: 0.0,
            bytes: 1e9,
            product: None,
            launches: 1.0,
            features: [1.5; FEATURE_COUNT],
        };
        let work = Work { kernels: vec![kernel] };
        let peaks = Peaks { arithmetic: 1e12, bandwidth: 1e10, clock: 1e9 };
        let with = |residual: f64| {
            let rows: Vec<_> = (0..50).map(|_| ("relu elementwise".to_owned(), row(residual))).collect();
            let correction = Correction::learn(&rows);
            Profile { correction, runs: Vec::new(), ..profile() }.estimate_work(&work, &peaks).0
        };
        let ratio = with(0.5).seconds / with(0.0).seconds;
        assert!((ratio.ln() - 0.5).abs() < 0.02, "{ratio}");
        assert!((with(0.5).high / with(0.5).seconds - (1.5_f64 * 0.05).exp()).abs() < 1e-9);
    }

    #[test]
    fn intervals_add_up() {
        let step = Interval::new(2.0, 0.5_f64.ln().abs());
        assert!((step.low - 1.0).abs() < 1e-12 && (step.high - 4.0).abs() < 1e-12);
        let total = step.times(10.0).plus(step);
        assert!(total.contains(22.0) && (total.low - 11.0).abs() < 1e-12);
    }
}
