//! Conversion of texts to tokens and back.

use std::ffi::{c_char, c_int};

use ixc::loaded_model::{check_prompt, with_bos};
use ixc::text::tokenizer::DecodeOptions;

use crate::arguments::{Buffer, not_null, slice, text};
use crate::error::{IxcStatus, catch_failure, status};
use crate::flags;
use crate::model::IxcModel;

/// Writes the tokens of a text.
///
/// # Safety
/// `model` is null or open. The other pointers have as many elements as the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_tokenize(
    model: *const IxcModel,
    text_at: *const c_char,
    bytes: usize,
    flags: u32,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let IxcModel(model) = not_null("model", unsafe { model.as_ref() })?;
        flags::check(flags, flags::ADD_BOS | flags::PARSE_SPECIAL)?;
        let buffer = Buffer::new("tokens", tokens, capacity, count)?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let text = unsafe { text("text", text_at, bytes) }?;
        let tokenizer = model.tokenizer()?;
        check_prompt(tokenizer, model.facts.context as usize, model.facts.trained_context as usize, text)?;
        let tokens = tokenizer.encode(text, flags & flags::PARSE_SPECIAL != 0)?;
        let tokens = if flags & flags::ADD_BOS != 0 { with_bos(tokenizer, tokens) } else { tokens };
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { buffer.fill(&tokens) }
    })
}

/// Writes the bytes of tokens.
///
/// # Safety
/// See [`ixc_tokenize`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_detokenize(
    model: *const IxcModel,
    tokens: *const u32,
    count: usize,
    flags: u32,
    text: *mut c_char,
    capacity: usize,
    bytes: *mut usize,
) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let IxcModel(model) = not_null("model", unsafe { model.as_ref() })?;
        flags::check(flags, flags::SHOW_SPECIAL | flags::AT_START)?;
        let buffer = Buffer::new("text", text.cast::<u8>(), capacity, bytes)?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let tokens = unsafe { slice("tokens", tokens, Some(count)) }?;
        let options =
            DecodeOptions { show_special: flags & flags::SHOW_SPECIAL != 0, at_start: flags & flags::AT_START != 0 };
        let bytes = model.tokenizer()?.decode_bytes(tokens, options)?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { buffer.fill_text(&bytes) }
    })
}

/// Returns whether a token ends a text.
///
/// # Safety
/// `model` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_is_end(model: *const IxcModel, token: u32) -> c_int {
    catch_failure(-1, || {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let IxcModel(model) = not_null("model", unsafe { model.as_ref() })?;
        Ok(model.tokenizer()?.is_end_of_generation(token).into())
    })
}
