//! NUMA: nodes of a machine, places of ranks on them, and binding of threads and memory.
//!
//! A node consists of some processors and the memory next to them. Reading the memory of another
//! node takes longer, and the link between nodes is slower than memory. So each rank of a plan gets
//! a node: its threads run there, and its weights, states and buffers lie there.
//!
//! ```text
//! topology ─▶ place ─▶ home of a rank ─▶ threads bound, memory bound on creation
//! (/sys, or a file)    (node, processors)
//! ```
//!
//! | module | owns |
//! | --- | --- |
//! | [`topology`] | nodes, processors, caches, distances: of this machine, or described |
//! | [`placement`] | the place of each rank or thread: a pure function of the topology |
//! | [`home`] | binding of a thread and of its new memory, and nodes of pages |
//! | [`bandwidth`] | measured speed of reading each node's memory from each node |
//! | [`error`] | errors of descriptions and places |
//!
//! Invariant: the placement changes no bit of a result. It only determines where memory lies and
//! where threads run.

pub mod bandwidth;
pub mod error;
pub mod home;
pub mod placement;
pub mod topology;

use std::str::FromStr;

/// Ways to use NUMA nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numa {
    /// Nodes are ignored: the system chooses processors and memory.
    #[default]
    Off,
    /// Each node gets one or more ranks of a plan with several ranks.
    Cut,
    /// Each node gets a copy of all weights of a plan with one rank.
    Mirror,
    /// [`Numa::Cut`] on a machine with several nodes, if the model can be divided; otherwise
    /// [`Numa::Off`].
    Auto,
}

impl Numa {
    /// All variants with their option names.
    pub const ALL: [(&'static str, Numa); 4] =
        [("off", Numa::Off), ("cut", Numa::Cut), ("mirror", Numa::Mirror), ("auto", Numa::Auto)];
}

impl FromStr for Numa {
    type Err = String;

    fn from_str(name: &str) -> Result<Numa, String> {
        let known = Numa::ALL.into_iter().find(|(known, _)| *known == name);
        known.map(|(_, numa)| numa).ok_or_else(|| format!("{name:?} is not one of off, cut, mirror, auto"))
    }
}
