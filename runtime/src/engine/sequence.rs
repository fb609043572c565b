//! A loaded plan and its sequences of tokens.
//!
//! ```text
//! load ─▶ prefill(prompt) ─▶ logits(0) ─▶ sample ─▶ step(&[token], &[0]) ─▶ logits(0) ─▶ ...
//!                            truncate(n): back to n tokens, or to fewer if states need it
//! ```
//!
//! An engine always has one sequence ([`FIRST`]); methods that name no sequence use it. Others can
//! be added ([`Engine::add_sequence`]). One step ([`Engine::step_batch`]) adds tokens to several
//! sequences, so that weights are read once for all of them. On targets without tiles, a sequence
//! has the bits that it has alone; with tiles, this needs [`Options::exact_batch`]. Each guessed
//! token is an addition of its own, one after the other. It then has the bits of a step of one
//! token.
//!
//! Invariant: the states are those after [`Engine::position`] tokens. If a step fails, they stay
//! where they were. A state that cannot be cut ([`Engine::cut_anywhere`]) goes back to the last
//! saved position before.

use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use ixc_failure::Class;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{HiddenRows, MAX_OUTPUTS, Output, Plan, RowCount, State};
use ixc_targets::Target;

use crate::execute::{self, Counts, ExecuteError, ItemError};
use crate::executor::sequences::{Piece, Sequence, StateBytes, runs};
use crate::experts::Experts;
use crate::file::PlanFile;
use crate::load::{self, LoadError, LoadedPlan};
use crate::memory::{Mapped, MemoryError};
use crate::options::{self, Options};
use crate::page_cache_hints::{Advice, AdviceCounts};
use crate::pages::{self, PageUse};
use crate::pool::processors;
use crate::processors::PinRefusal;
use crate::stats::Stats;
use crate::stream::predict;
use crate::stream::store;
use crate::thread_count::ThreadCount;
use crate::trace::Step;

/// The reason why a step did not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// The step has no tokens.
    #[error("a step needs at least one token")]
    NoTokens,
    /// The step has more tokens than the plan allows.
    #[error("the step has {found} tokens; the plan takes at most {most} (split longer prompts into several steps)")]
    TooManyTokens {
        /// Number of tokens.
        found: usize,
        /// Max tokens of a step.
        most: u32,
    },
    /// A token id is outside the vocabulary.
    #[error("token {index} is {id}; ids of this model are below {vocabulary}")]
    Token {
        /// Position in the tokens.
        index: usize,
        /// The token's id.
        id: u32,
        /// Size of the vocabulary.
        vocabulary: u32,
    },
    /// Outputs are requested for rows that the step does not have.
    #[error("output {index} is requested for row {row}; the step has {rows} tokens and at most {MAX_OUTPUTS} outputs")]
    Output {
        /// Position in the requested outputs.
        index: usize,
        /// The requested row.
        row: u32,
        /// Tokens of the step.
        rows: usize,
    },
    /// The context has no room for the tokens.
    #[error("the context is full: the sequence has {position} tokens, and {tokens} more do not fit into {context}")]
    ContextFull {
        /// Tokens in the sequence.
        position: u32,
        /// Tokens to be added.
        tokens: usize,
        /// Max tokens of a sequence.
        context: u32,
    },
    /// A part of a text is given to a model that reads texts whole.
    #[error(
        "found {tokens} tokens after the first {position} of a text; this model takes a whole text in one step, at most {most} tokens"
    )]
    Part {
        /// Tokens in the sequence.
        position: u32,
        /// Tokens to be added.
        tokens: usize,
        /// Max tokens of a step.
        most: u32,
    },
    /// The sequence does not exist.
    #[error("there is no sequence {id}")]
    NoSequence {
        /// The sequence.
        id: SequenceId,
    },
    /// A sequence is named twice.
    #[error("sequence {id} appears twice in one step, with another sequence between")]
    SequenceTwice {
        /// The sequence.
        id: SequenceId,
    },
    /// A sequence would become a copy of itself.
    #[error("sequence {id} cannot become a copy of itself")]
    CopyOfItself {
        /// The sequence.
        id: SequenceId,
    },
    /// The step has more additions than the engine was loaded for.
    #[error("the step has {found} additions; the engine was loaded for at most {most}")]
    TooManyAdditions {
        /// Number of additions.
        found: usize,
        /// Max additions of a step.
        most: u32,
    },
    /// The engine has its max number of sequences.
    #[error("all {most} sequences that the engine was loaded for exist already")]
    TooManySequences {
        /// Max number of sequences.
        most: u32,
    },
    /// The system refuses memory for another sequence.
    #[error("cannot map {bytes} bytes for {what}: {kind}")]
    Memory {
        /// The purpose of the memory.
        what: &'static str,
        /// Bytes requested.
        bytes: u64,
        /// The kind of the system's error.
        kind: std::io::ErrorKind,
    },
    /// Probabilities are requested of a plan without logits.
    #[error("the output of the plan is hidden states, which have no probabilities")]
    NoLogits,
    /// The hidden states do not match the tokens.
    #[error("found {found} numbers of hidden states for {rows} tokens; the plan takes {expected} for each token")]
    Hidden {
        /// Elements given.
        found: usize,
        /// Tokens of the step.
        rows: usize,
        /// Elements expected for each token.
        expected: u32,
    },
    /// A slice has another length than the vocabulary.
    #[error("found {found} logits or probabilities; the vocabulary has {expected} tokens")]
    Vocabulary {
        /// Length found.
        found: usize,
        /// Length expected.
        expected: u32,
    },
    /// A pass failed: experts cannot be read, the plan is wrong, or the runtime has a bug.
    #[error("{lead}{0}", lead = lead(.0))]
    Execute(#[from] ExecuteError),
}

impl StepError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            StepError::Execute(error) => error.class(),
            StepError::NoTokens
            | StepError::TooManyTokens { .. }
            | StepError::Token { .. }
            | StepError::Output { .. }
            | StepError::ContextFull { .. }
            | StepError::Part { .. }
            | StepError::NoSequence { .. }
            | StepError::SequenceTwice { .. }
            | StepError::CopyOfItself { .. }
            | StepError::TooManyAdditions { .. }
            | StepError::TooManySequences { .. }
            | StepError::Memory { .. }
            | StepError::NoLogits
            | StepError::Hidden { .. }
            | StepError::Vocabulary { .. } => Class::Data,
        }
    }
}

/// Returns the beginning of the error text of a pass. Experts that cannot be read are not the
/// plan's fault.
fn lead(error: &ExecuteError) -> &'static str {
    match error {
        ExecuteError::Changed(_) | ExecuteError::Stream(_) | ExecuteError::Block(_) => "",
        ExecuteError::Item(_) | ExecuteError::Expert(_) | ExecuteError::Panic { .. } => "the plan failed: ",
    }
}

/// A function from logits to probabilities. Samplers need nothing else of an engine.
pub trait Softmax {
    /// Writes `e^(logits * inverse_temperature)`, divided by its sum, to `probabilities`. All have
    /// the vocabulary's length.
    ///
    /// # Errors
    /// Fails if a length differs, or if the plan's kernel fails.
    fn probabilities(
        &self,
        logits: &[f32],
        inverse_temperature: f32,
        probabilities: &mut [f32],
    ) -> Result<(), StepError>;
}

/// The number of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub(crate) u32);

/// The sequence that every engine has.
pub const FIRST: SequenceId = SequenceId(0);

impl std::fmt::Display for SequenceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Tokens that a step adds to a sequence. Several additions of one sequence follow each other. Each
/// has the bits that it has in a step of its own. States that change from token to token are the
/// exception: they take all the tokens at once ([`Engine::cuts_steps`]).
#[derive(Clone, Copy, Debug)]
pub struct Addition<'t> {
    /// The sequence.
    pub sequence: SequenceId,
    /// The tokens, at least one.
    pub tokens: &'t [u32],
    /// The rows (positions in `tokens`) whose logits are requested.
    pub outputs: &'t [u32],
}

/// A loaded plan and its sequences.
#[derive(Debug)]
pub struct Engine {
    pub(crate) loaded: LoadedPlan,
    /// Outputs of the last step.
    outputs: usize,
    /// Number of tokens of the last step.
    rows: usize,
}

impl Engine {
    /// Checks a plan, maps its model files, and generates its code. Relative paths in the plan are
    /// relative to `folder`.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load(plan: Plan<Kernel>, folder: &Path, options: &Options) -> Result<Engine, LoadError> {
        Engine::load_file(PlanFile::new(plan), folder, options)
    }

    /// Loads a plan that may have weights in its own file, which are mapped in place. Otherwise the
    /// same as [`Engine::load`].
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load_file(file: PlanFile, folder: &Path, options: &Options) -> Result<Engine, LoadError> {
        if let Output::Experts { .. } = file.plan.output {
            return Err(LoadError::NoSteps);
        }
        Ok(Engine { loaded: load::load(file, folder, options)?, outputs: 0, rows: 0 })
    }

    /// Packs all weights that kernels read packed and that are not packed yet. Steps pack the
    /// weights that they need. Benchmarks call this first, so that they do not measure packing.
    ///
    /// # Errors
    /// Fails if a thread fails.
    pub fn pack_weights(&mut self) -> Result<(), LoadError> {
        load::pack_all(
            &mut self.loaded.store.weights,
            &self.loaded.store.files,
            &mut self.loaded.pool,
            self.loaded.gauge.as_deref(),
        )
    }

    /// Returns the time that steps have spent packing weights since the plan was loaded, averaged
    /// over the threads.
    pub fn packing_time(&self) -> Duration {
        self.loaded.store.weights.packing() / (self.loaded.pool.threads() as u32).max(1)
    }

    /// Returns the number of weights that will still be packed when they are needed. A weight with
    /// experts counts once for each expert's matrix.
    pub fn on_demand_parts(&self) -> u64 {
        self.loaded.store.weights.on_demand_parts()
    }

    /// Runs one step: adds `tokens` to the sequence. Computes the logits of the rows (positions in
    /// `tokens`) in `rows_wanted`, one row of the vocabulary's length for each.
    ///
    /// # Errors
    /// See [`StepError`]. The sequence is then as before. A state that cannot be cut is as it was
    /// last saved.
    pub fn step(&mut self, tokens: &[u32], rows_wanted: &[u32]) -> Result<&[f32], StepError> {
        self.step_batch(&[Addition { sequence: FIRST, tokens, outputs: rows_wanted }])
    }

    /// Runs one step for several sequences: adds tokens to each. Computes the logits of the
    /// requested rows in the order of the additions, one row of the vocabulary's length for each.
    ///
    /// ```no_run
    /// use ixc_runtime::engine::{Addition, Engine, FIRST};
    /// # fn two(engine: &mut Engine) -> Result<(), ixc_runtime::engine::StepError> {
    /// let other = engine.add_sequence()?;
    /// let prompt = [1, 2, 3];
    /// let logits = engine.step_batch(&[
    ///     Addition { sequence: FIRST, tokens: &[17], outputs: &[0] },
    ///     Addition { sequence: other, tokens: &prompt, outputs: &[2] },
    /// ])?;
    /// # let _ = logits; Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`StepError`]. The sequences are then as before. States that cannot be cut are as they
    /// were last saved.
    pub fn step_batch(&mut self, additions: &[Addition<'_>]) -> Result<&[f32], StepError> {
        self.step_hidden(additions, &[])
    }

    /// Runs one step of a plan that takes hidden states with its tokens ([`Engine::takes_hidden`]).
    /// `hidden` has a row for each token, in the order of the additions. Otherwise the same as
    /// [`Engine::step_batch`].
    ///
    /// # Errors
    /// See [`Engine::step_batch`], and [`StepError::Hidden`] if the plan takes another
    /// number of elements.
    pub fn step_hidden(&mut self, additions: &[Addition<'_>], hidden: &[f32]) -> Result<&[f32], StepError> {
        self.forget_logits();
        let pieces = self.pieces(additions)?;
        let counts = Counts::of_pieces(&pieces);
        let tokens: Vec<u32> = additions.iter().flat_map(|addition| addition.tokens).copied().collect();
        let rows_wanted: Vec<u32> = additions
            .iter()
            .zip(&pieces)
            .flat_map(|(addition, piece)| addition.outputs.iter().map(|row| row + piece.row))
            .collect();
        self.take_hidden(tokens.len(), hidden)?;
        let (mut positions, mut end) = (Vec::with_capacity(tokens.len()), 0);
        let runs: Vec<Piece> = runs(&pieces).map(|(_, piece)| piece).collect();
        for piece in &runs {
            if let Some(sequence) = self.loaded.store.sequences.get_mut(piece.sequence) {
                sequence.begin(piece.row, piece.rows);
                let (row, states) = (piece.row as usize, &sequence.states);
                let tokens = &tokens[row..row + piece.rows as usize];
                self.loaded.store.inputs.fill_ngrams(row, tokens, |state| states.region(state, 0, 0, 0));
            }
            positions.extend(piece.position..piece.position + piece.rows);
            end = end.max(piece.position + piece.rows);
        }
        let last = |piece: &Piece| (piece.position + piece.rows).saturating_sub(1);
        let ends: Vec<u32> =
            pieces.iter().flat_map(|piece| std::iter::repeat_n(last(piece), piece.rows as usize)).collect();
        self.loaded.store.inputs.fill(&tokens, (&positions, &ends), &rows_wanted);
        for table in &mut self.loaded.store.ropes {
            table.fill(end);
        }
        // Waiting for a drive says nothing about other processes that use processors.
        let resident = self.loaded.store.experts.is_none() && self.loaded.store.advice.is_none();
        let adapts = counts.tokens == 1 && resident;
        let threads = if adapts { self.loaded.thread_count.threads() } else { self.loaded.pool.threads() };
        let begin = Instant::now();
        let run = execute::run(
            &self.loaded.program,
            &self.loaded.backend,
            &mut self.loaded.store,
            (&mut self.loaded.pool, threads),
            (&pieces, self.loaded.exact_batch),
            0..self.loaded.program.stages.len(),
            &self.loaded.clocks,
        );
        if let Some(trace) = &self.loaded.store.trace {
            let (tokens, position) = (counts.tokens, pieces.first().map_or(0, |piece| piece.position));
            trace.step(begin, Step { tokens, position, failed: run.is_err() });
        }
        let sequences = &mut self.loaded.store.sequences;
        let late = match run {
            Ok(late) => late,
            Err(error) => {
                for piece in &runs {
                    sequences.get_mut(piece.sequence).into_iter().for_each(Sequence::fail);
                }
                return Err(error.into());
            }
        };
        let wall = begin.elapsed();
        for piece in &runs {
            sequences.get_mut(piece.sequence).into_iter().for_each(|sequence| sequence.advance(piece.rows));
        }
        self.loaded.expert_counts.add(counts.tokens, &mut self.loaded.store.buckets);
        if adapts {
            self.loaded.thread_count.note(wall, late);
            self.loaded.stats.reduced += self.loaded.thread_count.take_reduced();
            if self.loaded.thread_count.is_crowded() {
                self.loaded.let_go();
            }
        }
        self.loaded.stats.wall += wall;
        self.loaded.stats.steps += 1;
        self.loaded.stats.thread_steps += threads as u64;
        self.loaded.stats.tokens += u64::from(counts.tokens);
        self.outputs = counts.outputs as usize;
        self.rows = counts.tokens as usize;
        Ok(self.all_logits())
    }

    /// Copies the hidden states of `rows` tokens into the plan's buffer.
    fn take_hidden(&mut self, rows: usize, hidden: &[f32]) -> Result<(), StepError> {
        let expected = self.takes_hidden().unwrap_or(0);
        let wrong = StepError::Hidden { found: hidden.len(), rows, expected };
        if rows.checked_mul(expected as usize) != Some(hidden.len()) {
            return Err(wrong);
        }
        let Some(HiddenRows { buffer, .. }) = self.loaded.program.takes else { return Ok(()) };
        let offset = self.loaded.program.buffers[buffer.0 as usize].offset;
        let region = self.loaded.store.arena.region().part(offset, hidden.len() as u64 * 4).ok_or(wrong)?;
        // SAFETY: the region has as many bytes in the arena. Nothing else uses the arena while the
        // engine is borrowed exclusively. The source is a slice of the same length.
        unsafe { region.base().copy_from_nonoverlapping(hidden.as_ptr().cast::<u8>(), hidden.len() * 4) };
        Ok(())
    }

    /// Returns the elements of the hidden state that the plan takes with each token; `None` if it
    /// takes only tokens.
    pub fn takes_hidden(&self) -> Option<u32> {
        self.loaded.program.takes.map(|rows| rows.width)
    }

    /// Returns the elements of the hidden state that a step returns for each token in addition to
    /// logits; `None` if it returns none.
    pub fn gives_hidden(&self) -> Option<u32> {
        self.loaded.program.gives.map(|rows| rows.width)
    }

    /// Returns the hidden states of the last step's tokens, one row for each in the order of the
    /// additions. Empty if the plan returns none, or if a sequence was changed since.
    pub fn hidden(&self) -> &[f32] {
        let Some(HiddenRows { buffer, width }) = self.loaded.program.gives else { return &[] };
        let count = self.rows * width as usize;
        let offset = self.loaded.program.buffers[buffer.0 as usize].offset;
        let Some(region) = self.loaded.store.arena.region().part(offset, count as u64 * 4) else { return &[] };
        // SAFETY: the same reason as in `all_logits`. The program's check found that the buffer
        // holds aligned floats, and that it lives to the end of a step.
        unsafe { std::slice::from_raw_parts(region.base().cast::<f32>(), count) }
    }

    /// Checks a step, and divides it into pieces, one for each addition.
    fn pieces(&self, additions: &[Addition<'_>]) -> Result<Vec<Piece>, StepError> {
        let (most, found) = (self.loaded.program.max_tokens, additions.iter().map(|a| a.tokens.len()).sum());
        if additions.is_empty() || additions.iter().any(|addition| addition.tokens.is_empty()) {
            return Err(StepError::NoTokens);
        }
        if found > most as usize {
            return Err(StepError::TooManyTokens { found, most });
        }
        if additions.len() > self.loaded.additions as usize {
            return Err(StepError::TooManyAdditions { found: additions.len(), most: self.loaded.additions });
        }
        let (mut pieces, mut next) = (Vec::<Piece>::with_capacity(additions.len()), Piece::default());
        for &Addition { sequence, tokens, outputs } in additions {
            let before = pieces.last().filter(|piece| piece.sequence == sequence.0);
            if before.is_none() && pieces.iter().any(|piece| piece.sequence == sequence.0) {
                return Err(StepError::SequenceTwice { id: sequence });
            }
            let at = self.check_tokens(sequence, tokens, before.map(|piece| piece.position + piece.rows))?;
            if at > 0 && self.reads_whole() {
                return Err(StepError::Part { position: at, tokens: tokens.len(), most });
            }
            for (index, &row) in outputs.iter().enumerate() {
                let wanted = next.output as usize + index;
                if row as usize >= tokens.len() || index >= tokens.len() || wanted >= self.max_outputs() as usize {
                    return Err(StepError::Output { index, row, rows: tokens.len() });
                }
            }
            // The casts are exact, because there are at most `max_tokens` of each.
            let (rows, outputs) = (tokens.len() as u32, outputs.len() as u32);
            pieces.push(Piece { sequence: sequence.0, rows, position: at, outputs, ..next });
            (next.row, next.output) = (next.row + rows, next.output + outputs);
        }
        Ok(pieces)
    }

    /// Adds an empty sequence.
    ///
    /// # Errors
    /// [`StepError::TooManySequences`] if the engine has [`Options::sequences`] already, and
    /// [`StepError::Memory`].
    pub fn add_sequence(&mut self) -> Result<SequenceId, StepError> {
        let sequences = &mut self.loaded.store.sequences;
        let added = sequences.add().map_err(|MemoryError { what, bytes, source }| StepError::Memory {
            what,
            bytes,
            kind: source.kind(),
        })?;
        added.map(SequenceId).ok_or(StepError::TooManySequences { most: sequences.max_sequences() })
    }

    /// Removes a sequence and frees its memory. [`FIRST`] is only emptied. Does nothing if the
    /// sequence does not exist.
    pub fn remove_sequence(&mut self, id: SequenceId) {
        if id == FIRST {
            return self.reset();
        }
        self.forget_logits();
        self.loaded.store.sequences.remove(id.0);
    }

    /// Returns the max number of sequences.
    pub fn sequences(&self) -> u32 {
        self.loaded.store.sequences.max_sequences()
    }

    /// Returns a sequence, if it exists.
    pub fn sequence(&self, id: SequenceId) -> Option<&Sequence> {
        self.loaded.store.sequences.get(id.0)
    }

    /// Cuts any sequence; see [`Engine::truncate`].
    ///
    /// # Errors
    /// [`StepError::NoSequence`].
    pub fn truncate_sequence(&mut self, id: SequenceId, tokens: u32) -> Result<u32, StepError> {
        self.forget_logits();
        let sequence = self.loaded.store.sequences.get_mut(id.0).ok_or(StepError::NoSequence { id })?;
        Ok(sequence.truncate(tokens))
    }

    /// Makes `to` a copy of the first `tokens` tokens of `from`, or of the nearest shorter length
    /// that its states can return to. Returns the length of the copy. A prompt that several
    /// sequences share is thus computed once. It is also in memory once, if the system allows it
    /// ([`crate::shared_pages`]).
    ///
    /// # Errors
    /// [`StepError::NoSequence`], and [`StepError::CopyOfItself`] if both are the same.
    pub fn copy_sequence(&mut self, from: SequenceId, to: SequenceId, tokens: u32) -> Result<u32, StepError> {
        self.forget_logits();
        if from == to {
            return Err(StepError::CopyOfItself { id: to });
        }
        let sequences = &mut self.loaded.store.sequences;
        let missing = [from, to].into_iter().find(|id| sequences.get(id.0).is_none());
        sequences.copy(from.0, to.0, tokens).ok_or(StepError::NoSequence { id: missing.unwrap_or(to) })
    }

    /// Adds tokens in as many steps as needed, and returns the logits of the last token.
    ///
    /// # Errors
    /// See [`StepError`]. Wrong tokens are found before the first step. If a later step fails, the
    /// sequence holds the tokens of the earlier ones.
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], StepError> {
        self.forget_logits();
        self.check_tokens(FIRST, tokens, None)?;
        let mut chunks = tokens.chunks(self.loaded.program.max_tokens as usize).peekable();
        if chunks.peek().is_none() {
            return Err(StepError::NoTokens);
        }
        while let Some(chunk) = chunks.next() {
            let last = [chunk.len() as u32 - 1];
            self.step(chunk, if chunks.peek().is_none() { &last } else { &[] })?;
        }
        Ok(self.all_logits())
    }

    /// Checks that tokens may follow a sequence, or the position `behind` of its previous addition.
    /// Returns the position of the first.
    fn check_tokens(&self, id: SequenceId, tokens: &[u32], behind: Option<u32>) -> Result<u32, StepError> {
        let position = self.sequence(id).ok_or(StepError::NoSequence { id })?.position();
        let position = behind.unwrap_or(position);
        let vocabulary = self.loaded.program.vocabulary;
        if let Some((index, &id)) = tokens.iter().enumerate().find(|(_, id)| **id >= vocabulary) {
            return Err(StepError::Token { index, id, vocabulary });
        }
        if tokens.len() as u64 + u64::from(position) > u64::from(self.loaded.context) {
            return Err(StepError::ContextFull { position, tokens: tokens.len(), context: self.loaded.context });
        }
        Ok(position)
    }

    /// Returns the first sequence, which always exists.
    fn first(&self) -> Option<&Sequence> {
        self.sequence(FIRST)
    }

    /// Returns the kind of a step's outputs: logits or hidden states. The methods named after
    /// logits return either kind.
    pub fn output(&self) -> Output {
        self.loaded.program.output
    }

    /// Returns the elements of one output row.
    pub fn output_width(&self) -> u32 {
        match self.loaded.program.output {
            Output::Logits { .. } => self.loaded.program.vocabulary,
            Output::Hidden { width, .. } | Output::Experts { width } => width,
        }
    }

    /// Returns the logits of the last step's requested rows.
    pub fn all_logits(&self) -> &[f32] {
        let buffer = &self.loaded.program.buffers[self.loaded.program.logits.0 as usize];
        debug_assert_eq!(buffer.rows, RowCount::Outputs);
        let bytes = buffer.row_bytes * self.outputs as u64;
        let Some(region) = self.loaded.store.arena.region().part(buffer.offset, bytes) else { return &[] };
        // SAFETY: the region lies in the arena, a mapping that is initialised and page-aligned. Its
        // offset is a multiple of 4 (the program's check), and every bit pattern is a float.
        // Kernels write to the arena only in `step`, which borrows the engine exclusively.
        unsafe { std::slice::from_raw_parts(region.base().cast::<f32>(), (bytes / 4) as usize) }
    }

    /// Drops the logits of the last step, because they do not belong to a sequence that changed.
    pub(crate) fn forget_logits(&mut self) {
        (self.outputs, self.rows) = (0, 0);
    }

    /// Returns the logits of one of the last step's requested rows; empty if the row does not
    /// exist.
    pub fn logits(&self, output: usize) -> &[f32] {
        self.all_logits().chunks_exact(self.output_width() as usize).nth(output).unwrap_or(&[])
    }

    /// Cuts the sequence to its first `tokens` tokens, or to the shorter length that
    /// [`Engine::reach`] returns. Does nothing if it is not longer. Returns the number of tokens
    /// that are left; the rest must be computed again.
    pub fn truncate(&mut self, tokens: u32) -> u32 {
        self.truncate_sequence(FIRST, tokens).unwrap_or(0)
    }

    /// Returns the number of tokens that [`Engine::truncate`] to `tokens` would leave. A state that
    /// cannot be cut returns only to the beginning and to saved positions. These are the ends of
    /// the last steps of several tokens, and the positions of [`Engine::save`].
    pub fn reach(&self, tokens: u32) -> u32 {
        self.first().map_or(0, |sequence| sequence.reach(tokens))
    }

    /// Returns whether the sequence can be cut at any position. With a window, it can be cut by as
    /// many positions as memory holds beyond the window, or to the beginning.
    pub fn cut_anywhere(&self) -> bool {
        self.first().is_none_or(|sequence| sequence.states.cut_anywhere())
    }

    /// Returns whether any number of the last step's tokens can be cut off without losing earlier
    /// tokens. States that change from token to token cannot do this.
    pub fn cuts_steps(&self) -> bool {
        self.first().is_none_or(|sequence| sequence.states.cuts_steps())
    }

    /// Returns the fewest rows of an addition whose bits do not depend on their number. Parts of a
    /// prompt must begin at multiples of 16.
    pub fn min_rows(&self) -> u32 {
        self.loaded.program.min_rows(self.loaded.exact_batch)
    }

    /// Returns the max additions of a step.
    pub fn max_additions(&self) -> u32 {
        self.loaded.additions
    }

    /// Saves the present position, so that the sequence can return to it. Only the last
    /// [`crate::states::SNAPSHOTS`] are kept. Does nothing if all states can be cut anywhere.
    pub fn save(&mut self) {
        self.loaded.store.sequences.get_mut(FIRST.0).into_iter().for_each(Sequence::save);
    }

    /// Returns the declared states of a sequence, and the bytes of the states of all sequences,
    /// without saved copies.
    pub fn states(&self) -> (&[State], u64) {
        let sequences = &self.loaded.store.sequences;
        (sequences.declared(), sequences.iter().map(|sequence| sequence.states.memory().bytes()).sum())
    }

    /// Bytes of weights that are locked in memory
    /// ([`Options::lock`](crate::engine::Options::lock)).
    pub fn locked_bytes(&self) -> u64 {
        self.loaded.locked
    }

    /// Returns the bytes of the states of all sequences, shared and not.
    pub fn state_bytes(&self) -> StateBytes {
        self.loaded.store.sequences.bytes()
    }

    /// Returns the states of fixed size after the last step: name, elements of a row, values.
    pub fn state_values(&self) -> impl Iterator<Item = (&str, usize, Vec<f32>)> {
        self.first().into_iter().flat_map(|sequence| sequence.states.values())
    }

    /// Empties the sequence.
    pub fn reset(&mut self) {
        self.truncate(0);
    }

    /// Returns the number of tokens in the sequence.
    pub fn position(&self) -> u32 {
        self.first().map_or(0, Sequence::position)
    }

    /// Returns the max tokens of a sequence.
    pub fn context(&self) -> u32 {
        self.loaded.context
    }

    /// Returns the max tokens of a step.
    pub fn max_tokens(&self) -> u32 {
        self.loaded.program.max_tokens
    }

    /// Returns the max rows of a step with outputs.
    pub fn max_outputs(&self) -> u32 {
        self.loaded.program.output.most(self.loaded.program.max_tokens)
    }

    /// Returns whether attention is not causal. A step then has the whole text, because every token
    /// sees all others.
    pub fn reads_whole(&self) -> bool {
        self.loaded.program.reads_whole()
    }

    /// Returns the size of the vocabulary.
    pub fn vocabulary(&self) -> u32 {
        self.loaded.program.vocabulary
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.loaded.pool.threads()
    }

    /// Changes the number of threads of later steps, up to the number that the engine was loaded
    /// with. Keeps the code and the packed weights.
    ///
    /// # Errors
    /// [`LoadError::Threads`] if the number is 0 or exceeds the scratch memory. Also fails if a
    /// thread cannot be started.
    pub fn use_threads(&mut self, threads: usize) -> Result<(), LoadError> {
        if threads > self.loaded.store.scratch.len() {
            return Err(LoadError::Threads { found: threads });
        }
        let options = Options { threads: Some(threads), pin: self.loaded.pin, ..Options::default() };
        (self.loaded.pool, self.loaded.pinned_processors) = options::pool(&options)?;
        self.loaded.thread_count = ThreadCount::new(threads, processors());
        self.loaded.stats.threads = threads;
        Ok(())
    }

    /// Returns the processor of each bound thread, or the reason why threads are not bound. The
    /// caller's thread is bound only while it runs a step.
    pub fn pinned_processors(&self) -> Result<&[usize], &PinRefusal> {
        self.loaded.pinned_processors.as_deref()
    }

    /// Returns the target that kernels were generated for.
    pub fn target(&self) -> Target {
        self.loaded.target
    }

    /// Returns the architecture's name, for display.
    pub fn architecture(&self) -> &str {
        &self.loaded.architecture
    }

    /// Returns the tokenizer and chat template, as encoded in the plan.
    pub fn tokenizer(&self) -> &[u8] {
        &self.loaded.tokenizer
    }

    /// Returns the expert cache, if experts are streamed.
    pub fn stream(&self) -> Option<&store::ExpertCache> {
        self.loaded.store.experts.as_ref().map(Experts::store)
    }

    /// Returns the advice that the page cache was given, if experts stay in mapped files.
    pub fn advice_counts(&self) -> Option<AdviceCounts> {
        self.loaded.store.advice.as_ref().map(Advice::advice_counts)
    }

    /// Returns the results of predicting experts, if they are streamed.
    pub fn predictions(&self) -> Option<predict::Report> {
        self.loaded.store.experts.as_ref().map(Experts::predictions)
    }

    /// Returns the memory of weights, activations and states that is resident, and the part of it
    /// in large pages.
    pub fn pages(&self) -> Vec<PageUse> {
        let store = &self.loaded.store;
        let experts = store.experts.as_ref().map(|experts| experts.store().memory());
        pages::page_use(&[
            ("mapped files", store.files.iter().map(Mapped::region).collect()),
            ("packed weights", vec![store.weights.packed()]),
            ("streamed experts", experts.into_iter().collect()),
            ("activations", vec![store.arena.region()]),
            ("states", store.sequences.iter().map(|sequence| sequence.states.memory()).collect()),
        ])
    }

    /// Returns the statistics of time since the last call. Tasks and stalls need
    /// [`Options::stats`].
    pub fn take_stats(&mut self) -> Stats {
        let fresh = Stats { threads: self.loaded.stats.threads, ..Stats::default() };
        let mut stats = std::mem::replace(&mut self.loaded.stats, fresh);
        for clock in &mut self.loaded.clocks {
            let clock = clock.get_mut().unwrap_or_else(PoisonError::into_inner);
            clock.add_to(&self.loaded.program, &mut stats);
            clock.reset();
        }
        stats
    }
}

impl Softmax for Engine {
    fn probabilities(
        &self,
        logits: &[f32],
        inverse_temperature: f32,
        probabilities: &mut [f32],
    ) -> Result<(), StepError> {
        let expected = self.loaded.program.vocabulary;
        for found in [logits.len(), probabilities.len()] {
            if found != expected as usize {
                return Err(StepError::Vocabulary { found, expected });
            }
        }
        let Output::Logits { softmax } = self.loaded.program.output else { return Err(StepError::NoLogits) };
        let kernel = softmax.0 as usize;
        let mut sizes = [0; 3];
        for (size, parameter) in sizes.iter_mut().zip(&self.loaded.program.kernels[kernel].buffers) {
            *size = parameter.size.at(&[]).unwrap_or(0);
        }
        let pointers = [
            logits.as_ptr().cast_mut().cast::<u8>(),
            (&raw const inverse_temperature).cast_mut().cast(),
            probabilities.as_mut_ptr().cast(),
        ];
        // SAFETY: the program's check found that this kernel has no dims, reads its first two
        // buffers and writes the third. They are at most a row of the vocabulary, one float, and a
        // row long. The slices have a row's length.
        unsafe { self.loaded.backend.call(kernel, &pointers, &sizes, &[]) }.map_err(|problem| {
            let (task, kernel) = ("softmax".to_string(), self.loaded.program.kernels[kernel].name.clone());
            StepError::Execute(ExecuteError::Item(Box::new(ItemError { task, kernel, problem })))
        })
    }
}
