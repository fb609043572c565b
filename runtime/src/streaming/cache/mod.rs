//! Replacement policies, which choose the block to evict when a slot is needed.
//!
//! Layers of experts run in order, again and again, and each token uses some blocks of every layer.
//! So time is counted in *steps* (passes through all layers), and blocks that were last used in the
//! same step have the same age. Among blocks of the same age, the *least stale* rule applies: it
//! evicts the block whose layer runs again last. Plain LRU does the opposite: it first evicts the
//! blocks of the layers that will run next (a finding of SpecMD; FACTS on expert streaming).
//!
//! A policy contains only blocks that may be evicted at some time. The expert cache inserts a block
//! into the policy when the block is in memory and was actually requested. At each eviction, the
//! cache tells the policy which blocks must stay, because they are pinned or being packed.

mod ages;
mod lru;
mod s3fifo;
mod slru;
#[cfg(test)]
mod tests;

/// Function that returns, for a block, the number of layers until its layer runs; 0 for the next
/// layer. It returns `None` for a block that must stay.
pub type Ahead<'a> = &'a dyn Fn(u32) -> Option<u32>;

/// A replacement policy. Blocks are identified by their numbers.
pub trait Policy: Send {
    /// Begins a new pass through all layers.
    fn begin_step(&mut self);

    /// Adds a block that has just come into memory.
    fn insert(&mut self, block: u32);

    /// Records a use of a block that is in memory.
    fn touch(&mut self, block: u32);

    /// Removes a block that was evicted, but not by [`Policy::victim`].
    fn remove(&mut self, block: u32);

    /// Chooses a block to evict, and removes it from the policy. Returns `None` if all blocks must
    /// stay.
    fn victim(&mut self, ahead: Ahead<'_>) -> Option<u32>;
}

/// The kinds of replacement policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Least recently used: evicts the block that was not used for the most steps.
    Lru,
    /// Segmented LRU: evicts blocks that were used once before blocks that were used several times.
    Slru,
    /// S3-FIFO: a small queue for new blocks, a large queue with second chances, and a list of
    /// evicted blocks.
    #[default]
    S3Fifo,
}

impl Kind {
    /// All policies, with their names on the command line.
    pub const ALL: [(&'static str, Kind); 3] = [("lru", Kind::Lru), ("slru", Kind::Slru), ("s3-fifo", Kind::S3Fifo)];

    /// Returns the policy's name.
    pub fn name(self) -> &'static str {
        Kind::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Creates a policy for a cache of `capacity` blocks.
    pub fn policy(self, capacity: usize) -> Box<dyn Policy> {
        match self {
            Kind::Lru => Box::new(lru::Lru::default()),
            Kind::Slru => Box::new(slru::Slru::new(capacity)),
            Kind::S3Fifo => Box::new(s3fifo::S3Fifo::new(capacity)),
        }
    }
}

impl std::str::FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        let found = Kind::ALL.iter().find(|(name, _)| *name == text).map(|(_, kind)| *kind);
        let names = || Kind::ALL.map(|(name, _)| name).join(", ");
        found.ok_or_else(|| format!("{text:?} is not a cache policy; expected one of {}", names()))
    }
}
