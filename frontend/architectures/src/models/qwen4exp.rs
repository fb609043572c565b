//! `qwen4exp`: Qwen3.8-Flash-Next. Attention, linear attention and experts are like those of
//! `qwen35moe`, but the gates of linear attention are sigmoids. It has several residual streams,
//! weighted element by element. One layer also takes rows of a table that the last tokens together
//! select (llama.cpp `qwen4exp.cpp`, transformers `qwen4_exp`).
//!
//! ```text
//! n = each stream, normalised
//! input of a block = mean over streams of sigmoid(up silu(down n / streams)) * n
//! stream k += 2 sigmoid((inject n)[k] / streams) * output of the block
//! ```
//!
//! Before its attention or linear attention, one layer adds rows of a table to the streams. Hashes
//! of a token and the preceding tokens select the rows (n-gram embeddings, `ngrams`). A value is
//! made from the rows, and a gate for each stream multiplies it. A convolution of the gated values
//! is added to them.
//!
//! An indexer selects runs of consecutive positions, over which attention goes. Positions after the
//! last complete run are always included. The key of a run is the mean of its positions' keys,
//! normalised, and rotated by the run's first position. All query heads of the indexer have the
//! same weight.
//!
//! ```text
//! k = rope(rms_norm(mean of indexer.k_proj h)),  q = rope(rms_norm(indexer.q_proj h))
//! attention over index.top_k(q, a weight of 1 for each head, k)
//! ```

mod ngrams;
mod runs;

use ixc_ir::derived::{Axis, Change, Derivation, Element, Extent, Piece};
use ixc_ir::format::Format;
use ixc_ir::graph::attrs::KeyHeads;
use ixc_ir::graph::{Unary, ValueId};
use ixc_model_files::gguf::{DerivedTensor, Gguf, GgufError};

use crate::architecture::Architecture;
use crate::builder::{Bias, Builder, Compression, PositionIndex, RopePositions};
use crate::decoder::{HeadNorm, OutputGate, Style, attention_to, gated_shared_expert, networks};
use crate::error::ArchError;
use crate::hyper::{Defaults, Indexer, Keys, MAX_WIDTH};
use crate::layers::{gated_delta_net, hyper_connections};
use crate::numbers;
use ngrams::Ngrams;

const STYLE: Style = Style {
    head_norm: HeadNorm::HEADS,
    output_gate: OutputGate::WithQueries,
    shared: gated_shared_expert,
    ..Style::NEOX
};
const LINEAR: gated_delta_net::DeltaNetStyle =
    gated_delta_net::DeltaNetStyle::usual(KeyHeads::Interleaved, Unary::Sigmoid);

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen4exp",
    doc: "Qwen3.8-Flash-Next",
    defaults: Defaults {
        reads: &["embedding_length_per_layer_input"],
        complete: |gguf, name| {
            let made = derived_tensors(&gguf, name)?;
            gguf.with(made)
        },
        // The rows of the n-gram table depend on preceding tokens, so attention must be causal.
        adjust: |keys, _| keys.require_causal(),
        ..Defaults::USUAL
    },
    build,
};

/// Name of the logits of positions in a run: zeros, which no file has, so they are derived.
const MEAN: &str = "mean";
/// Name ending of the norm of an indexer's keys. Its length is that of a key.
const KEY_NORM: &str = "indexer.k_norm.weight";
/// Name of the table of n-gram embeddings.
const TABLE: &str = "per_layer_token_embd.weight";
/// Name endings of the convolution's taps in the file, and of the taps as f32, derived if the file
/// has another format.
const TAPS: &str = "ple_conv1d.weight";
const TAPS_IN_SINGLES: &str = "ple_conv1d.singles";

/// Sizes of residual streams that are weighted element by element.
#[derive(Clone, Copy)]
struct WeightedStreams {
    /// Number of streams.
    count: u64,
    /// Length of the short row from which the weights of elements are made.
    rank: u64,
}

impl WeightedStreams {
    fn read(keys: &Keys<'_>) -> Result<WeightedStreams, GgufError> {
        let count = hyper_connections::count(keys)?;
        Ok(WeightedStreams { count, rank: keys.required_size("hyper_connection.low_rank", 1, MAX_WIDTH)? })
    }
}

fn build(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let indexer = runs::indexer(&b.keys(), &b.hyper.layers, b.hyper.context_length)?;
    let ngrams = Ngrams::read(&b.keys(), b.model_layers, b.hyper.vocabulary)?;
    let streams = WeightedStreams::read(&b.keys())?;
    let count = streams.count;
    let x = b.embed()?;
    let mut x = hyper_connections::repeat_row(b, x, count)?;
    for layer in 0..b.hyper.layers.len() {
        if let Some(ngrams) = ngrams.as_ref().filter(|ngrams| ngrams.layer == layer as u64) {
            x = add_table_rows(b, layer, x, ngrams, count)?;
        }
        x = wrap_block(b, &format!("blk.{layer}.hc_attn"), x, streams, |b, h| match b.hyper.layers[layer].recurrent {
            true => gated_delta_net::mixer_of(b, layer, h, &LINEAR),
            false => {
                let positions = select_positions(b, layer, h, indexer.as_ref())?;
                attention_to(b, layer, h, &STYLE, positions)
            }
        })?;
        x = wrap_block(b, &format!("blk.{layer}.hc_ffn"), x, streams, |b, h| networks(b, layer, h, &STYLE))?;
    }
    let x = b.requested_rows(x)?;
    let (_, x) = input(b, "output_hc", x, streams)?;
    b.output(x)
}

/// Builds the positions that a layer attends to, from its normalised rows `h`. Returns `None` in a
/// layer without an indexer.
fn select_positions(
    b: &mut Builder<'_>,
    layer: usize,
    h: ValueId,
    indexer: Option<&Indexer>,
) -> Result<Option<ValueId>, ArchError> {
    let name = |part: &str| format!("blk.{layer}.indexer.{part}");
    let Some(&Indexer { heads, key_length, top_k, run, .. }) = indexer.filter(|index| index.own[layer]) else {
        // Files may have tensors of an indexer that they do not use.
        for part in ["q_proj", "k_proj", "q_norm", "k_norm", MEAN] {
            b.leave_out(&name(&format!("{part}.weight")));
        }
        return Ok(None);
    };
    let (width, rope) = (b.hyper.embedding_length, b.hyper.rope.clone());
    let q = b.linear(h, &name("q_proj"), width, heads * key_length, Bias::Optional)?;
    // The selection needs the same weight for all heads; its value does not matter.
    let w = b.slice(q, 0, heads)?;
    let w = b.scale(w, 0.0)?;
    let w = b.sigmoid(w)?;
    let q = b.split_heads(q, heads)?;
    let q = b.rms_norm(q, &name("q_norm.weight"), key_length)?;
    let q = b.rope_by(q, &rope, STYLE.pairs, RopePositions::TOKENS)?;
    let k = b.linear(h, &name("k_proj"), width, key_length, Bias::Optional)?;
    // All logits are 0, so `compress` gives the mean of the keys.
    let gate = b.scale(k, 0.0)?;
    let (state, mean) = (format!("compressor.{layer}"), name(&format!("{MEAN}.weight")));
    let k =
        b.compress(&state, &Compression { kv: k, gate, ape: &mean, every: run, width: key_length, overlap: false })?;
    let k = b.rms_norm(k, &name("k_norm.weight"), key_length)?;
    let k = b.split_heads(k, 1)?;
    let k = b.rope_by(k, &rope, STYLE.pairs, RopePositions { every: run, back: false })?;
    let index = PositionIndex { q, w, k, key_length, top_k, run, entries: false };
    b.index_top_k(&format!("index.{layer}"), &index).map(Some)
}

/// Builds a block: its input from the streams `x`, then `block`, then the addition of its output to
/// each stream.
fn wrap_block(
    b: &mut Builder<'_>,
    name: &str,
    x: ValueId,
    streams: WeightedStreams,
    block: impl FnOnce(&mut Builder<'_>, ValueId) -> Result<ValueId, ArchError>,
) -> Result<ValueId, ArchError> {
    let count = streams.count;
    let (n, h) = input(b, name, x, streams)?;
    let y = block(b, h)?;
    let w = b.linear(n, &format!("{name}_inject"), count * b.hyper.embedding_length, count, Bias::Optional)?;
    let w = b.scale(w, 1.0 / count as f64)?;
    let w = b.sigmoid(w)?;
    let w = b.scale(w, 2.0)?;
    let y = hyper_connections::repeat_row(b, y, count)?;
    let y = b.scale_heads(y, w)?;
    b.add(y, x)
}

/// Builds the normalised streams, and the input of a block. Returns both.
fn input(
    b: &mut Builder<'_>,
    name: &str,
    x: ValueId,
    streams: WeightedStreams,
) -> Result<(ValueId, ValueId), ArchError> {
    let WeightedStreams { count, rank } = streams;
    let (width, all) = (b.hyper.embedding_length, count * b.hyper.embedding_length);
    let n = b.norm_of_streams(x, &format!("{name}_norm.weight"), count, width)?;
    let row = b.linear(n, &format!("{name}_down"), all, rank, Bias::Optional)?;
    let row = b.scale(row, 1.0 / count as f64)?;
    let row = b.silu(row)?;
    let gate = b.linear(row, &format!("{name}_up"), rank, all, Bias::Optional)?;
    let gate = b.sigmoid(gate)?;
    let weighted = b.mul(gate, n)?;
    Ok((n, hyper_connections::mean(b, weighted, count)?))
}

/// Adds n-gram embeddings of the tokens to the streams `x`.
fn add_table_rows(
    b: &mut Builder<'_>,
    layer: usize,
    x: ValueId,
    of: &Ngrams,
    count: u64,
) -> Result<ValueId, ArchError> {
    let (width, all) = (b.hyper.embedding_length, count * b.hyper.embedding_length);
    let name = |part: &str| format!("blk.{layer}.ple_{part}");
    let most = of.hashes.iter().map(ixc_ir::ngram::Hash::rows).max().unwrap_or(0);
    let found = b.rows(TABLE).unwrap_or(0);
    if found < most {
        return Err(b.key_error(
            "ple.head_vocab_sizes",
            most,
            &format!("at most {found} with the offset added, the number of rows of {TABLE}"),
        ));
    }
    let mut rows = None;
    for (head, hash) in of.hashes.iter().enumerate() {
        let own = b.ngram_rows(&format!("ngram.{layer}.{head}"), hash, TABLE, found, of.length)?;
        rows = Some(rows.map_or(Ok(own), |rows| b.concat(rows, own))?);
    }
    let Some(rows) = rows else { return Ok(x) };
    let length = of.hashes.len() as u64 * of.length;
    let key = b.linear(rows, &name("key"), length, all, Bias::Optional)?;
    let key = b.norm_of_streams(key, &name("norm_key.weight"), count, width)?;
    let query = b.norm_of_streams(x, &name("norm_query.weight"), count, width)?;
    let score = b.mul(key, query)?;
    let score = b.split_heads(score, count)?;
    let score = b.heads_sum(score)?;
    let score = b.scale(score, 1.0 / (width as f64).sqrt())?;
    let gate = b.unary(Unary::SignedRoot, score)?;
    let gate = b.sigmoid(gate)?;
    let value = b.linear(rows, &name("value"), length, width, Bias::Optional)?;
    let value = hyper_connections::repeat_row(b, value, count)?;
    let value = b.scale_heads(value, gate)?;
    let n = b.norm_of_streams(value, &name("norm_conv.weight"), count, width)?;
    let singles = format!("blk.{layer}.{TAPS_IN_SINGLES}");
    let taps = if b.has(&singles) { singles } else { format!("blk.{layer}.{TAPS}") };
    b.leave_out(&format!("blk.{layer}.{TAPS}"));
    let n = b.dilated_conv(&format!("ngram.{layer}.conv"), n, &taps, all, of.taps, of.dilation)?;
    let n = b.silu(n)?;
    let y = b.add(value, n)?;
    b.add(y, x)
}

/// Returns tensors that files lack, derived from constants or from other tensors.
fn derived_tensors(gguf: &Gguf, architecture: &str) -> Result<Vec<DerivedTensor>, GgufError> {
    let mut made = taps_in_singles(gguf)?;
    made.extend(zeros(gguf, architecture)?);
    Ok(made)
}

/// Returns the logits of positions in a run, which are zeros, for each layer with an indexer.
fn zeros(gguf: &Gguf, architecture: &str) -> Result<Vec<DerivedTensor>, GgufError> {
    let mut made = Vec::new();
    let Some(run) = runs::length(gguf, architecture) else { return Ok(made) };
    for norm in gguf.tensors() {
        let Some(layer) = norm.name().strip_suffix(KEY_NORM) else { continue };
        let length = norm.dims().first().copied().unwrap_or(0);
        let derived = Derivation {
            format: Format::F32,
            columns: length,
            pieces_per_row: 1,
            pieces: vec![numbers::constant(0.0, run, length)],
        };
        made.push(DerivedTensor { name: format!("{layer}indexer.{MEAN}.weight"), dims: vec![length, run], derived });
    }
    Ok(made)
}

/// Returns the convolution's taps as f32, if the file has them in another format. Converters treat
/// taps as a matrix and may write f16.
fn taps_in_singles(gguf: &Gguf) -> Result<Vec<DerivedTensor>, GgufError> {
    let mut made = Vec::new();
    for tensor in gguf.tensors() {
        let Some(layer) = tensor.name().strip_suffix(TAPS) else { continue };
        let format = gguf.require_format(tensor)?;
        let &[taps, channels] = tensor.dims() else { continue };
        if format == Format::F32 {
            continue;
        }
        let axis = |len, stride| Axis { len, stride };
        let piece = Piece {
            extent: Extent { file: tensor.file() as u32, offset: tensor.offset(), bytes: tensor.bytes() },
            element: Element::from_format(format),
            first: 0,
            rows: vec![axis(channels, taps)],
            columns: vec![axis(taps, 1)],
            scales: None,
            groups: None,
            change: Change::Keep,
        };
        let derived = Derivation { format: Format::F32, columns: taps, pieces_per_row: 1, pieces: vec![piece] };
        made.push(DerivedTensor { name: format!("{layer}{TAPS_IN_SINGLES}"), dims: vec![taps, channels], derived });
    }
    Ok(made)
}
