//! Published training times of a machine, which correct its data sheet.
//!
//! ```text
//! ratio  = measured / forecast of each row
//! factor = exp(Σ ln ratio / (n + w)),   w = variance of a row / variance of an unseen machine
//! ```
//!
//! A machine's data sheet is off by one factor for all networks, known to within [`UNSEEN_LOG_STD`] before
//! any measurement; a row differs from that factor by the spread of the profile. The factor is the posterior
//! mean of its logarithm, and the interval has the variances of both.

use crate::choice::{UNSEEN_LOG_STD, Z_80};
use crate::error::{Error, Result};
use crate::file;
use crate::model::Framework;
use crate::profile::Profile;
use crate::table::{MAX_FILE_BYTES, Table};
use std::path::Path;

/// Maximum number of rows, each of which is planned.
const MAX_ROWS: usize = 1000;
/// Minimum standard deviation of the log ratio of a row.
const MIN_ROW_LOG_STD: f64 = 0.1;

/// A published time of a training iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedStep {
    /// The network: a built-in experiment or a file.
    pub network: String,
    /// Images per iteration.
    pub batch: usize,
    /// Seconds of an iteration.
    pub seconds: f64,
    /// The line of the file.
    pub line: usize,
}

/// Reads a table with the columns `network`, `batch` and `milliseconds`; further columns are ignored.
///
/// # Errors
/// If the file cannot be read, lacks a column, has no row or too many, or an invalid value.
pub fn read(path: &Path) -> Result<Vec<PublishedStep>> {
    parse(&path.display().to_string(), &file::read(path, MAX_FILE_BYTES)?)
}

fn parse(name: &str, text: &str) -> Result<Vec<PublishedStep>> {
    let table = Table::parse(name, text)?;
    let [network, batch, milliseconds] =
        [table.column("network")?, table.column("batch")?, table.column("milliseconds")?];
    let step = |row: crate::table::Row<'_>| {
        let batch = row.count(batch)?;
        if batch.fract() != 0.0 || batch > 16_777_216.0 {
            return Err(row.problem(format!("batch must be a whole number up to 16777216, but is {batch}")));
        }
        let seconds = row.count(milliseconds)? * 1e-3;
        Ok(PublishedStep {
            network: row.text(network).to_owned(),
            batch: batch as usize,
            seconds,
            line: row.line(),
        })
    };
    let steps: Vec<PublishedStep> = table.rows().map(step).collect::<Result<_>>()?;
    if steps.is_empty() || steps.len() > MAX_ROWS {
        let problem = format!("it has {} rows; expected 1 to {MAX_ROWS}", steps.len());
        return Err(Error::File { file: name.to_owned(), problem });
    }
    Ok(steps)
}

/// A profile for the machine `name`, from that of other machines and the ratios of published to forecast
/// times. `data` describes the table.
#[must_use]
pub fn corrected(profile: &Profile, name: &str, precision: &str, ratios: &[f64], data: &str) -> Profile {
    let unseen = UNSEEN_LOG_STD * UNSEEN_LOG_STD;
    // The profile of other machines is already wider by that of an unseen machine.
    let row = (profile.spread * profile.spread - unseen).max(MIN_ROW_LOG_STD * MIN_ROW_LOG_STD);
    let weight = ratios.len() as f64 + row / unseen;
    let log_factor = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / weight;
    let mut coefficients = profile.coefficients.clone();
    coefficients.log.iter_mut().for_each(|log| *log += log_factor);
    Profile {
        machine: Some(name.to_owned()),
        framework: Framework::Stratus,
        precision: precision.to_owned(),
        data: data.to_owned(),
        coefficients,
        spread: (row + row / weight).sqrt(),
        factor: Z_80,
        ..profile.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;
    use crate::choice::{Source, choose};
    use crate::model::{TERM_COUNT, Terms};
    use crate::peaks::NumberFormat;
    use crate::shipped;

    #[test]
    fn tables_are_read_and_checked() {
        let text = "network,batch,milliseconds,source\nresnet50,64,120.5,page 3\n";
        let expected = PublishedStep { network: "resnet50".to_owned(), batch: 64, seconds: 0.1205, line: 2 };
        assert_eq!(parse("p.csv", text).unwrap(), [expected]);
        let problem = |text: &str| parse("p.csv", text).unwrap_err().to_string();
        assert!(problem("network,batch\n").contains("missing column `milliseconds`"));
        assert_eq!(problem("network,batch,milliseconds\n"), "p.csv: it has 0 rows; expected 1 to 1000");
        assert!(problem("network,batch,milliseconds\na,1.5,3\n").contains("line 2: batch must be a whole"));
        assert!(problem("network,batch,milliseconds\na,1,0\n").contains("milliseconds must be above 0"));
    }

    #[test]
    fn a_constant_factor_is_found_and_narrows_the_interval() {
        let profiles = shipped::profiles().unwrap();
        let machine = Catalogue::builtin().unwrap().find("rtx-4090").unwrap();
        let (profile, source) = choose(&profiles, &machine.processor, NumberFormat::Bf16).unwrap();
        assert_eq!(source, Source::DataSheet);
        let terms = Terms([1e-3; TERM_COUNT]);
        let (before, _) = profile.estimate_step(&terms);
        let of = |ratios: &[f64]| corrected(&profile, "rtx-4090", "bf16", ratios, "a table");
        let (after, _) = of(&[1.4; 20]).estimate_step(&terms);
        assert!((1.37..1.4).contains(&(after.seconds / before.seconds)), "{before:?} {after:?}");
        assert!(after.high / after.low < before.high / before.low);
        // One row is trusted less.
        let (one, _) = of(&[1.4]).estimate_step(&terms);
        assert!(one.seconds > before.seconds && one.seconds < after.seconds);
        // It is chosen before the profiles of other machines.
        let all: Vec<Profile> = [of(&[1.4; 20])].into_iter().chain(profiles).collect();
        let (own, source) = choose(&all, &machine.processor, NumberFormat::Bf16).unwrap();
        assert_eq!((own.data.as_str(), source), ("a table", Source::Profile));
    }
}
