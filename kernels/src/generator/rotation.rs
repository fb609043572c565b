//! Rotary position embedding (RoPE) of a head, in kernel IR.
//!
//! Cosines and sines come from a table that the runtime computes in f64 (`plan::RopeTable`), with
//! one row for each position. A position is given as `16 * block + lane`, because the key cache
//! interleaves 16 positions.

use ixc_ir::graph::attrs::RopeStyle;
use ixc_ir::kernel::{Affine, BufferId, BufferKind, KernelBuilder, Op, Type, ValueId, VarId};
use ixc_ir::plan::KEY_LANES;

use crate::generator::generate::{GenerateError, MAX_POSITIONS, check};
use crate::generator::reference::{Buffers, Mismatch};
use crate::generator::rms;
use crate::generator::text::Bits;
use crate::generator::vectors::for_vectors;

/// Returns two parts of the kernel's name: the style of the rotation, and the suffix for a norm of
/// the heads.
pub fn name(style: RopeStyle, norm: Option<Bits>) -> (&'static str, String) {
    (style.word(), norm.map_or(String::new(), |eps| format!("_n{:x}", eps.0)))
}

pub const KEY_BLOCK: i64 = KEY_LANES as i64;

/// Position of a row, as block and lane of the key cache.
pub struct Position {
    /// Index of a block of positions in the key cache.
    pub block: VarId,
    /// Lane of the position in its block.
    pub lane: VarId,
    /// Buffer with the table of cosines and sines. `row` is the byte offset of the position's row.
    pub table: BufferId,
    pub row: Affine,
}

/// Properties of a head that is rotated.
pub struct Head {
    /// Number of lanes of a vector.
    pub lanes: u16,
    /// Number of elements of the head.
    pub d: u32,
    /// Number of elements that are rotated.
    pub dims: u32,
    /// Choice of the two elements of a pair.
    pub style: RopeStyle,
    /// Epsilon and weight of a norm that is applied before the rotation, or `None`.
    pub norm: Option<(Bits, BufferId)>,
}

/// Checks that the first `dims` elements of a head can be rotated.
pub fn check_rotated_dims(name: &str, d: u32, dims: u32) -> Result<(), GenerateError> {
    check(
        name,
        "rotated elements",
        u64::from(dims),
        dims <= d && dims.is_multiple_of(2),
        format!("even and at most {d}"),
    )
}

/// Declares the dim, the index buffers and the table of cosines and sines. Returns the row's
/// position.
pub fn position(b: &mut KernelBuilder, style: RopeStyle, dims: u32) -> Position {
    let row_bytes = style.row_bytes(dims) as i64;
    let blocks = b.dim("blocks", 1, MAX_POSITIONS / KEY_BLOCK);
    let block = b.buffer("block", BufferKind::Index { below: blocks.into() }, 4);
    let lane = b.buffer("lane", BufferKind::Index { below: KEY_BLOCK.into() }, 4);
    let table = b.read("table", blocks * (KEY_BLOCK * row_bytes));
    let (block, lane) = (b.load_index("pb", block, 0), b.load_index("pl", lane, 0));
    Position { block, lane, table, row: block * (KEY_BLOCK * row_bytes) + lane * row_bytes }
}

/// Applies the norm and the rotation to the head at offset `from` of `x`, and stores the result at
/// offset `to` of `y`.
pub fn rotate(b: &mut KernelBuilder, head: &Head, at: &Position, x: BufferId, from: Affine, y: BufferId, to: Affine) {
    let scale = head.norm.map(|(eps, _)| {
        rms::inverse_rms(b, head.lanes, head.d, eps.value(), |b, i, lanes| {
            b.load(Type::f32(lanes), x, from.clone() + i * 4)
        })
    });
    // Loads elements from `i` on, and applies the norm.
    let load = |b: &mut KernelBuilder, i: Affine, lanes: u16| -> ValueId {
        let v = b.load(Type::f32(lanes), x, from.clone() + i.clone() * 4);
        let (Some(scale), Some((_, norm))) = (scale, head.norm) else { return v };
        let scale = if lanes == 1 { scale } else { b.broadcast(lanes, scale) };
        let w = b.load(Type::f32(lanes), norm, i * 4);
        let v = b.mul(v, scale);
        b.mul(v, w)
    };
    match head.style {
        RopeStyle::Neox => {
            let half = i64::from(head.dims / 2);
            for_vectors(b, head.lanes, head.dims / 2, |b, i, lanes| {
                let (x0, x1) = (load(b, i.clone(), lanes), load(b, i.clone() + half, lanes));
                let c = b.load(Type::f32(lanes), at.table, at.row.clone() + i.clone() * 4);
                let s = b.load(Type::f32(lanes), at.table, at.row.clone() + (i.clone() + half) * 4);
                let (x0c, x1s, x0s) = (b.mul(x0, c), b.mul(x1, s), b.mul(x0, s));
                let (y0, y1) = (b.sub(x0c, x1s), b.fma(x1, c, x0s));
                b.store(y, to.clone() + i.clone() * 4, y0);
                b.store(y, to.clone() + (i + half) * 4, y1);
            });
        }
        RopeStyle::Norm => for_vectors(b, head.lanes, head.dims, |b, i, lanes| {
            let v = load(b, i.clone(), lanes);
            let c = b.load(Type::f32(lanes), at.table, at.row.clone() + i.clone() * 4);
            let s = b.load(Type::f32(lanes), at.table, at.row.clone() + (i.clone() + i64::from(head.dims)) * 4);
            let swapped = b.same(Op::SwapPairs, &[v]);
            let vc = b.mul(v, c);
            let v = b.fma(swapped, s, vc);
            b.store(y, to.clone() + i * 4, v);
        }),
    }
    // Elements after the first `dims` are copied without rotation.
    let rest = head.d - head.dims;
    for_vectors(b, head.lanes, rest, |b, i, lanes| {
        let i = i + i64::from(head.dims);
        let v = load(b, i.clone(), lanes);
        b.store(y, to.clone() + i * 4, v);
    });
}

/// Returns the position, and the consecutive heads of `x` after the norm and the rotation, in f64.
pub fn rotate_heads(
    input: &Buffers<'_>,
    x: &[f64],
    d: u32,
    dims: u32,
    style: RopeStyle,
    norm: Option<Bits>,
) -> Result<(usize, Vec<f64>), Mismatch> {
    let (d, dims) = (d as usize, dims as usize);
    let position = KEY_LANES as usize * input.id("block")? + input.id("lane")?;
    let row = style.row_bytes(dims as u32) as usize / 4;
    let table = &input.floats("table")?[position * row..][..row];
    let mut heads = Vec::with_capacity(x.len());
    for head in x.chunks_exact(d) {
        let mut v = head.to_vec();
        if let Some(eps) = norm {
            let mean = v.iter().map(|x| x * x).sum::<f64>() / d as f64;
            let scale = 1.0 / (mean + f64::from(eps.value())).sqrt();
            let w = input.floats("norm")?;
            v = v.iter().zip(&w).map(|(x, w)| x * scale * w).collect();
        }
        heads.extend((0..d).map(|i| match style {
            _ if i >= dims => v[i],
            RopeStyle::Neox if i < dims / 2 => v[i] * table[i] - v[i + dims / 2] * table[i + dims / 2],
            RopeStyle::Neox => v[i] * table[i - dims / 2] + v[i - dims / 2] * table[i],
            RopeStyle::Norm => v[i] * table[i] + v[i ^ 1] * table[dims + i],
        }));
    }
    Ok((position, heads))
}
