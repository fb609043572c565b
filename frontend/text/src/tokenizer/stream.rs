//! Converts ids to text, one at a time. A token may end inside a character, so bytes are kept until
//! the character is complete.

use super::{DecodeOptions, Tokenizer, TokenizerError};

impl Tokenizer {
    /// Returns the text of a whole sequence, without control tokens. Invalid UTF-8 becomes U+FFFD.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`].
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.decode_with(ids, DecodeOptions::default())
    }

    /// Does what [`Tokenizer::decode`] does, with options.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`].
    pub fn decode_with(&self, ids: &[u32], options: DecodeOptions) -> Result<String, TokenizerError> {
        Ok(String::from_utf8_lossy(&self.decode_bytes(ids, options)?).into_owned())
    }

    /// Returns the bytes of a sequence, including invalid UTF-8.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`].
    pub fn decode_bytes(&self, ids: &[u32], options: DecodeOptions) -> Result<Vec<u8>, TokenizerError> {
        let mut stream = self.stream(options);
        let mut bytes = Vec::new();
        for &id in ids {
            bytes.extend(stream.shown_bytes(id)?);
        }
        Ok(bytes)
    }

    /// Returns a decoder for one token at a time.
    pub fn stream(&self, options: DecodeOptions) -> Stream<'_> {
        let strip_space = options.at_start && self.add_space_prefix;
        Stream { tokenizer: self, show_special: options.show_special, strip_space, pending: Vec::new() }
    }
}

/// Decoder for one token at a time. The texts of [`Stream::push`] and [`Stream::finish`] together
/// are the text that [`Tokenizer::decode_with`] returns for all ids.
#[derive(Clone, Debug)]
pub struct Stream<'t> {
    tokenizer: &'t Tokenizer,
    show_special: bool,
    /// Whether a leading space is removed from the next text.
    strip_space: bool,
    /// Incomplete character: at most three bytes between calls.
    pending: Vec<u8>,
}

impl<'t> Stream<'t> {
    /// Returns the text that is certain after this token: whole characters, possibly none.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`].
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        let bytes = self.shown_bytes(id)?;
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

    /// Returns the rest: an incomplete character, as U+FFFD.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }

    /// Returns a token's bytes as they are shown here.
    fn shown_bytes(&mut self, id: u32) -> Result<&'t [u8], TokenizerError> {
        let bytes = self.tokenizer.token_bytes(id)?;
        if !self.show_special && !self.tokenizer.is_text(id) {
            return Ok(&[]);
        }
        let strip = std::mem::take(&mut self.strip_space) && self.tokenizer.is_text(id);
        Ok(bytes.strip_prefix(b" ").filter(|_| strip).unwrap_or(bytes))
    }
}
