//! Matching operands of recurrent ops, for random modules.

use ixc_ir::graph::attrs::KeyHeads;
use ixc_ir::graph::{Attr, Recurrent};
use ixc_ir::random::Random;

/// Numbers that the state of `compress` has for each element.
const COMPRESS_NUMBERS: u64 = 3;

/// Shapes of a recurrent op's operands. Operands with rows have their dimensions after the rows;
/// weights have all dimensions. Positions have no dimensions here.
pub(super) struct Example {
    /// Dimensions of the state.
    pub state: Vec<u64>,
    /// Dimensions of the operands that follow the token. Absent optional operands have none.
    pub operands: Vec<Vec<u64>>,
    /// Attributes of the op.
    pub attrs: Vec<Attr>,
}

impl Example {
    /// Returns matching operands and attributes of an op.
    pub(super) fn random(op: Recurrent, rng: &mut Random) -> Example {
        match op {
            Recurrent::DeltaNet => delta_net(rng),
            Recurrent::ShortConv => short_conv(rng),
            Recurrent::Compress => compress(rng),
            Recurrent::SsmScan => ssm_scan(rng),
            Recurrent::Wkv => wkv(rng),
        }
    }
}

fn delta_net(rng: &mut Random) -> Example {
    let (key_heads, group, dk, dv) = (rng.pick(&[1, 2]), rng.pick(&[1, 2]), rng.pick(&[8, 16]), rng.pick(&[4, 16]));
    let heads = key_heads * group;
    let (keys, of_head) = (vec![key_heads, dk], vec![heads]);
    let (alpha, dt) = match rng.pick(&[false, true]) {
        true => (vec![heads, dk], vec![heads * dk]),
        false => (of_head.clone(), of_head.clone()),
    };
    Example {
        state: vec![heads, dk, dv],
        operands: vec![keys.clone(), keys, vec![heads, dv], alpha, of_head.clone(), of_head, dt],
        attrs: vec![
            Attr::Word(rng.pick(KeyHeads::WORDS).to_string()),
            Attr::rounded(1e-6),
            Attr::rounded(rng.pick(&[0.0, -5.0])),
            Attr::rounded(rng.pick(&[0.0, 2.0])),
        ],
    }
}

fn short_conv(rng: &mut Random) -> Example {
    let (channels, taps, dilation) = (rng.pick(&[32, 64]), rng.pick(&[2, 4]), rng.pick(&[1, 3]));
    Example {
        state: vec![(taps - 1) * dilation, channels],
        operands: vec![vec![channels], vec![channels, taps]],
        attrs: vec![Attr::Int(dilation as i64)],
    }
}

fn compress(rng: &mut Random) -> Example {
    let (every, d, overlap) = (rng.pick(&[2, 4]), rng.pick(&[16, 32]), rng.pick(&[false, true]));
    let series = if overlap { 2 } else { 1 };
    Example {
        state: vec![COMPRESS_NUMBERS * series, d],
        operands: vec![vec![series * d], vec![series * d], Vec::new(), vec![every, series * d]],
        attrs: vec![Attr::Int(every as i64), Attr::Bool(overlap)],
    }
}

fn ssm_scan(rng: &mut Random) -> Example {
    let (groups, of_group, s, p) = (rng.pick(&[1, 2]), rng.pick(&[1, 3]), rng.pick(&[8, 16]), rng.pick(&[1, 4, 16]));
    let heads = groups * of_group;
    let (shared, of_head) = (vec![groups, s], vec![heads]);
    let rates = if p == 1 { vec![heads, s] } else { of_head.clone() };
    Example {
        state: vec![heads, s, p],
        operands: vec![vec![heads, p], shared.clone(), shared, of_head.clone(), rates, of_head.clone(), of_head],
        attrs: Vec::new(),
    }
}

fn wkv(rng: &mut Random) -> Example {
    let (key_heads, group, d, dv) = (rng.pick(&[1, 2]), rng.pick(&[1, 3]), rng.pick(&[8, 16]), rng.pick(&[4, 16]));
    let heads = key_heads * group;
    let of_head = vec![heads, d];
    let deltas = if rng.pick(&[false, true]) { of_head.clone() } else { Vec::new() };
    Example {
        state: vec![heads, d, dv],
        operands: vec![of_head.clone(), vec![key_heads, d], vec![key_heads, dv], of_head, deltas.clone(), deltas],
        attrs: vec![Attr::Bool(rng.pick(&[false, true])), Attr::Bool(rng.pick(&[false, true]))],
    }
}
