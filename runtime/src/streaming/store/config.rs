//! Configuration of an expert cache.

use std::sync::Arc;

use crate::streaming::backend::Backend;
use crate::streaming::drive::DriveOptions;
use crate::streaming::queue::Queue;
use crate::streaming::{BlockId, cache};
use crate::trace::Recorder;
use crate::watchdog::StopFlag;

/// Default number of bytes of one read.
pub const CHUNK: u64 = 256 << 10;

/// Configuration of an expert cache.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes for all slots and staging memory together.
    pub budget: u64,
    /// Number of experts that one token uses in a group.
    pub top_k: u32,
    /// Maximum bytes of one read. Larger blocks are divided, so that the drive has many outstanding
    /// reads.
    pub chunk: u64,
    /// Whether reads bypass the page cache (O_DIRECT).
    pub direct: bool,
    /// Number of staging buffers for raw blocks, if the budget has room for them; by default
    /// `top_k`.
    pub staging: Option<u32>,
    /// Replacement policy.
    pub policy: cache::Kind,
    /// Blocks that are never evicted.
    pub keep: KeptBlocks,
    /// Options of the drive.
    pub drive: DriveOptions,
    /// Recorder of reads and of the contents of slots, if they are traced.
    pub trace: Option<Arc<Recorder>>,
    /// Flag that ends the waits of a step at its deadline.
    pub stop: StopFlag,
    /// Factory of a backend that replaces io_uring and the reading threads.
    pub backend: Option<BackendFactory>,
}

/// Blocks that stay in memory after they are first read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptBlocks {
    /// Ids of the blocks to keep, in descending priority. Each id occurs once.
    pub blocks: Vec<BlockId>,
    /// Maximum share of the slots of each size class for kept blocks, in percent.
    pub percent: u32,
}

/// Function that creates a backend for a queue.
pub type MakeBackend = dyn Fn(&Queue) -> Box<dyn Backend> + Send + Sync;

/// Factory of a backend. Tests use it, for example, to inject faults or to read from another
/// source.
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
