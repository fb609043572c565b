//! Loading of a plan into an engine: checks the plan, maps files, verifies kernels and generates
//! code.
//!
//! Loading checks the plan's tables ([`Program::new`]), every kernel (the kernel verifier), and the
//! model files (length, and the checksum of their headers). It then generates machine code for the
//! plan's target and allocates memory. A weight is packed when a step first needs it. No code is
//! generated from a kernel that was not verified, and no memory is allocated before its size was
//! checked.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::Instant;

use ixc_codegen::module::Module;
use ixc_files::changed::ChangedFile;
use ixc_ir::derived::Indexed;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{ATTENTION_BLOCK, Plan, PlanWeight, SourceFile, WeightFile};
use ixc_targets::Target;

use crate::execute::{Backend, EngineMemory, PartResults};
use crate::executor::sequences::Sequences;
use crate::expert_counts::ExpertCounts;
use crate::expert_prefetch::Prefetcher;
use crate::expert_sort::Bucket;
use crate::experts::{self, Experts};
use crate::file::{OwnWeights, PlanFile, WeightsPlace};
use crate::homes::Homes;
use crate::model_files::open_files;
use crate::options::{BackendKind, EngineOptions, ExpertStore, pool};
use crate::page_cache_hints::Advice;
use crate::plan_check::{check_plan, target, work};
use crate::pool::{Pool, processors};
use crate::processors::{Pin, PinRefusal, allowed_cpus};
use crate::program::{MAX_CONTEXT, Program};
use crate::progress::{Activity, ProgressCounter};
use crate::saved::identity::{self, Sample};
use crate::saved::{Digest, Identity};
use crate::stats::{Clock, Stats};
use crate::storage::lock::lock;
use crate::storage::memory::{Inputs, Mapped, Memory, MemoryError, Region, Rope};
use crate::storage::pack::{self, Job};
use crate::storage::weight_source::{DerivedTensors, WeightSource};
use crate::storage::weights::{OnDemandPacking, Weight, Weights};
use crate::thread_count::ThreadCount;
use crate::trace::Recorder;
use crate::watchdog::Watchdog;

mod budget;
mod on_nodes;
mod sources;

pub use crate::error::load::LoadError;
pub use crate::model_files::{is_source, locate, use_files};
pub use crate::options::{BuiltIn, DEFAULT_CONTEXT};
pub use crate::plan_check::{check, verify};
pub use budget::SPARE_BYTES;
pub(crate) use budget::{RunSize, fixed_bytes, for_experts, needed_process_bytes, resident, resident_bytes};
use budget::{budget, for_recorder, stream_config};
use on_nodes::{copies_bytes, copies_weights, copy_to_homes};
use sources::Sources;

/// A loaded plan: everything that steps need.
#[derive(Debug)]
pub(crate) struct LoadedPlan {
    pub(crate) program: Program,
    pub(crate) backend: Backend,
    pub(crate) store: EngineMemory,
    pub(crate) pool: Pool,
    /// The thread that stops a step at its deadline; `None` if steps have no time limit.
    pub(crate) watchdog: Option<Watchdog>,
    /// The adaptive number of the pool's threads that run a step.
    pub(crate) thread_count: ThreadCount,
    /// The option for binding threads to processors. `pinned_processors` has the processor of each
    /// bound thread, or the reason why threads are not bound.
    pub(crate) pin: Pin,
    pub(crate) pinned_processors: Result<Vec<usize>, PinRefusal>,
    /// Homes of threads on NUMA nodes.
    pub(crate) homes: Homes,
    /// Processors on which the process was allowed to run when the plan was loaded.
    pub(crate) initial_processors: Vec<usize>,
    /// Maximum length of a sequence, in tokens.
    pub(crate) context: u32,
    /// Maximum number of additions in a step. An addition is a run of tokens added to one sequence.
    pub(crate) additions: u32,
    /// Whether the results of an addition must have the same bits as when it is alone in a step, at
    /// the expense of speed.
    pub(crate) exact_batch: bool,
    pub(crate) clocks: Vec<Mutex<Clock>>,
    pub(crate) stats: Stats,
    /// Number of times that each expert was chosen by a router.
    pub(crate) expert_counts: ExpertCounts,
    pub(crate) progress: Option<Arc<ProgressCounter>>,
    pub(crate) architecture: String,
    pub(crate) target: Target,
    pub(crate) tokenizer: Vec<u8>,
    /// Digest of the plan properties that determine the layout of the engine's memory.
    pub(crate) memory_digest: Digest,
    /// The memory budget and the number of bytes in use; `None` without a budget or if experts are
    /// streamed.
    pub(crate) budget: Option<(u64, u64)>,
    /// Bytes of weights that are locked in memory.
    pub(crate) locked: u64,
    /// Token that identifies the engine: a variant can run only in the engine that made it.
    pub(crate) owner: Arc<()>,
    /// Digest of the plan, for saved states. A saved state is identified by this digest and by the
    /// digest of `samples`, byte ranges of the weights. The digest of `samples` is computed on
    /// first use.
    pub(crate) plan_digest: Digest,
    samples: Vec<Sample>,
    weights_digest: OnceLock<Digest>,
}

impl LoadedPlan {
    /// Returns the identity of the plan and weights, which saved states are compared with.
    ///
    /// # Errors
    /// Fails if a file of weights changed before its bytes were read.
    pub(crate) fn identity(&self) -> Result<Identity, ChangedFile> {
        let weights = match self.weights_digest.get() {
            Some(digest) => *digest,
            None => {
                let digest = identity::of_weights(&self.samples, &self.store.files);
                self.store.files.iter().try_for_each(Mapped::check_unchanged)?;
                *self.weights_digest.get_or_init(|| digest)
            }
        };
        Ok(Identity { plan: self.plan_digest, weights })
    }

    /// Unbinds threads that were bound automatically ([`Pin::Auto`]).
    pub(crate) fn let_go(&mut self) {
        if self.pin == Pin::Auto && self.pinned_processors.is_ok() {
            let bound = match self.homes.all() {
                [] => self.pool.bind(&[], &self.initial_processors),
                [..] => self.homes.bind(&mut self.pool),
            };
            self.pinned_processors = Err(match bound {
                Ok(()) => PinRefusal::LetGo,
                Err(error) => PinRefusal::Refused(error.to_string()),
            });
        }
    }
}

/// Returns the present memory of the process, as a budget counts it. It is measured before files
/// are mapped, because mapped pages can be released.
pub(crate) fn process_bytes(options: &EngineOptions, plan: &Plan<Kernel>) -> u64 {
    let streams = options.memory.is_some() && !plan.expert_groups.is_empty();
    if streams { needed_process_bytes() } else { resident_bytes() }
}

/// Loads a plan, as [`Engine::load`](crate::engine::Engine::load) describes. If several engines are
/// loaded at the same time, `begun` is the memory of the process before the first one was loaded.
pub(crate) fn load(
    file: PlanFile,
    folder: &Path,
    options: &EngineOptions,
    begun: Option<u64>,
) -> Result<LoadedPlan, LoadError> {
    let PlanFile { mut plan, weights: own, mut model_files, .. } = file;
    if model_files.is_empty() {
        model_files = locate(&mut plan, folder, options.built_in);
    }
    let begun = begun.unwrap_or_else(|| process_bytes(options, &plan));
    let program = check_plan(&plan)?;
    let context = context(&plan, options)?;
    work(&plan, context)?;
    let (plan_digest, samples) = (identity::of_plan(&plan, context), identity::samples(&plan));
    let memory_digest = identity::of_memory(&plan);
    let expert_counts = ExpertCounts::new(&program, &plan.weights);
    options.pins.as_ref().map_or(Ok(()), |pins| expert_counts.check(&pins.chosen))?;
    // Rounding cannot exceed MAX_CONTEXT, which is a multiple of the attention block.
    let capacity = context.next_multiple_of(ATTENTION_BLOCK);
    // The processors are read before threads are bound, because binding changes the result. The
    // caller may also bind its own thread later.
    let initial_processors = allowed_cpus().unwrap_or_default();
    let _home = options.homes.enter();
    let (mut pool, pinned_processors) = pool(options)?;
    let threads = pool.threads();
    let watchdog = options.step_timeout.map(Watchdog::new).transpose();
    let watchdog = watchdog.map_err(|source| LoadError::Thread { source })?;
    let files = open_files(&plan, &model_files, folder, options)?;
    let own = own.map(|own| own.map().map(|mapped| (own, mapped))).transpose()?;
    let streamed = streamed_weights(&program, &plan, options);
    // With homes, all weights are copied to the homes' nodes, so steps read no page of a file.
    let copied = streamed.clone().or_else(|| Some(vec![false; plan.weights.len()]).filter(|_| copies_weights(options)));
    if copied.is_none() && options.experts != ExpertStore::Map {
        files.iter().chain(own.as_ref().map(|(_, mapped)| mapped)).for_each(Mapped::prefer_large_pages);
    }
    let target = target(&plan)?;
    // The budget is checked before weights are read, so that a plan that exceeds it is refused
    // early.
    let sequences = options.sequences.max(1);
    let run = RunSize { capacity, threads, sequences, more_additions: options.more_additions };
    let copies = copies_bytes(options, &plan, streamed.as_deref(), copied.as_deref())?;
    let fixed = begun.saturating_add(fixed_bytes(&program, &plan, streamed.as_deref(), &run)).saturating_add(copies);
    let layout = match &streamed {
        Some(_) => Some(layout(&program, &plan, folder, own.as_ref().map(|(own, _)| own.place()))?),
        None => None,
    };
    let mut for_experts = budget(options, &plan, fixed, layout.as_ref().map(|(layout, _)| layout))?;
    if let Some(trace) = &options.trace {
        if let (Some((layout, _)), Some(_)) = (&layout, options.memory) {
            for_experts = keep_within(trace, layout, for_experts, threads);
        }
        describe_threads(trace, &program, &plan, threads);
    }
    let taken = options.memory.filter(|_| layout.is_none()).map(|budget| (budget, resident(&plan, fixed)));
    if let Some((own, mapped)) = own.as_ref().filter(|_| !options.skip_weight_check) {
        check_own_weights(own, mapped, &program, &plan, streamed.as_deref(), &mut pool, options)?;
    }
    let checked = own.as_ref().filter(|_| !options.skip_weight_check).map(|(own, _)| own.place().path);
    let own = own.map(|(_, mapped)| mapped);
    let sources =
        Sources { files: &files, derived_tensors: DerivedTensors::new(&plan.derived, &files), own: own.as_ref() };
    let weights = weights(&plan.weights, &sources, copied.as_deref(), threads)?;
    let backend = make_backend(std::mem::take(&mut plan.kernels), target, options)?;
    let files = files.into_iter().chain(own).collect();
    let mut store = memory(&program, &plan, context, &run, options, MappedWeights { files, weights })?;
    if options.experts == ExpertStore::Map && !program.groups.is_empty() {
        let advice = Advice::new(&program, &plan.weights, plan.files.len());
        store.advice = Some(advice.map_err(|weight| LoadError::PackedExperts { weight })?);
    }
    if let Some((layout, paths)) = layout {
        let config = stream_config(options, for_experts, &expert_counts, watchdog.as_ref());
        let prefetcher = Prefetcher::new(&program, &layout.blocks, options.prefetch, threads);
        let experts = Experts::new(layout, &paths, checked, &config, prefetcher)
            .map_err(|source| LoadError::Stream(Box::new(source)))?;
        stream(&mut store, experts, &mut pool, options)?;
    } else if copies_weights(options) {
        copy_to_homes(&mut store, &mut pool, options)?;
    }
    let locked = if options.lock { lock_weights(&program, &store.weights, options)? } else { 0 };
    let clocks =
        if options.stats { (0..threads).map(|_| Mutex::new(Clock::new(&program))).collect() } else { Vec::new() };
    Ok(LoadedPlan {
        program,
        backend,
        store,
        pool,
        watchdog,
        thread_count: ThreadCount::new(threads, processors()),
        pin: options.pin,
        pinned_processors,
        homes: options.homes.clone(),
        initial_processors,
        context,
        additions: run.additions(),
        exact_batch: options.exact_batch,
        clocks,
        stats: Stats { threads, ..Stats::default() },
        expert_counts,
        progress: options.progress.clone(),
        architecture: plan.architecture,
        target,
        tokenizer: plan.tokenizer,
        memory_digest,
        budget: taken,
        locked,
        owner: Arc::default(),
        plan_digest,
        samples,
        weights_digest: OnceLock::new(),
    })
}

/// Returns the maximum length of a sequence, in tokens: from the options, or the default.
fn context(plan: &Plan<Kernel>, options: &EngineOptions) -> Result<u32, LoadError> {
    let max = plan.context_length.min(MAX_CONTEXT);
    let found = options.context.unwrap_or(max.min(DEFAULT_CONTEXT).into());
    match u32::try_from(found) {
        Ok(context) if (1..=max).contains(&context) => Ok(context),
        Ok(_) | Err(_) => Err(LoadError::Context { found, max }),
    }
}

/// Adds a phase of loading to the trace, if a trace is recorded.
fn record_phase(options: &EngineOptions, begun: Instant, what: &'static str) {
    options.trace.iter().for_each(|trace| trace.phase(begun, what));
}

/// Limits the memory of the trace recorder to a part of the experts' budget. Returns the remaining
/// budget for experts.
fn keep_within(trace: &Recorder, layout: &experts::Layout, for_experts: u64, threads: usize) -> u64 {
    let min = layout.min_bytes();
    let room = for_recorder(for_experts, min, threads);
    trace.keep_within(room, threads);
    for_experts.saturating_sub(room).max(min)
}

/// Passes the names of the plan's tasks and kernels to the trace recorder.
fn describe_threads(trace: &Recorder, program: &Program, plan: &Plan<Kernel>, threads: usize) {
    let tasks = program.stages.iter().flat_map(|stage| &stage.tasks);
    let kernels = plan.kernels.iter().map(|kernel| kernel.name.clone()).collect();
    trace.describe_threads(threads, tasks.map(|task| task.label.clone()).collect(), kernels);
}

/// Creates the backend that runs the plan's kernels, and records the time that this takes.
fn make_backend(kernels: Vec<Kernel>, target: Target, options: &EngineOptions) -> Result<Backend, LoadError> {
    let (begin, count) = (Instant::now(), kernels.len());
    options.progress.iter().for_each(|progress| progress.begin(Activity::Generating, 0));
    let backend = backend(options.backend, kernels, target)?;
    tracing::info!(kernels = count, ?target, elapsed = ?begin.elapsed(), "kernels ready");
    record_phase(options, begin, "generate code");
    Ok(backend)
}

/// Checks the weights in the plan's own file. Streamed weights are not checked here, because that
/// would read the whole model; each one is checked when it is read.
fn check_own_weights(
    own: &OwnWeights,
    mapped: &Mapped,
    program: &Program,
    plan: &Plan<Kernel>,
    streamed: Option<&[bool]>,
    pool: &mut Pool,
    options: &EngineOptions,
) -> Result<(), LoadError> {
    let begin = Instant::now();
    let streamed = |weight: usize| is_streamed(streamed, weight);
    own.check(mapped, &plan.weights, &program.groups, &streamed, pool, options.progress.as_deref())?;
    tracing::info!(bytes = plan.own_weight_bytes, elapsed = ?begin.elapsed(), "weights checked");
    record_phase(options, begin, "check weights");
    Ok(())
}

/// The weights of a plan, and the mapped files that they are read from.
struct MappedWeights {
    files: Vec<Mapped>,
    weights: Weights,
}

/// Allocates the memory that steps use.
fn memory(
    program: &Program,
    plan: &Plan<Kernel>,
    context: u32,
    run: &RunSize,
    options: &EngineOptions,
    MappedWeights { files, weights }: MappedWeights,
) -> Result<EngineMemory, LoadError> {
    let top_k: Vec<u32> = program.routings.iter().map(|routing| routing.top_k).collect();
    let each_thread = |what, bytes| (0..run.threads).map(move |_| Memory::zeroed(what, bytes, false));
    Ok(EngineMemory {
        arena: Memory::zeroed("the arena", plan.arena_bytes, true)?,
        files,
        weights,
        experts: None,
        advice: None,
        trace: options.trace.clone(),
        ropes: plan.ropes.iter().map(|table| Rope::new(table, run.capacity, context)).collect::<Result<_, _>>()?,
        sequences: Sequences::new(run.sequences, plan.states.clone(), run.capacity, plan.max_tokens, options.sharing)?,
        capacity: run.capacity,
        parts: PartResults::new(program, run.additions())?,
        inputs: Inputs::new(plan.max_tokens, &top_k, &program.row_inputs, &program.ngrams)?,
        scratch: each_thread("scratch memory", program.scratch_bytes).collect::<Result<_, _>>()?,
        chosen: each_thread("chosen places", program.chosen_bytes).collect::<Result<_, _>>()?,
        buckets: top_k.iter().map(|_| RwLock::new(Bucket::default())).collect(),
        ranks: None,
        sorting: Mutex::new(Vec::new()),
    })
}

/// Sets up the streaming of experts. Reads the pinned experts, and all weights that are not
/// streamed.
fn stream(
    store: &mut EngineMemory,
    experts: Experts,
    pool: &mut Pool,
    options: &EngineOptions,
) -> Result<(), LoadError> {
    // The expert cache opens the files again by their paths. They must be the files whose headers
    // and weights were checked.
    let mapped: Vec<_> = store.files.iter().map(Mapped::identity).collect();
    experts.store().check_same(&mapped).map_err(|source| LoadError::Stream(Box::new(source)))?;
    store.experts = Some(experts);
    // Weights that are not streamed are read now. Mapped files could change later, and their pages
    // are not part of the budget.
    let begin = Instant::now();
    pack_all(&mut store.weights, &store.files, pool, options.progress.as_deref())?;
    record_phase(options, begin, "bring other weights into memory");
    if let Some(experts) = &store.experts {
        let begin = Instant::now();
        let read = experts.read_kept(pool, options.progress.as_deref());
        read.map_err(|source| LoadError::Pack { source })?;
        record_phase(options, begin, "read experts that stay");
    }
    Ok(())
}

/// Locks weights in memory, and returns the number of locked bytes.
fn lock_weights(program: &Program, weights: &Weights, options: &EngineOptions) -> Result<u64, LoadError> {
    // Experts in mapped files are not locked, because the page cache decides which of them stay in
    // memory.
    let experts = |number| program.groups.iter().any(|group| group.weights.iter().any(|w| *w as usize == number));
    let is_left_out = |number| options.experts == ExpertStore::Map && experts(number);
    Ok(lock(&weights.regions(is_left_out))?)
}

/// Creates the backend that runs kernels, which must be verified.
pub(crate) fn backend(kind: BackendKind, kernels: Vec<Kernel>, target: Target) -> Result<Backend, LoadError> {
    Ok(match kind {
        BackendKind::Native => {
            Backend::Native(Module::compile(&kernels, target).map_err(Box::new).map_err(LoadError::Codegen)?)
        }
        BackendKind::Emulated => Backend::compile_emulated(&kernels, target)?,
        BackendKind::Interpreter => Backend::Interpreter { kernels, turn: Mutex::new(()) },
    })
}

fn is_streamed(streamed: Option<&[bool]>, number: usize) -> bool {
    streamed.is_some_and(|streamed| streamed.get(number).copied().unwrap_or(false))
}

/// Returns whether a weight is copied or packed into memory outside mapped files. If `streamed` is
/// given, only streamed weights and expert blocks stay in files. `streamed` selects no weight if
/// weights are copied to NUMA nodes.
fn in_memory(streamed: Option<&[bool]>, number: usize, weight: &PlanWeight) -> bool {
    let made = weight.is_packed_at_load() || matches!(weight.file, WeightFile::Derived(_));
    let copied = streamed.is_some() && !matches!(weight.file, WeightFile::Blocks { .. });
    !is_streamed(streamed, number) && weight.bytes > 0 && (made || copied)
}

fn packed_bytes(weight: &PlanWeight) -> u64 {
    weight.bytes_in(weight.format).unwrap_or(u64::MAX)
}

/// Returns the offsets of the weights that are copied or packed into memory, and the total bytes of
/// that memory.
fn own_memory_layout(weights: &[PlanWeight], streamed: Option<&[bool]>) -> (Vec<u64>, u64) {
    let kept = weights.iter().enumerate().filter(|(i, weight)| in_memory(streamed, *i, weight));
    pack::layout(kept.map(|(_, weight)| packed_bytes(weight)))
}

/// Returns the address of each weight: in a mapped file, or in the memory that it will be packed
/// into. `Program::new` proved that each weight lies inside its file, that the file has the
/// expected length, and that packing fits.
fn weights(
    weights: &[PlanWeight],
    sources: &Sources<'_>,
    streamed: Option<&[bool]>,
    threads: usize,
) -> Result<Weights, LoadError> {
    let no_memory = |what, bytes| MemoryError { what, bytes, source: io::ErrorKind::OutOfMemory.into() };
    let is_streamed = |number: usize| is_streamed(streamed, number);
    let (offsets, bytes) = own_memory_layout(weights, streamed);
    let memory = Memory::zeroed("packed weights", bytes, true)?;
    let nowhere = Region::from_bytes(&mut []);
    let mut offsets = offsets.into_iter();
    let mut places = Vec::with_capacity(weights.len());
    for (i, weight) in weights.iter().enumerate() {
        let (place, number) = sources.source(weight)?;
        let place = place.ok_or_else(|| no_memory("a weight in its file", weight.bytes))?;
        if !in_memory(streamed, i, weight) {
            // A streamed weight has no fixed address.
            let region = match place {
                WeightSource::Mapped(region) if is_streamed(i) => region.part(0, 0).unwrap_or(region),
                WeightSource::Mapped(region) => region,
                WeightSource::Derived(_) => nowhere,
            };
            // `Program::new` checked that a weight in blocks has at least one expert.
            let matrices = match (weight.file, weight.shape.first()) {
                (WeightFile::Blocks { stride }, Some(&experts)) => Some((stride, weight.bytes / experts.max(1))),
                _ => None,
            };
            places.push(Weight { region, matrices, on_demand: None });
            continue;
        }
        let to = offsets.next().and_then(|offset| memory.region().part(offset, packed_bytes(weight)));
        let to = to.ok_or_else(|| no_memory("a packed weight", packed_bytes(weight)))?;
        if !weight.is_packed_at_load() {
            // SAFETY: `to` is new memory, mapped and so initialised, that nothing else uses. The
            // other regions are mapped.
            let out = unsafe { std::slice::from_raw_parts_mut(to.base(), to.bytes() as usize) };
            // SAFETY: as above.
            if !unsafe { place.read(0, out) } {
                return Err(no_memory("a weight in its file", weight.bytes).into());
            }
            match sources.files.get(number) {
                Some(file) => file.release(weight.offset, weight.bytes),
                None => place.release(sources.files),
            }
            places.push(Weight { region: to, matrices: None, on_demand: None });
            continue;
        }
        let columns = weight.shape.last().copied().unwrap_or(0);
        // Number of matrices of the weight: the product of all dimensions except rows and columns.
        let parts = weight.shape.iter().rev().skip(2).fold(1u64, |product, n| product.saturating_mul(*n));
        let on_demand = Job::new(weight.stored, weight.format, columns, place, to)
            .inspect(Job::generate_code)
            .and_then(|job| OnDemandPacking::new(job, number, weight.offset, parts))
            .ok_or_else(|| no_memory("a packed weight", packed_bytes(weight)))?;
        places.push(Weight { region: to, matrices: None, on_demand: Some(on_demand) });
    }
    Ok(Weights::new(places, memory, threads))
}

/// Returns, for each weight, whether it is streamed. Returns `None` without a budget, with experts
/// in mapped files, for plans without expert groups, and for built-in model files, which are in
/// memory anyway.
pub(crate) fn streamed_weights(program: &Program, plan: &Plan<Kernel>, options: &EngineOptions) -> Option<Vec<bool>> {
    let built_in = |file: &SourceFile| options.built_in.is_some_and(|built_in| built_in.path == file.path);
    if options.experts == ExpertStore::Map
        || options.memory.is_none() && options.stream.budget == 0
        || program.groups.is_empty()
        || plan.files.iter().any(built_in)
    {
        return None;
    }
    let mut streamed = vec![false; plan.weights.len()];
    for &weight in program.groups.iter().flat_map(|group| &group.weights) {
        // `Program::new` checked that the weight exists.
        streamed[weight as usize] = true;
    }
    Some(streamed)
}

/// Returns the layout of streamed experts, and the paths of the files that contain them.
pub(crate) fn layout(
    program: &Program,
    plan: &Plan<Kernel>,
    folder: &Path,
    own: Option<WeightsPlace>,
) -> Result<(experts::Layout, Vec<PathBuf>), LoadError> {
    let mut paths: Vec<PathBuf> = plan.files.iter().map(|file| folder.join(&file.path)).collect();
    let own_number = paths.len() as u32;
    let own_offset = own.map(|WeightsPlace { path, offset }| {
        paths.push(path);
        offset
    });
    let streamed =
        program.groups.iter().flat_map(|group| &group.weights).filter_map(|&weight| plan.weights.get(weight as usize));
    let own = |weight: &PlanWeight| matches!(weight.file, WeightFile::Plan | WeightFile::Blocks { .. });
    if own_offset.is_none() && streamed.into_iter().any(own) {
        return Err(LoadError::NoWeights);
    }
    let derived: Vec<Indexed> = plan.derived.iter().map(|derived| derived.clone().with_index()).collect();
    let place = |weight: &PlanWeight, offset: u64| match weight.file {
        WeightFile::Source(file) => Some((file, weight.offset.checked_add(offset)?)),
        WeightFile::Plan | WeightFile::Blocks { .. } => {
            Some((own_number, own_offset?.checked_add(weight.offset)?.checked_add(offset)?))
        }
        WeightFile::Derived(number) => {
            let matrix = weight.bytes.checked_div(*weight.shape.first()?)?;
            derived.get(number as usize)?.place(weight.offset.checked_add(offset)?, matrix)
        }
    };
    // All experts of a weight are stored in the same way, so only the first expert is tested.
    let groups = || program.groups.iter().flat_map(|group| &group.weights);
    let weights = groups().filter_map(|&weight| plan.weights.get(weight as usize));
    if let Some(weight) = weights.into_iter().find(|weight| place(weight, 0).is_none()) {
        return Err(LoadError::ConvertedExperts { weight: weight.name.clone() });
    }
    let no_memory =
        || MemoryError { what: "streamed experts", bytes: u64::MAX, source: io::ErrorKind::OutOfMemory.into() };
    let layout = experts::Layout::new(program, &plan.weights, &place).ok_or_else(no_memory)?;
    Ok((layout, paths))
}

/// Packs all weights that are not packed yet; see
/// [`Engine::pack_weights`](crate::engine::Engine::pack_weights).
pub(crate) fn pack_all(
    weights: &mut Weights,
    files: &[Mapped],
    pool: &mut Pool,
    progress: Option<&ProgressCounter>,
) -> Result<(), LoadError> {
    let missing = weights.all_missing();
    let begin = Instant::now();
    let jobs = weights.jobs(&missing);
    let shared: &Weights = weights;
    let bytes = |job: &Job| job.strips().saturating_mul(job.strip_bytes().0);
    let total = jobs.iter().fold(0u64, |sum, job| sum.saturating_add(bytes(job)));
    progress.iter().for_each(|progress| progress.begin(Activity::Packing, total));
    let done = |job: usize| {
        shared.mark_ready(missing.get(job..job + 1).unwrap_or_default(), files);
        if let (Some(progress), Some(job)) = (progress, jobs.get(job)) {
            progress.add(bytes(job));
        }
    };
    let packed = |job: usize, strip| missing.get(job).map_or((), |part| shared.release(*part, strip, files));
    // SAFETY: the sources lie in mapped files. The destinations do not overlap and lie in memory
    // that no kernel reads, because the weights are borrowed exclusively.
    unsafe { pack::run(&jobs, pool, &packed, &done) }.map_err(|source| LoadError::Pack { source })?;
    tracing::info!(parts = missing.len(), elapsed = ?begin.elapsed(), "weights packed");
    Ok(())
}
