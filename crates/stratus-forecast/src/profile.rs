//! Profiles: fitted coefficients with what they were fitted to, as one TOML file each.

use crate::correction::{Correction, Group, Row};
use crate::error::{Error, Result};
use crate::model::{COUNT, Coefficients, Estimate, Framework, Matrix, Peaks, Term, Terms};
use crate::work::{SIZES, Sizes, Work};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The format that is written, and the only one that is read.
pub const FORMAT: u32 = 2;
/// The most bytes of a profile.
pub const LONGEST: usize = 4 << 20;
/// How many runs the forecast counts for, against runs that were compared with it.
const PRIOR_RUNS: f64 = 1.0;
/// How much of what is measured an interval should cover.
pub const COVERED: f64 = 0.8;

/// A fitted profile.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// The machine that it was fitted on; none for one of all machines, which a data sheet completes.
    pub machine: Option<String>,
    /// Whose kernels were timed.
    pub framework: Framework,
    /// What was computed in.
    pub precision: String,
    /// What it was fitted to.
    pub data: String,
    /// How it is made again.
    pub command: String,
    /// What cross-validation said.
    pub validation: Validation,
    /// The coefficients.
    pub coefficients: Coefficients,
    /// The error of a logarithm that no coefficient explains.
    pub spread: f64,
    /// Half the interval's width in deviations.
    pub factor: f64,
    /// Of each kernel, where single kernels were measured.
    pub correction: Correction,
    /// Runs that it was compared with.
    pub runs: Vec<ComparedRun>,
}

/// A run, and what the profile without its runs had forecast.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComparedRun {
    /// The network.
    pub network: String,
    /// Images of a step.
    pub batch: u64,
    /// Seconds of a step as forecast.
    pub forecast_s: f64,
    /// Seconds of a step as measured.
    pub measured_s: f64,
}

/// What cross-validation said of a profile: each network, or machine, was predicted from the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Validation {
    /// Mean absolute error in percent.
    pub mean_percent: f64,
    /// How many of the measured steps lay within their interval, in percent.
    pub covered_percent: f64,
    /// Steps.
    pub steps: usize,
    /// Networks.
    pub networks: usize,
}

/// A time with the interval that holds it four times of five.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The most probable, seconds.
    pub seconds: f64,
    /// The interval's lower end.
    pub low: f64,
    /// The interval's upper end.
    pub high: f64,
}

impl Interval {
    /// An interval of `factor` deviations of the logarithm to each side.
    #[must_use]
    pub fn new(seconds: f64, deviations: f64) -> Self {
        Self { seconds, low: seconds * (-deviations).exp(), high: seconds * deviations.exp() }
    }

    /// The same for `count` of them, one after the other: their errors are alike.
    #[must_use]
    pub fn times(self, count: f64) -> Self {
        Self { seconds: self.seconds * count, low: self.low * count, high: self.high * count }
    }

    /// Of this and then the other.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            seconds: self.seconds + other.seconds,
            low: self.low + other.low,
            high: self.high + other.high,
        }
    }

    /// Whether it holds a time.
    #[must_use]
    pub fn holds(&self, seconds: f64) -> bool {
        (self.low..=self.high).contains(&seconds)
    }
}

impl Profile {
    /// What a step of these terms takes.
    #[must_use]
    pub fn step(&self, terms: &Terms) -> (Interval, Estimate) {
        let estimate = self.coefficients.estimate(terms);
        let deviation = (self.spread * self.spread + estimate.deviation * estimate.deviation).sqrt();
        (Interval::new(estimate.seconds, self.factor * deviation), estimate)
    }

    /// What a step of this work takes: by its terms, where kernels were measured each with its correction,
    /// and times what runs took longer.
    #[must_use]
    pub fn work(&self, work: &Work, peaks: &Peaks) -> (Interval, Estimate) {
        let terms = Terms::of(work, peaks);
        if self.correction.groups.is_empty() {
            let (step, estimate) = self.step(&terms);
            return (step.times(self.of_runs()), estimate);
        }
        let estimate = self.coefficients.estimate(&terms);
        let (mut plain, mut corrected) = (0.0, 0.0);
        for kernel in &work.kernels {
            let of_terms = self.coefficients.estimate(&Terms::of_kernel(kernel, peaks)).seconds;
            plain += of_terms;
            corrected += of_terms * self.correction.of(kernel).exp();
        }
        let seconds = (estimate.seconds + corrected - plain).max(corrected) * self.of_runs();
        // What is uncertain of the coefficients is in the spread, which is that of networks left out.
        (Interval::new(seconds, self.factor * self.spread), Estimate { seconds, ..estimate })
    }

    /// By how much runs took longer than was forecast: the mean of the logarithms, the forecast itself being
    /// one of them.
    #[must_use]
    pub fn of_runs(&self) -> f64 {
        let sum: f64 = self.runs.iter().map(|run| (run.measured_s / run.forecast_s).ln()).sum();
        (sum / (self.runs.len() as f64 + PRIOR_RUNS)).exp()
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// Where it is too long, no profile, or one of another format.
    pub fn parse(file: &str, text: &str) -> Result<Self> {
        let mut table = versioned(file, text)?;
        table.remove("format");
        Self::of_table(table).map_err(|problem| Error::File { file: file.to_owned(), problem })
    }

    /// Of a table without its format.
    pub(crate) fn of_table(table: toml::Table) -> std::result::Result<Self, String> {
        let written: Written = table.try_into().map_err(|error| error.to_string())?;
        let is_of = |value: f64, most: f64| value.is_finite() && value > 0.0 && value <= most;
        if !is_of(written.spread, 10.0) || !is_of(written.factor, 100.0) {
            return Err("spread or factor is out of range".to_owned());
        }
        for run in &written.runs {
            if !is_of(run.forecast_s, 1e6) || !is_of(run.measured_s, 1e6) {
                return Err(format!("a run of {} has no time", run.network));
            }
        }
        let groups = written.kernels.into_iter().map(|(name, kernels)| {
            let group = group(kernels).map_err(|problem| format!("kernels `{name}`: {problem}"))?;
            Ok((name, group))
        });
        let groups = groups.collect::<std::result::Result<_, String>>()?;
        Ok(Self {
            machine: written.machine,
            framework: written.framework,
            precision: written.precision,
            data: written.data,
            command: written.command,
            validation: written.validation,
            coefficients: coefficients(&written.coefficients, &written.covariance)?,
            spread: written.spread,
            factor: written.factor,
            correction: Correction { groups },
            runs: written.runs,
        })
    }

    /// The file's content.
    #[must_use]
    pub fn to_toml(&self) -> String {
        format!("format = {FORMAT}\n{}", self.body(""))
    }

    /// The same without the format, its tables within another: `profile.`.
    pub(crate) fn body(&self, within: &str) -> String {
        let mut text = String::new();
        let mut line = |line: String| {
            // Writing into a String cannot fail.
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
        line(format!("\n# Times what a machine's peaks would take.\n[{within}coefficients]"));
        for term in Term::ALL {
            line(format!("{} = {}", term.name(), number(self.coefficients.log[term as usize].exp())));
        }
        line(format!("\n# Of their logarithms: each with those before it and itself.\n[{within}covariance]"));
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
                "noise = {}\n# Sizes, and the logarithm of time over terms.\nrows = [",
                number(group.noise)
            ));
            for row in &group.rows {
                let numbers: Vec<String> =
                    row.sizes.iter().chain([&row.residual]).map(|number| format!("{number:.3}")).collect();
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

/// The table of a file of this format.
pub(crate) fn versioned(file: &str, text: &str) -> Result<toml::Table> {
    let problem = |problem: String| Error::File { file: file.to_owned(), problem };
    if text.len() > LONGEST {
        return Err(problem(format!("it has {} bytes, a profile has at most {LONGEST}", text.len())));
    }
    let version: Version = toml::from_str(text).map_err(|error| problem(error.to_string()))?;
    if version.format != FORMAT {
        return Err(Error::ProfileFormat { file: file.to_owned(), found: version.format, known: FORMAT });
    }
    toml::from_str(text).map_err(|error| problem(error.to_string()))
}

fn group(written: Kernels) -> std::result::Result<Group, String> {
    let Kernels { reach, noise, rows } = written;
    if !(reach > 0.01 && reach < 100.0 && noise > 0.001 && noise < 10.0) {
        return Err("reach or noise is out of range".to_owned());
    }
    if rows.is_empty() || rows.len() > crate::correction::MOST {
        return Err(format!("it has {} rows, 1 to {} can be", rows.len(), crate::correction::MOST));
    }
    if !rows.iter().flatten().all(|number| number.abs() < 100.0) {
        return Err("a number of a row is out of range".to_owned());
    }
    let row = |numbers: &[f64; SIZES + 1]| {
        let sizes: Sizes = std::array::from_fn(|at| numbers[at]);
        Row { sizes, residual: numbers[SIZES] }
    };
    let rows = rows.iter().map(row).collect();
    Group::new(reach, noise, rows).ok_or_else(|| "its rows cannot be solved for".to_owned())
}

/// Four digits.
fn number(value: f64) -> String {
    format!("{value:.3e}")
}

fn coefficients(
    written: &BTreeMap<String, f64>,
    covariance: &BTreeMap<String, Vec<f64>>,
) -> std::result::Result<Coefficients, String> {
    let mut read =
        Coefficients { log: [0.0; COUNT], covariance: Box::new([[0.0; COUNT]; COUNT]) as Box<Matrix> };
    if written.len() != COUNT || covariance.len() != COUNT {
        return Err(format!("it has {} coefficients, a profile has {COUNT}", written.len()));
    }
    for term in Term::ALL {
        let (name, at) = (term.name(), term as usize);
        let coefficient = written.get(name).ok_or_else(|| format!("there is no coefficient `{name}`"))?;
        if !(*coefficient > 0.0 && *coefficient < 1e9) {
            return Err(format!("coefficient `{name}` is {coefficient}; it is above 0 and below 1e9"));
        }
        read.log[at] = coefficient.ln();
        let row = covariance.get(name).ok_or_else(|| format!("there is no covariance `{name}`"))?;
        if row.len() != at + 1 || !row.iter().all(|entry| entry.abs() < 1e3) {
            return Err(format!("covariance `{name}` has {} entries, it has {}", row.len(), at + 1));
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
struct Written {
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
    kernels: BTreeMap<String, Kernels>,
    #[serde(default)]
    runs: Vec<ComparedRun>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kernels {
    reach: f64,
    noise: f64,
    rows: Vec<[f64; SIZES + 1]>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fit::{Prior, fit};
    use crate::work::{Kernel, Kind};

    fn profile() -> Profile {
        let prior = Prior { log: std::array::from_fn(|at| at as f64 * 0.1), deviation: [0.5; COUNT] };
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

    fn row(residual: f64) -> Row {
        Row { sizes: [1.5; SIZES], residual }
    }

    fn run(forecast_s: f64, measured_s: f64) -> ComparedRun {
        ComparedRun { network: "a".to_owned(), batch: 4, forecast_s, measured_s }
    }

    #[test]
    fn a_profile_comes_back() {
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
    fn what_is_no_profile_is_refused() {
        let text = profile().to_toml();
        let refused = |from: &str, to: &str| {
            let text = text.replacen(from, to, 1);
            Profile::parse("p.toml", &text).unwrap_err().to_string()
        };
        let error = refused("format = 2", "format = 3");
        assert_eq!(error, "p.toml: the profile has format 3, this version reads format 2");
        assert!(refused("reach = ", "reach = -").contains("kernels `relu elementwise`: reach or noise"));
        assert!(refused("0.250],", "nan],").contains("a number of a row is out of range"));
        assert!(refused("measured_s = 7", "measured_s = -7").contains("a run of a has no time"));
        assert!(refused("launch = 1.", "launch = -1.").contains("it is above 0"));
        assert!(refused("norm_bytes", "form_bytes").contains("there is no coefficient `norm_bytes`"));
        assert!(refused("factor = 1.500e0", "factor = nan").contains("out of range"));
        assert!(refused("spread", "spraed").contains("unknown field"));
    }

    /// Two runs took 1.5 times and twice as long; the forecast counts for one.
    #[test]
    fn runs_move_the_forecast() {
        let expected = (1.5_f64 * 2.0).powf(1.0 / 3.0);
        assert!((profile().of_runs() - expected).abs() < 1e-12);
        assert_eq!(Profile { runs: Vec::new(), ..profile() }.of_runs(), 1.0);
    }

    /// A kernel that was measured takes what was measured.
    #[test]
    fn measured_kernels_are_corrected() {
        let kernel = Kernel {
            layer: String::new(),
            name: "relu".to_owned(),
            kind: Kind::Elementwise,
            flops: 0.0,
            bytes: 1e9,
            product: None,
            launches: 1.0,
            sizes: [1.5; SIZES],
        };
        let work = Work { kernels: vec![kernel] };
        let peaks = Peaks { arithmetic: 1e12, bandwidth: 1e10, clock: 1e9 };
        let with = |residual: f64| {
            let rows: Vec<_> = (0..50).map(|_| ("relu elementwise".to_owned(), row(residual))).collect();
            let correction = Correction::learn(&rows);
            Profile { correction, runs: Vec::new(), ..profile() }.work(&work, &peaks).0
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
        assert!(total.holds(22.0) && (total.low - 11.0).abs() < 1e-12);
    }
}
