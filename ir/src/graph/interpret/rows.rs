//! Definitions of ops that look up, split, join or select rows and heads.

use super::call::Call;
use super::{InterpretError, Value, one, with};

pub(super) fn embed(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let ids = call.ints("ids");
    let bytes = call.interpreter.bytes(call.weight("table"))?;
    let table = call.interpreter.matrix(call.weight("table"), &bytes);
    let rows = bytes.len() / table.row_bytes();
    let mut data = Vec::with_capacity(ids.len() * table.width);
    for &id in ids {
        let row = call.index("id", id, rows)?;
        data.extend(table.rows(row, 1).dequantise());
    }
    one(vec![ids.len(), table.width], data)
}

pub(super) fn split_heads(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let (dims, heads) = (call.dims("x"), call.op.attr("heads").int() as usize);
    one(vec![dims[0], heads, dims[1] / heads], call.f32s("x")?.into_owned())
}

pub(super) fn merge_heads(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let dims = call.dims("x");
    one(vec![dims[0], dims[1] * dims[2]], call.f32s("x")?.into_owned())
}

pub(super) fn slice(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let (x, dims) = (call.f32s("x")?, call.dims("x"));
    let (from, count) = (call.op.attr("from").int() as usize, call.op.attr("count").int() as usize);
    let rows = x.chunks_exact(dims[dims.len() - 1].max(1));
    one(with(&dims, count), rows.flat_map(|row| &row[from..from + count]).copied().collect())
}

pub(super) fn concat(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let (a, b, dims) = (call.f32s("a")?, call.f32s("b")?, call.dims("a"));
    let width = |x: &Value| call.interpreter.dims(x)[dims.len() - 1].max(1);
    let (m, n) = (width(call.value("a")), width(call.value("b")));
    let rows = a.chunks_exact(m).zip(b.chunks_exact(n));
    one(with(&dims, m + n), rows.flat_map(|(a, b)| a.iter().chain(b)).copied().collect())
}

pub(super) fn heads_sum(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let (x, dims) = (call.f32s("x")?, call.dims("x"));
    let sums = x.chunks_exact(dims[2].max(1)).map(|x| x.iter().map(|&x| f64::from(x)).sum::<f64>() as f32);
    one(dims[..2].to_vec(), sums.collect())
}

pub(super) fn take_rows(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let (x, dims, rows) = (call.f32s("x")?, call.dims("x"), call.ints("rows"));
    let mut data = Vec::with_capacity(rows.len() * dims[1]);
    for &row in rows {
        let row = call.index("row", row, dims[0])?;
        data.extend_from_slice(&x[row * dims[1]..][..dims[1]]);
    }
    one(vec![rows.len(), dims[1]], data)
}
