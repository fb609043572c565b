//! Rotary position embedding of heads, and the append of keys and values to the cache.
//!
//! Cosines and sines come from a table that the runtime fills in f64 (`plan::RopeTable`), one row for each position; the
//! position is `16 * block + lane`, because the key cache keeps 16 positions side by side.

use crate::spec::Bits;
use ixc_ir::kernel::{Affine, BufferId, BufferKind, Kernel, KernelBuilder, Op, Type, ValueId, VarId};
use ixc_ir::plan::{KEY_LANES, RopeStyle};

use crate::spec::KernelSpec;

use crate::generate::{GenerateError, MAX_POSITIONS, check, for_vectors, spec_fields};
use crate::rows;

const KEY_BLOCK: i64 = KEY_LANES as i64;

struct Position {
    block: VarId,
    lane: VarId,
    table: BufferId,
    row: Affine,
}

struct Head {
    lanes: u16,
    d: u32,
    dims: u32,
    style: RopeStyle,
    norm: Option<(Bits, BufferId)>,
}

fn checked(name: &str, d: u32, dims: u32) -> Result<(), GenerateError> {
    check(
        name,
        "rotated elements",
        u64::from(dims),
        dims <= d && dims.is_multiple_of(2),
        format!("even and at most {d}"),
    )
}

fn position(b: &mut KernelBuilder, style: RopeStyle, dims: u32) -> Position {
    let row_bytes = style.row_bytes(dims) as i64;
    let blocks = b.dim("blocks", 1, MAX_POSITIONS / KEY_BLOCK);
    let block = b.buffer("block", BufferKind::Index { below: blocks.into() }, 4);
    let lane = b.buffer("lane", BufferKind::Index { below: KEY_BLOCK.into() }, 4);
    let table = b.read("table", blocks * (KEY_BLOCK * row_bytes));
    let (block, lane) = (b.load_index("pb", block, 0), b.load_index("pl", lane, 0));
    Position { block, lane, table, row: block * (KEY_BLOCK * row_bytes) + lane * row_bytes }
}

/// Heads of a row, rotated.
pub fn rope_heads(name: String, spec: &KernelSpec, lanes: u16) -> Result<Kernel, GenerateError> {
    spec_fields!(spec, RopeHeads { heads, d, dims, style, norm });
    checked(&name, d, dims)?;
    let mut b = KernelBuilder::new(name);
    let head_bytes = i64::from(d) * 4;
    let size = i64::from(heads) * head_bytes;
    let x = b.read("x", size);
    let norm = norm.map(|eps| (eps, b.read("norm", head_bytes)));
    let position = position(&mut b, style, dims);
    let y = b.write("y", size);
    b.for_each("head", i64::from(heads), |b, head| {
        rotate(b, &Head { lanes, d, dims, style, norm }, &position, x, head * head_bytes, y, head * head_bytes);
    });
    Ok(b.finish())
}

/// One key head, rotated, and its value, into the cache.
pub fn rope_append(name: String, spec: &KernelSpec, lanes: u16) -> Result<Kernel, GenerateError> {
    spec_fields!(spec, RopeAppend { d, dv, dims, style, norm });
    checked(&name, d, dims)?;
    let mut b = KernelBuilder::new(name);
    let k = b.read("k", i64::from(d) * 4);
    let v = b.read("v", i64::from(dv) * 4);
    let norm = norm.map(|eps| (eps, b.read("norm", i64::from(d) * 4)));
    let position = position(&mut b, style, dims);
    let blocks = ixc_ir::kernel::DimId(0);
    let keys = b.write("keys", blocks * (KEY_BLOCK * i64::from(d) * 2));
    let values = b.write("values", blocks * (KEY_BLOCK * i64::from(dv) * 2));
    let rotated = b.buffer("rotated", BufferKind::Scratch, i64::from(d) * 4);
    rotate(
        &mut b,
        &Head { lanes, d, dims, style, norm },
        &position,
        k,
        Affine::constant(0),
        rotated,
        Affine::constant(0),
    );
    let key = position.block * (KEY_BLOCK * i64::from(d) * 2) + position.lane * 2;
    for_vectors(&mut b, lanes, d, |b, at, lanes| {
        let x = b.load(Type::f32(lanes), rotated, at.clone() * 4);
        let x = b.op(Op::F32ToF16, Type::f16(lanes), &[x]);
        for lane in 0..lanes {
            let element = if lanes == 1 { x } else { b.op_imm(Op::Extract, Type::f16(1), &[x], i64::from(lane)) };
            b.store(keys, key.clone() + (at.clone() + i64::from(lane)) * (KEY_BLOCK * 2), element);
        }
    });
    let value = position.block * (KEY_BLOCK * i64::from(dv) * 2) + position.lane * (i64::from(dv) * 2);
    for_vectors(&mut b, lanes, dv, |b, at, lanes| {
        let x = b.load(Type::f32(lanes), v, at.clone() * 4);
        let x = b.op(Op::F32ToF16, Type::f16(lanes), &[x]);
        b.store(values, value.clone() + at * 2, x);
    });
    Ok(b.finish())
}

/// Norm and rotation of the head at `from` of `x` to `to` of `y`.
fn rotate(b: &mut KernelBuilder, head: &Head, at: &Position, x: BufferId, from: Affine, y: BufferId, to: Affine) {
    let scale = head.norm.map(|(eps, _)| {
        rows::inverse_rms(b, head.lanes, head.d, eps.value(), |b, i, lanes| {
            b.load(Type::f32(lanes), x, from.clone() + i * 4)
        })
    });
    // The element `i`, normed.
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
    // What is not rotated is copied.
    let rest = head.d - head.dims;
    for_vectors(b, head.lanes, rest, |b, i, lanes| {
        let i = i + i64::from(head.dims);
        let v = load(b, i.clone(), lanes);
        b.store(y, to.clone() + i * 4, v);
    });
}
