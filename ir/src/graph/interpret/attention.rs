//! Definitions of ops on a `paged` state: appends, attention, and the selection of positions.

use super::call::{Call, PlaceLists};
use super::math::{self, AttentionShape, CachedRows};
use super::positions::rotated_heads;
use super::{InterpretError, Value, index};
use crate::cache;
use crate::graph::attrs::ScoreAttrs;
use crate::graph::op::OpKind;
use crate::graph::types::CacheShape;
use crate::graph::{Operand, StateId};

pub(super) fn kv_append(call: &mut Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let k = call.f32s("k")?;
    append(call, &k)?;
    Ok(vec![Value::Token])
}

pub(super) fn index_top_k(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let (q, dims) = (call.f32s("q")?, call.dims("q"));
    let state = call.state("kv");
    let [keys, _] = &call.interpreter.states[state.index()][..] else {
        unreachable!("verified: state {} has keys and values", state.0)
    };
    let every = call.interpreter.module.states[state.index()].every as usize;
    let (length, top_k) = (keys.len() / dims[2].max(1), call.op.attr("top_k").int() as usize);
    let Operand::Value(w) = call.op.operand("w") else {
        let [block, local] = ["block", "local"].map(|name| call.op.attr(name).int() as usize);
        // The result needs at most as many columns as the existing blocks have positions.
        let top_k = top_k.min(length.next_multiple_of(block).max(local.saturating_mul(block)));
        let mut data = Vec::with_capacity(dims[0] * dims[1] * top_k);
        for (q, &position) in q.chunks_exact(dims[1] * dims[2]).zip(call.ints("pos")) {
            let position = call.index("position", position, length)?;
            let heads = q.chunks_exact(dims[2]);
            data.extend(heads.flat_map(|q| math::index_blocks(q, keys, position, top_k, block, local)));
        }
        return Ok(vec![Value::I32 { dims: vec![dims[0], dims[1], top_k], data }, Value::Token]);
    };
    let w = call.interpreter.floats(call.env.get(w))?;
    let rows = q.chunks_exact(dims[1] * dims[2]).zip(w.chunks_exact(dims[1])).zip(call.ints("pos"));
    let entries = call.op.attr("entries").bool();
    // There cannot be more choices than entries. This omits columns that would contain only -1.
    let top_k = top_k.min(if entries { length } else { length.saturating_mul(every) });
    let chosen = if entries { top_k } else { top_k + every - 1 };
    let mut data = Vec::with_capacity(dims[0] * chosen);
    for ((q, w), &position) in rows {
        let position = call.index("position", position, length.saturating_mul(every))?;
        data.extend(match entries {
            true => math::index_entries(q, w, keys, position, top_k, every),
            false => math::index_top_k(q, w, keys, position, top_k, every),
        });
    }
    Ok(vec![Value::I32 { dims: vec![dims[0], chosen], data }, Value::Token])
}

pub(super) fn attention(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    Ok(vec![attend(call, &[call.state("kv")])?, Value::Token])
}

pub(super) fn attention_entries(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let states = ["kv", "entries"].map(|token| call.state(token));
    Ok(vec![attend(call, &states)?, Value::Token, Value::Token])
}

pub(super) fn rope_append(call: &mut Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let k = rotated_heads(call, "k")?;
    append(call, &k)?;
    Ok(vec![Value::Token])
}

/// Writes the keys `k` and the op's values into a `paged` state. A row replaces the row at its
/// position, or extends the state by one position.
fn append(call: &mut Call<'_, '_>, k: &[f32]) -> Result<(), InterpretError> {
    let (v, positions, state) = (call.f32s("v")?, call.ints("pos"), call.state("kv"));
    let (mnemonic, shape) = (call.mnemonic(), cache(call, state));
    let declared = &call.interpreter.module.states[state.index()];
    let every = declared.every as usize;
    let (key, value) = ((shape.heads * shape.key) as usize, (shape.heads * shape.value) as usize);
    let [keys, values] = &mut call.interpreter.states[state.index()][..] else {
        unreachable!("verified: state {} has keys and values", state.0)
    };
    let [k, v] = [(0, k), (1, &v)].map(|(field, rows)| {
        let mut rows = rows.to_vec();
        cache::round(declared.fields[field].format, &mut rows);
        rows
    });
    for ((k, v), &position) in k.chunks_exact(key).zip(v.chunks_exact(value)).zip(positions) {
        let length = keys.len() / key;
        let at = index(mnemonic, "position", position, (length + 1).saturating_mul(every))? / every;
        if at == length {
            keys.extend_from_slice(k);
            values.extend_from_slice(v);
        } else {
            keys[at * key..][..key].copy_from_slice(k);
            values[at * value..][..value].copy_from_slice(v);
        }
    }
    Ok(())
}

/// Computes attention over the positions of the first state and, if there is a second state, over
/// its complete entries. If the op has a list of chosen entries, it restricts the last state.
fn attend(call: &Call<'_, '_>, states: &[StateId]) -> Result<Value, InterpretError> {
    let (q, dims, chosen) = (call.f32s("q")?, call.dims("q"), call.choice());
    let cache = cache(call, states[0]);
    let shape =
        AttentionShape { heads: dims[1], kv_heads: cache.heads as usize, key: dims[2], value: cache.value as usize };
    let scores = if call.op.kind == OpKind::AttentionEntries {
        ScoreAttrs::plain(call.op.attr("scale").float())
    } else {
        ScoreAttrs::from_op(call.op)
    };
    let sinks = call.dequantised_if_given("sinks")?;
    let mut out = Vec::with_capacity(dims[0] * shape.heads * shape.value);
    for (row, (q, &position)) in q.chunks_exact(dims[1] * dims[2]).zip(call.ints("pos")).enumerate() {
        // `seen` counts the entries that the query sees in the states so far, and `before` those of
        // earlier states. `begin` is the first entry that it sees in the current state.
        let (mut keys, mut values, mut seen, mut before, mut begin) = (Vec::new(), Vec::new(), 0, 0, 0);
        for state in states {
            let [all_keys, all_values] = &call.interpreter.states[state.index()][..] else {
                unreachable!("verified: state {} has keys and values", state.0)
            };
            let declared = &call.interpreter.module.states[state.index()];
            let (window, every) = (declared.window, declared.every as usize);
            let length = all_keys.len() / (cache.heads * cache.key) as usize;
            let position = call.index("position", position, length.saturating_mul(every))?;
            // With `reach`, a query also sees positions after its own, up to the last row of the
            // step.
            let ahead = (position + scores.reach as usize).min(length.saturating_sub(1));
            let end = if scores.reach > 0 { ahead + 1 } else { (position + 1) / every };
            let first = match window.map(|window| window as usize) {
                None if scores.reach > 0 => position.saturating_sub(scores.reach as usize),
                None => 0,
                Some(chunk) if declared.chunked => position / chunk * chunk,
                Some(window) => end.saturating_sub(window),
            };
            let part = |width: u64| {
                let row = (cache.heads * width) as usize;
                first * row..end * row
            };
            keys.extend_from_slice(&all_keys[part(cache.key)]);
            values.extend_from_slice(&all_values[part(cache.value)]);
            (before, seen, begin) = (seen, seen + end - first, first);
        }
        // The op has one list for all key heads, or one list for each key head.
        let sees = |head: usize, p: usize| {
            let Some(PlaceLists { dims, places }) = &chosen else { return true };
            let n = dims[dims.len() - 1];
            let list = if dims.len() > 2 { row * dims[1] + head } else { row };
            p < before || places[list * n..][..n].contains(&((begin + p - before) as i32))
        };
        let sinks = sinks.as_deref();
        let cached = CachedRows { keys: &keys, values: &values };
        out.extend(math::attention(q, cached, &shape, seen - 1, &scores, sinks, sees));
    }
    Ok(Value::F32 { dims: vec![dims[0], dims[1], shape.value], data: out })
}

/// Returns the shape of a `paged` state.
fn cache(call: &Call<'_, '_>, state: StateId) -> CacheShape {
    match CacheShape::from_state(&call.interpreter.module.states[state.index()]) {
        Some(shape) => shape,
        None => unreachable!("verified: state {} is paged", state.0),
    }
}
