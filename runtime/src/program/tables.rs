//! The checks of a plan's tables: derived tensors, weights, rotary tables, states, buffers and
//! routings.

use ixc_ir::derived::Derivation;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{
    ATTENTION_BLOCK, ArenaBuffer, BufferId, Plan, PlanWeight, RopeTable, RowCount, State, StateField, Step, WeightFile,
};
use ixc_ir::state::FieldRow;

use super::{Ids, MAX_CONTEXT, MAX_EXPERTS, MAX_PAIRS, Problem, Result, Routing, at, id, range};
use crate::storage::pack;

/// Shortens a name to at most 100 characters, for an error message.
pub(crate) fn shorten(name: &str) -> String {
    if name.chars().nth(100).is_some() {
        name.chars().take(97).chain("...".chars()).collect()
    } else {
        name.to_string()
    }
}

/// Sizes of a derived tensor: of its result, and of the stored bytes that it is made from.
pub(super) struct DerivedSizes {
    bytes: u64,
    stored: Option<u64>,
}

/// Checks the derived tensors. Each is checked only once, because many weights may use the same
/// tensor.
pub(super) fn check_derived(plan: &Plan<Kernel>) -> Result<Vec<DerivedSizes>> {
    let lengths: Vec<u64> = plan.files.iter().map(|file| file.bytes).collect();
    let made = |(number, derived): (usize, &Derivation)| {
        let checked = derived.check(&lengths).map_err(|error| Problem::Derived { error });
        at(&format!("derived tensor {number}"), checked)?;
        Ok(DerivedSizes { bytes: derived.bytes().unwrap_or(0), stored: derived.stored_bytes() })
    };
    plan.derived.iter().enumerate().map(made).collect()
}

pub(super) fn weight(plan: &Plan<Kernel>, made: &[DerivedSizes], weight: &PlanWeight) -> Result<(), Problem> {
    let (what, available) = match weight.file {
        WeightFile::Source(file) => ("its file", id("file", file, &plan.files)?.bytes),
        WeightFile::Plan | WeightFile::Blocks { .. } => ("the weights of the plan", plan.own_weight_bytes),
        WeightFile::Derived(number) => {
            let derived = id("derived tensor", number, &plan.derived)?;
            if derived.format != weight.stored {
                let expected = "expected the derived tensor's format";
                return Err(Problem::Stored { format: weight.format, stored: weight.stored, expected });
            }
            if weight.shape.last() != Some(&derived.columns) {
                return Err(Problem::Blocks { shape: weight.shape.clone(), format: weight.stored });
            }
            ("a derived tensor", made.get(number as usize).map_or(0, |made| made.bytes))
        }
    };
    let (format, stored) = (weight.format, weight.stored);
    if weight.is_packed_at_load() {
        if !pack::makes(stored, format) {
            return Err(Problem::Stored {
                format,
                stored,
                expected: "expected the same format, or one packed or requantised from the other",
            });
        }
        if !matches!(weight.file, WeightFile::Source(_) | WeightFile::Derived(_)) {
            return Err(Problem::Stored {
                format,
                stored,
                expected: "the plan's own weights must be as kernels read them",
            });
        }
    }
    let expected = weight.bytes_in(stored);
    if expected != Some(weight.bytes) {
        return Err(Problem::WeightBytes { found: weight.bytes, expected: expected.unwrap_or(0) });
    }
    if weight.bytes_in(format).is_none() {
        return Err(Problem::Blocks { shape: weight.shape.clone(), format });
    }
    check_inside(what, weight.offset, weight.span(), available)
}

/// Checks that the weights that loading packs or converts have at most as many stored bytes as the
/// model files have.
pub(super) fn packed_at_load(plan: &Plan<Kernel>, made: &[DerivedSizes]) -> Result<(), Problem> {
    let max = plan.files.iter().fold(0u64, |sum, file| sum.saturating_add(file.bytes));
    let stored = |weight: &PlanWeight| match weight.file {
        WeightFile::Derived(number) => made.get(number as usize).and_then(|made| made.stored),
        WeightFile::Source(_) | WeightFile::Plan | WeightFile::Blocks { .. } => Some(weight.bytes),
    };
    let bytes = |wanted: &dyn Fn(&PlanWeight) -> bool| {
        let weights = plan.weights.iter().filter(|weight| wanted(weight));
        weights.fold(0u64, |sum, weight| sum.saturating_add(stored(weight).unwrap_or(u64::MAX)))
    };
    range("bytes to be packed", bytes(&PlanWeight::is_packed_at_load), 0, max)?;
    let is_made = |weight: &PlanWeight| !weight.is_packed_at_load() && matches!(weight.file, WeightFile::Derived(_));
    range("bytes to be made", bytes(&is_made), 0, max)
}

pub(super) fn check_inside(what: &'static str, offset: u64, bytes: Option<u64>, available: u64) -> Result<(), Problem> {
    match bytes.and_then(|bytes| offset.checked_add(bytes)) {
        Some(end) if end <= available => Ok(()),
        _ => Err(Problem::Outside { what, offset, bytes: bytes.unwrap_or(u64::MAX), available }),
    }
}

fn check_rows(rows: RowCount) -> Result<(), Problem> {
    match rows {
        RowCount::Tokens | RowCount::Outputs => Ok(()),
        RowCount::Routed { top_k } => range("experts per token", top_k, 1, MAX_EXPERTS),
    }
}

/// Checks that a rotary table has at least one pair, that its two lists have equal lengths, and
/// that its position step is not 0.
pub(super) fn rope(table: &RopeTable) -> Result<(), Problem> {
    let pairs = table.frequencies.len();
    range("pairs", pairs as u64, 1, MAX_PAIRS as u64)?;
    if let Some(long) = &table.long
        && long.frequencies.len() != pairs
    {
        return Err(Problem::Count { what: "pairs of long contexts", found: long.frequencies.len(), expected: pairs });
    }
    let length = table.temperature.map_or(1, |temperature| temperature.length);
    range("positions of a step", length, 1, u64::from(u32::MAX))
}

/// Checks that a state has a form that its kind allows.
pub(super) fn state(state: &State) -> Result<(), Problem> {
    let row = state.kind.row();
    if state.fields.len() != row.fields.len() {
        return Err(Problem::Count { what: "fields", found: state.fields.len(), expected: row.fields.len() });
    }
    let fits = |(field, row): (&StateField, &FieldRow)| {
        row.formats.contains(&field.format) && field.positions == row.positions && field.row_bytes().is_some()
    };
    if !state.fields.iter().zip(row.fields).all(fits) {
        return Err(Problem::Shape {
            expected: "fields of whole blocks, with the formats and positions of the state's kind",
        });
    }
    if !row.rollbacks.contains(&state.rollback) {
        return Err(Problem::Shape { expected: "a rollback that the state's kind supports" });
    }
    match state.every {
        1 => {}
        every if row.windowed && state.window.is_none() => {
            range("positions of a state's place", every, 1, MAX_CONTEXT)?
        }
        _ => {
            return Err(Problem::Shape { expected: "places of one position, because of the state's kind or window" });
        }
    }
    match state.window {
        Some(_) if !row.windowed => Err(Problem::Shape { expected: "no window in a state of this kind" }),
        Some(window) if state.chunked && !(window.is_power_of_two() && window >= ATTENTION_BLOCK) => {
            Err(Problem::Shape { expected: "chunks whose length is a power of two and at least an attention block" })
        }
        Some(window) => range("a state's window", window, 1, MAX_CONTEXT),
        None if state.chunked => Err(Problem::Shape { expected: "no chunks in a state without a window" }),
        None => Ok(()),
    }
}

pub(super) fn buffer(plan: &Plan<Kernel>, buffer: &ArenaBuffer) -> Result<(), Problem> {
    check_rows(buffer.rows)?;
    let bytes = buffer.row_bytes.checked_mul(buffer.rows.most(plan.max_tokens, plan.output.most(plan.max_tokens)));
    check_inside("the arena", buffer.offset, bytes, plan.arena_bytes)
}

/// Returns the routings of a plan. Each routing must be filled by exactly one step.
pub(super) fn routings(plan: &Plan<Kernel>) -> Result<Vec<Routing>> {
    let mut routings = Vec::new();
    for (i, step) in plan.steps.iter().enumerate() {
        let Step::Bucket { bucket, ids, first, top_k, experts, nobody } = step else { continue };
        let check = || {
            // Routings must be numbered in the order of the steps that fill them, so there are at
            // most as many routings as steps.
            if bucket.0 >= plan.buckets || bucket.0 as usize != routings.len() {
                return Err(Problem::Order { bucket: bucket.0 });
            }
            range("experts", *experts, 1, MAX_EXPERTS)?;
            range("experts per token", *top_k, 1, *experts)?;
            let ids = slots(plan, *ids, *first, *top_k)?;
            let partial = *nobody || plan.expert_layers.iter().any(|layer| layer.ids == ids.buffer);
            Ok(Routing { top_k: *top_k, experts: *experts, ids, partial })
        };
        let routing = at(&format!("step {i}"), check())?;
        routings.push(routing);
    }
    let count =
        Problem::Count { what: "routings that a step fills", found: routings.len(), expected: plan.buckets as usize };
    at(&"plan", if routings.len() == plan.buckets as usize { Ok(()) } else { Err(count) })?;
    Ok(routings)
}

/// Returns the location of `count` ids of each token. They begin at element `first` of each row of
/// a buffer that holds only ids.
pub(super) fn slots(plan: &Plan<Kernel>, ids: BufferId, first: u32, count: u32) -> Result<Ids, Problem> {
    let buffer = id("buffer", ids.0, &plan.buffers)?;
    let end = (u64::from(first) + u64::from(count)) * 4;
    if buffer.rows != RowCount::Tokens || !buffer.row_bytes.is_multiple_of(4) || end > buffer.row_bytes {
        return Err(Problem::Shape { expected: "a buffer with one i32 for each slot of a token" });
    }
    Ok(Ids { buffer: ids, first, stride: buffer.row_bytes / 4 })
}
