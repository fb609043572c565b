//! The normalised mean squared error of computed numbers.

/// Returns the normalised mean squared error: the sum of squared differences over the sum of
/// squares of `exact`.
///
/// # Panics
/// If the lengths differ.
pub fn nmse(found: &[f32], exact: &[f32]) -> f64 {
    nmse_above(found, exact, 0.0)
}

/// Returns [`nmse`], in which the denominator (the sum of squares of `exact`) is at least `least`.
///
/// # Panics
/// If the lengths differ.
pub fn nmse_above(found: &[f32], exact: &[f32], least: f64) -> f64 {
    assert_eq!(found.len(), exact.len());
    let error: f64 = found.iter().zip(exact).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum();
    error / exact.iter().map(|&b| f64::from(b).powi(2)).sum::<f64>().max(least)
}
