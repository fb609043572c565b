//! `compress` gives one row for every `every` positions: a weighted mean in which each element has
//! its own weights. DeepSeek-V4 uses these rows as keys and values beyond the window (DeepSeek-AI,
//! "DeepSeek-V4", 2026, 2.3).
//!
//! ```text
//! each element:  weight of a position = softmax over positions (gate + ape[position mod every])
//!                y = sum of weight * kv
//! state @compressor : recurrent f32[3, d]
//!     // maximum, sum of weights, weighted sum of the positions so far
//! ```
//!
//! Each token has a row in the result. The row at the last of `every` positions is the complete
//! mean. With `overlap`, a token has two halves of keys, values and scores. The second half
//! contributes to the mean of its own positions, the first half to the mean of the next `every`
//! positions. The state is then f32[6, d], for the current and the next mean.

use super::{Definition, Shape, Token};
use crate::graph::types::TypeError;
use crate::graph::types::rule::Rule;

pub(super) const DEFINITION: Definition = Definition { shape, step };

/// Number of state elements for each element of an incomplete mean.
const NUMBERS: u64 = 3;

fn shape(rule: &Rule<'_>) -> Result<Shape, TypeError> {
    let [rows, width] = rule.f32("kv")?;
    if rule.f32("gate")? != [rows, width] {
        return Err(rule.operand("gate", format!("f32[{rows}, {width}], as kv")));
    }
    rule.rows("pos", rows)?;
    let every = rule.positive("every")?;
    let [own, columns] = rule.weight("ape")?;
    rule.same_number("ape", own, &every.into())?;
    rule.same_number("ape", columns, width)?;
    let series = if rule.find_attr("overlap").bool() { 2 } else { 1 };
    let d = rule.head_width("kv", width, series)?;
    Ok(Shape { rows: rows.clone(), state: vec![NUMBERS * series, d], result: vec![d] })
}

fn step(token: &Token<'_>, state: &mut [f32], y: &mut [f32]) {
    let [kv, gate, ape] = ["kv", "gate", "ape"].map(|name| token.operand(name));
    let every = token.op.attr("every").int() as usize;
    let (d, phase) = (y.len(), token.position.rem_euclid(every as i32) as usize);
    let series = kv.len() / d;
    let row = NUMBERS as usize * d;
    for (i, y) in y.iter_mut().enumerate() {
        // The mean of the token's own positions takes the second half.
        for (of, half) in (0..series).rev().enumerate() {
            let at = half * d + i;
            let made = &mut state[of * row..][..row];
            let score = f64::from(gate[at]) + f64::from(ape[phase * kv.len() + at]);
            let [max, sum, weighted] = [0, 1, 2].map(|number| f64::from(made[number * d + i]));
            // If the sum of weights is 0, no position was added yet.
            let top = if sum > 0.0 { max.max(score) } else { score };
            let fall = if sum > 0.0 { (max - top).exp() } else { 0.0 };
            let weight = (score - top).exp();
            let next = [top, sum * fall + weight, weighted * fall + weight * f64::from(kv[at])];
            next.into_iter().enumerate().for_each(|(number, x)| made[number * d + i] = x as f32);
        }
        *y = (f64::from(state[2 * d + i]) / f64::from(state[d + i])) as f32;
    }
    if phase + 1 == every {
        state.copy_within(row.., 0);
        let last = state.len() - row;
        state[last..].fill(0.0);
    }
}
