//! Cutting of rotations and attention: rotations of single heads, appends of keys and values
//! without a rotary table, and attention over parts of the positions.

use ixc_ir::format::Format;
use ixc_ir::plan::{Arg, Leaves, RopeTable, Source};
use ixc_kernels::{AttentionCombine, AttentionPart, Heads, KernelSpec, RopeAppend, RopeHeads};
use ixc_passes::draft::{WorkItem, fit, row_bytes};
use ixc_passes::error::ScheduleError;
use ixc_passes::schedule::bind::{KernelChoice, NamedArg, Parts, bind};

use super::cut::{TaskCutter, WholeTask, part};

/// Arguments that select the row of a rotary table.
const ANGLES: [&str; 3] = ["block", "lane", "table"];

impl TaskCutter<'_> {
    /// Returns the task's arguments with these names.
    fn named_args(&mut self, whole: &WholeTask<'_>, names: &[&'static str]) -> Result<Vec<NamedArg>, ScheduleError> {
        let found = names.iter().filter_map(|name| whole.optional(name).map(|arg| (*name, arg)));
        found.map(|(name, arg)| Ok(bind(name, self.arg(arg)?))).collect()
    }

    /// Cuts a rotation into single heads.
    pub(super) fn rope_heads(&mut self, whole: &WholeTask<'_>, spec: &RopeHeads) -> Result<(), ScheduleError> {
        self.replace_buffer(whole.result("y")?)?;
        let column = if spec.heads > 1 { row_bytes(Format::F32, spec.d.into())? } else { 0 };
        let [x, y] = ["x", "y"].map(|name| self.arg(whole.arg(name)?));
        let mut args = vec![bind("x", part(&x?, 0, column)), bind("y", part(&y?, 0, column))];
        args.extend(self.named_args(whole, &["norm"])?);
        args.extend(self.named_args(whole, &ANGLES)?);
        let heads = RopeHeads { heads: 1, ..*spec };
        self.tasks.by_rows(whole.task.label.clone(), whole.task.rows, spec.heads.into(), heads, &[], args)
    }

    /// Cuts an append. Separate tasks rotate the keys before, so only keys and values are stored
    /// with the cache, not the rotary table.
    pub(super) fn append(&mut self, whole: &WholeTask<'_>, spec: &RopeAppend) -> Result<(), ScheduleError> {
        let (axis, columns) = (whole.task.rows, u64::from(whole.task.columns));
        let mut k = self.arg(whole.arg("k")?)?;
        let still = RopeTable::still();
        if self.table(whole.arg("table")?) != Some(&still) {
            // The label is the op's mnemonic, without the name of the state.
            let label = whole.task.label.split(' ').next().unwrap_or_default();
            let rows = self.draft_buffer(whole.result("k")?)?.rows;
            let width = u64::from(spec.d) * columns;
            let (_, rotated) = self.row(label, rows, Format::F32, width)?;
            let column = if columns > 1 { row_bytes(Format::F32, spec.d.into())? } else { 0 };
            let mut args = vec![bind("x", part(&k, 0, column)), bind("y", part(&rotated, 0, column))];
            args.extend(self.named_args(whole, &["norm"])?);
            args.extend(self.named_args(whole, &ANGLES)?);
            let RopeAppend { d, dims, style, norm, .. } = *spec;
            let heads = RopeHeads { heads: 1, d, dims, style, norm };
            self.tasks.by_rows(label.to_string(), axis, columns, heads, &[], args)?;
            k = part(&rotated, 0, k.column_stride);
        }
        let mut args = self.named_args(whole, &["v", "block", "lane", "keys", "values", "rotated"])?;
        let table = self.rope(&still)?;
        args.push(bind("table", Arg { source: Source::Rope(table), ..whole.arg("table")?.clone() }));
        args.push(bind("k", k));
        let dims = fit("rotated elements", still.dims())?;
        let append = RopeAppend { dims, style: still.style, norm: None, ..*spec };
        self.tasks.by_rows(whole.task.label.clone(), axis, columns, append, &[], args)
    }

    /// Adds a kernel that combines the parts of one head to every task that computes several heads.
    pub(super) fn combined_apart(&mut self) -> Result<(), ScheduleError> {
        let mut work = std::mem::take(&mut self.tasks.work);
        for variant in work.iter_mut().flat_map(|work| match &mut work.what {
            WorkItem::Task(task) => &mut task.variants[..],
            WorkItem::Bucket(_) | WorkItem::Residency(_) | WorkItem::Exchange(_) => &mut [],
        }) {
            let Some(split) = &mut variant.split else { continue };
            if let Some(KernelSpec::AttentionCombine(combine)) = self.tasks.spec(split.combine)
                && combine.group > 1
            {
                let one = AttentionCombine { group: 1, ..*combine };
                split.alone = Some(self.tasks.kernel(one)?);
            }
        }
        self.tasks.work = work;
        Ok(())
    }

    /// Cuts attention into parts of the positions, the same parts for every token. A task computes
    /// as many query heads of a key head as fit.
    pub(super) fn attention(&mut self, whole: &WholeTask<'_>, spec: &AttentionPart) -> Result<(), ScheduleError> {
        self.replace_buffer(whole.result("part")?)?;
        let Heads { group, d, dv } = spec.heads;
        let together = self.partition.heads(group.into(), d.into(), dv.into());
        let division = self.partition.division();
        let [q, y] = ["q", "part"].map(|name| self.arg(whole.arg(name)?));
        let (q, y) = (q?, y?);
        let others = self.named_args(whole, &["position", "keys", "values", "scratch"])?;
        for first in (0..u64::from(group)).step_by(together.max(1) as usize) {
            let mut args = others.clone();
            for (name, row, head) in [("q", &q, d), ("y", &y, dv)] {
                let offset = first.saturating_mul(row_bytes(Format::F32, head.into())?);
                args.push(bind(name, part(row, offset, row.column_stride)));
            }
            if let Some(sinks) = whole.optional("sinks") {
                let sinks = self.arg(sinks)?;
                args.push(bind("sinks", part(&sinks, first * row_bytes(Format::F32, 1)?, sinks.column_stride)));
            }
            if let Some(slopes) = whole.optional("slopes") {
                let slopes = self.arg(slopes)?;
                args.push(bind("slopes", part(&slopes, first * row_bytes(Format::F32, 1)?, slopes.column_stride)));
            }
            let group = fit("query heads of a key head", together)?;
            let combine = AttentionCombine { group, dv, parts: division.parts };
            let spec = AttentionPart { heads: Heads { group, d, dv }, ..*spec };
            let parts = Some(Parts {
                part: "part",
                result: "y",
                division,
                every: 1,
                leaves: Leaves::Result,
                combine: combine.into(),
            });
            let choice = KernelChoice { parts, ..KernelChoice::by_chunks(1, spec) };
            let label = match first {
                0 => whole.task.label.clone(),
                first => format!("{} heads {first}", whole.task.label),
            };
            self.tasks.task(label, whole.task.rows, whole.task.columns.into(), vec![choice], &[], args)?;
        }
        Ok(())
    }
}
