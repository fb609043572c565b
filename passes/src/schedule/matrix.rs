//! Tasks of matrix products: tiles of the weight, and which kernel for how many rows.
//!
//! A product's columns are tiles of weight rows, so that an item reads its part of the weight once for all rows of its chunk.
//! What is left over when the tiles are full is a second task in the same step.
//!
//! ```text
//! linear %x, @w, _, _       // @w : q4_k[1000, 256]
//! linear w:      31 columns of 32 rows
//! linear w tail:  1 column of 8 rows
//! ```

use ixc_ir::format::Format;
use ixc_ir::graph::WeightId;
use ixc_ir::plan::spec::{GEMM_ROWS, Shape};
use ixc_ir::plan::{Arg, BufferId, DimRule, KernelSpec, Source, Task, Variant};

use super::ScheduleError;
use super::lower::{Access, Lowering, Rows, Stored, fit, row_bytes};

/// Weight rows of an item where there are enough: 32 rows of a `q4_k` weight of 2048 columns are 36 KiB, about an L1.
const TILE: u64 = 32;
/// Lanes of a strip in `Gemm` kernels: tiles and dot products are multiples of it, or there is only `Gemv`.
const STRIP: u64 = 8;
/// Columns that a product should have, so that a few threads stay busy with a single row.
const MIN_COLUMNS: u64 = 16;
/// Up to this many rows dot products win: unpacking a strip pays from about one group of [`GEMM_ROWS`].
const GEMV_ROWS: u32 = 5;
/// Rows of a `Gemm` item: 16 groups for each unpacked strip; 96 rows of 2048 in `a8_super` are 230 KiB, which L2 holds.
const GEMM_CHUNK: u32 = 96;
/// Rows of a SwiGLU item: half, since two products and their f32 results share the cache.
const SWIGLU_CHUNK: u32 = 48;

/// Weight rows of an item for a weight of `n` rows, a multiple of `block`.
fn tile(n: u64, block: u64) -> u64 {
    let wanted = [TILE, TILE / 2].into_iter().find(|tile| n / tile >= MIN_COLUMNS).unwrap_or(STRIP);
    wanted.next_multiple_of(block).min(n)
}

/// A part of a product: `columns` tiles from weight row `first`.
struct Part {
    tile: u64,
    first: u64,
    columns: u64,
}

/// Full tiles, then the rest.
fn parts(n: u64, tile: u64) -> Vec<Part> {
    let full = Part { tile, first: 0, columns: n / tile };
    let rest = Part { tile: n % tile, first: n - n % tile, columns: 1 };
    [full, rest].into_iter().filter(|part| part.tile > 0 && part.columns > 0).collect()
}

/// A product to be lowered.
pub(super) struct Product {
    pub(super) label: String,
    /// Rows in the activation format of `w`.
    pub(super) x: Stored,
    /// `[n, k]`, or `[experts, n, k]` for routed rows.
    pub(super) w: WeightId,
    pub(super) bias: Option<WeightId>,
    pub(super) residual: Option<Stored>,
}

/// What all products need to know of a weight.
struct Matrix {
    format: Format,
    n: u64,
    k: u64,
    /// Bytes of a row.
    row: u64,
    /// Bytes of an expert, 0 where there are none.
    expert: u64,
}

impl Matrix {
    /// The bytes of `rows` rows; part of the weight, whose bytes fit.
    fn rows(&self, rows: u64) -> u64 {
        self.row * rows
    }
}

impl Lowering<'_> {
    fn matrix(&self, op: &'static str, w: WeightId, rows: Rows) -> Result<Matrix, ScheduleError> {
        let weight = &self.module.weights[w.index()];
        let unsupported = |problem: String| ScheduleError::Unsupported { op, problem };
        let (routed, n, k) = match (rows, &weight.shape[..]) {
            // Ids are below the routing's experts: the weight must have them all.
            (Rows::Routed { bucket, .. }, &[experts, n, k]) if self.experts_of(bucket) == Some(experts) => (true, n, k),
            (Rows::Tokens | Rows::Outputs, &[n, k]) => (false, n, k),
            _ => return Err(unsupported(format!("a weight {:?} for rows {rows:?}", weight.shape))),
        };
        let row = row_bytes(weight.format, k)?;
        let bytes = row.checked_mul(n).ok_or_else(|| unsupported("a weight beyond 64 bits".to_string()))?;
        Ok(Matrix { format: weight.format, n, k, row, expert: if routed { bytes } else { 0 } })
    }

    /// `x w' [+ bias] [+ residual]`.
    pub(super) fn product(&mut self, op: &'static str, product: &Product) -> Result<Stored, ScheduleError> {
        let Product { label, x, w, bias, residual } = product;
        let m = self.matrix(op, *w, x.rows)?;
        self.expect(op, x, m.format.activation(), m.k)?;
        if let Some(residual) = residual {
            self.expect(op, residual, Format::F32, m.n)?;
            if residual.rows != x.rows {
                let problem = format!("a residual of rows {:?} for rows {:?}", residual.rows, x.rows);
                return Err(ScheduleError::Unsupported { op, problem });
            }
        }
        let y = self.buffer(label, x.rows, Format::F32, m.n)?;
        let tile = tile(m.n, 1);
        let weight = self.weight(*w)?;
        let bias = bias.map(|bias| self.vector(op, bias)).transpose()?;
        for part in parts(m.n, tile) {
            let label = if part.first == 0 { label.clone() } else { format!("{label} tail") };
            let (x_row, y_row) = (x.row_bytes()?, y.row_bytes()?);
            let (first, step) = (part.first * 4, part.tile * 4);
            let mut args = vec![
                (rows_arg(x.buffer, x_row), Access::Read),
                (
                    Arg {
                        source: Source::Weight(weight),
                        offset: m.rows(part.first),
                        row_stride: 0,
                        column_stride: m.rows(part.tile),
                        expert_stride: m.expert,
                    },
                    Access::Read,
                ),
            ];
            if let Some(bias) = bias {
                args.push((columns_arg(Source::Weight(bias), first, 0, step), Access::Read));
            }
            if let Some(residual) = residual {
                args.push((columns_arg(Source::Arena(residual.buffer), first, y_row, step), Access::Read));
            }
            args.push((columns_arg(Source::Arena(y.buffer), first, y_row, step), Access::Write));
            let spec = |shape: Shape| -> Result<KernelSpec, ScheduleError> {
                Ok(KernelSpec::Linear {
                    format: m.format,
                    x: x.format,
                    k: fit("columns of a weight", m.k)?,
                    tile: fit("tile", part.tile)?,
                    n: fit("rows of a weight", m.n)?,
                    bias: bias.is_some(),
                    residual: residual.is_some(),
                    shape,
                })
            };
            let gemm = strips(part.tile, m.k);
            if gemm {
                // Last, and only `Gemm` takes it.
                args.push((scratch_arg(), Access::Read));
            }
            let variants = if gemm {
                vec![self.gemv(spec(Shape::Gemv)?, GEMV_ROWS, GEMV_ROWS)?, self.gemm(spec(Shape::Gemm)?, GEMM_CHUNK)?]
            } else {
                vec![self.gemv(spec(Shape::Gemv)?, u32::MAX, GEMM_CHUNK)?]
            };
            tracing::debug!(label, tile = part.tile, columns = part.columns, gemm, "tiled: {}", reason(&part, gemm));
            let rows = x.rows.axis();
            let columns = fit("columns of a task", part.columns)?;
            self.task(Task { label, rows, columns, variants, args: Vec::new() }, args);
        }
        Ok(y)
    }

    /// `silu(x gate') * (x up')`, quantised.
    pub(super) fn swiglu(
        &mut self,
        op: &'static str,
        label: &str,
        x: &Stored,
        (gate, up): (WeightId, WeightId),
        out: Format,
    ) -> Result<Stored, ScheduleError> {
        let (g, u) = (self.matrix(op, gate, x.rows)?, self.matrix(op, up, x.rows)?);
        self.expect(op, x, g.format.activation(), g.k)?;
        self.expect(op, x, u.format.activation(), u.k)?;
        let y = self.buffer(label, x.rows, out, g.n)?;
        let tile = tile(g.n, out.block_len() as u64);
        let (gate, up) = (self.weight(gate)?, self.weight(up)?);
        for part in parts(g.n, tile) {
            let label = if part.first == 0 { label.to_string() } else { format!("{label} tail") };
            let weight = |m: &Matrix, weight: u32| Arg {
                source: Source::Weight(weight),
                offset: m.rows(part.first),
                row_stride: 0,
                column_stride: m.rows(part.tile),
                expert_stride: m.expert,
            };
            let y_arg = columns_arg(
                Source::Arena(y.buffer),
                row_bytes(out, part.first)?,
                y.row_bytes()?,
                row_bytes(out, part.tile)?,
            );
            let args = vec![
                (rows_arg(x.buffer, x.row_bytes()?), Access::Read),
                (weight(&g, gate), Access::Read),
                (weight(&u, up), Access::Read),
                (y_arg, Access::Write),
                (scratch_arg(), Access::Read),
            ];
            let spec = |shape: Shape, rows: u32| -> Result<KernelSpec, ScheduleError> {
                Ok(KernelSpec::Swiglu {
                    gate: g.format,
                    up: u.format,
                    x: x.format,
                    k: fit("columns of a weight", g.k)?,
                    tile: fit("tile", part.tile)?,
                    n: fit("rows of a weight", g.n)?,
                    out,
                    rows,
                    shape,
                })
            };
            let gemm = strips(part.tile, g.k);
            let variants = if gemm {
                let few = self.gemv(spec(Shape::Gemv, GEMV_ROWS)?, GEMV_ROWS, GEMV_ROWS)?;
                vec![few, self.gemm(spec(Shape::Gemm, SWIGLU_CHUNK)?, SWIGLU_CHUNK)?]
            } else {
                vec![self.gemv(spec(Shape::Gemv, SWIGLU_CHUNK)?, u32::MAX, SWIGLU_CHUNK)?]
            };
            tracing::debug!(label, tile = part.tile, columns = part.columns, gemm, "tiled: {}", reason(&part, gemm));
            let rows = x.rows.axis();
            let columns = fit("columns of a task", part.columns)?;
            self.task(Task { label, rows, columns, variants, args: Vec::new() }, args);
        }
        Ok(y)
    }

    fn gemv(&mut self, spec: KernelSpec, up_to_rows: u32, row_chunk: u32) -> Result<Variant, ScheduleError> {
        Ok(Variant { up_to_rows, row_chunk, kernel: self.kernel(spec)?, dims: vec![DimRule::Rows] })
    }

    fn gemm(&mut self, spec: KernelSpec, row_chunk: u32) -> Result<Variant, ScheduleError> {
        let dims = vec![DimRule::RowGroups(GEMM_ROWS), DimRule::RowRest(GEMM_ROWS)];
        Ok(Variant { up_to_rows: u32::MAX, row_chunk, kernel: self.kernel(spec)?, dims })
    }
}

/// Whether `Gemm` kernels can do it.
fn strips(tile: u64, k: u64) -> bool {
    tile.is_multiple_of(STRIP) && k.is_multiple_of(STRIP)
}

/// Why a tile and its kernels were chosen.
fn reason(part: &Part, gemm: bool) -> &'static str {
    match (part.tile, gemm) {
        (_, false) => "no whole strips of 8 lanes, so dot products for any number of rows",
        (TILE, true) => "enough columns for full tiles; dot products up to 5 rows, unpacked strips above",
        (tile, true) if tile > TILE => "one block of the result's format; dot products up to 5 rows, strips above",
        (_, true) => "smaller tiles for more columns; dot products up to 5 rows, unpacked strips above",
    }
}

fn rows_arg(buffer: BufferId, row_stride: u64) -> Arg {
    Arg { source: Source::Arena(buffer), offset: 0, row_stride, column_stride: 0, expert_stride: 0 }
}

fn columns_arg(source: Source, offset: u64, row_stride: u64, column_stride: u64) -> Arg {
    Arg { source, offset, row_stride, column_stride, expert_stride: 0 }
}

/// The thread's scratch memory.
pub(super) fn scratch_arg() -> Arg {
    columns_arg(Source::Scratch, 0, 0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_every_row_once() {
        for n in 1..2000 {
            for block in [1, 32, 256] {
                if n % block != 0 {
                    continue;
                }
                let tile = tile(n, block);
                assert_eq!(tile % block, 0, "n {n}");
                let parts = parts(n, tile);
                let end = parts.iter().fold(0, |at, part| {
                    assert_eq!(part.first, at, "n {n}");
                    assert_eq!(part.tile % block, 0, "n {n}");
                    at + part.tile * part.columns
                });
                assert_eq!(end, n);
            }
        }
    }
}
