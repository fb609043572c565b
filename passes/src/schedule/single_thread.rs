//! Tasks that are not worth sharing between threads: one thread finishes them before all threads
//! could meet at a barrier.
//!
//! With one token, a norm is one item, and all other threads wait for it. If one thread runs the
//! item at the previous barrier, where the threads wait anyway, no second barrier is needed. If a
//! task has several items, running it on one thread loses parallelism, because other threads could
//! compute all but one of the items. The rule is therefore
//!
//! ```text
//! bytes of all items with n rows, less those of one item     at most    bytes that a thread gets through while threads meet
//! ```
//!
//! This module computes the largest such `n` for a task, or 0 if even a single row is worth
//! sharing. The bytes are those that items read and write, according to the strides of the task's
//! arguments, plus a constant for the call. Bytes that the items of a row or a token share count
//! once. The bytes of an item that reads the positions of a context have no bound, so its task is
//! always shared.
//!
//! ```text
//! rms_norm of 2048 f32 to a8_super      one item, 13.3 KiB a row: with 40 KiB, up to 4 rows
//! gather of that row for 8 experts      8 items, 4.8 KiB each, of the same row: with 1 row
//! router of 128 experts                 8 items, 130 KiB each: never
//! ```

use ixc_ir::plan::{ArenaBuffer, Arg, Plan, RopeTable, RowAxis, Source, Task};
use ixc_kernels::KernelSpec;
use ixc_kernels::generator::signature::{Buffer, BufferContents, Role};

/// Cost of a kernel call in bytes. Without reading data, evaluating sizes, slicing buffers and
/// checks take 0.1 µs.
const CALL_BYTES: u64 = 2 << 10;

/// Bytes that tasks access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    /// Bytes that tasks access for each row of a step.
    row: u64,
    /// Bytes that tasks access once in a step, for any number of rows.
    once: u64,
    /// Bytes of the item that accesses the most.
    item: u64,
}

/// Bytes of an argument that items access.
#[derive(Clone, Copy)]
enum AccessedBytes {
    /// Bytes that each item accesses.
    Item(u64),
    /// Bytes of a row, which the items of all columns access.
    Row(u64),
    /// Bytes that all items of a token access.
    Token(u64),
    /// Bytes that all items of a step access.
    Step(u64),
}

impl Effort {
    /// Returns the bytes that a task accesses; `None` if there is no bound.
    pub fn from_task(plan: &Plan<KernelSpec>, task: &Task) -> Option<Effort> {
        let variant = task.variants.first()?;
        let buffers = plan.kernels.get(variant.kernel.0 as usize)?.signature().buffers;
        // With routing, a token has several rows.
        let rows = match task.rows {
            RowAxis::Tokens | RowAxis::Outputs => 1,
            RowAxis::Routed(_) => arena(plan, task).map(|buffer| buffer.rows.most(1, 1)).max().unwrap_or(1),
        };
        let bands = variant.bands.as_ref().map_or(1, |bands| u64::from(bands.count.max(1)));
        let items = rows.saturating_mul(task.columns.into()).saturating_mul(bands);
        let (mut effort, mut own) = (Effort::default(), CALL_BYTES);
        for (arg, buffer) in task.args.iter().zip(&buffers) {
            match accessed_bytes(plan, arg, buffer, bands)? {
                AccessedBytes::Item(bytes) => own = own.saturating_add(bytes),
                AccessedBytes::Row(bytes) => {
                    effort.row = effort.row.saturating_add(bytes.saturating_mul(rows));
                    effort.item = effort.item.saturating_add(bytes);
                }
                AccessedBytes::Token(bytes) => {
                    effort.row = effort.row.saturating_add(bytes);
                    effort.item = effort.item.saturating_add(bytes);
                }
                AccessedBytes::Step(bytes) => {
                    effort.once = effort.once.saturating_add(bytes);
                    effort.item = effort.item.saturating_add(bytes);
                }
            }
        }
        effort.row = effort.row.saturating_add(own.saturating_mul(items));
        effort.item = effort.item.saturating_add(own);
        Some(effort)
    }

    /// Returns the bytes of this task and another task together.
    #[must_use]
    pub fn and(self, other: Effort) -> Effort {
        Effort {
            row: self.row.saturating_add(other.row),
            once: self.once.saturating_add(other.once),
            item: self.item.max(other.item),
        }
    }

    /// Returns the maximum rows, up to `rows`, for which one thread computes the tasks alone.
    /// `meeting` is the number of bytes that a thread processes in the time of a barrier.
    pub fn rows(self, meeting: u64, rows: u32) -> u32 {
        let spare = meeting.saturating_add(self.item).saturating_sub(self.once);
        let alone = spare.checked_div(self.row).unwrap_or(u64::MAX);
        u32::try_from(alone).map_or(rows, |alone| alone.min(rows))
    }
}

/// Returns the arena buffers of a task.
fn arena<'p>(plan: &'p Plan<KernelSpec>, task: &'p Task) -> impl Iterator<Item = &'p ArenaBuffer> {
    task.args.iter().filter_map(|arg| plan.buffers.get(arg.source.arena()?.0 as usize))
}

/// Returns the bytes that items access through an argument; `None` if there is no bound.
fn accessed_bytes(plan: &Plan<KernelSpec>, arg: &Arg, buffer: &Buffer, bands: u64) -> Option<AccessedBytes> {
    if arg.column_stride > 0 {
        return Some(AccessedBytes::Item(arg.column_stride / bands));
    }
    if arg.row_stride > 0 {
        return Some(AccessedBytes::Row(arg.row_stride));
    }
    Some(match arg.source {
        Source::Arena(id) => {
            let buffer = plan.buffers.get(id.0 as usize)?;
            AccessedBytes::Token(buffer.row_bytes.saturating_mul(buffer.rows.most(1, 1)))
        }
        Source::Weight(id) => {
            let weight = plan.weights.get(id as usize)?;
            match buffer.holds {
                BufferContents::Table(format, _) => AccessedBytes::Item(format.row_bytes(*weight.shape.last()?)?),
                BufferContents::Weight(..)
                | BufferContents::Strip(..)
                | BufferContents::Activations(..)
                | BufferContents::Floats
                | BufferContents::Positive
                | BufferContents::Negative
                | BufferContents::Slopes
                | BufferContents::Halves
                | BufferContents::Panels(_)
                | BufferContents::Positions
                | BufferContents::Whole
                | BufferContents::Ids
                | BufferContents::Bytes => match arg.expert_stride {
                    0 => AccessedBytes::Step(weight.bytes),
                    expert => AccessedBytes::Item(expert / bands),
                },
            }
        }
        Source::Rope(id) => {
            let RopeTable { style, frequencies, .. } = plan.ropes.get(id as usize)?;
            AccessedBytes::Row(style.row_bytes(u32::try_from(frequencies.len() * 2).ok()?))
        }
        Source::State { state, field } => {
            let field = plan.states.get(state as usize)?.fields.get(field as usize)?;
            match buffer.role {
                // The kernel reads all earlier positions of the context, without a bound.
                Role::Read if field.positions => return None,
                Role::Read | Role::Index | Role::Write | Role::Update | Role::Scratch => {
                    AccessedBytes::Item(field.row_bytes()?)
                }
            }
        }
        // The kernel reads chosen earlier positions of the context, without a bound.
        Source::Chosen { .. } => return None,
        Source::Scratch | Source::Input(_) => AccessedBytes::Row(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    #[test]
    fn sharing_saves_all_but_one_item() {
        let norm = Effort { row: 13 * KIB, once: 8 * KIB, item: 21 * KIB };
        // A single item cannot be shared, so one thread runs it regardless of its time.
        assert_eq!(norm.rows(0, 100), 1);
        assert_eq!([38, 39, 40].map(|meeting| norm.rows(meeting * KIB, 100)), [3, 4, 4]);
        assert_eq!(norm.rows(40 * KIB, 2), 2);
        // Even if threads share the tasks, one thread runs the longest item. Its bytes are
        // therefore not counted.
        let both = norm.and(Effort { row: 5 * KIB, once: 0, item: 5 * KIB });
        assert_eq!([4, 5].map(|meeting| both.rows(meeting * KIB, 100)), [0, 1]);
        let router = Effort { row: 8 * 130 * KIB, once: 0, item: 130 * KIB };
        assert_eq!(router.rows(40 * KIB, 100), 0);
        let without_bound = Effort { row: u64::MAX, once: u64::MAX, item: u64::MAX };
        assert_eq!(without_bound.and(norm).rows(u64::MAX, 100), 0);
    }
}
