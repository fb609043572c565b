//! Options for loading a plan.

use std::sync::Arc;
use std::time::Duration;

use ixc_transport::Transport;

use super::homes::Homes;
use super::pins::Pins;
use crate::error::load::LoadError;
use crate::numa::Numa;
use crate::numa::topology::Topology;
use crate::pool::{MAX_THREADS, Pool};
use crate::processors::{Machine, Pin, PinRefusal};
use crate::progress::ProgressCounter;
use crate::storage::shared_pages::Sharing;
use crate::streaming::predict;
use crate::streaming::store::Config;
use crate::trace::Recorder;

/// Default context, if the model's context is that long. The KV cache takes memory only as it
/// fills, but few users need longer contexts.
pub const DEFAULT_CONTEXT: u32 = 4096;

/// The backend that runs kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendKind {
    /// Machine code for the plan's target.
    #[default]
    Native,
    /// Machine code in the emulator: a thousand times slower. It needs no CPU feature and
    /// is checked at every step.
    Emulated,
    /// The kernel IR's reference interpreter: thousands of times slower. It needs no CPU feature.
    Interpreter,
}

/// Storage of experts at run time, for plans with expert groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpertStore {
    /// Memory, within the budget; other experts are read from the drive when they are needed
    /// ([`crate::streaming`]).
    #[default]
    Stream,
    /// Mapped files; the page cache decides which experts stay in memory
    /// ([`crate::page_cache_hints`]). No budget applies.
    Map,
}

/// Options for loading a plan.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// Number of threads; `None` means all CPUs.
    pub threads: Option<usize>,
    /// Whether threads are bound to processors. The caller's thread is bound only while it runs a
    /// step.
    pub pin: Pin,
    /// Use of NUMA nodes.
    pub numa: Numa,
    /// Nodes and processors for [`EngineOptions::numa`]; `None` means this machine's.
    pub topology: Option<Arc<Topology>>,
    /// Homes of the engine's threads. Loading sets them by [`EngineOptions::numa`].
    pub homes: Homes,
    /// Longest sequence. `None` means the model's context, at most [`DEFAULT_CONTEXT`].
    pub context: Option<u64>,
    /// Max sequences at once; 0 means one. The memory for all their states counts against the
    /// budget, but is taken only as they fill.
    pub sequences: u32,
    /// Condition for sharing the memory of a common prefix when a sequence is copied.
    pub sharing: Sharing,
    /// Max additions of a step beyond one for each sequence. They allow several consecutive
    /// additions to one sequence.
    pub more_additions: u32,
    /// Whether the results of a sequence are bit-identical to those without other sequences in the
    /// step, also on targets with tiles. Tiles round activations differently, so the rows of each
    /// sequence are then multiplied separately. On targets without tiles, results are always
    /// identical.
    pub exact_batch: bool,
    /// The backend that runs kernels.
    pub backend: BackendKind,
    /// A model file that is compiled into the program, for plans that name it.
    pub built_in: Option<BuiltIn>,
    /// Whether to skip the checksums of weights in the plan's own file. Checking them reads all of
    /// the weights once, which takes long for a model that is larger than memory.
    pub skip_weight_check: bool,
    /// Max bytes of memory of the whole process. With a budget and a plan with expert groups,
    /// experts are streamed. Their cache gets the rest of the budget. Otherwise all weights stay in
    /// memory.
    pub memory: Option<u64>,
    /// Whether weights are locked in memory, so that the system neither swaps them out nor drops
    /// their pages. Experts that are streamed or in mapped files are not locked.
    pub lock: bool,
    /// Storage of experts.
    pub experts: ExpertStore,
    /// Settings of the expert cache. If its budget is not 0, it is the memory for experts' blocks;
    /// otherwise they get the rest of [`EngineOptions::memory`].
    pub stream: Config,
    /// The streamed experts that stay in memory; `None` pins no expert.
    pub pins: Option<Pins>,
    /// Settings of read-ahead for experts; by default, the strategy that measures as fastest is
    /// used.
    pub prefetch: predict::PredictionSettings,
    /// Whether [`Engine::take_stats`](crate::engine::Engine::take_stats) includes tasks and stalls.
    pub stats: bool,
    /// The recorder of this engine's events.
    pub trace: Option<Arc<Recorder>>,
    /// The connection to the other ranks of the plan. `None` runs all ranks of a plan in this
    /// process, each in threads of its own.
    pub transport: Option<Arc<dyn Transport>>,
    /// Time limit of a step; `None` for no limit. A step that exceeds it fails with
    /// [`ExecuteError::Deadline`](crate::execute::ExecuteError::Deadline).
    pub step_timeout: Option<Duration>,
    /// Counter that shows the progress of loading and of packing all weights.
    pub progress: Option<Arc<ProgressCounter>>,
}

/// Makes the thread pool that the options ask for. Also returns the processor of each thread, or
/// the reason why threads are not bound.
pub(crate) fn pool(options: &EngineOptions) -> Result<(Pool, Result<Vec<usize>, PinRefusal>), LoadError> {
    let threads = options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    if threads == 0 || threads > MAX_THREADS {
        return Err(LoadError::Threads { found: threads });
    }
    // This comes before our threads start, because it counts the threads of other processes.
    let machine = Some(options.pin).filter(|pin| *pin != Pin::Off).map(|_| Machine::detect().unwrap_or_default());
    let mut pool = Pool::new(threads).map_err(|source| LoadError::Thread { source })?;
    let homes = &options.homes;
    let pinned_processors = machine.map_or(Err(PinRefusal::Off), |machine| {
        homes.refuses_pin().map_or(Ok(()), Err)?;
        let machine = homes.part_of(machine);
        let processors = machine.pinned_processors(options.pin, threads)?;
        pool.bind(&processors, &machine.allowed).map_err(|error| PinRefusal::Refused(error.to_string()))?;
        Ok(processors)
    });
    if pinned_processors.is_err()
        && !homes.all().is_empty()
        && let Err(error) = homes.bind(&mut pool)
    {
        // Threads then run anywhere, and results do not change.
        tracing::warn!(%error, "threads are not bound to NUMA nodes");
    }
    Ok((pool, pinned_processors))
}

/// A model file that is compiled into the program.
#[derive(Clone, Copy)]
pub struct BuiltIn {
    /// The path of the file in plans.
    pub path: &'static str,
    /// The file's content.
    pub bytes: &'static [u8],
}

impl std::fmt::Debug for BuiltIn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BuiltIn({:?}, {} bytes)", self.path, self.bytes.len())
    }
}
