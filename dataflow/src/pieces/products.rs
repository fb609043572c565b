//! Cutting of matrix products: chains of short dot products, and ranges of products that are summed
//! over experts.
//!
//! ```text
//! swiglu x, gate, up, y     gate: a chain, up: a chain, silu, mul, quantise
//! linear x, w, y            rows 0: a chain, rows 1: a chain, ..
//! combine y, p, r, z        combine rows 0, p, r[0..n], z[0..n]; combine rows 1, ..
//! ```

use ixc_ir::format::Format;
use ixc_ir::graph::attrs::Activation;
use ixc_ir::plan::{Arg, BufferId, DimInput, RowAxis, RowCount, Source};
use ixc_kernels::generator::signature::NamedValue;
use ixc_kernels::{Combine, Elementwise, Gated, Linear, Map, MatmulStrategy, Pace, Swiglu};
use ixc_passes::draft::{fit, part_bytes, row_bytes};
use ixc_passes::error::ScheduleError;
use ixc_passes::schedule::bind::bind;
use ixc_passes::tile::{parts, weight_parts};

use super::cut::{TaskCutter, WholeTask, part};
use super::{Reduction, WeightTile};

/// Bytes of an f32.
const F32_BYTES: u64 = 4;

/// A product `x w' [+ bias] [+ residual]` that is to be cut.
struct Product {
    label: String,
    axis: RowAxis,
    rows: RowCount,
    x: Arg,
    x_format: Format,
    w: Arg,
    format: Format,
    n: u64,
    k: u64,
    bias: Option<Arg>,
    residual: Option<Arg>,
}

/// One piece of a product in a chain.
struct Link {
    label: String,
    bias: Option<Arg>,
    /// Row that is added to the piece's result. It begins at the first element of the range of
    /// weight rows.
    added: Option<Arg>,
    y: Arg,
    /// Range of weight rows: the first row, the number of rows, and the number of rows in one
    /// column.
    first: u64,
    rows: u64,
    tile: u64,
    /// Range of the dot products: the first element, and the number of elements.
    from: u64,
    dot: u64,
}

/// Returns the thread's scratch memory as an argument.
fn scratch() -> Arg {
    Arg { source: Source::Scratch, offset: 0, row_stride: 0, column_stride: 0, expert_stride: 0 }
}

impl TaskCutter<'_> {
    /// Cuts a product into a chain. If its result is only read by sums over experts, it becomes
    /// several chains: one for each range that can be summed separately.
    pub(super) fn linear(&mut self, whole: &WholeTask<'_>, spec: &Linear) -> Result<(), ScheduleError> {
        let y = whole.result("y")?;
        if !self.ranges(y).is_empty() {
            // The task computes other tiles of a product that is already cut as a whole.
            return Ok(());
        }
        let product = Product {
            label: whole.task.label.clone(),
            axis: whole.task.rows,
            rows: self.draft_buffer(y)?.rows,
            x: self.arg(whole.arg("x")?)?,
            x_format: spec.x,
            w: whole.arg("w")?.clone(),
            format: spec.format,
            n: spec.n.into(),
            k: spec.k.into(),
            bias: whole.optional("bias").cloned(),
            residual: whole.optional("residual").map(|residual| self.arg(residual)).transpose()?,
        };
        let ranges = if self.is_summed(y) { self.summed_ranges(&product) } else { vec![product.n] };
        let mut first = 0;
        let mut results = Vec::with_capacity(ranges.len());
        for (number, &rows) in ranges.iter().enumerate() {
            let label =
                if ranges.len() > 1 { format!("{} rows {number}", product.label) } else { product.label.clone() };
            results.push(self.chain(&product, &label, first, rows)?);
            first += rows;
        }
        self.set_new_buffers(y, results)
    }

    /// Cuts a quantised `silu(x gate') * (x up')` into separate ops.
    pub(super) fn swiglu(&mut self, whole: &WholeTask<'_>, spec: &Swiglu) -> Result<(), ScheduleError> {
        let y = whole.result("y")?;
        if !self.ranges(y).is_empty() {
            return Ok(());
        }
        let (axis, rows, n) = (whole.task.rows, self.draft_buffer(y)?.rows, u64::from(spec.n));
        let x = self.arg(whole.arg("x")?)?;
        let mut product = |name: &'static str, bias: &'static str, format: Format| -> Result<Arg, ScheduleError> {
            let label = format!("{} {name}", whole.task.label);
            let w = whole.arg(name)?.clone();
            let (x, k) = (x.clone(), spec.k.into());
            let bias = whole.optional(bias).cloned();
            let product = Product { label, axis, rows, x, x_format: spec.x, w, format, n, k, bias, residual: None };
            let result = self.chain(&product, &product.label, 0, n)?;
            Ok(self.whole_row(result))
        };
        let (gate, up) = (product("gate", "gate_bias", spec.gate)?, product("up", "up_bias", spec.up)?);
        let elements = match axis {
            RowAxis::Routed(_) => u64::from(self.partition.elements).max(spec.out.block_len() as u64),
            RowAxis::Tokens | RowAxis::Outputs => self.partition.silu.into(),
        };
        let Swiglu { act, limit, shift, bend, .. } = *spec;
        let (product, mul) = if (act, limit, shift) == (Activation::Silu, None, None) {
            let (_, silu) = self.row("silu", rows, Format::F32, n)?;
            let map = |function: Elementwise| move |n: u32| Map { function, n }.into();
            let args = [bind("a", gate), bind("y", silu.clone())];
            self.columns("silu", axis, n, elements, map(Elementwise::Silu), &args)?;
            let (product, mul) = self.row("mul", rows, Format::F32, n)?;
            let args = [bind("a", silu), bind("b", up), bind("y", mul.clone())];
            self.columns("mul", axis, n, elements, map(Elementwise::Mul), &args)?;
            (product, mul)
        } else {
            let (product, gated) = self.row("gated", rows, Format::F32, n)?;
            let args = [bind("gate", gate), bind("up", up), bind("y", gated.clone())];
            self.columns("gated", axis, n, elements, |n| Gated { act, n, limit, shift, bend }.into(), &args)?;
            (product, gated)
        };
        if spec.out == Format::F32 {
            return self.set_new_buffers(y, vec![product]);
        }
        let (result, quantised) = self.row("quantise", rows, spec.out, n)?;
        self.quantise_row("quantise", axis, n, spec.out, &mul, &quantised)?;
        self.set_new_buffers(y, vec![result])
    }

    /// Cuts a sum over experts into one task for each range of its input.
    pub(super) fn combine(&mut self, whole: &WholeTask<'_>, spec: &Combine) -> Result<(), ScheduleError> {
        let (x, y) = (whole.result("x")?, whole.result("y")?);
        self.replace_buffer(y)?;
        let ranges = self.ranges(x).to_vec();
        let (slot, p, y) = (self.arg(whole.arg("slot")?)?, self.arg(whole.arg("p")?)?, self.arg(whole.arg("y")?)?);
        let residual = whole.optional("residual").map(|residual| self.arg(residual)).transpose()?;
        let mut offset = 0;
        for range in ranges {
            let rows = Arg { source: Source::Arena(range), ..whole.arg("x")?.clone() };
            let mut args = vec![bind("slot", slot.clone()), bind("p", p.clone()), bind("x", rows)];
            args.extend(residual.as_ref().map(|residual| bind("residual", part(residual, offset, 0))));
            args.push(bind("y", part(&y, offset, 0)));
            let bytes = self.row_bytes(range);
            let spec = Combine { n: fit("elements of a row", bytes / F32_BYTES)?, ..*spec };
            let dims = [NamedValue { name: "rows", value: DimInput::Tokens * spec.slots }];
            self.tasks.by_rows(whole.task.label.clone(), whole.task.rows, 1, spec, &dims, args)?;
            offset += bytes;
        }
        Ok(())
    }

    fn weight_tile(&self, axis: RowAxis) -> WeightTile {
        match axis {
            RowAxis::Routed(_) => self.partition.experts,
            RowAxis::Tokens | RowAxis::Outputs => self.partition.dense,
        }
    }

    /// Returns the number of weight rows in each range of a product that is summed over experts:
    /// about [`Partition::elements`](super::Partition::elements).
    fn summed_ranges(&self, product: &Product) -> Vec<u64> {
        let (tile, _) = self.weight_tile(product.axis).tile_size(product.format, product.n, product.k);
        let wanted = (u64::from(self.partition.elements) / tile.max(1)).max(1).saturating_mul(tile);
        let ranges = parts(product.n, wanted.min(product.n.max(1)));
        ranges.iter().flat_map(|range| std::iter::repeat_n(range.tile, range.columns as usize)).collect()
    }

    /// Adds the chain of a product for `rows` weight rows from row `first` on.
    fn chain(&mut self, product: &Product, label: &str, first: u64, rows: u64) -> Result<BufferId, ScheduleError> {
        let largest = self.weight_tile(product.axis);
        let (tile, dot) = largest.tile_size(product.format, product.n, product.k);
        let mut sum: Option<(BufferId, Arg)> = None;
        for (link, from) in (0..product.k).step_by(dot.max(1) as usize).enumerate() {
            let label = if link > 0 { format!("{label} {link}") } else { label.to_string() };
            let (result, y) = self.row(&label, product.rows, Format::F32, rows)?;
            // The first piece adds the residual. Later pieces add the sum of the earlier ones, if
            // sums are part of products.
            let added = match (&sum, largest.reduction) {
                (None, _) => product.residual.as_ref().map(|residual| part(residual, first * F32_BYTES, 0)),
                (Some((_, sum)), Reduction::Chained) => Some(sum.clone()),
                (Some(_), Reduction::Separate) => None,
            };
            let bias = product.bias.clone().filter(|_| link == 0);
            let dot = dot.min(product.k - from);
            let link = Link { label, bias, added, y: y.clone(), first, rows, tile, from, dot };
            self.link(product, &link)?;
            sum = Some(match (sum, largest.reduction) {
                (Some((_, sum)), Reduction::Separate) => {
                    let label = format!("{} sum", link.label);
                    let (result, total) = self.row(&label, product.rows, Format::F32, rows)?;
                    let add = |n: u32| Map { function: Elementwise::Add, n }.into();
                    let args = [bind("a", sum), bind("b", y), bind("y", total.clone())];
                    self.columns(&label, product.axis, rows, tile, add, &args)?;
                    (result, total)
                }
                (None, _) | (Some(_), Reduction::Chained) => (result, y),
            });
        }
        let nothing = || ScheduleError::Draft { problem: format!("a weight without columns in {label}") };
        sum.map(|(result, _)| result).ok_or_else(nothing)
    }

    /// Adds one piece of the dot products of a range of weight rows.
    fn link(&mut self, product: &Product, link: &Link) -> Result<(), ScheduleError> {
        let format = product.format;
        let row = row_bytes(format, product.k)?;
        // The blocks of a strip are stored one after the other.
        let within = part_bytes(format, link.from)?.saturating_mul(format.rows() as u64);
        let x = part(&product.x, part_bytes(product.x_format, link.from)?, 0);
        for columns in weight_parts(link.rows, link.tile) {
            let label = if columns.first == 0 { link.label.clone() } else { format!("{} tail", link.label) };
            let (offset, step) = (columns.first * F32_BYTES, columns.tile * F32_BYTES);
            let w = (link.first + columns.first).saturating_mul(row).saturating_add(within);
            let mut args = vec![bind("x", x.clone()), bind("w", part(&product.w, w, columns.tile.saturating_mul(row)))];
            let bias = link.bias.as_ref();
            args.extend(bias.map(|bias| bind("bias", part(bias, link.first * F32_BYTES + offset, step))));
            args.extend(link.added.as_ref().map(|added| bind("residual", part(added, offset, step))));
            args.push(bind("y", part(&link.y, offset, step)));
            args.push(bind("scratch", scratch()));
            let tile = fit("tile", columns.tile)?;
            let spec = Linear {
                format,
                x: product.x_format,
                k: fit("columns of a weight", link.dot)?,
                tile,
                // The tile is all rows that the kernel sees, so the distance to the next row has no
                // meaning.
                n: tile,
                bias: link.bias.is_some(),
                residual: link.added.is_some(),
                strategy: MatmulStrategy::Gemv,
                pace: Pace::default(),
            };
            self.tasks.by_rows(label, product.axis, columns.columns, spec, &[], args)?;
        }
        Ok(())
    }
}
