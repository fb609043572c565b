//! `wkv`: linear attention with a decay for each token and each element of a key, as in RWKV (Peng
//! et al., "Eagle and Finch", 2024, and "RWKV-7 Goose", 2025).
//!
//! ```text
//! each head:  M' = diag(decay) * M - remove (M^T find)^T + k v^T;   y = M'^T q       // RWKV-7
//! with `before` (RWKV-6, which adds its bonus separately):
//!             M' = diag(decay) * M + k v^T;                         y = M^T q
//! with `filled` (RWKV-6 instead of Qwen2's attention):
//!             M' = diag(decay) * M + ((1 - decay) * k) v^T;         y = M'^T q
//! state @wkv : recurrent f32[heads, d, dv]          // M of each; zeros before the first token
//! ```
//!
//! Before the decay, the op reads the state's value at the key `find`, and subtracts it at the key
//! `remove`. This is a delta rule whose two keys differ from the written key `k`.
//!
//! If `k` and `v` have fewer heads than `q`, equal groups of adjacent heads of `q` share a head of
//! `k` and `v`. Each head of `q` has its own decays.

use super::{Definition, Shape, Token};
use crate::graph::types::TypeError;
use crate::graph::types::rule::Rule;

pub(super) const DEFINITION: Definition = Definition { shape, step };

fn shape(rule: &Rule<'_>) -> Result<Shape, TypeError> {
    let [rows, heads, d] = rule.f32("q")?;
    let [k_rows, key_heads, key_length] = rule.f32("k")?;
    rule.same("k", k_rows, rows)?;
    rule.same("k", key_length, d)?;
    let [v_rows, value_heads, dv] = rule.f32("v")?;
    rule.same("v", v_rows, rows)?;
    rule.same("v", value_heads, key_heads)?;
    if rule.has("find") != rule.has("remove") {
        return Err(rule.operand("remove", "present with find, and absent without find"));
    }
    for name in ["decay", "find", "remove"].into_iter().filter(|name| rule.has(name)) {
        if rule.f32(name)? != [rows, heads, d] {
            return Err(rule.operand(name, format!("f32[{rows}, {heads}, {d}], as q")));
        }
    }
    let (heads, key_heads) = (rule.number("q", heads)?, rule.number("k", key_heads)?);
    if key_heads == 0 || !heads.is_multiple_of(key_heads) {
        return Err(rule.operand("q", format!("a type with a multiple of {key_heads} heads")));
    }
    let (d, dv) = (rule.number("q", d)?, rule.number("v", dv)?);
    Ok(Shape { rows: rows.clone(), state: vec![heads, d, dv], result: vec![heads, dv] })
}

fn step(token: &Token<'_>, state: &mut [f32], y: &mut [f32]) {
    let [q, k, v, decay, find, remove] = ["q", "k", "v", "decay", "find", "remove"].map(|name| token.operand(name));
    let [before, filled] = ["before", "filled"].map(|name| token.op.attr(name).bool());
    // The state has one matrix for each head, with dimensions of q's head and y's head: d * dv *
    // heads.
    let d = state.len() / y.len();
    let heads = q.len() / d;
    let (dv, group) = (y.len() / heads, q.len() / k.len());
    for (h, (m, y)) in state.chunks_exact_mut(d * dv).zip(y.chunks_exact_mut(dv)).enumerate() {
        let of_head = |x: &[f32], i: usize| x.get(h * d + i).copied().map_or(0.0, f64::from);
        let (k, v) = (&k[h / group * d..][..d], &v[h / group * dv..][..dv]);
        for (j, y) in y.iter_mut().enumerate() {
            let found: f64 = (0..d).map(|i| f64::from(m[i * dv + j]) * of_head(find, i)).sum();
            let mut sum = 0.0;
            for i in 0..d {
                let (old, decay) = (f64::from(m[i * dv + j]), of_head(decay, i));
                let k = f64::from(k[i]) * if filled { 1.0 - decay } else { 1.0 };
                let new = decay * old - of_head(remove, i) * found + k * f64::from(v[j]);
                sum += of_head(q, i) * if before { old } else { new };
                m[i * dv + j] = new as f32;
            }
            *y = sum as f32;
        }
    }
}
