//! What `--memory-limit` takes.

use clap::Args;
use stratus_train::Experiment;

/// The option of the commands that plan.
#[derive(Args, Debug)]
pub struct MemoryLimit {
    /// Limit on the memory for parameters, activations and scratch, like 800MiB or 2GiB. Where they would
    /// take more, activations are recomputed in the backward pass, with identical results
    #[arg(long, value_name = "SIZE", value_parser = mib)]
    pub memory_limit: Option<usize>,
}

impl MemoryLimit {
    /// Writes it into an experiment.
    pub fn apply(&self, experiment: &mut Experiment) {
        if self.memory_limit.is_some() {
            experiment.train.memory_limit_mib = self.memory_limit;
        }
    }
}

/// MiB from a number with a unit.
fn mib(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let (number, factor) = match (text.strip_suffix("GiB"), text.strip_suffix("MiB")) {
        (Some(number), _) => (number, 1024.0),
        (_, Some(number)) => (number, 1.0),
        _ => return Err("give a number of MiB or GiB, like 800MiB or 1.5GiB".to_owned()),
    };
    let mib = number.trim().parse::<f64>().map_or(f64::NAN, |number| (number * factor).floor());
    if (1.0..=1_073_741_824.0).contains(&mib) {
        Ok(mib as usize)
    } else {
        Err(format!("`{number}` is no size: give at least 1MiB"))
    }
}

#[cfg(test)]
mod tests {
    use super::mib;

    #[test]
    fn sizes() {
        assert_eq!(mib("800MiB"), Ok(800));
        assert_eq!(mib(" 1.5GiB "), Ok(1536));
        assert_eq!(mib("2 GiB"), Ok(2048));
        for wrong in ["", "2", "2GB", "0MiB", "-1GiB", "NaNMiB", "infGiB", "1e99GiB", "GiB"] {
            assert!(mib(wrong).is_err(), "{wrong}");
        }
    }
}
