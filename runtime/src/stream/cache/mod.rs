//! Which block to give up when a slot is needed.
//!
//! Expert layers are run in order, again and again, and a token uses some blocks of each. So time is counted in *steps* (passes
//! through the layers), and what was last used in one step is alike. Among the alike the *least stale* rule decides: the block whose
//! layer is run again latest goes first. Plain LRU order would do the opposite: it gives up first what the next layers of the
//! coming step are about to ask for (SpecMD's finding; FACTS on expert streaming).
//!
//! A policy knows only blocks that may be given up at some time: the store inserts a block when it is there and was really
//! wanted. Which of them may not go now, since they are pinned or being packed, the store says with each question.

mod ages;
mod lru;
mod s3fifo;
mod slru;
#[cfg(test)]
mod tests;

/// How many layers ahead a block is next run, 0 for the next layer; `None` for one that must stay.
pub type Ahead<'a> = &'a dyn Fn(u32) -> Option<u32>;

/// A cache policy over blocks, which are known by number.
pub trait Policy: Send {
    /// A new pass through the layers begins.
    fn begin_step(&mut self);

    /// A block is there from now on.
    fn insert(&mut self, block: u32);

    /// A block that is there is used.
    fn touch(&mut self, block: u32);

    /// A block is gone for a reason of its own.
    fn remove(&mut self, block: u32);

    /// Gives up a block, or none where all must stay.
    fn victim(&mut self, ahead: Ahead<'_>) -> Option<u32>;
}

/// The policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// The least recently used goes.
    Lru,
    /// Segmented LRU: blocks that were used once go before those that were used again.
    Slru,
    /// S3-FIFO: a small queue for newcomers, a large one with second chances, and a memory of what went.
    #[default]
    S3Fifo,
}

impl Kind {
    /// All of them, with the names that a user says.
    pub const ALL: [(&'static str, Kind); 3] = [("lru", Kind::Lru), ("slru", Kind::Slru), ("s3-fifo", Kind::S3Fifo)];

    /// The policy's name.
    pub fn name(self) -> &'static str {
        Kind::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// A policy for `capacity` blocks.
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
        found.ok_or_else(|| format!("{text:?} is no cache policy; right would be one of {}", names()))
    }
}
