//! Text of generated tokens that is safe to show: whole characters, and no part of a stop string.
//!
//! A stop string is text that ends an answer wherever it occurs, and is not part of it.
//!
//! ```
//! use ixc_generate::output_text::StopStrings;
//!
//! let mut stop = StopStrings::new(["User:"]);
//! assert_eq!(stop.push("Good day. Us"), "Good day. "); // "Us" may begin the stop string.
//! assert_eq!(stop.push("ually"), "Usually");
//! assert_eq!((stop.push("\nUser: bye"), stop.stopped()), ("\n".into(), true));
//! assert_eq!(stop.finish(), "");
//! ```

use std::sync::Arc;

use ixc_text::tokenizer::{DecodeOptions, Stream, Tokenizer, TokenizerError};

/// Assembler of text from tokens: the generator has one for each request.
///
/// Invariant: returned text is final. No later token changes it, and no later stop string begins in
/// it.
#[derive(Debug)]
pub struct OutputText {
    /// Decoder of tokens. Without a tokenizer, tokens have no text.
    decoder: Option<Stream<Arc<Tokenizer>>>,
    stop: StopStrings,
}

/// End of a text, after its last token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestOfText {
    /// Text that was withheld.
    pub text: String,
    /// The stop string that was found.
    pub stop: Option<String>,
}

impl OutputText {
    /// Creates an assembler of the text after a prompt. `show_special` shows control tokens as
    /// their names.
    pub fn new(tokenizer: Option<Arc<Tokenizer>>, show_special: bool, stop: StopStrings) -> OutputText {
        let options = DecodeOptions { show_special, at_start: false };
        OutputText { decoder: tokenizer.map(|tokenizer| Stream::new(tokenizer, options)), stop }
    }

    /// Adds a token. Returns the text that is final now. A token that the tokenizer lacks has no
    /// text.
    pub fn push(&mut self, token: u32) -> String {
        let text = self.decoder.as_mut().and_then(|decoder| decoder.push(token).ok());
        self.stop.push(&text.unwrap_or_default())
    }

    /// Returns whether a stop string was found.
    pub fn stopped(&self) -> bool {
        self.stop.stopped()
    }

    /// Ends the text. Returns the text that was withheld; none after a stop string.
    pub fn finish(mut self) -> RestOfText {
        let rest = self.decoder.take().map(Stream::finish).unwrap_or_default();
        let text = self.stop.push(&rest);
        let stop = self.stop.stop_string().map(str::to_owned);
        RestOfText { text: text + &self.stop.finish(), stop }
    }
}

/// Removes the space that begins the text of generated tokens if the tokenizer (SPM) puts one
/// before each text. If the text is tokenized again as a message, it then has the same tokens.
///
/// # Errors
/// [`TokenizerError::UnknownId`].
pub fn without_added_space<'t>(
    tokenizer: &Tokenizer,
    tokens: &[u32],
    text: &'t str,
) -> Result<&'t str, TokenizerError> {
    // Control tokens are skipped, because they have no text.
    let Some(first) = tokens.iter().copied().find(|&token| tokenizer.is_text(token)) else { return Ok(text) };
    let decode = |at_start| tokenizer.decode_with(&[first], DecodeOptions { show_special: false, at_start });
    let has_space = decode(true)? != decode(false)?;
    Ok(text.strip_prefix(' ').filter(|_| has_space).unwrap_or(text))
}

/// Search for stop strings in text that arrives in pieces. Text that may begin a stop string is
/// withheld.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    strings: Arc<[String]>,
    /// Withheld text.
    withheld: String,
    /// Index of the string that was found.
    match_index: Option<usize>,
}

impl From<Arc<[String]>> for StopStrings {
    /// Creates a search for strings that several texts share. Empty strings never match.
    fn from(strings: Arc<[String]>) -> StopStrings {
        match strings.iter().any(String::is_empty) {
            true => StopStrings::new(strings.iter()),
            false => StopStrings { strings, ..StopStrings::default() },
        }
    }
}

impl StopStrings {
    /// Creates a search. Empty strings are never found.
    pub fn new(strings: impl IntoIterator<Item = impl Into<String>>) -> StopStrings {
        let strings = strings.into_iter().map(Into::into).filter(|string: &String| !string.is_empty());
        StopStrings { strings: strings.collect(), ..StopStrings::default() }
    }

    /// Adds a piece of text. Returns the text that can no longer be part of a stop string.
    pub fn push(&mut self, text: &str) -> String {
        if self.match_index.is_some() {
            return String::new();
        }
        self.withheld.push_str(text);
        let found =
            self.strings.iter().enumerate().filter_map(|(i, string)| Some((self.withheld.find(string.as_str())?, i)));
        if let Some((at, which)) = found.min() {
            self.match_index = Some(which);
            self.withheld.truncate(at);
            return std::mem::take(&mut self.withheld);
        }
        let begins = |at: &usize| self.strings.iter().any(|string| string.starts_with(&self.withheld[*at..]));
        let undecided = self.withheld.char_indices().map(|(at, _)| at).find(begins).unwrap_or(self.withheld.len());
        let rest = self.withheld.split_off(undecided);
        std::mem::replace(&mut self.withheld, rest)
    }

    /// Returns whether one of the strings was found.
    pub fn stopped(&self) -> bool {
        self.match_index.is_some()
    }

    /// Returns the string that was found.
    pub fn stop_string(&self) -> Option<&str> {
        self.strings.get(self.match_index?).map(String::as_str)
    }

    /// Ends the text. Returns the text that was withheld; none after a stop string.
    pub fn finish(self) -> String {
        self.withheld
    }
}

#[cfg(test)]
mod tests {
    use ixc_text::tokenizer::{ModelKind, SpecialIds, TokenType, TokenizerSpec};

    use super::*;

    #[test]
    fn space_that_the_tokenizer_adds_is_removed_once() {
        let tokens = ["<unk>", "<s>", "▁Hi", "▁", "Hi"].map(String::from).to_vec();
        let types =
            vec![TokenType::Unknown, TokenType::Control, TokenType::Normal, TokenType::Normal, TokenType::Normal];
        for adds_space in [true, false] {
            let spec = TokenizerSpec {
                model: ModelKind::Spm,
                scores: vec![0.0; tokens.len()],
                tokens: tokens.clone(),
                types: types.clone(),
                special: SpecialIds { bos: Some(1), unk: Some(0), ..SpecialIds::default() },
                add_space_prefix: adds_space,
                ..TokenizerSpec::default()
            };
            let tokenizer = Tokenizer::new(&spec).unwrap();
            for tokens in [&[2][..], &[4, 2], &[1, 2], &[3, 2], &[]] {
                let options = DecodeOptions { show_special: false, at_start: false };
                let text = tokenizer.decode_with(tokens, options).unwrap();
                let message = without_added_space(&tokenizer, tokens, &text).unwrap();
                assert_eq!(message, tokenizer.decode(tokens).unwrap(), "{tokens:?}");
            }
        }
    }

    /// Checks that the text before the first stop string does not depend on the pieces.
    #[test]
    fn stop_strings_match_at_any_chunk_size() {
        for (strings, text, expected) in [
            (&["aab"][..], "aaab", "a"),
            (&["aab"], "aaaa", "aaaa"),
            (&["###", "\n\n"], "one\ntwo\n\nthree ###", "one\ntwo"),
            (&["é!", "!"], "né?é!", "né?"),
            (&["x"], "", ""),
            (&["", "no"], "yes", "yes"),
            (&[], "all", "all"),
        ] {
            let chars: Vec<char> = text.chars().collect();
            for size in 1..=chars.len().max(1) {
                let mut stop = StopStrings::new(strings.iter().copied());
                let mut found = String::new();
                for piece in chars.chunks(size) {
                    found += &stop.push(&String::from_iter(piece));
                    assert!(text.starts_with(&found));
                }
                assert_eq!(stop.stopped(), expected != text, "{strings:?} in {text:?}");
                found += &stop.finish();
                assert_eq!(found, expected, "{strings:?} in {text:?}, pieces of {size}");
            }
        }
    }
}
