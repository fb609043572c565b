//! Weights of a plan, and the locations of their bytes.

use serde::{Deserialize, Serialize};

use crate::format::Format;

/// Location of a weight's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WeightFile {
    /// A file of [`Plan::files`](super::Plan::files).
    Source(u32),
    /// The plan's own file, after the plan. The offset counts from the first byte of the weights in
    /// that file.
    Plan,
    /// The plan's own file, in blocks of a group of experts. The offset is that of the first
    /// expert's matrix; the matrix of expert `e` lies `e * stride` bytes later.
    Blocks {
        /// Bytes from one block to the next.
        stride: u64,
    },
    /// One of [`Plan::derived`](super::Plan::derived), computed when it is read.
    Derived(u32),
}

/// A weight as kernels read it. If [`PlanWeight::stored`] equals [`PlanWeight::format`], kernels
/// read it in place. Otherwise the runtime packs it on first use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanWeight {
    /// Tensor name.
    pub name: String,
    /// Format that kernels read.
    pub format: Format,
    /// Format in the file: [`PlanWeight::format`], or the format that it is packed from.
    pub stored: Format,
    /// Shape, outermost first.
    pub shape: Vec<u64>,
    /// File that holds the weight.
    pub file: WeightFile,
    /// Byte offset in the file.
    pub offset: u64,
    /// Length in the file, in bytes. For weights in blocks, bytes between the matrices do not
    /// count.
    pub bytes: u64,
}

impl PlanWeight {
    /// Returns the distance in the file from the weight's first byte to its end. Returns `None` on
    /// overflow, or if a weight in blocks has no experts.
    pub fn span(&self) -> Option<u64> {
        let WeightFile::Blocks { stride } = self.file else { return Some(self.bytes) };
        let experts = *self.shape.first()?;
        let gaps = experts.checked_sub(1)?.checked_mul(stride)?;
        gaps.checked_add(self.bytes.checked_div(experts)?)
    }

    /// Whether the bytes must be packed before kernels read them.
    pub fn is_packed_at_load(&self) -> bool {
        self.format != self.stored
    }

    /// Returns the weight's length in `format`. Returns `None` if the length overflows, or if the
    /// shape does not divide into whole blocks (and, for packed formats, whole strips).
    pub fn bytes_in(&self, format: Format) -> Option<u64> {
        let (&last, lead) = self.shape.split_last()?;
        if format.rows() > 1 && !lead.last()?.is_multiple_of(format.rows() as u64) {
            return None;
        }
        lead.iter().try_fold(format.row_bytes(last)?, |bytes, &n| bytes.checked_mul(n))
    }
}
