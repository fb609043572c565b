//! Pairing of elements in rotary position embedding (RoPE), for graph ops and rotary tables.

use serde::{Deserialize, Serialize};

/// Elements of a head that RoPE rotates together, and the corresponding layout of a rotary table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum RopeStyle {
    /// Elements `2i` and `2i + 1` form a pair. A row of the table is `dims` cosines, each twice,
    /// then `dims` sines, each as `-s, s`.
    Norm,
    /// Elements `i` and `i + dims / 2` form a pair. A row of the table is `dims / 2` cosines, then
    /// `dims / 2` sines.
    Neox,
}

impl RopeStyle {
    /// Returns the number of bytes of a table row for `dims` rotated elements.
    pub fn row_bytes(self, dims: u32) -> u64 {
        match self {
            RopeStyle::Norm => u64::from(dims) * 8,
            RopeStyle::Neox => u64::from(dims) * 4,
        }
    }
}
