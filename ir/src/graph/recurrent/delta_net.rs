//! `delta_net`: linear attention by the gated delta rule (Yang et al., "Gated Delta Networks",
//! 2024). Qwen3-Next and Qwen3.5 use it. Kimi Linear uses a decay for each element of a key (Kimi
//! Team, "Kimi Linear", 2025).
//!
//! ```text
//! each head:  q, k over their lengths (sqrt of the sum of squares + eps), q over sqrt(dk)
//!             decay = exp(a * softplus(alpha + dt))        // a below 0
//!             decay = exp(bound / (1 + exp(-|a| (alpha + dt))))          // with a bound
//!             rate  = 1 / (1 + exp(-beta))                 // with an attribute `rate` times that
//!             M <- decay * M;   u = rate * (v - M' k);   M <- M + k u';   y = M' q
//! state @ssm : recurrent f32[value heads, dk, dv]    // M of each; zeros before the first token
//! ```
//!
//! The attribute `bound`, if not 0, is negative: the lower bound of the logarithm of a decay
//! (`lower_bound` of flash-linear-attention's KDA gate). 0 means no bound.
//!
//! The attribute `rate` is a factor on the rate; 0 stands for a factor of 1. With a rate of up to
//! 2, an update can flip the sign of the state's value at a key (Grazzi et al., "Unlocking
//! State-Tracking in Linear RNNs Through Negative Eigenvalues", 2024). OLMo Hybrid uses this.
//!
//! `alpha` may have a number for each element of a key; `dt` then has too, and each row of `M` has
//! its own decay. `a` still has one number for each head.
//!
//! If there are fewer key heads than value heads, value head `h` uses key head
//! `h / (value heads / key heads)` (`grouped`, Qwen3-Next). With `interleaved` it uses key head
//! `h mod key heads` (the files of Qwen3.5).

use super::{Definition, Shape, Token};
use crate::graph::attrs::KeyHeads;
use crate::graph::types::TypeError;
use crate::graph::types::rule::Rule;

pub(super) const DEFINITION: Definition = Definition { shape, step };

fn shape(rule: &Rule<'_>) -> Result<Shape, TypeError> {
    let [rows, key_heads, dk] = rule.f32("q")?;
    if rule.f32("k")? != [rows, key_heads, dk] {
        return Err(rule.operand("k", format!("f32[{rows}, {key_heads}, {dk}], as q")));
    }
    let [v_rows, heads, dv] = rule.f32("v")?;
    rule.same("v", v_rows, rows)?;
    if rule.f32("beta")? != [rows, heads] {
        return Err(rule.operand("beta", format!("f32[{rows}, {heads}], one for each head of v")));
    }
    let alpha = rule.f32_any("alpha")?;
    let by_channel = alpha[..] == [rows.clone(), heads.clone(), dk.clone()];
    if !by_channel && alpha[..] != [rows.clone(), heads.clone()] {
        let expected = format!("f32[{rows}, {heads}], one for each head of v, or f32[{rows}, {heads}, {dk}]");
        return Err(rule.operand("alpha", expected));
    }
    let [a] = rule.weight("a")?;
    rule.same_number("a", a, heads)?;
    rule.eps()?;
    let bound = rule.find_attr("bound").float();
    if !(bound.is_finite() && bound <= 0.0) {
        return Err(rule.attr("bound", "0 or a finite number below"));
    }
    let rate = rule.find_attr("rate").float();
    if !(rate.is_finite() && rate >= 0.0) {
        return Err(rule.attr("rate", "0 or a finite number above"));
    }
    let (key_heads, heads) = (rule.number("q", key_heads)?, rule.number("v", heads)?);
    let (dk, dv) = (rule.number("q", dk)?, rule.number("v", dv)?);
    let [dt] = rule.weight("dt")?;
    let decays = if by_channel { heads.checked_mul(dk) } else { Some(heads) };
    if Some(dt) != decays {
        return Err(rule.operand("dt", "a type with a number for each of a row of alpha"));
    }
    if !heads.is_multiple_of(key_heads) {
        return Err(rule.operand("v", format!("a type with a multiple of {key_heads} heads")));
    }
    Ok(Shape { rows: rows.clone(), state: vec![heads, dk, dv], result: vec![heads, dv] })
}

fn step(token: &Token<'_>, state: &mut [f32], y: &mut [f32]) {
    let [q, k, v, alpha, beta, a, dt] = ["q", "k", "v", "alpha", "beta", "a", "dt"].map(|name| token.operand(name));
    let heads = beta.len();
    let (dv, dk) = (v.len() / heads, state.len() / v.len());
    let key_heads = q.len() / dk;
    let (eps, bound) = (token.op.attr("eps").float(), token.op.attr("bound").float());
    let most = Some(token.op.attr("rate").float()).filter(|&rate| rate != 0.0).unwrap_or(1.0);
    let grouped = token.op.attr("keys").word() == KeyHeads::Grouped.word();
    let unit = |x: &[f32]| -> Vec<f64> {
        let length = (x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() + eps).sqrt();
        x.iter().map(|&x| f64::from(x) / length).collect()
    };
    for (h, (m, y)) in state.chunks_exact_mut(dk * dv).zip(y.chunks_exact_mut(dv)).enumerate() {
        let key = if grouped { h / (heads / key_heads) } else { h % key_heads };
        let (q, k) = (unit(&q[key * dk..][..dk]), unit(&k[key * dk..][..dk]));
        // One decay for the whole head, or one for each element of its key.
        let decay: Vec<f64> = alpha
            .iter()
            .zip(dt)
            .skip(h * (alpha.len() / heads))
            .take(alpha.len() / heads)
            .map(|(&alpha, &dt)| {
                let x = f64::from(alpha) + f64::from(dt);
                let a = f64::from(a[h]);
                let log = match bound {
                    0.0 => a * (x.max(0.0) + (-x.abs()).exp().ln_1p()),
                    bound => bound / (1.0 + (-a.abs() * x).exp()),
                };
                log.exp()
            })
            .collect();
        let decay = |i: usize| decay[if decay.len() == 1 { 0 } else { i }];
        let rate = most / (1.0 + (-f64::from(beta[h])).exp());
        for j in 0..dv {
            let found: f64 = (0..dk).map(|i| decay(i) * f64::from(m[i * dv + j]) * k[i]).sum();
            let change = rate * (f64::from(v[h * dv + j]) - found);
            let mut sum = 0.0;
            for i in 0..dk {
                let next = decay(i) * f64::from(m[i * dv + j]) + k[i] * change;
                sum += next * q[i];
                m[i * dv + j] = next as f32;
            }
            y[j] = (sum / (dk as f64).sqrt()) as f32;
        }
    }
}
