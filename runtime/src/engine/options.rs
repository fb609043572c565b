//! How a plan is loaded.

use std::sync::Arc;

use super::expert_use::Pins;
use crate::error::load::LoadError;
use crate::gauge::Gauge;
use crate::pool::{MAX_THREADS, Pool};
use crate::processors::{Machine, Pin, Unpinned};
use crate::shared_pages::Sharing;
use crate::stream::predict;
use crate::stream::store::Config;
use crate::trace::Recorder;

/// Context unless told otherwise, where the model has one that long: the KV cache takes memory only as it fills, but positions
/// beyond what people use need not be reserved.
pub const DEFAULT_CONTEXT: u32 = 4096;

/// What runs kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendKind {
    /// Machine code for the plan's target.
    #[default]
    Native,
    /// The same machine code in the emulator: a thousand times slower, needs no CPU feature, and is checked at every step.
    Emulated,
    /// The kernel IR's reference interpreter: thousands of times slower, needs no CPU feature.
    Interpreter,
}

/// Where experts are that a plan says are needed now and then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpertStore {
    /// In memory as far as the budget lets them, and read from the drive when they are needed: [`crate::stream`].
    #[default]
    Stream,
    /// In their mapped files, of which the page cache keeps what it likes: [`crate::page_cache_hints`]. There is no budget then.
    Map,
}

/// How a plan is loaded.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Threads; all CPUs where `None`.
    pub threads: Option<usize>,
    /// Whether threads are bound to processors; the caller's is while it runs a step, and not between steps.
    pub pin: Pin,
    /// Longest sequence; the model's context but at most [`DEFAULT_CONTEXT`] where `None`.
    pub context: Option<u32>,
    /// Sequences that there can be at once; one where it is 0. Memory for the states of as many is counted, and taken as they fill.
    pub sequences: u32,
    /// When sequences share the memory of what they begin with, where one was copied from another.
    pub sharing: Sharing,
    /// Additions of a step beside one for each sequence: where several go to one sequence, one behind the other.
    pub more_additions: u32,
    /// Whether each sequence of a step has the bits that it has alone also where tiles multiply, which round activations otherwise: its rows are then
    /// multiplied on their own. On targets without tiles it has those bits anyway.
    pub exact_batch: bool,
    /// What runs kernels.
    pub backend: BackendKind,
    /// A model file that is a part of the program, for plans that name it.
    pub built_in: Option<BuiltIn>,
    /// Whether the checksums of weights in the plan's own file are left unread: reading them takes all of the weights through
    /// memory once, which for a model that is larger than memory is much.
    pub skip_weight_check: bool,
    /// Bytes that the process may take, all told. Where a plan says when its experts are needed, these are then read when they are, into
    /// what the rest leaves of the budget; without one, and in other plans, everything stays in memory.
    pub memory: Option<u64>,
    /// Whether weights are locked in memory, so that the system neither swaps them out nor drops
    /// their pages: all but experts that are not all there.
    pub lock: bool,
    /// Where experts are.
    pub experts: ExpertStore,
    /// How experts are read; a budget in it that is not 0 is for their blocks alone, and what [`Options::memory`] leaves otherwise.
    pub stream: Config,
    /// Which of them stay in memory; none where nothing is said.
    pub pins: Option<Pins>,
    /// Which of them are read ahead; by default whichever way is measured to pay.
    pub prefetch: predict::Settings,
    /// Whether [`Engine::take_stats`](crate::engine::Engine::take_stats) shall know tasks and stalls.
    pub stats: bool,
    /// Who is told what happens when; of this engine alone.
    pub trace: Option<Arc<Recorder>>,
    /// What is told how far loading is, and packing all weights.
    pub gauge: Option<Arc<Gauge>>,
}

/// The threads that options ask for, and the processor of each where they are bound; or why they are not.
pub(crate) fn pool(options: &Options) -> Result<(Pool, Result<Vec<usize>, Unpinned>), LoadError> {
    let threads = options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    if threads == 0 || threads > MAX_THREADS {
        return Err(LoadError::Threads { found: threads });
    }
    // Before there are more threads of ours: those of others are counted.
    let machine = Some(options.pin).filter(|pin| *pin != Pin::Off).map(|_| Machine::here().unwrap_or_default());
    let mut pool = Pool::new(threads).map_err(|source| LoadError::Thread { source })?;
    let pinned = machine.map_or(Err(Unpinned::Off), |machine| {
        let processors = machine.pinned(options.pin, threads)?;
        pool.bind(&processors, &machine.allowed).map_err(|error| Unpinned::Refused(error.to_string()))?;
        Ok(processors)
    });
    Ok((pool, pinned))
}

/// A model file that is a part of the program.
#[derive(Clone, Copy)]
pub struct BuiltIn {
    /// What plans name as its path.
    pub path: &'static str,
    /// Its bytes.
    pub bytes: &'static [u8],
}

impl std::fmt::Debug for BuiltIn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BuiltIn({:?}, {} bytes)", self.path, self.bytes.len())
    }
}
