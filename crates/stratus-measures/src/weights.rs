//! Weights of classes, by which losses make up for some classes being rarer than others.
//!
//! A class that never occurs has no weight: `None`. A loss, which needs a number for every class, takes 0 for
//! it ([`or_zero`]): no label asks for it.

/// The term that [`inverse_logarithmic`] adds to shares in ENet (Paszke et al., "ENet: a deep neural network
/// architecture for real-time semantic segmentation", 2016): weights lie between 1 and 50.
pub const ENET: f64 = 1.02;

/// The same in ERFNet (Romera et al., "ERFNet: efficient residual factorized ConvNet for real-time semantic
/// segmentation", 2018): weights lie between 1 and 10.5.
pub const ERFNET: f64 = 1.10;

/// Median frequency balancing: the median of all classes' frequencies divided by the class's own (Eigen and
/// Fergus, "Predicting depth, surface normals and semantic labels with a common multi-scale convolutional
/// architecture", 2015). A class's frequency is `counts / totals`: its pixels, and all pixels of the images
/// that have it; or its images, and all images. Classes that do not occur have no part in the median, which
/// of an even number lies between the middle two.
#[must_use]
pub fn median_frequency(counts: &[u64], totals: &[u64]) -> Vec<Option<f64>> {
    let frequency = |(&count, &total): (&u64, &u64)| (count > 0).then(|| count as f64 / total as f64);
    let frequencies: Vec<Option<f64>> = counts.iter().zip(totals).map(frequency).collect();
    let mut met: Vec<f64> = frequencies.iter().flatten().copied().collect();
    met.sort_unstable_by(f64::total_cmp);
    let Some(&upper) = met.get(met.len() / 2) else { return frequencies };
    let median = if met.len().is_multiple_of(2) { (met[met.len() / 2 - 1] + upper) / 2.0 } else { upper };
    frequencies.into_iter().map(|frequency| frequency.map(|frequency| median / frequency)).collect()
}

/// `1 / ln(term + share)`, where a class's share is its count among `total`, and the term is [`ENET`],
/// [`ERFNET`] or another of more than 1. ERFNet's published weights for Cityscapes have for total all pixels,
/// those of no class too.
#[must_use]
pub fn inverse_logarithmic(counts: &[u64], total: u64, term: f64) -> Vec<Option<f64>> {
    let weight = |&count: &u64| (count > 0).then(|| 1.0 / (term + count as f64 / total as f64).ln());
    counts.iter().map(weight).collect()
}

/// The weights with 0 for classes that never occur.
#[must_use]
pub fn or_zero(weights: &[Option<f64>]) -> Vec<f64> {
    weights.iter().map(|weight| weight.unwrap_or(0.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rare_classes_weigh_more() {
        // Frequencies 1/8, 1/2, 1/4 and none; their median is 1/4.
        let weights = median_frequency(&[10, 40, 5, 0], &[80, 80, 20, 0]);
        assert_eq!(weights, [Some(2.0), Some(0.5), Some(1.0), None]);
        assert_eq!(or_zero(&weights), [2.0, 0.5, 1.0, 0.0]);
        assert_eq!(median_frequency(&[0, 0], &[0, 0]), [None, None]);
        assert_eq!(median_frequency(&[], &[]), []);
    }

    #[test]
    fn logarithms_bound_the_weights() {
        let weights = inverse_logarithmic(&[0, 1, 1_000_000_000_000], 1_000_000_000_000, ENET);
        assert_eq!(weights[0], None);
        assert!((weights[1].unwrap() - 1.0 / 1.02f64.ln()).abs() < 1e-6);
        assert!((weights[2].unwrap() - 1.0 / 2.02f64.ln()).abs() < 1e-12);
        // Cityscapes' roads are 32.65 % of all pixels; ERFNet's authors publish 2.8149 as their weight.
        let road = inverse_logarithmic(&[3265], 10_000, ERFNET)[0].unwrap();
        assert!((road - 2.8149).abs() < 5e-4, "{road}");
    }
}
