//! Matrix products with weights of every format.
//!
//! Weights that lie as in the file have two shapes. For few rows ([`gemv`]) a dot product runs along a weight row. For many rows
//! ([`gemm`]) eight weight rows at a time are unpacked into a *panel* in which a lane is a weight row, so that no horizontal sum is
//! left, and the panel is used for all rows of activations. Packed weights have that form already: [`packed`] makes both shapes.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`packed`] | products with packed weights, per format |
//! | [`tiles`] | many rows of a packed weight, by tile products |
//! | [`gemv`] | dot products along rows, per format |
//! | [`panel`] | unpacking weight rows into panels, per format |
//! | [`gemm`] | the micro-kernel over panels |
//! | [`fields`] | what the last three read from blocks: nibbles, high bits, scales |
//! | [`dequantise`] | rows as f32, for the embedding |

mod dequantise;
mod fields;
mod gemm;
mod gemv;
mod packed;
mod panel;
mod tiles;

use crate::spec::KernelSpec;
use crate::spec::Shape;
use ixc_ir::format::Format;
use ixc_ir::format::packed::STRIP;
use ixc_ir::kernel::{Affine, BufferId, BufferKind, DimId, Kernel, KernelBuilder, Type};

use crate::generate::{GenerateError, MAX_ROWS, Vectors, check, for_vectors, spec_fields};
use crate::{math, quantise};

pub use dequantise::dequantise_row;

/// f32 lanes of the products with weights that are not packed: 256-bit registers, which blocks of 32 bytes fill.
const LANES: u16 = 8;

/// Rows of an item, in groups of some sizes: see [`Shape::row_groups`].
struct Rows {
    /// How many groups, and of how many rows, largest first.
    groups: Vec<(DimId, u32)>,
    /// Whether the last groups are no whole tile, for [`Shape::Tiles`].
    partial: Option<DimId>,
}

impl Rows {
    fn dims(b: &mut KernelBuilder, shape: Shape, format: Format, most: i64) -> Rows {
        let sizes = shape.row_groups(format);
        let dim = |(i, &size): (usize, &u32)| {
            let number = match i.checked_sub(1).map(|i| sizes[i]) {
                None => most / i64::from(size),
                Some(larger) => i64::from(larger / size) - 1,
            };
            let name = match (i, size) {
                (0, 1) => "rows",
                (0, _) => "groups",
                (_, 1) => "rest",
                _ => "small_groups",
            };
            (b.dim(name, i64::from(sizes.len() == 1), number), size)
        };
        let groups = sizes.iter().enumerate().map(dim).collect();
        let partial = (shape == Shape::Tiles).then(|| b.dim("partial", 0, 1));
        Rows { groups, partial }
    }

    fn count(&self) -> Affine {
        self.groups.iter().fold(Affine::constant(0), |sum, (groups, size)| sum + *groups * i64::from(*size))
    }

    /// Most rows beyond those that whole groups of the first size have.
    fn most_rest(&self) -> i64 {
        self.groups.first().map_or(0, |(_, size)| i64::from(*size))
    }

    /// Runs `body` for every size of groups: it gets the first row of these groups, their number and their size.
    fn for_sizes(&self, b: &mut KernelBuilder, mut body: impl FnMut(&mut KernelBuilder, Affine, DimId, u32)) {
        let mut first = Affine::constant(0);
        for (groups, size) in &self.groups {
            body(b, first.clone(), *groups, *size);
            first = first + *groups * i64::from(*size);
        }
    }

    /// Runs `body` for every group: it gets the first row of the group and how many rows that has.
    fn for_each(&self, b: &mut KernelBuilder, mut body: impl FnMut(&mut KernelBuilder, Affine, u32)) {
        self.for_sizes(b, |b, first, groups, size| {
            let name = if size == 1 { "row" } else { "group" };
            b.for_each(name, groups, |b, group| body(b, first + group * i64::from(size), size));
        });
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
    x_format: Format,
    w: BufferId,
    shape: Shape,
    vectors: Vectors,
    /// Working memory, and where it starts there.
    scratch: Option<(BufferId, i64)>,
}

/// Whether a product with a weight in `format` reads activations in `x`: the format's own, or a form of it for tiles, which begins
/// with the same fields.
fn takes(format: Format, x: Format) -> bool {
    match x {
        Format::A8SuperTile => format.activation() == Format::A8Super,
        Format::A8SmallTile => format.activation() == Format::A8Small,
        Format::Bf16x2 => matches!(format, Format::F16R16 | Format::Bf16R16),
        _ => format.activation() == x,
    }
}

fn checked(
    name: &str,
    format: Format,
    x: Format,
    k: u32,
    tile: u32,
    shape: Shape,
    lanes: u16,
) -> Result<(i64, i64), GenerateError> {
    let w = quantise::row_bytes(name, format, k)?;
    check(name, "format of the activations", x as u64, takes(format, x), format.activation().name())?;
    let x_row = quantise::row_bytes(name, x, k)?;
    check(name, "tile", u64::from(tile), tile > 0, "at least 1")?;
    if shape == Shape::Tiles {
        let right = "packed, with activations for tiles";
        check(name, "format of the weight", format as u64, tiles::takes(format, x), right)?;
        check(name, "tile", u64::from(tile), tile.is_multiple_of(32), "a multiple of 32")?;
        check(name, "dot product length", u64::from(k), k.is_multiple_of(32), "a multiple of 32")?;
    } else if format.rows() > 1 {
        check(name, "tile", u64::from(tile), tile.is_multiple_of(STRIP as u32), "a multiple of 16")?;
        let ok = [STRIP, STRIP / 2].contains(&usize::from(lanes));
        check(name, "lanes of the target", u64::from(lanes), ok, "8 or 16 for packed weights")?;
    } else if shape == Shape::Gemm {
        let lanes = u32::from(LANES);
        check(name, "tile", u64::from(tile), tile.is_multiple_of(lanes), "a multiple of 8")?;
        check(name, "dot product length", u64::from(k), k.is_multiple_of(lanes), "a multiple of 8")?;
    }
    Ok((x_row, w))
}

/// Bytes of working memory that a product needs, if it needs some.
fn scratch_bytes(format: Format, x: Format, k: u32, tile: u32, shape: Shape, vectors: Vectors) -> Option<i64> {
    match shape {
        Shape::Tiles => Some(tiles::scratch_bytes(format, x, k, tile)),
        Shape::Gemv | Shape::Gemm if format.rows() > 1 => packed::scratch_bytes(format, x, shape, vectors),
        Shape::Gemm => Some(gemm::panel_bytes(format, k)),
        Shape::Gemv => None,
    }
}

/// Adds the product to what is at the destination.
fn multiply(b: &mut KernelBuilder, product: &Product, rows: &Rows, to: &Destination) {
    match (product.scratch, rows.partial) {
        (Some(scratch), Some(partial)) => tiles::multiply(b, product, scratch, &tiles::Rows::of(rows, partial), to),
        _ if product.format.rows() > 1 => packed::multiply(b, product, rows, to),
        (None, _) => gemv::multiply(b, product, rows, to),
        (Some(panel), _) => gemm::multiply(b, product, panel, rows, to),
    }
}

/// `y = x w' [+ bias] [+ residual]`.
pub fn linear(name: String, spec: &KernelSpec, vectors: Vectors) -> Result<Kernel, GenerateError> {
    let Vectors { lanes, .. } = vectors;
    spec_fields!(spec, Linear { format, x, k, tile, n, bias, residual, shape });
    let (x_row, w_row) = checked(&name, format, x, k, tile, shape, lanes)?;
    let x_format = x;
    check(&name, "rows of the weight", u64::from(n), n >= tile, format!("at least {tile}"))?;
    let mut b = KernelBuilder::new(name);
    let rows = Rows::dims(&mut b, shape, format, MAX_ROWS);
    let (tile_bytes, row_bytes) = (i64::from(tile) * 4, i64::from(n) * 4);
    let x = b.read("x", rows.count() * x_row);
    let w = b.read("w", i64::from(tile) * w_row);
    let bias = bias.then(|| b.read("bias", tile_bytes));
    // The last row ends with the tile. Where there are no rows this is negative, which means empty.
    let size = rows.count() * row_bytes + (tile_bytes - row_bytes);
    let residual = residual.then(|| b.read("residual", size.clone()));
    let y = b.buffer("y", BufferKind::ReadWrite, size);
    let bytes = scratch_bytes(format, x_format, k, tile, shape, vectors);
    let scratch = bytes.map(|bytes| (b.buffer("scratch", BufferKind::Scratch, bytes), 0));

    // What the products are added to.
    rows.for_each(&mut b, |b, row, count| {
        b.for_each("r", i64::from(count), |b, r| {
            for_vectors(b, lanes, tile, |b, at, lanes| {
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
        });
    });
    let product = Product { format, k, tile, x, x_format, w, shape, vectors, scratch };
    multiply(&mut b, &product, &rows, &Destination { buffer: y, offset: 0, row_bytes });
    Ok(b.finish())
}

/// `silu(x gate') * (x up')`, quantised.
pub fn swiglu(name: String, spec: &KernelSpec, vectors: Vectors) -> Result<Kernel, GenerateError> {
    let Vectors { lanes, .. } = vectors;
    spec_fields!(spec, Swiglu { gate, up, x, k, tile, n, out, rows, shape });
    let (x_row, gate_row) = checked(&name, gate, x, k, tile, shape, lanes)?;
    let (_, up_row) = checked(&name, up, x, k, tile, shape, lanes)?;
    quantise::stored(&name, out, lanes)?;
    check(&name, "rows of a strip of up", up.rows() as u64, up.rows() == gate.rows(), "that of gate")?;
    let x_format = x;
    let (y_row, y_tile) = (quantise::row_bytes(&name, out, n)?, quantise::row_bytes(&name, out, tile)?);
    check(&name, "rows of the weight", u64::from(n), n >= tile, format!("at least {tile}"))?;
    let most = i64::from(rows);
    let mut b = KernelBuilder::new(name);
    let rows = Rows::dims(&mut b, shape, gate, most);
    let x = b.read("x", rows.count() * x_row);
    let weights = [b.read("gate", i64::from(tile) * gate_row), b.read("up", i64::from(tile) * up_row)];
    let y = b.write("y", rows.count() * y_row + (y_tile - y_row));
    // Both products of all rows, then what a product needs.
    let row_bytes = i64::from(tile) * 4;
    let product_bytes = (most + rows.most_rest()) * row_bytes;
    let bytes =
        [gate, up].map(|format| scratch_bytes(format, x_format, k, tile, shape, vectors)).into_iter().max().flatten();
    let scratch = b.buffer("scratch", BufferKind::Scratch, 2 * product_bytes + bytes.unwrap_or(0));
    let spare = bytes.map(|_| (scratch, 2 * product_bytes));
    for (i, (w, format)) in weights.into_iter().zip([gate, up]).enumerate() {
        let to = Destination { buffer: scratch, offset: i as i64 * product_bytes, row_bytes };
        rows.for_each(&mut b, |b, row, count| {
            b.for_each("r", i64::from(count), |b, r| {
                for_vectors(b, lanes, tile, |b, at, lanes| {
                    let zero = b.splat_f32(lanes, 0.0);
                    b.store(scratch, (row.clone() + r) * row_bytes + at * 4 + to.offset, zero);
                });
            });
        });
        multiply(&mut b, &Product { format, k, tile, x, x_format, w, shape, vectors, scratch: spare }, &rows, &to);
    }
    // Activation in place of the gate's product; then the quantiser reads it.
    rows.for_each(&mut b, |b, row, count| {
        b.for_each("r", i64::from(count), |b, r| {
            let from = (row.clone() + r) * row_bytes;
            for_vectors(b, lanes, tile, |b, at, lanes| {
                let g = b.load(Type::f32(lanes), scratch, from.clone() + at.clone() * 4);
                let u = b.load(Type::f32(lanes), scratch, from.clone() + at.clone() * 4 + product_bytes);
                let g = math::silu(b, g);
                let v = b.mul(g, u);
                b.store(scratch, from.clone() + at * 4, v);
            });
            quantise::store_row(b, lanes, out, tile, y, (row.clone() + r) * y_row, &mut |b, at, lanes| {
                b.load(Type::f32(lanes), scratch, from.clone() + at * 4)
            });
        });
    });
    Ok(b.finish())
}
