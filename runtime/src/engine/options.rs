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

/// Default context length in tokens, if the model supports it. The KV cache takes memory only as it
/// fills, but few users need longer contexts.
pub const DEFAULT_CONTEXT: u32 = 4096;

/// The backend that runs kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendKind {
    /// Machine code for the plan's target.
    #[default]
    Native,
    /// Machine code in the emulator, a thousand times slower. It needs no CPU feature, and the
    /// emulator checks every memory access.
    Emulated,
    /// The kernel IR's reference interpreter: thousands of times slower. It needs no CPU feature.
    Interpreter,
}

/// Location of experts at run time, for plans with expert groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpertStore {
    /// An expert cache in memory, within the budget; other experts are read from the drive when
    /// they are needed ([`crate::streaming`]).
    #[default]
    Stream,
    /// Memory-mapped files: the page cache decides which experts stay in memory
    /// ([`crate::page_cache_hints`]). The memory budget does not apply.
    Map,
}

/// Options for loading a plan.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// Number of threads; `None` means one for each available CPU.
    pub threads: Option<usize>,
    /// Whether threads are bound to processors. The caller's thread is bound only while it runs a
    /// step.
    pub pin: Pin,
    /// Use of the machine's NUMA nodes.
    pub numa: Numa,
    /// NUMA nodes and processors for [`EngineOptions::numa`]; `None` means those of this machine.
    pub topology: Option<Arc<Topology>>,
    /// Homes of the engine's threads on NUMA nodes. Loading sets them from [`EngineOptions::numa`].
    pub homes: Homes,
    /// Maximum length of a sequence in tokens. `None` means the model's context length, at most
    /// [`DEFAULT_CONTEXT`].
    pub context: Option<u64>,
    /// Maximum number of sequences at the same time; 0 means one. The memory for all their states
    /// counts against the budget, but is allocated only as they fill.
    pub sequences: u32,
    /// Condition for sharing the memory of a common prefix when a sequence is copied.
    pub sharing: Sharing,
    /// Maximum number of additions of a step beyond one for each sequence. With more additions, a
    /// step can have several consecutive additions to one sequence.
    pub more_additions: u32,
    /// Whether a sequence's results have the same bits with and without other sequences in the
    /// step, also on targets with AMX tiles. Tiles round activations differently from vectors, so
    /// the rows of each sequence are then multiplied separately. On targets without tiles, the bits
    /// are always the same.
    pub exact_batch: bool,
    /// The backend that runs kernels.
    pub backend: BackendKind,
    /// A model file that is compiled into the program, for plans that were made from it.
    pub built_in: Option<BuiltIn>,
    /// Whether to skip the checksums of weights in the plan's own file. Checking them reads these
    /// weights once, which is slow if the model is larger than memory.
    pub skip_weight_check: bool,
    /// Maximum bytes of memory of the whole process. If the plan has expert groups, experts are
    /// streamed, and the expert cache gets the bytes that the rest of the process leaves. Without
    /// expert groups, all weights must fit.
    pub memory: Option<u64>,
    /// Whether weights are locked in memory, so that the system neither swaps them out nor drops
    /// their pages. Experts that are streamed or in mapped files are not locked.
    pub lock: bool,
    /// Location of experts at run time.
    pub experts: ExpertStore,
    /// Settings of the expert cache. If its budget is not 0, blocks of experts take that many
    /// bytes; otherwise they take the bytes that [`EngineOptions::memory`] leaves.
    pub stream: Config,
    /// Rule for streamed experts that always stay in memory; `None` pins no expert.
    pub pins: Option<Pins>,
    /// Settings for reading experts before they are needed. By default, the strategy that is
    /// measured as fastest is used.
    pub prefetch: predict::PredictionSettings,
    /// Whether to measure the time of each task and the stalls, for
    /// [`Engine::take_stats`](crate::engine::Engine::take_stats).
    pub stats: bool,
    /// Recorder of this engine's events, if a trace is recorded.
    pub trace: Option<Arc<Recorder>>,
    /// The connection to the other ranks of the plan. With `None`, all ranks of a plan run in this
    /// process, each with its own threads.
    pub transport: Option<Arc<dyn Transport>>,
    /// Time limit of a step; `None` means no limit. If a step takes longer, it fails with
    /// [`ExecuteError::Deadline`](crate::execute::ExecuteError::Deadline).
    pub step_timeout: Option<Duration>,
    /// Counter that shows the progress of loading and of packing all weights.
    pub progress: Option<Arc<ProgressCounter>>,
}

/// Creates the thread pool, and binds its threads to processors if the options require it. Also
/// returns the processor of each thread, or the reason why threads are not bound.
pub(crate) fn pool(options: &EngineOptions) -> Result<(Pool, Result<Vec<usize>, PinRefusal>), LoadError> {
    let threads = options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    if threads == 0 || threads > MAX_THREADS {
        return Err(LoadError::Threads { found: threads });
    }
    // The machine is examined before the engine's threads start, because this counts the running
    // threads of other processes.
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
        // Without binding, threads run on any processor, and results are the same.
        tracing::warn!(%error, "threads are not bound to NUMA nodes");
    }
    Ok((pool, pinned_processors))
}

/// A model file that is compiled into the program.
#[derive(Clone, Copy)]
pub struct BuiltIn {
    /// Path of the file, as plans list it.
    pub path: &'static str,
    /// The file's content.
    pub bytes: &'static [u8],
}

impl std::fmt::Debug for BuiltIn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BuiltIn({:?}, {} bytes)", self.path, self.bytes.len())
    }
}
