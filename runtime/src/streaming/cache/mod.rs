//! Replacement policies: the choice of the block to evict when a slot is needed.
//!
//! Expert layers run in order, again and again, and a token uses some blocks of each. So time is
//! counted in *steps* (passes through the layers), and blocks last used in the same step have the
//! same age. Among blocks of the same age the *least stale* rule decides: it evicts the block whose
//! layer runs again last. Plain LRU does the opposite: it evicts first the blocks that the next
//! layers of the coming step will request (a finding of SpecMD; FACTS on expert streaming).
//!
//! A policy holds only blocks that may be evicted at some time. The expert cache inserts a block
//! when it is in memory and was actually requested. For each eviction, the cache tells the policy
//! which blocks must stay because they are pinned or being packed.

mod ages;
mod lru;
mod s3fifo;
mod slru;
#[cfg(test)]
mod tests;

/// Function that returns the distance of a block's layer in layers, 0 for the next layer; `None`
/// for a block that must stay.
pub type Ahead<'a> = &'a dyn Fn(u32) -> Option<u32>;

/// A replacement policy over block numbers.
pub trait Policy: Send {
    /// Starts a new pass through the layers.
    fn begin_step(&mut self);

    /// Adds a block that is in memory now.
    fn insert(&mut self, block: u32);

    /// Counts a use of a block in memory.
    fn touch(&mut self, block: u32);

    /// Removes a block that was evicted for another reason than a choice of this policy.
    fn remove(&mut self, block: u32);

    /// Chooses and removes a block to evict; `None` if all must stay.
    fn victim(&mut self, ahead: Ahead<'_>) -> Option<u32>;
}

/// The policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Evicts the least recently used block.
    Lru,
    /// Segmented LRU: evicts blocks with one use before blocks with several.
    Slru,
    /// S3-FIFO: a small queue for new blocks, a large one with second chances, and a list of
    /// evicted blocks.
    #[default]
    S3Fifo,
}

impl Kind {
    /// All policies with their names on the command line.
    pub const ALL: [(&'static str, Kind); 3] = [("lru", Kind::Lru), ("slru", Kind::Slru), ("s3-fifo", Kind::S3Fifo)];

    /// Returns the policy's name.
    pub fn name(self) -> &'static str {
        Kind::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Makes a policy for `capacity` blocks.
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
