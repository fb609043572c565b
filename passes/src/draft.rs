//! A plan between `lower` and `arena`: tasks with the resources that they read and write.

use std::ops::Range;

use ixc_ir::format::Format;
use ixc_ir::plan::{ExpertLayer, Plan, Step, Task};
use ixc_kernels::KernelSpec;
use serde::{Deserialize, Serialize};

use crate::error::ScheduleError;

/// A plan between `lower` and `arena`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Draft {
    /// The plan without its steps and without the offsets of its buffers.
    pub plan: Plan<KernelSpec>,
    /// Tasks, routings, expert loads and rank exchanges, in the order of the graph.
    pub work: Vec<Work>,
    /// The work of each step; `None` before `steps`.
    pub steps: Option<Vec<DraftStep>>,
    /// For each of [`Plan::expert_layers`], the position of its first work in [`Draft::work`]. A
    /// step never has work of two layers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<usize>,
}

/// Work that threads share without a barrier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftStep {
    /// Work of the step, as positions in [`Draft::work`].
    pub work: Vec<usize>,
    /// Maximum number of rows for which one thread runs the step's tasks, as in [`Step::Run`].
    pub alone: u32,
}

impl Draft {
    /// Returns ranges of [`Draft::work`]: one for each separately run layer, or one for all work.
    /// Only work of the same range may share a step.
    pub fn parts(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let firsts = if self.layers.is_empty() { &[0][..] } else { &self.layers[..] };
        let ends = firsts.iter().skip(1).copied().chain([self.work.len()]);
        firsts.iter().copied().zip(ends).map(|(first, end)| first..end)
    }

    /// Checks a draft read from text: every number in it must name an existing item.
    ///
    /// # Errors
    /// [`ScheduleError::Draft`].
    pub fn check(&self) -> Result<(), ScheduleError> {
        let error = |problem: &str| ScheduleError::Draft { problem: problem.to_string() };
        let buffers = self.plan.buffers.len();
        let known = |resource: &Resource| match *resource {
            Resource::Buffer(buffer) => (buffer as usize) < buffers,
            Resource::Bucket(_) | Resource::State(_) | Resource::Group(_) | Resource::Slots | Resource::Ranks => true,
        };
        if !self.work.iter().all(|work| work.reads.iter().chain(&work.writes).all(known)) {
            return Err(error("work that reads or writes a missing buffer"));
        }
        if self.plan.logits.0 as usize >= buffers {
            return Err(error("logits in a missing buffer"));
        }
        let (layers, all) = (&self.layers, self.work.len());
        let ascending = layers.windows(2).all(|pair| pair[0] < pair[1]) && layers.last().is_none_or(|&last| last < all);
        if layers.len() != self.plan.expert_layers.len()
            || layers.first().is_some_and(|&first| first != 0)
            || !ascending
        {
            return Err(error("layers that do not begin with their first work"));
        }
        let known = |layer: &ExpertLayer| {
            let ExpertLayer { rows, ids, weights, result, .. } = *layer;
            [rows, ids, weights, result].iter().all(|buffer| (buffer.0 as usize) < buffers)
        };
        if !self.plan.expert_layers.iter().all(known) {
            return Err(error("layers in missing buffers"));
        }
        let Some(steps) = &self.steps else { return Ok(()) };
        for layer in &self.plan.expert_layers {
            let end = layer.first.checked_add(layer.steps).filter(|&end| end as usize <= steps.len());
            if end.is_none() || layer.steps == 0 {
                return Err(error("layers with missing steps"));
            }
        }
        let mut seen = vec![false; self.work.len()];
        for &at in steps.iter().flat_map(|step| &step.work) {
            match seen.get_mut(at) {
                Some(seen) if !*seen => *seen = true,
                Some(_) | None => return Err(error("steps that run work twice, or run work that does not exist")),
            }
        }
        if seen.contains(&false) {
            return Err(error("work that no step runs"));
        }
        // `arena` derives each buffer's lifetime from steps.
        if steps.iter().any(|step| step.work.is_empty()) {
            return Err(error("a step without work"));
        }
        Ok(())
    }
}

/// A resource that tasks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Resource {
    /// A buffer, written once by one op.
    Buffer(u32),
    /// The rows of a routing, sorted by expert.
    Bucket(u32),
    /// A state of the graph, such as a KV cache.
    State(u32),
    /// A group of experts in memory.
    Group(u32),
    /// The memory into which streamed experts are loaded.
    Slots,
    /// The connection to other ranks, which fixes the order of exchanges.
    Ranks,
}

/// A task or other work of a step, with the resources that it reads and writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Kind of the work, with its data.
    pub what: WorkItem,
    /// Resources that the work reads. The work waits for their writers.
    pub reads: Vec<Resource>,
    /// Resources that the work writes.
    pub writes: Vec<Resource>,
}

/// Kinds of work in a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum WorkItem {
    /// A task of a [`Step::Run`].
    Task(Task),
    /// A [`Step::Bucket`].
    Bucket(Step),
    /// A step that loads or evicts experts: one thread runs it, at the barrier after the work that
    /// it waits for.
    Residency(Step),
    /// A [`Step::Exchange`]: one thread runs it, at the barrier after the work that it waits for.
    Exchange(Step),
}

/// Converts a number to the plan's 32 bits. `what` names the number in the error.
///
/// # Errors
/// [`ScheduleError::TooLarge`].
pub fn fit(what: &str, value: u64) -> Result<u32, ScheduleError> {
    u32::try_from(value).map_err(|_| ScheduleError::TooLarge {
        what: what.to_string(),
        value: value.to_string(),
        limit: u32::MAX.into(),
    })
}

/// Returns the number of bytes from one row of `width` elements to the next.
///
/// # Errors
/// [`ScheduleError::TooLarge`].
pub fn row_bytes(format: Format, width: u64) -> Result<u64, ScheduleError> {
    format.row_bytes(width).ok_or_else(|| too_large(format, width))
}

/// Returns the number of bytes of `width` elements of a row, which may be the whole row or a part.
///
/// # Errors
/// [`ScheduleError::TooLarge`].
pub fn part_bytes(format: Format, width: u64) -> Result<u64, ScheduleError> {
    format.written_bytes(width).ok_or_else(|| too_large(format, width))
}

fn too_large(format: Format, width: u64) -> ScheduleError {
    ScheduleError::TooLarge {
        what: format!("a row of {format} in bytes"),
        value: format!("{width} elements"),
        limit: u64::MAX,
    }
}
