//! Rules that map the names of Hugging Face's tensors to those of GGUF.
//!
//! A rule has two name patterns and a function that makes the GGUF tensors from the stored one. A
//! pattern matches a name exactly, or with `.weight` or `.bias` appended; the GGUF name then gets
//! the same ending. The rules of a model come first, then [`SHARED`]; the first rule that matches
//! is used.
//!
//! Placeholders of a pattern stand for a number or a letter:
//!
//! | placeholder | stands for |
//! | --- | --- |
//! | `{L}` | a layer |
//! | `{U}` | a layer of the upper of two stacks |
//! | `{H}` | half of a layer; each half is a layer in GGUF files |
//! | `{E}` | an expert |
//! | `{X}` | an expert; files may have more experts than the configuration counts |
//! | `{G}` | a small expert of a group |
//! | `{Q}`, `{K}` | a query head, a key head |
//! | `{S}` | a part of a table |
//! | `{A}` | a residual stream |
//! | `{C}` | the letter of queries, keys or values |
//! | `{R}` | one machine's part of a matrix |
//!
//! Except for `{L}`, `{U}` and `{H}`, the tensors that differ in a placeholder are one tensor in
//! GGUF files.

use super::array::Array;
use super::keys::OfLayer;
use ixc_ir::derived::Change;

/// Numbers of a configuration that determine how tensors are split.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    pub layers: u64,
    /// Layers of each of two stacks, for models with two.
    pub stack: u64,
    pub experts: u64,
    /// Experts of a group that shares a small expert.
    pub experts_of_group: u64,
    pub heads: u64,
    pub kv_heads: u64,
    /// Key heads of the tensor's layer, as in GGUF files; 0 if the layer has no attention.
    pub layer_kv_heads: u64,
    pub head_dim: u64,
    /// Width of the residual stream. `expert_width` is that of an expert.
    pub width: u64,
    pub expert_width: u64,
    /// Latent attention: lengths of a head's unrotated key part, of its rotated part, and of its
    /// value.
    pub still: u64,
    pub turned: u64,
    pub value: u64,
    /// Number of heads, unrotated key length and value length of layers with a window, if they
    /// differ.
    pub local: [u64; 3],
    /// Linear attention: numbers of key heads and value heads, lengths of a key and a value.
    pub key_heads: u64,
    pub value_heads: u64,
    pub key_len: u64,
    pub value_len: u64,
    /// Leading elements of a head that RoPE rotates.
    pub rotated: u64,
    /// State spaces: groups of heads, elements of a key, and elements of the values of all heads.
    pub groups: u64,
    pub state: u64,
    pub inner: u64,
    /// Number of residual streams, for models with several.
    pub streams: u64,
    /// Rows of the embedding table, if the configuration has this number.
    pub vocabulary: u64,
    /// Positions of the longest supported text.
    pub context: u64,
    /// Elements of all queries of the indexer.
    pub index: u64,
    /// Number of parts in which a table is stored.
    pub table_parts: u64,
    pub factors: Factors,
}

/// Factors on the results of matrices that have no GGUF key; the matrices are multiplied by them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factors {
    pub embedding: f32,
    pub logits: f32,
    /// On the input of attention, on its keys, and on its output.
    pub attention: f32,
    pub key: f32,
    pub attention_out: f32,
    /// On the gates of feed-forward networks, and on their output.
    pub gate: f32,
    pub down: f32,
    /// On the input of state spaces, on their gates, values, keys, queries and steps, and on their
    /// output.
    pub ssm: f32,
    pub ssm_parts: [f32; 5],
    pub ssm_out: f32,
}

impl Default for Factors {
    fn default() -> Factors {
        Factors {
            embedding: 1.0,
            logits: 1.0,
            attention: 1.0,
            key: 1.0,
            attention_out: 1.0,
            gate: 1.0,
            down: 1.0,
            ssm: 1.0,
            ssm_parts: [1.0; 5],
            ssm_out: 1.0,
        }
    }
}

/// Result of a rule for one stored tensor: the concatenated rows of `arrays`. `part` replaces `{P}`
/// in the GGUF name.
pub(super) struct Made {
    pub part: &'static str,
    pub arrays: Vec<Array>,
}

/// Function that makes GGUF tensors from a stored tensor; returns `None` for an unexpected shape.
pub(super) type How = fn(&Sizes, Array) -> Option<Vec<Made>>;

/// Rule for tensors whose name matches a pattern.
pub(super) struct Rule {
    pub from: &'static str,
    pub to: &'static str,
    pub how: How,
}

pub(super) const fn rule(from: &'static str, to: &'static str, how: How) -> Rule {
    Rule { from, to, how }
}

fn one(array: Array) -> Option<Vec<Made>> {
    Some(vec![Made { part: "", arrays: vec![array] }])
}

fn parts<const N: usize>(parts: [(&'static str, Option<Array>); N]) -> Option<Vec<Made>> {
    parts.into_iter().map(|(part, array)| Some(Made { part, arrays: vec![array?] })).collect()
}

/// Returns the tensor unchanged.
pub(super) fn plain(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(x)
}

/// Returns a table with a row for each token. Rows of the last tokens may be missing in the file;
/// they become copies of the first row, as in transformers.
pub(super) fn rows_for_all_tokens(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    /// Maximum of missing rows: tokens of images and audio.
    const MOST: u64 = 1 << 12;
    let missing = s.vocabulary.saturating_sub(x.len(0));
    if missing > MOST {
        return None;
    }
    let first = x.clone().slice(0, 0, 1)?;
    let mut arrays = vec![x];
    arrays.extend(std::iter::repeat_n(first, missing as usize));
    Some(vec![Made { part: "", arrays }])
}

/// Returns a table of integers, which is not a weight.
pub(super) fn table(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(x.table()?)
}

/// Drops a tensor that inference does not use.
pub(super) fn skip(_: &Sizes, _: Array) -> Option<Vec<Made>> {
    Some(Vec::new())
}

/// Returns the weight of a norm that multiplies by `1 + weight`.
pub(super) fn plus_one(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(x.changed(Change::PlusOne))
}

/// Returns the weight of a norm after attention that multiplies by `1/5 + weight`.
pub(super) fn plus_fifth(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(x.changed(Change::Plus(1.0 / 5.0)))
}

/// Returns the weight of a norm after a feed-forward network that multiplies by `5^-1.5 + weight`.
pub(super) fn plus_root_of_fifths(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(x.changed(Change::Plus((1.0 / 5f64.powf(1.5)) as f32)))
}

/// Reorders query heads so that the heads of one key head are adjacent; stored, key heads
/// alternate.
pub(super) fn query_in_turns(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(together(s, x, 0)?)
}

/// Reorders the columns of the output matrix like [`query_in_turns`].
pub(super) fn output_in_turns(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(together(s, x, 1)?)
}

fn together(s: &Sizes, x: Array, dim: usize) -> Option<Array> {
    let each = s.heads.checked_div(s.layer_kv_heads)?;
    x.split(dim, &[each, s.layer_kv_heads, s.head_dim])?.swap(dim, dim + 1)?.join(dim)?.join(dim)
}

/// Reorders the rows of each head so that RoPE pairs are adjacent; stored, they are half a head
/// apart.
fn neighbours(x: Array, heads: u64) -> Option<Array> {
    let half = x.len(0).checked_div(heads)? / 2;
    x.split(0, &[heads, 2, half])?.swap(1, 2)?.join(0)?.join(0)
}

pub(super) fn query(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(neighbours(x, s.heads)?)
}

pub(super) fn key(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(neighbours(x, s.kv_heads)?)
}

/// Makes RoPE pairs of keys adjacent, for layers that differ in their number of key heads.
pub(super) fn key_of_layer(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(neighbours(x, s.layer_kv_heads)?)
}

/// Makes RoPE pairs of queries adjacent if RoPE rotates only a leading part of each head. Stored,
/// the elements of a pair are half of this part apart.
pub(super) fn query_of_part(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    neighbours_of_part(s, x, s.heads)
}

/// Does what [`query_of_part`] does, for keys.
pub(super) fn key_of_part(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    neighbours_of_part(s, x, s.kv_heads)
}

fn neighbours_of_part(s: &Sizes, x: Array, heads: u64) -> Option<Vec<Made>> {
    let (length, turned) = (x.len(0).checked_div(heads)?, s.rotated);
    let still = length.checked_sub(turned)?;
    if still == 0 {
        return one(neighbours(x, heads)?);
    }
    let of_head = |head: u64| {
        let from = head * length;
        let part = neighbours(x.clone().slice(0, from, turned)?, 1)?;
        Some([part, x.clone().slice(0, from + turned, still)?])
    };
    let arrays: Option<Vec<_>> = (0..heads).map(of_head).collect();
    Some(vec![Made { part: "", arrays: arrays?.into_iter().flatten().collect() }])
}

/// Swaps the halves of each query head, for models whose RoPE rotates in the opposite direction.
pub(super) fn query_turned_back(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    second_halves_first(&x, s.heads)
}

/// Does what [`query_turned_back`] does, for keys.
pub(super) fn key_turned_back(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    second_halves_first(&x, s.kv_heads)
}

fn second_halves_first(x: &Array, heads: u64) -> Option<Vec<Made>> {
    let halves = heads.checked_mul(2)?;
    let half = x.len(0).checked_div(halves).filter(|half| half * halves == x.len(0))?;
    let arrays: Option<Vec<_>> = (0..halves).map(|at| x.clone().slice(0, (at ^ 1) * half, half)).collect();
    Some(vec![Made { part: "", arrays: arrays? }])
}

/// Names a norm by its layer: after attention in layers with attention, otherwise before the
/// network.
pub(super) fn norm_of_layer(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    parts([(if s.layer_kv_heads > 0 { "post_attention_norm" } else { "ffn_norm" }, Some(x))])
}

/// Splits gate and up matrices of experts. Drops trailing rows of experts that do not exist.
pub(super) fn gate_up_of_experts(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    gate_up(s, x.slice(0, 0, s.experts)?)
}

/// Splits a matrix, or one for each expert, into gate and up: halves of dimension `-2`.
pub(super) fn gate_up(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    let dim = x.rank().checked_sub(2)?;
    let half = x.len(dim) / 2;
    if half * 2 != x.len(dim) {
        return None;
    }
    parts([("gate", x.clone().slice(dim, 0, half)), ("up", x.slice(dim, half, half))])
}

/// Splits gate and up matrices of experts. Published files store them transposed; files that
/// transformers 5 writes do not.
pub(super) fn gate_up_either(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    gate_up(s, if x.len(1) == s.width { transposed_array(x)? } else { x })
}

/// Returns the down matrices of the same experts, transposed if necessary.
pub(super) fn down_either(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(if x.len(1) == s.expert_width { transposed_array(x)? } else { x })
}

fn transposed_array(x: Array) -> Option<Array> {
    let last = x.rank().checked_sub(1)?;
    x.swap(last.checked_sub(1)?, last)
}

/// Returns transposed matrices.
pub(super) fn transposed(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(transposed_array(x)?)
}

/// Splits transposed matrices into gate and up.
pub(super) fn transposed_gate_up(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    gate_up(s, transposed_array(x)?)
}

/// Splits matrices whose rows alternate between gate and up.
pub(super) fn gate_up_rows(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    let dim = x.rank().checked_sub(2)?;
    parts([("gate", x.clone().every_second(dim, 0)), ("up", x.every_second(dim, 1))])
}

/// Splits transposed matrices whose columns alternate between gate and up.
pub(super) fn gate_up_columns(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    gate_up_rows(s, transposed_array(x)?)
}

/// Splits vectors whose elements alternate between gate and up.
pub(super) fn gate_up_elements(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    let dim = x.rank().checked_sub(1)?;
    parts([("gate", x.clone().every_second(dim, 0)), ("up", x.every_second(dim, 1))])
}

impl Sizes {
    /// Returns the sizes of a layer. In a layer without RoPE, the whole key is made from the latent
    /// row.
    pub fn of_layer(self, of: &OfLayer) -> Sizes {
        let still = if of.roped { self.still } else { self.still.saturating_add(self.turned) };
        let own = Sizes { layer_kv_heads: of.kv_heads, still, ..self };
        match self.local {
            [heads, still, value] if of.windowed && still > 0 => Sizes { heads, still, value, ..own },
            _ => own,
        }
    }
}

/// Returns the norm weight of a latent row, times the root of `width / rank`: models apply this
/// factor.
pub(super) fn norm_of_rank(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    let rank = x.len(0);
    one(times(x, [(s.width as f64 / rank as f64).sqrt() as f32, 1.0]))
}

/// Splits the latent matrix of keys and values: for each head, transposed keys and values.
pub(super) fn latent_keys_values(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    // Blocks of quantised weights lie along the dimension to transpose.
    if x.element().is_ok_and(|element| element.columns() > 1) {
        return None;
    }
    let heads = x.split(0, &[s.heads, s.still.checked_add(s.value)?])?;
    parts([
        ("k_b", heads.clone().slice(1, 0, s.still).and_then(|k| k.swap(1, 2))),
        ("v_b", heads.slice(1, s.still, s.value)),
    ])
}

/// Splits a matrix into queries, keys and values.
pub(super) fn query_key_value(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    let (q, k) = (s.heads.checked_mul(s.head_dim)?, s.kv_heads.checked_mul(s.head_dim)?);
    let behind = q.checked_add(k)?;
    let part = |from, len| x.clone().slice(0, from, len);
    parts([("q", part(0, q)), ("k", part(q, k)), ("v", part(behind, k))])
}

/// Splits a matrix into four equal parts: output gates of attention, queries, keys and values.
pub(super) fn gate_query_key_value(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    let each = x.len(0) / 4;
    let part = |number| x.clone().slice(0, number * each, each);
    parts([("gate", part(0)), ("q", part(1)), ("k", part(2)), ("v", part(3))])
}

/// Makes RoPE pairs adjacent in a matrix with one row for each head; stored, they are half a head
/// apart.
pub(super) fn halves_side_by_side(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    let half = x.len(1) / 2;
    one(x.split(1, &[2, half])?.swap(1, 2)?.join(1)?)
}

/// Does the same and returns one vector.
pub(super) fn all_halves_side_by_side(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    let half = x.len(1) / 2;
    one(x.split(1, &[2, half])?.swap(1, 2)?.join(1)?.join(0)?)
}

/// Negates the second half of each query head, for models whose RoPE rotates in the opposite
/// direction.
pub(super) fn query_signs(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    second_halves_negated(&x, s.heads)
}

/// Does what [`query_signs`] does, for keys.
pub(super) fn key_signs(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    second_halves_negated(&x, s.kv_heads)
}

fn second_halves_negated(x: &Array, heads: u64) -> Option<Vec<Made>> {
    let halves = heads.checked_mul(2)?;
    let half = x.len(0).checked_div(halves).filter(|half| half * halves == x.len(0))?;
    let signed = |at: u64| {
        let part = x.clone().slice(0, at * half, half)?;
        Some(if at.is_multiple_of(2) { part } else { times(part, [-1.0, 1.0]) })
    };
    let arrays: Option<Vec<_>> = (0..halves).map(signed).collect();
    Some(vec![Made { part: "", arrays: arrays? }])
}

/// Splits a matrix that has queries, values and keys, in this order, for each of four machines.
pub(super) fn query_value_key_of_four(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    const MACHINES: u64 = 4;
    let rows = x.len(0).checked_div(3 * MACHINES)?;
    let machines = x.split(0, &[MACHINES, 3, rows])?;
    let part = |at| machines.clone().slice(1, at, 1)?.join(0)?.join(0);
    parts([("q", part(0)), ("v", part(1)), ("k", part(2))])
}

/// Drops the first two rows of a table of positions, which belong to no position.
pub(super) fn rows_behind_two(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    let rows = x.len(0).checked_sub(2)?;
    one(x.slice(0, 2, rows)?)
}

/// Keeps the rows of a table of positions up to the maximum context.
pub(super) fn rows_of_context(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(x.slice(0, 0, s.context)?)
}

/// Keeps the rows of the tokens of the vocabulary; later rows are for image tokens.
pub(super) fn rows_of_vocabulary(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(x.slice(0, 0, s.vocabulary)?)
}

/// Returns a number for each query head twice: as stored, and repeated for each element of the
/// head.
pub(super) fn gains_of_heads(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    let (heads, rows) = (x.len(0), x.clone().repeated(s.head_dim)?);
    parts([("norm", Some(x)), ("gain", rows.split(0, &[heads, s.head_dim]))])
}

/// Splits a matrix into halves: keys and values.
pub(super) fn key_value(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    let half = x.len(0) / 2;
    parts([("k", x.clone().slice(0, 0, half)), ("v", x.slice(0, half, half))])
}

/// Splits a matrix into queries, keys and values, and makes RoPE pairs of queries and keys
/// adjacent.
pub(super) fn turned_query_key_value(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    let (q, k) = (s.heads.checked_mul(s.head_dim)?, s.kv_heads.checked_mul(s.head_dim)?);
    let part = |from, len| x.clone().slice(0, from, len);
    parts([
        ("q", part(0, q).and_then(|x| neighbours(x, s.heads))),
        ("k", part(q, k).and_then(|x| neighbours(x, s.kv_heads))),
        ("v", part(q.checked_add(k)?, k)),
    ])
}

/// Splits a matrix into queries, keys and values, for values of another length and for layers that
/// differ in key heads. The matrix may be an equal part of each.
pub(super) fn query_key_value_of_layer(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    let lens = [(s.heads, s.head_dim), (s.layer_kv_heads, s.head_dim), (s.layer_kv_heads, s.value)];
    let rows = |(heads, length): (u64, u64)| heads.checked_mul(length);
    let [q, k, v] = lens.map(rows);
    let all = q?.checked_add(k?)?.checked_add(v?)?;
    let parts_of_all = all.checked_div(x.len(0)).filter(|parts| parts * x.len(0) == all)?;
    let mut from = 0;
    let mut part = |rows: Option<u64>| {
        let rows = rows.filter(|rows| rows.is_multiple_of(parts_of_all))?;
        from += rows / parts_of_all;
        x.clone().slice(0, from - rows / parts_of_all, rows / parts_of_all)
    };
    parts([("q", part(q)), ("k", part(k)), ("v", part(v))])
}

/// Splits a matrix in which the query heads of a key head precede it. RoPE pairs become adjacent,
/// as in [`query`] and [`key`].
pub(super) fn grouped(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    let each = s.heads.checked_div(s.kv_heads)?;
    let heads = x.split(0, &[s.kv_heads, each.checked_add(2)?, 2, s.head_dim / 2])?;
    let turned = |from, len| heads.clone().slice(1, from, len)?.swap(2, 3)?.join(0)?.join(0)?.join(0);
    let values = heads.clone().slice(1, each + 1, 1)?.join(0)?.join(0)?.join(0);
    parts([("q", turned(0, each)), ("k", turned(each, 1)), ("v", values)])
}

/// Reorders such a matrix to queries, then keys, then values, without reordering RoPE pairs.
pub(super) fn by_key_heads(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    let each = s.heads.checked_div(s.layer_kv_heads)?;
    let of_head = each.checked_add(2)?;
    let length = x.len(0).checked_div(s.layer_kv_heads.checked_mul(of_head)?)?;
    let heads = x.split(0, &[s.layer_kv_heads, of_head, length])?;
    if each == 1 {
        // This path also serves biases, for which several views cannot form a vector.
        return one(heads.swap(0, 1)?.join(0)?.join(0)?);
    }
    let part = |from, len| heads.clone().slice(1, from, len)?.join(0)?.join(0);
    Some(vec![Made { part: "", arrays: vec![part(0, each)?, part(each, 1)?, part(each + 1, 1)?] }])
}

/// Splits a matrix that has the rows of all experts, one expert after the other.
pub(super) fn of_experts(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(rows_of_experts(s, x)?)
}

/// Splits and transposes such a matrix.
pub(super) fn transposed_of_experts(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(transposed_array(rows_of_experts(s, x)?)?)
}

fn rows_of_experts(s: &Sizes, x: Array) -> Option<Array> {
    let rows = x.len(0).checked_div(s.experts)?;
    x.split(0, &[s.experts, rows])
}

/// Multiplies by one or two factors of the model.
fn times(x: Array, factors: [f32; 2]) -> Array {
    if factors == [1.0; 2] { x } else { x.changed(Change::Times(factors)) }
}

pub(super) fn embedding(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(times(x, [s.factors.embedding, 1.0]))
}

pub(super) fn logits(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(times(x, [s.factors.logits, 1.0]))
}

/// Returns a table that is both the embedding and the output matrix, each times its factor.
pub(super) fn embedding_and_logits(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    let [embedded, logits] = [s.factors.embedding, s.factors.logits].map(|factor| times(x.clone(), [factor, 1.0]));
    parts([("token_embd", Some(embedded)), ("output", Some(logits))])
}

/// Multiplies queries or values by the factor on the input of attention.
pub(super) fn of_attention(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(times(x, [s.factors.attention, 1.0]))
}

pub(super) fn keys_of_attention(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(times(x, [s.factors.key, s.factors.attention]))
}

pub(super) fn out_of_attention(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(times(x, [s.factors.attention_out, 1.0]))
}

pub(super) fn gates(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(times(x, [s.factors.gate, 1.0]))
}

pub(super) fn out_of_network(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(times(x, [s.factors.down, 1.0]))
}

/// Multiplies gates, values, keys, queries and steps of state spaces by their factors.
pub(super) fn into_states(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    let keys = s.groups.checked_mul(s.state)?;
    let behind = s.inner.checked_add(keys)?.checked_mul(2)?;
    let lens = [s.inner, s.inner, keys, keys, x.len(0).checked_sub(behind)?];
    let mut from = 0;
    let part = |(len, factor): (u64, f32)| {
        let part = x.clone().slice(0, from, len)?;
        from += len;
        Some(times(part, [s.factors.ssm, factor]))
    };
    let arrays = lens.into_iter().zip(s.factors.ssm_parts).map(part).collect::<Option<_>>()?;
    Some(vec![Made { part: "", arrays }])
}

pub(super) fn out_of_states(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(times(x, [s.factors.ssm_out, 1.0]))
}

/// Returns the taps of a depthwise convolution: `[channels, 1, taps]` without the middle dimension.
pub(super) fn taps(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(if x.rank() == 3 { x.squeeze(1)? } else { x })
}

/// Returns a vector that is stored as a matrix of one row.
pub(super) fn row(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(if x.rank() == 2 { x.squeeze(0)? } else { x })
}

/// Returns the first row of a matrix as a vector.
pub(super) fn first_row(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(if x.rank() == 2 { x.slice(0, 0, 1)?.squeeze(0)? } else { x })
}

/// Names gates by their layer: output gates of attention, or of a recurrent state.
pub(super) fn gates_of_layer(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    parts([(if s.layer_kv_heads > 0 { "attn_gate" } else { "ssm_g_a" }, Some(x))])
}

/// Splits a matrix into queries and keys of an indexer.
pub(super) fn index_query_key(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    let rest = x.len(0).checked_sub(s.index)?;
    parts([("q", x.clone().slice(0, 0, s.index)), ("k", x.slice(0, s.index, rest))])
}

/// Returns the norm weight of several streams, one row for each; the norm multiplies by `1 +
/// weight`.
pub(super) fn plus_one_by_stream(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    let length = x.len(0).checked_div(s.streams)?;
    one(x.split(0, &[s.streams, length])?.changed(Change::PlusOne))
}

/// Does what [`gates_of_layer`] does, for models that store the gates of a state as one matrix.
pub(super) fn whole_gates_of_layer(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    parts([(if s.layer_kv_heads > 0 { "attn_gate" } else { "ssm_g" }, Some(x))])
}

/// Returns a matrix whose rows are scaled to length 1.
pub(super) fn of_length_1(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(x.changed(Change::Unit))
}

/// Removes other dimensions of length 1 from a tensor that has a number for each head.
fn of_heads(mut x: Array) -> Option<Array> {
    while let Some(dim) = (0..x.rank()).find(|dim| x.len(*dim) == 1).filter(|_| x.rank() > 1) {
        x = x.squeeze(dim)?;
    }
    Some(x)
}

/// Returns the decay of states from its logarithm, one number for each head.
pub(super) fn decay_of_heads(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    decay(s, of_heads(x)?)
}

/// Does the same for files that may have more numbers than heads; keeps the first ones.
pub(super) fn decay_of_first_heads(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    decay(s, of_heads(x)?.slice(0, 0, s.heads)?)
}

/// Returns the magnitude of the decay from its logarithm, one number for each head.
pub(super) fn rate_of_heads(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(of_heads(x)?.changed(Change::Exp))
}

/// Returns the decay of states from its logarithm.
pub(super) fn decay(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(x.changed(Change::MinusExp))
}

/// Returns divisors of RoPE frequencies from the logarithms of their multipliers.
pub(super) fn divisors(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(x.changed(Change::ExpMinus))
}

/// Returns the norm weight for groups of heads: one row for each group if there are several.
pub(super) fn by_group(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(if s.groups > 1 { x.clone().split(0, &[s.groups, x.len(0).checked_div(s.groups)?])? } else { x })
}

/// Splits gate and up of the shared expert, or of the network in models without experts.
pub(super) fn shared_gate_up(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    let mut made = gate_up(s, x)?;
    if s.experts > 0 {
        made.iter_mut().zip(["gate_shexp", "up_shexp"]).for_each(|(made, part)| made.part = part);
    }
    Some(made)
}

/// Names the down matrix that belongs to [`shared_gate_up`].
pub(super) fn shared_down(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    parts([(if s.experts > 0 { "down_shexp" } else { "down" }, Some(x))])
}

/// Reorders value heads along a dimension of `value_heads * len`. Stored, the value heads of a key
/// head are adjacent; in the result, key heads alternate.
fn in_turns(s: &Sizes, x: Array, dim: usize, len: u64) -> Option<Array> {
    let each = s.value_heads.checked_div(s.key_heads)?;
    x.split(dim, &[s.key_heads, each, len])?.swap(dim, dim + 1)?.join(dim)?.join(dim)
}

/// Returns queries and keys unchanged, then values in the order of [`in_turns`].
pub(super) fn values_in_turns(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    let keys = s.key_heads.checked_mul(s.key_len)?.checked_mul(2)?;
    let values = s.value_heads.checked_mul(s.value_len)?;
    let still = x.clone().slice(0, 0, keys)?;
    let turned = in_turns(s, x.slice(0, keys, values)?, 0, s.value_len)?;
    Some(vec![Made { part: "", arrays: vec![still, turned] }])
}

pub(super) fn turned_values(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(in_turns(s, x, 0, s.value_len)?)
}

pub(super) fn turned_heads(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(in_turns(s, x, 0, 1)?)
}

pub(super) fn turned_decay(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    decay(s, in_turns(s, x, 0, 1)?)
}

pub(super) fn turned_taps(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    values_in_turns(s, if x.rank() == 3 { x.squeeze(1)? } else { x })
}

pub(super) fn turned_columns(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(in_turns(s, x, 1, s.value_len)?)
}

/// Splits Qwen3-Next's fused projection, which has query, key, values and gates for each key head.
pub(super) fn by_key_head(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    let values = s.value_heads.checked_div(s.key_heads)?.checked_mul(s.value_len)?;
    let keys = s.key_len.checked_mul(2)?;
    let gates = keys.checked_add(values)?;
    let heads = x.split(0, &[s.key_heads, gates.checked_add(values)?])?;
    let part = |from: u64, len: u64| heads.clone().slice(1, from, len)?.join(0);
    let (q, k) = (part(0, s.key_len)?, part(s.key_len, s.key_len)?);
    let (v, z) = (part(keys, values)?, part(gates, values)?);
    Some(vec![Made { part: "qkv", arrays: vec![q, k, v] }, Made { part: "gate", arrays: vec![z] }])
}

/// Rules that most decoders share.
pub(super) static SHARED: &[Rule] = &[
    rule("model.embed_tokens", "token_embd", plain),
    rule("model.norm", "output_norm", plain),
    rule("lm_head", "output", plain),
    rule("model.layers.{L}.input_layernorm", "blk.{L}.attn_norm", plain),
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.ffn_norm", plain),
    rule("model.layers.{L}.self_attn.q_proj", "blk.{L}.attn_q", plain),
    rule("model.layers.{L}.self_attn.k_proj", "blk.{L}.attn_k", plain),
    rule("model.layers.{L}.self_attn.v_proj", "blk.{L}.attn_v", plain),
    rule("model.layers.{L}.self_attn.o_proj", "blk.{L}.attn_output", plain),
    rule("model.layers.{L}.self_attn.q_norm", "blk.{L}.attn_q_norm", plain),
    rule("model.layers.{L}.self_attn.k_norm", "blk.{L}.attn_k_norm", plain),
    rule("model.layers.{L}.self_attn.rotary_emb.inv_freq", "", skip),
    rule("model.layers.{L}.mlp.gate_proj", "blk.{L}.ffn_gate", plain),
    rule("model.layers.{L}.mlp.up_proj", "blk.{L}.ffn_up", plain),
    rule("model.layers.{L}.mlp.down_proj", "blk.{L}.ffn_down", plain),
    rule("model.layers.{L}.mlp.gate", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.mlp.gate.e_score_correction_bias", "blk.{L}.exp_probs_b.bias", plain),
    rule("model.layers.{L}.mlp.experts.{E}.gate_proj", "blk.{L}.ffn_gate_exps", plain),
    rule("model.layers.{L}.mlp.experts.{E}.up_proj", "blk.{L}.ffn_up_exps", plain),
    rule("model.layers.{L}.mlp.experts.{E}.down_proj", "blk.{L}.ffn_down_exps", plain),
    rule("model.layers.{L}.mlp.experts.gate_up_proj", "blk.{L}.ffn_{P}_exps.weight", gate_up),
    rule("model.layers.{L}.mlp.experts.down_proj", "blk.{L}.ffn_down_exps.weight", plain),
    rule("model.layers.{L}.mlp.shared_experts.gate_proj", "blk.{L}.ffn_gate_shexp", plain),
    rule("model.layers.{L}.mlp.shared_experts.up_proj", "blk.{L}.ffn_up_shexp", plain),
    rule("model.layers.{L}.mlp.shared_experts.down_proj", "blk.{L}.ffn_down_shexp", plain),
    rule("model.layers.{L}.mlp.shared_expert.gate_proj", "blk.{L}.ffn_gate_shexp", plain),
    rule("model.layers.{L}.mlp.shared_expert.up_proj", "blk.{L}.ffn_up_shexp", plain),
    rule("model.layers.{L}.mlp.shared_expert.down_proj", "blk.{L}.ffn_down_shexp", plain),
    rule("model.layers.{L}.mlp.shared_expert_gate", "blk.{L}.ffn_gate_inp_shexp", row),
    rule("model.layers.{L}.block_sparse_moe.gate", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.block_sparse_moe.e_score_correction_bias", "blk.{L}.exp_probs_b.bias", plain),
    rule("model.layers.{L}.block_sparse_moe.gate.e_score_correction_bias", "blk.{L}.exp_probs_b.bias", plain),
    rule("model.layers.{L}.block_sparse_moe.experts.{E}.w1", "blk.{L}.ffn_gate_exps", plain),
    rule("model.layers.{L}.block_sparse_moe.experts.{E}.w2", "blk.{L}.ffn_down_exps", plain),
    rule("model.layers.{L}.block_sparse_moe.experts.{E}.w3", "blk.{L}.ffn_up_exps", plain),
];

/// Rules for models whose GGUF files have adjacent RoPE pairs.
pub(super) static TURNED: &[Rule] = &[
    rule("model.layers.{L}.self_attn.q_proj", "blk.{L}.attn_q", query),
    rule("model.layers.{L}.self_attn.k_proj", "blk.{L}.attn_k", key),
];

/// Rule for models that call the norm before the feed-forward network `post_attention_norm`.
pub(super) static POST_ATTENTION: &[Rule] =
    &[rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.post_attention_norm", plain)];

/// Row of the table of placeholders that stand for parts of one GGUF tensor.
struct Several {
    /// Placeholder in patterns.
    place: &'static str,
    /// Name of one part, for error messages.
    word: &'static str,
    /// Number of parts, if the configuration has it.
    count: fn(&Sizes) -> Option<u64>,
    /// Whether each part is a matrix of its own in the GGUF tensor; otherwise the rows are
    /// concatenated.
    stacked: bool,
    /// Whether a file may have more parts, which are not read.
    more: bool,
}

/// Letters of queries, keys and values in names, in the order of their rows in the GGUF tensor.
const LETTERS: [char; 3] = ['q', 'k', 'v'];

const SEVERAL: [Several; 9] = [
    Several {
        place: "{G}",
        word: "group's expert",
        count: |sizes| sizes.experts.checked_div(sizes.experts_of_group),
        stacked: true,
        more: false,
    },
    Several { place: "{E}", word: "expert", count: |sizes| Some(sizes.experts), stacked: true, more: false },
    Several { place: "{X}", word: "expert", count: |sizes| Some(sizes.experts), stacked: true, more: true },
    Several { place: "{Q}", word: "head", count: |sizes| Some(sizes.heads), stacked: true, more: false },
    Several { place: "{K}", word: "key head", count: |sizes| Some(sizes.kv_heads), stacked: true, more: false },
    Several { place: "{S}", word: "part", count: |sizes| Some(sizes.table_parts), stacked: false, more: false },
    // The embedding itself is the first stream and has no tensor.
    Several {
        place: "{A}",
        word: "stream",
        count: |sizes| Some(sizes.streams.saturating_sub(1)),
        stacked: true,
        more: false,
    },
    Several { place: "{C}", word: "convolution", count: |_| Some(LETTERS.len() as u64), stacked: false, more: false },
    Several { place: "{R}", word: "part", count: |_| None, stacked: false, more: false },
];

/// Position of a stored tensor among the parts of one GGUF tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OneOf {
    /// Number of this part.
    pub number: u64,
    /// Name of one part, for error messages.
    pub word: &'static str,
    /// Number of parts, if it is known beforehand.
    pub count: Option<u64>,
    /// Whether the part is a matrix of its own in the GGUF tensor.
    pub stacked: bool,
    /// Whether a file may have more parts, which are not read.
    pub more: bool,
}

/// Result of a match: the GGUF name, with `{P}` still open, and the numbers of the placeholders.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Match {
    pub to: String,
    pub layer: Option<u64>,
    pub one_of: Option<OneOf>,
}

/// Matches a name against a rule. If the halves of a layer are two GGUF layers, `{L}` in the GGUF
/// name is the layer of the half, and `{2L}` is the first of the two.
pub(super) fn matches(rule: &Rule, sizes: &Sizes, name: &str) -> Option<Match> {
    let (mut layer, mut half, mut one_of) = (None, None, None);
    let mut rest = name;
    let mut pattern = rule.from;
    while let Some(open) = pattern.find('{') {
        rest = rest.strip_prefix(&pattern[..open])?;
        let place = &pattern[open..open + 3];
        let (number, digits): (u64, usize) = match place {
            "{C}" => (LETTERS.iter().position(|letter| rest.starts_with(*letter))? as u64, 1),
            _ => {
                let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
                (rest[..digits].parse().ok()?, digits)
            }
        };
        match SEVERAL.iter().find(|several| several.place == place) {
            Some(&Several { word, count, stacked, more, .. }) => {
                one_of = Some(OneOf { number, word, count: count(sizes), stacked, more })
            }
            None if place == "{H}" => half = Some(Some(number).filter(|half| *half < 2)?),
            None if place == "{U}" => layer = Some(number.checked_add(sizes.stack)?),
            None => layer = Some(number),
        }
        (rest, pattern) = (&rest[digits..], &pattern[open + 3..]);
    }
    let suffix = rest.strip_prefix(pattern).filter(|suffix| ["", ".weight", ".bias"].contains(suffix))?;
    let mut to = rule.to.to_owned();
    if let Some(number) = &mut layer {
        let of_two = rule.to.contains("{2L}").then_some(0).or(half);
        *number = of_two.map_or(*number, |half| number.saturating_mul(2).saturating_add(half));
        to = to.replace("{2L}", &number.to_string()).replace("{L}", &number.to_string());
    }
    Some(Match { to: to + suffix, layer, one_of })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_by_their_numbers_and_ends() {
        let row = rule("model.layers.{L}.mlp.experts.{E}.up_proj", "blk.{L}.ffn_up_exps", plain);
        let sizes = Sizes { experts: 9, heads: 4, ..Sizes::default() };
        let found = matches(&row, &sizes, "model.layers.12.mlp.experts.7.up_proj.weight").unwrap();
        let expert = OneOf { number: 7, word: "expert", count: Some(9), stacked: true, more: false };
        assert_eq!(
            (found.to.as_str(), found.layer, found.one_of),
            ("blk.12.ffn_up_exps.weight", Some(12), Some(expert))
        );
        let norms = rule("layers.{L}.norms.{Q}", "blk.{L}.attn_q_norm", plain);
        let head = matches(&norms, &sizes, "layers.0.norms.3.weight").unwrap().one_of;
        assert_eq!(head, Some(OneOf { number: 3, word: "head", count: Some(4), stacked: true, more: false }));
        for other in [
            "model.layers.mlp.experts.7.up_proj.weight",
            "model.layers.1.mlp.experts.7.up_proj.weights",
            "model.layers.1.mlp.experts.x.up_proj",
        ] {
            assert_eq!(matches(&row, &sizes, other), None, "{other}");
        }
        // Halves of a layer, which are two layers in GGUF files.
        let halves = rule("model.layers.{L}.norm.{H}", "blk.{L}.attn_norm", plain);
        let of = |name: &str| matches(&halves, &sizes, name).map(|found| (found.to, found.layer));
        assert_eq!(of("model.layers.3.norm.1.weight"), Some(("blk.7.attn_norm.weight".into(), Some(7))));
        assert_eq!(of("model.layers.0.norm.0.weight"), Some(("blk.0.attn_norm.weight".into(), Some(0))));
        assert_eq!(of("model.layers.0.norm.2.weight"), None);
        let of_first = rule("model.layers.{L}.experts.{X}.up", "blk.{2L}.ffn_up_exps", plain);
        let found = matches(&of_first, &sizes, "model.layers.3.experts.12.up.weight").unwrap();
        let more = OneOf { number: 12, word: "expert", count: Some(9), stacked: true, more: true };
        assert_eq!((found.to.as_str(), found.layer, found.one_of), ("blk.6.ffn_up_exps.weight", Some(6), Some(more)));
        let letters = rule("model.layers.{L}.{C}_conv1d", "blk.{L}.ssm_conv1d", plain);
        let number = |name: &str| matches(&letters, &sizes, name)?.one_of.map(|of| (of.number, of.count));
        assert_eq!(number("model.layers.0.v_conv1d.weight"), Some((2, Some(3))));
        assert_eq!(number("model.layers.0.o_conv1d.weight"), None);
        let plain = rule("lm_head", "output", plain);
        assert_eq!(matches(&plain, &sizes, "lm_head.weight").unwrap().to, "output.weight");
        assert_eq!(matches(&plain, &sizes, "lm_head.weight_scale"), None);
    }
}
