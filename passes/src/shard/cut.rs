//! Rules from the cut of an op's result to cuts of its operands. The function [`operands`] is used
//! both to choose cuts and to construct the rank's ops.
//!
//! ```text
//! %y = merge_heads %x : f32[T, 256]      // of x f32[T, 4, 64]; elements 128..256 of a row
//! ```
//! takes heads 2..4 of `%x`.

use std::collections::HashMap;
use std::ops::Range;

use ixc_ir::graph::attrs::KeyHeads;
use ixc_ir::graph::{Attr, Op, OpKind, OpView, Operand, Recurrent, ValueId, view};

use super::emit::{DimCut, Emitter};

/// Part of an operand that a cut op reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Take {
    /// The op reads the whole operand.
    Whole,
    /// The op reads a cut of a value or of a weight.
    Cut(DimCut),
    /// The token of a state. The state's fields are cut at this dimension; `None` leaves them
    /// whole.
    State(Option<DimCut>),
}

/// Operands and attributes of a cut op.
pub(super) struct CutOp {
    /// For each operand, the part that the cut op reads.
    pub(super) takes: Vec<Take>,
    /// Attributes of the cut op.
    pub(super) attrs: Vec<Attr>,
}

/// Returns ranges with both ends multiplied by `by`.
fn times(ranges: &[Range<u64>], by: u64) -> Vec<Range<u64>> {
    ranges.iter().map(|range| range.start * by..range.end * by).collect()
}

/// Returns ranges with both ends divided by `by`, or `None` if an end is not a multiple.
fn over(ranges: &[Range<u64>], by: u64) -> Option<Vec<Range<u64>>> {
    let whole = ranges.iter().all(|range| range.start.is_multiple_of(by) && range.end.is_multiple_of(by));
    whole.then(|| ranges.iter().map(|range| range.start / by..range.end / by).collect())
}

/// Returns the groups of `by` elements that the ranges need. Either each range consists of whole
/// groups, or there is one range inside one group. In both cases, cut query heads still share key
/// heads evenly.
fn groups(ranges: &[Range<u64>], by: u64) -> Option<Vec<Range<u64>>> {
    over(ranges, by).or_else(|| match ranges {
        [range] if range.start / by == (range.end - 1) / by => {
            let group = range.start / by;
            Some(DimCut::from_range(0, group..group + 1).ranges)
        }
        _ => None,
    })
}

/// Returns the parts of its operands that an op reads if its first result is cut. Returns `None` if
/// the op cannot be cut in this way.
pub(super) fn operands(emitter: &Emitter<'_>, op: &Op, cut: &DimCut) -> Option<CutOp> {
    let result = *op.results.first()?;
    let dims = emitter.old.ty(result).dims().len();
    let size = |name: &str, dim: usize| emitter.size(op.operand(name).value()?, dim);
    let rank_of = |name: &str| op.operand(name).value().map(|value| emitter.old.ty(value).dims().len());
    let same = || Take::Cut(cut.clone());
    let at = |dim: usize, ranges: Vec<Range<u64>>| Take::Cut(DimCut { dim, ranges });
    let ranges = &cut.ranges;
    let (last, by_heads) = (cut.dim + 1 == dims, cut.dim == 1 && dims == 3);
    if cut.dim == 0 {
        return None;
    }
    let mut attrs = op.attrs.clone();
    // Parts of operands by name; operands that are not listed are whole.
    let takes: Vec<(&str, Take)> = match op.kind {
        OpKind::Add | OpKind::Mul => vec![("a", same()), ("b", same())],
        OpKind::Gated => vec![("gate", same()), ("up", same())],
        OpKind::Unary(_) => vec![("x", same())],
        OpKind::AddBias if last => vec![("x", same()), ("bias", at(0, ranges.clone()))],
        OpKind::AddBias => vec![("x", same())],
        OpKind::ScaleHeads => {
            let width = emitter.size(result, 1)? / size("s", 1)?;
            let s = match size("s", 1)? {
                1 => Take::Whole,
                _ => at(1, over(ranges, width)?),
            };
            let residual = if op.operand("residual") == Operand::Absent { Take::Whole } else { same() };
            vec![("x", same()), ("s", s), ("residual", residual)]
        }
        OpKind::RmsNorm if by_heads => {
            let by_head = op.operand("w").weight().is_some_and(|w| emitter.source.weights[w.index()].shape.len() == 2);
            vec![("x", same()), ("w", if by_head { at(0, ranges.clone()) } else { Take::Whole })]
        }
        OpKind::Rope | OpKind::Temperature | OpKind::Centre if by_heads => vec![("x", same())],
        OpKind::HeadsTemperature if by_heads => {
            vec![("x", same()), ("scales", at(0, ranges.clone())), ("biases", at(0, ranges.clone()))]
        }
        OpKind::HeadsSum => vec![("x", same())],
        OpKind::SplitHeads if by_heads => {
            attrs = vec![Attr::Int(cut.size() as i64)];
            vec![("x", at(1, times(ranges, emitter.size(result, 2)?)))]
        }
        OpKind::MergeHeads => vec![("x", at(1, over(ranges, size("x", 2)?)?))],
        OpKind::Slice if by_heads => vec![("x", same())],
        OpKind::Concat if by_heads => vec![("a", same()), ("b", same())],
        OpKind::Matmul if last => {
            emitter.matrix(op.operand("w").value()?)?;
            vec![("w", at(0, ranges.clone()))]
        }
        OpKind::HeadsMatmul if by_heads => {
            emitter.matrix(op.operand("w").value()?)?;
            vec![("x", same()), ("w", at(0, ranges.clone()))]
        }
        OpKind::ExpertMatmul if last => {
            emitter.matrix(op.operand("w").value()?)?;
            vec![("w", at(1, ranges.clone()))]
        }
        OpKind::ExpertAddBias if last => vec![("y", same()), ("bias", at(1, ranges.clone()))],
        OpKind::ExpertScale if last => vec![("y", same())],
        OpKind::Attention if by_heads => {
            let attention = view::Attention::from_op(op)?;
            // ALiBi's slopes depend on the number of heads.
            if attention.max_bias != 0.0 || rank_of("chosen") == Some(3) {
                return None;
            }
            let (heads, of_keys) = (emitter.size(result, 1)?, emitter.key_heads(attention.kv)?);
            let state = match of_keys {
                1 => None,
                _ => Some(DimCut { dim: 0, ranges: groups(ranges, heads / of_keys)? }),
            };
            let sinks = if attention.sinks.is_some() { at(0, ranges.clone()) } else { Take::Whole };
            vec![("q", same()), ("kv", Take::State(state)), ("sinks", sinks)]
        }
        OpKind::Recurrent(Recurrent::ShortConv) if last => vec![
            ("state", Take::State(Some(DimCut { dim: 1, ranges: ranges.clone() }))),
            ("x", same()),
            ("w", at(0, ranges.clone())),
        ],
        OpKind::Recurrent(Recurrent::DeltaNet) if by_heads => {
            let delta = view::DeltaNet::from_op(op)?;
            let (heads, of_keys) = (emitter.size(result, 1)?, size("q", 1)?);
            if delta.keys != KeyHeads::Grouped && heads != of_keys {
                return None;
            }
            let keys = at(1, groups(ranges, heads / of_keys)?);
            let each = emitter.source.weights[delta.dt.index()].shape[0] / heads;
            vec![
                ("state", Take::State(Some(DimCut { dim: 0, ranges: ranges.clone() }))),
                ("q", keys.clone()),
                ("k", keys),
                ("v", same()),
                ("alpha", same()),
                ("beta", same()),
                ("a", at(0, ranges.clone())),
                ("dt", at(0, times(ranges, each))),
            ]
        }
        _ => return None,
    };
    let of = |name: &str| takes.iter().find(|(own, _)| *own == name).map_or(Take::Whole, |(_, take)| take.clone());
    Some(CutOp { takes: op.kind.row().operands.iter().map(|row| of(row.name)).collect(), attrs })
}

/// Returns the unit of a value's dimension: the number of adjacent elements, or heads, that must
/// stay on one rank. Returns the reason if no cut into `ranks` equal parts is possible.
pub(super) fn unit(emitter: &Emitter<'_>, value: ValueId, dim: usize) -> Result<u64, String> {
    let mut units: HashMap<(ValueId, usize), u64> = HashMap::new();
    // An explicit stack, because a chain of ops can be too long for recursion. An op is computed
    // after its sources.
    let mut pending = vec![(value, dim)];
    while let Some(&(value, dim)) = pending.last() {
        let sources = sources(emitter, value, dim).into_iter();
        let missing: Vec<_> = sources.filter(|source| !units.contains_key(source)).collect();
        if missing.is_empty() {
            let own = own_unit(emitter, value, dim, &units)?;
            units.insert((value, dim), own);
            pending.pop();
        } else {
            pending.extend(missing);
        }
    }
    Ok(units[&(value, dim)])
}

/// Returns the operands and dimensions from whose units the unit of a value's dimension follows.
fn sources(emitter: &Emitter<'_>, value: ValueId, dim: usize) -> Vec<(ValueId, usize)> {
    let Some(op) = emitter.def_use.definition(value).map(|at| &emitter.old.ops[at]) else { return Vec::new() };
    let operands: &[(&str, usize)] = match op.kind {
        OpKind::Add | OpKind::Mul => &[("a", dim), ("b", dim)],
        OpKind::Gated => &[("gate", dim), ("up", dim)],
        OpKind::Unary(_) | OpKind::AddBias | OpKind::RmsNorm | OpKind::Rope | OpKind::HeadsMatmul => &[("x", dim)],
        OpKind::ScaleHeads => match op.operand("s").value().and_then(|s| emitter.size(s, 1)) {
            None | Some(1) => &[("x", 1)],
            Some(_) => &[("x", 1), ("s", 1)],
        },
        OpKind::MergeHeads => &[("x", 1)],
        OpKind::SplitHeads if dim == 1 => &[("x", 1)],
        OpKind::ExpertAddBias | OpKind::ExpertScale => &[("y", dim)],
        _ => &[],
    };
    operands.iter().filter_map(|&(name, dim)| Some((op.operand(name).value()?, dim))).collect()
}

/// Returns the unit of a value's dimension from the units of its sources.
fn own_unit(
    emitter: &Emitter<'_>,
    value: ValueId,
    dim: usize,
    units: &HashMap<(ValueId, usize), u64>,
) -> Result<u64, String> {
    let Some(op) = emitter.def_use.definition(value).map(|at| &emitter.old.ops[at]) else { return Ok(1) };
    let size =
        |name: &str, dim: usize| op.operand(name).value().and_then(|value| emitter.size(value, dim)).unwrap_or(1);
    let ranks = u64::from(emitter.group.ranks);
    // Query heads that share a key head stay together, unless there are fewer key heads than ranks.
    let shared = |heads: u64, of_keys: u64| {
        let each = heads / of_keys.max(1);
        match (heads.is_multiple_of(ranks), of_keys.is_multiple_of(ranks) || ranks.is_multiple_of(of_keys.max(1))) {
            (true, true) if of_keys >= ranks => Ok(each),
            (true, true) => Ok(heads / ranks),
            _ => {
                Err(format!("{heads} heads with {of_keys} heads of keys cannot be divided among {ranks} ranks evenly"))
            }
        }
    };
    let mut all = sources(emitter, value, dim).into_iter().map(|source| units[&source]);
    let (first, second) = (all.next().unwrap_or(1), all.next());
    let own = match op.kind {
        OpKind::ScaleHeads => match second {
            Some(s) => s.checked_mul(size("x", 1) / size("s", 1)).and_then(|s| lcm(first, s)),
            None => Some(first),
        },
        OpKind::MergeHeads => first.checked_mul(size("x", 2)),
        OpKind::SplitHeads if dim == 1 => Some(first.div_ceil(emitter.size(value, 2).unwrap_or(1))),
        OpKind::Attention => {
            let heads = emitter.size(value, 1).unwrap_or(1);
            let of_keys = op.operand("kv").value().and_then(|kv| emitter.key_heads(kv)).unwrap_or(1);
            return match of_keys {
                1 => shared(heads, heads),
                of_keys => shared(heads, of_keys),
            };
        }
        OpKind::Recurrent(Recurrent::DeltaNet) => {
            return shared(emitter.size(value, 1).unwrap_or(1), size("q", 1));
        }
        _ => match second {
            Some(second) => lcm(first, second),
            None => Some(first),
        },
    };
    own.ok_or_else(|| "the least part that must stay on one rank does not fit 64 bits".to_string())
}

/// Returns the least common multiple of two positive numbers, if it fits 64 bits.
fn lcm(a: u64, b: u64) -> Option<u64> {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x.max(1)).checked_mul(b)
}
