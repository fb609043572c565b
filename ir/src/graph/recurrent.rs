//! Recurrent ops: code that all of them share, and a list of their files.
//!
//! A recurrent op takes the token of a `recurrent` state, f32 rows for the tokens of a step, and
//! weights. It goes through the tokens in order; each token changes the state and gives a row of
//! the result. Each op has one file with its [`Definition`]: the shapes of its state and result,
//! the computation for one token, and operands for random graphs. All recurrent ops share one type
//! rule, the interpreter and random modules.
//!
//! ```text
//! state @conv.0 : recurrent f32[3, 256]
//! ...
//! %s0 = state.begin @conv.0 : token<@conv.0>
//! %y, %s1 = short_conv %s0, %x, @w {dilation = 1} : f32[T, 256], token<@conv.0>
//! ```
//!
//! To add an op, add its row to the [`Recurrent`] rows of `op.rs`, its file here with an arm of
//! `definition`, and its kernel (`passes/src/schedule/lower/recurrent.rs`).

mod compress;
mod delta_net;
mod short_conv;
mod ssm_scan;
mod wkv;

use super::op::{OperandKind, Recurrent};
use super::types::TypeError;
use super::types::rule::Rule;
use super::{Dim, Op, OpKind, Operand, Type};
use crate::state::StateKind;

/// Type rule and computation of a recurrent op, from its own file.
pub struct Definition {
    /// Returns the shapes that operands and attributes determine.
    pub(super) shape: fn(&Rule<'_>) -> Result<Shape, TypeError>,
    /// Updates the state (second argument) for one token, and writes the token's row of the result
    /// (third argument). It computes in f64 and rounds each number when it is stored.
    pub(super) step: fn(&Token<'_>, &mut [f32], &mut [f32]),
}

impl Recurrent {
    /// Returns the definition in the op's file.
    pub(super) fn definition(self) -> &'static Definition {
        match self {
            Recurrent::DeltaNet => &delta_net::DEFINITION,
            Recurrent::ShortConv => &short_conv::DEFINITION,
            Recurrent::Compress => &compress::DEFINITION,
            Recurrent::SsmScan => &ssm_scan::DEFINITION,
            Recurrent::Wkv => &wkv::DEFINITION,
        }
    }
}

/// Shapes of a recurrent op.
pub struct Shape {
    /// Number of rows of the op's operands and of its result.
    pub rows: Dim,
    /// Dimensions of the state's field.
    pub state: Vec<u64>,
    /// Dimensions of the result, without the number of rows.
    pub result: Vec<u64>,
}

/// Operands of one token: its row of each value, and the weights.
pub struct Token<'a> {
    /// The op.
    pub op: &'a Op,
    /// Row or weight of each operand. Empty for state tokens and absent operands.
    pub operands: Vec<&'a [f32]>,
    /// Position of the token, or 0 if the op takes no positions.
    pub position: i32,
}

impl Token<'_> {
    /// Returns the row or weight of the operand `name`, which the op table must list.
    pub fn operand(&self, name: &str) -> &[f32] {
        match self.op.kind.row().operands.iter().position(|operand| operand.name == name) {
            Some(i) => self.operands[i],
            None => unreachable!("{} has no operand {name}", self.op.kind.row().mnemonic),
        }
    }
}

/// Returns the types of an op's results.
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

/// Computes the rows of an op's result for consecutive tokens. `operands` has all rows of each
/// value, and the weights. The operand with positions is not in `operands`, but a separate
/// argument.
pub(super) fn run(
    op: &Op,
    kind: Recurrent,
    operands: &[Vec<f32>],
    positions: &[i32],
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
