//! Pinned experts: streamed experts that stay in memory.
//!
//! ```text
//! counts of a run     layer 0: [12, 0, 500, 7]    layer 1: [3, 3, 510, 3]
//! pins of a later run: the most used experts of both layers that fit into a part of the slots are
//! read when the plan is loaded, and stay
//! ```

/// The rule for pinned experts: those that were chosen most often stay in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// Number of times that each expert was chosen: `chosen[layer][expert]`, where `layer` counts
    /// only layers with experts.
    pub chosen: Vec<Vec<u64>>,
    /// Maximum share of the expert cache's memory for pinned experts, in percent. The minimum that
    /// streaming needs is never used for pinned experts.
    pub percent: u32,
}
