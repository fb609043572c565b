//! Hints to the system's page cache for experts in mapped files. The page cache decides which
//! experts stay in memory. After a layer's router has chosen experts, the system gets hints that
//! their pages are needed next.
//!
//! A mapping offers no stronger control. `MADV_WILLNEED` starts reads, but guarantees nothing. No
//! advice evicts pages from the cache: `MADV_DONTNEED` only unmaps them, which frees no memory
//! while the cache keeps them. So the memory budget does not apply to mapped experts; only a
//! control group around the process can limit their memory. This suits models that nearly fit into
//! memory. For larger models, experts are streamed ([`crate::streaming`]).
//!
//! ```text
//! request experts 3 of bucket 3     for each matrix of each expert with rows: will be needed
//! ```
//!
//! Invariant: hints change when pages arrive in memory, but never the bytes that a kernel reads.

use std::sync::atomic::{AtomicU64, Ordering};

use ixc_ir::plan::{PlanWeight, WeightFile};

use crate::expert_sort::ExpertRows;
use crate::program::Program;
use crate::storage::memory::Mapped;

/// Location in a file of one weight's matrices, in order of experts.
#[derive(Clone, Copy, Debug)]
struct Matrices {
    file: usize,
    /// Offset of the first matrix.
    offset: u64,
    /// Bytes from the beginning of one matrix to the next.
    stride: u64,
    bytes: u64,
}

/// Counts of the hints since the plan was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdviceCounts {
    /// Number of experts for which the system got a hint.
    pub experts: u64,
    /// Bytes of these experts, including bytes that were already in memory.
    pub bytes: u64,
}

/// The mapped matrices of each group's experts.
#[derive(Debug)]
pub(crate) struct Advice {
    groups: Vec<Vec<Matrices>>,
    experts: AtomicU64,
    bytes: AtomicU64,
}

impl Advice {
    /// Finds the matrices of all groups of a checked plan; `own` is the file number of the plan
    /// file. If a weight is packed at load time, kernels do not read it from a mapped file. Then
    /// the name of that weight is the error.
    pub(crate) fn new(program: &Program, weights: &[PlanWeight], own: usize) -> Result<Advice, String> {
        let matrices = |&weight: &u32| {
            let weight = weights.get(weight as usize).ok_or_else(String::new)?;
            // `Program::new` checked that the weight has experts.
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

    /// Tells the system that the experts with these rows are needed now.
    pub(crate) fn request(&self, group: u32, rows: &[ExpertRows], files: &[Mapped]) {
        let Some(group) = self.groups.get(group as usize) else { return };
        for expert in rows.iter().map(|rows| u64::from(rows.expert)) {
            for matrices in group {
                if let Some(file) = files.get(matrices.file) {
                    // `Program::new` checked that the matrix lies inside its file.
                    file.will_need(matrices.offset + expert * matrices.stride, matrices.bytes);
                    self.bytes.fetch_add(matrices.bytes, Ordering::Relaxed);
                }
            }
            self.experts.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the counts of hints so far.
    pub(crate) fn advice_counts(&self) -> AdviceCounts {
        AdviceCounts { experts: self.experts.load(Ordering::Relaxed), bytes: self.bytes.load(Ordering::Relaxed) }
    }
}
