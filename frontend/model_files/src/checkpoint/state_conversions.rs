//! Conversions of the tensors of recurrent states: taps of convolutions, decays, and the order of
//! value heads.

use super::array::Array;
use super::conversions::{ConvertedPart, single_part, times};
use super::sizes::Sizes;
use ixc_ir::derived::Change;

/// Multiplies the rows of a state space's input matrix by their factors: those of gates, values,
/// keys, queries and steps.
pub(super) fn into_states(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    let keys = s.groups.checked_mul(s.state)?;
    let after = s.inner.checked_add(keys)?.checked_mul(2)?;
    let lens = [s.inner, s.inner, keys, keys, x.len(0).checked_sub(after)?];
    let mut from = 0;
    let part = |(len, factor): (u64, f32)| {
        let part = x.clone().slice(0, from, len)?;
        from += len;
        Some(times(part, [s.factors.ssm, factor]))
    };
    let arrays = lens.into_iter().zip(s.factors.ssm_parts).map(part).collect::<Option<_>>()?;
    Some(vec![ConvertedPart { part: "", arrays }])
}

pub(super) fn out_of_states(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(times(x, [s.factors.ssm_out, 1.0]))
}

/// Returns the taps of a depthwise convolution, stored as `[channels, 1, taps]`, without the middle
/// dimension.
pub(super) fn taps(_: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(if x.rank() == 3 { x.squeeze(1)? } else { x })
}

/// Removes dimensions of length 1 from a tensor with one number for each head, until one dimension
/// is left.
fn of_heads(mut x: Array) -> Option<Array> {
    while let Some(dim) = (0..x.rank()).find(|dim| x.len(*dim) == 1).filter(|_| x.rank() > 1) {
        x = x.squeeze(dim)?;
    }
    Some(x)
}

/// Returns the decays of heads, which are negative: minus the exponential function of the stored
/// logarithms.
pub(super) fn decay_of_heads(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    decay(s, of_heads(x)?)
}

/// Does what [`decay_of_heads`] does, for files that may have more numbers than heads. Only the
/// first numbers are kept.
pub(super) fn decay_of_first_heads(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    decay(s, of_heads(x)?.slice(0, 0, s.heads)?)
}

/// Returns the magnitudes of the heads' decays: the exponential function of the stored logarithms.
pub(super) fn rate_of_heads(_: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(of_heads(x)?.with_change(Change::Exp))
}

/// Returns the decays of a state's elements, which are negative: minus the exponential function of
/// the stored logarithms.
pub(super) fn decay(_: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(x.with_change(Change::MinusExp))
}

/// Returns the norm weight of groups of heads: a matrix with a row for each group, or a vector if
/// there is one group.
pub(super) fn by_group(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(if s.groups > 1 { x.clone().split(0, &[s.groups, x.len(0).checked_div(s.groups)?])? } else { x })
}

/// Reorders value heads along a dimension of length `value_heads * len`. In the stored tensor, the
/// value heads of one key head are adjacent. In the result, consecutive value heads belong to
/// consecutive key heads.
fn in_turns(s: &Sizes, x: Array, dim: usize, len: u64) -> Option<Array> {
    let each = s.value_heads.checked_div(s.key_heads)?;
    x.split(dim, &[s.key_heads, each, len])?.swap(dim, dim + 1)?.join(dim)?.join(dim)
}

/// Returns rows of queries and keys unchanged, then rows of values in the order of [`in_turns`].
pub(super) fn values_in_turns(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    let keys = s.key_heads.checked_mul(s.key_len)?.checked_mul(2)?;
    let values = s.value_heads.checked_mul(s.value_len)?;
    let still = x.clone().slice(0, 0, keys)?;
    let turned = in_turns(s, x.slice(0, keys, values)?, 0, s.value_len)?;
    Some(vec![ConvertedPart { part: "", arrays: vec![still, turned] }])
}

pub(super) fn turned_values(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(in_turns(s, x, 0, s.value_len)?)
}

pub(super) fn turned_heads(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(in_turns(s, x, 0, 1)?)
}

pub(super) fn turned_decay(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    decay(s, in_turns(s, x, 0, 1)?)
}

pub(super) fn turned_taps(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    values_in_turns(s, if x.rank() == 3 { x.squeeze(1)? } else { x })
}

pub(super) fn turned_columns(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(in_turns(s, x, 1, s.value_len)?)
}

/// Splits Qwen3-Next's fused projection, which has, for each key head, rows of its query, key,
/// values and gates.
pub(super) fn by_key_head(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    let values = s.value_heads.checked_div(s.key_heads)?.checked_mul(s.value_len)?;
    let keys = s.key_len.checked_mul(2)?;
    let gates = keys.checked_add(values)?;
    let heads = x.split(0, &[s.key_heads, gates.checked_add(values)?])?;
    let part = |from: u64, len: u64| heads.clone().slice(1, from, len)?.join(0);
    let (q, k) = (part(0, s.key_len)?, part(s.key_len, s.key_len)?);
    let (v, z) = (part(keys, values)?, part(gates, values)?);
    Some(vec![ConvertedPart { part: "qkv", arrays: vec![q, k, v] }, ConvertedPart { part: "gate", arrays: vec![z] }])
}
