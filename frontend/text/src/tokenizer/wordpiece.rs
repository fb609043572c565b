//! BERT's WordPiece tokenizer. It cleans the text, and splits it into words at white space, at
//! punctuation and around ideographs. In each word, it takes the longest token at the beginning,
//! then the longest token at the beginning of the remaining text, and so on. If no token matches,
//! the whole word becomes one unknown token.
//!
//! ```text
//! tokens  "▁un", "▁believ", "believ", "able"
//! text "Unbelievable!"  ->  words "unbelievable" "!"  ->  "▁un" "believ" "able" "▁!"
//! ```
//!
//! Files have the tokens as llama.cpp's converter writes them. A token at the beginning of a word
//! has the prefix `▁`. Other tokens lack the prefix `##` that they have in BERT's own lists.

use unicode_categories::UnicodeCategories;
use unicode_normalization_alignments::UnicodeNormalization;

use super::TokenizerError;
use super::spec::{TokenType, TokenizerSpec};
use super::vocabulary::{SPM_SPACE, Vocabulary};

/// Maximum number of characters of a word. Longer words become the unknown token.
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
    /// Returns the tokenizer of a spec, which must be valid.
    pub fn new(spec: &TokenizerSpec) -> WordPiece {
        let longest = spec.tokens.iter().map(String::len).max().unwrap_or(0);
        WordPiece { lowercase: spec.lowercase, strip_accents: spec.strip_accents, longest }
    }

    /// Appends the token ids of `text`, which must contain no special tokens.
    ///
    /// # Errors
    /// [`TokenizerError::NoTokenForByte`] if tokens do not cover a word, and the vocabulary has no
    /// unknown token.
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

    /// Appends the token ids of a word. Returns `None` if tokens do not cover it.
    fn pieces(&self, vocabulary: &Vocabulary, word: &str, ids: &mut Vec<u32>) -> Option<()> {
        let spaced: String = [SPM_SPACE].into_iter().chain(word.chars()).collect();
        // A token with the prefix `▁` matches only at the beginning of a word.
        let (mut left, mut begins) = (&spaced[..], true);
        while !left.is_empty() {
            let min = if begins { SPM_SPACE.len_utf8() + 1 } else { 1 };
            let ends = left.char_indices().map(|(at, c)| at + c.len_utf8());
            let ends: Vec<usize> = ends.take_while(|end| *end <= self.longest).filter(|end| *end >= min).collect();
            let found = ends.into_iter().rev().find_map(|end| {
                let piece = &left[..end];
                // The token `▁` alone may also continue a word.
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

    /// Returns the words of a text, in the spelling of the vocabulary.
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

/// Returns whether text may become a token of this type. User text must not become a control token.
fn is_text(ty: TokenType) -> bool {
    matches!(ty, TokenType::Undefined | TokenType::Normal | TokenType::UserDefined)
}

fn is_control(c: char) -> bool {
    !matches!(c, '\t' | '\n' | '\r') && c.is_other()
}

fn is_punctuation(c: char) -> bool {
    c.is_ascii_punctuation() || c.is_punctuation()
}

/// Returns whether a character is in a block of Chinese characters that BERT's authors listed.
/// Here, one block begins later than in their list, as in Hugging Face's tokenizers.
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
