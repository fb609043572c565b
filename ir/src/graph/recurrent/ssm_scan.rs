//! `ssm_scan` is a selective state space with one decay for each head, as in Mamba-2 (Dao and Gu,
//! "Transformers are SSMs", 2024).
//!
//! ```text
//! each head:  step = softplus(dt + bias)
//!             M <- exp(a * step) * M + b (step * x)';   y = M' c + d * x        // a below 0
//! state @ssm : recurrent f32[heads, s, p]          // M of each; zeros before the first token
//! ```
//!
//! Heads form equal groups of adjacent heads. The heads of a group share the operands `b` and `c`.
//!
//! If heads have one element each, `a` may have a number for each element of `b`. Each element of
//! the state then has its own decay, as in Mamba-1 (Gu and Dao, "Mamba", 2023).

use super::{Definition, Shape, Token};
use crate::graph::types::TypeError;
use crate::graph::types::rule::Rule;

pub(super) const DEFINITION: Definition = Definition { shape, step };

fn shape(rule: &Rule<'_>) -> Result<Shape, TypeError> {
    let [rows, heads, p] = rule.f32("x")?;
    let [b_rows, groups, s] = rule.f32("b")?;
    rule.same("b", b_rows, rows)?;
    if rule.f32("c")? != [rows, groups, s] {
        return Err(rule.operand("c", format!("f32[{rows}, {groups}, {s}], as b")));
    }
    if rule.f32("dt")? != [rows, heads] {
        return Err(rule.operand("dt", format!("f32[{rows}, {heads}], one for each head of x")));
    }
    for name in ["bias", "d"] {
        let [n] = rule.weight(name)?;
        rule.same_number(name, n, heads)?;
    }
    let (heads, groups) = (rule.number("x", heads)?, rule.number("b", groups)?);
    let (p, s) = (rule.number("x", p)?, rule.number("b", s)?);
    let a = rule.weight_shape("a");
    if a != [heads] && !(p == 1 && a == [heads, s]) {
        return Err(rule.operand("a", format!("[{heads}], or [{heads}, {s}] where heads are of one element")));
    }
    if !heads.is_multiple_of(groups) {
        return Err(rule.operand("x", format!("a type with a multiple of {groups} heads")));
    }
    Ok(Shape { rows: rows.clone(), state: vec![heads, s, p], result: vec![heads, p] })
}

fn step(token: &Token<'_>, state: &mut [f32], y: &mut [f32]) {
    let [x, b, c, dt, a, bias, d] = ["x", "b", "c", "dt", "a", "bias", "d"].map(|name| token.operand(name));
    let heads = dt.len();
    let (p, s) = (x.len() / heads, state.len() / x.len());
    let of_group = heads / (b.len() / s);
    // One decay rate for the head, or one for each element of the head's row of the state.
    let rates = a.len() / heads;
    for (h, (m, y)) in state.chunks_exact_mut(s * p).zip(y.chunks_exact_mut(p)).enumerate() {
        let (b, c) = (&b[h / of_group * s..][..s], &c[h / of_group * s..][..s]);
        let step = f64::from(dt[h]) + f64::from(bias[h]);
        let step = step.max(0.0) + (-step.abs()).exp().ln_1p();
        let decay = |i: usize| (f64::from(a[h * rates + if rates == 1 { 0 } else { i }]) * step).exp();
        for (j, y) in y.iter_mut().enumerate() {
            let x = f64::from(x[h * p + j]);
            let mut sum = f64::from(d[h]) * x;
            for i in 0..s {
                let next = decay(i) * f64::from(m[i * p + j]) + f64::from(b[i]) * (step * x);
                sum += next * f64::from(c[i]);
                m[i * p + j] = next as f32;
            }
            *y = sum as f32;
        }
    }
}
