//! The result of `stratus optimise`: the variants of a network that it compared, and the layers that lost
//! channels.

use serde::Serialize;
use stratus_run::optimised::{Origin, Pruning};
use stratus_run::quantisation::Quantisation;
use stratus_run::variants::{self, Variant};
use stratus_run::{Error, RunDir};

/// The part of an optimised run that only such runs have.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OptimisedReport {
    /// The run that it was made from, as it was given to the command; `None` if it is unknown.
    pub origin: Option<String>,
    /// The rows of `variants.csv`; empty before the networks were compared.
    pub variants: Vec<Variant>,
    /// The effect of the removal of channels; `None` if none were removed.
    pub pruning: Option<Pruning>,
    /// The layers that run in int8; `None` if there are none.
    pub quantisation: Option<Quantisation>,
}

impl OptimisedReport {
    /// Reads it; `None` for other runs. Passes what cannot be read to `missing`.
    pub fn read(run: &RunDir, missing: &mut dyn FnMut(&str, String)) -> Option<Self> {
        let has_variants = run.variants().exists();
        if !has_variants && !run.is_optimised() {
            return None;
        }
        let mut or_missing = |what: &str, error: Error| {
            // Both are absent in runs that were not made so far, and of kinds without pruning.
            if !error.is_not_found() {
                missing(what, error.to_string());
            }
        };
        let origin = Origin::read(run).map_err(|error| or_missing("the run that was optimised", error));
        let variants = variants::read(&run.variants());
        let variants = variants.map_err(|error| or_missing("the variants of the network", error));
        let pruning = Pruning::read(run).map_err(|error| or_missing("the layers that lost channels", error));
        let quantisation = Quantisation::read(&run.optimise_quantisation());
        let quantisation = quantisation.map_err(|error| or_missing("the layers in int8", error));
        Some(Self {
            origin: origin.ok().map(|origin| origin.run),
            variants: variants.unwrap_or_default(),
            pruning: pruning.ok(),
            quantisation: quantisation.ok().flatten(),
        })
    }
}

/// Returns of each variant, by its milliseconds and its measure, whether no other one exceeds it: none is
/// both at least as fast and at least as good, and better in one of both.
#[must_use]
pub fn best_variants(variants: &[(f64, f64)]) -> Vec<bool> {
    // By time, then by measure, so that each is compared with the best of the faster ones only.
    let mut order: Vec<usize> = (0..variants.len()).collect();
    order.sort_by(|one, other| {
        let [one, other] = [variants[*one], variants[*other]];
        one.0.total_cmp(&other.0).then(other.1.total_cmp(&one.1))
    });
    let mut is_best = vec![false; variants.len()];
    let mut best: Option<(f64, f64)> = None;
    for position in order {
        let variant = variants[position];
        if best == Some(variant) || best.is_none_or(|(_, measure)| variant.1 > measure) {
            is_best[position] = true;
            best = Some(variant);
        }
    }
    is_best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_variants_are_not_exceeded_by_others() {
        let rows = [
            (2.0, 0.9, true),
            (1.0, 0.8, true),
            (1.0, 0.8, true),
            (1.0, 0.7, false),
            (1.5, 0.8, false),
            (2.5, 0.9, false),
        ];
        assert_eq!(best_variants(&rows.map(|(ms, measure, _)| (ms, measure))), rows.map(|(.., best)| best));
        assert!(best_variants(&[]).is_empty());
    }
}
