//! Attention: rotations, caches, and the selection of positions.

use std::collections::HashMap;

use ixc_ir::format::Format;
use ixc_ir::graph::attrs::{RopeAttrs, RopeStyle, ScoreAttrs};
use ixc_ir::graph::builder::RopeFactors;
use ixc_ir::graph::view::AttentionEntries;
use ixc_ir::graph::{Attr, Operand, Place, Recurrent, State, ValueId, WeightId};

use super::Builder;
use crate::error::ArchError;
use crate::hyper::{Indexer, Mla, Rope};

/// Positions that determine the angles of RoPE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopePositions {
    /// Number whose multiples positions are rounded down to.
    pub every: u64,
    /// Whether rotations have the opposite direction.
    pub back: bool,
}

impl RopePositions {
    /// The positions of tokens.
    pub(crate) const TOKENS: RopePositions = RopePositions { every: 1, back: false };
}

/// Inputs of the compression of runs of positions to a row each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compression<'a> {
    /// Rows whose weighted mean is the result.
    pub kv: ValueId,
    /// Logits of the weights of the rows `kv`.
    pub gate: ValueId,
    /// Name of the weight that is added to these logits, by position in a run.
    pub ape: &'a str,
    /// Positions of a run.
    pub every: u64,
    /// Elements of a row.
    pub width: u64,
    /// Whether a row also includes the previous run; each half of `width` is then a separate
    /// series.
    pub overlap: bool,
}

/// Inputs of an indexer of positions, and its sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PositionIndex {
    /// Queries, `[T, heads, d]`.
    pub q: ValueId,
    /// Weights of query heads, `[T, heads]`.
    pub w: ValueId,
    /// Keys, `[T, 1, d]`.
    pub k: ValueId,
    /// Elements of a key.
    pub key_length: u64,
    /// Maximum number of selected positions or entries.
    pub top_k: u64,
    /// Number of positions that share a key.
    pub run: u64,
    /// Whether the result is compressed entries of `run` positions.
    pub entries: bool,
}

/// Inputs of an indexer whose heads select blocks of positions, and its sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockSelection {
    /// Queries, `[T, heads, d]`.
    pub q: ValueId,
    /// Keys, `[T, 1, d]`.
    pub k: ValueId,
    /// Elements of a key.
    pub key_length: u64,
    /// Positions of the selected blocks.
    pub top_k: u64,
    /// Positions of a block.
    pub block: u64,
    /// Number of last blocks, up to and including the row's block, that are always selected.
    pub local: u64,
}

impl Builder<'_> {
    /// Rotates heads by `positions`.
    pub fn rope_by(
        &mut self,
        x: ValueId,
        rope: &Rope,
        style: RopeStyle,
        positions: RopePositions,
    ) -> Result<ValueId, ArchError> {
        let RopePositions { every, back } = positions;
        let pos = match (every, back) {
            (1, false) => self.step.pos,
            _ => {
                let pos = self.graph.positions(self.step.pos, every, back);
                self.op_result(pos)?
            }
        };
        let y = self.graph.rope(x, pos, RopeFactors::default(), &rope_attrs(rope, style));
        self.op_result(y)
    }

    /// Rotates heads by the step's positions. Frequencies are divided by `rope_freqs.weight`, or by
    /// `rope_factors_short.weight` and, in long contexts, `rope_factors_long.weight`, if the file
    /// has them.
    pub fn rope(&mut self, layer: usize, x: ValueId, style: RopeStyle) -> Result<ValueId, ArchError> {
        let local = self.hyper.local_rope.as_ref().filter(|_| self.hyper.layers[layer].window.is_some());
        let rope = local.unwrap_or(&self.hyper.rope);
        let factors = match rope.divided {
            true => RopeFactors {
                short: match self.divisors("rope_freqs.weight", rope)? {
                    None => self.divisors("rope_factors_short.weight", rope)?,
                    divisors => divisors,
                },
                long: self.divisors("rope_factors_long.weight", rope)?,
            },
            false => RopeFactors::default(),
        };
        let attrs = rope_attrs(rope, style);
        let y = self.graph.rope(x, self.step.pos, factors, &attrs);
        self.op_result(y)
    }

    /// Returns the divisors of the frequencies of `rope`, if the file has them: a number for each
    /// pair. The tensor may be longer, for layers that rotate more pairs.
    pub(super) fn divisors(&mut self, name: &str, rope: &Rope) -> Result<Option<WeightId>, ArchError> {
        let Some(tensor) = self.gguf.tensor(name) else { return Ok(None) };
        let pairs = rope.dims / 2;
        let all = self.hyper.local_rope.as_ref().map_or(pairs, |local| pairs.max(local.dims / 2));
        if tensor.dims() != [all] || tensor.tensor_type().name != "F32" {
            return self.vector(name, pairs).map(Some);
        }
        let place = Place { file: tensor.file() as u32, offset: tensor.offset() };
        if let Some(id) = self.graph.find_weight(name) {
            return Ok(Some(id));
        }
        let weight = self.graph.weight(name, Format::F32, &[pairs], Some(place));
        self.used.insert(name.to_owned());
        self.op_result(weight).map(Some)
    }

    /// Returns the number of a layer's keys and values.
    pub(super) fn cache(&self, layer: usize) -> usize {
        self.round * self.hyper.layers.len() + layer
    }

    /// Returns the usual state of a layer's keys and values.
    pub fn key_value_state(&self, layer: usize) -> State {
        let of_layer = &self.hyper.layers[layer];
        let name = format!("kv.{}", self.cache(layer));
        let state = State::paged(&name, of_layer.kv_heads, of_layer.key_length, of_layer.value_length);
        // If attention is not causal, all positions are kept.
        State { window: of_layer.window.filter(|_| self.hyper.causal), ..state }
    }

    /// Appends `k` and `v` to the usual state of `layer`; both are `[T, heads, d]`.
    pub fn append(&mut self, layer: usize, k: ValueId, v: ValueId) -> Result<(), ArchError> {
        self.append_to(layer, self.key_value_state(layer), k, v)
    }

    /// Appends `k` and `v` to this state of `layer`; both are `[T, heads, d]`.
    pub fn append_to(&mut self, layer: usize, state: State, k: ValueId, v: ValueId) -> Result<(), ArchError> {
        let cache = self.cache(layer);
        let state = self.graph.state(state);
        let state = self.op_result(state)?;
        let kv = self.graph.state_begin(state);
        let kv = self.op_result(kv)?;
        let kv = self.graph.kv_append(kv, k, v, self.step.pos);
        let kv = self.op_result(kv)?;
        self.caches.insert(cache, kv);
        Ok(())
    }

    /// Attends in `layer` with `q`, `[T, heads, d]`, over the appended positions of this layer, or
    /// of the layer whose keys it shares. `sinks` adds attention sinks.
    pub fn attend(&mut self, layer: usize, q: ValueId, sinks: bool) -> Result<ValueId, ArchError> {
        self.attend_to(layer, q, &self.scores(layer), sinks, None)
    }

    /// Returns the usual attributes of attention in a layer.
    pub fn scores(&self, layer: usize) -> ScoreAttrs {
        let of_layer = &self.hyper.layers[layer];
        // If attention is not causal, half of a window precedes a row and half follows it.
        let reach = of_layer.window.filter(|_| !self.hyper.causal).map_or(0, |window| window / 2);
        let max_bias = self.hyper.scales.max_bias;
        ScoreAttrs { scale: of_layer.attention_scale, cap: 0.0, max_bias, slope: 0.0, reach }
    }

    /// Does what [`Builder::attend`] does, with these attributes, over the positions `selection` if
    /// there are any.
    pub fn attend_to(
        &mut self,
        layer: usize,
        q: ValueId,
        scores: &ScoreAttrs,
        sinks: bool,
        selection: Option<ValueId>,
    ) -> Result<ValueId, ArchError> {
        let of_layer = &self.hyper.layers[layer];
        let (heads, of) = (of_layer.heads, self.cache(of_layer.shares.unwrap_or(layer)));
        let kv =
            *self.caches.get(&of).unwrap_or_else(|| unreachable!("layer {of} appends before layer {layer} attends"));
        let sinks = match sinks {
            true => Some(self.vector(&format!("blk.{layer}.attn_sinks.weight"), heads)?),
            false => None,
        };
        let seen = match self.hyper.causal || scores.reach > 0 {
            true => self.step.pos,
            false => {
                let ends = self.graph.ends(self.step.pos);
                self.op_result(ends)?
            }
        };
        let y = self.graph.attention(q, kv, seen, sinks, selection, scores);
        let (y, kv) = self.op_result(y)?;
        self.caches.insert(of, kv);
        Ok(y)
    }

    /// Appends rows of one head, which are keys and values, to the entries of `layer`; an entry
    /// covers `every` positions.
    pub fn append_entries(&mut self, layer: usize, entry: ValueId, every: u64) -> Result<(), ArchError> {
        let of_layer = &self.hyper.layers[layer];
        let state =
            State::paged(&format!("entries.{layer}"), of_layer.kv_heads, of_layer.key_length, of_layer.value_length);
        let state = self.graph.state(State { every, ..state });
        let state = self.op_result(state)?;
        let token = self.graph.state_begin(state);
        let token = self.op_result(token)?;
        let token = self.graph.kv_append(token, entry, entry, self.step.pos);
        let token = self.op_result(token)?;
        self.entries.insert(layer, token);
        Ok(())
    }

    /// Attends in `layer` with `q`, `[T, heads, d]`, over the appended positions and over complete
    /// entries, or only the entries `selection`, with sinks.
    pub fn attend_entries(
        &mut self,
        layer: usize,
        q: ValueId,
        selection: Option<ValueId>,
    ) -> Result<ValueId, ArchError> {
        let of_layer = &self.hyper.layers[layer];
        let (scale, heads) = (of_layer.attention_scale, of_layer.heads);
        let appended = |of: &HashMap<usize, ValueId>| of.get(&layer).copied();
        let (Some(kv), Some(entries)) = (appended(&self.caches), appended(&self.entries)) else {
            unreachable!("layer {layer} appends before it attends")
        };
        let sinks = self.vector(&format!("blk.{layer}.attn_sinks.weight"), heads)?;
        let pos = self.step.pos;
        let op = AttentionEntries { q, kv, entries, pos, sinks: Some(sinks), chosen: selection, scale };
        let y = self.graph.attention_entries(&op);
        let (y, [kv, entries]) = self.op_result(y)?;
        self.caches.insert(layer, kv);
        self.entries.insert(layer, entries);
        Ok(y)
    }

    /// Compresses each run of positions to a row, with the state `state`.
    pub fn compress(&mut self, state: &str, of: &Compression<'_>) -> Result<ValueId, ArchError> {
        let Compression { kv, gate, ape, every, width, overlap } = *of;
        let ape = self.vectors(ape, &[every, width])?;
        let values = [kv, gate, self.step.pos].map(Operand::Value);
        let operands = [&values[..], &[Operand::Weight(ape)]].concat();
        let attrs = vec![Attr::Int(every.cast_signed()), Attr::Bool(overlap)];
        let (rows, d) = if overlap { (6, width / 2) } else { (3, width) };
        self.recurrent(Recurrent::Compress, state, &[rows, d], &operands, attrs)
    }

    /// Returns the sizes of latent attention, which the file must have.
    pub fn mla(&self) -> Result<Mla, ArchError> {
        let key = format!("{}.attention.kv_lora_rank", self.architecture);
        self.hyper.mla.ok_or_else(|| self.gguf.metadata().missing(&key, "u32").into())
    }

    /// Returns the length of the row from which queries of latent attention are made, which the
    /// file must have.
    pub fn query_rank(&self) -> Result<u64, ArchError> {
        let key = format!("{}.attention.q_lora_rank", self.architecture);
        self.mla()?.query_rank.ok_or_else(|| self.gguf.metadata().missing(&key, "u32").into())
    }

    /// Reads the indexer that selects positions, which the file must have.
    pub fn indexer(&self) -> Result<Indexer, ArchError> {
        Ok(Indexer::read(&self.keys(), &self.hyper.layers, self.hyper.context_length)?)
    }

    /// Builds the positions or entries that an indexer selects, with the state `state`.
    pub fn index_top_k(&mut self, state: &str, of: &PositionIndex) -> Result<ValueId, ArchError> {
        let PositionIndex { q, w, k, key_length, top_k, run, entries } = *of;
        let kv = self.index_keys(state, k, key_length, run)?;
        let selection = self.graph.index_top_k(q, w, kv, self.step.pos, top_k, entries);
        Ok(self.op_result(selection)?.0)
    }

    /// Builds the blocks of positions that each head of an indexer selects for itself, with the
    /// state `state`.
    pub fn index_blocks(&mut self, state: &str, of: &BlockSelection) -> Result<ValueId, ArchError> {
        let BlockSelection { q, k, key_length, top_k, block, local } = *of;
        let kv = self.index_keys(state, k, key_length, 1)?;
        let blocks = self.graph.index_blocks(q, kv, self.step.pos, top_k, block, local);
        Ok(self.op_result(blocks)?.0)
    }

    /// Returns the token of a new state with keys of an indexer; each covers `run` positions.
    pub(super) fn index_keys(
        &mut self,
        state: &str,
        k: ValueId,
        key_length: u64,
        run: u64,
    ) -> Result<ValueId, ArchError> {
        // The state has keys and values; the values are not used.
        let state = self.graph.state(State { every: run, ..State::paged(state, 1, key_length, 1) });
        let state = self.op_result(state)?;
        let none = self.slice(k, 0, 1)?;
        let kv = self.graph.state_begin(state);
        let kv = self.op_result(kv)?;
        let kv = self.graph.kv_append(kv, k, none, self.step.pos);
        self.op_result(kv)
    }
}

fn rope_attrs(rope: &Rope, style: RopeStyle) -> RopeAttrs {
    RopeAttrs {
        base: rope.base,
        dims: rope.dims,
        style,
        scaling: rope.scaling,
        factor: rope.factor,
        original_context: rope.original_context,
        beta_fast: rope.beta_fast,
        beta_slow: rope.beta_slow,
        attn_factor: rope.attn_factor,
    }
}
