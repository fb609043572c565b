//! Experts in mapped files: the page cache decides which of them it holds. When a layer's router has chosen, it is told which are needed next.
//!
//! That is all that can be had of a mapping: `MADV_WILLNEED` starts reads and promises nothing, and no advice takes pages out of the
//! cache (`MADV_DONTNEED` unmaps them, which frees nothing as long as the cache keeps them). So there is no budget here; a control group
//! around the process is the only one that holds. For a model that nearly fits this is simple and good; for a larger one experts are
//! streamed ([`crate::stream`]).
//!
//! ```text
//! request experts 3 of bucket 3        for each expert that rows are routed to, each of its matrices: will be needed
//! ```
//!
//! Invariant: advice changes when pages come, and never what a kernel reads.

use std::sync::atomic::{AtomicU64, Ordering};

use ixc_ir::plan::{PlanWeight, WeightFile};

use crate::bucket::ExpertRows;
use crate::memory::Mapped;
use crate::program::Program;

/// Matrices of one weight, an expert's behind the other's.
#[derive(Clone, Copy, Debug)]
struct Matrices {
    file: usize,
    /// Where the first begins.
    offset: u64,
    /// Bytes from one to the next.
    stride: u64,
    bytes: u64,
}

/// What was said of a run's experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Advised {
    /// Experts that were said to be needed.
    pub experts: u64,
    /// Their bytes; what was in memory already is counted, too.
    pub bytes: u64,
}

/// Where each group's experts are mapped.
#[derive(Debug)]
pub(crate) struct Advice {
    groups: Vec<Vec<Matrices>>,
    experts: AtomicU64,
    bytes: AtomicU64,
}

impl Advice {
    /// Of a checked plan, whose own file is number `own`. A weight that is packed when the plan is loaded is the error: it is not where it is mapped.
    pub(crate) fn new(program: &Program, weights: &[PlanWeight], own: usize) -> Result<Advice, String> {
        let matrices = |&weight: &u32| {
            let weight = weights.get(weight as usize).ok_or_else(String::new)?;
            // The program's check says that it has experts.
            let experts = weight.shape.first().copied().unwrap_or(1).max(1);
            if weight.is_packed_at_load() {
                return Err(weight.name.clone());
            }
            let bytes = weight.bytes / experts;
            let (file, stride) = match weight.file {
                WeightFile::Source(file) => (file as usize, bytes),
                WeightFile::Plan => (own, bytes),
                WeightFile::Blocks { stride } => (own, stride),
                WeightFile::Derived(_) => return Err(weight.name.clone()),
            };
            Ok(Matrices { file, offset: weight.offset, stride, bytes })
        };
        let groups = program.groups.iter().map(|group| group.weights.iter().map(matrices).collect());
        let groups = groups.collect::<Result<_, String>>()?;
        Ok(Advice { groups, experts: AtomicU64::new(0), bytes: AtomicU64::new(0) })
    }

    /// Says that a group's experts are needed now.
    pub(crate) fn request(&self, group: u32, rows: &[ExpertRows], files: &[Mapped]) {
        let Some(group) = self.groups.get(group as usize) else { return };
        for expert in rows.iter().map(|rows| u64::from(rows.expert)) {
            for matrices in group {
                if let Some(file) = files.get(matrices.file) {
                    // It lies in its file, as the program's check says.
                    file.will_need(matrices.offset + expert * matrices.stride, matrices.bytes);
                    self.bytes.fetch_add(matrices.bytes, Ordering::Relaxed);
                }
            }
            self.experts.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What was said so far.
    pub(crate) fn advised(&self) -> Advised {
        Advised { experts: self.experts.load(Ordering::Relaxed), bytes: self.bytes.load(Ordering::Relaxed) }
    }
}
