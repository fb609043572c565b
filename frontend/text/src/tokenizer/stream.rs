//! Conversion of token ids to text, one id at a time. A token may end inside of a character, so
//! bytes are kept until the character is complete.

use std::borrow::Borrow;

use super::{DecodeOptions, Tokenizer, TokenizerError};

impl Tokenizer {
    /// Returns the text of a sequence of ids, without control tokens. Invalid UTF-8 becomes U+FFFD.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`].
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.decode_with(ids, DecodeOptions::default())
    }

    /// Does what [`Tokenizer::decode`] does, but with these options.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`].
    pub fn decode_with(&self, ids: &[u32], options: DecodeOptions) -> Result<String, TokenizerError> {
        Ok(String::from_utf8_lossy(&self.decode_bytes(ids, options)?).into_owned())
    }

    /// Returns the bytes of a sequence of ids, which may be invalid UTF-8.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`].
    pub fn decode_bytes(&self, ids: &[u32], options: DecodeOptions) -> Result<Vec<u8>, TokenizerError> {
        let mut stream = self.stream(options);
        let mut bytes = Vec::new();
        for &id in ids {
            bytes.extend(shown_bytes(self, id, stream.show_special, &mut stream.strip_space)?);
        }
        Ok(bytes)
    }

    /// Returns a decoder that takes one token at a time.
    pub fn stream(&self, options: DecodeOptions) -> Stream<&Tokenizer> {
        Stream::new(self, options)
    }
}

/// Decoder that takes one token at a time. The texts from [`Stream::push`] and [`Stream::finish`],
/// joined, are the text that [`Tokenizer::decode_with`] returns for all ids.
///
/// `T` is a reference to the tokenizer: `&Tokenizer`, or `Arc<Tokenizer>` for a decoder that
/// outlives its scope.
#[derive(Clone, Debug)]
pub struct Stream<T> {
    tokenizer: T,
    show_special: bool,
    /// Whether a space at the beginning of the next text is removed.
    strip_space: bool,
    /// Bytes of an incomplete character: at most three bytes between calls.
    pending: Vec<u8>,
}

impl<T: Borrow<Tokenizer>> Stream<T> {
    /// Returns a decoder with these options.
    pub fn new(tokenizer: T, options: DecodeOptions) -> Stream<T> {
        let strip_space = options.at_start && tokenizer.borrow().add_space_prefix;
        Stream { tokenizer, show_special: options.show_special, strip_space, pending: Vec::new() }
    }

    /// Adds a token. Returns the text that is now certain: complete characters, or an empty text.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`].
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        let bytes = shown_bytes(self.tokenizer.borrow(), id, self.show_special, &mut self.strip_space)?;
        self.pending.extend(bytes);
        let mut text = String::new();
        let mut certain = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            certain += chunk.valid().len();
            if chunk.invalid().is_empty() {
                break;
            }
            if std::str::from_utf8(&self.pending[certain..]).is_err_and(|error| error.error_len().is_none()) {
                break; // It may yet become a character.
            }
            text.push(char::REPLACEMENT_CHARACTER);
            certain += chunk.invalid().len();
        }
        self.pending.drain(..certain);
        Ok(text)
    }

    /// Ends the text. Returns U+FFFD if an incomplete character is left, otherwise an empty text.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}

/// Returns the bytes that are shown for a token. The first text clears `strip_space`.
fn shown_bytes<'t>(
    tokenizer: &'t Tokenizer,
    id: u32,
    show_special: bool,
    strip_space: &mut bool,
) -> Result<&'t [u8], TokenizerError> {
    let bytes = tokenizer.token_bytes(id)?;
    if !show_special && !tokenizer.is_text(id) {
        return Ok(&[]);
    }
    let strip = std::mem::take(strip_space) && tokenizer.is_text(id);
    Ok(bytes.strip_prefix(b" ").filter(|_| strip).unwrap_or(bytes))
}
