//! Computation of the memory that a plan needs, and of the bytes that a budget leaves for experts.
//!
//! ```text
//! process now + weights of every token + arena + states + rotary tables + scratch + spare = fixed
//! budget - fixed = slots for experts, and the trace recorder if there is one
//! ```
//!
//! The memory of the process is measured, and differs by some MiB between runs and between
//! commands. A budget may therefore be [`TOLERANCE_BYTES`] too small. The missing bytes are taken
//! from the spare bytes. So a minimum budget that one command prints is enough for every other
//! command.

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{ATTENTION_BLOCK, Plan};

use super::{DEFAULT_CONTEXT, LoadError, own_memory_layout};
use crate::engine::pins::Pins;
use crate::expert_counts::ExpertCounts;
use crate::experts;
use crate::options::EngineOptions;
use crate::program::{MAX_CONTEXT, Program};
use crate::states::States;
use crate::storage::memory::Rope;
use crate::storage::program_pages;
use crate::streaming::store::{Config, KeptBlocks};
use crate::trace::Recorder;
use crate::watchdog::Watchdog;

/// Bytes of a budget that are reserved for stacks, generated code and tables.
pub const SPARE_BYTES: u64 = 32 << 20;
/// Maximum bytes of needed memory that may exceed a budget; larger excesses are errors.
pub const TOLERANCE_BYTES: u64 = SPARE_BYTES / 4;
/// Bytes of a trace recorder if the budget leaves no room for it.
const MIN_RECORDER_BYTES: u64 = SPARE_BYTES / 8;

/// Returns the resident memory of this process, in bytes, as the system counts it; 0 if the system
/// does not report it.
pub(crate) fn resident_bytes() -> u64 {
    let status = ixc_files::read_system(std::path::Path::new("/proc/self/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// Releases unused pages of the program, then returns the resident bytes of this process. A budget
/// must hold these bytes in addition to the plan's.
pub(crate) fn needed_process_bytes() -> u64 {
    program_pages::release_unused();
    resident_bytes()
}

/// The properties of a run that determine its memory, apart from the plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunSize {
    /// Number of positions allocated in states; a multiple of the attention block.
    pub capacity: u32,
    pub threads: usize,
    /// Maximum number of sequences at the same time, at least 1.
    pub sequences: u32,
    /// Maximum number of additions of a step, beyond one for each sequence.
    pub more_additions: u32,
}

impl RunSize {
    /// Returns the maximum number of additions of a step.
    pub(crate) fn additions(&self) -> u32 {
        self.sequences.saturating_add(self.more_additions)
    }

    /// Returns the run size for a plan and options. Values that loading would refuse are replaced
    /// by the nearest valid value.
    pub(crate) fn new(plan: &Plan<Kernel>, options: &EngineOptions) -> RunSize {
        let max = plan.context_length.min(MAX_CONTEXT);
        let context = match options.context {
            Some(context) => u32::try_from(context).unwrap_or(u32::MAX),
            None => max.min(DEFAULT_CONTEXT),
        };
        let context = context.clamp(1, max.max(1));
        let threads = options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        let (capacity, sequences) = (context.next_multiple_of(ATTENTION_BLOCK), options.sequences.max(1));
        RunSize { capacity, threads, sequences, more_additions: options.more_additions }
    }
}

/// Returns the number of bytes that a run allocates. Not included are blocks of experts, mapped
/// files, a trace recorder, and memory that the process had before.
pub(crate) fn fixed_bytes(program: &Program, plan: &Plan<Kernel>, streamed: Option<&[bool]>, run: &RunSize) -> u64 {
    let ropes = plan.ropes.iter().map(|table| Rope::bytes(table, run.capacity));
    let scratch = program.scratch_bytes.saturating_add(program.chosen_bytes).saturating_mul(run.threads as u64);
    let states = States::bytes(&plan.states, run.capacity, plan.max_tokens);
    let parts = program.part_bytes.saturating_mul(run.additions().into());
    let each = states.saturating_mul(run.sequences.into()).saturating_add(parts);
    let packed = own_memory_layout(&plan.weights, streamed).1;
    let rest = [packed, plan.arena_bytes, each, scratch, program.exchange_bytes, SPARE_BYTES];
    ropes.chain(rest).fold(0, u64::saturating_add)
}

/// Returns the number of bytes that a run takes with all weights in memory: `fixed` plus the
/// weights that stay in mapped files.
pub(crate) fn resident(plan: &Plan<Kernel>, fixed: u64) -> u64 {
    let mapped = plan.weights.iter().filter(|weight| !weight.is_packed_at_load());
    mapped.fold(fixed, |sum, weight| sum.saturating_add(weight.bytes))
}

/// Returns the bytes that the budget leaves for blocks of experts. If no experts are streamed,
/// checks that the budget holds the whole plan, and returns 0.
pub(super) fn budget(
    options: &EngineOptions,
    plan: &Plan<Kernel>,
    fixed: u64,
    layout: Option<&experts::Layout>,
) -> Result<u64, LoadError> {
    let (Some(budget), own) = (options.memory, options.stream.budget) else { return Ok(options.stream.budget) };
    let Some(layout) = layout else {
        let needed = resident(plan, fixed);
        return if needed > budget { Err(LoadError::Larger { budget, needed }) } else { Ok(0) };
    };
    let left = for_experts(budget, fixed, own.max(layout.min_bytes()))?;
    Ok(if own == 0 { left } else { own })
}

/// Returns the number of bytes that a budget leaves for blocks of experts. All other memory takes
/// `fixed` bytes, and the blocks need at least `min` bytes. All commands use this function to
/// accept or refuse a budget.
///
/// # Errors
/// [`LoadError::Budget`] if the budget is too small.
pub(crate) fn for_experts(budget: u64, fixed: u64, min: u64) -> Result<u64, LoadError> {
    let needed = fixed.saturating_add(min);
    if budget.saturating_add(TOLERANCE_BYTES) < needed {
        return Err(LoadError::Budget { budget, fixed, needed });
    }
    Ok(budget.saturating_sub(fixed).max(min))
}

/// Returns the number of bytes that a trace recorder may take. `left` bytes are available to the
/// recorder and the blocks of experts together, and the blocks need `min` bytes. The recorder gets
/// at most half of the bytes beyond `min`. A smaller recorder fills up sooner.
pub(crate) fn for_recorder(left: u64, min: u64, threads: usize) -> u64 {
    (left.saturating_sub(min) / 2).clamp(MIN_RECORDER_BYTES, Recorder::bytes(threads).max(MIN_RECORDER_BYTES))
}

/// Returns the settings of the expert cache, with `budget` bytes for blocks.
pub(super) fn stream_config(
    options: &EngineOptions,
    budget: u64,
    counts: &ExpertCounts,
    watchdog: Option<&Watchdog>,
) -> Config {
    let keep = options
        .pins
        .as_ref()
        .map(|Pins { chosen, percent }| KeptBlocks { blocks: counts.choose_most_used(chosen), percent: *percent });
    let (keep, trace) = (keep.unwrap_or_default(), options.trace.clone());
    let stop = watchdog.map(Watchdog::flag).unwrap_or_default();
    Config { budget, keep, trace, stop, ..options.stream.clone() }
}
