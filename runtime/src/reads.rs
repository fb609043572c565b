//! Identity and class of reads of experts. The drive, the expert cache and traces use them.

/// Identity of an expert's block: a group and an expert of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId {
    /// Index among the plan's expert groups. There is one group for each layer with experts.
    pub group: u32,
    /// Number of the expert in the group.
    pub expert: u32,
}

impl std::fmt::Display for BlockId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "expert {} of layer {}", self.expert, self.group)
    }
}

/// Reason for a read of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The router chose the expert, and threads wait for it.
    Routed,
    /// A strategy predicts that the router will choose the expert, so it is read ahead.
    Predicted,
}
