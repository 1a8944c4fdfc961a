//! The argument of `--memory-limit`.

use clap::Args;
use stratus_experiment::Experiment;

/// The memory limit of the commands that plan.
#[derive(Args, Debug)]
pub struct MemoryLimitArgument {
    /// Memory limit for parameters, activations and scratch, like 800MiB or 2GiB; recomputes activations in
    /// the backward pass if necessary, with bit-identical results
    #[arg(long, value_name = "SIZE", value_parser = parse_mib)]
    pub memory_limit: Option<usize>,
}

impl MemoryLimitArgument {
    /// Sets the limit of an experiment, if there is one.
    pub fn apply(&self, experiment: &mut Experiment) {
        if self.memory_limit.is_some() {
            experiment.train.memory_limit_mib = self.memory_limit;
        }
    }
}

/// Units of memory in bytes. `G` and `GiB` are powers of 1024, as in Slurm and Docker; `GB` is a power of
/// 1000.
const UNITS: [(&str, f64); 9] = [
    ("GiB", 1_073_741_824.0),
    ("Gi", 1_073_741_824.0),
    ("GB", 1e9),
    ("G", 1_073_741_824.0),
    ("MiB", 1_048_576.0),
    ("Mi", 1_048_576.0),
    ("MB", 1e6),
    ("M", 1_048_576.0),
    ("TiB", 1_099_511_627_776.0),
];

/// Parses a number with a unit, in MiB.
fn parse_mib(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let Some((_, bytes)) = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) else {
        return Err("expected a number with a unit, like 800MiB, 4GB or 1.5G".to_owned());
    };
    let mib = digits.trim().parse::<f64>().map_or(f64::NAN, |number| (number * bytes / 1_048_576.0).floor());
    if (1.0..=1_073_741_824.0).contains(&mib) {
        Ok(mib as usize)
    } else {
        Err(format!("invalid size `{text}`: must be at least 1MiB"))
    }
}

#[cfg(test)]
mod tests {
    use super::parse_mib;

    #[test]
    fn parses_sizes_and_rejects_invalid_ones() {
        assert_eq!(parse_mib("800MiB"), Ok(800));
        assert_eq!(parse_mib(" 1.5GiB "), Ok(1536));
        assert_eq!(parse_mib("2 GiB"), Ok(2048));
        for (text, expected) in [
            ("4GB", 3814),
            ("4G", 4096),
            ("4096M", 4096),
            ("4gib", 4096),
            ("4 Gi", 4096),
            ("500MB", 476),
            ("1e3MiB", 1000),
            ("1TiB", 1 << 20),
        ] {
            assert_eq!(parse_mib(text), Ok(expected), "{text}");
        }
        for wrong in ["", "2", "2KB", "0MiB", "-1GiB", "NaNMiB", "infGiB", "1e99GiB", "GiB", "2\u{e9}"] {
            assert!(parse_mib(wrong).is_err(), "{wrong}");
        }
    }
}
