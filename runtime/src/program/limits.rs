//! Limits on the lengths of a plan's lists. They are checked first, before tables are made from the
//! lists.
//!
//! The known model with most layers has 126 (Llama 3.1 405B). The known model with most experts has
//! some 60 layers of 256 experts. Plans may have up to [`MAX_LAYERS`] layers. For each layer, the
//! limits are at least twice the numbers in the plan of any known architecture.

use ixc_ir::kernel::{Kernel, Stmt};
use ixc_ir::plan::{Plan, Step};

use super::{MAX_PAIRS, Problem, range};

/// Maximum number of layers: thirty times the largest known number.
pub const MAX_LAYERS: u64 = 4096;
/// Maximum number of routings (lists of tokens by expert) of all layers. A layer has two routings
/// if some of its experts are deferred to the next layer. Each routing has separate memory.
const MAX_ROUTINGS: u64 = 2 * MAX_LAYERS;
/// Maximum number of experts that a token is routed to, summed over all layers. Each of them takes
/// eight bytes for each token of a step.
const MAX_ROUTED: u64 = 1 << 15;
/// Maximum number of steps; threads meet after each step. A layer has up to 15 steps.
const MAX_STEPS: u64 = 32 * MAX_LAYERS;
/// Maximum number of tasks; a layer has up to 20.
const MAX_TASKS: u64 = 40 * MAX_LAYERS;
/// Maximum number of kernel variants of a task. The number of rows selects one of them; known plans
/// have up to five.
const MAX_VARIANTS: u64 = 16;
/// Maximum number of weights; a layer has up to 16.
const MAX_WEIGHTS: u64 = 32 * MAX_LAYERS;
/// Maximum number of buffers in the arena; a layer has up to 20.
const MAX_ARENA_BUFFERS: u64 = 40 * MAX_LAYERS;
/// Maximum number of kernels. Kernels differ by shape and format, not by layer; plans have some
/// fifty.
const MAX_KERNELS: u64 = 4096;
/// Maximum number of statements of all kernels together. Plans have some twenty thousand. The
/// number determines the time of generating code.
const MAX_STATEMENTS: u64 = 1 << 19;
/// Maximum number of model files; the largest models have some two hundred.
const MAX_FILES: u64 = 4096;
/// Maximum number of states; a layer has up to two.
const MAX_STATES: u64 = 2 * MAX_LAYERS;
/// Maximum number of columns (heads) of a state's field with positions. Known models have up to 128
/// columns.
const MAX_HEADS: u64 = 4096;
/// Maximum number of columns of all states together, in fields with positions.
const MAX_ALL_HEADS: u64 = 1 << 19;
/// Maximum number of fields of a state.
const MAX_FIELDS: u64 = 4;
/// Maximum number of experts of all groups together.
const MAX_BLOCKS: u64 = 1 << 20;

/// Checks that no list of a plan is longer than its limit.
pub(super) fn check(plan: &Plan<Kernel>) -> Result<(), Problem> {
    let count = |of: &dyn Fn(&Step) -> usize| plan.steps.iter().map(of).sum::<usize>() as u64;
    let tasks = |step: &Step| if let Step::Run { tasks, .. } = step { tasks.len() } else { 0 };
    let sum = |numbers: &mut dyn Iterator<Item = u32>| numbers.map(u64::from).fold(0, u64::saturating_add);
    let fields = || plan.states.iter().flat_map(|state| &state.fields);
    let heads = || fields().filter(|field| field.positions).map(|field| field.columns);
    let counts = [
        ("number of model files", plan.files.len() as u64, MAX_FILES),
        ("number of weights", plan.weights.len() as u64, MAX_WEIGHTS),
        ("number of groups of experts", plan.expert_groups.len() as u64, MAX_LAYERS),
        ("number of experts of all groups", sum(&mut plan.expert_groups.iter().map(|g| g.experts)), MAX_BLOCKS),
        (
            "number of pairs of all rotary tables",
            plan.ropes
                .iter()
                .map(|t| (t.frequencies.len() + t.long.as_ref().map_or(0, |l| l.frequencies.len())) as u64)
                .sum(),
            MAX_PAIRS as u64,
        ),
        ("number of states", plan.states.len() as u64, MAX_STATES),
        (
            "number of a state's fields",
            plan.states.iter().map(|s| s.fields.len() as u64).max().unwrap_or(0),
            MAX_FIELDS,
        ),
        ("number of heads of a state", heads().map(u64::from).max().unwrap_or(0), MAX_HEADS),
        ("number of heads of all states", sum(&mut heads()), MAX_ALL_HEADS),
        ("number of buffers", plan.buffers.len() as u64, MAX_ARENA_BUFFERS),
        ("number of kernels", plan.kernels.len() as u64, MAX_KERNELS),
        ("number of statements of all kernels", plan.kernels.iter().map(|k| statements(&k.body)).sum(), MAX_STATEMENTS),
        ("number of steps", plan.steps.len() as u64, MAX_STEPS),
        ("number of tasks", count(&tasks), MAX_TASKS),
        ("number of routings", count(&|step| usize::from(matches!(step, Step::Bucket { .. }))), MAX_ROUTINGS),
        ("number of requests", count(&|step| usize::from(matches!(step, Step::Request { .. }))), MAX_ROUTINGS),
        ("number of predictions", count(&|step| usize::from(matches!(step, Step::Predict { .. }))), MAX_ROUTINGS),
        (
            "number of experts that a token is routed to",
            sum(&mut plan
                .steps
                .iter()
                .filter_map(|s| if let Step::Bucket { top_k, .. } = s { Some(*top_k) } else { None })),
            MAX_ROUTED,
        ),
        ("number of variants of a task", count_variants(plan), MAX_VARIANTS),
    ];
    counts.into_iter().try_for_each(|(what, found, max)| range(what, found, 0, max))
}

/// Returns the largest number of variants that a task has.
fn count_variants(plan: &Plan<Kernel>) -> u64 {
    let tasks = plan.steps.iter().flat_map(|step| if let Step::Run { tasks, .. } = step { &tasks[..] } else { &[] });
    tasks.map(|task| task.variants.len() as u64).max().unwrap_or(0)
}

/// Returns the number of statements, including those in loops. The recursion is safe, because the
/// decoder limits the depth of loops.
fn statements(body: &[Stmt]) -> u64 {
    let inner = |stmt: &Stmt| if let Stmt::For(each) = stmt { statements(&each.body) } else { 0 };
    body.iter().map(|stmt| 1 + inner(stmt)).sum()
}
