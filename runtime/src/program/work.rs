//! Work of a plan for one token: an upper bound for the executed kernel statements, and a limit
//! that a plan may not exceed.
//!
//! The bound is computed without running a kernel. Trip counts of loops are affine in the kernel's
//! dims, and dims are expressions over inputs with known ranges. So each task has a maximum number
//! of executed statements. A task has variants for different numbers of rows. For each variant, the
//! statements per row are computed for the smallest and the largest number of rows.
//!
//! ```text
//! 512 tokens on 2048 outputs by a q4_k weight of 2048 columns
//! one row      64 columns of 32 rows x 8 blocks x some 200 statements     per token: 100,000
//! bytes        2048 * 2048 * 4.5 / 8 = 2.4 MB                             limit:   2,400,000 * 16
//! ```
//!
//! The limit is computed from bytes. A model reads each byte of its weights at most once for a
//! token. Only weights that tasks use count, and each byte of a file counts once. A model reads
//! each byte of its states at most once for each query head, and each byte of its buffers a few
//! times. A plan beyond the limit does work that no model needs, and could occupy the machine for
//! years.
//!
//! Invariant: the bound is at least the number of statements of any step, divided by its tokens.
//! There is one exception: rows are rounded up to chunks (a factor below 2).

use std::collections::HashMap;
use std::ops::RangeInclusive;

use ixc_ir::kernel::{Affine, Atom, Kernel, Stmt};
use ixc_ir::plan::{
    ATTENTION_BLOCK, DimExpr, DimInput, KernelId, Plan, RowAxis, RowCount, Source, Step, Task, Variant, WeightFile,
};

use super::ranks::FLOAT_BYTES;
use super::{PlanError, Problem, at};

/// Maximum statements per token and byte of the weights. Models need less than one.
const FOR_WEIGHT_BYTE: u64 = 16;
/// Maximum statements per token and byte of the states of a full context. Most models need some
/// ten, and 128 query heads on one latent key need some 700. The bound is up to 16 times too high,
/// because each part of a row is counted like the whole row.
const FOR_STATE_BYTE: u64 = 4096;
/// Maximum statements per token and byte of the buffers of one row. Models need some ten.
const FOR_BUFFER_BYTE: u64 = 256;
/// Maximum statements per token and task, in addition to those for its bytes.
const FOR_TASK: u64 = 4096;
/// Maximum number of trip counts that are evaluated in a check. Plans of large models need some
/// hundred thousand.
const MAX_EVALUATIONS: u64 = 1 << 24;

/// A loop nest of a kernel. `statements` are those of one iteration of its innermost loop, without
/// those of inner loops whose trip counts depend on dims.
struct Nest {
    /// Trip counts of the loops, outermost first.
    trips: Vec<Affine>,
    statements: u64,
}

/// Range of the values of a dim in a call, with both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct DimRange {
    lo: i64,
    hi: i64,
}

/// Work of a plan for one token, and its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenWork {
    /// Statements of all kernels for one token with a full context.
    pub statements: u64,
    /// Maximum number of statements for the plan's weights, states, buffers and tasks.
    pub limit: u64,
}

/// Counts the work of a checked plan for one token with a full context, and compares it with the
/// limit.
///
/// # Errors
/// Fails if the plan exceeds the limit, or if counting would take too long.
pub fn check(plan: &Plan<Kernel>, context: u32) -> Result<TokenWork, PlanError> {
    let work = at(&"plan", count(plan, context.saturating_add(ATTENTION_BLOCK)))?;
    match work.statements <= work.limit {
        true => Ok(work),
        false => at(&"plan", Err(Problem::Work { found: work.statements, max: work.limit, context })),
    }
}

/// Counts the work of a plan, and computes its limit. The memory of the states has room for
/// `capacity` positions.
fn count(plan: &Plan<Kernel>, capacity: u32) -> Result<TokenWork, Problem> {
    let mut counter = Counter {
        plan,
        capacity: u64::from(capacity).max(1),
        nests: plan.kernels.iter().map(nests).collect(),
        calls: HashMap::new(),
        evaluations: 0,
    };
    let (mut statements, mut tasks, mut top_k) = (0u64, 0u64, HashMap::new());
    for step in &plan.steps {
        match step {
            Step::Bucket { bucket, top_k: count, .. } => drop(top_k.insert(*bucket, u64::from(*count))),
            Step::Run { tasks: of_step, .. } => {
                for task in of_step {
                    let rows = match task.rows {
                        RowAxis::Tokens | RowAxis::Outputs => 1,
                        RowAxis::Routed(bucket) => top_k.get(&bucket).copied().unwrap_or(1),
                    };
                    statements = statements.saturating_add(counter.task(task, rows)?);
                    tasks += 1;
                }
            }
            // A sum over ranks adds the floats of each rank, so these additions are counted.
            Step::Exchange(exchange) => {
                let ranks = u64::from(plan.ranks.map_or(1, |ranks| ranks.ranks));
                let result = exchange.result().and_then(|result| plan.buffers.get(result.0 as usize));
                let floats = result.map_or(0, |result| result.row_bytes / FLOAT_BYTES);
                statements = statements.saturating_add(floats.saturating_mul(ranks));
                tasks += 1;
            }
            Step::Request { .. } | Step::Predict { .. } | Step::Release { .. } => {}
        }
    }
    let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0, u64::saturating_add);
    let weights = weight_bytes(plan);
    // The bound assumes a full context also for sliding windows, so the limit does the same.
    let states = sum(&mut plan.states.iter().filter_map(|state| state.bytes(capacity)));
    let buffers = sum(&mut plan.buffers.iter().map(|buffer| match buffer.rows {
        RowCount::Tokens | RowCount::Outputs => buffer.row_bytes,
        RowCount::Routed { top_k } => buffer.row_bytes.saturating_mul(top_k.into()),
    }));
    let terms = [(weights, FOR_WEIGHT_BYTE), (states, FOR_STATE_BYTE), (buffers, FOR_BUFFER_BYTE), (tasks, FOR_TASK)];
    let limit = sum(&mut terms.iter().map(|(number, each)| number.saturating_mul(*each)));
    Ok(TokenWork { statements, limit })
}

/// Byte range of weights in a file, and their length in the kernels' format.
struct Span {
    /// Kind and number of the file; weights in blocks lie in the plan file.
    file: (u8, u32),
    begin: u64,
    end: u64,
    bytes: u64,
}

/// Returns the bytes of the weights that tasks use, in the kernels' format. Each byte of a file is
/// counted once.
fn weight_bytes(plan: &Plan<Kernel>) -> u64 {
    let mut is_used = vec![false; plan.weights.len()];
    let tasks = plan.steps.iter().flat_map(|step| if let Step::Run { tasks, .. } = step { &tasks[..] } else { &[] });
    for arg in tasks.flat_map(|task| &task.args) {
        if let Source::Weight(number) = arg.source
            && let Some(is_used) = is_used.get_mut(number as usize)
        {
            *is_used = true;
        }
    }
    let span = |number: usize| {
        let weight = plan.weights.get(number).filter(|_| is_used[number])?;
        let file = match weight.file {
            WeightFile::Source(file) => (0, file),
            WeightFile::Plan | WeightFile::Blocks { .. } => (1, 0),
            WeightFile::Derived(derived) => (2, derived),
        };
        let end = weight.offset.saturating_add(weight.span()?);
        Some(Span { file, begin: weight.offset, end, bytes: weight.bytes_in(weight.format)? })
    };
    let is_in_blocks = |number: &usize| matches!(plan.weights[*number].file, WeightFile::Blocks { .. });
    let mut spans: Vec<Span> =
        (0..plan.weights.len()).filter(|number| !is_in_blocks(number)).filter_map(span).collect();
    // The matrices of a group alternate in its blocks, so the blocks of a group are a single range.
    spans.extend(plan.expert_groups.iter().filter_map(|group| {
        let weights = group.weights.iter().map(|number| *number as usize);
        let weights = weights.filter(|number| *number < plan.weights.len()).filter(is_in_blocks);
        weights.filter_map(span).reduce(|all, one| Span {
            begin: all.begin.min(one.begin),
            end: all.end.max(one.end),
            bytes: all.bytes.saturating_add(one.bytes),
            ..all
        })
    }));
    spans.sort_by_key(|span| (span.file, span.begin, span.end));
    let (mut sum, mut file, mut covered) = (0u64, None, 0);
    for span in spans.iter().filter(|span| span.begin < span.end) {
        if file != Some(span.file) {
            (file, covered) = (Some(span.file), 0);
        }
        let new = span.end.saturating_sub(span.begin.max(covered));
        let share = u128::from(span.bytes) * u128::from(new) / u128::from(span.end - span.begin);
        sum = sum.saturating_add(u64::try_from(share).unwrap_or(u64::MAX));
        covered = covered.max(span.end);
    }
    sum
}

/// Counter of the work of tasks.
struct Counter<'p> {
    plan: &'p Plan<Kernel>,
    /// Number of positions of a full context.
    capacity: u64,
    /// Loop nests of each kernel.
    nests: Vec<Vec<Nest>>,
    /// Cache of the statements of calls, by kernel and dim ranges.
    calls: HashMap<(KernelId, Vec<DimRange>), u64>,
    /// Number of trip counts that were evaluated so far.
    evaluations: u64,
}

/// The items of a task for some number of rows.
#[derive(Clone, Copy)]
struct Items {
    /// Number of rows of an item.
    rows: u64,
    /// Number of items for each column.
    count: u64,
}

impl Counter<'_> {
    /// Returns the statements of a task for one token, which has `rows` rows in the task.
    fn task(&mut self, task: &Task, rows: u64) -> Result<u64, Problem> {
        let max_rows = u64::from(self.plan.max_tokens).saturating_mul(rows);
        let (mut first, mut max) = (1u64, 0);
        for variant in &task.variants {
            let last = u64::from(variant.up_to_rows).min(max_rows);
            // One row is also counted: if positions are divided, or an index chooses positions,
            // each row is a separate item in any variant.
            for of_step in [1, first, last].into_iter().filter(|rows| *rows <= max_rows) {
                let chunk = u64::from(variant.row_chunk).clamp(1, of_step.max(1));
                let items = Items { rows: chunk, count: of_step.div_ceil(chunk) };
                max = max.max(self.items(task, variant, items)?.div_ceil(of_step.max(1)));
            }
            first = last.saturating_add(1);
        }
        Ok(max.saturating_mul(rows))
    }

    /// Returns the statements of the given items, in all columns of a task.
    fn items(&mut self, task: &Task, variant: &Variant, items: Items) -> Result<u64, Problem> {
        let parts = variant.split.map_or(1, |split| u64::from(split.division.parts.max(1)));
        let input = Inputs { rows: items.rows, bands: 1, parts };
        let mut each = self.call(variant.kernel, &variant.dims, input)?.saturating_mul(parts);
        if let Some(bands) = &variant.bands {
            let input = Inputs { bands: bands.count.into(), ..input };
            let banded = self.call(bands.kernel, &bands.dims, input)?;
            each = each.max(banded.saturating_mul(bands.count.into()));
        }
        if let Some(split) = variant.split {
            // The only dim of a `combine` kernel is the number of parts, or the number of blocks of
            // a full context.
            let blocks = self.capacity.div_ceil(ATTENTION_BLOCK.into()).max(parts);
            let dims = self.kernel(split.combine).map_or(0, |kernel| kernel.dims.len());
            let ranges = vec![DimRange { lo: 0, hi: i64::try_from(blocks).unwrap_or(i64::MAX) }; dims];
            each = each.saturating_add(self.call_statements(split.combine, ranges)?);
        }
        Ok(each.saturating_mul(items.count).saturating_mul(task.columns.into()))
    }

    fn kernel(&self, id: KernelId) -> Option<&Kernel> {
        self.plan.kernels.get(id.0 as usize)
    }

    /// Returns the statements of a kernel call for an item with the given inputs.
    fn call(&mut self, id: KernelId, dims: &[DimExpr], inputs: Inputs) -> Result<u64, Problem> {
        let mut ranges = Vec::with_capacity(dims.len());
        for dim in dims {
            let range = dim.range(|input| inputs.range(input, self.plan, self.capacity))?;
            let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
            ranges.push(DimRange { lo: number(*range.start()), hi: number(*range.end()) });
        }
        self.call_statements(id, ranges)
    }

    /// Returns the maximum statements of a kernel call whose dims are in these ranges.
    fn call_statements(&mut self, id: KernelId, mut ranges: Vec<DimRange>) -> Result<u64, Problem> {
        let Some(kernel) = self.kernel(id) else { return Ok(0) };
        // Values outside the kernel's declared range are ignored, because such a call fails when it
        // runs.
        for (range, dim) in ranges.iter_mut().zip(&kernel.dims) {
            *range = DimRange { lo: range.lo.clamp(dim.lo, dim.hi), hi: range.hi.clamp(dim.lo, dim.hi) };
        }
        if let Some(known) = self.calls.get(&(id, ranges.clone())) {
            return Ok(*known);
        }
        let mut sum = 0u64;
        for nest in &self.nests[id.0 as usize] {
            self.evaluations += 1 + nest.trips.len() as u64;
            let times = nest.trips.iter().map(|trip| most(trip, &ranges)).fold(1, u64::saturating_mul);
            sum = sum.saturating_add(times.saturating_mul(nest.statements));
        }
        super::range("loops of all calls", self.evaluations, 0, MAX_EVALUATIONS)?;
        self.calls.insert((id, ranges), sum);
        Ok(sum)
    }
}

/// Upper bounds of an item's inputs: rows, bands and parts.
#[derive(Clone, Copy)]
struct Inputs {
    rows: u64,
    bands: u64,
    parts: u64,
}

impl Inputs {
    fn range(self, input: DimInput, plan: &Plan<Kernel>, capacity: u64) -> RangeInclusive<u64> {
        let blocks = capacity.div_ceil(ATTENTION_BLOCK.into());
        let max = match input {
            DimInput::Rows => self.rows,
            DimInput::Band => self.bands - 1,
            DimInput::Tokens | DimInput::Outputs => plan.max_tokens.into(),
            DimInput::Capacity
            | DimInput::First
            | DimInput::Last
            | DimInput::WindowBegin
            | DimInput::Position
            | DimInput::TextEnd => capacity,
            DimInput::PartBegin | DimInput::Skipped => blocks,
            // The end of the last part of the positions may lie after the last position.
            DimInput::PartEnd => input.row().max,
            DimInput::Parts => self.parts,
        };
        0..=max
    }
}

/// Returns the loop nests of a kernel.
fn nests(kernel: &Kernel) -> Vec<Nest> {
    let mut nests = Vec::new();
    add_nests(&kernel.body, &mut Vec::new(), 1, &mut nests);
    nests
}

/// Adds the loop nest of a block of statements, and those of its loops. The block is executed
/// `times` times by loops with constant trip counts, which do not form nests of their own.
fn add_nests(body: &[Stmt], trips: &mut Vec<Affine>, times: u64, nests: &mut Vec<Nest>) {
    // A call or a loop iteration counts as one statement, because an empty loop takes time, too.
    let mut own = 1u64;
    for stmt in body {
        own = own.saturating_add(1);
        let Stmt::For(each) = stmt else { continue };
        match each.trip.as_constant() {
            Some(trip) => {
                let times = times.saturating_mul(u64::try_from(trip).unwrap_or(0));
                add_nests(&each.body, trips, times, nests);
            }
            None => {
                trips.push(each.trip.clone());
                add_nests(&each.body, trips, times, nests);
                trips.pop();
            }
        }
    }
    let statements = own.saturating_mul(times);
    match nests.last_mut().filter(|last| last.trips == *trips) {
        Some(last) => last.statements = last.statements.saturating_add(statements),
        None => nests.push(Nest { trips: trips.clone(), statements }),
    }
}

/// Returns the largest value of a trip count over the ranges of the dims; 0 if that value is
/// negative.
fn most(trip: &Affine, ranges: &[DimRange]) -> u64 {
    let term = |(atom, coefficient): &(Atom, i64)| match atom {
        Atom::Dim(dim) => {
            let DimRange { lo, hi } = ranges.get(dim.index()).copied().unwrap_or(DimRange { lo: 0, hi: 0 });
            i128::from(*coefficient) * i128::from(if *coefficient < 0 { lo } else { hi })
        }
        // The verifier allows only dims in trip counts.
        Atom::Var(_) => 0,
    };
    let value = i128::from(trip.constant) + trip.terms.iter().map(term).sum::<i128>();
    u64::try_from(value.max(0)).unwrap_or(u64::MAX)
}
