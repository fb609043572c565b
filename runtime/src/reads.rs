//! What is read from a drive, and why: the words that the reader, blocks and timelines share.

/// One expert of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId {
    /// The layer.
    pub layer: u32,
    /// The expert's number in it.
    pub expert: u32,
}

impl std::fmt::Display for BlockId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "expert {} of layer {}", self.expert, self.layer)
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
