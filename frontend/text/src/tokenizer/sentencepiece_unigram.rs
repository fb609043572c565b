//! SentencePiece's unigram tokenizer, as for XLM-R. A table maps characters, and spaces become `▁`.
//! Of all tokenisations of the result, it selects the one with the highest sum of scores.
//!
//! ```text
//! // by the table, with a space before it; a run of spaces is one
//! "Ａ  b"  ->  "▁A▁b"
//! best[0]       = 0
//! // from the beginning to the end; the first of equal ones
//! best[at + n]  = max of best[at] + score of a token of n bytes that begins at `at`
//! ```
//!
//! A character without a token costs 10 more than the worst token, and a run of such characters is
//! one unknown token.

use super::TokenizerError;
use super::charsmap::Charsmap;
use super::spec::{TokenType, TokenizerSpec};
use super::vocabulary::{SPM_SPACE, Vocabulary};

/// Cost of an unknown character in addition to that of the worst token.
const UNKNOWN: f64 = 10.0;

/// SentencePiece's unigram tokenizer.
#[derive(Clone, Debug)]
pub struct Sentence {
    charsmap: Charsmap,
    /// Whether a space is put before a text.
    prefix: bool,
    /// Whether runs of spaces are merged, and spaces at both ends removed.
    squeezes: bool,
    /// Tokens of text, sorted by text; a prefix precedes longer texts.
    tokens: Vec<(Box<str>, u32, f64)>,
    /// Score of an unknown character.
    unknown: f64,
}

/// Best tokenisation up to a position.
#[derive(Clone, Copy)]
struct BestPath {
    score: f64,
    /// Start of its last token, and the token's id.
    from: Option<(usize, Option<u32>)>,
}

impl Sentence {
    /// Returns the tokenizer of a valid spec.
    pub fn new(spec: &TokenizerSpec, vocabulary: &Vocabulary) -> Sentence {
        let score = |id: usize| f64::from(spec.scores.get(id).copied().unwrap_or(0.0));
        // Control tokens are left out, because user text must not become one. Padding of the table
        // is not part of the model.
        let is_text = |id: u32| matches!(vocabulary.token_type(id), TokenType::Normal | TokenType::UserDefined);
        let texts = spec.tokens.iter().enumerate().filter(|(id, text)| !text.is_empty() && is_text(*id as u32));
        let mut tokens: Vec<_> = texts.map(|(id, text)| (text.as_str().into(), id as u32, score(id))).collect();
        // The last of several tokens with the same text is used.
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

    /// Appends the ids of `text`, which contains no special tokens.
    ///
    /// # Errors
    /// [`TokenizerError::NoTokenForByte`] if a character has no token and there is no unknown
    /// token.
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
                // A run of unknown characters is one token.
                id if reversed.last() == Some(&id) && Some(id) == unknown => {}
                id => reversed.push(id),
            }
            at = from;
        }
        ids.extend(reversed.into_iter().rev());
        Ok(())
    }

    /// Spells a text like the tokens.
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

    /// Passes every token that is a prefix of `text` to `found`, the shortest first.
    fn begin(&self, text: &[u8], mut found: impl FnMut(&(Box<str>, u32, f64))) {
        let mut left = &self.tokens[..];
        for (depth, &byte) in text.iter().enumerate() {
            // The remaining tokens share the bytes before; the first of them may end here.
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
