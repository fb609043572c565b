//! Plans in pieces: no task's item needs more memory than a processing element (PE) has.
//!
//! Such a plan is a plan like any other, and every engine runs it: it says which f32 are added in which order, and a dataflow machine that
//! keeps to it has its bits. Its kernels take one row at a time. What is cut:
//!
//! | what | into |
//! | --- | --- |
//! | a product | columns of [`Slices::rows`] weight rows, and dot products of [`Slices::dot`] elements: a *chain* of tasks, each of which adds its piece to the sum so far |
//! | gate, up and SwiGLU | two products, `silu`, `mul`, quantisation |
//! | elementwise ops, quantisation, sums over experts | columns of [`Pieces::elements`] |
//! | a norm of a whole row | pieces of [`Pieces::norm`]: sums of squares, then what is scaled by all of them and quantised |
//! | rotation | heads; keys are rotated before they are appended, so that no table lies beside the cache |
//! | attention | parts of [`Pieces::positions`], the same for every token; as many query heads together as there is room for; each head's parts are combined apart |
//!
//! ```text
//! linear %x, @w, _, %r       // @w : q4_k[512, 1024], 16 rows, 512 columns, sums in products
//! linear w:    tokens x 32, gemv_q4_k_r16_a8_super_t16n16k512_add (x[0..512], w, r, y0)
//! linear w 1:  tokens x 32, gemv_q4_k_r16_a8_super_t16n16k512_add (x[512..1024], w, y0, y)
//! ```
//!
//! ```text
//! rms_norm.quantise %x, @n        // f32[T, 1024], pieces of 512
//! rms_norm.quantise n squares:  tokens x 2, sum_squares_n512 (x, s)
//! rms_norm.quantise n:          tokens x 2, rms_norm_piece_a8_super_n512r1024p2 (x, s[0..2], n, y)
//! ```

use ixc_ir::format::Format;
use ixc_ir::graph::WeightId;
use ixc_ir::plan::{Arg, Source};
use ixc_kernels::{AddBias, Bits, Elementwise, KernelSpec, Linear, Quantise, RmsNormPiece, Shape, SumSquares};

use super::ScheduleError;
use super::lower::{Lowering, Rows, Stored, elementwise_args, fit, map, row_bytes};
use super::matrix::{Matrix, Product, scratch_arg};
use crate::tile::{parts, weight_parts};

pub use crate::pieces::{Pieces, Slices, Sums};

/// Those of weights for such rows.
fn slices(pieces: &Pieces, rows: Rows) -> Slices {
    match rows {
        Rows::Routed { .. } => pieces.experts,
        Rows::Tokens | Rows::Outputs => pieces.dense,
    }
}

/// A piece of an arena buffer's row.
fn at(source: Source, offset: u64, row_stride: u64, column_stride: u64) -> Arg {
    Arg { source, offset, row_stride, column_stride, expert_stride: 0 }
}

impl Lowering<'_> {
    /// `x w' [+ bias] [+ residual]` in chains, one for each range of weight rows: a range is how many, and its result a buffer of its own.
    pub(super) fn chains(
        &mut self,
        pieces: &Pieces,
        product: &Product,
        (m, x): (&Matrix, &Stored),
        ranges: &[u64],
    ) -> Result<Vec<Stored>, ScheduleError> {
        let slices = slices(pieces, x.rows);
        let (tile, dot) = slices.of(m.format, m.n, m.k);
        let weight = self.weight(product.w)?;
        let bias = product.bias.map(|bias| self.vector("linear", bias)).transpose()?;
        let mut first = 0;
        let mut results = Vec::with_capacity(ranges.len());
        for (number, &rows) in ranges.iter().enumerate() {
            let label =
                if ranges.len() > 1 { format!("{} rows {number}", product.label) } else { product.label.clone() };
            let mut sum: Option<Stored> = None;
            for (link, from) in (0..m.k).step_by(dot.max(1) as usize).enumerate() {
                let label = if link > 0 { format!("{label} {link}") } else { label.clone() };
                let y = self.buffer(&label, x.rows, Format::F32, rows)?;
                // What is added: the op's own, then, where sums are in products, the sum so far.
                let added = match (sum, slices.sums) {
                    (None, _) => product.residual.map(|residual| (residual, first * 4)),
                    (Some(sum), Sums::InProducts) => Some((sum, 0)),
                    (Some(_), Sums::Beside) => None,
                };
                let bias = bias.filter(|_| link == 0);
                let piece = Piece { m, weight, x, bias, added, first, rows, tile, from, dot: dot.min(m.k - from) };
                self.link(&label, &piece, &y)?;
                sum = Some(match (sum, slices.sums) {
                    (Some(sum), Sums::Beside) => self.sum(&format!("{label} sum"), (sum, y), tile)?,
                    (None, _) | (Some(_), Sums::InProducts) => y,
                });
            }
            first += rows;
            results.extend(sum);
        }
        Ok(results)
    }

    /// One piece of the dot products of a range of weight rows.
    fn link(&mut self, label: &str, piece: &Piece<'_>, y: &Stored) -> Result<(), ScheduleError> {
        let Piece { m, weight, x, bias, added, first, rows, tile, from, dot } = *piece;
        let strip = m.format.rows() as u64;
        let x_offset = row_bytes(x.format, from)?;
        // Blocks of a strip lie one behind the other.
        let w_offset = row_bytes(m.format, from)?.saturating_mul(strip);
        for part in weight_parts(rows, tile) {
            let label = if part.first == 0 { label.to_string() } else { format!("{label} tail") };
            let (offset, step) = (part.first * 4, part.tile * 4);
            let w = Arg {
                source: Source::Weight(weight),
                offset: m.rows(first + part.first).saturating_add(w_offset),
                row_stride: 0,
                column_stride: m.rows(part.tile),
                expert_stride: m.expert,
            };
            let x_arg = at(Source::Arena(x.buffer), x_offset, x.row_bytes()?, 0);
            let mut args = vec![("x", x_arg), ("w", w)];
            if let Some(bias) = bias {
                args.push(("bias", at(Source::Weight(bias), first * 4 + offset, 0, step)));
            }
            if let Some((added, skip)) = added {
                args.push(("residual", at(Source::Arena(added.buffer), skip + offset, added.row_bytes()?, step)));
            }
            args.push(("y", at(Source::Arena(y.buffer), offset, y.row_bytes()?, step)));
            args.push(("scratch", scratch_arg()));
            let tile = fit("tile", part.tile)?;
            let spec = Linear {
                format: m.format,
                x: x.format,
                k: fit("columns of a weight", dot)?,
                tile,
                // Of one row: the distance to the next means nothing.
                n: tile,
                bias: bias.is_some(),
                residual: added.is_some(),
                shape: Shape::Gemv,
            };
            self.by_rows(label, x.rows, part.columns, (spec, &[]), args)?;
        }
        Ok(())
    }

    /// The sum of two rows in tiles.
    fn sum(&mut self, label: &str, (a, b): (Stored, Stored), tile: u64) -> Result<Stored, ScheduleError> {
        let y = self.buffer(label, a.rows, Format::F32, a.width)?;
        self.map_pieces(label, map(Elementwise::Add), &[a, b], &y, tile)?;
        Ok(y)
    }

    /// An elementwise function in columns of `elements`.
    pub(super) fn map_pieces(
        &mut self,
        label: &str,
        spec: impl Fn(u32) -> KernelSpec,
        inputs: &[Stored],
        y: &Stored,
        elements: u64,
    ) -> Result<(), ScheduleError> {
        for part in parts(y.width, elements.clamp(1, y.width.max(1))) {
            let label = if part.first == 0 { label.to_string() } else { format!("{label} tail") };
            let (offset, step) = (part.first * 4, part.tile * 4);
            let spec = spec(fit("elements of a row", part.tile)?);
            let arg = |x: &Stored| Ok(at(Source::Arena(x.buffer), offset, x.row_bytes()?, step));
            let args = elementwise_args(&spec, inputs, y, arg)?;
            self.by_rows(label, y.rows, part.columns, (spec, &[]), args)?;
        }
        Ok(())
    }

    /// Quantisation in columns of whole blocks.
    pub(super) fn quantise_pieces(&mut self, pieces: &Pieces, x: &Stored, y: &Stored) -> Result<(), ScheduleError> {
        let block = y.format.block_len() as u64;
        let elements = (u64::from(pieces.elements) / block).max(1) * block;
        for part in parts(y.width, elements.min(y.width.max(1))) {
            let label = if part.first == 0 { "quantise" } else { "quantise tail" };
            let (from, to) = (row_bytes(x.format, part.first)?, row_bytes(y.format, part.first)?);
            let (from_step, to_step) = (row_bytes(x.format, part.tile)?, row_bytes(y.format, part.tile)?);
            let args = vec![
                ("x", at(Source::Arena(x.buffer), from, x.row_bytes()?, from_step)),
                ("y", at(Source::Arena(y.buffer), to, y.row_bytes()?, to_step)),
            ];
            let spec = Quantise { n: fit("elements of a row", part.tile)?, out: y.format };
            self.by_rows(label.to_string(), y.rows, part.columns, (spec, &[]), args)?;
        }
        Ok(())
    }

    /// A norm of a row in pieces, where the row is longer than one; gives whether it is.
    pub(super) fn norm_pieces(
        &mut self,
        pieces: &Pieces,
        (label, weight, eps): (&str, u32, Bits),
        x: &Stored,
        y: &Stored,
    ) -> Result<bool, ScheduleError> {
        let block = y.format.block_len() as u64;
        let blocks = y.width.div_ceil(block);
        let each = (u64::from(pieces.norm) / block).max(1);
        if each >= blocks {
            return Ok(false);
        }
        // As even as can be.
        let all = parts(y.width, blocks.div_ceil(blocks.div_ceil(each)) * block);
        let count = all.iter().map(|part| part.columns).sum();
        let sums = self.buffer(&format!("{label} squares"), x.rows, Format::F32, count)?;
        // All sums before the first norm: it waits for all of them.
        let mut first = 0;
        for part in &all {
            let (offset, step) = (part.first * 4, part.tile * 4);
            let label = format!("{label} squares{}", if part.first == 0 { "" } else { " tail" });
            let args = vec![
                ("x", at(Source::Arena(x.buffer), offset, x.row_bytes()?, step)),
                ("y", at(Source::Arena(sums.buffer), first * 4, sums.row_bytes()?, 4)),
            ];
            let spec = SumSquares { n: fit("elements of a row", part.tile)? };
            self.by_rows(label, x.rows, part.columns, (spec, &[]), args)?;
            first += part.columns;
        }
        for part in &all {
            let (offset, step) = (part.first * 4, part.tile * 4);
            let (to, to_step) = (row_bytes(y.format, part.first)?, row_bytes(y.format, part.tile)?);
            let label = format!("{label}{}", if part.first == 0 { "" } else { " tail" });
            let args = vec![
                ("x", at(Source::Arena(x.buffer), offset, x.row_bytes()?, step)),
                ("sums", at(Source::Arena(sums.buffer), 0, sums.row_bytes()?, 0)),
                ("w", at(Source::Weight(weight), offset, 0, step)),
                ("y", at(Source::Arena(y.buffer), to, y.row_bytes()?, to_step)),
            ];
            let spec = RmsNormPiece {
                n: fit("elements of a row", part.tile)?,
                row: fit("elements of a norm", y.width)?,
                parts: fit("pieces of a norm", count)?,
                eps,
                out: y.format,
            };
            self.by_rows(label, y.rows, part.columns, (spec, &[]), args)?;
        }
        Ok(true)
    }

    /// A bias that every column of `n` elements gets a piece of.
    pub(super) fn add_bias_pieces(
        &mut self,
        pieces: &Pieces,
        (label, bias): (&str, u32),
        x: &Stored,
        y: &Stored,
    ) -> Result<(), ScheduleError> {
        for part in parts(y.width, u64::from(pieces.elements).clamp(1, y.width.max(1))) {
            let label = if part.first == 0 { label.to_string() } else { format!("{label} tail") };
            let (offset, step) = (part.first * 4, part.tile * 4);
            let args = vec![
                ("x", at(Source::Arena(x.buffer), offset, x.row_bytes()?, step)),
                ("bias", at(Source::Weight(bias), offset, 0, step)),
                ("y", at(Source::Arena(y.buffer), offset, y.row_bytes()?, step)),
            ];
            let spec = AddBias { n: fit("elements of a bias", part.tile)? };
            self.by_rows(label, y.rows, part.columns, (spec, &[]), args)?;
        }
        Ok(())
    }

    /// `silu(x gate') * (x up')`, quantised: one op after the other.
    pub(super) fn swiglu_pieces(
        &mut self,
        op: &'static str,
        pieces: &Pieces,
        label: &str,
        x: &Stored,
        (gate, up): (WeightId, WeightId),
        out: Format,
    ) -> Result<Stored, ScheduleError> {
        let product = |label: String, w: WeightId| Product { label, x: *x, w, bias: None, residual: None };
        let gate = self.product(op, &product(format!("{label} gate"), gate))?;
        let up = self.product(op, &product(format!("{label} up"), up))?;
        let silu = self.buffer("silu", gate.rows, Format::F32, gate.width)?;
        let elements = match x.rows {
            Rows::Routed { .. } => u64::from(pieces.elements).max(out.block_len() as u64),
            Rows::Tokens | Rows::Outputs => u64::from(pieces.silu),
        };
        self.map_pieces("silu", map(Elementwise::Silu), &[gate], &silu, elements)?;
        let mul = self.buffer("mul", gate.rows, Format::F32, gate.width)?;
        self.map_pieces("mul", map(Elementwise::Mul), &[silu, up], &mul, elements)?;
        self.quantise(mul, out)
    }

    /// The sum over experts of a product, in ranges of the product's rows.
    pub(super) fn down_pieces(
        &mut self,
        pieces: &Pieces,
        product: &Product,
        (m, x): (&Matrix, &Stored),
    ) -> Result<Vec<Stored>, ScheduleError> {
        let (tile, _) = pieces.experts.of(m.format, m.n, m.k);
        let wanted = (u64::from(pieces.elements) / tile.max(1)).max(1).saturating_mul(tile);
        let ranges: Vec<u64> = parts(m.n, wanted.min(m.n.max(1)))
            .iter()
            .flat_map(|part| std::iter::repeat_n(part.tile, part.columns as usize))
            .collect();
        self.chains(pieces, product, (m, x), &ranges)
    }
}

/// A link of a chain.
struct Piece<'a> {
    m: &'a Matrix,
    weight: u32,
    x: &'a Stored,
    bias: Option<u32>,
    /// A row that is added, and the byte in it where the range begins.
    added: Option<(Stored, u64)>,
    /// First weight row, and how many.
    first: u64,
    rows: u64,
    tile: u64,
    /// First element of the dot products, and how many.
    from: u64,
    dot: u64,
}
