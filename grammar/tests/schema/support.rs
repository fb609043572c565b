//! Helpers of the schema tests: a vocabulary of bytes, and random texts that a schema allows.

use std::sync::LazyLock;

use ixc_grammar::{GrammarError, GrammarSource, Matcher, Vocabulary};
use ixc_ir::random::Random;
use serde_json::Value;

/// Vocabulary with one token for each byte.
pub static BYTES: LazyLock<Vocabulary> =
    LazyLock::new(|| Vocabulary::of_words((0..=255u8).map(|byte| vec![byte]).collect(), Vec::new()).unwrap());

/// Returns a schema's matcher for an answer that has no tokens yet.
pub fn matcher(schema: &Value) -> Result<Matcher, GrammarError> {
    BYTES.matcher(&GrammarSource::Schema(schema.clone()))
}

/// Returns whether a text as a whole is allowed.
pub fn follows(matcher: &Matcher, text: &str) -> bool {
    let mut matcher = matcher.clone();
    text.bytes().all(|byte| matcher.accept(u32::from(byte)).is_ok()) && matcher.may_end()
}

/// Returns whether a text as a whole is allowed, according to the mask before each token.
pub fn masks_allow(matcher: &Matcher, text: &str) -> bool {
    let mut matcher = matcher.clone();
    for byte in text.bytes() {
        let is_allowed = matcher.token_mask().is_ok_and(|mask| mask[usize::from(byte) / 32] >> (byte % 32) & 1 == 1);
        if !is_allowed || matcher.accept(u32::from(byte)).is_err() {
            return false;
        }
    }
    matcher.may_end()
}

/// Writes a random text by choosing from the masks, with a preference for its end. Returns `None`
/// if the text is longer than `most` bytes.
///
/// # Errors
/// The text after which no token is allowed.
pub fn walk(matcher: &Matcher, random: &mut Random, most: usize) -> Result<Option<String>, String> {
    let mut matcher = matcher.clone();
    let mut text = Vec::new();
    while text.len() < most {
        let shown = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        if matcher.is_ended() {
            return Ok(Some(shown(&text)));
        }
        let may_end = matcher.may_end();
        if may_end && random.bits().is_multiple_of(4) {
            return Ok(Some(shown(&text)));
        }
        let mask = matcher.token_mask().map_err(|error| format!("{} then {error}", shown(&text)))?.to_vec();
        let allowed: Vec<u8> =
            (0..=255u8).filter(|byte| mask[usize::from(*byte) / 32] >> (byte % 32) & 1 == 1).collect();
        if allowed.is_empty() {
            return Ok(Some(shown(&text)));
        }
        // White space adds no content, and long texts take time.
        let solid: Vec<u8> = allowed.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let closing: Vec<u8> = solid.iter().copied().filter(|byte| b"\"}],".contains(byte)).collect();
        let closing: Vec<u8> = match text.len() > most / 3 {
            true => closing.iter().copied().filter(|byte| *byte != b',' || closing.len() == 1).collect(),
            false => closing,
        };
        let plain: Vec<u8> = solid.iter().copied().filter(|byte| (32..127).contains(byte)).collect();
        let choice = match random.bits() % 16 {
            0 => &allowed,
            1 => &solid,
            2..=7 => &closing,
            _ if text.len() > most / 3 => &closing,
            _ => &plain,
        };
        let choice = [choice, &plain, &solid, &allowed].into_iter().find(|choice| !choice.is_empty()).unwrap();
        let byte = choice[(random.bits() % choice.len() as u64) as usize];
        matcher.accept(u32::from(byte)).map_err(|error| format!("{} then {byte}: {error}", shown(&text)))?;
        text.push(byte);
    }
    Ok(None)
}
