//! A loaded plan and its sequences of tokens.
//!
//! ```text
//! load ─▶ prefill(prompt) ─▶ logits(0) ─▶ sample ─▶ step(&[token], &[0]) ─▶ logits(0) ─▶ ...
//!                                                   truncate(n): go back to n tokens, or to the nearest before that states can get back to
//! ```
//!
//! One sequence is there from the beginning ([`FIRST`]), and what names none is about it. Others are added ([`Engine::add_sequence`]), and one step
//! ([`Engine::step_batch`]) adds tokens to several: weights are read once for all of them. On targets without tiles a sequence's bits are those that
//! it has alone; with tiles [`Options::exact_batch`] makes them so. Tokens that are guessed are added each on its own, one addition behind the other, so that
//! each has the bits of a step of one token.
//!
//! Invariant: the states are those behind [`Engine::position`] tokens. A step that fails leaves them where they were; where a state cannot be cut
//! ([`Engine::cut_anywhere`]), at the last position before that was saved.

use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use ixc_failure::Class;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{HiddenRows, MAX_OUTPUTS, Output, Plan, RowCount, State};
use ixc_targets::Target;

use crate::crew::Crew;
use crate::execute::{self, Counts, ExecuteError, ItemError};
use crate::executor::sequences::{Piece, Sequence, StateBytes, runs};
use crate::experts::Experts;
use crate::file::PlanFile;
use crate::load::{self, LoadError, Loaded};
use crate::memory::{Mapped, MemoryError};
use crate::options::{self, Options};
use crate::page_cache_hints::{Advice, Advised};
use crate::pages::{self, PageUse};
use crate::pool::processors;
use crate::processors::Unpinned;
use crate::stats::Stats;
use crate::stream::predict;
use crate::stream::store;
use crate::trace::Step;

/// Why a step did not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// No token.
    #[error("a step needs at least one token")]
    NoTokens,
    /// More tokens than the plan was made for.
    #[error("{found} tokens in one step; the plan takes at most {most}, longer prompts in several steps")]
    TooManyTokens {
        /// How many.
        found: usize,
        /// Most.
        most: u32,
    },
    /// A token id outside the vocabulary.
    #[error("token {index} is {id}; ids of this model are below {vocabulary}")]
    Token {
        /// Which of the tokens.
        index: usize,
        /// Its id.
        id: u32,
        /// The vocabulary.
        vocabulary: u32,
    },
    /// Outputs of rows that are not there.
    #[error(
        "output {index} is wanted of row {row}; the step has {rows} tokens, and as many outputs, at most {MAX_OUTPUTS}"
    )]
    Output {
        /// Which of the wanted.
        index: usize,
        /// The row.
        row: u32,
        /// Tokens of the step.
        rows: usize,
    },
    /// The sequence is as long as the context.
    #[error("the context is full: {position} tokens, {tokens} more do not fit into {context}")]
    ContextFull {
        /// Tokens so far.
        position: u32,
        /// Tokens that were to be added.
        tokens: usize,
        /// Longest sequence.
        context: u32,
    },
    /// A part of a text, of a model that reads texts whole.
    #[error(
        "{tokens} tokens behind {position} of their text; this model reads texts whole, at most {most} tokens in one step"
    )]
    Part {
        /// Tokens so far.
        position: u32,
        /// Tokens that were to be added.
        tokens: usize,
        /// Most tokens of a step.
        most: u32,
    },
    /// A sequence that there is not.
    #[error("there is no sequence {id}")]
    NoSequence {
        /// Its number.
        id: SequenceId,
    },
    /// A sequence that is named twice.
    #[error("sequence {id} is named twice in one step, with another one between")]
    SequenceTwice {
        /// Its number.
        id: SequenceId,
    },
    /// A sequence that would become a copy of itself.
    #[error("sequence {id} cannot become a copy of itself")]
    CopyOfItself {
        /// Its number.
        id: SequenceId,
    },
    /// More additions than the engine was loaded for.
    #[error("{found} additions in one step; the engine was loaded for {most}")]
    TooManyAdditions {
        /// How many.
        found: usize,
        /// Most.
        most: u32,
    },
    /// As many sequences as there can be.
    #[error("there are {most} sequences, as many as the engine was loaded for")]
    TooManySequences {
        /// How many.
        most: u32,
    },
    /// The system refuses memory for another sequence.
    #[error("cannot map {bytes} bytes for {what}: {kind}")]
    Memory {
        /// For what.
        what: &'static str,
        /// How much.
        bytes: u64,
        /// Why.
        kind: std::io::ErrorKind,
    },
    /// Probabilities of what are no logits.
    #[error("the plan gives hidden states, of which there are no probabilities")]
    NoLogits,
    /// Hidden states that do not go with the tokens.
    #[error("{found} numbers of hidden states for {rows} tokens; the plan takes {expected} with each")]
    Hidden {
        /// How many.
        found: usize,
        /// Tokens of the step.
        rows: usize,
        /// How many a token has.
        expected: u32,
    },
    /// Another length than the vocabulary's.
    #[error("{found} logits or probabilities; the vocabulary has {expected}")]
    Vocabulary {
        /// How many.
        found: usize,
        /// How many there must be.
        expected: u32,
    },
    /// The plan is wrong, or there is a bug.
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

/// What is said before an error of a pass: experts that cannot be read are no fault of the plan's.
fn lead(error: &ExecuteError) -> &'static str {
    match error {
        ExecuteError::Changed(_) | ExecuteError::Stream(_) | ExecuteError::Block(_) => "",
        ExecuteError::Item(_) | ExecuteError::Expert(_) | ExecuteError::Panic { .. } => "the plan failed: ",
    }
}

/// Probabilities from logits: what a sampler needs of an engine.
pub trait Softmax {
    /// Writes `e^(logits * inverse_temperature)`, divided by its sum, to `probabilities`. All have the vocabulary's length.
    ///
    /// # Errors
    /// When a length is another, or the plan's kernel fails.
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

/// The sequence that an engine always has.
pub const FIRST: SequenceId = SequenceId(0);

impl std::fmt::Display for SequenceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What a step adds to a sequence. Where one follows another of the same sequence, it goes on behind that: both have the bits that they have in steps of
/// their own, but that states which change from token to token ([`Engine::cuts_steps`]) take the tokens of all at once.
#[derive(Clone, Copy, Debug)]
pub struct Addition<'t> {
    /// The sequence.
    pub sequence: SequenceId,
    /// The tokens, one at least.
    pub tokens: &'t [u32],
    /// The rows, positions in `tokens`, whose logits are wanted.
    pub outputs: &'t [u32],
}

/// A loaded plan and its sequences.
#[derive(Debug)]
pub struct Engine {
    pub(crate) loaded: Loaded,
    /// Outputs of the last step.
    outputs: usize,
    /// Its tokens.
    rows: usize,
}

impl Engine {
    /// Checks a plan, maps its model files, generates its code. Relative paths in the plan are from `folder`.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load(plan: Plan<Kernel>, folder: &Path, options: &Options) -> Result<Engine, LoadError> {
        Engine::load_file(PlanFile { plan, weights: None }, folder, options)
    }

    /// As [`Engine::load`], for a plan that may have weights in its own file: they are mapped in place.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load_file(file: PlanFile, folder: &Path, options: &Options) -> Result<Engine, LoadError> {
        if let Output::Experts { .. } = file.plan.output {
            return Err(LoadError::NoSteps);
        }
        Ok(Engine { loaded: load::load(file, folder, options)?, outputs: 0, rows: 0 })
    }

    /// Packs all weights that kernels read packed and that are not yet packed. Steps do that by themselves, each for the weights that
    /// it needs; who measures steps does not want to measure that.
    ///
    /// # Errors
    /// When a thread fails.
    pub fn pack_weights(&mut self) -> Result<(), LoadError> {
        load::pack_all(
            &mut self.loaded.store.weights,
            &self.loaded.store.files,
            &mut self.loaded.pool,
            self.loaded.gauge.as_deref(),
        )
    }

    /// How long packing weights in steps has taken since the plan was loaded, on average over the threads.
    pub fn packing_time(&self) -> Duration {
        self.loaded.store.weights.packing() / (self.loaded.pool.threads() as u32).max(1)
    }

    /// How many weights, of those with experts how many experts' matrices, are still to be packed when they are needed.
    pub fn unpacked_parts(&self) -> u64 {
        self.loaded.store.weights.unpacked_parts()
    }

    /// Runs one step: adds `tokens` to the sequence, and computes the logits of the rows (positions in `tokens`) in
    /// `rows_wanted`, one row of the vocabulary's length for each.
    ///
    /// # Errors
    /// See [`StepError`]; the sequence is then as it was, or, where a state cannot be cut, as it was when it was last saved.
    pub fn step(&mut self, tokens: &[u32], rows_wanted: &[u32]) -> Result<&[f32], StepError> {
        self.step_batch(&[Addition { sequence: FIRST, tokens, outputs: rows_wanted }])
    }

    /// Runs one step for several sequences: adds tokens to each, and computes the logits of the rows that are wanted, in the order of the additions, one
    /// row of the vocabulary's length for each.
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
    /// See [`StepError`]; the sequences are then as they were, or, where a state cannot be cut, as they were when they were last saved.
    pub fn step_batch(&mut self, additions: &[Addition<'_>]) -> Result<&[f32], StepError> {
        self.step_hidden(additions, &[])
    }

    /// As [`Engine::step_batch`], for a plan that takes hidden states with its tokens ([`Engine::takes_hidden`]): a row for each token, in the order of
    /// the additions.
    ///
    /// # Errors
    /// As there, and [`StepError::Hidden`] where there are more or fewer than the plan takes.
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
        // Waiting for a drive is no neighbour's doing.
        let resident = self.loaded.store.experts.is_none() && self.loaded.store.advice.is_none();
        let adapts = counts.tokens == 1 && resident;
        let threads = if adapts { self.loaded.crew.threads() } else { self.loaded.pool.threads() };
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
            self.loaded.crew.note(wall, late);
            self.loaded.stats.reduced += self.loaded.crew.take_reduced();
            if self.loaded.crew.is_crowded() {
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

    /// Puts hidden states of so many tokens where the plan takes them from.
    fn take_hidden(&mut self, rows: usize, hidden: &[f32]) -> Result<(), StepError> {
        let expected = self.takes_hidden().unwrap_or(0);
        let wrong = StepError::Hidden { found: hidden.len(), rows, expected };
        if rows.checked_mul(expected as usize) != Some(hidden.len()) {
            return Err(wrong);
        }
        let Some(HiddenRows { buffer, .. }) = self.loaded.program.takes else { return Ok(()) };
        let offset = self.loaded.program.buffers[buffer.0 as usize].offset;
        let region = self.loaded.store.arena.region().part(offset, hidden.len() as u64 * 4).ok_or(wrong)?;
        // SAFETY: the region has as many bytes, in the arena, which nothing else uses while the engine is borrowed exclusively; what is copied are
        // words of a slice that is as long.
        unsafe { region.base().copy_from_nonoverlapping(hidden.as_ptr().cast::<u8>(), hidden.len() * 4) };
        Ok(())
    }

    /// Elements of the hidden state that the plan takes with each token; `None` where it takes tokens alone.
    pub fn takes_hidden(&self) -> Option<u32> {
        self.loaded.program.takes.map(|rows| rows.width)
    }

    /// Elements of the hidden state that a step gives of each token beside logits; `None` where it gives none.
    pub fn gives_hidden(&self) -> Option<u32> {
        self.loaded.program.gives.map(|rows| rows.width)
    }

    /// Hidden states of the last step's tokens, a row for each in the order of the additions; empty where the plan gives none, and where a sequence was changed
    /// since.
    pub fn hidden(&self) -> &[f32] {
        let Some(HiddenRows { buffer, width }) = self.loaded.program.gives else { return &[] };
        let count = self.rows * width as usize;
        let offset = self.loaded.program.buffers[buffer.0 as usize].offset;
        let Some(region) = self.loaded.store.arena.region().part(offset, count as u64 * 4) else { return &[] };
        // SAFETY: as for logits: the program's check says that the buffer is of aligned floats, and it lives to the end of a step.
        unsafe { std::slice::from_raw_parts(region.base().cast::<f32>(), count) }
    }

    /// The pieces of a step, if it can be run.
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
            // All fit: there are at most `max_tokens` of them.
            let (rows, outputs) = (tokens.len() as u32, outputs.len() as u32);
            pieces.push(Piece { sequence: sequence.0, rows, position: at, outputs, ..next });
            (next.row, next.output) = (next.row + rows, next.output + outputs);
        }
        Ok(pieces)
    }

    /// Adds an empty sequence.
    ///
    /// # Errors
    /// [`StepError::TooManySequences`] when there are as many as [`Options::sequences`] says, and [`StepError::Memory`].
    pub fn add_sequence(&mut self) -> Result<SequenceId, StepError> {
        let sequences = &mut self.loaded.store.sequences;
        let added = sequences.add().map_err(|MemoryError { what, bytes, source }| StepError::Memory {
            what,
            bytes,
            kind: source.kind(),
        })?;
        added.map(SequenceId).ok_or(StepError::TooManySequences { most: sequences.most() })
    }

    /// Removes a sequence, and gives its memory back; [`FIRST`] is emptied. Does nothing where it is not there.
    pub fn remove_sequence(&mut self, id: SequenceId) {
        if id == FIRST {
            return self.reset();
        }
        self.forget_logits();
        self.loaded.store.sequences.remove(id.0);
    }

    /// Most sequences that there can be.
    pub fn sequences(&self) -> u32 {
        self.loaded.store.sequences.most()
    }

    /// A sequence, where it is there.
    pub fn sequence(&self, id: SequenceId) -> Option<&Sequence> {
        self.loaded.store.sequences.get(id.0)
    }

    /// As [`Engine::truncate`], of any sequence.
    ///
    /// # Errors
    /// [`StepError::NoSequence`].
    pub fn truncate_sequence(&mut self, id: SequenceId, tokens: u32) -> Result<u32, StepError> {
        self.forget_logits();
        let sequence = self.loaded.store.sequences.get_mut(id.0).ok_or(StepError::NoSequence { id })?;
        Ok(sequence.truncate(tokens))
    }

    /// Makes a sequence a copy of the first `tokens` tokens of another, or of as many before that as states can get back to; gives how many it has
    /// then. So a prompt that several begin with is computed once; and it is in memory once, where the system lets it ([`crate::shared_pages`]).
    ///
    /// # Errors
    /// [`StepError::NoSequence`], and [`StepError::CopyOfItself`] where they are not two.
    pub fn copy_sequence(&mut self, from: SequenceId, to: SequenceId, tokens: u32) -> Result<u32, StepError> {
        self.forget_logits();
        if from == to {
            return Err(StepError::CopyOfItself { id: to });
        }
        let sequences = &mut self.loaded.store.sequences;
        let missing = [from, to].into_iter().find(|id| sequences.get(id.0).is_none());
        sequences.copy(from.0, to.0, tokens).ok_or(StepError::NoSequence { id: missing.unwrap_or(to) })
    }

    /// Adds tokens in as many steps as they take, and gives the logits of the last one.
    ///
    /// # Errors
    /// See [`StepError`]. Wrong tokens are found before the first step; where a later step fails, the sequence holds the
    /// tokens of those before.
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

    /// Whether the tokens may follow a sequence, or what is added to it before, up to a position; gives where that is.
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

    /// The sequence that is always there.
    fn first(&self) -> Option<&Sequence> {
        self.sequence(FIRST)
    }

    /// What the plan gives of rows that are wanted: logits, or hidden states, for which the names of logits stand here, too.
    pub fn output(&self) -> Output {
        self.loaded.program.output
    }

    /// Numbers of a row of it.
    pub fn output_width(&self) -> u32 {
        match self.loaded.program.output {
            Output::Logits { .. } => self.loaded.program.vocabulary,
            Output::Hidden { width, .. } | Output::Experts { width } => width,
        }
    }

    /// Logits of the last step's wanted rows.
    pub fn all_logits(&self) -> &[f32] {
        let buffer = &self.loaded.program.buffers[self.loaded.program.logits.0 as usize];
        debug_assert_eq!(buffer.rows, RowCount::Outputs);
        let bytes = buffer.row_bytes * self.outputs as u64;
        let Some(region) = self.loaded.store.arena.region().part(buffer.offset, bytes) else { return &[] };
        // SAFETY: the region lies in the arena, a mapping that is initialised and page-aligned, and its offset is a multiple of 4
        // (the program's check); every pattern of bits is a float. Kernels write to the arena only in `step`, which borrows
        // the engine exclusively.
        unsafe { std::slice::from_raw_parts(region.base().cast::<f32>(), (bytes / 4) as usize) }
    }

    /// What logits there are is none of a sequence that becomes another.
    pub(crate) fn forget_logits(&mut self) {
        (self.outputs, self.rows) = (0, 0);
    }

    /// Logits of one of the last step's wanted rows; empty where there is none.
    pub fn logits(&self, output: usize) -> &[f32] {
        self.all_logits().chunks_exact(self.output_width() as usize).nth(output).unwrap_or(&[])
    }

    /// Goes back to the first `tokens` tokens, or to as many before that as [`Engine::reach`] says; does nothing where there are not more.
    /// Gives how many tokens are left: those that were to stay and did not are to be computed again.
    pub fn truncate(&mut self, tokens: u32) -> u32 {
        self.truncate_sequence(FIRST, tokens).unwrap_or(0)
    }

    /// How many tokens would be left if the sequence was to be cut to `tokens`. States that cannot be cut get back to positions
    /// that were saved alone: the ends of the last steps of several tokens, and where [`Engine::save`] was called; and to the beginning.
    pub fn reach(&self, tokens: u32) -> u32 {
        self.first().map_or(0, |sequence| sequence.reach(tokens))
    }

    /// Whether the sequence can be cut wherever one likes. With a window it can be cut back by as much as memory holds beside the window, and to the
    /// beginning.
    pub fn cut_anywhere(&self) -> bool {
        self.first().is_none_or(|sequence| sequence.states.cut_anywhere())
    }

    /// Whether tokens of the last step can be cut off again, any number of them, without what was before being lost: states that change from token to token
    /// cannot.
    pub fn cuts_steps(&self) -> bool {
        self.first().is_none_or(|sequence| sequence.states.cuts_steps())
    }

    /// Returns the fewest rows of an addition whose bits do not depend on their number. Parts of a
    /// prompt must begin at multiples of 16.
    pub fn least_rows(&self) -> u32 {
        self.loaded.program.least_rows(self.loaded.exact_batch)
    }

    /// Most additions of a step.
    pub fn max_additions(&self) -> u32 {
        self.loaded.additions
    }

    /// Saves this position, so that one can get back to it as long as it is among the last [`crate::states::SNAPSHOTS`]. Does nothing where every
    /// position can be cut to.
    pub fn save(&mut self) {
        self.loaded.store.sequences.get_mut(FIRST.0).into_iter().for_each(Sequence::save);
    }

    /// The states of a sequence, and the bytes that those of all sequences take, copies apart.
    pub fn states(&self) -> (&[State], u64) {
        let sequences = &self.loaded.store.sequences;
        (sequences.declared(), sequences.iter().map(|sequence| sequence.states.memory().bytes()).sum())
    }

    /// Bytes of weights that are locked in memory
    /// ([`Options::lock`](crate::engine::Options::lock)).
    pub fn locked_bytes(&self) -> u64 {
        self.loaded.locked
    }

    /// What states hold, of all sequences: shared and not.
    pub fn state_bytes(&self) -> StateBytes {
        self.loaded.store.sequences.bytes()
    }

    /// The states of fixed size as the last step left them: name, elements of a row, numbers.
    pub fn state_values(&self) -> impl Iterator<Item = (&str, usize, Vec<f32>)> {
        self.first().into_iter().flat_map(|sequence| sequence.states.values())
    }

    /// Goes back to an empty sequence.
    pub fn reset(&mut self) {
        self.truncate(0);
    }

    /// Tokens in the sequence.
    pub fn position(&self) -> u32 {
        self.first().map_or(0, Sequence::position)
    }

    /// Most tokens that the sequence may have.
    pub fn context(&self) -> u32 {
        self.loaded.context
    }

    /// Most tokens of a step.
    pub fn max_tokens(&self) -> u32 {
        self.loaded.program.max_tokens
    }

    /// Most rows of a step whose outputs are wanted.
    pub fn max_outputs(&self) -> u32 {
        self.loaded.program.output.most(self.loaded.program.max_tokens)
    }

    /// Whether attention is not causal: then a step has all of a text, for every token sees all others.
    pub fn reads_whole(&self) -> bool {
        self.loaded.program.reads_whole()
    }

    /// Size of the vocabulary.
    pub fn vocabulary(&self) -> u32 {
        self.loaded.program.vocabulary
    }

    /// Threads.
    pub fn threads(&self) -> usize {
        self.loaded.pool.threads()
    }

    /// Runs the steps that follow with fewer threads than the engine was loaded with, or with as many again. The code and what is
    /// packed stay.
    ///
    /// # Errors
    /// [`LoadError::Threads`] for none, or more than there is scratch memory for; otherwise when a thread cannot be started.
    pub fn use_threads(&mut self, threads: usize) -> Result<(), LoadError> {
        if threads > self.loaded.store.scratch.len() {
            return Err(LoadError::Threads { found: threads });
        }
        let options = Options { threads: Some(threads), pin: self.loaded.pin, ..Options::default() };
        (self.loaded.pool, self.loaded.pinned) = options::pool(&options)?;
        self.loaded.crew = Crew::new(threads, processors());
        self.loaded.stats.threads = threads;
        Ok(())
    }

    /// The processor of each thread, where they are bound to theirs, the caller's while it runs a step; or why they are not.
    pub fn pinned(&self) -> Result<&[usize], &Unpinned> {
        self.loaded.pinned.as_deref()
    }

    /// The target that kernels were generated for.
    pub fn target(&self) -> Target {
        self.loaded.target
    }

    /// The architecture's name, for people.
    pub fn architecture(&self) -> &str {
        &self.loaded.architecture
    }

    /// Tokenizer and chat template, as the plan has them.
    pub fn tokenizer(&self) -> &[u8] {
        &self.loaded.tokenizer
    }

    /// The weight store, where experts are streamed.
    pub fn stream(&self) -> Option<&store::ExpertCache> {
        self.loaded.store.experts.as_ref().map(Experts::store)
    }

    /// What the page cache was told, where experts stay in mapped files.
    pub fn advised(&self) -> Option<Advised> {
        self.loaded.store.advice.as_ref().map(Advice::advised)
    }

    /// How predicting experts did, where they are streamed.
    pub fn predictions(&self) -> Option<predict::Report> {
        self.loaded.store.experts.as_ref().map(Experts::predictions)
    }

    /// What is in memory of weights, activations and states, and how much of that is in large pages.
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

    /// Where the time went since the last call; tasks and stalls only if [`Options::stats`] said so.
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
        // SAFETY: the program's check says that this kernel has no dims, reads its first two buffers and writes the third, and
        // that they are no longer than a row of the vocabulary, one float, and a row; the slices have a row's length.
        unsafe { self.loaded.backend.call(kernel, &pointers, &sizes, &[]) }.map_err(|problem| {
            let (task, kernel) = ("softmax".to_string(), self.loaded.program.kernels[kernel].name.clone());
            StepError::Execute(ExecuteError::Item(Box::new(ItemError { task, kernel, problem })))
        })
    }
}
