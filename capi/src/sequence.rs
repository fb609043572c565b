//! Sequences of a caller, and steps that compute their tokens.

use std::ffi::c_char;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use ixc::GenerationError;
use ixc::files::{Guard, Output, open_regular};
use ixc::runtime::engine::{Addition, SequenceId, StepError};
use ixc::runtime::saved;

use crate::arguments::{Buffer, HandlePlace, Place, free, not_null, slice, string};
use crate::error::{Failure, IxcStatus, status};
use crate::model::{IxcModel, Running, Shared};

/// A sequence: tokens whose states the model holds.
#[derive(Debug)]
pub struct IxcSequence {
    model: Arc<Shared>,
    id: SequenceId,
}

impl Drop for IxcSequence {
    fn drop(&mut self) {
        self.model.remove_later(self.id);
    }
}

/// `ixc_addition`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IxcAddition {
    sequence: *mut IxcSequence,
    tokens: *const u32,
    count: usize,
    outputs: *const u32,
    output_count: usize,
}

impl Running {
    /// Returns the tokens of a sequence.
    fn tokens(&mut self, id: SequenceId) -> &mut Vec<u32> {
        self.sequences.entry(id).or_default()
    }

    /// Drops tokens that the engine no longer holds. Returns the number of remaining tokens.
    fn follow_engine(&mut self, id: SequenceId) -> usize {
        let held = self.session.model().engine().sequence(id).map_or(0, |sequence| sequence.position());
        self.tokens(id).truncate(held as usize);
        held as usize
    }
}

/// Adds an empty sequence.
///
/// # Safety
/// `model` is null or open; `sequence` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_sequence_new(model: *const IxcModel, sequence: *mut *mut IxcSequence) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let place = unsafe { HandlePlace::new("sequence", sequence) }?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let IxcModel(model) = not_null("model", unsafe { model.as_ref() })?;
        let mut running = model.lock()?;
        let id = match running.session.engine_mut().add_sequence() {
            Err(StepError::TooManySequences { .. }) => {
                let most = model.facts.sequences;
                let text = format!(
                    "the model already has its maximum of {most} sequences; set a larger `sequences` in ixc_model_options"
                );
                return Err(Failure::usage(text));
            }
            added => added?,
        };
        running.sequences.insert(id, Vec::new());
        drop(running);
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { place.give(IxcSequence { model: Arc::clone(model), id }) };
        Ok(())
    })
}

/// Removes a sequence.
///
/// # Safety
/// `sequence` is null, or came from [`ixc_sequence_new`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_sequence_free(sequence: *mut IxcSequence) {
    // SAFETY: the caller meets the conditions of `# Safety`.
    unsafe { free(sequence) };
}

/// Writes the tokens of a sequence.
///
/// # Safety
/// `sequence` is null or was not freed; the buffer is as the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_sequence_tokens(
    sequence: *const IxcSequence,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let sequence = not_null("sequence", unsafe { sequence.as_ref() })?;
        let buffer = Buffer::new("tokens", tokens, capacity, count)?;
        let mut running = sequence.model.lock()?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { buffer.fill(running.tokens(sequence.id)) }
    })
}

/// Truncates a sequence to its first tokens.
///
/// # Safety
/// `sequence` is null or was not freed; `left` is null or has room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_sequence_truncate(
    sequence: *mut IxcSequence,
    tokens: usize,
    left: *mut usize,
) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let sequence = not_null("sequence", unsafe { sequence.as_ref() })?;
        let left = Place::new("left", left)?;
        let mut running = sequence.model.lock()?;
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        running.session.engine_mut().truncate_sequence(sequence.id, tokens)?;
        let held = running.follow_engine(sequence.id);
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { left.write(held) };
        Ok(())
    })
}

/// Makes a sequence a copy of the first tokens of another.
///
/// # Safety
/// Both sequences are null or were not freed; `copied` is null or has room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_sequence_copy(
    from: *const IxcSequence,
    to: *mut IxcSequence,
    tokens: usize,
    copied: *mut usize,
) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let from = not_null("from", unsafe { from.as_ref() })?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let to = not_null("to", unsafe { to.as_ref() })?;
        let copied = Place::new("copied", copied)?;
        if !Arc::ptr_eq(&from.model, &to.model) {
            return Err(Failure::usage(
                "from and to are sequences of two different models; expected sequences of one model",
            ));
        }
        let mut running = from.model.lock()?;
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        running.session.engine_mut().copy_sequence(from.id, to.id, tokens)?;
        let source = running.tokens(from.id).clone();
        *running.tokens(to.id) = source;
        let held = running.follow_engine(to.id);
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { copied.write(held) };
        Ok(())
    })
}

/// Adds tokens to sequences, and writes the logits of the requested rows.
///
/// # Safety
/// `model` is null or open; all arrays have as many elements as the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_step(
    model: *const IxcModel,
    additions: *const IxcAddition,
    count: usize,
    logits: *mut f32,
    capacity: usize,
    needed: *mut usize,
) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let IxcModel(model) = not_null("model", unsafe { model.as_ref() })?;
        let buffer = Buffer::new("logits", logits, capacity, needed)?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let given = unsafe { slice("additions", additions, Some(count)) }?;
        let mut all = Vec::with_capacity(given.len());
        for (number, addition) in given.iter().enumerate() {
            let what = |field: &str| format!("additions[{number}].{field}");
            // SAFETY: the caller meets the conditions of `# Safety`.
            let sequence = not_null(&what("sequence"), unsafe { addition.sequence.as_ref() })?;
            if !Arc::ptr_eq(&sequence.model, model) {
                return Err(Failure::usage(format!("{} is a sequence of another model", what("sequence"))));
            }
            // SAFETY: the caller meets the conditions of `# Safety`.
            let tokens = unsafe { slice(&what("tokens"), addition.tokens, Some(addition.count)) }?;
            // SAFETY: the caller meets the conditions of `# Safety`.
            let outputs = unsafe { slice(&what("outputs"), addition.outputs, Some(addition.output_count)) }?;
            all.push(Addition { sequence: sequence.id, tokens, outputs });
        }
        let rows: usize = all.iter().map(|addition| addition.outputs.len()).sum();
        let numbers = rows.saturating_mul(model.facts.vocabulary as usize);
        // SAFETY: the caller meets the conditions of `# Safety`.
        if !unsafe { buffer.has_room(numbers, 0) }? && rows > 0 {
            return Err(Failure::buffer("logits", 0, numbers));
        }
        let mut running = model.lock()?;
        if let Err(error) = running.session.engine_mut().step_batch(&all) {
            // The engine may have truncated sequences to an earlier snapshot, if their states
            // cannot be truncated to any position.
            for addition in &all {
                running.follow_engine(addition.sequence);
            }
            return Err(error.into());
        }
        for addition in &all {
            running.tokens(addition.sequence).extend_from_slice(addition.tokens);
        }
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { buffer.fill(running.session.model().engine().all_logits()) }
    })
}

/// Writes a sequence to a file.
///
/// # Safety
/// `sequence` is null or was not freed; `path` is null or a text that ends with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_sequence_save(sequence: *const IxcSequence, path: *const c_char) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let sequence = not_null("sequence", unsafe { sequence.as_ref() })?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let output = state_output(Path::new(unsafe { string("path", path) }?))?;
        let mut running = sequence.model.lock()?;
        let tokens = running.tokens(sequence.id).clone();
        running.session.model().save(sequence.id, &tokens, None, output)?;
        Ok(())
    })
}

/// Replaces a sequence by that of a file.
///
/// # Safety
/// See [`ixc_sequence_save`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_sequence_load(sequence: *mut IxcSequence, path: *const c_char) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let sequence = not_null("sequence", unsafe { sequence.as_ref() })?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let path = Path::new(unsafe { string("path", path) }?);
        let file = open_regular(path).map_err(ixc::Error::io(path, "open"))?;
        let bytes = file.metadata().map_err(ixc::Error::io(path, "read"))?.len();
        let mut running = sequence.model.lock()?;
        let loaded = running.session.engine_mut().load_state(sequence.id, &mut BufReader::new(file), bytes);
        match loaded {
            Ok(loaded) => *running.tokens(sequence.id) = loaded.tokens,
            Err(source) => {
                running.follow_engine(sequence.id);
                return Err(GenerationError::Saved { path: path.to_owned(), source: Box::new(source) }.into());
            }
        }
        running.follow_engine(sequence.id);
        Ok(())
    })
}

/// Opens an output file for a state. An existing file that is not a state is not replaced.
pub(crate) fn state_output(path: &Path) -> Result<Output, Failure> {
    Ok(Output::open(path, &Guard { kind: Some(&saved::KIND), ..Guard::default() })?)
}
