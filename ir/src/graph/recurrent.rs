//! Recurrent ops: what they have in common, and where each one stands.
//!
//! A recurrent op takes the token of a `recurrent` state, rows of f32 for the tokens of a step, and weights; token by token it changes the state and
//! gives a row. So one file says of an op all that differs ([`Definition`]): the shape of its state and its result, what becomes of
//! a token, and operands for random graphs. Type rule, interpreter and random modules are those of all of them.
//!
//! ```text
//! %s0 = state.begin @conv.0 : token<@conv.0>                      // state @conv.0 : recurrent f32[3, 256]
//! %y, %s1 = short_conv %s0, %x, @w {dilation = 1} : f32[T, 256], token<@conv.0>
//! ```
//!
//! To add one: its row among the recurrent ones of `op.rs`, its file here, and its kernel (`passes/src/schedule/lower/recurrent.rs`).

pub(super) mod compress;
pub(super) mod delta_net;
pub(super) mod short_conv;
pub(super) mod ssm_scan;
pub(super) mod wkv;

use super::op::{Attr, OperandKind, Recurrent};
use super::types::TypeError;
use super::types::rule::Rule;
use super::{Dim, Op, OpKind, Operand, Type};
use crate::random::Random;
use crate::state::StateKind;

/// What an op's file says of it.
pub struct Definition {
    /// The shapes that operands and attributes make.
    pub(super) shape: fn(&Rule<'_>) -> Result<Shape, TypeError>,
    /// What a token does to the state, and its row of the result, which has the row's length. Everything is computed in f64 and rounded where it is
    /// put.
    pub(super) step: fn(&Token<'_>, &mut [f32], &mut [f32]),
    /// Operands and attributes that go together.
    pub(super) example: fn(&mut Random) -> Example,
}

/// Shapes of a recurrent op.
pub struct Shape {
    /// Rows of its operands and of its result.
    pub rows: Dim,
    /// Dimensions of the state.
    pub state: Vec<u64>,
    /// Dimensions of the result, behind the rows.
    pub result: Vec<u64>,
}

/// What a token brings: by operand its row, or the weight.
pub struct Token<'a> {
    /// The op.
    pub op: &'a Op,
    /// By operand; empty for tokens and what is absent.
    pub operands: Vec<&'a [f32]>,
    /// Its position, where the op takes positions; else 0.
    pub position: i32,
}

impl Token<'_> {
    /// The row or weight of the operand of this name, which the op table must list.
    pub fn operand(&self, name: &str) -> &[f32] {
        match self.op.kind.row().operands.iter().position(|operand| operand.name == name) {
            Some(i) => self.operands[i],
            None => unreachable!("{} has no operand {name}", self.op.kind.row().mnemonic),
        }
    }
}

/// Operands of an op, as random modules make them: dimensions behind the rows, or of a weight; none of positions.
pub struct Example {
    /// Dimensions of the state.
    pub state: Vec<u64>,
    /// By operand behind the token; of one that may be absent, nothing stands for that.
    pub operands: Vec<Vec<u64>>,
    /// Attributes.
    pub attrs: Vec<Attr>,
}

/// The types of an op's results.
pub(super) fn types(rule: &Rule<'_>, op: Recurrent) -> Result<Vec<Type>, TypeError> {
    let shape = (op.definition().shape)(rule)?;
    let state = rule.state("state", StateKind::Recurrent)?;
    let found: Option<Vec<u64>> = state.fields.first().map(|field| field.dims.iter().filter_map(Dim::fixed).collect());
    if found.as_ref() != Some(&shape.state) {
        return Err(rule.operand("state", format!("the token of a recurrent state f32{:?}", shape.state)));
    }
    let dims: Vec<Dim> = std::iter::once(shape.rows).chain(shape.result.into_iter().map(Dim::Fixed)).collect();
    let ty = Type::f32(dims);
    super::types::check_type(&ty)?;
    Ok(vec![ty, rule.value("state").clone()])
}

/// The rows of an op's result, of tokens in order. `operands` are all rows of each operand, or a weight; nothing for positions, which stand beside.
pub(super) fn run(
    op: &Op,
    kind: Recurrent,
    (operands, positions): (&[Vec<f32>], &[i32]),
    rows: usize,
    state: &mut [f32],
    width: usize,
) -> Vec<f32> {
    let declared = OpKind::Recurrent(kind).row().operands;
    let mut y = vec![0.0; rows * width];
    for (row, y) in y.chunks_exact_mut(width.max(1)).enumerate() {
        let of_row = |(data, (declared, operand)): (&'_ Vec<f32>, (&super::op::OperandRow, &Operand))| match (
            declared.kind,
            operand,
        ) {
            (OperandKind::Value | OperandKind::OptValue, Operand::Value(_)) => {
                row * (data.len() / rows)..(row + 1) * (data.len() / rows)
            }
            _ => 0..data.len(),
        };
        let ranges = operands.iter().zip(declared.iter().zip(&op.operands)).map(of_row);
        let operands = operands.iter().zip(ranges).map(|(data, range)| &data[range]).collect();
        let position = positions.get(row).copied().unwrap_or(0);
        (kind.definition().step)(&Token { op, operands, position }, state, y);
    }
    y
}
