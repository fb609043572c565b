//! Weights of a plan, and the locations of their bytes.

use serde::{Deserialize, Serialize};

use crate::format::Format;

/// File that contains a weight's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WeightFile {
    /// A model file: an index into [`Plan::files`](super::Plan::files).
    Source(u32),
    /// The plan's own file, after the plan. The weight's offset is relative to the first byte of
    /// all weights in that file.
    Plan,
    /// The plan's own file, in blocks of a group of experts. The weight's offset is that of expert
    /// 0's matrix. The matrix of expert `e` is `e * stride` bytes later.
    Blocks {
        /// Distance in bytes from one block to the next.
        stride: u64,
    },
    /// A derived tensor, which is computed when it is read: an index into
    /// [`Plan::derived`](super::Plan::derived).
    Derived(u32),
}

/// A weight that kernels read. If [`PlanWeight::stored`] equals [`PlanWeight::format`], kernels
/// read the file's bytes in place. Otherwise the runtime packs the weight on first use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanWeight {
    /// Name of the tensor.
    pub name: String,
    /// Format that kernels read.
    pub format: Format,
    /// Format in the file: [`PlanWeight::format`], or the format from which the runtime packs the
    /// weight.
    pub stored: Format,
    /// Shape, outermost first.
    pub shape: Vec<u64>,
    /// File that contains the weight.
    pub file: WeightFile,
    /// Byte offset in the file.
    pub offset: u64,
    /// Length in the file, in bytes. For weights in blocks, the bytes between the experts' matrices
    /// are not included.
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

    /// Returns the weight's length in bytes in the format `format`. Returns `None` if the length
    /// overflows, or if the shape does not divide into whole blocks (for packed formats also whole
    /// strips).
    pub fn bytes_in(&self, format: Format) -> Option<u64> {
        let (&last, lead) = self.shape.split_last()?;
        if format.rows() > 1 && !lead.last()?.is_multiple_of(format.rows() as u64) {
            return None;
        }
        lead.iter().try_fold(format.row_bytes(last)?, |bytes, &n| bytes.checked_mul(n))
    }
}
