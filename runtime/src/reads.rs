//! What is read from a drive, and why: the words that the reader, blocks and timelines share.

/// One expert of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId {
    /// The group: its index among the plan's groups of experts, one for each layer that has any.
    pub group: u32,
    /// The expert's number in it.
    pub expert: u32,
}

impl std::fmt::Display for BlockId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "expert {} of layer {}", self.expert, self.group)
    }
}

/// Why a block is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The router chose it: somebody waits.
    Routed,
    /// Somebody thinks that the router will.
    Predicted,
}
