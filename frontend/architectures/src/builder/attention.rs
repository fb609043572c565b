//! Attention: RoPE, KV caches, and the selection of positions to attend to.

use std::collections::HashMap;

use ixc_ir::format::Format;
use ixc_ir::graph::attrs::{RopeAttrs, RopeStyle, ScoreAttrs};
use ixc_ir::graph::builder::RopeFactors;
use ixc_ir::graph::view::AttentionEntries;
use ixc_ir::graph::{Attr, Operand, Place, Recurrent, State, ValueId, WeightId};

use super::Builder;
use crate::error::ArchError;
use crate::hyper::{Indexer, Mla, Rope};

/// Change of the tokens' positions before they determine the angles of RoPE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopePositions {
    /// Divisor of positions: each position is rounded down to a multiple of this number.
    pub every: u64,
    /// Whether heads are rotated in the opposite direction.
    pub back: bool,
}

impl RopePositions {
    /// The unchanged positions of tokens.
    pub(crate) const TOKENS: RopePositions = RopePositions { every: 1, back: false };
}

/// Inputs of `compress`, which reduces each run of `every` consecutive positions to one row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compression<'a> {
    /// Rows of the positions. The result is their weighted mean in each run.
    pub kv: ValueId,
    /// Logits of the weights of the rows in `kv`.
    pub gate: ValueId,
    /// Name of the weight that is added to these logits. It has a row for each position in a run.
    pub ape: &'a str,
    /// Number of positions in a run.
    pub every: u64,
    /// Number of elements in a row of `kv`.
    pub width: u64,
    /// Whether a result also covers the previous run. It is then the mean over the first halves of
    /// the rows of the previous run, and the second halves of the rows of its own run.
    pub overlap: bool,
}

/// Inputs of an indexer, which selects positions, and its sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PositionIndex {
    /// Queries, `[T, heads, d]`.
    pub q: ValueId,
    /// Weights of the query heads' scores, `[T, heads]`.
    pub w: ValueId,
    /// Keys, `[T, 1, d]`.
    pub k: ValueId,
    /// Elements of a key.
    pub key_length: u64,
    /// Maximum number of selected positions or entries.
    pub top_k: u64,
    /// Number of consecutive positions that share one key.
    pub run: u64,
    /// Whether the indexer selects compressed entries of `run` positions, instead of positions.
    pub entries: bool,
}

/// Inputs of an indexer in which each head selects blocks of positions, and its sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockSelection {
    /// Queries, `[T, heads, d]`.
    pub q: ValueId,
    /// Keys, `[T, 1, d]`.
    pub k: ValueId,
    /// Elements of a key.
    pub key_length: u64,
    /// Total number of positions in the blocks that a head selects.
    pub top_k: u64,
    /// Number of positions in a block.
    pub block: u64,
    /// Number of last blocks, including the block of the row's own position, that are always
    /// selected.
    pub local: u64,
}

impl Builder<'_> {
    /// Applies RoPE to heads, with angles of the changed `positions`.
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

    /// Applies RoPE to heads, with angles of the step's positions. If the file has
    /// `rope_freqs.weight`, frequencies are divided by it. Otherwise they are divided by
    /// `rope_factors_short.weight` and, in long contexts, `rope_factors_long.weight`, if the file
    /// has these.
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
    /// rotated pair of elements. The tensor may be longer, if other layers rotate more pairs.
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

    /// Returns the index of a layer's KV cache. Layers that are repeated have a cache for each
    /// repetition.
    pub(super) fn cache(&self, layer: usize) -> usize {
        self.round * self.hyper.layers.len() + layer
    }

    /// Returns the state that holds a layer's keys and values, with the usual sizes.
    pub fn key_value_state(&self, layer: usize) -> State {
        let of_layer = &self.hyper.layers[layer];
        let name = format!("kv.{}", self.cache(layer));
        let state = State::paged(&name, of_layer.kv_heads, of_layer.key_length, of_layer.value_length);
        // If attention is not causal, later tokens in the window are needed, so all positions are
        // kept.
        State { window: of_layer.window.filter(|_| self.hyper.causal), ..state }
    }

    /// Appends `k` and `v`, both `[T, heads, d]`, to the usual KV cache of `layer`.
    pub fn append(&mut self, layer: usize, k: ValueId, v: ValueId) -> Result<(), ArchError> {
        self.append_to(layer, self.key_value_state(layer), k, v)
    }

    /// Appends `k` and `v`, both `[T, heads, d]`, to the KV cache of `layer`, declared as `state`.
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

    /// Builds attention of `layer` with the queries `q`, `[T, heads, d]`. It goes over the
    /// positions appended by this layer, or by the layer whose keys it shares. `sinks` adds
    /// attention sinks.
    pub fn attend(&mut self, layer: usize, q: ValueId, sinks: bool) -> Result<ValueId, ArchError> {
        self.attend_to(layer, q, &self.scores(layer), sinks, None)
    }

    /// Returns the usual attributes of attention in a layer.
    pub fn scores(&self, layer: usize) -> ScoreAttrs {
        let of_layer = &self.hyper.layers[layer];
        // If attention is not causal, half of the window is before the row's position and half
        // after it.
        let reach = of_layer.window.filter(|_| !self.hyper.causal).map_or(0, |window| window / 2);
        let max_bias = self.hyper.scales.max_bias;
        ScoreAttrs { scale: of_layer.attention_scale, cap: 0.0, max_bias, slope: 0.0, reach }
    }

    /// Does what [`Builder::attend`] does, with the attributes `scores`, and only over the
    /// positions in `selection`, if it is given.
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

    /// Appends rows of one head, which serve as keys and as values, to the compressed entries of
    /// `layer`. An entry covers `every` positions.
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

    /// Builds attention of `layer` with the queries `q`, `[T, heads, d]`, and with attention sinks.
    /// Rows attend to the appended positions, and to the compressed entries in `selection`, or to
    /// all complete ones.
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

    /// Compresses each run of positions to one row. The state `state` keeps the rows of an
    /// incomplete run between steps.
    pub fn compress(&mut self, state: &str, of: &Compression<'_>) -> Result<ValueId, ArchError> {
        let Compression { kv, gate, ape, every, width, overlap } = *of;
        let ape = self.vectors(ape, &[every, width])?;
        let values = [kv, gate, self.step.pos].map(Operand::Value);
        let operands = [&values[..], &[Operand::Weight(ape)]].concat();
        let attrs = vec![Attr::Int(every.cast_signed()), Attr::Bool(overlap)];
        let (rows, d) = if overlap { (6, width / 2) } else { (3, width) };
        self.recurrent(Recurrent::Compress, state, &[rows, d], &operands, attrs)
    }

    /// Returns the sizes of latent attention, or an error if the file lacks them.
    pub fn mla(&self) -> Result<Mla, ArchError> {
        let key = format!("{}.attention.kv_lora_rank", self.architecture);
        self.hyper.mla.ok_or_else(|| self.gguf.metadata().missing(&key, "u32").into())
    }

    /// Returns the rank of the queries in latent attention (`q_lora_rank`), or an error if the file
    /// lacks it.
    pub fn query_rank(&self) -> Result<u64, ArchError> {
        let key = format!("{}.attention.q_lora_rank", self.architecture);
        self.mla()?.query_rank.ok_or_else(|| self.gguf.metadata().missing(&key, "u32").into())
    }

    /// Reads the sizes of the indexer that selects positions. The file must have them.
    pub fn indexer(&self) -> Result<Indexer, ArchError> {
        Ok(Indexer::read(&self.keys(), &self.hyper.layers, self.hyper.context_length)?)
    }

    /// Builds the positions or entries that an indexer selects. Its keys are cached in `state`.
    pub fn index_top_k(&mut self, state: &str, of: &PositionIndex) -> Result<ValueId, ArchError> {
        let PositionIndex { q, w, k, key_length, top_k, run, entries } = *of;
        let kv = self.index_keys(state, k, key_length, run)?;
        let selection = self.graph.index_top_k(q, w, kv, self.step.pos, top_k, entries);
        Ok(self.op_result(selection)?.0)
    }

    /// Builds the blocks of positions that each head of an indexer selects. Its keys are cached in
    /// `state`.
    pub fn index_blocks(&mut self, state: &str, of: &BlockSelection) -> Result<ValueId, ArchError> {
        let BlockSelection { q, k, key_length, top_k, block, local } = *of;
        let kv = self.index_keys(state, k, key_length, 1)?;
        let blocks = self.graph.index_blocks(q, kv, self.step.pos, top_k, block, local);
        Ok(self.op_result(blocks)?.0)
    }

    /// Returns the token of a new state `state` with an indexer's keys; each key covers `run`
    /// positions.
    pub(super) fn index_keys(
        &mut self,
        state: &str,
        k: ValueId,
        key_length: u64,
        run: u64,
    ) -> Result<ValueId, ArchError> {
        // A paged state has keys and values. An indexer needs no values, so one element serves as
        // the value.
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
