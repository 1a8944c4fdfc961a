//! Statistical significance of differences.

/// The p-value below which a difference is significant.
pub(super) const SIGNIFICANT: f64 = 0.05;

/// The mean and, for at least two values, the sample variance.
pub(super) fn moments(values: &[f64]) -> Option<(f64, Option<f64>)> {
    let count = values.len() as f64;
    if values.is_empty() {
        return None;
    }
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    Some((mean, (values.len() > 1).then(|| squares / (count - 1.0))))
}

/// The two-sided p-value of Welch's t-test (B. L. Welch, 1947). `None` if a group has fewer than two values,
/// or neither has any variance.
pub(super) fn welch(a: &[f64], b: &[f64]) -> Option<f64> {
    let ((mean_a, Some(variance_a)), (mean_b, Some(variance_b))) = (moments(a)?, moments(b)?) else {
        return None;
    };
    let (error_a, error_b) = (variance_a / a.len() as f64, variance_b / b.len() as f64);
    if error_a + error_b <= 0.0 {
        return None;
    }
    let t = (mean_a - mean_b) / (error_a + error_b).sqrt();
    let square = |error: f64, count: usize| error * error / (count as f64 - 1.0);
    let freedom = (error_a + error_b).powi(2) / (square(error_a, a.len()) + square(error_b, b.len()));
    // Two-sided: I_x(ν/2, 1/2) with x = ν / (ν + t²).
    Some(incomplete_beta(freedom / (freedom + t * t), freedom / 2.0, 0.5))
}

/// The regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22) with Lentz's
/// method.
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(1.0 - x, b, a);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (-x).ln_1p()).exp() / a;
    let tiny = 1e-300;
    let guard = |value: f64| if value.abs() < tiny { tiny } else { value };
    let (mut c, mut d) = (1.0, 1.0 / guard(1.0 - (a + b) * x / (a + 1.0)));
    let mut fraction = d;
    for m in 1..300 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut change = 1.0;
        for coefficient in [even, odd] {
            d = 1.0 / guard(1.0 + coefficient * d);
            c = guard(1.0 + coefficient / c);
            change = c * d;
            fraction *= change;
        }
        if (change - 1.0_f64).abs() < 1e-15 {
            break;
        }
    }
    front * fraction
}

/// ln Γ(x) for x > 0, by Stirling's series (DLMF 5.11.1) after the recurrence Γ(x + 1) = x Γ(x).
fn ln_gamma(x: f64) -> f64 {
    let (mut x, mut below) = (x, 0.0);
    while x < 12.0 {
        below += x.ln();
        x += 1.0;
    }
    let inverse = 1.0 / (x * x);
    let series = (1.0 / 12.0 - inverse * (1.0 / 360.0 - inverse * (1.0 / 1260.0 - inverse / 1680.0))) / x;
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series - below
}

/// Adjusts p-values for multiple comparisons (Holm, 1979), which controls the family-wise error rate.
pub(super) fn holm_adjust(probabilities: &mut [&mut f64]) {
    probabilities.sort_by(|a, b| a.total_cmp(b));
    let (count, mut adjusted) = (probabilities.len(), 0.0_f64);
    for (rank, p) in probabilities.iter_mut().enumerate() {
        adjusted = adjusted.max((count - rank) as f64 * **p).min(1.0);
        **p = adjusted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_close(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-9, "{a} is not {b}");
    }

    #[test]
    fn gamma_and_beta_have_known_values() {
        assert_close(ln_gamma(1.0), 0.0);
        assert_close(ln_gamma(0.5), std::f64::consts::PI.sqrt().ln());
        assert_close(ln_gamma(10.0), 362_880_f64.ln());
        // I_x(1, b) = 1 - (1 - x)^b, I_x(a, 1) = x^a, and the symmetry.
        assert_close(incomplete_beta(0.3, 1.0, 4.0), 1.0 - 0.7_f64.powi(4));
        assert_close(incomplete_beta(0.9, 3.0, 1.0), 0.9_f64.powi(3));
        assert_close(incomplete_beta(0.5, 2.5, 2.5), 0.5);
    }

    #[test]
    fn welch_test_has_known_values() {
        // t = -1 with 8 degrees of freedom: the two-sided p of Student's distribution is 0.346593507….
        let (a, b) = ([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_close(welch(&a, &b).unwrap(), 0.346_593_507_087_334_2);
        assert_eq!((welch(&[1.0], &a), welch(&[1.0, 1.0], &[1.0, 1.0])), (None, None));
    }

    #[test]
    fn holm_adjusts_p_values() {
        // The smallest times three, the next times two, and never below the previous one.
        let mut p = [0.03, 0.01, 0.04];
        holm_adjust(&mut p.each_mut());
        assert_eq!(p, [0.06, 0.03, 0.06]);
        let mut p = [0.9, 0.6];
        holm_adjust(&mut p.each_mut());
        assert_eq!(p, [1.0, 1.0]);
        holm_adjust(&mut []);
    }
}
