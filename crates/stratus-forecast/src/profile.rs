//! Profiles: fitted coefficients with what they were fitted to, as one TOML file each.

use crate::error::{Error, Result};
use crate::model::{COUNT, Coefficients, Estimate, Framework, Matrix, Term, Terms};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The format that is written, and the only one that is read.
pub const FORMAT: u32 = 1;
/// The most bytes of a profile.
const LONGEST: usize = 1 << 20;
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

    /// Reads a profile.
    ///
    /// # Errors
    /// Where it is too long, no profile, or one of another format.
    pub fn parse(file: &str, text: &str) -> Result<Self> {
        let problem = |problem: String| Error::File { file: file.to_owned(), problem };
        if text.len() > LONGEST {
            return Err(problem(format!("it has {} bytes, a profile has at most {LONGEST}", text.len())));
        }
        let version: Version = toml::from_str(text).map_err(|error| problem(error.to_string()))?;
        if version.format != FORMAT {
            return Err(Error::ProfileFormat { file: file.to_owned(), found: version.format, known: FORMAT });
        }
        let written: Written = toml::from_str(text).map_err(|error| problem(error.to_string()))?;
        let is_of = |value: f64, most: f64| value.is_finite() && value > 0.0 && value <= most;
        if !is_of(written.spread, 10.0) || !is_of(written.factor, 100.0) {
            return Err(problem("spread or factor is out of range".to_owned()));
        }
        Ok(Self {
            machine: written.machine,
            framework: written.framework,
            precision: written.precision,
            data: written.data,
            command: written.command,
            validation: written.validation,
            coefficients: coefficients(&written.coefficients, &written.covariance).map_err(problem)?,
            spread: written.spread,
            factor: written.factor,
        })
    }

    /// The file's content.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = format!("format = {FORMAT}\n");
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
        line("\n[validation]".to_owned());
        line(format!("mean_percent = {mean_percent:.2}\ncovered_percent = {covered_percent:.1}"));
        line(format!("steps = {steps}\nnetworks = {networks}"));
        line("\n# Times what a machine's peaks would take.\n[coefficients]".to_owned());
        for term in Term::ALL {
            line(format!("{} = {}", term.name(), number(self.coefficients.log[term as usize].exp())));
        }
        line("\n# Of their logarithms: each with those before it and itself.\n[covariance]".to_owned());
        for term in Term::ALL {
            let row = &self.coefficients.covariance[term as usize][..=term as usize];
            let rows: Vec<String> = row
                .chunks(8)
                .map(|part| part.iter().map(|&entry| number(entry)).collect::<Vec<_>>().join(", "))
                .collect();
            line(format!("{} = [\n    {},\n]", term.name(), rows.join(",\n    ")));
        }
        text
    }
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
    #[serde(rename = "format")]
    _format: u32,
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fit::{Prior, fit};

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
        }
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
        let error = refused("format = 1", "format = 2");
        assert_eq!(error, "p.toml: the profile has format 2, this version reads format 1");
        assert!(refused("launch = 1.", "launch = -1.").contains("it is above 0"));
        assert!(refused("norm_bytes", "form_bytes").contains("there is no coefficient `norm_bytes`"));
        assert!(refused("factor = 1.500e0", "factor = nan").contains("out of range"));
        assert!(refused("spread", "spraed").contains("unknown field"));
    }

    #[test]
    fn intervals_add_up() {
        let step = Interval::new(2.0, 0.5_f64.ln().abs());
        assert!((step.low - 1.0).abs() < 1e-12 && (step.high - 4.0).abs() < 1e-12);
        let total = step.times(10.0).plus(step);
        assert!(total.holds(22.0) && (total.low - 11.0).abs() < 1e-12);
    }
}
