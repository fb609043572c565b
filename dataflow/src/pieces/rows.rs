//! Cutting of ops on rows: columns of elements, and norms in two tasks.

use ixc_ir::format::Format;
use ixc_ir::plan::{Arg, RowAxis};
use ixc_kernels::{KernelSpec, Quantise, RmsNorm, RmsNormPiece, SumSquares};
use ixc_passes::draft::{fit, part_bytes, row_bytes};
use ixc_passes::error::ScheduleError;
use ixc_passes::schedule::bind::{NamedArg, bind};
use ixc_passes::tile::parts;

use super::cut::{TaskCutter, WholeTask, part};

impl TaskCutter<'_> {
    /// Cuts an elementwise function of `n` elements; `spec` returns the kernel for fewer elements.
    pub(super) fn elementwise(
        &mut self,
        whole: &WholeTask<'_>,
        n: u32,
        spec: impl Fn(u32) -> KernelSpec,
    ) -> Result<(), ScheduleError> {
        self.replace_buffer(whole.result("y")?)?;
        let args = whole.names().into_iter().map(|name| Ok(bind(name, self.arg(whole.arg(name)?)?)));
        let args = args.collect::<Result<Vec<NamedArg>, ScheduleError>>()?;
        let elements = self.partition.elements.into();
        self.columns(&whole.task.label, whole.task.rows, n.into(), elements, spec, &args)
    }

    /// Adds a function of `width` f32 elements, divided into columns of `elements` elements. All
    /// arguments have this width.
    pub(super) fn columns(
        &mut self,
        label: &str,
        axis: RowAxis,
        width: u64,
        elements: u64,
        spec: impl Fn(u32) -> KernelSpec,
        args: &[NamedArg],
    ) -> Result<(), ScheduleError> {
        for columns in parts(width, elements.clamp(1, width.max(1))) {
            let (offset, step) = (row_bytes(Format::F32, columns.first)?, row_bytes(Format::F32, columns.tile)?);
            let args = args.iter().map(|NamedArg { name, arg }| bind(name, part(arg, offset, step))).collect();
            let spec = spec(fit("elements of a row", columns.tile)?);
            self.tasks.by_rows(tail(label, columns.first), axis, columns.columns, spec, &[], args)?;
        }
        Ok(())
    }

    pub(super) fn quantise(&mut self, whole: &WholeTask<'_>, spec: &Quantise) -> Result<(), ScheduleError> {
        self.replace_buffer(whole.result("y")?)?;
        let (x, y) = (self.arg(whole.arg("x")?)?, self.arg(whole.arg("y")?)?);
        self.quantise_row(&whole.task.label, whole.task.rows, spec.n.into(), spec.out, &x, &y)
    }

    /// Adds the quantisation of `width` f32 elements, divided into columns of whole blocks.
    pub(super) fn quantise_row(
        &mut self,
        label: &str,
        axis: RowAxis,
        width: u64,
        out: Format,
        x: &Arg,
        y: &Arg,
    ) -> Result<(), ScheduleError> {
        let block = out.block_len() as u64;
        let elements = (u64::from(self.partition.elements) / block).max(1) * block;
        for columns in parts(width, elements.min(width.max(1))) {
            let args =
                [(x, "x", Format::F32), (y, "y", out)].map(|(arg, name, format)| -> Result<NamedArg, ScheduleError> {
                    Ok(bind(name, part(arg, part_bytes(format, columns.first)?, part_bytes(format, columns.tile)?)))
                });
            let args = args.into_iter().collect::<Result<_, _>>()?;
            let spec = Quantise { n: fit("elements of a row", columns.tile)?, out };
            self.tasks.by_rows(tail(label, columns.first), axis, columns.columns, spec, &[], args)?;
        }
        Ok(())
    }

    /// Returns the number of elements in each piece of a norm; `None` if the row is not longer than
    /// one piece.
    pub(super) fn norm_elements(&self, spec: &RmsNorm) -> Option<u64> {
        let block = spec.out.block_len() as u64;
        let blocks = u64::from(spec.n).div_ceil(block);
        let each = (u64::from(self.partition.norm) / block).max(1);
        // Makes the pieces as even as possible.
        (each < blocks && !spec.plain).then(|| blocks.div_ceil(blocks.div_ceil(each)) * block)
    }

    /// Cuts the norm of a row into pieces of `elements` elements.
    pub(super) fn norm(&mut self, whole: &WholeTask<'_>, spec: &RmsNorm, elements: u64) -> Result<(), ScheduleError> {
        let (axis, label, y) = (whole.task.rows, &whole.task.label, whole.result("y")?);
        let rows = self.draft_buffer(y)?.rows;
        self.replace_buffer(y)?;
        let [x, w, y] = ["x", "w", "y"].map(|name| self.arg(whole.arg(name)?));
        let (x, w, y) = (x?, w?, y?);
        let all = parts(spec.n.into(), elements);
        let count = all.iter().map(|columns| columns.columns).sum();
        let squares = format!("{label} squares");
        let (_, sums) = self.row(&squares, rows, Format::F32, count)?;
        let f32_bytes = |elements: u64| row_bytes(Format::F32, elements);
        // The tasks for all sums of squares come before the first piece of the norm, because each
        // piece waits for all sums.
        let mut first = 0;
        for columns in &all {
            let args = vec![
                bind("x", part(&x, f32_bytes(columns.first)?, f32_bytes(columns.tile)?)),
                bind("y", part(&sums, f32_bytes(first)?, f32_bytes(1)?)),
            ];
            let spec = SumSquares { n: fit("elements of a row", columns.tile)? };
            self.tasks.by_rows(tail(&squares, columns.first), axis, columns.columns, spec, &[], args)?;
            first += columns.columns;
        }
        for columns in &all {
            let (offset, step) = (f32_bytes(columns.first)?, f32_bytes(columns.tile)?);
            let args = vec![
                bind("x", part(&x, offset, step)),
                bind("sums", sums.clone()),
                bind("w", part(&w, offset, step)),
                bind("y", part(&y, part_bytes(spec.out, columns.first)?, part_bytes(spec.out, columns.tile)?)),
            ];
            let spec = RmsNormPiece {
                n: fit("elements of a row", columns.tile)?,
                row: spec.n,
                parts: fit("pieces of a norm", count)?,
                eps: spec.eps,
                out: spec.out,
            };
            self.tasks.by_rows(tail(label, columns.first), axis, columns.columns, spec, &[], args)?;
        }
        Ok(())
    }
}

/// Returns the label of the columns that begin at element `first`.
fn tail(label: &str, first: u64) -> String {
    if first == 0 { label.to_string() } else { format!("{label} tail") }
}
