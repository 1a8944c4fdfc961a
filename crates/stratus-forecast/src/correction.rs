//! Corrections of the time model: the residuals of its terms, learned from kernels of the same kind with
//! similar features.
//!
//! A Gaussian process (Rasmussen, Williams: "Gaussian processes for machine learning", 2006) over the binary
//! logarithms of the sizes of a kernel. Its covariance is the sum of a constant (kernels of a kind have a
//! common error), a linear term (the error grows with a size) and a radial basis function (similar kernels
//! have similar errors):
//!
//! ```text
//! k(x, y) = 1 + 0.1² (x - c) · (y - c) + 0.5² exp(-|x - y|² / 2 scale²)
//! ```
//!
//! Far from all measured kernels, only the constant and the linear term remain.

use crate::work::{FEATURE_COUNT, Kernel, KernelFeatures};
use std::collections::BTreeMap;

/// Standard deviation of the constant.
const CONSTANT_STD: f64 = 1.0;
/// Standard deviation of the linear term, per doubling.
const LINEAR_STD: f64 = 0.1;
/// Standard deviation of the radial basis function.
const RBF_STD: f64 = 0.5;
/// Length scale of the radial basis function, in doublings; chosen by cross-validation over networks.
const RBF_LENGTH_SCALE: f64 = 5.0;
/// Standard deviation of a measured time; chosen by cross-validation over networks.
const NOISE_STD: f64 = 0.15;
/// Maximum number of kernels of a kind to learn from; solving takes cubic time.
pub const MAX_GROUP_ROWS: usize = 600;
/// Maximum correction of a logarithm.
const MAX_LOG_CORRECTION: f64 = 5.0;

/// A measured kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelResidual {
    /// Its features.
    pub features: KernelFeatures,
    /// The logarithm of the ratio of its measured time to the time of its terms.
    pub residual: f64,
}

/// The measured kernels of a kind.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelGroup {
    /// The length scale, in doublings.
    pub reach: f64,
    /// The standard deviation of a measured time.
    pub noise: f64,
    /// The measured kernels.
    pub rows: Vec<KernelResidual>,
    centre: KernelFeatures,
    weights: Vec<f64>,
}

/// Corrections by kind of kernel.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Correction {
    /// Groups by name and kind, see [`group_name`].
    pub groups: BTreeMap<String, KernelGroup>,
}

/// The name of a kernel's group.
#[must_use]
pub fn group_name(kernel: &Kernel) -> String {
    format!("{} {}", kernel.name, kernel.kind.name())
}

impl Correction {
    /// Learns from kernels with the names of their groups. Groups that are too large are subsampled.
    #[must_use]
    pub fn learn(rows: &[(String, KernelResidual)]) -> Self {
        let mut by_group: BTreeMap<String, Vec<KernelResidual>> = BTreeMap::new();
        for (group, row) in rows {
            by_group.entry(group.clone()).or_default().push(*row);
        }
        let groups = by_group.into_iter().filter_map(|(name, rows)| {
            Some((name, KernelGroup::new(RBF_LENGTH_SCALE, NOISE_STD, subsample(rows))?))
        });
        Self { groups: groups.collect() }
    }

    /// The logarithm of the ratio of a kernel's time to that of its terms; 0 for an unmeasured kind.
    #[must_use]
    pub fn log_factor(&self, kernel: &Kernel) -> f64 {
        self.groups.get(&group_name(kernel)).map_or(0.0, |group| group.log_factor(&kernel.features))
    }
}

fn subsample(rows: Vec<KernelResidual>) -> Vec<KernelResidual> {
    let every = rows.len().div_ceil(MAX_GROUP_ROWS).max(1);
    rows.into_iter().step_by(every).collect()
}

impl KernelGroup {
    /// A group of measured kernels; `None` without rows, or if their covariance is singular.
    #[must_use]
    pub fn new(reach: f64, noise: f64, rows: Vec<KernelResidual>) -> Option<Self> {
        let centre = centre(&rows);
        let factor = factor(reach, noise, &rows, &centre)?;
        let mut weights: Vec<f64> = rows.iter().map(|row| row.residual).collect();
        solve(&factor, &mut weights);
        (!rows.is_empty()).then_some(Self { reach, noise, rows, centre, weights })
    }

    fn log_factor(&self, sizes: &KernelFeatures) -> f64 {
        let parts = self.rows.iter().zip(&self.weights);
        let sum: f64 = parts
            .map(|(row, weight)| weight * covariance(self.reach, &row.features, sizes, &self.centre))
            .sum();
        sum.clamp(-MAX_LOG_CORRECTION, MAX_LOG_CORRECTION)
    }
}

fn centre(rows: &[KernelResidual]) -> KernelFeatures {
    std::array::from_fn(|at| rows.iter().map(|row| row.features[at]).sum::<f64>() / rows.len().max(1) as f64)
}

fn covariance(reach: f64, x: &KernelFeatures, y: &KernelFeatures, centre: &KernelFeatures) -> f64 {
    let (mut apart, mut product) = (0.0, 0.0);
    for at in 0..FEATURE_COUNT {
        apart += (x[at] - y[at]).powi(2);
        product += (x[at] - centre[at]) * (y[at] - centre[at]);
    }
    CONSTANT_STD * CONSTANT_STD
        + LINEAR_STD * LINEAR_STD * product
        + RBF_STD * RBF_STD * (-0.5 * apart / (reach * reach)).exp()
}

fn product(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The rows of the Cholesky factor; `None` if the matrix is not positive definite.
fn factor(reach: f64, noise: f64, rows: &[KernelResidual], centre: &KernelFeatures) -> Option<Vec<Vec<f64>>> {
    let mut lower: Vec<Vec<f64>> = Vec::with_capacity(rows.len());
    for (at, row) in rows.iter().enumerate() {
        let mut entries = Vec::with_capacity(at + 1);
        for column in 0..at {
            let other: &Vec<f64> = &lower[column];
            let known = product(&other[..column], &entries);
            entries.push(
                (covariance(reach, &row.features, &rows[column].features, centre) - known) / other[column],
            );
        }
        let known = product(&entries, &entries);
        let rest = covariance(reach, &row.features, &row.features, centre) + noise * noise - known;
        if !(rest > 0.0 && rest.is_finite()) {
            return None;
        }
        entries.push(rest.sqrt());
        lower.push(entries);
    }
    Some(lower)
}

/// Solves `L Lᵀ x = b` in place.
fn solve(lower: &[Vec<f64>], x: &mut [f64]) {
    for row in 0..x.len() {
        let known = product(&lower[row][..row], x);
        x[row] = (x[row] - known) / lower[row][row];
    }
    for row in (0..x.len()).rev() {
        let known: f64 = (row + 1..x.len()).map(|below| lower[below][row] * x[below]).sum();
        x[row] = (x[row] - known) / lower[row][row];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::KernelKind;

    /// Kernels with two varying features, whose residual is a bump on a slope.
    fn rows() -> Vec<(String, KernelResidual)> {
        let residual = |a: f64, b: f64| 0.1 * a + 0.3 * (-0.2 * (a - 4.0).powi(2)).exp() - 0.02 * b;
        let mut rows = Vec::new();
        for a in 0..9 {
            for b in 0..5 {
                let mut sizes = [0.0; FEATURE_COUNT];
                (sizes[0], sizes[7]) = (f64::from(a), f64::from(b));
                let row = KernelResidual { features: sizes, residual: residual(f64::from(a), f64::from(b)) };
                rows.push(("relu elementwise".to_owned(), row));
            }
        }
        rows
    }

    fn kernel(name: &str, a: f64, b: f64) -> Kernel {
        let mut sizes = [0.0; FEATURE_COUNT];
        (sizes[0], sizes[7]) = (a, b);
        let (layer, name, kind) = (String::new(), name.to_owned(), KernelKind::Elementwise);
        Kernel { layer, name, kind, flops: 1.0, bytes: 1.0, product: None, launches: 1.0, features: sizes }
    }

    #[test]
    fn interpolates_between_measured_kernels() {
        let correction = Correction::learn(&rows());
        let found = correction.log_factor(&kernel("relu", 3.5, 2.5));
        let expected = 0.35 + 0.3 * (-0.2_f64 * 0.25).exp() - 0.05;
        assert!((found - expected).abs() < 0.06, "{found}, expected {expected}");
        // An unmeasured kind is not corrected.
        assert_eq!(correction.log_factor(&kernel("add", 3.5, 2.5)), 0.0);
        assert_eq!(Correction::default().log_factor(&kernel("relu", 3.5, 2.5)), 0.0);
    }

    /// Predictions at measured kernels equal the measurements, except for the noise.
    #[test]
    fn weights_reproduce_the_measurements() {
        let rows: Vec<KernelResidual> = rows().into_iter().map(|(_, row)| row).collect();
        let group = KernelGroup::new(RBF_LENGTH_SCALE, NOISE_STD, rows).unwrap();
        for (row, weight) in group.rows.iter().zip(&group.weights) {
            let difference = row.residual - group.log_factor(&row.features);
            assert!((difference - NOISE_STD * NOISE_STD * weight).abs() < 1e-9, "{difference}");
        }
        assert_eq!(KernelGroup::new(RBF_LENGTH_SCALE, NOISE_STD, Vec::new()), None);
    }

    #[test]
    fn correction_is_bounded_far_from_measurements() {
        let correction = Correction::learn(&rows());
        assert!(correction.log_factor(&kernel("relu", 1e3, -1e3)).abs() <= MAX_LOG_CORRECTION);
        let row = |at: usize| {
            let mut sizes = [0.0; FEATURE_COUNT];
            sizes[0] = at as f64;
            KernelResidual { features: sizes, residual: 0.0 }
        };
        assert!(subsample((0..2 * MAX_GROUP_ROWS + 1).map(row).collect()).len() <= MAX_GROUP_ROWS);
    }
}
