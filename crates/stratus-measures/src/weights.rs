//! Class weights for losses on unbalanced data.
//!
//! The weight of a class that never occurs is `None`. Losses need a number for every class and take 0
//! ([`or_zero`]), which no label selects.

/// The `term` of [`inverse_logarithmic`] in ENet (Paszke et al., "ENet: a deep neural network architecture
/// for real-time semantic segmentation", 2016), which gives weights between 1 and 50.
pub const ENET_TERM: f64 = 1.02;

/// The `term` of [`inverse_logarithmic`] in ERFNet (Romera et al., "ERFNet: efficient residual factorized
/// ConvNet for real-time semantic segmentation", 2018), which gives weights between 1 and 10.5.
pub const ERFNET_TERM: f64 = 1.10;

/// Median frequency balancing: the median frequency of the classes divided by the frequency of the class
/// (Eigen and Fergus, "Predicting depth, surface normals and semantic labels with a common multi-scale
/// convolutional architecture", 2015).
///
/// The frequency of a class is `counts / totals`: its pixels divided by all pixels of the images that contain
/// it, or its images divided by all images. The median excludes classes that do not occur.
#[must_use]
pub fn median_frequency(counts: &[u64], totals: &[u64]) -> Vec<Option<f64>> {
    let frequency = |(&count, &total): (&u64, &u64)| (count > 0).then(|| count as f64 / total as f64);
    let frequencies: Vec<Option<f64>> = counts.iter().zip(totals).map(frequency).collect();
    let mut known: Vec<f64> = frequencies.iter().flatten().copied().collect();
    let Some(median) = stratus_base::median(&mut known) else { return frequencies };
    frequencies.into_iter().map(|frequency| frequency.map(|frequency| median / frequency)).collect()
}

/// `1 / ln(term + count / total)` for each class. `term` is [`ENET_TERM`], [`ERFNET_TERM`] or another number
/// above 1. ERFNet's published weights for Cityscapes use all pixels as `total`, including ignored ones.
#[must_use]
pub fn inverse_logarithmic(counts: &[u64], total: u64, term: f64) -> Vec<Option<f64>> {
    let weight = |&count: &u64| (count > 0).then(|| 1.0 / (term + count as f64 / total as f64).ln());
    counts.iter().map(weight).collect()
}

/// Replaces the weights of classes that never occur by 0.
#[must_use]
pub fn or_zero(weights: &[Option<f64>]) -> Vec<f64> {
    weights.iter().map(|weight| weight.unwrap_or(0.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rare_classes_get_larger_weights() {
        // Frequencies 1/8, 1/2, 1/4 and none; their median is 1/4.
        let weights = median_frequency(&[10, 40, 5, 0], &[80, 80, 20, 0]);
        assert_eq!(weights, [Some(2.0), Some(0.5), Some(1.0), None]);
        assert_eq!(or_zero(&weights), [2.0, 0.5, 1.0, 0.0]);
        assert_eq!(median_frequency(&[0, 0], &[0, 0]), [None, None]);
        assert_eq!(median_frequency(&[], &[]), []);
    }

    #[test]
    fn inverse_logarithmic_weights_are_bounded() {
        let weights = inverse_logarithmic(&[0, 1, 1_000_000_000_000], 1_000_000_000_000, ENET_TERM);
        assert_eq!(weights[0], None);
        assert!((weights[1].unwrap() - 1.0 / 1.02f64.ln()).abs() < 1e-6);
        assert!((weights[2].unwrap() - 1.0 / 2.02f64.ln()).abs() < 1e-12);
        // Cityscapes' roads are 32.65 % of all pixels; ERFNet's authors publish 2.8149 as their weight.
        let road = inverse_logarithmic(&[3265], 10_000, ERFNET_TERM)[0].unwrap();
        assert!((road - 2.8149).abs() < 5e-4, "{road}");
    }
}
