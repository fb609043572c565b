//! Tasks of matrix products, divided by the tilings of their weights ([`ixc_kernels::tiling`]).
//!
//! A column of a product's task is a tile of weight rows. An item thus reads its part of the weight
//! once for all rows of its chunk. Weight rows after the last full tile are a second task in the
//! same step.
//!
//! ```text
//! linear %x, @w, _, _       // @w : q4_k[1000, 256]
//! linear w:      31 columns of 32 rows
//! linear w tail:  1 column of 8 rows
//! ```
//!
//! If the tiling has bands, each column can be divided for few rows: `gemv<=5/5x16` gives 62 items
//! for the columns above.

use ixc_ir::format::Format;
use ixc_ir::graph::attrs::{Activation, GateAttrs};
use ixc_ir::graph::{Op, WeightId};
use ixc_ir::plan::{Arg, BufferId, Source};
use ixc_kernels::tiling::{PartPlace, RowTiles, TilingError, Use};
use ixc_kernels::{Bits, KernelSpec, Linear, MatmulStrategy, Pace};

use super::{ArenaRows, Lowering, Rows, ScheduleError};
use crate::draft::{fit, part_bytes, row_bytes};
use crate::schedule::bind::{KernelChoice, NamedBands, bind};

/// A product to be lowered.
pub(super) struct Product {
    pub(super) label: String,
    /// Rows in the activation format of `w`.
    pub(super) x: ArenaRows,
    /// `[n, k]`, or `[experts, n, k]` for routed rows.
    pub(super) w: WeightId,
    pub(super) bias: Option<WeightId>,
    pub(super) residual: Option<ArenaRows>,
}

/// Two products, gate and up, and their gated linear unit.
pub(super) struct Swiglu {
    pub(super) label: String,
    pub(super) x: ArenaRows,
    pub(super) gate: WeightId,
    pub(super) up: WeightId,
    /// Biases of the gate and the up projection.
    pub(super) biases: [Option<WeightId>; 2],
    /// Format of the result.
    pub(super) out: Format,
}

/// Attributes of a gated linear unit, in the form of kernels.
pub(super) struct Gate {
    pub(super) act: Activation,
    pub(super) limit: Option<Bits>,
    pub(super) shift: Option<Bits>,
    pub(super) bend: Option<Bits>,
}

/// Returns the attributes of an op with a gated linear unit.
pub(super) fn gate(op: &Op) -> Gate {
    let GateAttrs { act, limit, shift, bend } = GateAttrs::from_op(op);
    let other_than_0 = |x: f64| (x != 0.0).then(|| Bits::from_value(x));
    Gate { act, limit: other_than_0(limit), shift: other_than_0(shift), bend: other_than_0(bend) }
}

/// Properties of a weight for all its products.
pub(super) struct Matrix {
    pub(super) format: Format,
    pub(super) n: u64,
    pub(super) k: u64,
    /// Bytes of a row of the matrix.
    row: u64,
    /// Offset of the weight in its tensor, or in the tensor of each expert, in bytes.
    begin: u64,
    /// Bytes from one expert's matrix to the next; 0 without experts.
    pub(super) expert: u64,
}

impl Matrix {
    /// Returns the number of bytes of `rows` weight rows. The product cannot overflow, because the
    /// bytes of the whole weight fit.
    pub(super) fn rows(&self, rows: u64) -> u64 {
        self.row * rows
    }
}

impl Lowering<'_> {
    fn matrix(&self, op: &'static str, w: WeightId, rows: Rows) -> Result<Matrix, ScheduleError> {
        let weight = &self.module.weights[w.index()];
        let unsupported = |problem: String| ScheduleError::Unsupported { op, problem };
        let (routed, n, k) = match (rows, &weight.shape[..]) {
            // Ids are less than the routing's number of experts, so the weight must have this
            // number of experts.
            (Rows::Routed { bucket, .. }, &[experts, n, k]) if self.experts_of(bucket) == Some(experts) => (true, n, k),
            (Rows::Tokens | Rows::Outputs, &[n, k]) => (false, n, k),
            _ => return Err(unsupported(format!("a weight {:?} for rows {rows:?}", weight.shape))),
        };
        let format = self.format_of(w);
        let row = row_bytes(format, k)?;
        let (begin, rows) = weight.part.as_ref().map_or((0, n), |part| (part.from, part.rows));
        let tensor =
            row.checked_mul(rows).ok_or_else(|| unsupported("a weight of more than 2^64 bytes".to_string()))?;
        // The product cannot overflow, because the offset is inside the tensor.
        let begin = begin * row;
        Ok(Matrix { format, n, k, row, begin, expert: if routed { tensor } else { 0 } })
    }

    /// Lowers `x w' [+ bias] [+ residual]`.
    pub(super) fn product(&mut self, op: &'static str, product: &Product) -> Result<ArenaRows, ScheduleError> {
        let (m, x) = &self.factors(op, product)?;
        let Product { label, w, bias, residual, .. } = product;
        let y = self.buffer(label, x.rows, Format::F32, m.n)?;
        let tiling = self.tiling(*w)?;
        let parts = tiling.place(m.n).map_err(|error| self.wrong_tiling(*w, error))?;
        let weight = self.weight(*w)?;
        let bias = bias.map(|bias| self.vector(op, bias)).transpose()?;
        for PartPlace { part, first: first_row, columns } in parts {
            let label = if first_row == 0 { label.clone() } else { format!("{label} tail") };
            let (x_row, y_row) = (x.row_bytes()?, y.row_bytes()?);
            let (first, step) = (first_row * 4, part.rows * 4);
            let mut args = vec![
                bind("x", rows_arg(x.buffer, x_row)),
                bind(
                    "w",
                    Arg {
                        source: Source::Weight(weight),
                        offset: m.begin + m.rows(first_row),
                        row_stride: 0,
                        column_stride: m.rows(part.rows),
                        expert_stride: m.expert,
                    },
                ),
            ];
            if let Some(bias) = bias {
                args.push(bind("bias", bias_arg(bias, m, first_row, part.rows)));
            }
            if let Some(residual) = residual {
                args.push(bind("residual", columns_arg(Source::Arena(residual.buffer), first, y_row, step)));
            }
            args.push(bind("y", columns_arg(Source::Arena(y.buffer), first, y_row, step)));
            let spec = |each: &Use, rows: u64| -> Result<Linear, ScheduleError> {
                Ok(Linear {
                    format: m.format,
                    x: x.format,
                    k: fit("columns of a weight", m.k)?,
                    tile: fit("tile", rows)?,
                    n: fit("rows of a weight", m.n)?,
                    bias: bias.is_some(),
                    residual: residual.is_some(),
                    strategy: each.strategy,
                    pace: each.pace,
                })
            };
            args.push(bind("scratch", scratch_arg()));
            let bands = |rows: u64| {
                let own = bias.map(|_| "bias").into_iter().chain(residual.map(|_| "residual"));
                let of_results = own.chain(["y"]).map(|name| (name, rows * 4));
                [("w", m.rows(rows))].into_iter().chain(of_results).collect()
            };
            let variants = part.uses.iter().map(|each| {
                let bands = self.item_bands(*w, part, each, |rows| Ok((spec(each, rows)?.into(), bands(rows))))?;
                let spec = KernelSpec::from(spec(each, part.rows)?);
                let (rows, most) = (each.row_chunk, spec.max_rows());
                if rows > most {
                    return Err(self.wrong_tiling(*w, TilingError::Chunk { rows, most }));
                }
                Ok(KernelChoice::new(*each, spec, bands))
            });
            let variants = variants.collect::<Result<_, ScheduleError>>()?;
            self.tasks.task(label, x.rows.axis(), columns, variants, &[], args)?;
        }
        Ok(y)
    }

    /// Lowers the product of each head of the rows `x` with its own matrix of `w`, `[heads, n, k]`.
    /// Heads of different rows are too far apart for a kernel of several rows, so each item has one
    /// row. A column is a head.
    pub(super) fn product_of_heads(
        &mut self,
        op: &'static str,
        label: &str,
        x: ArenaRows,
        w: WeightId,
    ) -> Result<ArenaRows, ScheduleError> {
        let problem = |problem: String| ScheduleError::Unsupported { op, problem };
        let &[heads, n, k] = &self.module.weights[w.index()].shape[..] else {
            return Err(problem("a weight without one matrix for each head".to_string()));
        };
        if matches!(x.rows, Rows::Routed { .. }) {
            return Err(problem("expert slots of a token as heads; each slot has a row of its own".to_string()));
        }
        let x = self.factor(x, w)?;
        let width = heads.checked_mul(k).ok_or_else(|| problem("rows of more than 2^64 elements".to_string()))?;
        self.expect(op, &x, self.activation(w), width)?;
        let format = self.format_of(w);
        let row = row_bytes(format, k)?;
        // A part of a tensor has the same distance between heads as the whole tensor.
        let (begin, rows) = self.module.weights[w.index()].part.as_ref().map_or((0, n), |part| (part.from, part.rows));
        let head = row.checked_mul(rows).ok_or_else(|| problem("a weight of more than 2^64 bytes".to_string()))?;
        let width = heads.checked_mul(n).ok_or_else(|| problem("rows of more than 2^64 elements".to_string()))?;
        let y = self.buffer(label, x.rows, Format::F32, width)?;
        let tiling = self.tiling(w)?;
        let parts = tiling.place(n).map_err(|error| self.wrong_tiling(w, error))?;
        let weight = self.weight(w)?;
        for PartPlace { part, first, columns } in parts {
            for first in (0..columns).map(|column| first + column * part.rows) {
                let args = vec![
                    bind("x", columns_arg(Source::Arena(x.buffer), 0, x.row_bytes()?, part_bytes(x.format, k)?)),
                    bind("w", columns_arg(Source::Weight(weight), (begin + first) * row, 0, head)),
                    bind("y", columns_arg(Source::Arena(y.buffer), first * 4, y.row_bytes()?, n * 4)),
                    bind("scratch", scratch_arg()),
                ];
                let spec = Linear {
                    format,
                    x: x.format,
                    k: fit("columns of a weight", k)?,
                    tile: fit("tile", part.rows)?,
                    n: fit("rows of a weight", width)?,
                    bias: false,
                    residual: false,
                    strategy: MatmulStrategy::Gemv,
                    pace: Pace::default(),
                };
                let choice = KernelChoice::by_chunks(1, spec);
                self.tasks.task(label.to_string(), x.rows.axis(), heads, vec![choice], &[], args)?;
            }
        }
        Ok(y)
    }

    /// Returns the bands of items, if the tiling of `w` has bands. `band` returns the kernel and
    /// the strides for a band with a given number of weight rows.
    fn item_bands(
        &self,
        w: WeightId,
        part: &RowTiles,
        each: &Use,
        band: impl Fn(u64) -> Result<(KernelSpec, Vec<(&'static str, u64)>), ScheduleError>,
    ) -> Result<Option<NamedBands>, ScheduleError> {
        let Some(count) = part.bands(each).map_err(|error| self.wrong_tiling(w, error))? else { return Ok(None) };
        let (spec, strides) = band(part.rows / count)?;
        Ok(Some(NamedBands { count, spec, strides }))
    }

    /// Returns a product's weight and activations. Checks that their shapes and the residual's
    /// shape agree.
    fn factors(&mut self, op: &'static str, product: &Product) -> Result<(Matrix, ArenaRows), ScheduleError> {
        let Product { x, w, residual, .. } = product;
        let m = self.matrix(op, *w, x.rows)?;
        let x = self.factor(*x, *w)?;
        self.expect(op, &x, self.activation(*w), m.k)?;
        if let Some(residual) = residual {
            self.expect(op, residual, Format::F32, m.n)?;
            if residual.rows != x.rows {
                let problem = format!("a residual of rows {:?} for rows {:?}", residual.rows, x.rows);
                return Err(ScheduleError::Unsupported { op, problem });
            }
        }
        Ok((m, x))
    }

    /// Lowers a gated linear unit of two products of the same rows, and quantises the result.
    pub(super) fn swiglu(&mut self, op: &Op, swiglu: &Swiglu) -> Result<ArenaRows, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let Swiglu { label, x, gate, up, biases, out } = swiglu;
        let (g, u) = (self.matrix(name, *gate, x.rows)?, self.matrix(name, *up, x.rows)?);
        let x = &self.factor(*x, *gate)?;
        self.expect(name, x, self.activation(*gate), g.k)?;
        self.expect(name, x, self.activation(*up), u.k)?;
        let function = self::gate(op);
        let [gate_bias, up_bias] = biases.map(|bias| bias.map(|bias| self.vector(name, bias)).transpose());
        let biases = [("gate_bias", gate_bias?), ("up_bias", up_bias?)];
        let y = self.buffer(label, x.rows, *out, g.n)?;
        let out = y.format;
        let tiling = self.tiling(*gate)?;
        let parts = tiling.place(g.n).map_err(|error| self.wrong_tiling(*gate, error))?;
        let (w, gate, up) = (*gate, self.weight(*gate)?, self.weight(*up)?);
        for PartPlace { part, first: first_row, columns } in parts {
            let label = if first_row == 0 { label.to_string() } else { format!("{label} tail") };
            let weight = |m: &Matrix, weight: u32| Arg {
                source: Source::Weight(weight),
                offset: m.begin + m.rows(first_row),
                row_stride: 0,
                column_stride: m.rows(part.rows),
                expert_stride: m.expert,
            };
            let y_arg = columns_arg(
                Source::Arena(y.buffer),
                part_bytes(out, first_row)?,
                y.row_bytes()?,
                part_bytes(out, part.rows)?,
            );
            let mut args = vec![
                bind("x", rows_arg(x.buffer, x.row_bytes()?)),
                bind("gate", weight(&g, gate)),
                bind("up", weight(&u, up)),
            ];
            for (name, bias) in biases {
                args.extend(bias.map(|bias| bind(name, bias_arg(bias, &g, first_row, part.rows))));
            }
            args.extend([bind("y", y_arg), bind("scratch", scratch_arg())]);
            let [gate_bias, up_bias] = biases.map(|(_, bias)| bias.is_some());
            let spec = |each: &Use, rows: u64| -> Result<ixc_kernels::Swiglu, ScheduleError> {
                Ok(ixc_kernels::Swiglu {
                    gate: g.format,
                    up: u.format,
                    x: x.format,
                    k: fit("columns of a weight", g.k)?,
                    tile: fit("tile", rows)?,
                    n: fit("rows of a weight", g.n)?,
                    out,
                    rows: each.row_chunk,
                    act: function.act,
                    limit: function.limit,
                    shift: function.shift,
                    bend: function.bend,
                    gate_bias,
                    up_bias,
                    strategy: each.strategy,
                    pace: each.pace,
                })
            };
            let bands = |rows: u64| {
                // Several bands write to the same block of the result; each writes its own part of
                // every field of the block.
                let y = part_bytes(out, rows).unwrap_or(0);
                let biases = biases.iter().filter(|(_, bias)| bias.is_some()).map(|(name, _)| (*name, rows * 4));
                [("gate", g.rows(rows)), ("up", u.rows(rows)), ("y", y)].into_iter().chain(biases).collect()
            };
            let variants = part.uses.iter().map(|each| {
                let block = out.block_len() as u64;
                if let Some(band) = each.band.filter(|band| u64::from(*band) < block && part.rows != block) {
                    return Err(self.wrong_tiling(w, TilingError::Block { band, rows: part.rows, block }));
                }
                let bands = self.item_bands(w, part, each, |rows| Ok((spec(each, rows)?.into(), bands(rows))))?;
                Ok(KernelChoice::new(*each, spec(each, part.rows)?, bands))
            });
            let variants = variants.collect::<Result<_, ScheduleError>>()?;
            self.tasks.task(label, x.rows.axis(), columns, variants, &[], args)?;
        }
        Ok(y)
    }
}

/// Returns the argument for the bias of a matrix's rows from `first` on, where a column has `rows`
/// rows. Routed weights have one bias per expert.
fn bias_arg(bias: u32, matrix: &Matrix, first: u64, rows: u64) -> Arg {
    let expert_stride = if matrix.expert > 0 { matrix.n * 4 } else { 0 };
    Arg { expert_stride, ..columns_arg(Source::Weight(bias), first * 4, 0, rows * 4) }
}

fn rows_arg(buffer: BufferId, row_stride: u64) -> Arg {
    Arg { source: Source::Arena(buffer), offset: 0, row_stride, column_stride: 0, expert_stride: 0 }
}

fn columns_arg(source: Source, offset: u64, row_stride: u64, column_stride: u64) -> Arg {
    Arg { source, offset, row_stride, column_stride, expert_stride: 0 }
}

/// Returns the argument of the thread's scratch memory.
pub(super) fn scratch_arg() -> Arg {
    columns_arg(Source::Scratch, 0, 0, 0)
}
