//! A plan between `lower` and `arena`: tasks, which say what they read and write.

use std::ops::Range;

use ixc_ir::format::Format;
use ixc_ir::plan::{ExpertLayer, Plan, Step, Task};
use ixc_kernels::KernelSpec;
use serde::{Deserialize, Serialize};

use crate::error::ScheduleError;

/// A plan between `lower` and `arena`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Draft {
    /// All of the plan but its steps, and where its buffers lie.
    pub plan: Plan<KernelSpec>,
    /// Tasks, and what else a step may be, in the order of the graph.
    pub work: Vec<Work>,
    /// What each step does; nothing before `steps`.
    pub steps: Option<Vec<DraftStep>>,
    /// Where in [`Draft::work`] that of each of [`Plan::expert_layers`] begins; no step has work of two.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<usize>,
}

/// A step of a draft.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftStep {
    /// What it does, as positions in [`Draft::work`].
    pub work: Vec<usize>,
    /// With how many rows one thread does its tasks alone, as in [`Step::Run`].
    pub alone: u32,
}

impl Draft {
    /// Work that may share steps: of each layer, or all of it.
    pub fn parts(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let firsts = if self.layers.is_empty() { &[0][..] } else { &self.layers[..] };
        let ends = firsts.iter().skip(1).copied().chain([self.work.len()]);
        firsts.iter().copied().zip(ends).map(|(first, end)| first..end)
    }

    /// Checks one that was read: what its numbers name is there.
    ///
    /// # Errors
    /// [`ScheduleError::Draft`].
    pub fn check(&self) -> Result<(), ScheduleError> {
        let error = |problem: &str| ScheduleError::Draft { problem: problem.to_string() };
        let buffers = self.plan.buffers.len();
        let known = |resource: &Resource| match *resource {
            Resource::Buffer(buffer) => (buffer as usize) < buffers,
            Resource::Bucket(_) | Resource::State(_) | Resource::Group(_) | Resource::Slots => true,
        };
        if !self.work.iter().all(|work| work.reads.iter().chain(&work.writes).all(known)) {
            return Err(error("work that reads or writes a buffer that is not there"));
        }
        if self.plan.logits.0 as usize >= buffers {
            return Err(error("logits in a buffer that is not there"));
        }
        let (layers, all) = (&self.layers, self.work.len());
        let ascending = layers.windows(2).all(|pair| pair[0] < pair[1]) && layers.last().is_none_or(|&last| last < all);
        if layers.len() != self.plan.expert_layers.len()
            || layers.first().is_some_and(|&first| first != 0)
            || !ascending
        {
            return Err(error("layers that do not begin where their work does"));
        }
        let known = |layer: &ExpertLayer| {
            let ExpertLayer { rows, ids, weights, result, .. } = *layer;
            [rows, ids, weights, result].iter().all(|buffer| (buffer.0 as usize) < buffers)
        };
        if !self.plan.expert_layers.iter().all(known) {
            return Err(error("layers in buffers that are not there"));
        }
        let Some(steps) = &self.steps else { return Ok(()) };
        for layer in &self.plan.expert_layers {
            let end = layer.first.checked_add(layer.steps).filter(|&end| end as usize <= steps.len());
            if end.is_none() || layer.steps == 0 {
                return Err(error("layers whose steps are not there"));
            }
        }
        let mut seen = vec![false; self.work.len()];
        for &at in steps.iter().flat_map(|step| &step.work) {
            match seen.get_mut(at) {
                Some(seen) if !*seen => *seen = true,
                Some(_) | None => return Err(error("steps that do work twice, or work that is not there")),
            }
        }
        if seen.contains(&false) {
            return Err(error("work that no step does"));
        }
        // `arena` counts on a step for each buffer's life.
        if steps.iter().any(|step| step.work.is_empty()) {
            return Err(error("a step without work"));
        }
        Ok(())
    }
}

/// What tasks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Resource {
    /// A buffer: written once, by one op.
    Buffer(u32),
    /// A routing's order.
    Bucket(u32),
    /// A state.
    State(u32),
    /// The experts of a group being in memory.
    Group(u32),
    /// The memory that experts are loaded to.
    Slots,
}

/// A task or another step, with what it reads and writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// What is done.
    pub what: What,
    /// What it waits for the writers of.
    pub reads: Vec<Resource>,
    /// What it writes.
    pub writes: Vec<Resource>,
}

/// What a step may do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum What {
    /// A task of a [`Step::Run`].
    Task(Task),
    /// A [`Step::Bucket`].
    Bucket(Step),
    /// A step that says something of experts in memory: one thread's, at the barrier after what it waits for.
    Residency(Step),
}

/// A number as the plan holds it; `what` is its name in the error.
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

/// Bytes from a row of `width` elements to the next.
///
/// # Errors
/// [`ScheduleError::TooLarge`].
pub fn row_bytes(format: Format, width: u64) -> Result<u64, ScheduleError> {
    format.row_bytes(width).ok_or_else(|| too_large(format, width))
}

/// Bytes of so many elements of a row, from its start on or between others.
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
