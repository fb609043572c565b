//! How far numbers are from exact ones.

/// The normalised mean squared error: the sum of squared differences over the sum of squares of `exact`.
///
/// # Panics
/// When there are not equally many.
pub fn nmse(found: &[f32], exact: &[f32]) -> f64 {
    nmse_above(found, exact, 0.0)
}

/// As [`nmse`], where the squares of `exact` sum to more than `least`; else that is what differences are held against.
///
/// # Panics
/// When there are not equally many.
pub fn nmse_above(found: &[f32], exact: &[f32], least: f64) -> f64 {
    assert_eq!(found.len(), exact.len());
    let error: f64 = found.iter().zip(exact).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum();
    error / exact.iter().map(|&b| f64::from(b).powi(2)).sum::<f64>().max(least)
}
