//! Streams of a residual: what they are mixed with, and how (Xie et al., "mHC: Manifold-Constrained Hyper-Connections", 2026; DeepSeek-V4).
//!
//! ```text
//! a, b, C = x                                         // of n streams: [n], [n], [n, n]
//! input   = sigmoid(a * scale[0] + base) + eps        // of a block, by stream
//! output  = 2 sigmoid(b * scale[1] + base)
//! mixed   = softmax of rows(C * scale[2] + base) + eps; columns over their sums + eps; then rows and columns, iterations - 1 times
//! ```
//!
//! Everything is computed in f64 and rounded once.

/// What streams are mixed with, of each row of `x`: the first part alone where rows have no more.
pub(super) fn weights(x: &[f32], [scale, base]: [&[f32]; 2], n: usize, (iterations, eps): (i64, f64)) -> Vec<f32> {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(base.len()) {
        let part = |i: usize| (i / n).min(2);
        let row: Vec<f64> = row
            .iter()
            .zip(base)
            .enumerate()
            .map(|(i, (&x, &base))| f64::from(x) * f64::from(scale[part(i)]) + f64::from(base))
            .collect();
        out.extend(row[..n].iter().map(|&x| (sigmoid(x) + eps) as f32));
        if row.len() > n {
            out.extend(row[n..2 * n].iter().map(|&x| (2.0 * sigmoid(x)) as f32));
            out.extend(balanced(&row[2 * n..], n, iterations, eps).into_iter().map(|x| x as f32));
        }
    }
    out
}

/// The softmax of each row of a matrix, with rows and columns divided by their sums in turn (Sinkhorn and Knopp).
fn balanced(x: &[f64], n: usize, iterations: i64, eps: f64) -> Vec<f64> {
    let mut matrix = Vec::with_capacity(n * n);
    for row in x.chunks_exact(n) {
        let max = row.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
        matrix.extend(row.iter().map(|x| (x - max).exp() / sum + eps));
    }
    for iteration in 0..iterations {
        if iteration > 0 {
            for row in matrix.chunks_exact_mut(n) {
                let sum = row.iter().sum::<f64>() + eps;
                row.iter_mut().for_each(|x| *x /= sum);
            }
        }
        for column in 0..n {
            let sum = (0..n).map(|row| matrix[row * n + column]).sum::<f64>() + eps;
            (0..n).for_each(|row| matrix[row * n + column] /= sum);
        }
    }
    matrix
}

/// The weighted sum of the `n` streams of `d` elements of each row, by the first numbers of its `of_row` weights.
pub(super) fn input(x: &[f32], w: &[f32], [n, d, of_row]: [usize; 3]) -> Vec<f32> {
    let rows = x.chunks_exact(n * d).zip(w.chunks_exact(of_row));
    let sum = |(x, w): (&[f32], &[f32]), i: usize| -> f32 {
        (0..n).map(|j| f64::from(w[j]) * f64::from(x[j * d + i])).sum::<f64>() as f32
    };
    rows.flat_map(|row| (0..d).map(move |i| sum(row, i))).collect()
}

/// The `n` streams of `d` elements of each row, behind a block that gave `y`.
pub(super) fn mix(x: &[f32], y: &[f32], w: &[f32], [n, d]: [usize; 2]) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len());
    for ((x, y), w) in x.chunks_exact(n * d).zip(y.chunks_exact(d)).zip(w.chunks_exact((2 + n) * n)) {
        let weight = |j: usize, k: usize| f64::from(w[(2 + j) * n + k]);
        for k in 0..n {
            out.extend((0..d).map(|i| {
                let streams: f64 = (0..n).map(|j| weight(j, k) * f64::from(x[j * d + i])).sum();
                (f64::from(w[n + k]) * f64::from(y[i]) + streams) as f32
            }));
        }
    }
    out
}
