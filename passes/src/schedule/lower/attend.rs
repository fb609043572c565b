//! Choice of attention kernels for each number of rows: the first candidate that accepts the
//! request.

use ixc_ir::format::Format;
use ixc_ir::plan::Leaves;
use ixc_ir::units::count_text;
use ixc_kernels::attention::{
    AttentionRequest, CANDIDATES, Heads, ItemDivision, KernelOffer, LargerItems, ROW_COUNTS, Reason, Refusal,
};

use super::super::bind::NamedBands;
use super::{KernelChoice, Parts, RejectedAlternative, ScheduleError, row_bytes};

/// Chosen kernels of a task, and the reasons against the other candidates.
pub(super) struct Selection {
    /// Kernels by number of rows.
    pub(super) choices: Vec<KernelChoice>,
    refusals: Vec<(RowRange, Refusal)>,
    larger: Vec<(RowRange, String, LargerItems)>,
}

/// Range of row counts that ends with an entry of [`ROW_COUNTS`].
#[derive(Clone, Copy)]
struct RowRange {
    first: u32,
    last: u32,
}

impl RowRange {
    /// Returns the range of row counts that ends with `last`. The range begins after the count
    /// before `last` in [`ROW_COUNTS`].
    fn up_to(last: u32) -> RowRange {
        let before = ROW_COUNTS.iter().filter(|&&rows| rows < last).max();
        RowRange { first: before.map_or(1, |rows| rows + 1), last }
    }

    /// Returns the range as text after a kernel's name.
    fn text(self) -> String {
        match (self.first, self.last) {
            (1, u32::MAX) => String::new(),
            (first, u32::MAX) => format!(" from {first} rows"),
            (first, last) if first == last => format!(" for {}", count_text(first.into(), "row")),
            (1, last) => format!(" up to {last} rows"),
            (first, last) => format!(" for {first} to {last} rows"),
        }
    }
}

/// Selects the kernels of an op for any number of rows.
///
/// # Errors
/// [`ScheduleError::NoKernel`] with the reason against each candidate, if none accepts.
pub(super) fn select(op: &'static str, request: &AttentionRequest) -> Result<Selection, ScheduleError> {
    let mut selection = Selection { choices: Vec::new(), refusals: Vec::new(), larger: Vec::new() };
    for last in ROW_COUNTS {
        let (request, rows) = (AttentionRequest { rows: last, ..*request }, RowRange::up_to(last));
        let (mut taken, mut refusals) = (None::<KernelOffer>, Vec::new());
        for candidate in CANDIDATES {
            let reason = match (candidate.accepts(&request), &taken) {
                (Ok(accepted), None) => {
                    taken = Some(accepted);
                    continue;
                }
                (Ok(_), Some(taken)) => Reason::Preferred(taken.why),
                (Err(reason), _) => reason,
            };
            refusals.push(Refusal { kernel: candidate.kernel, reason });
        }
        let Some(taken) = taken else { return Err(ScheduleError::NoKernel { op, refusals }) };
        selection.refusals.extend(refusals.into_iter().map(|refusal| (rows, refusal)));
        selection.take(taken, rows, &request.heads)?;
    }
    Ok(selection)
}

impl Selection {
    /// Adds an accepted kernel for a range of row counts.
    fn take(&mut self, taken: KernelOffer, rows: RowRange, heads: &Heads) -> Result<(), ScheduleError> {
        let KernelOffer { spec, row_chunk, division, larger, .. } = taken;
        self.larger.extend(larger.map(|larger| (rows, spec.name(), larger)));
        match self.choices.last_mut() {
            Some(before) if before.spec == spec && before.row_chunk == row_chunk => before.up_to_rows = rows.last,
            _ => {
                let choice = KernelChoice { up_to_rows: rows.last, ..KernelChoice::by_chunks(row_chunk, spec) };
                self.choices.push(with_division(choice, division, heads)?);
            }
        }
        Ok(())
    }

    /// Returns the reason against each candidate, and the row counts that it applies to.
    pub(super) fn rejected_candidates(&self) -> Vec<RejectedAlternative> {
        let mut all: Vec<RejectedAlternative> = Vec::new();
        for candidate in CANDIDATES {
            let of = self.refusals.iter().filter(|(_, refusal)| refusal.kernel == candidate.kernel);
            let mut ranges: Vec<(RowRange, Reason)> = Vec::new();
            for &(rows, Refusal { reason, .. }) in of {
                match ranges.last_mut() {
                    Some((before, same)) if *same == reason && before.last + 1 == rows.first => before.last = rows.last,
                    _ => ranges.push((rows, reason)),
                }
            }
            let text = |(rows, reason): (RowRange, Reason)| {
                RejectedAlternative::new(format!("{}{}", candidate.kernel, rows.text()), reason.to_string())
            };
            all.extend(ranges.into_iter().map(text));
        }
        let larger = self.larger.iter().map(|(rows, kernel, LargerItems { row_chunk, why })| {
            RejectedAlternative::new(
                format!("{kernel} by {}{}", count_text((*row_chunk).into(), "row"), rows.text()),
                *why,
            )
        });
        all.extend(larger);
        all
    }
}

/// Returns the choice with its items divided into parts.
fn with_division(choice: KernelChoice, division: ItemDivision, heads: &Heads) -> Result<KernelChoice, ScheduleError> {
    Ok(match division {
        ItemDivision::Whole => choice,
        ItemDivision::Positions { division, combine } => {
            let leaves = Leaves::Result;
            let parts = Parts { part: "part", result: "y", division, every: 1, leaves, combine };
            KernelChoice { parts: Some(parts), ..choice }
        }
        ItemDivision::Heads { group, spec } => {
            let signature = spec.signature();
            let elements = [("q", heads.d), ("y", heads.dv), ("sinks", 1), ("slopes", 1)];
            let strides = elements
                .into_iter()
                .filter(|(buffer, _)| signature.buffer(buffer).is_some())
                .map(|(buffer, n)| Ok((buffer, row_bytes(Format::F32, u64::from(group) * u64::from(n))?)))
                .collect::<Result<_, ScheduleError>>()?;
            let count = u64::from(heads.group / group.max(1));
            KernelChoice { bands: Some(NamedBands { count, spec, strides }), ..choice }
        }
    })
}
