//! SentencePiece's unigram tokenizer, which XLM-R uses. It replaces characters by a table, and
//! spaces by `▁`. Of all ways to split the result into tokens, it selects the one with the highest
//! sum of scores.
//!
//! ```text
//! // characters are replaced by the table; a space is put before the text; a run of spaces is one
//! "Ａ  b"  ->  "▁A▁b"
//! best[0]       = 0
//! // computed from the start to the end; of equal sums, the first is used
//! best[at + n]  = max of best[at] + score of a token of n bytes that begins at `at`
//! ```
//!
//! A character without a token has the score of the worst token minus 10. A run of such characters
//! is one unknown token.

use super::TokenizerError;
use super::charsmap::Charsmap;
use super::spec::{TokenType, TokenizerSpec};
use super::vocabulary::{SPM_SPACE, Vocabulary};

/// Difference between the score of the worst token and that of a character without a token.
const UNKNOWN: f64 = 10.0;

/// SentencePiece's unigram tokenizer.
#[derive(Clone, Debug)]
pub struct Sentence {
    charsmap: Charsmap,
    /// Whether a space is put before each text.
    prefix: bool,
    /// Whether runs of spaces become one space, and spaces at both ends are removed.
    squeezes: bool,
    /// Tokens of text, sorted by text: text, id and score. A token comes before the longer tokens
    /// that begin with it.
    tokens: Vec<(Box<str>, u32, f64)>,
    /// Score of a character without a token.
    unknown: f64,
}

/// Best way to split the text up to a position.
#[derive(Clone, Copy)]
struct BestPath {
    score: f64,
    /// Start and id of the last token; the id is `None` for a character without a token.
    from: Option<(usize, Option<u32>)>,
}

impl Sentence {
    /// Returns the tokenizer of a spec, which must be valid.
    pub fn new(spec: &TokenizerSpec, vocabulary: &Vocabulary) -> Sentence {
        let score = |id: usize| f64::from(spec.scores.get(id).copied().unwrap_or(0.0));
        // Control tokens are excluded, because user text must not become one. Padding of the
        // vocabulary is excluded, because the model's own tokenizer lacks it.
        let is_text = |id: u32| matches!(vocabulary.token_type(id), TokenType::Normal | TokenType::UserDefined);
        let texts = spec.tokens.iter().enumerate().filter(|(id, text)| !text.is_empty() && is_text(*id as u32));
        let mut tokens: Vec<_> = texts.map(|(id, text)| (text.as_str().into(), id as u32, score(id))).collect();
        // If several tokens have the same text, the last is used.
        tokens.sort_by(|a: &(Box<str>, u32, f64), b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        tokens.dedup_by(|other, first| other.0 == first.0);
        let lowest = tokens.iter().map(|(.., score)| *score).fold(f64::INFINITY, f64::min);
        Sentence {
            charsmap: Charsmap::read(&spec.charsmap).unwrap_or_default(),
            prefix: spec.add_space_prefix,
            squeezes: spec.squeezes_spaces,
            tokens,
            unknown: if lowest.is_finite() { lowest - UNKNOWN } else { -UNKNOWN },
        }
    }

    /// Appends the token ids of `text`, which must contain no special tokens.
    ///
    /// # Errors
    /// [`TokenizerError::NoTokenForByte`] if a character has no token, and the vocabulary has no
    /// unknown token.
    pub fn encode(&self, unknown: Option<u32>, text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let text = self.respell(text);
        let mut best = vec![BestPath { score: 0.0, from: None }; text.len() + 1];
        for (at, character) in text.char_indices() {
            let (here, own) = (best[at].score, character.len_utf8());
            let mut is_token = false;
            let mut reach = |len: usize, score: f64, id: Option<u32>| {
                let to = &mut best[at + len];
                if to.from.is_none() || here + score > to.score {
                    *to = BestPath { score: here + score, from: Some((at, id)) };
                }
            };
            self.begin(&text.as_bytes()[at..], |(token, id, score)| {
                reach(token.len(), *score, Some(*id));
                is_token |= token.len() == own;
            });
            if !is_token {
                reach(own, self.unknown, None);
            }
        }
        let (mut reversed, mut at) = (Vec::new(), text.len());
        while let Some((from, id)) = best[at].from {
            let byte = text.as_bytes()[from];
            match id.map_or_else(|| unknown.ok_or(TokenizerError::NoTokenForByte { byte }), Ok)? {
                // A run of characters without tokens becomes one unknown token.
                id if reversed.last() == Some(&id) && Some(id) == unknown => {}
                id => reversed.push(id),
            }
            at = from;
        }
        ids.extend(reversed.into_iter().rev());
        Ok(())
    }

    /// Returns a text in the spelling of the tokens.
    fn respell(&self, text: &str) -> String {
        let text = self.charsmap.apply(text);
        let text = if self.squeezes { text.trim_matches(' ') } else { &text };
        let mut out = String::with_capacity(text.len() + SPM_SPACE.len_utf8());
        if self.prefix && !text.is_empty() {
            out.push(SPM_SPACE);
        }
        for c in text.chars() {
            match c {
                ' ' if self.squeezes && out.ends_with(SPM_SPACE) => {}
                ' ' => out.push(SPM_SPACE),
                c => out.push(c),
            }
        }
        out
    }

    /// Calls `found` with each token that is a prefix of `text`, the shortest first.
    fn begin(&self, text: &[u8], mut found: impl FnMut(&(Box<str>, u32, f64))) {
        let mut left = &self.tokens[..];
        for (depth, &byte) in text.iter().enumerate() {
            // The remaining tokens begin with the same bytes as the text up to here. The first of
            // them may end here.
            let at = |token: &(Box<str>, u32, f64)| token.0.as_bytes().get(depth).copied();
            let from = left.partition_point(|token| at(token) < Some(byte));
            let to = left.partition_point(|token| at(token) <= Some(byte));
            left = &left[from..to];
            match left.first() {
                None => return,
                Some(token) if token.0.len() == depth + 1 => found(token),
                Some(_) => {}
            }
        }
    }
}
