//! `short_conv`: a causal convolution of a few taps, separate for each channel. Models with linear
//! attention apply it to queries, keys and values (Qwen3-Next, Kimi Linear, LFM2).
//!
//! ```text
//! y[t, c] = sum over the taps j of w[c, j] * x[t - (K - 1 - j) * dilation, c]
//!     // the last tap is the token itself
//! state @conv : recurrent f32[(K - 1) * dilation, channels]
//!     // the earlier rows, the oldest first; zeros before the first token
//! ```

use super::{Definition, Shape, Token};
use crate::graph::types::TypeError;
use crate::graph::types::rule::Rule;

pub(super) const DEFINITION: Definition = Definition { shape, step };

fn shape(rule: &Rule<'_>) -> Result<Shape, TypeError> {
    let [rows, channels] = rule.f32("x")?;
    let [own, taps] = rule.weight("w")?;
    rule.same_number("w", own, channels)?;
    // The number of taps is limited, since the kernel keeps the earlier rows in registers.
    if !(2..=MOST_TAPS).contains(&taps) {
        return Err(rule.operand("w", format!("a type with 2 to {MOST_TAPS} taps")));
    }
    let before = (taps - 1).saturating_mul(rule.positive("dilation")?);
    if before > MOST_BEFORE {
        let limit = format!("so small that {taps} taps reach at most {MOST_BEFORE} tokens back");
        return Err(rule.attr("dilation", limit));
    }
    Ok(Shape { rows: rows.clone(), state: vec![before, own], result: vec![own] })
}

/// Maximum number of taps. Known models have 3 or 4.
const MOST_TAPS: u64 = 8;
/// Maximum number of earlier rows in the state. Known models have 3 or 9.
const MOST_BEFORE: u64 = 12;

fn step(token: &Token<'_>, state: &mut [f32], y: &mut [f32]) {
    let (x, w) = (token.operand("x"), token.operand("w"));
    let (channels, taps) = (x.len(), w.len() / x.len());
    let apart = token.op.attr("dilation").int() as usize * channels;
    for (c, y) in y.iter_mut().enumerate() {
        let before = (0..taps - 1).map(|j| f64::from(w[c * taps + j]) * f64::from(state[j * apart + c]));
        *y = (before.sum::<f64>() + f64::from(w[c * taps + taps - 1]) * f64::from(x[c])) as f32;
    }
    state.copy_within(channels.., 0);
    let last = state.len() - channels;
    state[last..].copy_from_slice(x);
}
