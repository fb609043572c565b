//! Conversions of stored tensors to GGUF tensors: splitting, reordering the rows of heads, and
//! changing elements.

use super::array::Array;
use super::sizes::Sizes;
use ixc_ir::derived::Change;

/// One GGUF tensor that a rule makes from a stored tensor: the concatenated rows of `arrays`.
/// `part` replaces `{P}` in the rule's GGUF name.
pub(super) struct ConvertedPart {
    pub part: &'static str,
    pub arrays: Vec<Array>,
}

/// Function that makes GGUF tensors from a stored tensor. It returns `None` if the shape is
/// unexpected.
pub(super) type Conversion = fn(&Sizes, Array) -> Option<Vec<ConvertedPart>>;

pub(super) fn single_part(array: Array) -> Option<Vec<ConvertedPart>> {
    Some(vec![ConvertedPart { part: "", arrays: vec![array] }])
}

fn named_parts<const N: usize>(parts: [(&'static str, Option<Array>); N]) -> Option<Vec<ConvertedPart>> {
    parts.into_iter().map(|(part, array)| Some(ConvertedPart { part, arrays: vec![array?] })).collect()
}

/// Returns the tensor unchanged.
pub(super) fn plain(_: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(x)
}

/// Returns a table with a row for each token of the vocabulary. The file may lack rows of the last
/// tokens; they become copies of the first row, as in transformers.
pub(super) fn rows_for_all_tokens(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    /// Maximum number of missing rows. Rows are missing for tokens of images and audio.
    const MAX_MISSING_ROWS: u64 = 1 << 12;
    let missing = s.vocabulary.saturating_sub(x.len(0));
    if missing > MAX_MISSING_ROWS {
        return None;
    }
    let first = x.clone().slice(0, 0, 1)?;
    let mut arrays = vec![x];
    arrays.extend(std::iter::repeat_n(first, missing as usize));
    Some(vec![ConvertedPart { part: "", arrays }])
}

/// Returns a table of integers, such as expert ids; its elements are not weights.
pub(super) fn table(_: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(x.table()?)
}

/// Drops a tensor that inference does not use.
pub(super) fn skip(_: &Sizes, _: Array) -> Option<Vec<ConvertedPart>> {
    Some(Vec::new())
}

/// Returns the weight of a norm, plus 1: the model's norm multiplies by `1 + weight`.
pub(super) fn plus_one(_: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(x.with_change(Change::PlusOne))
}

/// Returns the weight of a norm after attention, plus 1/5: the model's norm multiplies by `1/5 +
/// weight`.
pub(super) fn plus_fifth(_: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(x.with_change(Change::Plus(1.0 / 5.0)))
}

/// Returns the weight of a norm after a network, plus `5^-1.5`, because the model's norm multiplies
/// by that sum.
pub(super) fn plus_root_of_fifths(_: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(x.with_change(Change::Plus((1.0 / 5f64.powf(1.5)) as f32)))
}

/// Reorders query heads so that the heads of one key head are adjacent. In the stored matrix,
/// consecutive query heads belong to consecutive key heads.
pub(super) fn query_in_turns(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(together(s, x, 0)?)
}

/// Reorders the columns of attention's output matrix like the rows in [`query_in_turns`].
pub(super) fn output_in_turns(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(together(s, x, 1)?)
}

fn together(s: &Sizes, x: Array, dim: usize) -> Option<Array> {
    let each = s.heads.checked_div(s.layer_kv_heads)?;
    x.split(dim, &[each, s.layer_kv_heads, s.head_dim])?.swap(dim, dim + 1)?.join(dim)?.join(dim)
}

/// Reorders the rows of each head so that the two rows of a RoPE pair are adjacent. In the stored
/// matrix, they are half a head apart.
fn neighbours(x: Array, heads: u64) -> Option<Array> {
    let half = x.len(0).checked_div(heads)? / 2;
    x.split(0, &[heads, 2, half])?.swap(1, 2)?.join(0)?.join(0)
}

pub(super) fn query(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(neighbours(x, s.heads)?)
}

pub(super) fn key(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(neighbours(x, s.kv_heads)?)
}

/// Makes RoPE pairs of keys adjacent, in models whose layers differ in the number of key heads.
pub(super) fn key_of_layer(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(neighbours(x, s.layer_kv_heads)?)
}

/// Makes RoPE pairs of queries adjacent, in models whose RoPE rotates only the first elements of
/// each head. In the stored matrix, the rows of a pair are half of the rotated length apart.
pub(super) fn query_of_part(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    neighbours_of_part(s, x, s.heads)
}

/// Does what [`query_of_part`] does, for keys.
pub(super) fn key_of_part(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    neighbours_of_part(s, x, s.kv_heads)
}

fn neighbours_of_part(s: &Sizes, x: Array, heads: u64) -> Option<Vec<ConvertedPart>> {
    let (length, turned) = (x.len(0).checked_div(heads)?, s.rotated);
    let still = length.checked_sub(turned)?;
    if still == 0 {
        return single_part(neighbours(x, heads)?);
    }
    let of_head = |head: u64| {
        let from = head * length;
        let part = neighbours(x.clone().slice(0, from, turned)?, 1)?;
        Some([part, x.clone().slice(0, from + turned, still)?])
    };
    let arrays: Option<Vec<_>> = (0..heads).map(of_head).collect();
    Some(vec![ConvertedPart { part: "", arrays: arrays?.into_iter().flatten().collect() }])
}

/// Swaps the two halves of each query head, for models whose RoPE rotates in the opposite
/// direction.
pub(super) fn query_turned_back(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    second_halves_first(&x, s.heads)
}

/// Does what [`query_turned_back`] does, for keys.
pub(super) fn key_turned_back(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    second_halves_first(&x, s.kv_heads)
}

fn second_halves_first(x: &Array, heads: u64) -> Option<Vec<ConvertedPart>> {
    let halves = heads.checked_mul(2)?;
    let half = x.len(0).checked_div(halves).filter(|half| half * halves == x.len(0))?;
    let arrays: Option<Vec<_>> = (0..halves).map(|at| x.clone().slice(0, (at ^ 1) * half, half)).collect();
    Some(vec![ConvertedPart { part: "", arrays: arrays? }])
}

/// Names a norm: after attention in layers with attention, before the network in other layers.
pub(super) fn norm_of_layer(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    named_parts([(if s.layer_kv_heads > 0 { "post_attention_norm" } else { "ffn_norm" }, Some(x))])
}

/// Splits the gate and up matrices of experts. Drops matrices of experts that the configuration
/// does not count.
pub(super) fn gate_up_of_experts(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    gate_up(s, x.slice(0, 0, s.experts)?)
}

/// Splits one matrix, or one for each expert, into gate and up: the two halves of its rows.
pub(super) fn gate_up(_: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    let dim = x.rank().checked_sub(2)?;
    let half = x.len(dim) / 2;
    if half * 2 != x.len(dim) {
        return None;
    }
    named_parts([("gate", x.clone().slice(dim, 0, half)), ("up", x.slice(dim, half, half))])
}

/// Splits the gate and up matrices of experts. Published files store them transposed; files that
/// transformers 5 writes do not.
pub(super) fn gate_up_either(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    gate_up(s, if x.len(1) == s.width { transposed_array(x)? } else { x })
}

/// Returns the down matrices that belong to [`gate_up_either`], transposed if the file stores them
/// so.
pub(super) fn down_either(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(if x.len(1) == s.expert_width { transposed_array(x)? } else { x })
}

fn transposed_array(x: Array) -> Option<Array> {
    let last = x.rank().checked_sub(1)?;
    x.swap(last.checked_sub(1)?, last)
}

/// Transposes a matrix, or the matrix of each expert.
pub(super) fn transpose(_: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(transposed_array(x)?)
}

/// Transposes matrices, then splits them into gate and up.
pub(super) fn transposed_gate_up(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    gate_up(s, transposed_array(x)?)
}

/// Splits matrices in which rows of gate and up alternate.
pub(super) fn gate_up_rows(_: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    let dim = x.rank().checked_sub(2)?;
    named_parts([("gate", x.clone().every_second(dim, 0)), ("up", x.every_second(dim, 1))])
}

/// Transposes matrices in which columns of gate and up alternate, and splits them.
pub(super) fn gate_up_columns(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    gate_up_rows(s, transposed_array(x)?)
}

/// Splits vectors in which elements of gate and up alternate.
pub(super) fn gate_up_elements(_: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    let dim = x.rank().checked_sub(1)?;
    named_parts([("gate", x.clone().every_second(dim, 0)), ("up", x.every_second(dim, 1))])
}

/// Returns the norm weight of a latent row, times the square root of `width / rank`. The model
/// multiplies the latent row by this factor.
pub(super) fn norm_of_rank(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    let rank = x.len(0);
    single_part(times(x, [(s.width as f64 / rank as f64).sqrt() as f32, 1.0]))
}

/// Splits the matrix that makes keys and values from latent rows. For each head, the result has a
/// transposed matrix for keys and a matrix for values.
pub(super) fn latent_keys_values(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    // A quantised block extends along rows, so the matrix cannot be transposed.
    if x.element().is_ok_and(|element| element.columns() > 1) {
        return None;
    }
    let heads = x.split(0, &[s.heads, s.still.checked_add(s.value)?])?;
    named_parts([
        ("k_b", heads.clone().slice(1, 0, s.still).and_then(|k| k.swap(1, 2))),
        ("v_b", heads.slice(1, s.still, s.value)),
    ])
}

/// Splits a matrix into the rows of queries, keys and values.
pub(super) fn query_key_value(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    let (q, k) = (s.heads.checked_mul(s.head_dim)?, s.kv_heads.checked_mul(s.head_dim)?);
    let after = q.checked_add(k)?;
    let part = |from, len| x.clone().slice(0, from, len);
    named_parts([("q", part(0, q)), ("k", part(q, k)), ("v", part(after, k))])
}

/// Splits a matrix into four equal parts: rows of attention's output gates, queries, keys and
/// values.
pub(super) fn gate_query_key_value(_: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    let each = x.len(0) / 4;
    let part = |number| x.clone().slice(0, number * each, each);
    named_parts([("gate", part(0)), ("q", part(1)), ("k", part(2)), ("v", part(3))])
}

/// Makes RoPE pairs adjacent in a matrix of norm weights with a row for each head. In the stored
/// matrix, they are half a head apart.
pub(super) fn halves_side_by_side(_: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    let half = x.len(1) / 2;
    single_part(x.split(1, &[2, half])?.swap(1, 2)?.join(1)?)
}

/// Makes RoPE pairs adjacent like [`halves_side_by_side`], and joins all rows to one vector.
pub(super) fn all_halves_side_by_side(_: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    let half = x.len(1) / 2;
    single_part(x.split(1, &[2, half])?.swap(1, 2)?.join(1)?.join(0)?)
}

/// Negates the second half of each query head, for models whose RoPE rotates in the opposite
/// direction.
pub(super) fn query_signs(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    second_halves_negated(&x, s.heads)
}

/// Does what [`query_signs`] does, for keys.
pub(super) fn key_signs(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    second_halves_negated(&x, s.kv_heads)
}

fn second_halves_negated(x: &Array, heads: u64) -> Option<Vec<ConvertedPart>> {
    let halves = heads.checked_mul(2)?;
    let half = x.len(0).checked_div(halves).filter(|half| half * halves == x.len(0))?;
    let signed = |at: u64| {
        let part = x.clone().slice(0, at * half, half)?;
        Some(if at.is_multiple_of(2) { part } else { times(part, [-1.0, 1.0]) })
    };
    let arrays: Option<Vec<_>> = (0..halves).map(signed).collect();
    Some(vec![ConvertedPart { part: "", arrays: arrays? }])
}

/// Splits a matrix that was divided among four machines. Each quarter has rows of queries, values
/// and keys, in this order.
pub(super) fn query_value_key_of_four(_: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    const MACHINES: u64 = 4;
    let rows = x.len(0).checked_div(3 * MACHINES)?;
    let machines = x.split(0, &[MACHINES, 3, rows])?;
    let part = |at| machines.clone().slice(1, at, 1)?.join(0)?.join(0);
    named_parts([("q", part(0)), ("v", part(1)), ("k", part(2))])
}

/// Drops the first two rows of a table of positions, which are reserved for padding.
pub(super) fn rows_behind_two(_: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    let rows = x.len(0).checked_sub(2)?;
    single_part(x.slice(0, 2, rows)?)
}

/// Keeps the rows of a table of positions up to the context length.
pub(super) fn rows_of_context(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(x.slice(0, 0, s.context)?)
}

/// Keeps the rows of tokens in the vocabulary. The rows after them are for image tokens.
pub(super) fn rows_of_vocabulary(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(x.slice(0, 0, s.vocabulary)?)
}

/// Returns the gains of query heads in two forms: as stored, and repeated for each element of the
/// head.
pub(super) fn gains_of_heads(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    let (heads, rows) = (x.len(0), x.clone().repeat_elements(s.head_dim)?);
    named_parts([("norm", Some(x)), ("gain", rows.split(0, &[heads, s.head_dim]))])
}

/// Splits a matrix into two halves of its rows: keys and values.
pub(super) fn key_value(_: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    let half = x.len(0) / 2;
    named_parts([("k", x.clone().slice(0, 0, half)), ("v", x.slice(0, half, half))])
}

/// Splits a matrix into the rows of queries, keys and values. Makes RoPE pairs of queries and keys
/// adjacent.
pub(super) fn turned_query_key_value(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    let (q, k) = (s.heads.checked_mul(s.head_dim)?, s.kv_heads.checked_mul(s.head_dim)?);
    let part = |from, len| x.clone().slice(0, from, len);
    named_parts([
        ("q", part(0, q).and_then(|x| neighbours(x, s.heads))),
        ("k", part(q, k).and_then(|x| neighbours(x, s.kv_heads))),
        ("v", part(q.checked_add(k)?, k)),
    ])
}

/// Splits a matrix into the rows of queries, keys and values. Values may be shorter than keys, and
/// layers may differ in the number of key heads. The matrix may be one machine's part, which has an
/// equal share of each.
pub(super) fn query_key_value_of_layer(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
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
    named_parts([("q", part(q)), ("k", part(k)), ("v", part(v))])
}

/// Splits a matrix in which, for each key head, rows of its query heads, its keys and its values
/// follow each other. Makes RoPE pairs adjacent, as in [`query`] and [`key`].
pub(super) fn split_groups(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    let each = s.heads.checked_div(s.kv_heads)?;
    let heads = x.split(0, &[s.kv_heads, each.checked_add(2)?, 2, s.head_dim / 2])?;
    let turned = |from, len| heads.clone().slice(1, from, len)?.swap(2, 3)?.join(0)?.join(0)?.join(0);
    let values = heads.clone().slice(1, each + 1, 1)?.join(0)?.join(0)?.join(0);
    named_parts([("q", turned(0, each)), ("k", turned(each, 1)), ("v", values)])
}

/// Reorders a matrix like that of [`split_groups`] to rows of all queries, then keys, then values.
/// The order within a head stays.
pub(super) fn by_key_heads(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    let each = s.heads.checked_div(s.layer_kv_heads)?;
    let of_head = each.checked_add(2)?;
    let length = x.len(0).checked_div(s.layer_kv_heads.checked_mul(of_head)?)?;
    let heads = x.split(0, &[s.layer_kv_heads, of_head, length])?;
    if each == 1 {
        // With one query head for each key head, one view suffices. Biases need this, as several
        // views cannot form a vector.
        return single_part(heads.swap(0, 1)?.join(0)?.join(0)?);
    }
    let part = |from, len| heads.clone().slice(1, from, len)?.join(0)?.join(0);
    Some(vec![ConvertedPart { part: "", arrays: vec![part(0, each)?, part(each, 1)?, part(each + 1, 1)?] }])
}

/// Splits a matrix that stacks the rows of all experts into a matrix for each expert.
pub(super) fn of_experts(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(rows_of_experts(s, x)?)
}

/// Splits a matrix that stacks the rows of all experts, and transposes the matrix of each expert.
pub(super) fn transposed_of_experts(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(transposed_array(rows_of_experts(s, x)?)?)
}

fn rows_of_experts(s: &Sizes, x: Array) -> Option<Array> {
    let rows = x.len(0).checked_div(s.experts)?;
    x.split(0, &[s.experts, rows])
}

/// Multiplies the elements by both `factors`.
pub(super) fn times(x: Array, factors: [f32; 2]) -> Array {
    if factors == [1.0; 2] { x } else { x.with_change(Change::Times(factors)) }
}

pub(super) fn embedding(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(times(x, [s.factors.embedding, 1.0]))
}

pub(super) fn logits(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(times(x, [s.factors.logits, 1.0]))
}

/// Returns the embedding table and the output matrix, which are one stored tensor, each times its
/// own factor.
pub(super) fn embedding_and_logits(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    let [embedded, logits] = [s.factors.embedding, s.factors.logits].map(|factor| times(x.clone(), [factor, 1.0]));
    named_parts([("token_embd", Some(embedded)), ("output", Some(logits))])
}

/// Multiplies the matrix of queries or values by the factor on the input of attention.
pub(super) fn of_attention(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(times(x, [s.factors.attention, 1.0]))
}

pub(super) fn keys_of_attention(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(times(x, [s.factors.key, s.factors.attention]))
}

pub(super) fn out_of_attention(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(times(x, [s.factors.attention_out, 1.0]))
}

pub(super) fn gates(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(times(x, [s.factors.gate, 1.0]))
}

pub(super) fn out_of_network(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(times(x, [s.factors.down, 1.0]))
}

/// Returns a tensor as a vector. It may be stored as a matrix of one row.
pub(super) fn row(_: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(if x.rank() == 2 { x.squeeze(0)? } else { x })
}

/// Returns the first row of a matrix as a vector.
pub(super) fn first_row(_: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(if x.rank() == 2 { x.slice(0, 0, 1)?.squeeze(0)? } else { x })
}

/// Names gates by their layer: gates on the output of attention, or of linear attention.
pub(super) fn gates_of_layer(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    named_parts([(if s.layer_kv_heads > 0 { "attn_gate" } else { "ssm_g_a" }, Some(x))])
}

/// Splits a matrix into the rows of an indexer's queries and keys.
pub(super) fn index_query_key(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    let rest = x.len(0).checked_sub(s.index)?;
    named_parts([("q", x.clone().slice(0, 0, s.index)), ("k", x.slice(0, s.index, rest))])
}

/// Returns the norm weights of several streams as a matrix, one row for each stream, plus 1: the
/// model's norm multiplies by `1 + weight`.
pub(super) fn plus_one_by_stream(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    let length = x.len(0).checked_div(s.streams)?;
    single_part(x.split(0, &[s.streams, length])?.with_change(Change::PlusOne))
}

/// Does what [`gates_of_layer`] does, for models that store the gates of linear attention as one
/// matrix.
pub(super) fn whole_gates_of_layer(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    named_parts([(if s.layer_kv_heads > 0 { "attn_gate" } else { "ssm_g" }, Some(x))])
}

/// Returns a matrix whose rows are scaled to length 1.
pub(super) fn unit_rows(_: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(x.with_change(Change::Unit))
}

/// Returns divisors of RoPE frequencies. The stored tensor has the logarithms of multipliers.
pub(super) fn divisors(_: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    single_part(x.with_change(Change::ExpMinus))
}

/// Splits gate and up matrices of the shared expert, or of the dense network in models without
/// experts.
pub(super) fn shared_gate_up(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    let mut made = gate_up(s, x)?;
    if s.experts > 0 {
        made.iter_mut().zip(["gate_shexp", "up_shexp"]).for_each(|(made, part)| made.part = part);
    }
    Some(made)
}

/// Names the down matrix that belongs to [`shared_gate_up`].
pub(super) fn shared_down(s: &Sizes, x: Array) -> Option<Vec<ConvertedPart>> {
    named_parts([(if s.experts > 0 { "down_shexp" } else { "down" }, Some(x))])
}
