//! Configuration of an expert cache.

use std::sync::Arc;

use crate::streaming::backend::Backend;
use crate::streaming::drive::DriveOptions;
use crate::streaming::queue::Queue;
use crate::streaming::{BlockId, cache};
use crate::trace::Recorder;
use crate::watchdog::StopFlag;

/// Default bytes of one read.
pub const CHUNK: u64 = 256 << 10;

/// Configuration of an expert cache.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes for all slots and staging memory.
    pub budget: u64,
    /// Experts that one token uses in a group.
    pub top_k: u32,
    /// Max bytes of one read. Larger blocks are split, so that the drive has many reads in flight.
    pub chunk: u64,
    /// Whether to bypass the page cache (O_DIRECT).
    pub direct: bool,
    /// Staging buffers for raw blocks, if the budget has room for them; by default `top_k`.
    pub staging: Option<u32>,
    /// Replacement policy.
    pub policy: cache::Kind,
    /// Blocks that are never evicted.
    pub keep: KeptBlocks,
    /// Options of the drive.
    pub drive: DriveOptions,
    /// Recorder of reads and of the contents of slots.
    pub trace: Option<Arc<Recorder>>,
    /// Flag that ends the waits of a step at its deadline.
    pub stop: StopFlag,
    /// Backend to use in place of io_uring and the threaded reader.
    pub backend: Option<BackendFactory>,
}

/// Blocks that stay in memory after their first read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptBlocks {
    /// Blocks to keep, each once, in descending priority.
    pub blocks: Vec<BlockId>,
    /// Max share of the slots of each size, in percent.
    pub percent: u32,
}

/// Function that makes a backend for a queue.
pub type MakeBackend = dyn Fn(&Queue) -> Box<dyn Backend> + Send + Sync;

/// Factory of a backend, for example of one that injects faults or reads from another source.
#[derive(Clone)]
pub struct BackendFactory(pub Arc<MakeBackend>);

impl std::fmt::Debug for BackendFactory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BackendFactory")
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            budget: 0,
            top_k: 8,
            chunk: CHUNK,
            direct: true,
            staging: None,
            policy: cache::Kind::default(),
            keep: KeptBlocks::default(),
            drive: DriveOptions::default(),
            trace: None,
            stop: StopFlag::default(),
            backend: None,
        }
    }
}
