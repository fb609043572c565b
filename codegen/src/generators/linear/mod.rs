//! Matrix products with weights of every format.
//!
//! Two shapes. For few rows ([`gemv`]) a dot product runs along a weight row as it lies in the file. For many rows ([`gemm`])
//! eight weight rows at a time are unpacked into a *panel* in which a lane is a weight row, so that no horizontal sum is left,
//! and the panel is used for all rows of activations.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`gemv`] | dot products along rows, per format |
//! | [`panel`] | unpacking weight rows into panels, per format |
//! | [`gemm`] | the micro-kernel over panels |
//! | [`fields`] | what both read from blocks: nibbles, high bits, scales |
//! | [`dequantise`] | rows as f32, for the embedding |

mod dequantise;
mod fields;
mod gemm;
mod gemv;
mod panel;

use ixc_ir::format::Format;
use ixc_ir::kernel::{Affine, BufferId, BufferKind, DimId, Kernel, KernelBuilder, Type};
use ixc_ir::plan::KernelSpec;
use ixc_ir::plan::spec::{GEMM_ROWS, Shape};

use super::{GenerateError, LANES, MAX_ROWS, check, for_vectors, math, quantise, spec_fields};

pub use dequantise::dequantise_row;

/// Rows of an item, as the kernel's dims give them.
#[derive(Clone, Copy)]
enum Rows {
    /// One dim: rows.
    Each(DimId),
    /// Two dims: groups of [`GEMM_ROWS`], and the rest.
    Groups(DimId, DimId),
}

impl Rows {
    fn dims(b: &mut KernelBuilder, shape: Shape, most: i64) -> Rows {
        match shape {
            Shape::Gemv => Rows::Each(b.dim("rows", 1, most)),
            Shape::Gemm | Shape::Tiles => {
                let group = i64::from(GEMM_ROWS);
                Rows::Groups(b.dim("groups", 0, most / group), b.dim("rest", 0, group - 1))
            }
        }
    }

    fn count(self) -> Affine {
        match self {
            Rows::Each(rows) => rows.into(),
            Rows::Groups(groups, rest) => groups * i64::from(GEMM_ROWS) + rest,
        }
    }

    /// Runs `body` for every group: it gets the first row of the group and how many rows that has.
    fn for_each(self, b: &mut KernelBuilder, mut body: impl FnMut(&mut KernelBuilder, Affine, u32)) {
        match self {
            Rows::Each(rows) => b.for_each("row", rows, |b, row| body(b, row.into(), 1)),
            Rows::Groups(groups, rest) => {
                let group = i64::from(GEMM_ROWS);
                b.for_each("group", groups, |b, g| body(b, g * group, GEMM_ROWS));
                b.for_each("row", rest, |b, row| body(b, groups * group + row, 1));
            }
        }
    }
}

/// Where a product goes: row `r`, weight row `n` at `offset + r * row_bytes + 4 * n`.
#[derive(Clone)]
struct Destination {
    buffer: BufferId,
    offset: i64,
    row_bytes: i64,
}

/// A weight tile and the activations that it is multiplied with.
struct Product {
    format: Format,
    k: u32,
    tile: u32,
    x: BufferId,
    w: BufferId,
    /// Scratch for a panel, and where it starts there.
    panel: Option<(BufferId, i64)>,
}

fn checked(
    name: &str,
    format: Format,
    x: Format,
    k: u32,
    tile: u32,
    shape: Shape,
) -> Result<(i64, i64), GenerateError> {
    let w = quantise::row_bytes(name, format, k)?;
    check(name, "format of the weight", format as u64, format.rows() == 1, "one that is not packed")?;
    check(name, "format of the activations", x as u64, x == format.activation(), format.activation().name())?;
    let x = quantise::row_bytes(name, x, k)?;
    check(name, "tile", u64::from(tile), tile > 0, "at least 1")?;
    if shape == Shape::Gemm {
        let lanes = u32::from(LANES);
        check(name, "tile", u64::from(tile), tile.is_multiple_of(lanes), "a multiple of 8")?;
        check(name, "dot product length", u64::from(k), k.is_multiple_of(lanes), "a multiple of 8")?;
    }
    Ok((x, w))
}

/// Adds the product to what is at the destination.
fn multiply(b: &mut KernelBuilder, product: &Product, rows: Rows, to: &Destination) {
    match product.panel {
        None => gemv::multiply(b, product, rows, to),
        Some(panel) => gemm::multiply(b, product, panel, rows, to),
    }
}

/// `y = x w' [+ bias] [+ residual]`.
pub fn linear(name: String, spec: &KernelSpec) -> Result<Kernel, GenerateError> {
    spec_fields!(spec, Linear { format, x, k, tile, n, bias, residual, shape });
    let (x_row, w_row) = checked(&name, format, x, k, tile, shape)?;
    check(&name, "rows of the weight", u64::from(n), n >= tile, format!("at least {tile}"))?;
    let mut b = KernelBuilder::new(name);
    let rows = Rows::dims(&mut b, shape, MAX_ROWS);
    let (tile_bytes, row_bytes) = (i64::from(tile) * 4, i64::from(n) * 4);
    let x = b.read("x", rows.count() * x_row);
    let w = b.read("w", i64::from(tile) * w_row);
    let bias = bias.then(|| b.read("bias", tile_bytes));
    // The last row ends with the tile. Where there are no rows this is negative, which means empty.
    let size = rows.count() * row_bytes + (tile_bytes - row_bytes);
    let residual = residual.then(|| b.read("residual", size.clone()));
    let y = b.buffer("y", BufferKind::ReadWrite, size);
    let panel =
        (shape == Shape::Gemm).then(|| (b.buffer("panel", BufferKind::Scratch, gemm::panel_bytes(format, k)), 0));

    // What the products are added to.
    rows.for_each(&mut b, |b, row, count| {
        for r in 0..i64::from(count) {
            for_vectors(b, tile, |b, at, lanes| {
                let offset = (row.clone() + r) * row_bytes + at.clone() * 4;
                let v = match (bias, residual) {
                    (Some(bias), Some(residual)) => {
                        let (u, v) = (
                            b.load(Type::f32(lanes), bias, at * 4),
                            b.load(Type::f32(lanes), residual, offset.clone()),
                        );
                        b.add(u, v)
                    }
                    (Some(bias), None) => b.load(Type::f32(lanes), bias, at * 4),
                    (None, Some(residual)) => b.load(Type::f32(lanes), residual, offset.clone()),
                    (None, None) => b.splat_f32(lanes, 0.0),
                };
                b.store(y, offset, v);
            });
        }
    });
    multiply(&mut b, &Product { format, k, tile, x, w, panel }, rows, &Destination { buffer: y, offset: 0, row_bytes });
    Ok(b.finish())
}

/// `silu(x gate') * (x up')`, quantised.
pub fn swiglu(name: String, spec: &KernelSpec) -> Result<Kernel, GenerateError> {
    spec_fields!(spec, Swiglu { gate, up, x, k, tile, n, out, rows, shape });
    let (x_row, gate_row) = checked(&name, gate, x, k, tile, shape)?;
    let (_, up_row) = checked(&name, up, x, k, tile, shape)?;
    let (y_row, y_tile) = (quantise::row_bytes(&name, out, n)?, quantise::row_bytes(&name, out, tile)?);
    check(&name, "rows of the weight", u64::from(n), n >= tile, format!("at least {tile}"))?;
    let most = i64::from(rows);
    let mut b = KernelBuilder::new(name);
    let rows = Rows::dims(&mut b, shape, most);
    let x = b.read("x", rows.count() * x_row);
    let weights = [b.read("gate", i64::from(tile) * gate_row), b.read("up", i64::from(tile) * up_row)];
    let y = b.write("y", rows.count() * y_row + (y_tile - y_row));
    // Both products of all rows, then a panel.
    let row_bytes = i64::from(tile) * 4;
    let product_bytes = (most + i64::from(GEMM_ROWS)) * row_bytes;
    let panel_bytes = match shape {
        Shape::Gemv => 0,
        Shape::Gemm | Shape::Tiles => gemm::panel_bytes(gate, k).max(gemm::panel_bytes(up, k)),
    };
    let scratch = b.buffer("scratch", BufferKind::Scratch, 2 * product_bytes + panel_bytes);
    let panel = (shape == Shape::Gemm).then_some((scratch, 2 * product_bytes));
    for (i, (w, format)) in weights.into_iter().zip([gate, up]).enumerate() {
        let to = Destination { buffer: scratch, offset: i as i64 * product_bytes, row_bytes };
        rows.for_each(&mut b, |b, row, count| {
            for r in 0..i64::from(count) {
                for_vectors(b, tile, |b, at, lanes| {
                    let zero = b.splat_f32(lanes, 0.0);
                    b.store(scratch, (row.clone() + r) * row_bytes + at * 4 + to.offset, zero);
                });
            }
        });
        multiply(&mut b, &Product { format, k, tile, x, w, panel }, rows, &to);
    }
    // Activation in place of the gate's product; then the quantiser reads it.
    rows.for_each(&mut b, |b, row, count| {
        b.for_each("r", i64::from(count), |b, r| {
            let from = (row.clone() + r) * row_bytes;
            for_vectors(b, tile, |b, at, lanes| {
                let g = b.load(Type::f32(lanes), scratch, from.clone() + at.clone() * 4);
                let u = b.load(Type::f32(lanes), scratch, from.clone() + at.clone() * 4 + product_bytes);
                let g = math::silu(b, g);
                let v = b.mul(g, u);
                b.store(scratch, from.clone() + at * 4, v);
            });
            quantise::store_row(b, out, tile, y, (row.clone() + r) * y_row, &mut |b, at, lanes| {
                b.load(Type::f32(lanes), scratch, from.clone() + at * 4)
            });
        });
    });
    Ok(b.finish())
}
