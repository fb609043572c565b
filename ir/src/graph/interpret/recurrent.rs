//! Definitions of ops on a `recurrent` state.

use super::call::{Call, ints};
use super::{InterpretError, Value, index};
use crate::graph::Operand;
use crate::graph::attrs::ngram_hash;
use crate::graph::op::Recurrent;
use crate::graph::recurrent::run;
use crate::ngram;

pub(super) fn recurrent(call: &mut Call<'_, '_>, kind: Recurrent) -> Result<Vec<Value>, InterpretError> {
    let (mut rows, mut positions) = (0, Vec::new());
    let mut operands = Vec::with_capacity(call.op.operands.len());
    for operand in &call.op.operands {
        operands.push(match operand {
            Operand::Value(value) if call.env.function.ty(*value).is_token() => Vec::new(),
            Operand::Value(value) if matches!(call.env.get(*value), Value::I32 { .. }) => {
                positions = ints(call.env.get(*value)).to_vec();
                Vec::new()
            }
            Operand::Value(value) => {
                let value = call.env.get(*value);
                rows = call.interpreter.dims(value)[0];
                call.interpreter.floats(value)?.into_owned()
            }
            Operand::Weight(weight) => call.interpreter.dequantise(*weight)?,
            Operand::State(_) | Operand::Absent => Vec::new(),
        });
    }
    let declared = call.env.function.ty(call.op.results[0]).dims().iter();
    let inner: Vec<usize> = declared.skip(1).map(|dim| dim.fixed().unwrap_or(1) as usize).collect();
    let width = inner.iter().product();
    let op = call.op;
    let data = run(op, kind, &operands, &positions, rows, call.recurrent_state("state"), width);
    let dims = std::iter::once(rows).chain(inner).collect();
    Ok(vec![Value::F32 { dims, data }, Value::Token])
}

pub(super) fn ngram(call: &mut Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let hash = ngram_hash(call.op);
    let Ok(mut before) = <[f32; ngram::BEFORE]>::try_from(&*call.recurrent_state("tokens")) else {
        unreachable!("verified: a state of the ids before")
    };
    let mut data = Vec::new();
    for &id in call.ints("ids") {
        let id = call.index("id", id, ngram::MAX_IDS as usize)? as u32;
        data.push(hash.row(id, &before) as i32);
        ngram::remember(&mut before, id);
    }
    call.recurrent_state("tokens").copy_from_slice(&before);
    Ok(vec![Value::I32 { dims: vec![data.len()], data }, Value::Token])
}

pub(super) fn column_squares(call: &mut Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let (x, dims) = (call.f32s("x")?.into_owned(), call.dims("x"));
    let ids = call.value_if_given("ids").map(ints);
    add_squares(call.recurrent_state("sums"), &x, &dims, ids)?;
    Ok(vec![Value::Token])
}

/// Adds the squares of the rows `x`, `[T, k]` or `[T, s, k]`, to `sums`, `[e, k + 1]`. The row of
/// `sums` is that of the row's expert. Its last element counts the added rows.
fn add_squares(sums: &mut [f32], x: &[f32], dims: &[usize], ids: Option<&[i32]>) -> Result<(), InterpretError> {
    let columns = dims[dims.len() - 1];
    let (width, rows) = (columns + 1, dims[0]);
    let slots = ids.map_or(1, |ids| ids.len() / rows.max(1));
    for at in 0..rows * slots {
        let expert = match ids {
            Some(ids) => index("column.squares", "expert", ids[at], sums.len() / width)?,
            None => 0,
        };
        let row = if dims.len() == 3 { at } else { at / slots };
        let (squares, count) = sums[expert * width..][..width].split_at_mut(columns);
        for (sum, &x) in squares.iter_mut().zip(&x[row * columns..]) {
            *sum = f64::from(x).mul_add(f64::from(x), f64::from(*sum)) as f32;
        }
        count[0] += 1.0;
    }
    Ok(())
}
