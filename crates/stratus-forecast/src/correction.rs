//! What the time model's terms leave of a kernel's time: learnt from kernels of the same kind whose sizes are
//! near.
//!
//! A Gaussian process (Rasmussen, Williams: "Gaussian processes for machine learning", 2006) over the binary
//! logarithms of a kernel's sizes. Its covariance is a constant (kernels of a kind err alike), a plane (the
//! error grows with a size) and a bell (kernels near each other err alike):
//!
//! ```text
//! k(x, y) = 1 + 0.1² (x - c) · (y - c) + 0.5² exp(-|x - y|² / 2 reach²)
//! ```
//!
//! Far from everything that was measured, what is left is the constant and the plane.

use crate::work::{Kernel, SIZES, Sizes};
use std::collections::BTreeMap;

/// Deviations of the constant, of the plane for each doubling, and of the bell.
const CONSTANT: f64 = 1.0;
const PLANE: f64 = 0.1;
const BELL: f64 = 0.5;
/// The bell's reach, in doublings, and the deviation of a measured time: those by which networks that were
/// left out were told best.
const REACH: f64 = 5.0;
const NOISE: f64 = 0.15;
/// The most kernels of a kind that are learnt from: solving takes the cube of it.
pub const MOST: usize = 600;
/// The furthest that a logarithm is corrected.
const FURTHEST: f64 = 5.0;

/// A measured kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Its sizes.
    pub sizes: Sizes,
    /// The logarithm of its time over that of the terms.
    pub residual: f64,
}

/// The kernels of a kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// In doublings, how far one kernel tells something of another.
    pub reach: f64,
    /// The deviation of a measured time.
    pub noise: f64,
    /// What was measured.
    pub rows: Vec<Row>,
    centre: Sizes,
    weights: Vec<f64>,
}

/// Corrections by kind of kernel.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Correction {
    /// By name and kind, see [`group_of`].
    pub groups: BTreeMap<String, Group>,
}

/// The name of a kernel's group.
#[must_use]
pub fn group_of(kernel: &Kernel) -> String {
    format!("{} {}", kernel.name, kernel.kind.name())
}

impl Correction {
    /// Learns from kernels with their groups. Of a group with too many, every so-many-th is taken.
    #[must_use]
    pub fn learn(rows: &[(String, Row)]) -> Self {
        let mut of: BTreeMap<String, Vec<Row>> = BTreeMap::new();
        for (group, row) in rows {
            of.entry(group.clone()).or_default().push(*row);
        }
        let groups =
            of.into_iter().filter_map(|(name, rows)| Some((name, Group::new(REACH, NOISE, thinned(rows))?)));
        Self { groups: groups.collect() }
    }

    /// The logarithm by which a kernel takes longer than its terms say; 0 of a kind that was not measured.
    #[must_use]
    pub fn of(&self, kernel: &Kernel) -> f64 {
        self.groups.get(&group_of(kernel)).map_or(0.0, |group| group.at(&kernel.sizes))
    }
}

fn thinned(rows: Vec<Row>) -> Vec<Row> {
    let every = rows.len().div_ceil(MOST).max(1);
    rows.into_iter().step_by(every).collect()
}

impl Group {
    /// Of rows; `None` of none, or where they cannot be solved for.
    #[must_use]
    pub fn new(reach: f64, noise: f64, rows: Vec<Row>) -> Option<Self> {
        let centre = centre(&rows);
        let factor = factor(reach, noise, &rows, &centre)?;
        let mut weights: Vec<f64> = rows.iter().map(|row| row.residual).collect();
        solve(&factor, &mut weights);
        (!rows.is_empty()).then_some(Self { reach, noise, rows, centre, weights })
    }

    fn at(&self, sizes: &Sizes) -> f64 {
        let parts = self.rows.iter().zip(&self.weights);
        let sum: f64 =
            parts.map(|(row, weight)| weight * covariance(self.reach, &row.sizes, sizes, &self.centre)).sum();
        sum.clamp(-FURTHEST, FURTHEST)
    }
}

fn centre(rows: &[Row]) -> Sizes {
    std::array::from_fn(|at| rows.iter().map(|row| row.sizes[at]).sum::<f64>() / rows.len().max(1) as f64)
}

fn covariance(reach: f64, x: &Sizes, y: &Sizes, centre: &Sizes) -> f64 {
    let (mut apart, mut product) = (0.0, 0.0);
    for at in 0..SIZES {
        apart += (x[at] - y[at]).powi(2);
        product += (x[at] - centre[at]) * (y[at] - centre[at]);
    }
    CONSTANT * CONSTANT + PLANE * PLANE * product + BELL * BELL * (-0.5 * apart / (reach * reach)).exp()
}

fn product(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The lower triangle of Cholesky's decomposition, a row after the other; `None` where there is none.
fn factor(reach: f64, noise: f64, rows: &[Row], centre: &Sizes) -> Option<Vec<Vec<f64>>> {
    let mut lower: Vec<Vec<f64>> = Vec::with_capacity(rows.len());
    for (at, row) in rows.iter().enumerate() {
        let mut of_row = Vec::with_capacity(at + 1);
        for column in 0..at {
            let other: &Vec<f64> = &lower[column];
            let known = product(&other[..column], &of_row);
            of_row.push((covariance(reach, &row.sizes, &rows[column].sizes, centre) - known) / other[column]);
        }
        let known = product(&of_row, &of_row);
        let rest = covariance(reach, &row.sizes, &row.sizes, centre) + noise * noise - known;
        if !(rest > 0.0 && rest.is_finite()) {
            return None;
        }
        of_row.push(rest.sqrt());
        lower.push(of_row);
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
    use crate::work::Kind;

    /// Kernels of two sizes, whose residual is a bump over a slope.
    fn rows() -> Vec<(String, Row)> {
        let residual = |a: f64, b: f64| 0.1 * a + 0.3 * (-0.2 * (a - 4.0).powi(2)).exp() - 0.02 * b;
        let mut rows = Vec::new();
        for a in 0..9 {
            for b in 0..5 {
                let mut sizes = [0.0; SIZES];
                (sizes[0], sizes[7]) = (f64::from(a), f64::from(b));
                let row = Row { sizes, residual: residual(f64::from(a), f64::from(b)) };
                rows.push(("relu elementwise".to_owned(), row));
            }
        }
        rows
    }

    fn kernel(name: &str, a: f64, b: f64) -> Kernel {
        let mut sizes = [0.0; SIZES];
        (sizes[0], sizes[7]) = (a, b);
        let (layer, name, kind) = (String::new(), name.to_owned(), Kind::Elementwise);
        Kernel { layer, name, kind, flops: 1.0, bytes: 1.0, product: None, launches: 1.0, sizes }
    }

    #[test]
    fn sizes_between_the_measured_are_told() {
        let correction = Correction::learn(&rows());
        let found = correction.of(&kernel("relu", 3.5, 2.5));
        let expected = 0.35 + 0.3 * (-0.2_f64 * 0.25).exp() - 0.05;
        assert!((found - expected).abs() < 0.06, "{found} instead of {expected}");
        // Another kind is not.
        assert_eq!(correction.of(&kernel("add", 3.5, 2.5)), 0.0);
        assert_eq!(Correction::default().of(&kernel("relu", 3.5, 2.5)), 0.0);
    }

    /// What was measured comes back, but for the noise.
    #[test]
    fn weights_solve_for_what_was_measured() {
        let rows: Vec<Row> = rows().into_iter().map(|(_, row)| row).collect();
        let group = Group::new(REACH, NOISE, rows).unwrap();
        for (row, weight) in group.rows.iter().zip(&group.weights) {
            let left = row.residual - group.at(&row.sizes);
            assert!((left - NOISE * NOISE * weight).abs() < 1e-9, "{left}");
        }
        assert_eq!(Group::new(REACH, NOISE, Vec::new()), None);
    }

    #[test]
    fn far_away_it_stays_within_bounds() {
        let correction = Correction::learn(&rows());
        assert!(correction.of(&kernel("relu", 1e3, -1e3)).abs() <= FURTHEST);
        let row = |at: usize| {
            let mut sizes = [0.0; SIZES];
            sizes[0] = at as f64;
            Row { sizes, residual: 0.0 }
        };
        assert!(thinned((0..2 * MOST + 1).map(row).collect()).len() <= MOST);
    }
}
