//! What a plan takes of memory, and what that leaves of a budget for experts.
//!
//! ```text
//! what the process has + weights of every token + arena + KV cache + rotary tables + scratch + spare = fixed
//! budget - fixed = slots for experts
//! ```

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::Plan;

use super::{LoadError, kept};
use crate::engine::Options;
use crate::experts;
use crate::memory::{Cache, Rope};
use crate::program::Program;

/// Bytes of a budget that are left for the stacks, code and tables of a run.
const SPARE_BYTES: u64 = 64 << 20;

/// Memory of this process now, in bytes, as the system counts it; 0 where it does not tell.
pub(crate) fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// Bytes that a run takes besides what the process has already, experts' blocks and mapped files.
pub(crate) fn fixed_bytes(
    program: &Program,
    plan: &Plan<Kernel>,
    streamed: Option<&[bool]>,
    capacity: u32,
    threads: usize,
) -> u64 {
    let ropes = plan.ropes.iter().map(|table| Rope::bytes(table, capacity));
    let scratch = program.scratch_bytes.saturating_mul(threads as u64);
    let cache = Cache::bytes(&plan.cache, capacity);
    let rest = [kept(&plan.weights, streamed).1, plan.arena_bytes, cache, scratch, program.part_bytes, SPARE_BYTES];
    ropes.chain(rest).fold(0, u64::saturating_add)
}

/// What a budget leaves for experts' blocks; for other plans, whether it is enough for all of it.
pub(super) fn budget(
    options: &Options,
    plan: &Plan<Kernel>,
    fixed: u64,
    layout: Option<&experts::Layout>,
) -> Result<u64, LoadError> {
    let (Some(budget), own) = (options.memory, options.stream.budget) else { return Ok(options.stream.budget) };
    let Some(layout) = layout else {
        let mapped = plan.weights.iter().filter(|weight| !weight.is_packed_at_load());
        let needed = mapped.fold(fixed, |sum, weight| sum.saturating_add(weight.bytes));
        return if needed > budget { Err(LoadError::Larger { budget, needed }) } else { Ok(0) };
    };
    let needed = fixed.saturating_add(own.max(layout.least_bytes()));
    if budget < needed {
        return Err(LoadError::Budget { budget, fixed, needed });
    }
    Ok(if own == 0 { budget - fixed } else { own })
}
