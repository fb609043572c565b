//! A loaded plan and its sequences of tokens.
//!
//! ```text
//! load ─▶ prefill(prompt) ─▶ logits(0) ─▶ sample ─▶ step(&[token], &[0]) ─▶ logits(0) ─▶ ...
//!                            truncate(n): back to n tokens, or to fewer if states need it
//! ```
//!
//! An engine always has one sequence ([`FIRST`]); methods without a sequence argument use it. More
//! sequences can be added ([`Engine::add_sequence`]). One step ([`Engine::step_batch`]) adds tokens
//! to several sequences, so that weights are read once for all of them. On targets without AMX
//! tiles, the results of a sequence do not depend on the other sequences in the step. With AMX
//! tiles, this needs [`EngineOptions::exact_batch`]. In speculative decoding, each drafted token is
//! a separate addition, so its results have the same bits as in a step of one token.
//!
//! Invariant: between steps, the states are those after [`Engine::position`] tokens. If a step
//! fails, the states return to the position before the step. A state that cannot be truncated there
//! ([`Engine::cut_anywhere`]) returns to its last saved position.

use std::time::{Duration, Instant};

use ixc_ir::plan::{HiddenRows, Output, RowCount};

use super::ranks::command::Command;
use super::ranks::member::Member;
use super::step::{Addition, FIRST, SequenceId, Softmax, StepError};
use crate::execute::{self, Counts, ExecuteError, ItemError};
use crate::executor::sequences::{Piece, Sequence, runs};
use crate::load::{self, LoadError, LoadedPlan};
use crate::options::{self, EngineOptions};
use crate::pool::processors;
use crate::storage::memory::MemoryError;
use crate::thread_count::ThreadCount;
use crate::trace::Step;

/// A loaded plan and its sequences.
#[derive(Debug)]
pub struct Engine {
    pub(crate) loaded: LoadedPlan,
    /// Number of output rows of the last step.
    outputs: usize,
    /// Number of tokens of the last step.
    rows: usize,
    /// Membership in a group of ranks, if the model is divided.
    pub(super) ranks: Option<Member>,
}

impl Engine {
    /// Returns an engine that has only the first sequence.
    pub(super) fn with(loaded: LoadedPlan, ranks: Option<Member>) -> Engine {
        Engine { loaded, outputs: 0, rows: 0, ranks }
    }

    /// Packs all weights that kernels read in packed form and that are not packed yet. Without this
    /// call, each step packs the weights that it needs. Benchmarks call this function first, so
    /// that they do not measure packing.
    ///
    /// # Errors
    /// Fails if a thread panics.
    pub fn pack_weights(&mut self) -> Result<(), LoadError> {
        load::pack_all(
            &mut self.loaded.store.weights,
            &self.loaded.store.files,
            &mut self.loaded.pool,
            self.loaded.progress.as_deref(),
        )
    }

    /// Returns the time that steps have spent packing weights since the plan was loaded, averaged
    /// over the threads.
    pub fn packing_time(&self) -> Duration {
        self.loaded.store.weights.packing() / (self.loaded.pool.threads() as u32).max(1)
    }

    /// Returns the number of matrices that are not packed yet and will be packed on first use. A
    /// weight with experts counts once for each expert.
    pub fn on_demand_parts(&self) -> u64 {
        self.loaded.store.weights.on_demand_parts()
    }

    /// Runs one step that adds `tokens` to the first sequence. Returns the logits of the rows in
    /// `rows_wanted`, which are indices into `tokens`. Each row of logits has the length of the
    /// vocabulary.
    ///
    /// # Errors
    /// See [`StepError`]. After an error, the sequence is as before the step. A state that cannot
    /// be truncated returns to its last saved position.
    pub fn step(&mut self, tokens: &[u32], rows_wanted: &[u32]) -> Result<&[f32], StepError> {
        self.step_batch(&[Addition { sequence: FIRST, tokens, outputs: rows_wanted }])
    }

    /// Runs one step that adds tokens to several sequences. Returns the logits of the requested
    /// rows, in the order of the additions. Each row of logits has the length of the vocabulary.
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
    /// See [`StepError`]. After an error, the sequences are as before the step. States that cannot
    /// be truncated return to their last saved position.
    pub fn step_batch(&mut self, additions: &[Addition<'_>]) -> Result<&[f32], StepError> {
        self.step_hidden(additions, &[])
    }

    /// Runs one step of a plan whose input includes a hidden state for each token
    /// ([`Engine::takes_hidden`]). `hidden` has a row for each token, in the order of the
    /// additions. Otherwise does the same as [`Engine::step_batch`].
    ///
    /// # Errors
    /// See [`Engine::step_batch`]. Also [`StepError::Hidden`] if `hidden` has another number of
    /// elements than the plan needs.
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
        self.tell(|| Command::step(additions))?;
        let (mut positions, mut end) = (Vec::with_capacity(tokens.len()), 0);
        let runs: Vec<Piece> = runs(&pieces).map(|(_, piece)| piece).collect();
        for piece in &runs {
            if let Some(sequence) = self.loaded.store.sequences.get_mut(piece.sequence) {
                sequence.begin(piece.row, piece.rows);
                let (row, states) = (piece.row as usize, &sequence.states);
                let tokens = &tokens[row..row + piece.rows as usize];
                // SAFETY: the regions are parts of the sequence's states, which are mapped and
                // borrowed exclusively.
                unsafe { self.loaded.store.inputs.fill_ngrams(row, tokens, |state| states.region(state, 0, 0, 0)) };
            }
            positions.extend(piece.position..piece.position + piece.rows);
            end = end.max(piece.position + piece.rows);
        }
        let last = |piece: &Piece| (piece.position + piece.rows).saturating_sub(1);
        let ends: Vec<u32> =
            pieces.iter().flat_map(|piece| std::iter::repeat_n(last(piece), piece.rows as usize)).collect();
        self.loaded.store.inputs.fill(&tokens, &positions, &ends, &rows_wanted);
        for table in &mut self.loaded.store.ropes {
            table.fill(end);
        }
        // Steps that may wait for a drive do not adapt the number of threads. Their waits do not
        // show that other processes use processors.
        let resident = self.loaded.store.experts.is_none() && self.loaded.store.advice.is_none();
        let adapts = counts.tokens == 1 && resident;
        let threads = if adapts { self.loaded.thread_count.threads() } else { self.loaded.pool.threads() };
        let begin = Instant::now();
        let run = execute::run(
            &self.loaded.program,
            &self.loaded.backend,
            &mut self.loaded.store,
            &mut self.loaded.pool,
            execute::PassParams {
                pieces: &pieces,
                exact: self.loaded.exact_batch,
                stages: 0..self.loaded.program.stages.len(),
                threads,
                clocks: &self.loaded.clocks,
                watchdog: self.loaded.watchdog.as_ref(),
            },
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
                // The step may have succeeded on other ranks, so the group must end.
                self.loaded.store.ranks.iter().for_each(|link| link.fail(&error));
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

    /// Sends a command to the other ranks if this is rank 0 of several ranks.
    fn tell(&self, command: impl FnOnce() -> Command) -> Result<(), StepError> {
        Ok(self.ranks.as_ref().map_or(Ok(()), |member| member.tell(command))?)
    }

    /// Copies the hidden states of `rows` tokens into the plan's input buffer.
    fn take_hidden(&mut self, rows: usize, hidden: &[f32]) -> Result<(), StepError> {
        let expected = self.takes_hidden().unwrap_or(0);
        let wrong = StepError::Hidden { found: hidden.len(), rows, expected };
        if rows.checked_mul(expected as usize) != Some(hidden.len()) {
            return Err(wrong);
        }
        let Some(HiddenRows { buffer, .. }) = self.loaded.program.takes else { return Ok(()) };
        let offset = self.loaded.program.buffers[buffer.0 as usize].offset;
        let region = self.loaded.store.arena.region().part(offset, hidden.len() as u64 * 4).ok_or(wrong)?;
        // SAFETY: the region lies in the arena and has as many bytes as are copied. Nothing else
        // uses the arena while the engine is borrowed exclusively. The source is a slice of the
        // same length.
        unsafe { region.base().copy_from_nonoverlapping(hidden.as_ptr().cast::<u8>(), hidden.len() * 4) };
        Ok(())
    }

    /// Returns the number of elements of the hidden state that a plan needs with each token; `None`
    /// if its input is only tokens.
    pub fn takes_hidden(&self) -> Option<u32> {
        self.loaded.program.takes.map(|rows| rows.width)
    }

    /// Returns the number of elements of the hidden state that a step returns for each token in
    /// addition to the logits; `None` if a step returns no additional hidden states.
    pub fn gives_hidden(&self) -> Option<u32> {
        self.loaded.program.gives.map(|rows| rows.width)
    }

    /// Returns the hidden states of the last step's tokens ([`Engine::gives_hidden`]), one row for
    /// each token in the order of the additions. The slice is empty if the plan returns none in
    /// addition to the logits, or if a sequence was changed after the step.
    pub fn hidden_states(&self) -> &[f32] {
        let Some(HiddenRows { buffer, width }) = self.loaded.program.gives else { return &[] };
        let count = self.rows * width as usize;
        let offset = self.loaded.program.buffers[buffer.0 as usize].offset;
        let Some(region) = self.loaded.store.arena.region().part(offset, count as u64 * 4) else { return &[] };
        // SAFETY: the same reason as in `all_logits`. `Program::new` checked that the buffer holds
        // aligned floats, and that it lives to the end of a step.
        unsafe { std::slice::from_raw_parts(region.base().cast::<f32>(), count) }
    }

    /// Checks the additions of a step. Returns one [`Piece`] (rows of one sequence) for each
    /// addition.
    fn pieces(&self, additions: &[Addition<'_>]) -> Result<Vec<Piece>, StepError> {
        let (max, found) = (self.loaded.program.max_tokens, additions.iter().map(|a| a.tokens.len()).sum());
        if additions.is_empty() || additions.iter().any(|addition| addition.tokens.is_empty()) {
            return Err(StepError::NoTokens);
        }
        if found > max as usize {
            return Err(StepError::TooManyTokens { found, max });
        }
        if additions.len() > self.loaded.additions as usize {
            return Err(StepError::TooManyAdditions { found: additions.len(), max: self.loaded.additions });
        }
        let (mut pieces, mut next) = (Vec::<Piece>::with_capacity(additions.len()), Piece::default());
        for &Addition { sequence, tokens, outputs } in additions {
            let before = pieces.last().filter(|piece| piece.sequence == sequence.0);
            if before.is_none() && pieces.iter().any(|piece| piece.sequence == sequence.0) {
                return Err(StepError::SequenceTwice { id: sequence });
            }
            let at = self.check_tokens(sequence, tokens, before.map(|piece| piece.position + piece.rows))?;
            if at > 0 && self.reads_whole() {
                return Err(StepError::Part { position: at, tokens: tokens.len(), max });
            }
            for (index, &row) in outputs.iter().enumerate() {
                let wanted = next.output as usize + index;
                if row as usize >= tokens.len() || index >= tokens.len() || wanted >= self.max_outputs() as usize {
                    return Err(StepError::Output { index, row, rows: tokens.len() });
                }
            }
            // The casts are exact, because each number is at most `max_tokens`.
            let (rows, outputs) = (tokens.len() as u32, outputs.len() as u32);
            pieces.push(Piece { sequence: sequence.0, rows, position: at, outputs, ..next });
            (next.row, next.output) = (next.row + rows, next.output + outputs);
        }
        Ok(pieces)
    }

    /// Adds an empty sequence.
    ///
    /// # Errors
    /// [`StepError::TooManySequences`] if the engine already has as many sequences as
    /// [`EngineOptions::sequences`] allows, or [`StepError::Memory`].
    pub fn add_sequence(&mut self) -> Result<SequenceId, StepError> {
        let _home = self.loaded.homes.enter();
        let sequences = &mut self.loaded.store.sequences;
        let added = sequences.add().map_err(|MemoryError { what, bytes, source }| StepError::Memory {
            what,
            bytes,
            kind: source.kind(),
        })?;
        let added = added.ok_or(StepError::TooManySequences { max: sequences.max_sequences() })?;
        self.tell(|| Command::Add { sequence: added })?;
        Ok(SequenceId(added))
    }

    /// Removes a sequence and frees its memory. [`FIRST`] is only emptied. Does nothing if the
    /// sequence does not exist.
    pub fn remove_sequence(&mut self, id: SequenceId) {
        if id == FIRST {
            return self.reset();
        }
        self.forget_logits();
        self.loaded.store.sequences.remove(id.0);
        // Sending fails only if the group has ended. Then the next step fails, too.
        let _ = self.tell(|| Command::Remove { sequence: id.0 });
    }

    /// Returns the maximum number of sequences, as set by [`EngineOptions::sequences`].
    pub fn sequences(&self) -> u32 {
        self.loaded.store.sequences.max_sequences()
    }

    /// Returns the sequence with this id, if it exists.
    pub fn sequence(&self, id: SequenceId) -> Option<&Sequence> {
        self.loaded.store.sequences.get(id.0)
    }

    /// Truncates a sequence by its id; see [`Engine::truncate`].
    ///
    /// # Errors
    /// [`StepError::NoSequence`] if the sequence does not exist.
    pub fn truncate_sequence(&mut self, id: SequenceId, tokens: u32) -> Result<u32, StepError> {
        self.forget_logits();
        let sequence = self.loaded.store.sequences.get_mut(id.0).ok_or(StepError::NoSequence { id })?;
        let is_longer = sequence.position() > tokens;
        let left = sequence.truncate(tokens);
        if is_longer {
            self.tell(|| Command::Truncate { sequence: id.0, tokens, left })?;
        }
        Ok(left)
    }

    /// Makes `to` a copy of the first `tokens` tokens of `from`. If the states of `from` cannot
    /// return to that length, copies the longest shorter prefix that they can return to. Returns
    /// the length of the copy in tokens. A prompt that several sequences share is thus computed
    /// once. If the system allows it, its states are also stored once
    /// ([`crate::storage::shared_pages`]).
    ///
    /// # Errors
    /// [`StepError::NoSequence`] if a sequence does not exist, and [`StepError::CopyOfItself`] if
    /// `from` and `to` are the same.
    pub fn copy_sequence(&mut self, from: SequenceId, to: SequenceId, tokens: u32) -> Result<u32, StepError> {
        self.forget_logits();
        if from == to {
            return Err(StepError::CopyOfItself { id: to });
        }
        let sequences = &mut self.loaded.store.sequences;
        let missing = [from, to].into_iter().find(|id| sequences.get(id.0).is_none());
        let copied = sequences.copy(from.0, to.0, tokens);
        let copied = copied.ok_or(StepError::NoSequence { id: missing.unwrap_or(to) })?;
        self.tell(|| Command::Copy { from: from.0, to: to.0, tokens, copied })?;
        Ok(copied)
    }

    /// Adds tokens to the first sequence, in as many steps as needed. Returns the logits of the
    /// last token.
    ///
    /// # Errors
    /// See [`StepError`]. Invalid tokens are found before the first step. If a later step fails,
    /// the sequence keeps the tokens of the earlier steps.
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

    /// Checks that a step may append tokens to a sequence. `after` is the position after the step's
    /// earlier addition to the same sequence, if there is one. Returns the position of the first
    /// token.
    fn check_tokens(&self, id: SequenceId, tokens: &[u32], after: Option<u32>) -> Result<u32, StepError> {
        let position = self.sequence(id).ok_or(StepError::NoSequence { id })?.position();
        let position = after.unwrap_or(position);
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
    pub(super) fn first(&self) -> Option<&Sequence> {
        self.sequence(FIRST)
    }

    /// Returns the logits of all rows that were requested in the last step, in order.
    pub fn all_logits(&self) -> &[f32] {
        let buffer = &self.loaded.program.buffers[self.loaded.program.logits.0 as usize];
        debug_assert_eq!(buffer.rows, RowCount::Outputs);
        let bytes = buffer.row_bytes * self.outputs as u64;
        let Some(region) = self.loaded.store.arena.region().part(buffer.offset, bytes) else { return &[] };
        // SAFETY: the region lies in the arena, a mapping that is initialised and page-aligned. Its
        // offset is a multiple of 4 (checked by `Program::new`), and every bit pattern is a float.
        // Kernels write to the arena only in `step`, which borrows the engine exclusively.
        unsafe { std::slice::from_raw_parts(region.base().cast::<f32>(), (bytes / 4) as usize) }
    }

    /// Drops the logits of the last step, because a sequence is changed.
    pub(crate) fn forget_logits(&mut self) {
        (self.outputs, self.rows) = (0, 0);
    }

    /// Returns one row of the last step's logits; `output` is the index among the requested rows.
    /// Returns an empty slice if the row does not exist.
    pub fn logits(&self, output: usize) -> &[f32] {
        self.all_logits().chunks_exact(self.output_width() as usize).nth(output).unwrap_or(&[])
    }

    /// Truncates the first sequence to `tokens` tokens, or to the shorter length that
    /// [`Engine::reach`] returns. Does nothing if the sequence is not longer. Returns the remaining
    /// number of tokens; the removed tokens must be computed again.
    pub fn truncate(&mut self, tokens: u32) -> u32 {
        self.truncate_sequence(FIRST, tokens).unwrap_or(0)
    }

    /// Returns the length that [`Engine::truncate`] to `tokens` tokens would leave. A state that
    /// cannot be truncated can return only to the beginning and to saved positions.
    /// [`Engine::save`] saves a position, and so does the end of each step of several tokens. Only
    /// the last positions are kept.
    pub fn reach(&self, tokens: u32) -> u32 {
        self.first().map_or(0, |sequence| sequence.reach(tokens))
    }

    /// Returns whether the first sequence can be truncated at any position. A sequence with
    /// sliding-window attention can lose only as many positions as memory holds beyond the window,
    /// or all positions.
    pub fn cut_anywhere(&self) -> bool {
        self.first().is_none_or(|sequence| sequence.states.cut_anywhere())
    }

    /// Returns whether any number of the last step's tokens can be removed from the first sequence
    /// without losing earlier tokens. This is false for recurrent states.
    pub fn cuts_steps(&self) -> bool {
        self.first().is_none_or(|sequence| sequence.states.cuts_steps())
    }

    /// Saves the present position of the first sequence, so that the sequence can return to it.
    /// Only the last [`crate::states::SNAPSHOTS`] positions are kept. Does nothing if all states
    /// can be truncated anywhere.
    pub fn save(&mut self) {
        self.loaded.store.sequences.get_mut(FIRST.0).into_iter().for_each(Sequence::save);
        // Sending fails only if the group has ended. Then the next step fails, too.
        let _ = self.tell(|| Command::Save);
    }

    /// Removes all tokens from the first sequence.
    pub fn reset(&mut self) {
        self.truncate(0);
    }

    /// Returns the number of tokens in the first sequence.
    pub fn position(&self) -> u32 {
        self.first().map_or(0, Sequence::position)
    }

    /// Changes the number of threads of later steps, up to the number with which the engine was
    /// loaded. Keeps the generated code and the packed weights. If weights are mirrored on NUMA
    /// nodes, the threads are divided among the copies. If the model is divided among ranks, only
    /// the threads of rank 0 change.
    ///
    /// # Errors
    /// [`LoadError::Threads`] if the number is 0, or larger than the number with which the engine
    /// was loaded. Also fails if a thread cannot be started.
    pub fn use_threads(&mut self, threads: usize) -> Result<(), LoadError> {
        if threads > self.loaded.store.scratch.len() {
            return Err(LoadError::Threads { found: threads });
        }
        let homes = self.loaded.homes.clone();
        let home_of_thread = homes.of_threads(threads);
        let options = EngineOptions { threads: Some(threads), pin: self.loaded.pin, homes, ..EngineOptions::default() };
        (self.loaded.pool, self.loaded.pinned_processors) = options::pool(&options)?;
        self.loaded.store.weights.assign_copies(&home_of_thread);
        self.loaded.thread_count = ThreadCount::new(threads, processors());
        self.loaded.stats.threads = threads;
        Ok(())
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
        // SAFETY: `Program::new` checked that this kernel has no dims, reads its first two buffers
        // and writes the third. The buffers have at most the lengths of a vocabulary row, one
        // float, and a vocabulary row. The slices have a row's length.
        unsafe { self.loaded.backend.call(kernel, &pointers, &sizes, &[]) }.map_err(|problem| {
            let (task, kernel) = ("softmax".to_string(), self.loaded.program.kernels[kernel].name.clone());
            StepError::Execute(ExecuteError::Item(Box::new(ItemError { task, kernel, problem })))
        })
    }
}
