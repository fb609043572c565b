//! Engines of several ranks. Callers use the engine of rank 0 like the engine of a whole model.
//! Rank 0 sends each operation on sequences to the other ranks, which execute it, too
//! ([`Engine::follow`]).
//!
//! ```text
//! rank 0    step_batch ─▶ command ─▶ own stages ─▶ exchanges ─▶ logits
//! rank 1    follow     ◀─ command    own stages ─▶ exchanges
//! ```
//!
//! If no transport is given, the other ranks of a plan run in threads of this process.
//!
//! Invariant: all ranks have the same sequences with the same numbers of tokens. If a rank differs
//! from rank 0, the run ends.

pub(super) mod command;
mod counts;
mod hello;
mod matching;
pub(super) mod member;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use ixc_failure::Class;
use ixc_files::SignalStack;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Output, Plan, Ranks, SourceFile};
use ixc_transport::{Transport, local, reason};

use super::sequence::Engine;
use super::step::{Addition, SequenceId, StepError};
use crate::error::ranks::RanksError;
use crate::execute::{ExecuteError, RankLink};
use crate::file::{PlanFile, VERSION};
use crate::homes::RankMemory;
use crate::load::{self, LoadError};
use crate::options::EngineOptions;
use crate::places;
use crate::processors::Pin;
use crate::program;
use crate::saved::{Digest, identity};
use command::Command;
pub use command::CommandError;
pub use counts::RankCounts;
use member::Member;

/// The reason why a rank stopped executing the commands of rank 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FollowError {
    /// The engine belongs to rank 0 or to a whole model, so it cannot follow rank 0.
    #[error("rank 0 follows no other rank")]
    NoFollower,
    /// A command from rank 0 was not received.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A step failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A command had another result than on rank 0: a number of tokens, or the number of a new
    /// sequence.
    #[error("a sequence has {found} tokens on rank {rank}, and {expected} on rank 0; this is a bug")]
    Differs {
        /// This rank.
        rank: u32,
        /// Result on this rank.
        found: u32,
        /// Result on rank 0.
        expected: u32,
    },
}

impl FollowError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            FollowError::Command(error) => error.class(),
            FollowError::Step(error) => error.class(),
            FollowError::NoFollower | FollowError::Differs { .. } => Class::Data,
        }
    }
}

/// Loads a plan file. With a transport, loads the plan of the transport's rank; otherwise loads the
/// plans of all ranks in this process.
fn load(file: PlanFile, folder: &Path, options: &EngineOptions) -> Result<Engine, LoadError> {
    let expected = file.plan.ranks.map_or(1, |ranks| ranks.ranks);
    check_group(&file)?;
    match &options.transport {
        None if expected == 1 => {
            let options = places::of_whole(options)?;
            Ok(Engine::with(load::load(file, folder, &options, None)?, None))
        }
        None => all_here(file, folder, options),
        Some(transport) if transport.ranks() == expected => {
            let transport = Arc::clone(transport);
            let digest = digest(&file);
            let part = part(file, transport.rank());
            let link = Link { transport: &transport, digest, begun: None, memory: Arc::default() };
            let own = places::of_process(options, transport.ranks());
            let joined = own.and_then(|own| join(part, folder, &own, &link));
            joined.inspect_err(|error| transport.end(&reason(error)))
        }
        Some(transport) => {
            let error = RanksError::Count { found: transport.ranks().into(), expected: expected.into() };
            transport.end(&reason(&error));
            Err(error.into())
        }
    }
}

/// Maximum number of ranks of one process. The compiler divides a model among at most as many
/// ranks.
const MAX_RANKS_HERE: usize = 64;

/// Returns the plans of all ranks, in order of rank.
fn plans(file: &PlanFile) -> impl Iterator<Item = &Plan<Kernel>> {
    [&file.plan].into_iter().chain(&file.other_ranks)
}

/// Returns the digest of the plans of all ranks and of their model files.
fn digest(file: &PlanFile) -> Digest {
    let digests: Vec<Digest> = plans(file).map(identity::of_rank).collect();
    let sources: Vec<(u64, u32)> = file.plan.files.iter().map(|file| (file.bytes, file.header_crc)).collect();
    hello::digest(&digests, &sources)
}

/// Returns the contents of the plan file for one rank. The paths of model files come from rank 0,
/// because only its plan has the paths on this machine.
fn part(mut file: PlanFile, rank: u32) -> PlanFile {
    if let Some(own) = rank.checked_sub(1) {
        let plan = file.other_ranks.swap_remove(own as usize);
        let files = std::mem::replace(&mut file.plan, plan).files;
        use_paths(&mut file.plan, &files);
    }
    file.other_ranks.clear();
    file
}

/// Replaces the paths of a plan's model files by those of `files`, if both have the same number of
/// files.
fn use_paths(plan: &mut Plan<Kernel>, files: &[SourceFile]) {
    if plan.files.len() == files.len() {
        plan.files.iter_mut().zip(files).for_each(|(own, found)| own.path.clone_from(&found.path));
    }
}

/// Checks that a file has a plan for each rank, and that the exchanges of the plans match.
fn check_group(file: &PlanFile) -> Result<(), LoadError> {
    let expected = file.plan.ranks.map_or(1, |ranks| u64::from(ranks.ranks));
    let found = 1 + file.other_ranks.len() as u64;
    if found != expected {
        return Err(RanksError::Count { found, expected }.into());
    }
    for (expected, plan) in (0..).zip(plans(file)) {
        let own = plan.ranks.map_or((0, 1), |ranks| (ranks.rank, u64::from(ranks.ranks)));
        if own != (expected, found) {
            return Err(RanksError::Order { found: own.0, expected }.into());
        }
        let first = &file.plan;
        let limits = |plan: &Plan<Kernel>| (plan.max_tokens, plan.vocabulary, plan.context_length);
        if limits(plan) != limits(first) {
            return Err(RanksError::Differs { rank: expected, what: "length of a step, vocabulary or context" }.into());
        }
        program::check_ranks(plan)?;
    }
    Ok(matching::check(&plans(file).collect::<Vec<_>>())?)
}

/// Loads all ranks in this process. Each rank other than 0 runs in its own thread. Returns the
/// engine of rank 0.
fn all_here(mut file: PlanFile, folder: &Path, options: &EngineOptions) -> Result<Engine, LoadError> {
    let ranks = 1 + file.other_ranks.len();
    if ranks > MAX_RANKS_HERE {
        return Err(RanksError::TooManyHere { found: ranks, max: MAX_RANKS_HERE }.into());
    }
    let digest = digest(&file);
    let others = std::mem::take(&mut file.other_ranks);
    let begun = load::process_bytes(options, &file.plan);
    let mut each = options.clone();
    // Each rank gets an equal part of the memory budget.
    each.memory = options.memory.map(|memory| begun.saturating_add(memory.saturating_sub(begun) / ranks as u64));
    each.stream.budget /= ranks as u64;
    let first_file = file.plan.files.first().map(|file| folder.join(&file.path));
    let all = places::of_ranks(&each, ranks, first_file.as_deref())?;
    let mut all = all.into_iter().map(|options| rank_options(options, ranks));
    let Some(own_options) = all.next() else { return Err(LoadError::NoSteps) };
    let memory = Arc::<Mutex<Vec<RankMemory>>>::default();
    let mut transports =
        local::group(ranks as u32).into_iter().map(|transport| Arc::new(transport) as Arc<dyn Transport>);
    let Some(own) = transports.next() else { return Err(LoadError::NoSteps) };
    let mut followers = Vec::with_capacity(ranks);
    for ((transport, mut plan), options) in transports.zip(others).zip(all) {
        let options = EngineOptions { trace: None, progress: None, pins: None, ..options };
        let (folder, memory) = (folder.to_owned(), Arc::clone(&memory));
        use_paths(&mut plan, &file.plan.files);
        let file = PlanFile { model_files: file.model_file_handles()?, ..PlanFile::new(plan) };
        let name = format!("rank {}", transport.rank());
        let run = move || {
            // The thread only works for this rank, so it stays bound to the rank's home.
            let _home = options.homes.enter();
            let link = Link { transport: &transport, digest, begun: Some(begun), memory };
            match join(file, &folder, &options, &link) {
                // `follow` reports an error to the other ranks, so it is ignored here.
                Ok(mut engine) => drop(engine.follow()),
                Err(error) => transport.end(&reason(&error)),
            }
        };
        let thread = std::thread::Builder::new().name(name).spawn(move || SignalStack::default().run(run));
        followers.push(thread.map_err(|source| LoadError::Thread { source })?);
    }
    let joined = join(file, folder, &own_options, &Link { transport: &own, digest, begun: Some(begun), memory });
    let mut engine = joined.inspect_err(|error| own.end(&reason(error)))?;
    if let Some(member) = &mut engine.ranks {
        member.followers = followers;
    }
    Ok(engine)
}

/// Arguments for a rank that joins the group of ranks.
struct Link<'t> {
    transport: &'t Arc<dyn Transport>,
    /// Digest of the plans of all ranks and of their model files.
    digest: Digest,
    /// Memory of the process before it loaded any rank, if all ranks are in this process.
    begun: Option<u64>,
    /// Memory of those ranks of this process that have homes on NUMA nodes.
    memory: Arc<Mutex<Vec<RankMemory>>>,
}

/// Returns the options of one of several ranks in this process. If a rank has no home, it gets an
/// equal part of the processors as threads.
fn rank_options(options: EngineOptions, ranks: usize) -> EngineOptions {
    if !options.homes.all().is_empty() {
        return options;
    }
    let equal = || std::thread::available_parallelism().map_or(1, usize::from).div_ceil(ranks);
    // The pools of several ranks share the processors, so threads are not bound.
    EngineOptions { threads: Some(options.threads.unwrap_or_else(equal)), pin: Pin::Off, ..options }
}

/// Loads the plan of a rank, and compares version, plan and options with rank 0.
fn join(file: PlanFile, folder: &Path, options: &EngineOptions, link: &Link<'_>) -> Result<Engine, LoadError> {
    let &Link { transport, digest, begun, .. } = link;
    let mut loaded = load::load(file, folder, options, begun)?;
    loaded.store.ranks = Some(RankLink::new(Arc::clone(transport)));
    let own = loaded.homes.all().first().map(|home| RankMemory {
        rank: transport.rank(),
        home: Arc::clone(home),
        regions: loaded.store.node_regions(),
    });
    link.memory.lock().unwrap_or_else(PoisonError::into_inner).extend(own);
    let hello = hello::Hello {
        version: VERSION,
        plan: digest,
        context: loaded.context,
        sequences: loaded.store.sequences.max_sequences(),
        additions: loaded.additions,
        exact: loaded.exact_batch,
        min_rows: loaded.program.min_rows(loaded.exact_batch),
    };
    // A `Member` of rank 0 ends the run when it is dropped. So it is only created after all ranks
    // have joined.
    let min_rows = hello.shake(&**transport)?;
    let memory = Arc::clone(&link.memory);
    let member = Member { transport: Arc::clone(transport), followers: Vec::new(), min_rows, memory };
    Ok(Engine::with(loaded, Some(member)))
}

impl Engine {
    /// Checks a plan, maps its model files, and generates its code. Relative paths in the plan are
    /// relative to `folder`.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load(plan: Plan<Kernel>, folder: &Path, options: &EngineOptions) -> Result<Engine, LoadError> {
        Engine::load_file(PlanFile::new(plan), folder, options)
    }

    /// Loads a plan whose file may contain weights. These weights are mapped in place. Otherwise
    /// does the same as [`Engine::load`].
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load_file(file: PlanFile, folder: &Path, options: &EngineOptions) -> Result<Engine, LoadError> {
        if let Output::Experts { .. } = file.plan.output {
            return Err(LoadError::NoSteps);
        }
        load(file, folder, options)
    }

    /// Returns the rank of this engine and the number of ranks; `None` for a whole model.
    pub fn ranks(&self) -> Option<Ranks> {
        self.loaded.program.ranks
    }

    /// Whether the model is divided among several ranks.
    pub fn is_divided(&self) -> bool {
        self.ranks().is_some_and(|ranks| ranks.ranks > 1)
    }

    /// Returns the reason why the group of ranks has ended. Every later step fails with this error.
    /// Returns `None` if the group has not ended, and for a whole model.
    pub fn end_of_group(&self) -> Option<StepError> {
        let end = self.ranks.as_ref()?.transport.end_of_group()?;
        Some(ExecuteError::from(end).into())
    }

    /// Executes the operations that rank 0 sends, until rank 0 drops its engine.
    ///
    /// # Errors
    /// See [`FollowError`]. After an error, all ranks end.
    pub fn follow(&mut self) -> Result<(), FollowError> {
        let Some(Member { transport, .. }) = &self.ranks else { return Err(FollowError::NoFollower) };
        let transport = Arc::clone(transport);
        if transport.rank() == 0 {
            return Err(FollowError::NoFollower);
        }
        let followed = self.follow_commands(&*transport);
        followed.inspect_err(|error| transport.end(&reason(error)))
    }

    fn follow_commands(&mut self, transport: &dyn Transport) -> Result<(), FollowError> {
        loop {
            let (found, expected) = match command::receive(transport)? {
                Command::End => return Ok(()),
                Command::Step(additions) => {
                    let additions: Vec<Addition<'_>> = additions.iter().map(command::OwnedAddition::borrow).collect();
                    self.step_batch(&additions)?;
                    continue;
                }
                Command::Add { sequence } => (self.add_sequence()?.0, sequence),
                Command::Remove { sequence } => {
                    self.remove_sequence(SequenceId(sequence));
                    continue;
                }
                Command::Truncate { sequence, tokens, left } => {
                    (self.truncate_sequence(SequenceId(sequence), tokens)?, left)
                }
                Command::Copy { from, to, tokens, copied } => {
                    (self.copy_sequence(SequenceId(from), SequenceId(to), tokens)?, copied)
                }
                Command::Save => {
                    self.save();
                    continue;
                }
                Command::SaveState { sequence } => {
                    self.send_part(transport, SequenceId(sequence)).map_err(CommandError::from)?;
                    continue;
                }
                Command::LoadState { sequence } => {
                    self.receive_part(transport, SequenceId(sequence)).map_err(CommandError::from)?;
                    continue;
                }
                Command::Count => {
                    counts::send(transport, self.own_counts()).map_err(CommandError::from)?;
                    continue;
                }
            };
            if found != expected {
                return Err(FollowError::Differs { rank: transport.rank(), found, expected });
            }
        }
    }
}
