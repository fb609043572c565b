//! Attention of the interpreter: rotations, appends to a cache, and the visible positions of a row.

use super::math::{self, AttentionShape};
use super::{InterpretError, Interpreter, index};
use crate::cache;
use crate::graph::attrs::{RopeAttrs, ScoreAttrs};
use crate::graph::op::OpKind;
use crate::graph::types::CacheShape;
use crate::graph::{Op, Operand, StateId};

/// Result of an index op: dimensions, the last one being the length of a list, and numbers of
/// places.
pub(super) type Lists<'a> = (&'a [usize], &'a [i32]);

impl Interpreter<'_> {
    /// Returns the divisors of a rotation's frequencies.
    pub(super) fn rope_factors(&self, op: &Op) -> Result<Option<Vec<f32>>, InterpretError> {
        let long = op.operand("long");
        match long != Operand::Absent && self.context > RopeAttrs::from_op(op).original_context {
            true => self.optional(long),
            false => self.optional(op.operand("factors")),
        }
    }

    pub(super) fn rope_heads(
        &self,
        op: &Op,
        x: &[f32],
        heads: usize,
        size: usize,
        pos: &[i32],
    ) -> Result<Vec<f32>, InterpretError> {
        let normed = self.optional(op.operand("norm"))?.map(|w| math::rms_norm(x, &w, size, op.attr("eps").float()));
        let factors = self.rope_factors(op)?;
        let x = normed.as_deref().unwrap_or(x);
        Ok(math::rope(x, heads, size, pos, &RopeAttrs::from_op(op), factors.as_deref()))
    }

    /// Returns the shape of a `paged` state.
    pub(super) fn cache(&self, state: StateId) -> CacheShape {
        match CacheShape::of(&self.module.states[state.index()]) {
            Some(shape) => shape,
            None => unreachable!("verified: state {} is paged", state.0),
        }
    }

    /// Writes rows into a `paged` state. A row replaces the one at its position, or extends the
    /// state by one.
    pub(super) fn append(
        &mut self,
        op: &Op,
        state: StateId,
        k: &[f32],
        v: &[f32],
        positions: &[i32],
    ) -> Result<(), InterpretError> {
        let (shape, every) = (self.cache(state), self.module.states[state.index()].every as usize);
        let (key, value) = ((shape.heads * shape.key) as usize, (shape.heads * shape.value) as usize);
        let [keys, values] = &mut self.states[state.index()][..] else {
            unreachable!("verified: state {} has keys and values", state.0)
        };
        let [k, v] = [(0, k), (1, v)].map(|(field, rows)| {
            let mut rows = rows.to_vec();
            cache::round(self.module.states[state.index()].fields[field].format, &mut rows);
            rows
        });
        for ((k, v), &position) in k.chunks_exact(key).zip(v.chunks_exact(value)).zip(positions) {
            let length = keys.len() / key;
            let at = index(op.kind.row().mnemonic, "position", position, (length + 1).saturating_mul(every))? / every;
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

    /// Computes attention over the first state's positions and, if there is a second state, over
    /// its complete places. A choice restricts the last state.
    pub(super) fn attention(
        &self,
        op: &Op,
        states: &[StateId],
        q: &[f32],
        dims: &[usize],
        (positions, chosen): (&[i32], Option<Lists<'_>>),
    ) -> Result<(Vec<f32>, Vec<usize>), InterpretError> {
        let cache = self.cache(states[0]);
        let shape = AttentionShape {
            heads: dims[1],
            kv_heads: cache.heads as usize,
            key: dims[2],
            value: cache.value as usize,
        };
        let scores = if op.kind == OpKind::AttentionEntries {
            ScoreAttrs::plain(op.attr("scale").float())
        } else {
            ScoreAttrs::from_op(op)
        };
        let sinks = self.optional(op.operand("sinks"))?;
        let mut out = Vec::with_capacity(dims[0] * shape.heads * shape.value);
        for (row, (q, &position)) in q.chunks_exact(dims[1] * dims[2]).zip(positions).enumerate() {
            // `before` is the number of places seen in earlier states, and `begin` the first place
            // seen in the last state.
            let (mut keys, mut values, mut seen, mut before, mut begin) = (Vec::new(), Vec::new(), 0, 0, 0);
            for state in states {
                let [all_keys, all_values] = &self.states[state.index()][..] else {
                    unreachable!("verified: state {} has keys and values", state.0)
                };
                let declared = &self.module.states[state.index()];
                let (window, every) = (declared.window, declared.every as usize);
                let length = all_keys.len() / (cache.heads * cache.key) as usize;
                let position = index(op.kind.row().mnemonic, "position", position, length.saturating_mul(every))?;
                // In both directions, up to the last row of the step.
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
            // One list for all key heads, or one for each.
            let sees = |head: usize, p: usize| {
                let Some((dims, chosen)) = chosen else { return true };
                let n = dims[dims.len() - 1];
                let list = if dims.len() > 2 { row * dims[1] + head } else { row };
                p < before || chosen[list * n..][..n].contains(&((begin + p - before) as i32))
            };
            let sinks = sinks.as_deref();
            out.extend(math::attention(q, [&keys, &values], &shape, seen - 1, &scores, sinks, sees));
        }
        Ok((out, vec![dims[0], dims[1], shape.value]))
    }
}
