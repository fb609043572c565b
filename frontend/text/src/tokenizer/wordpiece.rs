//! BERT's WordPiece. Text is cleaned and split into words at white space, at punctuation and around
//! ideographs. In each word, it takes the longest token at the beginning, then the longest token of
//! the rest, and so on. If this fails, the word is one unknown token.
//!
//! ```text
//! tokens  "▁un", "▁believ", "believ", "able"
//! text "Unbelievable!"  ->  words "unbelievable" "!"  ->  "▁un" "believ" "able" "▁!"
//! ```
//!
//! Files have the tokens as llama.cpp's converter writes them. Tokens at the beginning of words
//! have a prefix `▁`. Others lack the `##` of BERT's own lists.

use unicode_categories::UnicodeCategories;
use unicode_normalization_alignments::UnicodeNormalization;

use super::TokenizerError;
use super::spec::{TokenType, TokenizerSpec};
use super::vocabulary::{SPM_SPACE, Vocabulary};

/// Maximum characters of a word that is looked up; longer words are unknown.
const MOST_CHARACTERS: usize = 100;

/// WordPiece tokenizer.
#[derive(Clone, Debug)]
pub struct WordPiece {
    lowercase: bool,
    strip_accents: bool,
    /// Length of the longest token in bytes.
    longest: usize,
}

impl WordPiece {
    /// Returns the tokenizer of a valid spec.
    pub fn new(spec: &TokenizerSpec) -> WordPiece {
        let longest = spec.tokens.iter().map(String::len).max().unwrap_or(0);
        WordPiece { lowercase: spec.lowercase, strip_accents: spec.strip_accents, longest }
    }

    /// Appends the ids of `text`, which contains no special tokens.
    ///
    /// # Errors
    /// [`TokenizerError::NoTokenForByte`] if a word has no tokens and there is no unknown token.
    pub fn encode(
        &self,
        vocabulary: &Vocabulary,
        unknown: Option<u32>,
        text: &str,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        for word in self.words(text) {
            let before = ids.len();
            if word.chars().count() > MOST_CHARACTERS || self.pieces(vocabulary, &word, ids).is_none() {
                ids.truncate(before);
                let byte = word.as_bytes().first().copied().unwrap_or_default();
                ids.push(unknown.ok_or(TokenizerError::NoTokenForByte { byte })?);
            }
        }
        Ok(())
    }

    /// Appends the tokens of a word; `None` if they do not cover it.
    fn pieces(&self, vocabulary: &Vocabulary, word: &str, ids: &mut Vec<u32>) -> Option<()> {
        let spaced: String = [SPM_SPACE].into_iter().chain(word.chars()).collect();
        // A token with the space begins a word, and matches nowhere else.
        let (mut left, mut begins) = (&spaced[..], true);
        while !left.is_empty() {
            let min = if begins { SPM_SPACE.len_utf8() + 1 } else { 1 };
            let ends = left.char_indices().map(|(at, c)| at + c.len_utf8());
            let ends: Vec<usize> = ends.take_while(|end| *end <= self.longest).filter(|end| *end >= min).collect();
            let found = ends.into_iter().rev().find_map(|end| {
                let piece = &left[..end];
                // The space alone is a token that may continue a word.
                let fits = begins || !piece.starts_with(SPM_SPACE) || piece.chars().count() == 1;
                let id = vocabulary.id(piece).filter(|&id| fits && is_text(vocabulary.token_type(id)))?;
                Some((id, end))
            });
            let (id, end) = found?;
            ids.push(id);
            (left, begins) = (&left[end..], false);
        }
        Some(())
    }

    /// Returns the words of a text, spelled like the vocabulary.
    fn words(&self, text: &str) -> Vec<String> {
        let clean = |c: &char| !(matches!(c, '\0' | '\u{fffd}') || is_control(*c));
        let spaced = text.chars().filter(clean).flat_map(|c| {
            let around = is_ideograph(c).then_some(' ');
            around.into_iter().chain([c]).chain(around)
        });
        let mut spaced: String = spaced.collect();
        if self.strip_accents {
            spaced = spaced.nfd().map(|(c, _)| c).filter(|c| !c.is_mark_nonspacing()).collect();
        }
        if self.lowercase {
            spaced = spaced.chars().flat_map(char::to_lowercase).collect();
        }
        let (mut words, mut word) = (Vec::new(), String::new());
        for c in spaced.chars() {
            if c.is_whitespace() || is_punctuation(c) {
                words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()));
            }
            if is_punctuation(c) {
                words.push(c.into());
            } else if !c.is_whitespace() {
                word.push(c);
            }
        }
        words.extend(Some(word).filter(|word| !word.is_empty()));
        words
    }
}

/// Returns whether a token may be made from text: user text must not become a control token.
fn is_text(ty: TokenType) -> bool {
    matches!(ty, TokenType::Undefined | TokenType::Normal | TokenType::UserDefined)
}

fn is_control(c: char) -> bool {
    !matches!(c, '\t' | '\n' | '\r') && c.is_other()
}

fn is_punctuation(c: char) -> bool {
    c.is_ascii_punctuation() || c.is_punctuation()
}

/// Returns whether a character is in the blocks of Chinese characters that BERT's authors listed.
/// These are the blocks of Hugging Face's tokenizers, in which one block begins later.
fn is_ideograph(c: char) -> bool {
    matches!(
        u32::from(c),
        0x4E00..=0x9FFF
            | 0x3400..=0x4DBF
            | 0x20000..=0x2A6DF
            | 0x2A700..=0x2B73F
            | 0x2B740..=0x2B81F
            | 0x2B920..=0x2CEAF
            | 0xF900..=0xFAFF
            | 0x2F800..=0x2FA1F
    )
}
